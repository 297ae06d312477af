"""Shards: every sample with one worker, no worker without samples, the same in every process; and the batches."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gyroscope as gy
from gyroscope._core.errors import ConfigError, DataError, UnknownNameError
from gyroscope.cli import main
from gyroscope.runs import setup
from gyroscope.runs.training import load_task
from gyroscope.simulation.data import shards
from gyroscope.simulation.data.batches import deal, deal_from_shards

DEALT = [name for name in shards.SHARDINGS if name != "common"]


@st.composite
def shardings(draw: st.DrawFn) -> shards.Sharding:
    """Any sharding, with any parameters that fit into its table entry."""
    kind = shards.SHARDINGS[draw(st.sampled_from(DEALT))]
    values = {"alpha": st.floats(1e-6, 1e6), "gamma": st.floats(0, 1), "least": st.just(1)}
    return kind(**{field.name: draw(values[field.name]) for field in dataclasses.fields(kind)})


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Labels, perhaps all the same, perhaps odd numbers; and a number of workers that may be as large as theirs."""
    labels = draw(st.lists(st.sampled_from([-3, 0, 1, 2, 7, 90]), min_size=1, max_size=60))
    return torch.tensor(labels), draw(st.integers(1, len(labels)))


@given(shardings(), labelled(), st.integers(0, 2**40))
def test_every_sample_is_with_one_worker_and_no_worker_is_without(
    sharding: shards.Sharding, data: tuple[Tensor, int], seed: int
) -> None:
    targets, n = data
    dealt = sharding.deal(targets, n, seed)
    assert dealt is not None and len(dealt) == n
    assert all(len(shard) > 0 and torch.equal(shard, shard.sort().values) for shard in dealt)
    assert torch.equal(torch.cat(dealt).sort().values, torch.arange(len(targets)))
    again = shards.parse(str(sharding)).deal(targets.clone(), n, seed)
    assert again is not None and all(map(torch.equal, dealt, again)), "the spec deals the same"


@pytest.mark.parametrize("name", DEALT)
def test_another_seed_deals_otherwise(name: str) -> None:
    targets = torch.arange(200) % 10
    one, other = (shards.parse(name).deal(targets, 7, seed) for seed in (1, 2))
    assert one is not None and other is not None
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@given(labelled(), st.floats(0, 1))
def test_a_similarity_is_a_mixture_of_iid_and_sorted_with_equal_sizes(data: tuple[Tensor, int], gamma: float) -> None:
    targets, n = data
    mixed = shards.Similarity(gamma).deal(targets, n, 5)
    sizes = [len(shard) for shard in mixed or []]
    assert max(sizes) - min(sizes) <= 1
    for end, same in ((0.0, shards.Sorted()), (1.0, shards.Iid())):
        assert str(shards.Similarity(end).deal(targets, n, 5)) == str(same.deal(targets, n, 5))


def test_sorted_data_is_cut_along_its_labels() -> None:
    """Against the definition: sort, cut into equal parts. Which worker gets which part is drawn."""
    targets = torch.arange(100) % 5
    dealt = shards.Sorted().deal(targets, 10, 3)
    held = sorted(tuple(targets[shard].tolist()) for shard in dealt or [])
    assert held == [(label,) * 10 for label in range(5) for _ in range(2)]
    holders = {tuple(targets[(shards.Sorted().deal(targets, 10, seed) or [])[-1]].tolist()) for seed in range(20)}
    assert len(holders) > 2, "the last worker does not always hold the last label"


def test_of_a_similarity_the_sorted_part_is_sorted() -> None:
    targets = torch.arange(1000) % 10
    dealt = shards.Similarity(0.3).deal(targets, 10, 3)
    for shard in dealt or []:
        (_, most), (_, second) = Counter(targets[shard].tolist()).most_common(2)
        assert 70 <= most + second <= 90, "70 sorted, perhaps across the border of two labels, and a few of the 30"
        assert len(targets[shard].unique()) > 5


def test_the_dirichlet_distribution_s_alpha_says_how_unequal() -> None:
    targets = torch.arange(6000) % 10

    def skew(spec: str, seed: int = 1) -> float:
        return shards.skew(shards.counts(shards.parse(spec).deal(targets, 15, seed) or [], targets)[1])

    falling = [skew(f"dirichlet:alpha={alpha}") for alpha in (1e-6, 0.1, 1, 10, 1e6)]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > 0.8 and falling[-1] < 0.01
    assert skew("iid") < 0.1 and skew("sorted") == pytest.approx(0.85, abs=0.06) and skew("quantity:alpha=10") < 0.1


