"""Workers' rows against a plain loop of `backward()` calls, and all that happens to them before they are sent."""

from __future__ import annotations

import contextlib
import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyroscope as gy
from gyroscope._core.random_streams import derive
from gyroscope._linalg import _kernels
from gyroscope._linalg.flat_parameters import attach
from gyroscope.simulation import models, tasks
from gyroscope.simulation.data.batches import Split, deal, deal_from_one_pass
from gyroscope.simulation.data.raw import RawData
from gyroscope.simulation.evaluation import TaskTest, evaluate
from gyroscope.simulation.task_metric import ACCURACY
from gyroscope.simulation.workers import BatchedGradients, LoopGradients, SimulatedWorkers, choose


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters() if parameter.grad is not None])


def reference(model: nn.Module, loss: object, inputs: Tensor, targets: Tensor, seeds: list[int]) -> Tensor:
    """One fresh copy of the model, one forward and one backward() per worker: as a worker on its own would do it."""
    gradients = []
    for worker, seed in enumerate(seeds):
        own = copy.deepcopy(model).train()
        own.zero_grad()
        torch.manual_seed(seed)
        loss(own(inputs[worker]), targets[worker]).backward()  # type: ignore[operator]
        gradients.append(flat_gradient(own))
    return torch.stack(gradients)


def pictures(count: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Split:
    inputs = torch.randn(count, *shape, generator=stream(1), dtype=dtype)
    return Split(inputs, torch.randint(10, (count,), generator=stream(2)))


def honest(model: nn.Module, data: Split, **options: object) -> SimulatedWorkers:
    settings: dict[str, object] = {"count": 4, "batch": 6, "seed": 9, "clip": math.inf, "l2": 0.0, **options}
    return SimulatedWorkers(model, settings.pop("loss", F.nll_loss), data, attach(model), **settings)  # type: ignore[arg-type]


MLPS = {
    "mlp": lambda: models.mlp(64),
    "mlp with a relu at the end": lambda: models.mlp(64, relu_outputs=True),
    "deep": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 9, bias=False), nn.Tanh(), nn.Linear(9, 7), nn.GELU(), nn.Linear(7, 10),
        nn.LogSoftmax(dim=-1),
    ),
    "in place": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 9), nn.ReLU(inplace=True), nn.Linear(9, 10), nn.LogSoftmax(dim=1)
    ),
    "deep and in place": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(inplace=True), nn.Linear(7, 10),
        nn.LogSoftmax(dim=1),
    ),
    "pixels squashed first": lambda: nn.Sequential(
        nn.Flatten(), nn.Tanh(), nn.Linear(64, 10), nn.LogSoftmax(dim=1)
    ),
    "too wide for the kernels": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 300), nn.ReLU(), nn.Linear(300, 10),
        nn.LogSoftmax(dim=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MLPS)
def test_all_workers_at_once_equal_one_backward_each(name: str, dtype: torch.dtype, fast: bool) -> None:
    model = MLPS[name]().to(dtype)
    original = copy.deepcopy(model)
    data = pictures(50, (8, 8), dtype)
    workers = honest(model, data)
    assert isinstance(workers.gradients, BatchedGradients)
    with contextlib.nullcontext() if fast else _kernels.switched_off():
        losses, got = workers.sample(3)
    chosen = deal(9, 3, range(4), 50, 6)
    expected = reference(original, F.nll_loss, data.inputs[chosen], data.targets[chosen], [0] * 4)
    near = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(got, expected, **near)
    outputs = [F.nll_loss(original(data.inputs[mine]), data.targets[mine]) for mine in chosen]
    torch.testing.assert_close(losses, torch.stack(outputs).detach())
    assert got.dtype == dtype and not losses.requires_grad and not got.requires_grad


def test_the_paper_s_cnn_gives_each_worker_the_batch_norm_and_the_dropout_of_its_own_batch() -> None:
    torch.manual_seed(4)
    model = models.cnn(width=0.05)
    assert any(isinstance(module, nn.BatchNorm2d) for module in model)
    original = copy.deepcopy(model)
    data = pictures(20, (3, 32, 32))
    workers = honest(model, data, count=3, batch=5)
    assert isinstance(workers.gradients, LoopGradients)
    _, got = workers.sample(2)
    chosen = deal(9, 2, range(3), 20, 5)
    seeds = [derive(9, "noise", worker, 2) for worker in range(3)]
    expected = reference(original, F.nll_loss, data.inputs[chosen], data.targets[chosen], seeds)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    for module in original:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    dry = reference(original, F.nll_loss, data.inputs[chosen], data.targets[chosen], seeds)
    assert not torch.allclose(got, dry, atol=1e-4), "dropout took part"


