"""Linear layers: the matrix products that take most of the time where many workers train a small model.

On processors with vectors of 32 bytes (AVX2) the kernels are faster at these shapes than the library behind torch; on
others they were not measured, and torch's own products are taken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gyroscope import kernels


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear` of (samples, n) inputs, where no gradient is asked for."""
    if _fit(inputs, weight):
        return kernels.linear(inputs, kernels.Layer(weight, bias))
    return F.linear(inputs, weight, bias)


def products_by_worker(slopes: Tensor, given: Tensor, out: Tensor) -> None:
    """out (h, m, n): for each worker the transpose of its (b, m) slopes times the (b, n) values it was given."""
    if _fit(slopes, given) and out.stride(2) == 1:
        kernels.products_by_worker(slopes, given, out)
    else:
        torch.bmm(slopes.transpose(1, 2), given, out=out)


def forward(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """What gives model(inputs), batch after batch, while its parameters stay as they are and no gradient is asked for.

    The model itself, but for chains whose parameters are all linear layers'.
    """
    if type(model) is not nn.Sequential or not is_plain(model):
        return model
    layers: dict[nn.Module, kernels.Layer] = {
        module: kernels.Layer(module.weight, module.bias)
        for module in model
        if type(module) is nn.Linear and is_plain(module) and _fit(module.weight, module.weight)
    }
    if not layers or any(module not in layers and [*module.parameters()] for module in model):
        return model

    def apply(inputs: Tensor) -> Tensor:
        values = inputs
        for module in model:
            layer = layers.get(module)
            if layer and values.dim() == 2 and _fit(values, values) and values.dtype == layer.dtype:
                values = kernels.linear(values, layer)
            else:
                values = module(values)
        return values

    return apply


def is_plain(module: nn.Module) -> bool:
    """Whether calling the module does nothing but its forward: no hook that may change what goes in or comes out.

    Spectral and weight normalisation work by hooks, and so do people who look inside their models.
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(module, hook, None) for hook in hooks)


def _fit(left: Tensor, right: Tensor) -> bool:
    return (
        _fast_here()
        and left.dtype == right.dtype
        and left.is_contiguous()
        and right.is_contiguous()
        and kernels.usable(left)
        and kernels.usable(right)
    )


@functools.cache
def _fast_here() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX2"
