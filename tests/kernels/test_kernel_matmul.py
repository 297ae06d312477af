"""Linear layers and their gradients: the kernels against sums in float64, and the choice between them and torch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import fill
from torch import Tensor, nn

import gyroscope as gy
from gyroscope._core.errors import DataError
from gyroscope._linalg import _kernels, linear_layers
from gyroscope._linalg._kernels import matmul, row_updates
from gyroscope._linalg.indexed_batch import IndexedBatch

sizes = st.one_of(st.integers(1, 9), st.integers(10, 40))
types = st.sampled_from((torch.float32, torch.float64))
seeds = st.integers(0, 2**32 - 1)


def close(result: Tensor, exact: Tensor, magnitudes: Tensor, depth: int) -> bool:
    """Each rounding in a sum of `depth` products may cost half a unit in the last place of their magnitudes."""
    return bool(((result - exact).abs() <= (depth + 1) * torch.finfo(result.dtype).eps * magnitudes).all())


@settings(max_examples=150, deadline=None)
@given(samples=sizes, n=sizes, m=st.integers(1, 40), seed=seeds, dtype=types, has_bias=st.booleans())
def test_linear(samples: int, n: int, m: int, seed: int, dtype: torch.dtype, has_bias: bool) -> None:
    inputs = fill(samples, n, seed, "normal", dtype)
    weight, bias = fill(m, n, seed + 1, "normal", dtype), fill(1, m, seed + 2, "normal", dtype)[0]
    layer = matmul.PackedLayer(weight, bias if has_bias else None)
    result = matmul.linear(inputs, layer)
    shift = bias.double() if has_bias else torch.zeros(m, dtype=torch.float64)
    exact = inputs.double() @ weight.double().T + shift
    magnitudes = inputs.double().abs() @ weight.double().abs().T + shift.abs()
    assert result.dtype == dtype and close(result, exact, magnitudes, n)
    alone = torch.cat([matmul.linear(sample[None], layer) for sample in inputs])
    assert torch.equal(result, alone)  # whatever is computed beside it


def gradients(h: int, b: int, widths: list[int], seed: int, dtype: torch.dtype) -> list[matmul.Gradient]:
    """Return the factors of the gradients of a chain of layers of these widths; every other layer has a bias."""
    return [
        matmul.Gradient(
            fill(h * b, m, seed + 2 * number, "normal", dtype).view(h, b, m),
            fill(h * b, n, seed + 2 * number + 1, "normal", dtype).view(h, b, n),
            (seed + number) % 2 == 0,
        )
        for number, (n, m) in enumerate(itertools.pairwise(widths))
    ]


def naive_rows(layers: list[matmul.Gradient]) -> tuple[Tensor, Tensor]:
    """Return the gradients in float64, and those of all magnitudes, which scale the rounding errors."""
    exact, magnitudes = [], []
    for grad_output, inputs_, has_bias in layers:
        for target, of in ((exact, grad_output.double()), (magnitudes, grad_output.double().abs())):
            target.append(
                (of.transpose(1, 2) @ (inputs_.double() if target is exact else inputs_.double().abs())).flatten(1)
            )
            if has_bias:
                target.append(of.sum(dim=1))
    return torch.cat(exact, dim=1), torch.cat(magnitudes, dim=1)


@settings(max_examples=150, deadline=None)
@given(h=st.integers(1, 4), b=sizes, widths=st.lists(sizes, min_size=2, max_size=4), seed=seeds, dtype=types)
def test_gradient_rows(h: int, b: int, widths: list[int], seed: int, dtype: torch.dtype) -> None:
    layers = gradients(h, b, widths, seed, dtype)
    exact, magnitudes = naive_rows(layers)
    d = exact.shape[1]
    table = torch.full((h, d + 5), 7.0, dtype=dtype)
    matmul.gradient_rows(layers, None, math.inf, table[:, 2:-3])
    assert close(table[:, 2:-3], exact, magnitudes, b)
    assert (table[:, :2] == 7).all() and (table[:, -3:] == 7).all()  # the values beside it are not touched
    for worker in range(h):
        alone = torch.empty(1, d, dtype=dtype)
        one = [matmul.Gradient(x[worker, None], y[worker, None], bias) for x, y, bias in layers]
        matmul.gradient_rows(one, None, math.inf, alone)
        assert torch.equal(table[worker, 2:-3], alone[0])
    # Shift and limit are those of whole rows, to the last bit.
    shift, limit = fill(1, d, seed + 9, "normal", dtype)[0], float(exact.norm(dim=1).median())
    rows, wanted = torch.empty(h, d, dtype=dtype), table[:, 2:-3].clone()
    matmul.gradient_rows(layers, shift, limit, rows)
    row_updates.shift_and_clip(wanted, shift, limit)
    assert torch.equal(rows, wanted)


@settings(max_examples=100, deadline=None)
@given(h=st.integers(1, 3), b=sizes, n=sizes, m=st.integers(1, 40), kept=sizes, seed=seeds, dtype=types)
def test_indexed_samples_are_read_without_a_copy(
    h: int, b: int, n: int, m: int, kept: int, seed: int, dtype: torch.dtype
) -> None:
    """The bits are those of gathered samples; samples that are not indexed may hold anything."""
    source = fill(kept, n, seed, "normal", dtype)
    batch = IndexedBatch(source, torch.randint(kept, (h, b), generator=torch.Generator().manual_seed(seed)))
    source[torch.isin(torch.arange(kept), batch.index, invert=True)] = torch.nan
    weight, grad_output = fill(m, n, seed + 1, "normal", dtype), fill(h * b, m, seed + 2, "normal", dtype).view(h, b, m)
    layer = matmul.PackedLayer(weight, weight[:, 0])
    assert torch.equal(matmul.linear(batch, layer), matmul.linear(batch.gather().flatten(0, 1), layer))
    rows = torch.empty(2, h, 2 * m * n + m, dtype=dtype)
    more = matmul.Gradient(grad_output, fill(h * b, n, seed + 3, "normal", dtype).view(h, b, n), False)
    for out, inputs_ in zip(rows, (batch, batch.gather()), strict=True):
        matmul.gradient_rows([more, matmul.Gradient(grad_output, inputs_, True)], None, math.inf, out)
    assert torch.equal(rows[0], rows[1])


def test_indices_must_be_in_range(monkeypatch: pytest.MonkeyPatch) -> None:
    source, weight, out = torch.randn(5, 4), torch.randn(3, 4), torch.empty(1, 12)
    for fast in (True, False):
        monkeypatch.setattr(linear_layers, "_fast_here", lambda fast=fast: fast)
        for numbers in ([0, 5], [-1, 0], [2**40, 0]):
            batch = IndexedBatch(source, torch.tensor([numbers]))
            with pytest.raises(IndexError):
                linear_layers.linear(batch, weight, None)
            with pytest.raises(IndexError):
                linear_layers.gradient_rows([matmul.Gradient(torch.randn(1, 2, 3), batch, False)], None, 1.0, out)
        for shape, of in (((2, 1), source), ((1, 3), source), ((2,), source), ((1, 2), source[:, 0]),
                          ((1, 2), source[:, None])):  # fmt: skip
            batch = IndexedBatch(of, torch.zeros(shape, dtype=torch.int64))
            with pytest.raises(ValueError, match="must"):
                linear_layers.gradient_rows([matmul.Gradient(torch.randn(1, 2, 3), batch, False)], None, 1.0, out)
        empty = IndexedBatch(source, torch.zeros(0, dtype=torch.int64))
        assert linear_layers.linear(empty, weight, None).shape == (0, 3)
    for of, index in ((source, torch.zeros(1, dtype=torch.int32)), (source[:, 0], torch.zeros(1).long()),
                      (source[:, None], torch.zeros(1).long())):  # fmt: skip
        with pytest.raises(ValueError, match="must be"):
            matmul.linear(IndexedBatch(of, index), matmul.PackedLayer(weight, None))


def test_an_indexed_batch_is_what_indexing_gives() -> None:
    source, index = torch.randn(7, 2, 3), torch.tensor([[6, 0], [1, 1]])
    for which in (index, index[0], index[0, 0], index[:0]):
        assert torch.equal(IndexedBatch(source, which).gather(), source[which])
        assert torch.equal(IndexedBatch(source[:, 0, 0], which).gather(), source[which][..., 0, 0])
    assert torch.equal(IndexedBatch(source, index)[1], source[index[1]]) and len(IndexedBatch(source, index)) == 2
    assert torch.equal(IndexedBatch(source, index).as_rows().gather(), source[index].flatten(2))


def by_autograd(
    inputs: Tensor, layers: list[tuple[Tensor, Tensor | None]], targets: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return losses, hidden values, and the gradients of both layers' outputs, as torch computes them."""
    first = torch.nn.functional.linear(inputs, *layers[0]).requires_grad_()
    hidden = first.relu()
    last = torch.nn.functional.linear(hidden, *layers[1])
    losses = torch.nn.functional.cross_entropy(last, targets, reduction="none")
    weighed = losses.view(len(shares), -1).sum(dim=1) * shares
    gradients = torch.autograd.grad(weighed.sum(), (first, last))
    return losses.detach(), hidden.detach(), *gradients


