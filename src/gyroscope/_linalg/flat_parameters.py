"""A module's trainable parameters as one flat vector, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from gyroscope._core.errors import RowsError


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Return a new vector with the values of all the tensors, in their order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require a gradient, in the order of their values in a row."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def attach(module: nn.Module) -> Tensor:
    """Make the module's trainable parameters views of one flat vector, and return that vector.

    A change to the vector is a change to the module: no values need to be copied between them.

    Raises:
        RowsError: the module has no trainable parameters, or they differ in dtype or device.
    """
    parameters = trainable(module)
    if not parameters:
        raise RowsError(
            "the model has no parameters to train: give it layers with parameters, or let some require a gradient "
            "(parameter.requires_grad_())"
        )
    if len({(parameter.dtype, parameter.device) for parameter in parameters}) > 1:
        raise RowsError("the model's parameters must share one dtype and one device: move it with model.to(...)")
    flat = flatten(parameters)
    for parameter, piece in zip(parameters, split_like(flat, parameters), strict=True):
        parameter.data = piece
    return flat


def split_like(rows: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of consecutive pieces of a vector (or of each row of a matrix), each with its tensor's shape."""
    pieces = torch.split(rows, [tensor.numel() for tensor in tensors], dim=-1)
    return [
        torch.unflatten(piece, -1, tensor.shape) if tensor.dim() else piece.squeeze(-1)
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]
