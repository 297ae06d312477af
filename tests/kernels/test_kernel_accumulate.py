"""The momentum recursion: bit for bit what plain torch gives, and rows that would not be finite keep their values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import KINDS, fill, plain
from torch import Tensor

from gyroscope._linalg._kernels import row_updates
from gyroscope._linalg.memory import table
from gyroscope.momentum.non_finite_gradients import accumulate

DTYPES = (torch.float32, torch.float64)
LARGEST = {dtype: torch.finfo(dtype).max for dtype in DTYPES}


def bits(values: Tensor) -> Tensor:
    """Return the values as integers: they tell -0.0 from 0.0, and NaN equals itself."""
    return values.contiguous().view(torch.int32 if values.dtype == torch.float32 else torch.int64)


def check(memory: Tensor, gradient: Tensor, mu: float, gain: float) -> Tensor | None:
    """Compare both paths with each other and with the definition; return what the kernel returned."""
    before, gradient_before = memory.clone(), bits(gradient).clone()
    reference = memory.clone()
    expected = plain(accumulate, reference, gradient, mu, gain)
    done = row_updates.accumulate(memory, gradient, mu, gain)
    total = torch.add(gradient if gain == 1 else gradient * gain, before, alpha=mu)
    finite = total.isfinite().all(dim=1)
    assert (done is None) == (expected is None) == bool(finite.all())
    assert done is None or (torch.equal(done, finite) and expected is not None and torch.equal(expected, finite))
    assert torch.equal(bits(memory), bits(reference)) and torch.equal(bits(gradient), gradient_before)
    assert torch.equal(bits(memory[finite]), bits(total[finite]))
    assert torch.equal(bits(memory[~finite]), bits(before[~finite]))
    return done


@given(
    n=st.integers(1, 9), d=st.one_of(st.integers(1, 40), st.integers(100, 300)), seed=st.integers(0, 2**32 - 2),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)), dtype=st.sampled_from(DTYPES),
    gaps=st.tuples(st.sampled_from((0, 1, 7)), st.sampled_from((0, 1, 7))),
    mu=st.sampled_from((0.0, 0.5, 0.9, 0.999, 1.0, 1.5)), gain=st.sampled_from((1.0, 0.1, 0.9, 3.0)),
)  # fmt: skip
@settings(deadline=None, max_examples=300)
def test_both_paths_agree_to_the_last_bit(
    n: int, d: int, seed: int, kinds: tuple[str, str], dtype: torch.dtype, gaps: tuple[int, int], mu: float, gain: float
) -> None:
    memory, gradient = (fill(n, d, seed + i, kinds[i], dtype, gaps[i]) for i in (0, 1))
    check(memory, gradient, mu, gain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 700_003), (5, 79_510), (9, 131_072)], ids=str)
def test_large_rows_and_threads(shape: tuple[int, int], dtype: torch.dtype) -> None:
    n, d = shape
    gradient = fill(n, d, 1, "normal", dtype)
    for bad, column in ((None, 0), (math.nan, 0), (math.inf, d // 2), (-math.inf, d - 1)):
        memory = table(n, d, gradient).copy_(fill(n, d, 2, "normal", dtype))
        if bad is not None:
            gradient[n // 2, column] = bad
        done = check(memory, gradient, 0.9, 1.0)
        assert (done is None) == (bad is None) and (done is None or done.sum() == n - 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("column", [0, 20, 36])
def test_a_sum_that_overflows_leaves_its_row_alone(column: int, dtype: torch.dtype) -> None:
    memory, gradient = torch.ones(3, 37, dtype=dtype), torch.ones(3, 37, dtype=dtype)
    memory[1, column] = gradient[1, column] = LARGEST[dtype]
    done = check(memory, gradient, 0.9, 1.0)
    assert done is not None and done.tolist() == [True, False, True]
    gradient[1, column] = 0.0  # one round later
    assert check(memory, gradient, 0.9, 1.0) is None
    memory[1, column] = LARGEST[dtype]
    gradient[1, column] = -LARGEST[dtype]  # large values, and a small sum
    assert check(memory, gradient, 1.0, 1.0) is None and memory[1, column] == 0


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_memory_that_is_lost_stays_as_it_is(lost: float) -> None:
    memory, gradient = torch.ones(2, 50), torch.ones(2, 50)
    memory[0, 7] = lost
    done = check(memory, gradient, 0.9, 1.0)
    assert done is not None and done.tolist() == [False, True]


def test_values_between_the_rows_are_not_touched() -> None:
    whole = torch.full((4, 50), 7.0)
    check(whole[:, 3:40], torch.ones(4, 37), 0.9, 1.0)
    assert (whole[:, :3] == 7).all() and (whole[:, 40:] == 7).all()


def test_memory_shared_with_the_gradient_changes_nothing() -> None:
    values = torch.randn(6, 90)
    for left, right in (
        (slice(0, 3), slice(0, 3)),  # the same
        (slice(0, 3), slice(1, 4)),  # one row further on
        (slice(1, 4), slice(0, 3)),
        (slice(0, 6, 2), slice(1, 6, 2)),  # every other row
    ):
        for columns, others in ((slice(0, 80), slice(0, 80)), (slice(0, 80), slice(5, 85)), (slice(5, 85), slice(80))):
            shared = values.clone()
            memory, gradient = shared[left, columns], shared[right, others]
            expected = torch.add(gradient, memory, alpha=0.9)
            assert accumulate(memory, gradient, 0.9) is None
            assert torch.equal(memory, expected)


def test_one_gradient_for_all_rows() -> None:
    memory, gradient = torch.randn(5, 70), torch.randn(70)
    expected = torch.add(gradient, memory, alpha=0.9)
    assert accumulate(memory, gradient.expand(5, 70), 0.9) is None and torch.equal(memory, expected)
    with pytest.raises(RuntimeError):  # a memory that is one row five times over
        accumulate(gradient.expand(5, 70), memory, 0.9)


def test_other_types_take_the_plain_path() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        memory, gradient = torch.randn(3, 40).to(dtype), torch.randn(3, 40).to(dtype)
        gradient[1, 5] = math.nan
        before, expected = memory.clone(), torch.add(gradient, memory, alpha=0.9)
        done = accumulate(memory, gradient, 0.9)
        assert done is not None and done.tolist() == [True, False, True]
        assert torch.equal(memory[::2], expected[::2]) and torch.equal(memory[1], before[1])