@settings(max_examples=150, deadline=None)
@given(
    h=st.integers(1, 3), b=sizes, n=sizes, m=st.integers(1, 40), c=st.integers(1, 20), seed=seeds, dtype=types,
    ignored=st.sampled_from((0.0, 0.3, 1.0)), scale=st.sampled_from((1e-3, 1.0, 30.0)), has_bias=st.booleans(),
)  # fmt: skip
def test_classify_is_forward_and_backward(
    h: int, b: int, n: int, m: int, c: int, seed: int, dtype: torch.dtype, ignored: float, scale: float, has_bias: bool
) -> None:
    stream = torch.Generator().manual_seed(seed)
    batch = IndexedBatch(fill(17, n, seed, "normal", dtype), torch.randint(17, (h, b), generator=stream))
    inputs = batch.gather().flatten(0, 1)
    layers = [
        (fill(*shape, seed + k, "normal", dtype) * scale, fill(1, shape[0], seed + k + 2, "normal", dtype)[0])
        for k, shape in enumerate(((m, n), (c, m)), start=1)
    ]
    weights = [(weight, bias if has_bias else None) for weight, bias in layers]
    targets = torch.randint(c, (h * b,), generator=stream)
    targets[torch.rand(h * b, generator=stream) < ignored] = -100
    shares = torch.rand(h, generator=stream, dtype=dtype)
    layer = matmul.PackedLayer(*weights[0])
    found = matmul.classify(batch, layer, *weights[1], targets, shares)
    double = [(weight.double(), None if bias is None else bias.double()) for weight, bias in weights]
    losses, hidden, grad_preactivation, grad_logits = by_autograd(inputs.double(), double, targets, shares.double())
    # Errors of the sums, and what exp and the layers make of them.
    eps, most = torch.finfo(dtype).eps, 1 + float(hidden.abs().max())
    spread = 8 * eps * (n + m) * most * (1 + float(double[1][0].abs().max()) * m)
    if scale <= 1:
        spread = min(spread, 3e-4 if dtype == torch.float32 else 1e-12)
    assert found.losses.dtype == dtype and (found.losses[targets == -100] == 0).all()
    torch.testing.assert_close(found.losses.double(), losses, rtol=spread, atol=spread)
    torch.testing.assert_close(found.hidden, matmul.linear(inputs, layer).relu(), rtol=0, atol=0)
    torch.testing.assert_close(found.grad_logits.double(), grad_logits, rtol=spread, atol=spread)
    alive = (hidden > 0) == (found.hidden > 0)  # rounding decides for values near zero
    reach = spread * (1 + float(double[1][0].abs().sum()))
    torch.testing.assert_close(
        found.grad_preactivation.double()[alive], grad_preactivation[alive], rtol=reach, atol=reach
    )
    # To the last bit, whatever is computed beside it.
    for worker in range(h):
        own = slice(worker * b, (worker + 1) * b)
        alone = matmul.classify(inputs[own], layer, *weights[1], targets[own], shares[worker : worker + 1])
        assert all(torch.equal(one, all_[own]) for one, all_ in zip(alone, found, strict=True))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3e38])
