"""`WorkerMomentum`: against explicit sums, against torch's own optimiser, and with gradients that are not finite."""

from __future__ import annotations

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import DTYPES, normal, seeds
from torch import Tensor

from gyroscope._core.errors import ConfigError, RowsError
from gyroscope.momentum import WorkerMomentum

factors = st.floats(0, 0.999)
BAD = [math.nan, math.inf, -math.inf]


def gradients_of(seed: int, count: int = 8, n: int = 5, d: int = 3) -> list[Tensor]:
    return [normal(n, d, seed + step) for step in range(count)]


@given(seed=seeds, mu=factors)
def test_a_row_is_the_discounted_sum_of_its_workers_gradients(seed: int, mu: float) -> None:
    momentum, gradients = WorkerMomentum(mu), gradients_of(seed)
    for t, rows in enumerate(gradients):
        for worker, row in enumerate(momentum.update(rows).tolist()):
            own = [past[worker].tolist() for past in gradients[: t + 1]]
            assert row == pytest.approx(oracles.discounted(own, mu), abs=1e-12)


def test_momentum_is_not_dampened_unless_asked() -> None:
    plain, average = WorkerMomentum(0.5), WorkerMomentum(0.5, dampening=0.5)
    assert [plain.update(torch.ones(1)).item() for _ in range(3)] == [1.0, 1.5, 1.75]
    assert [average.update(torch.ones(1)).item() for _ in range(3)] == [0.5, 0.75, 0.875]


@given(seed=seeds, mu=st.floats(0.01, 0.99), nesterov=st.booleans())
def test_one_worker_is_torchs_sgd(seed: int, mu: float, nesterov: bool) -> None:
    """A quadratic loss, so that each gradient depends on the steps before."""
    target, lr = normal(1, 4, seed)[0], 0.07
    theirs = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theirs], lr=lr, momentum=mu, nesterov=nesterov)
    ours, momentum = torch.zeros(4, dtype=torch.float64), WorkerMomentum(mu, nesterov=nesterov)
    for _ in range(6):
        optimizer.zero_grad()
        (0.5 * (theirs - target).square().sum()).backward()
        optimizer.step()
        ours = ours - lr * momentum.update(ours - target)
        assert torch.allclose(ours, theirs.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
def test_one_by_one_together_and_into_a_buffer_are_the_same_bits(nesterov: bool, dtype: torch.dtype) -> None:
    together, shared = (WorkerMomentum(0.9, nesterov=nesterov) for _ in range(2))
    alone = [WorkerMomentum(0.9, nesterov=nesterov) for _ in range(4)]
    out = torch.full((6, 7), 5.0, dtype=dtype)[:4]
    for step in range(5):
        rows = normal(4, 7, step, dtype=dtype)
        before = rows.clone()
        if step == 3:
            rows[2, 1] = math.nan
        sent = together.update(rows)
        assert sent.dtype == dtype
        assert torch.equal(sent, torch.stack([each.update(row) for each, row in zip(alone, rows, strict=True)])) or (
            step == 3
        )
        written = shared.update(rows, out=out)
        assert written is out
        torch.testing.assert_close(written, sent, rtol=0, atol=0, equal_nan=True)
        assert step == 3 or torch.equal(rows, before)


@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
@pytest.mark.parametrize("into_a_buffer", [False, True], ids=["new memory", "buffer"])
@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_gradient_that_is_not_finite_is_sent_as_it_is_and_costs_one_round(
    nesterov: bool, into_a_buffer: bool, bad: float
) -> None:
    ours, without = (WorkerMomentum(0.5, nesterov=nesterov) for _ in range(2))
    out = torch.empty(3, 4) if into_a_buffer else None
    for step in range(6):
        rows = normal(3, 4, step, dtype=torch.float32)
        if step == 2:
            rows[1, 3] = bad
            sent = ours.update(rows, out=out)
            torch.testing.assert_close(sent[1], rows[1], rtol=0, atol=0, equal_nan=True)
            kept = without.state_dict()["momentum"].clone()
            good = rows.clone()
            good[1] = 0.0
            without.update(good)
            assert without.buffer is not None
            without.buffer[1] = kept[1]  # as if worker 1 had not taken part in this round
            continue
        if step == 3:
            torch.testing.assert_close(ours.preview(rows), without.preview(rows), rtol=0, atol=0)
        torch.testing.assert_close(ours.update(rows, out=out), without.update(rows), rtol=0, atol=0)


def test_a_sum_that_overflows_is_not_kept() -> None:
    momentum, large = WorkerMomentum(0.9), torch.full((2,), 3e38)
    momentum.update(large)
    assert torch.equal(momentum.update(large), large), "3e38 and 0.9 times as much do not fit into float32"
    assert momentum.update(torch.zeros(2)).isfinite().all()


def test_a_state_dict_goes_on_with_the_same_bits_also_after_a_bad_round() -> None:
    ours, other = WorkerMomentum(0.9), WorkerMomentum(0.9)
    assert ours.state_dict() == {}
    out = torch.empty(3, 4)
    for step in range(3):
        rows = normal(3, 4, step, dtype=torch.float32)
        if step == 2:
            rows[0] = math.nan
        ours.update(rows, out=out)
    other.load_state_dict(ours.state_dict())
    rows = normal(3, 4, 9, dtype=torch.float32)
    assert torch.equal(ours.update(rows, out=out), other.update(rows))


def test_what_is_returned_is_the_callers_own() -> None:
    momentum = WorkerMomentum(0.5)
    row = momentum.update(torch.ones(2))
    row.mul_(100)
    assert momentum.update(torch.ones(2)).tolist() == [1.5, 1.5]


def test_a_gradient_that_requires_grad_leaves_no_graph() -> None:
    gradient = torch.ones(3, requires_grad=True)
    assert not WorkerMomentum().update(gradient).requires_grad


@pytest.mark.parametrize("mu", [1, 1.5, -0.1, math.nan, math.inf, True, "0.9", None], ids=repr)
def test_mu_is_at_least_zero_and_below_one(mu: object) -> None:
    with pytest.raises(ConfigError, match="mu must be at least 0 and below 1"):
        WorkerMomentum(mu)  # type: ignore[arg-type]


def test_other_mistakes_are_told() -> None:
    with pytest.raises(ConfigError, match=r"dampening must be from 0 to 1 .* got 1.5"):
        WorkerMomentum(0.9, dampening=1.5)
    momentum = WorkerMomentum()
    momentum.update(torch.ones(3))
    with pytest.raises(RowsError, match=r"shape \(3,\) .* got a gradient of shape \(4,\)"):
        momentum.update(torch.ones(4))