def test_proportions_are_a_dirichlet_distribution_s() -> None:
    """Mean 1/n and variance (1/n)(1 - 1/n)/(n alpha + 1), over many labels."""
    n, alpha, each = 5, 0.7, 400
    targets = torch.arange(300).repeat_interleave(each)
    _, held = shards.counts(shards.Dirichlet(alpha).deal(targets, n, 1) or [], targets)
    parts = held.double() / each
    assert float(parts.var()) == pytest.approx((1 / n) * (1 - 1 / n) / (n * alpha + 1), rel=0.1)
    assert parts.mean(dim=1).numpy() == pytest.approx(np.full(n, 1 / n), abs=0.05)


def test_quantities_differ_and_labels_do_not() -> None:
    targets = torch.arange(60_000) % 10
    _, held = shards.counts(shards.Quantity(0.5).deal(targets, 10, 1) or [], targets)
    sizes = held.sum(dim=1)
    assert sizes.max() > 5 * sizes.min()
    large = held[sizes > 1000].double()
    torch.testing.assert_close(large / large.sum(dim=1, keepdim=True), torch.full_like(large, 0.1), atol=0.03, rtol=0)


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
def test_no_worker_holds_fewer_than_the_least(name: str) -> None:
    targets = torch.arange(600) % 10
    dealt = shards.parse(f"{name}:alpha=0.001,least=12").deal(targets, 20, 1) or []
    assert min(map(len, dealt)) == 12 < max(map(len, dealt))
    with pytest.raises(ConfigError, match="lower least"):
        shards.parse(f"{name}:least=31").deal(targets, 20, 1)


@pytest.mark.parametrize("name", DEALT)
def test_fewer_samples_than_workers_is_an_error(name: str) -> None:
    with pytest.raises(DataError, match="3 samples cannot be dealt to 4 workers"):
        shards.parse(name).deal(torch.arange(3), 4, 1)


@pytest.mark.parametrize("name", DEALT)
def test_targets_that_are_no_labels_are_refused_where_labels_count(name: str) -> None:
    for targets in (torch.randn(20), torch.ones(20, 3, dtype=torch.int64)):
        if shards.SHARDINGS[name].by_label:
            with pytest.raises(ConfigError, match="use iid or quantity"):
                shards.parse(name).deal(targets, 4, 1)
        else:
            assert sum(map(len, shards.parse(name).deal(targets, 4, 1) or [])) == 20