def test_what_is_not_finite_is_classified_like_torch_does(value: float) -> None:
    """A diverged run must be visible as one, and a sample must not change another one's result."""
    torch.manual_seed(1)
    weights = [(torch.randn(7, 5), torch.randn(7)), (torch.randn(4, 7), torch.randn(4))]
    targets, shares = torch.randint(4, (30,)), torch.full((3,), 0.1)
    for where in range(3):
        inputs, (first, _), (last, bias) = torch.randn(30, 5), *[(w.clone(), b.clone()) for w, b in weights]
        (inputs, first, last)[where][2, 3] = value
        found = matmul.classify(inputs, matmul.PackedLayer(first, weights[0][1]), last, bias, targets, shares)
        losses, hidden, grad_preactivation, grad_logits = by_autograd(
            inputs, [(first, weights[0][1]), (last, bias)], targets, shares
        )
        for ours, theirs in zip(found, (losses, hidden, grad_preactivation, grad_logits), strict=True):
            assert torch.equal(ours.isnan(), theirs.isnan())
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_what_cannot_be_classified_is_an_error_or_torchs_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_layers, "_fast_here", lambda: True)
    inputs, shares, targets = torch.randn(6, 5), torch.ones(2), torch.tensor([0, 1, 2, 0, -100, 1])
    first, last = nn.Linear(5, 4), nn.Linear(4, 3)
    layer, weight = matmul.PackedLayer(first.weight, first.bias), last.weight.detach()
    wrong: list[tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]] = [
        (inputs, weight, None, targets[:5], shares), (inputs, weight, None, targets, torch.ones(4)),
        (inputs, weight[:, :3], None, targets, shares), (inputs, weight.double(), None, targets, shares),
        (inputs, weight, None, targets, shares.double()), (inputs, weight, None, targets.int(), shares),
        (inputs, weight, last.bias.detach().double(), targets, shares), (inputs, weight, None, targets, torch.ones(0)),
        (inputs[:0], weight, None, targets[:0], shares), (inputs[:, :3], weight, None, targets, shares),
        *((inputs, weight, None, torch.where(targets == 2, bad, targets), shares) for bad in (3, -1, -99)),
    ]  # fmt: skip
    for inputs_, weight_, bias, targets_, shares_ in wrong:
        with pytest.raises(ValueError, match=r"must|takes"):
            matmul.classify(inputs_, layer, weight_, bias, targets_, shares_)
    assert linear_layers.classify(inputs, first, last, targets, shares) is not None
    with _kernels.switched_off():
        assert linear_layers.classify(inputs, first, last, targets, shares) is None
    assert linear_layers.classify(inputs, first, last, targets[:, None], shares) is None
    for bad in (3, -1):
        assert linear_layers.classify(inputs, first, last, torch.where(targets == 2, bad, targets), shares) is None
        task = gy.Task(
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
            (inputs, torch.full((6,), bad)),
            (inputs, targets),
            loss=nn.functional.cross_entropy,
        )
        with pytest.raises(DataError, match="out of range"):
            gy.train(gy.Config(workers=3, batch=2, steps=1, threads=1, lr=0.1), task=task)


