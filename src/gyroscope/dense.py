"""Linear layers: the matrix products that take most of the time where many workers train a small model.

On processors with vectors of 32 bytes (AVX2) the kernels are faster than the library behind torch where a layer is not
too large; for others torch's own products are taken. The layer's shape alone decides, never the number of samples or
of threads: a worker by itself computes to the last bit what it does among all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gyroscope import kernels

_MOST_OUTPUTS, _MOST_INPUTS = 256, 4096
"""Of a layer for the kernels: beyond these, weights that are used again have left the cache by then."""


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear` of (samples, n) inputs, where no gradient is asked for."""
    if _is_layer(weight, bias) and _goes_into(inputs, weight.shape[1], weight.dtype):
        return kernels.linear(inputs, kernels.Layer(weight, bias))
    return F.linear(inputs, weight, bias)


def products_by_worker(slopes: Tensor, given: Tensor, out: Tensor) -> None:
    """out (h, m, n): for each worker the transpose of its (b, m) slopes times the (b, n) values it was given."""
    m, n = slopes.shape[2], given.shape[2]
    alike = slopes.dtype == given.dtype == out.dtype and slopes.shape[:2] == given.shape[:2]
    small = m <= _MOST_OUTPUTS and n <= _MOST_INPUTS
    room = out.shape == (len(slopes), m, n) and kernels.usable(out)
    if alike and small and room and _fit(slopes) and _fit(given):
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
        if type(module) is nn.Linear and is_plain(module) and _is_layer(module.weight, module.bias)
    }
    if not layers or any(module not in layers and [*module.parameters()] for module in model):
        return model

    def apply(inputs: Tensor) -> Tensor:
        values = inputs
        for module in model:
            layer = layers.get(module)
            if layer and _goes_into(values, layer.n, layer.dtype):
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
    return "forward" not in vars(module) and not any(getattr(module, hook, None) for hook in hooks)


def _is_layer(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernels can take it and gain by it."""
    return (
        weight.dim() == 2
        and weight.shape[0] <= _MOST_OUTPUTS
        and weight.shape[1] <= _MOST_INPUTS
        and _fit(weight)
        and (bias is None or (bias.shape == weight.shape[:1] and bias.dtype == weight.dtype and _fit(bias)))
    )


def _goes_into(inputs: Tensor, n: int, dtype: torch.dtype) -> bool:
    """Whether a layer of this many inputs can take them. The kernels themselves look at nothing."""
    return inputs.dim() == 2 and inputs.shape[1] == n and inputs.dtype == dtype and _fit(inputs)


def _fit(values: Tensor) -> bool:
    return (
        _fast_here()
        and values.is_contiguous()
        and kernels.usable(values)
        and not torch.is_autocast_enabled("cpu")  # which changes the type of what torch would compute
    )


@functools.cache
def _fast_here() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX2"
