"""Checks of rows, distances between rows, and parameters as one flat vector."""

from __future__ import annotations

import contextlib
import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import DTYPES, matrices, normal, strided
from torch import Tensor, nn

from gyroscope._core.errors import RowsError
from gyroscope._linalg import _kernels, matrix
from gyroscope._linalg.distances import squared_distances
from gyroscope._linalg.flat_parameters import attach, flatten, split_like, trainable
from gyroscope._linalg.matrix import check


def distances(rows: Tensor) -> Tensor:
    return squared_distances(rows).sqrt()


def plain_distances(rows: Tensor) -> Tensor:
    with _kernels.switched_off():
        return distances(rows)


def table(rows: Tensor) -> Tensor:
    """Return the oracle's distances."""
    values = rows.tolist()
    return torch.tensor(
        [[0.0 if i == j else oracles.distance(a, b) for j, b in enumerate(values)] for i, a in enumerate(values)],
        dtype=torch.float64,
    )


# -------------------------------------------------------------------------------------------- distances


def promised(rows: torch.Tensor) -> float:
    """Return the relative accuracy of distances: the kernel sums float32 squares in short runs."""
    return 1e-6 if rows.dtype == torch.float32 else 1e-12


@given(data=st.data())
def test_distances_are_relatively_accurate(data: st.DataObject) -> None:
    rows = data.draw(matrices(data.draw(st.integers(1, 9))))
    before = rows.clone()
    for got in (distances(rows), plain_distances(rows)):
        assert got.dtype == torch.float64 and got.shape == (len(rows), len(rows))
        assert torch.equal(got, got.T) and not got.diagonal().any()
    assert torch.allclose(got, table(rows), rtol=1e-12, atol=0)
    assert torch.allclose(distances(rows), table(rows), rtol=promised(rows), atol=0)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
@pytest.mark.parametrize("d", [8191, 8192, 8193, 16385])
def test_distances_do_not_depend_on_the_block(d: int, dtype: torch.dtype) -> None:
    rows = (1e4 + 0.01 * normal(4, d, seed=d)).to(dtype)
    assert torch.allclose(distances(rows), table(rows), rtol=promised(rows), atol=0)


def test_a_difference_in_the_last_column_alone_counts() -> None:
    for d in (1, 8192, 8193, 16384):
        rows = torch.ones(2, d)
        rows[1, -1] = 4.0
        assert distances(rows)[0, 1] == 3


def test_distances_of_any_number_of_columns_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = normal(5, 12, seed=1)
    for block in (1, 5, 12, 13):
        monkeypatch.setattr(matrix, "_BLOCK", block, raising=True)
        assert torch.allclose(plain_distances(rows), table(rows), rtol=1e-13, atol=0)


def test_distances_of_rows_in_other_layouts() -> None:
    rows = normal(6, 40, seed=2, dtype=torch.float32)
    for _, same in strided(rows):
        assert torch.allclose(distances(same), table(rows), rtol=promised(rows), atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("place", [0, 8191, 8192, 8199])
def test_one_non_finite_value_puts_a_row_infinitely_far(bad: float, place: int) -> None:
    rows = normal(4, 8200, seed=3, dtype=torch.float32)
    rows[2, place] = bad
    got = distances(rows)
    others = [0, 1, 3]
    assert torch.isinf(got[2, others]).all() and torch.isinf(got[others, 2]).all()
    assert got[others][:, others].isfinite().all() and got[2, 2] == 0


def test_two_equal_non_finite_rows_are_infinitely_far_from_each_other() -> None:
    rows = torch.tensor([[math.inf], [math.inf], [math.nan], [math.nan]])
    assert torch.equal(distances(rows), torch.full((4, 4), math.inf, dtype=torch.float64).fill_diagonal_(0))


def test_huge_float32_values_have_finite_distances() -> None:
    rows = torch.tensor([[3e38, 3e38], [-3e38, -3e38]])
    assert distances(rows)[0, 1].item() == pytest.approx(6e38 * math.sqrt(2))


# -------------------------------------------------------------------------------------------------- check


def test_check_accepts_tensors_and_sequences() -> None:
    rows = normal(3, 2, seed=0)
    assert torch.equal(check(rows), rows)
    assert torch.equal(check(list(rows)), rows) and torch.equal(check(tuple(rows)), rows)
    assert not check(rows.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.zeros(3), r"shape \(n, d\).*got \(3,\)"),
        (torch.zeros(0, 3), r"got \(0, 3\)"),
        (torch.zeros(3, 0), r"got \(3, 0\)"),
        (torch.zeros(3, 2, dtype=torch.int64), "floating-point, got torch.int64"),
        ([], "no rows"),
        ([torch.zeros(2), torch.zeros(3)], r"ragged: row 0 has shape \(2,\), row 1 \(3,\)"),
        ([torch.zeros(2), torch.zeros(2).double()], "mixed kinds: row 0 is torch.float32 .* row 1 torch.float64"),
        ([torch.zeros(2), [0.0, 0.0]], "row 1 is a list, not a tensor"),
    ],
    ids=["1-d", "no rows", "no columns", "ints", "empty", "ragged", "mixed", "lists"],
)
def test_check_says_what_is_wrong(wrong: object, message: str) -> None:
    with pytest.raises(RowsError, match=message):
        check(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 3, 1.5], ids=repr)