def test_a_large_layer_in_pieces_is_the_same_on_one_thread_and_on_two() -> None:
    inputs, weight = fill(900, 784, 1, "normal", torch.float32), fill(100, 784, 2, "normal", torch.float32)
    grad_output, into = fill(900, 100, 3, "normal", torch.float32).view(9, 100, 100), torch.empty(2, 9, 78_500)
    order = torch.randperm(900, generator=torch.Generator().manual_seed(4))
    batch = IndexedBatch(inputs[order.argsort()], order.view(9, 100))
    assert torch.equal(batch.gather().flatten(0, 1), inputs)
    layer = matmul.Gradient(grad_output, batch, True)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            results.append(matmul.linear(batch, matmul.PackedLayer(weight, None)))
            matmul.gradient_rows([layer], inputs.flatten()[:78_500], 3.0, into[number - 1])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(into[0], into[1])
    assert torch.allclose(results[0].double(), inputs.double() @ weight.double().T, rtol=0, atol=1e-4 * 28)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3e38])
def test_what_is_not_finite_stays_where_it_is(value: float) -> None:
    """An infinity of one sample or worker changes no other one's result, also where vectors are padded with zeros."""
    inputs, weight = torch.ones(7, 19), torch.full((21, 19), 2.0)
    inputs[3, 5] = value
    assert torch.equal(
        matmul.linear(inputs, matmul.PackedLayer(weight, None)).isfinite().all(dim=1), torch.arange(7) != 3
    )
    grad_output, out = torch.full((3, 7, 5), 2.0), torch.empty(3, 100)
    inputs_ = inputs.repeat(3, 1, 1).index_fill(0, torch.tensor([0, 2]), 1.0)
    matmul.gradient_rows([matmul.Gradient(grad_output, inputs_, True)], None, math.inf, out)
    finite = torch.ones(3, 100, dtype=torch.bool)
    finite[1, 5:95:19] = False
    assert torch.equal(out.isfinite(), finite)


