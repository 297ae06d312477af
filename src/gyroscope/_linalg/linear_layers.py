"""Linear layers: the matrix products that take most of the time where many workers train a small model.

On CPUs with AVX2 or AVX-512 the kernels are faster than the BLAS library behind torch if a layer is not too large;
torch computes all others (and all gradients, if one layer is too large). Only the layers' shapes decide, never the
number of samples or threads: so where kernels compute, a worker gets the same bits alone as it does among all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gyroscope._linalg._kernels import matmul, usable
from gyroscope._linalg.indexed_batch import IndexedBatch
from gyroscope._linalg.matrix import shift_and_clip

_MOST_OUTPUTS, _MOST_INPUTS = 256, 4096
"""The largest layer for the kernels: the weights of larger ones do not stay in the cache between two uses."""


def linear(inputs: Tensor | IndexedBatch, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `torch.nn.functional.linear` of (samples, n) inputs without a gradient: one row per sample of a batch."""
    if _is_layer(weight, bias) and _goes_into(_source(inputs), weight.shape[1], weight.dtype):
        return matmul.linear(inputs, matmul.PackedLayer(weight, bias))
    return F.linear(_gathered(inputs).flatten(0, -2), weight, bias)


def classify(
    inputs: Tensor | IndexedBatch, first: nn.Linear, last: nn.Linear, targets: Tensor, shares: Tensor
) -> matmul.Classified | None:
    """Call the kernel `classify` for these two layers; None where it does not take them, or torch shall raise."""
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
        and matmul.targets_fit(targets, last_weight.shape[0])
    ):
        layer = matmul.PackedLayer(weight, bias)
        return matmul.classify(inputs, layer, last_weight, last_bias, targets, shares)
    return None


def constants(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return a layer's weight and bias without gradient history."""
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def gradient_rows(layers: Sequence[matmul.Gradient], shift: Tensor | None, limit: float, out: Tensor) -> None:
    """Write each worker's row of `out` (h, d): the gradients of its layers' weights and biases, one after the other.

    Each row is then shifted and clipped like `shift_and_clip` does.
    """
    if _for_kernels(layers, shift, out):
        matmul.gradient_rows(layers, shift, limit, out)
        return
    matmul.check_rows(layers, shift, out)
    begin = 0
    for layer in layers:
        m, n, grad_output = layer.m, layer.n, layer.grad_output
        torch.bmm(
            grad_output.transpose(1, 2), _gathered(layer.inputs), out=out[:, begin : begin + m * n].view(-1, m, n)
        )
        begin += m * n
        if layer.has_bias:
            torch.sum(grad_output, dim=1, out=out[:, begin : begin + m])
            begin += m
    shift_and_clip(out, shift, limit)


def _for_kernels(layers: Sequence[matmul.Gradient], shift: Tensor | None, out: Tensor) -> bool:
    """Return whether the kernels take these layers and are faster."""
    tensors = [each for layer in layers for each in (layer.grad_output, _source(layer.inputs))]
    if shift is not None:
        tensors.append(shift)
    return (
        all(layer.m <= _MOST_OUTPUTS and layer.n <= _MOST_INPUTS for layer in layers)
        and all(each.dtype == out.dtype and _fit(each) for each in tensors)
        and usable(out)
    )


def forward(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function like model(inputs) for many batches without gradients, while the parameters do not change.

    It is the model itself, except for `nn.Sequential` chains whose parameters all belong to linear layers.
    """
    if type(model) is not nn.Sequential or not is_plain(model):
        return model
    layers: dict[nn.Module, matmul.PackedLayer] = {
        module: matmul.PackedLayer(module.weight, module.bias)
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
                values = matmul.linear(values, layer)
            else:
                values = module(values)
        return values

    return apply


def is_plain(module: nn.Module) -> bool:
    """Return whether calling the module only runs its class's `forward`: there is no hook, and no other `forward`.

    Spectral and weight normalisation use hooks, and so do people who look inside their models.
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" not in vars(module) and not any(getattr(module, hook, None) for hook in hooks)


def reads_in_place(batch: IndexedBatch, layers: Sequence[nn.Linear]) -> bool:
    """Return whether `linear` with the first layer and `gradient_rows` with all of them read samples without a copy.

    If not, gathering the samples once, for both, is faster.
    """
    return (
        batch.index.is_cpu
        and batch.index.dtype == torch.int64
        and _goes_into(batch.source, layers[0].in_features, layers[0].weight.dtype)
        and all(_is_layer(layer.weight, layer.bias) for layer in layers)
    )


def _source(values: Tensor | IndexedBatch) -> Tensor:
    return values.source if isinstance(values, IndexedBatch) else values


def _gathered(values: Tensor | IndexedBatch) -> Tensor:
    return values.gather() if isinstance(values, IndexedBatch) else values


def _is_layer(weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether the kernels take the layer and are faster."""
    return (
        weight.dim() == 2
        and weight.shape[0] <= _MOST_OUTPUTS
        and weight.shape[1] <= _MOST_INPUTS
        and _fit(weight)
        and (bias is None or (bias.shape == weight.shape[:1] and bias.dtype == weight.dtype and _fit(bias)))
    )


def _goes_into(inputs: Tensor, n: int, dtype: torch.dtype) -> bool:
    """Return whether a layer with n inputs takes these; if not, the error is torch's to raise."""
    return inputs.dim() == 2 and inputs.shape[1] == n and inputs.dtype == dtype and _fit(inputs)


def _fit(values: Tensor) -> bool:
    return (
        _fast_here()
        and values.is_contiguous()
        and usable(values)
        and not torch.is_autocast_enabled("cpu")  # with it, torch's result would have another dtype
    )


@functools.cache
def _fast_here() -> bool:
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