def test_the_cnn_has_the_paper_s_number_of_parameters() -> None:
    assert sum(parameter.numel() for parameter in models.cnn().parameters()) == 1_310_922
    assert sum(parameter.numel() for parameter in models.mlp(784).parameters()) == 79_510


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_targets_that_are_to_be_ignored_are_ignored_as_in_one_backward_each(loss: object) -> None:
    """With ignore_index, torch's mean is over the samples that count."""
    model = MLPS["mlp"]()
    original = copy.deepcopy(model)
    data = pictures(50, (8, 8))
    data.targets[::2] = -100
    _, got = honest(model, data, loss=loss).sample(0)
    chosen = deal(9, 0, range(4), 50, 6)
    expected = reference(original, loss, data.inputs[chosen], data.targets[chosen], [0] * 4)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def with_hook() -> nn.Module:
    model = models.mlp(64)
    model[1].register_forward_hook(lambda module, given, outputs: outputs * 0.5)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Flatten(), nn.utils.spectral_norm(nn.Linear(64, 10)), nn.LogSoftmax(dim=1)),
        lambda: nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 10)), nn.LogSoftmax(dim=1)),
        with_hook,
    ],
    ids=["spectral norm", "weight norm", "forward hook"],
)
def test_hooks_and_reparametrised_layers_are_respected(build: object) -> None:
    torch.manual_seed(0)
    plain = build()  # type: ignore[operator]
    torch.manual_seed(0)
    model = build()  # type: ignore[operator]
    data = pictures(50, (8, 8))
    _, got = honest(model, data, count=1).sample(0)
    chosen = deal(9, 0, range(1), 50, 6)
    plain.train()
    F.nll_loss(plain(data.inputs[chosen[0]]), data.targets[chosen[0]]).backward()
    torch.testing.assert_close(got[0], flat_gradient(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "loss", "kind"),
    [
        (models.mlp(4), F.nll_loss, BatchedGradients),
        (models.mlp(4), F.cross_entropy, BatchedGradients),
        (models.mlp(4), lambda outputs, targets: F.nll_loss(outputs, targets), LoopGradients),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Dropout(), nn.LogSoftmax(dim=1)), F.nll_loss, LoopGradients),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4)), F.cross_entropy, LoopGradients),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.LogSoftmax(dim=0)), F.nll_loss, LoopGradients),
        (nn.Linear(4, 4), F.cross_entropy, LoopGradients),
    ],
)
def test_the_pass_over_all_workers_is_taken_only_where_samples_do_not_mix(
    model: nn.Module, loss: object, kind: type
) -> None:
    assert type(choose(model, loss)) is kind  # type: ignore[arg-type]


def test_a_shared_layer_and_a_frozen_layer_are_right() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    frozen = nn.Linear(8, 10).requires_grad_(False)
    model = nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared, nn.ReLU(), frozen, nn.LogSoftmax(dim=1))
    original = copy.deepcopy(model)
    data = pictures(30, (2, 4))
    _, got = honest(model, data).sample(0)
    chosen = deal(9, 0, range(4), 30, 6)
    assert got.shape == (4, 72)
    expected = reference(original, F.nll_loss, data.inputs[chosen], data.targets[chosen], [0] * 4)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("build", [lambda: models.mlp(192), lambda: nn.Sequential(
    nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(72, 10), nn.LogSoftmax(dim=1))],
    ids=["together", "one by one"])  # fmt: skip