def test_wrong_shapes_are_torchs_errors_and_never_reach_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_layers, "_fast_here", lambda: True)
    inputs = torch.randn(5, 64)
    for width in (16, 100):
        weight, model = torch.randn(3, width), nn.Sequential(nn.Flatten(), nn.Linear(width, 3))
        for attempt in (
            lambda w=weight: linear_layers.linear(inputs, w, None),
            lambda m=model: linear_layers.forward(m)(inputs),
        ):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), torch.inference_mode():
                attempt()
        with pytest.raises(ValueError, match="takes"):
            matmul.linear(inputs, matmul.PackedLayer(weight, None))
        task = gy.Task(lambda m=model: m, (inputs, torch.zeros(5).long()), (inputs, torch.zeros(5).long()),
                       loss=nn.functional.cross_entropy)  # fmt: skip
        with pytest.raises(DataError, match="shapes cannot be multiplied"):
            gy.train(gy.Config(workers=3, batch=2, steps=1, threads=1, lr=0.1), task=task)


def test_rows_that_do_not_fit_their_layers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    grad_output, inputs_, shift = torch.randn(2, 5, 3), torch.randn(2, 5, 4), torch.zeros(12)
    layer, double = matmul.Gradient(grad_output, inputs_, False), torch.empty(2, 12, dtype=torch.float64)
    empty = matmul.Gradient(grad_output[:, :0], inputs_[:, :0], False)
    wrong: list[tuple[list[matmul.Gradient], Tensor | None, Tensor]] = [
        ([layer], shift, torch.empty(2, 11)), ([layer], shift, torch.empty(2, 13)), ([layer], None, torch.empty(1, 12)),
        ([layer], None, torch.empty(3, 12)), ([layer], None, double), ([layer], shift[1:], torch.empty(2, 12)),
        ([layer], shift.double(), torch.empty(2, 12)), ([], None, torch.empty(2, 0)),
        ([empty], None, torch.empty(2, 12)),
        ([layer, matmul.Gradient(grad_output[:1], inputs_[:1], False)], None, torch.empty(2, 24)),
        ([matmul.Gradient(grad_output, inputs_[:, :4], False)], None, torch.empty(2, 12)),
    ]  # fmt: skip
    for fast in (True, False):
        monkeypatch.setattr(linear_layers, "_fast_here", lambda fast=fast: fast)
        for layers, shift_, out in wrong:
            with pytest.raises(ValueError, match="must"):
                linear_layers.gradient_rows(layers, shift_, 1.0, out)
            with pytest.raises(ValueError, match="must"):
                matmul.gradient_rows(layers, shift_, 1.0, out)
    with pytest.raises(ValueError, match="neighbours"):
        matmul.gradient_rows([layer], None, 1.0, torch.empty(2, 24)[:, ::2])
    apart, wanted = torch.empty(2, 12), torch.empty(2, 12)
    matmul.gradient_rows([layer], torch.arange(24.0)[::2], 1.0, apart)
    matmul.gradient_rows([layer], torch.arange(0.0, 24.0, 2.0), 1.0, wanted)
    assert torch.equal(apart, wanted)