def test_check_refuses_what_cannot_be_iterated(wrong: object) -> None:
    with pytest.raises(RowsError):
        check(wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- parameters as one vector


class Odd(nn.Module):
    """Parameters of many shapes: a frozen one, a scalar, and one that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.scalar = nn.Parameter(torch.tensor(6.0))
        self.turned = nn.Parameter(torch.arange(7.0, 13.0).reshape(2, 3).t().contiguous().t())


def test_flatten_is_a_copy_in_order() -> None:
    model = Odd()
    flat = flatten(trainable(model))
    assert flat.tolist() == list(range(13)) and not flat.requires_grad
    flat.zero_()
    assert model.matrix.sum().item() == 15


def test_pieces_are_views_shaped_like_their_tensors() -> None:
    tensors = trainable(Odd())
    flat = flatten(tensors)
    pieces = split_like(flat, tensors)
    assert [piece.shape for piece in pieces] == [tensor.shape for tensor in tensors]
    assert all(torch.equal(piece, tensor) for piece, tensor in zip(pieces, tensors, strict=True))
    flat += 1
    assert float(pieces[0][0, 0]) == 1


def test_pieces_of_rows_keep_the_rows() -> None:
    tensors = [torch.zeros(2, 3), torch.zeros(()), torch.zeros(4)]
    pieces = split_like(torch.arange(22.0).reshape(2, 11), tensors)
    assert [piece.shape for piece in pieces] == [(2, 2, 3), (2,), (2, 4)]


def test_an_attached_module_follows_its_vector() -> None:
    model = Odd()
    shapes = [parameter.shape for parameter in model.parameters()]
    flat = attach(model)
    assert [parameter.shape for parameter in model.parameters()] == shapes
    flat.fill_(5)
    assert all((parameter == 5).all() for parameter in trainable(model))
    assert model.frozen.tolist() == [1.0] * 4


def test_a_module_that_cannot_be_attached_says_why() -> None:
    with pytest.raises(RowsError, match="no parameters to train"):
        attach(nn.ReLU())
    mixed = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double())
    with pytest.raises(RowsError, match="one dtype"):
        attach(mixed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_all_finite_is_what_it_says_also_where_the_sum_is_not_finite(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for good in ([], [0.0] * 5, [largest] * 1000, [largest, -largest, 1.0]):
        assert bool(matrix.all_finite(torch.tensor(good, dtype=dtype))) is True
    for bad in (math.nan, math.inf, -math.inf):
        values = torch.zeros(1001, dtype=dtype)
        values[7] = bad
        assert bool(matrix.all_finite(values)) is False
    assert bool(matrix.all_finite(torch.tensor([math.inf, -math.inf, 1.0], dtype=dtype))) is False


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_copy_is_exact_and_knows_whether_it_is_finite(dtype: torch.dtype, compiled: bool) -> None:
    with contextlib.nullcontext() if compiled else _kernels.switched_off():
        _check_copies(dtype)


def _check_copies(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for d in (1, 2, 7, 8, 16, 33):
        values = torch.full((d + 2,), largest, dtype=dtype)[1:-1]  # so that sums overflow
        values[0] = -0.0
        place = torch.full((d + 2,), 7.0, dtype=dtype)
        assert matrix.copy_finite(values, place[1:-1]) is True
        assert torch.equal(place[1:-1], values) and bool(place[1].signbit())
        assert place[0] == place[-1] == 7  # the neighbours stay as they are
        for bad in (math.nan, math.inf, -math.inf):
            for at in range(d):
                broken = values.clone()
                broken[at] = bad
                assert matrix.copy_finite(broken, place[1:-1]) is False
                assert torch.equal(place[1:-1].isfinite(), broken.isfinite())