def test_a_worker_s_row_does_not_depend_on_how_many_others_there_are(build: object) -> None:
    def augmented(batch: Tensor, noise: torch.Generator) -> Tensor:
        return batch + torch.randn(batch.shape, generator=noise)

    plain = pictures(30, (3, 8, 8))
    data = Split(plain.inputs, plain.targets, augmented)
    torch.manual_seed(0)
    model = build()  # type: ignore[operator]
    few, many = (honest(copy.deepcopy(model), data, count=count).sample(5) for count in (2, 7))
    torch.testing.assert_close(many[1][:2], few[1], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(many[0][:2], few[0])


def test_the_paper_s_classifier_gives_the_same_bits_to_a_worker_alone_and_on_any_number_of_threads() -> None:
    if not _kernels.usable(torch.zeros(1)) or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("for the kernels on processors with AVX2 or AVX-512")
    data, model, threads = pictures(90, (28, 28)), models.mlp(784), torch.get_num_threads()
    found = {}
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            workers = honest(copy.deepcopy(model), data, count=9, batch=83, l2=1e-4, clip=0.5)
            found[number] = [workers.sample(5), *(workers.alone(worker).sample(5) for worker in range(9))]
    finally:
        torch.set_num_threads(threads)
    losses, rows_ = found[1][0]
    assert torch.equal(found[2][0][1], rows_) and torch.equal(found[2][0][0], losses)
    for alone in (found[1][1:], found[2][1:]):
        assert torch.equal(torch.cat([row for _, row in alone]), rows_)
        assert torch.equal(torch.cat([loss for loss, _ in alone]), losses)


def test_batches_differ_by_worker_step_and_seed_and_cover_the_data() -> None:
    first = deal(1, 0, range(50), 40, 20)
    assert first.min() == 0 and first.max() == 39
    assert len({tuple(batch.tolist()) for batch in first}) == 50
    assert not torch.equal(first, deal(1, 1, range(50), 40, 20))
    assert not torch.equal(first, deal(2, 0, range(50), 40, 20))
    assert torch.equal(first[[7]], deal(1, 0, [7], 40, 20))


def test_clipping_shortens_long_rows_to_the_bound_and_leaves_short_rows_as_they_are() -> None:
    model = models.mlp(64)
    data = pictures(50, (8, 8))
    _, free = honest(copy.deepcopy(model), data, count=9).sample(0)
    norms = free.norm(dim=1)
    bound = float(norms.median()) * 1.0001
    _, clipped = honest(copy.deepcopy(model), data, count=9, clip=bound).sample(0)
    short = norms <= bound
    assert 0 < int(short.sum()) < 9
    assert torch.equal(clipped[short], free[short]), "to the bit"
    long = ~short
    torch.testing.assert_close(clipped[long].norm(dim=1), torch.full((int(long.sum()),), bound))
    torch.testing.assert_close(F.cosine_similarity(clipped[long], free[long]), torch.ones(int(long.sum())))


def test_a_row_of_zeros_survives_clipping() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.LogSoftmax(dim=1))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([200.0, 0.0, 0.0]))  # so sure of the right class that the loss is flat
    data = Split(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
    _, got = honest(model, data, clip=1.0).sample(0)
    assert torch.equal(got, torch.zeros_like(got))


@pytest.mark.parametrize(
    ("form", "term"),
    [
        ("half-squared", lambda flat, factor: factor / 2 * flat.square().sum()),
        ("norm", lambda flat, factor: factor**2 * flat.square().sum().sqrt()),
    ],
)
def test_the_l2_term_is_the_gradient_that_autograd_finds(form: str, term: object) -> None:
    model = models.mlp(64).double()
    data = pictures(50, (8, 8), torch.float64)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).requires_grad_()
    term(flat, 0.3).backward()  # type: ignore[operator]
    _, without = honest(copy.deepcopy(model), data).sample(0)
    _, with_l2 = honest(copy.deepcopy(model), data, l2=0.3, l2_form=form).sample(0)
    torch.testing.assert_close(with_l2 - without, flat.grad.expand(4, -1))


def test_clipping_comes_after_the_l2_term() -> None:
    _, got = honest(models.mlp(64), pictures(50, (8, 8)), l2=100.0, clip=1.0).sample(0)
    torch.testing.assert_close(got.norm(dim=1), torch.ones(4))


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> tasks.Task:
    """The built-in task on a handful of made-up pictures: the data are not what is tested here."""
    images = torch.randint(256, (12, 3, 32, 32), generator=stream(3), dtype=torch.uint8)
    labels = torch.arange(12) % 10
    monkeypatch.setattr(tasks, "load_raw", lambda *_: RawData(images, labels, images.clone(), labels.clone()))
    return tasks.parse("cifar10:width=0.05").load()