def test_training_and_evaluation_reach_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(linear_layers, "_fast_here", lambda: True)
    for name in ("linear", "classify", "gradient_rows"):
        original = getattr(matmul, name)
        monkeypatch.setattr(matmul, name, lambda *args, n=name, f=original: (calls.append(n), f(*args))[1])
    inputs, targets = torch.randn(20, 6), torch.zeros(20).long()
    task = gy.Task(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (inputs, targets),
        (inputs, targets), loss=nn.functional.cross_entropy,
    )  # fmt: skip
    gather = IndexedBatch.gather
    monkeypatch.setattr(IndexedBatch, "gather", lambda self: (calls.append(str(self.source.dtype)), gather(self))[1])
    gy.train(gy.Config(workers=3, batch=2, steps=1, threads=1, lr=0.1, evaluate_every=1), task=task)
    # A step: forward and backward, all layers' gradients. Two evaluations: both layers' outputs.
    assert (calls.count("classify"), calls.count("gradient_rows"), calls.count("linear")) == (1, 1, 2 * 2)
    assert calls.count("torch.int64") == 1 and "torch.float32" not in calls  # samples are read without a copy


def test_what_changes_a_layer_from_outside_is_respected() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    inputs = torch.randn(4, 6)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert linear_layers.forward(model)(inputs).dtype == model(inputs).dtype == torch.bfloat16
    model[1].forward = lambda values: values[:, :3] * 2  # type: ignore[method-assign]
    with torch.inference_mode():
        assert torch.equal(linear_layers.forward(model)(inputs), inputs[:, :3] * 2)


class _Doubled(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


@torch.no_grad()
def test_forward_is_what_the_model_does() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(30, 2, 6)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4, bias=False))
    hooked = nn.Sequential(nn.Flatten(), nn.Linear(12, 9))
    hooked[1].register_forward_hook(lambda module, given, output: output + 1)
    wholly_hooked = nn.Sequential(nn.Flatten(), nn.Linear(12, 9))
    wholly_hooked.register_forward_pre_hook(lambda module, given: (2 * given[0],))
    normed = nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(12, 9)))
    models = [plain, hooked, wholly_hooked, normed, nn.Sequential(nn.Flatten(), _Doubled(12, 9)),
              nn.Sequential(nn.Linear(6, 3)), nn.Linear(6, 3)]  # fmt: skip
    for model in models:
        assert torch.allclose(linear_layers.forward(model)(inputs), model(inputs), rtol=1e-5, atol=1e-6)


def test_other_processors_and_types_take_torchs_products(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, weight = torch.randn(5, 4), torch.randn(3, 4)
    half = linear_layers.linear(inputs.bfloat16(), weight.bfloat16(), None)
    assert half.dtype == torch.bfloat16
    monkeypatch.setattr(matmul, "linear", None)  # would not be callable
    monkeypatch.setattr(matmul, "gradient_rows", None)
    monkeypatch.setattr(linear_layers, "_fast_here", lambda: False)
    assert torch.equal(linear_layers.linear(inputs, weight, None), inputs @ weight.T)
    layers = gradients(3, 5, [4, 6, 2], 1, torch.float32)
    rows, shift = torch.empty(3, naive_rows(layers)[0].shape[1]), torch.randn(naive_rows(layers)[0].shape[1])
    linear_layers.gradient_rows(layers, shift, 2.0, rows)
    wanted = naive_rows(layers)[0] + shift.double()
    wanted *= (2.0 / wanted.norm(dim=1, keepdim=True)).clamp_max(1)
    assert torch.allclose(rows.double(), wanted, rtol=1e-5, atol=1e-6)