@pytest.mark.parametrize(
    "spec", ["dirichlet:alpha=0", "dirichlet:alpha=-1", "dirichlet:alpha=inf", "dirichlet:alpha=nan",
             "quantity:alpha=x", "similarity:gamma=1.1", "dirichlet:least=0", "quantity:least=1.5",
             "dirichlet:alpha=true"]
)  # fmt: skip
def test_a_parameter_out_of_range_is_an_error_with_its_bounds(spec: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        gy.Config(shards=spec).resolve()


def test_names_are_checked_and_spelt_in_one_way() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'dirichlet'"):
        gy.Config(shards="dirichelt").resolve()
    assert gy.Config(shards="dirichlet: alpha=0.50,least=1").resolve().shards == "dirichlet"
    assert gy.Config().resolve().shards == "common"
    assert shards.Common().deal(torch.arange(3), 9, 1) is None


@dataclasses.dataclass(frozen=True)
class Forgetful(shards.Sharding):
    def shares(self, labels: shards.Numbers, n: int, stream: np.random.Generator) -> list[shards.Numbers]:
        return np.array_split(np.arange(len(labels) - 1), n)


def test_a_foreign_sharding_that_loses_samples_is_found_out() -> None:
    with pytest.raises(ConfigError, match="each of the 20 sample numbers once"):
        shards.parse(f"{__name__}:Forgetful").deal(torch.arange(20), 4, 1)


# -- batches from shards -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 50))
def test_a_worker_draws_from_its_own_shard_however_many_others_there_are(
    sizes: list[int], batch: int, step: int
) -> None:
    held = list(torch.arange(sum(sizes)).split(sizes))
    for one_pass in (False, True):
        drawn = deal_from_shards(3, step, range(len(held)), held, batch, one_pass)
        assert drawn.shape == (len(held), batch)
        for worker, mine in enumerate(drawn):
            assert set(mine.tolist()) <= set(held[worker].tolist())
            alone = deal_from_shards(3, step, [worker], held[: worker + 1], batch, one_pass)
            assert torch.equal(alone[0], mine)


def test_independent_batches_are_those_of_common_data_of_the_shard_s_size() -> None:
    held = [torch.arange(50), torch.arange(50, 80)]
    drawn = deal_from_shards(7, 4, range(2), held, 6)
    assert torch.equal(drawn[1], 50 + deal(7, 4, [1], 30, 6)[0])
    assert torch.equal(drawn[0], deal(7, 4, [0], 50, 6)[0])


def test_a_pass_over_a_shard_gives_every_sample_once_before_any_twice() -> None:
    held = [torch.arange(0, 30, 3), torch.arange(1, 30, 3)]
    drawn = torch.cat([deal_from_shards(7, step, range(2), held, 4, one_pass=True) for step in range(10)], dim=1)
    for worker in (0, 1):
        passes = drawn[worker].view(4, 10)
        assert all(torch.equal(once.sort().values, held[worker]) for once in passes)
    assert not torch.equal(drawn[0], drawn[1] - 1), "each shuffles by itself"


# -- in a run ----------------------------------------------------------------------------------------------------------


def workers_of(only: int | None = None, **changes: object) -> setup.SimulatedWorkers:
    config = gy.Config(workers=9, shards="dirichlet:alpha=0.1", threads=1, **changes).resolve()  # type: ignore[arg-type]
    return setup.simulated_workers(config, load_task(config), only)[1]


@pytest.mark.parametrize("batches", ["independent", "pass"])
def test_a_worker_process_computes_the_row_that_the_simulation_has_for_it(batches: str) -> None:
    losses, rows = workers_of(batches=batches).sample(5)
    for number in (0, 6):
        loss, row = workers_of(only=number, batches=batches).sample(5)
        torch.testing.assert_close(row[0], rows[number], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(loss[0], losses[number])


def test_a_row_is_the_gradient_of_samples_of_the_own_shard() -> None:
    workers = workers_of()
    assert workers.shards is not None
    targets = gy.Split.of(load_task(gy.Config()).train).targets
    for step in range(20):
        for worker, drawn in enumerate(workers.batches(step, range(9))[1]):
            assert set(drawn.tolist()) <= set(targets[workers.shards[worker]].tolist())


@pytest.mark.parametrize("batches", ["independent", "pass"])
def test_shards_of_narrower_numbers_are_as_good(batches: str) -> None:
    """A foreign sharding may give them."""
    workers, narrow = workers_of(batches=batches), workers_of(batches=batches)
    assert narrow.shards is not None
    narrow.shards = [shard.to(torch.int32) for shard in narrow.shards]
    assert torch.equal(workers.sample(3)[1], narrow.sample(3)[1])


def test_byzantine_workers_change_no_shard() -> None:
    """And so the batches of the honest workers are the same as without Byzantine workers."""
    honest, attacked = workers_of(), workers_of(attack="little", byzantine=3)
    assert (honest.count, attacked.count) == (9, 6)
    assert honest.shards is not None and attacked.shards is not None and len(attacked.shards) == 9
    assert all(map(torch.equal, honest.shards, attacked.shards))
    assert torch.equal(honest.batches(2, range(6))[1], attacked.batches(2, range(6))[1])


def test_data_is_common_by_default() -> None:
    config = gy.Config(workers=9, threads=1).resolve()
    assert setup.simulated_workers(config, load_task(config))[1].shards is None


def test_shards_that_are_too_many_leave_nothing_behind(tmp_path: Path) -> None:
    task = gy.Task(
        torch.nn.Linear(2, 2), (torch.randn(8, 2), torch.arange(8) % 2), (torch.randn(4, 2), torch.arange(4))
    )
    with pytest.raises(DataError, match="8 samples cannot be dealt to 9 workers"):
        gy.train(gy.Config(workers=9, shards="iid"), task=task, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_the_command_prints_and_draws_the_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    out = tmp_path / f"holds.{kind}"
    assert main(["shards", "--shards", "sorted", "--workers", "5", "--out", str(out)]) == 0
    heading, *lines, summary, picture = capsys.readouterr().out.splitlines()
    assert heading.split() == ["worker", *map(str, range(10)), "all"]
    table = [[int(cell) for cell in line.split()] for line in lines]
    assert [line[0] for line in table] == list(range(5))
    assert all(sum(line[1:-1]) == line[-1] for line in table) and sum(line[-1] for line in table) == 1438
    assert "hold 287 to 288 of 1,438 samples" in summary and picture == f"picture: {out}"
    assert out.read_bytes()[:4] in (b"\x89PNG", b"%PDF")


def test_the_command_refuses_what_it_cannot_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shards", "--shards", "common"]) == 2
    assert "every worker draws from all samples" in capsys.readouterr().err
    assert main(["shards", "--out", str(tmp_path / "holds.txt")]) == 2
    assert ".png" in capsys.readouterr().err
