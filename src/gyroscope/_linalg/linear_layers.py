"""Linear layers: the matrix products that take most of the time where many workers train a small model.

On processors with vectors of 32 bytes (AVX2) the kernels are faster than the library behind torch where a layer is not
too large; for others torch's own products are taken (for gradients, if one layer is too large, for all of them). The
layers' shapes alone decide, never the number of samples or of threads: what is computed by kernels, a worker by itself
computes to the last bit as it does among all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gyroscope._linalg import _kernels
from gyroscope._linalg.indexed_batch import IndexedBatch
from gyroscope._linalg.matrix import shift_and_clip

_MOST_OUTPUTS, _MOST_INPUTS = 256, 4096
"""Of a layer for the kernels: beyond these, weights that are used again have left the cache by then."""


def linear(inputs: Tensor | IndexedBatch, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear` of (samples, n) inputs, where no gradient is asked for. A row for each that is
    picked, in whatever shape its number is."""
    if _is_layer(weight, bias) and _goes_into(_source(inputs), weight.shape[1], weight.dtype):
        return _kernels.linear(inputs, _kernels.Layer(weight, bias))
    return F.linear(_taken(inputs).flatten(0, -2), weight, bias)


def classify(
    inputs: Tensor | IndexedBatch, first: nn.Linear, last: nn.Linear, targets: Tensor, shares: Tensor
) -> _kernels.Classified | None:
    """`kernels.classify` by these two layers; None where the kernels cannot, or where torch shall say what is wrong."""
    (weight, bias), (last_weight, last_bias) = constants(first), constants(last)
    if (
        _is_layer(weight, bias)
        and _is_layer(last_weight, last_bias)
        and last_weight.shape[1] == weight.shape[0]
        and last_weight.dtype == weight.dtype
        and _goes_into(_source(inputs), weight.shape[1], weight.dtype)
        and targets.is_cpu
        and targets.dim() == 1
        and targets.dtype == torch.int64
        and _kernels.targets_fit(targets, last_weight.shape[0])
    ):
        layer = _kernels.Layer(weight, bias)
        return _kernels.classify(inputs, layer, last_weight, last_bias, targets, shares)
    return None


def constants(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Its weights and bias, as numbers."""
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def gradient_rows(layers: Sequence[_kernels.Gradient], shift: Tensor | None, limit: float, out: Tensor) -> None:
    """Each worker's row of `out` (h, d): the gradients of its layers' weights and biases one after the other, plus the
    shift (d,), and if that is longer than the limit, shortened to it."""
    if _for_kernels(layers, shift, out):
        _kernels.gradient_rows(layers, shift, limit, out)
        return
    _kernels.check_rows(layers, shift, out)
    begin = 0
    for slopes, given, has_bias in layers:
        m, n = slopes.shape[2], _source(given).shape[-1]
        torch.bmm(slopes.transpose(1, 2), _taken(given), out=out[:, begin : begin + m * n].view(-1, m, n))
        begin += m * n
        if has_bias:
            torch.sum(slopes, dim=1, out=out[:, begin : begin + m])
            begin += m
    shift_and_clip(out, shift, limit)


def _for_kernels(layers: Sequence[_kernels.Gradient], shift: Tensor | None, out: Tensor) -> bool:
    """Whether the kernels can make these rows and gain by it."""
    tensors = [each for layer in layers for each in (layer.slopes, _source(layer.given))]
    if shift is not None:
        tensors.append(shift)
    return (
        all(layer.slopes.shape[2] <= _MOST_OUTPUTS and layer.n <= _MOST_INPUTS for layer in layers)
        and all(each.dtype == out.dtype and _fit(each) for each in tensors)
        and _kernels.usable(out)
    )


def forward(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """What gives model(inputs), batch after batch, while its parameters stay as they are and no gradient is asked for.

    The model itself, but for chains whose parameters are all linear layers'.
    """
    if type(model) is not nn.Sequential or not is_plain(model):
        return model
    layers: dict[nn.Module, _kernels.Layer] = {
        module: _kernels.Layer(module.weight, module.bias)
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
                values = _kernels.linear(values, layer)
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


def reads_in_place(picked: IndexedBatch, layers: Sequence[nn.Linear]) -> bool:
    """Whether `linear` by the first of these layers, and `gradient_rows` of all of them, would read picked samples
    where they lie. Else it is better to take them out once, for both."""
    return (
        picked.index.is_cpu
        and picked.index.dtype == torch.int64
        and _goes_into(picked.source, layers[0].in_features, layers[0].weight.dtype)
        and all(_is_layer(layer.weight, layer.bias) for layer in layers)
    )


def _source(values: Tensor | IndexedBatch) -> Tensor:
    return values.source if isinstance(values, IndexedBatch) else values


def _taken(values: Tensor | IndexedBatch) -> Tensor:
    return values.gather() if isinstance(values, IndexedBatch) else values


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
    """Whether a layer of this many inputs can take them; if not, the error is torch's to raise."""
    return inputs.dim() == 2 and inputs.shape[1] == n and inputs.dtype == dtype and _fit(inputs)


def _fit(values: Tensor) -> bool:
    return (
        _fast_here()
        and values.is_contiguous()
        and _kernels.usable(values)
        and not torch.is_autocast_enabled("cpu")  # which changes the type of what torch would compute
    )


@functools.cache
def _fast_here() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX2"