def test_cifar_pictures_are_flipped_half_of_the_time_in_training_and_never_in_evaluation(cifar: tasks.Task) -> None:
    train, test = Split.of(cifar.train), Split.of(cifar.test)
    assert train.prepare is not None and test.prepare is not None
    plain = test.prepare(test.inputs, stream(0))
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    std = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
    torch.testing.assert_close(plain, (test.inputs.float() / 255 - mean) / std)
    flips = 0
    for seed in range(40):
        assert torch.equal(test.prepare(test.inputs, stream(seed)), plain)
        for got, straight in zip(train.prepare(train.inputs, stream(seed)), plain, strict=True):
            flipped = torch.equal(got, straight.flip(-1))
            assert flipped or torch.equal(got, straight), "flipped from left to right or not at all"
            flips += flipped
    assert 180 < flips < 300, "of 480"


def test_workers_see_flipped_pictures_and_evaluation_sees_straight_ones(cifar: tasks.Task) -> None:
    seen: list[Tensor] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 10)

        def forward(self, batch: Tensor) -> Tensor:
            seen.append(batch.detach().clone())
            return F.log_softmax(self.layer(batch.mean(dim=(1, 2, 3)).unsqueeze(1)), dim=1)

    model = Watching()
    train, test = Split.of(cifar.train), Split.of(cifar.test)
    straight = test.prepare(test.inputs, stream(0))  # type: ignore[misc]
    honest(model, train, count=8, batch=6).sample(0)
    chosen = deal(9, 0, range(8), 12, 6)
    flipped = [torch.equal(got, straight[i].flip(-1)) for b, c in zip(seen, chosen, strict=True)
               for got, i in zip(b, c, strict=True)]  # fmt: skip
    assert 10 < sum(flipped) < 38, "of 48"
    assert len({tuple(flipped[i : i + 6]) for i in range(0, 48, 6)}) > 3, "each worker flips by itself"
    seen.clear()
    evaluate(model, TaskTest(test, ACCURACY, F.nll_loss))
    assert torch.equal(torch.cat(seen), straight)


def test_evaluation_leaves_the_global_randomness_and_the_model_s_buffers_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10), nn.Dropout())
    data = pictures(2500, (8, 8))
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(1)
    state = torch.get_rng_state()
    test = TaskTest(data, ACCURACY, F.cross_entropy)
    first, second = evaluate(model, test), evaluate(model, test)
    assert torch.equal(torch.get_rng_state(), state)
    assert first == second and first.predictions == 2500
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.eval()
    outputs = model(data.inputs)
    assert first.value == float((outputs.argmax(dim=1) == data.targets).double().mean())
    assert first.loss == pytest.approx(float(F.cross_entropy(outputs.detach(), data.targets)))


def test_one_pass_gives_every_sample_once_before_any_twice() -> None:
    count, batch, samples = 4, 6, 50
    rounds = [deal_from_one_pass(3, step, range(count), count, samples, batch) for step in range(25)]
    stream = torch.cat([dealt.flatten() for dealt in rounds])
    passes = stream[: len(stream) // samples * samples].view(-1, samples)
    assert len(passes) == 12
    for dealt in passes:
        assert torch.equal(dealt.sort().values, torch.arange(samples))
    assert len({tuple(dealt.tolist()) for dealt in passes}) == 12  # each shuffled in its own way
    assert torch.equal(rounds[7][2:3], deal_from_one_pass(3, 7, [2], count, samples, batch))
    assert not torch.equal(rounds[0], deal_from_one_pass(4, 0, range(count), count, samples, batch))


def test_a_batch_longer_than_the_data_takes_several_passes() -> None:
    dealt = deal_from_one_pass(1, 0, range(2), 2, 5, 10)
    assert [sorted(half) for half in dealt.flatten().view(4, 5).tolist()] == [[0, 1, 2, 3, 4]] * 4


def test_workers_deal_as_the_configuration_says() -> None:
    results = [gy.train(gy.Config(workers=5, batch=20, steps=3, batches=kind)) for kind in ("independent", "pass")]
    losses = [[row["loss"] for row in result.tables["metrics.csv"]] for result in results]
    assert losses[0] != losses[1]
