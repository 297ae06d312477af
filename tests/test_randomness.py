"""Random streams: stable for ever, independent of each other, and without a trace on torch's global generator."""

from __future__ import annotations

import hashlib

import pytest
import torch

from gyroscope._core.random_streams import ambient, derive, generator


@pytest.mark.parametrize(
    ("arguments", "golden"),
    [
        ((1, "batch", 3, 40), 5524145749729179156),
        ((0, "init"), 1519069808562059438),
        ((-7, "attack", 12), 1883337535667072801),
    ],
)
def test_derived_seeds_are_golden(arguments: tuple[int, str, int], golden: int) -> None:
    """A change here changes every recorded run: do not mend the test, mend the code."""
    assert derive(*arguments) == golden


def test_a_derived_seed_is_the_head_of_a_hash() -> None:
    digest = hashlib.sha256(b"5/batch/1/2").hexdigest()
    assert derive(5, "batch", 1, 2) == int(digest[:16], 16) // 2


def test_derived_seeds_fit_in_63_bits_and_do_not_collide() -> None:
    seeds = [
        derive(seed, purpose, worker, step)
        for seed in range(5)
        for purpose in ("batch", "attack", "init")
        for worker in range(12)
        for step in range(12)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_neighbouring_digits_are_kept_apart() -> None:
    assert derive(1, "batch", 1, 23) != derive(1, "batch", 12, 3)
    assert derive(1, "batch") != derive(1, "batch", 0) != derive(10, "batch")


def test_a_stream_starts_anew_each_time() -> None:
    assert torch.equal(
        torch.rand(5, generator=generator(1, "batch", 2)), torch.rand(5, generator=generator(1, "batch", 2))
    )


def test_streams_are_uncorrelated() -> None:
    streams = [(1, "batch", 0), (1, "batch", 1), (2, "batch", 0), (1, "attack", 0)]
    draws = torch.stack([torch.randn(20_000, generator=generator(*stream)) for stream in streams])
    off_diagonal = torch.corrcoef(draws) - torch.eye(len(streams))
    assert off_diagonal.abs().max() < 0.05


def test_drawing_from_a_stream_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    torch.rand(3, generator=generator(1, "batch"))
    assert torch.equal(torch.get_rng_state(), state)


def test_ambient_restores_the_global_generator() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with ambient(1, "init"):
        inside = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(inside, torch.rand(4, generator=generator(1, "init")))


def test_ambient_does_not_depend_on_what_was_drawn_before() -> None:
    draws = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with ambient(9, "init", 4):
            draws.append(torch.nn.Linear(3, 2).weight.tolist())
    assert draws[0] == draws[1]


def test_ambient_restores_after_an_exception_and_when_nested() -> None:
    state = torch.get_rng_state()
    with pytest.raises(IndexError), ambient(1, "init"):
        torch.rand(1)[2]
    assert torch.equal(torch.get_rng_state(), state)
    with ambient(1, "outer"):
        first = torch.rand(1)
        with ambient(1, "inner"):
            torch.rand(1)
        second = torch.rand(1)
    with ambient(1, "outer"):
        assert torch.equal(torch.rand(2), torch.cat([first, second]))
