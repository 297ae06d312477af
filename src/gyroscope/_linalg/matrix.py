"""Rows: an (n, d) tensor with one worker's vector per row. What every rule and attack needs of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from gyroscope._core.errors import RowsError
from gyroscope._linalg import _kernels

# Columns per block of the distance computation: 51 rows of that many float64 stay in a core's cache.
_BLOCK = 8192


def check(rows: Tensor | Sequence[Tensor]) -> Tensor:
    """The rows as an (n, d) floating-point tensor, or an error that says what is wrong with them."""
    if not isinstance(rows, Tensor):
        if not isinstance(rows, Sequence):
            raise RowsError(f"rows must be an (n, d) tensor or a sequence of vectors, got a {type(rows).__name__}")
        rows = _stack(rows)
    if rows.dim() != 2 or rows.shape[0] == 0 or rows.shape[1] == 0:
        raise RowsError(f"rows must have the shape (n, d) with n >= 1 and d >= 1, got {tuple(rows.shape)}")
    if not rows.is_floating_point():
        raise RowsError(f"rows must be floating-point, got {rows.dtype}: convert them with rows.float()")
    return rows.detach()


def _stack(rows: Sequence[Tensor]) -> Tensor:
    rows = list(rows)
    if not rows:
        raise RowsError("there are no rows: a rule needs at least one")
    for index, row in enumerate(rows):
        if not isinstance(row, Tensor):
            raise RowsError(f"row {index} is a {type(row).__name__}, not a tensor")
    first = rows[0]
    for index, row in enumerate(rows):
        if row.dim() != 1:
            raise RowsError(f"row {index} must be a vector, got the shape {tuple(row.shape)}")
        if row.shape != first.shape:
            raise RowsError(f"rows are ragged: row 0 has shape {tuple(first.shape)}, row {index} {tuple(row.shape)}")
        if row.dtype != first.dtype or row.device != first.device:
            raise RowsError(
                f"rows are of mixed kinds: row 0 is {first.dtype} on {first.device}, "
                f"row {index} {row.dtype} on {row.device}"
            )
    return torch.stack(rows)


def all_finite(values: Tensor) -> Tensor:
    """Whether no value is NaN or infinite: a single True or False, still on its device, so that no GPU is waited for.

    A sum is finite only if all its terms are. On a CPU that takes a thirtieth of the time of `isfinite().all()`, which
    decides where the sum alone does not: finite values may add up to infinity.
    """
    if values.device.type == "cpu":
        finite = values.sum().isfinite()
        if finite:
            return finite
    return values.isfinite().all()


def copy_finite(source: Tensor, target: Tensor) -> bool:
    """Copy a vector, and say whether no value of it is NaN or infinite: on a CPU in one pass over memory."""
    if _kernels.usable(source) and _kernels.usable(target) and source.dtype == target.dtype:
        return _kernels.copy_finite(source, target)
    return bool(all_finite(target.copy_(source)))


def squared_distances(rows: Tensor) -> Tensor:
    """The (n, n) table of squared Euclidean distances, in float64, inf where a row makes a distance meaningless.

    Differences are taken before squaring, so near-identical rows with a large common offset keep their distance
    (`|a|^2 + |b|^2 - 2ab` would cancel it away). A NaN or an infinity anywhere in a row puts that row infinitely far
    from every other: it is the worst outlier there can be. The diagonal is zero.
    """
    return _kernels.squared_distances(rows) if _kernels.usable(rows) else plain_squared_distances(rows)


def plain_squared_distances(rows: Tensor) -> Tensor:
    """The reference, and the path of other devices."""
    n, d = rows.shape
    squares = torch.zeros(n * (n - 1) // 2, dtype=torch.float64, device=rows.device)
    for start in range(0, d, _BLOCK):
        block = rows[:, start : start + _BLOCK].to(torch.float64)
        squares += _block_squares(block)
    table = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
    upper = torch.triu_indices(n, n, offset=1, device=rows.device)
    table[upper[0], upper[1]] = squares.nan_to_num_(nan=torch.inf, posinf=torch.inf)
    return table + table.T


def _block_squares(block: Tensor) -> Tensor:
    """Squared distances of all pairs of rows of a narrow block, in the order of the upper triangle."""
    if len(block) == 1:
        return block.new_zeros(0)
    return torch.cat([(block[i + 1 :] - block[i]).square_().sum(dim=1) for i in range(len(block) - 1)])


def squared_distances_to(rows: Tensor, point: Tensor) -> Tensor:
    """(n,): the squared distance of each row from a point, in float64, inf where a row makes it meaningless."""
    squares = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for _, block in blocks(rows, point):
        squares += block.square_().sum(dim=1)
    return squares.nan_to_num_(nan=torch.inf, posinf=torch.inf)


def blocks(rows: Tensor, point: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """The rows, less a point, as narrow new float64 matrices one beside the other, each with its columns' place."""
    for start in range(0, rows.shape[1], _BLOCK):
        columns = slice(start, start + _BLOCK)
        block = rows[:, columns].to(torch.float64, copy=True)
        yield columns, block if point is None else block.sub_(point[columns])


def distances(rows: Tensor) -> Tensor:
    """The (n, n) table of Euclidean distances; see `squared_distances`."""
    return squared_distances(rows).sqrt_()


def mean_of(rows: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen rows. The others are never read: they may hold NaN."""
    if _kernels.usable(rows):
        return _kernels.mean_of(rows, chosen)
    return rows.index_select(0, chosen).mean(dim=0)


def shift_and_clip(rows: Tensor, shift: Tensor | None, limit: float) -> None:
    """Add a vector to every row, then shorten every row that is longer than the limit to it. In place.

    Where there is a limit, a row with a NaN becomes NaN as a whole, and one with an infinity NaN there and 0 elsewhere.
    """
    usable = _kernels.usable(rows) and (shift is None or (_kernels.usable(shift) and shift.dtype == rows.dtype))
    (_kernels.shift_and_clip if usable else plain_shift_and_clip)(rows, shift, limit)


def plain_shift_and_clip(rows: Tensor, shift: Tensor | None, limit: float) -> None:
    """The reference, and the path of other devices."""
    if shift is not None:
        rows.add_(shift)
    if limit == float("inf"):
        return
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)  # no square overflows
    rows.mul_((limit / norms).clamp_max_(1.0).to(rows.dtype))


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """All the tensors' values, one after the other, as one new vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes, in the order in which they stand in a row."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def attach(module: nn.Module) -> Tensor:
    """Make the module's trainable parameters views of one flat vector, and return it.

    From then on whoever changes the vector changes the module; nothing needs to be copied back and forth.
    """
    parameters = trainable(module)
    if not parameters:
        raise RowsError("the model has no parameters to train")
    if len({(parameter.dtype, parameter.device) for parameter in parameters}) > 1:
        raise RowsError("the model's parameters must share one dtype and one device: move it with model.to(...)")
    flat = flatten(parameters)
    for parameter, piece in zip(parameters, split_like(flat, parameters), strict=True):
        parameter.data = piece
    return flat


def split_like(rows: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views of consecutive pieces of a vector (or of each row of rows), each shaped like its tensor."""
    pieces = torch.split(rows, [tensor.numel() for tensor in tensors], dim=-1)
    return [
        torch.unflatten(piece, -1, tensor.shape) if tensor.dim() else piece.squeeze(-1)
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]
