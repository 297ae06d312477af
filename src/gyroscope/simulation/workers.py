"""The honest workers: from parameters and batches to one gradient per worker, as one (h, d) matrix."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gyroscope._core import random_streams
from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._core.errors import DataError, RunDirectoryError
from gyroscope._linalg import _kernels, linear_layers
from gyroscope._linalg.flat_parameters import split_like, trainable
from gyroscope._linalg.indexed_batch import IndexedBatch
from gyroscope._linalg.linear_layers import is_plain
from gyroscope._linalg.matrix import shift_and_clip
from gyroscope.momentum import Participation, Update
from gyroscope.simulation import task_checks
from gyroscope.simulation.data.batches import Split, deal, deal_from_one_pass, deal_from_shards

Loss = Callable[[Tensor, Tensor], Tensor]
Inputs = Tensor | IndexedBatch | Sequence[Tensor]
"""Every worker's batch: inputs[worker] is (b, ...)."""
Noise = tuple[int, int, Sequence[int]]
"""The random streams of dropout and the like: the seed, the step, and the workers' numbers."""

_GROUP = 3_000_000
"""Input values that are sampled at a time on a CPU."""

# Modules that treat each sample by itself, and losses that are means over samples: only with those a single pass over
# all workers' samples gives the gradients that a pass per worker would.
_SAMPLEWISE = (nn.Flatten, nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LogSoftmax, nn.Identity)
_MEAN_LOSSES: tuple[Loss, ...] = (F.nll_loss, F.cross_entropy)
_NO_GRADIENT = (
    "the loss does not depend on the model's parameters in a way that torch can differentiate: leave out "
    "torch.no_grad, .detach() and .argmax() in the model and in the loss"
)


class GradientTransform(NamedTuple):
    """How a batch's gradient becomes a worker's row, the same for all workers: shift, then clip."""

    shift: Tensor | None
    """(d,): the gradient of the L2 term."""
    limit: float
    """The largest norm of a row."""


Gradients = Callable[[Inputs, Tensor, Noise, GradientTransform, Tensor], Tensor]
"""Computes every worker's row into the last argument, (h, d), and returns the workers' losses, (h,)."""


class Workers(Protocol):
    """The honest workers of a round: simulated in this process, or processes of their own."""

    count: int
    parameters: Tensor
    accumulates: bool
    """Whether they accumulate their gradients themselves: then the server does not know what they sampled."""
    present: Tensor | None
    """The numbers of those whose row of the last round is finite, which is measured; None for all of them."""
    participation: Participation | None
    """Who is asked in a round; None where everybody is."""

    def ask(self, step: int) -> None:
        """Announce that the parameters are those of this step, so that other processes can begin before `sample`."""

    def sample(self, step: int, out: Tensor | None = None, clock: Clock = UNTIMED) -> tuple[Tensor, Tensor]:
        """Return losses and all rows, the rows in `out` if given: NaN where a worker is missing or was not asked."""

    def judged(self, step: int, update: Update) -> None:
        """Learn what the rule made of the rows of this step."""

    def state(self) -> dict[str, Tensor]:
        """Return what they need to continue after an interruption."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""


class SimulatedWorkers:
    """h workers that sample their own batches, from common data or from `shards`, and compute clipped gradients.

    row = clip(gradient of the batch's mean loss + L2 term). Worker i at step t has its own streams for dropout and
    augmentation, so its row does not depend on the other workers. `first` is the number of the first of the h: a
    process that is worker 3 computes the row that worker 3 has `among` all, and draws from `shards[3]`.
    """

    accumulates = False
    present: Tensor | None = None
    participation: Participation | None = None
    local_steps: int = 1
    local_rate: Callable[[int], float] | None = None
    """The learning rate of local steps, by the number of the round."""
    relabel: Callable[[Tensor], Tensor] | None = None
    """Maps the labels of the data to those that are learned, where they differ."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Split,
        parameters: Tensor,
        *,
        count: int,
        first: int = 0,
        batch: int,
        seed: int,
        clip: float,
        l2: float,
        l2_form: str = "half-squared",
        batches: str = "independent",
        among: int | None = None,
        shards: Sequence[Tensor] | None = None,
    ) -> None:
        self.model, self.data = model, data
        self.parameters = parameters
        self.count, self.first, self.batch, self.seed = count, first, batch, seed
        self.clip, self.l2, self.l2_form = clip, l2, l2_form
        self.dealing, self.among, self.shards = batches, among or count, shards
        self.gradients = choose(model, loss)

    def beside(self, count: int, relabel: Callable[[Tensor], Tensor] | None = None) -> SimulatedWorkers:
        """Return more workers, numbered after these, with batches of their own, at the same model and data."""
        more = copy.copy(self)
        more.first, more.count, more.relabel = self.first + self.count, count, relabel
        more.among = self.among + count
        more.participation = None  # nobody can keep them from computing
        return more

    def _group_size(self) -> int:
        # Few workers at a time where inputs are large, so that not all prepared inputs are in memory at once.
        values = self.batch * max(1, self.data.inputs[0].numel())
        groups = -(-self.count * values // _GROUP) if self.parameters.device.type == "cpu" else 1
        return -(-self.count // groups)

    def alone(self, worker: int) -> SimulatedWorkers:
        """Return one of these workers by itself, at the same model and with the batches that it has among all."""
        one = copy.copy(self)
        one.first, one.count, one.participation = self.first + worker, 1, None
        return one

    def ask(self, step: int) -> None:
        """Do nothing: simulated workers compute when they are sampled."""

    def judged(self, step: int, update: Update) -> None:
        """Do nothing: simulated workers do not care."""

    def sample(self, step: int, out: Tensor | None = None, clock: Clock = UNTIMED) -> tuple[Tensor, Tensor]:
        """Return the workers' losses and clipped gradients at this step; the rows in `out`, if given.

        There is a loss of each worker that is asked; the row of one that is not is NaN.
        """
        rows = self.parameters.new_empty(self.count, self.parameters.numel()) if out is None else out
        if self.participation is None:
            losses, finite = self._sample(step, range(self.first, self.first + self.count), rows, clock)
            self.present = present_among(finite)
            return losses, rows
        last = self.first + self.count
        asked = [number for number in self.participation.asked(step) if self.first <= number < last]
        places = torch.tensor(asked, dtype=torch.int64, device=rows.device) - self.first
        rows.fill_(math.nan)
        if not asked:
            self.present = places
            return rows.new_empty(0), rows
        some = rows.new_empty(len(asked), rows.shape[1])
        losses, finite = self._sample(step, asked, some, clock)
        rows[places] = some
        self.present = places[finite]
        return losses, rows

    def _sample(self, step: int, numbers: Sequence[int], rows: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        """Write the rows of these workers; return their losses, and which of the rows are finite."""
        if self.local_steps > 1:
            return self._take_local_steps(step, numbers, rows, clock), rows.sum(dim=1).isfinite()
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        losses = []
        group = self._group_size()
        for start in range(0, len(numbers), group):
            own, workers = rows[start : start + group], numbers[start : start + group]
            inputs, targets = self.batches(step, workers)
            if self.relabel is not None:
                targets = self.relabel(targets)
            clock.lap("data")
            noise = self.seed, step, workers
            losses.append(self.gradients(inputs, targets, noise, self.transform(), own))
            clock.lap("gradients")
        finite = self.finite_rows(rows)
        if not bool(finite.all()):  # one sample that is not finite would stay in the running statistics for ever
            restore_buffers(self.model, buffers)
        return torch.cat(losses), finite

    def _take_local_steps(self, step: int, numbers: Sequence[int], rows: Tensor, clock: Clock) -> Tensor:
        """Let each worker take its local steps; write the sums of their gradients into rows, and return mean losses."""
        assert self.local_rate is not None
        rate, begin, losses = self.local_rate(step), self.parameters.clone(), []
        for number, row in zip(numbers, rows, strict=True):
            worker = self.alone(number - self.first)
            worker.local_steps = 1
            row.zero_()
            mine = []
            for local in range(self.local_steps):
                loss, (gradient,) = worker.sample(step * self.local_steps + local, clock=clock)
                row += gradient
                mine.append(loss)
                self.parameters.sub_(gradient, alpha=rate)
            self.parameters.copy_(begin)
            losses.append(torch.cat(mine).mean())
        return torch.stack(losses)

    def finite_rows(self, rows: Tensor) -> Tensor:
        """Return (h,): which rows are finite."""
        # Clipping makes NaN of all of a row that is not finite, so that one column tells.
        return (rows if self.clip == math.inf else rows[:, :1]).sum(dim=1).isfinite()

    def state(self) -> dict[str, Tensor]:
        return {}  # their batches come from stateless streams, and the run holds their momentum

    def restore(self, state: dict[str, Tensor]) -> None:
        if state:
            raise RunDirectoryError(
                "this run's momentum belongs to worker processes: continue it with gyroscope serve --resume"
            )

    def batches(self, step: int, workers: Sequence[int]) -> tuple[IndexedBatch | list[Tensor], Tensor]:
        """Return the prepared inputs and the targets that these workers draw at this step."""
        if self.shards is not None:
            one_pass = self.dealing == "pass"
            indices = deal_from_shards(self.seed, step, workers, self.shards, self.batch, one_pass)
        elif self.dealing == "independent":
            indices = deal(self.seed, step, workers, len(self.data), self.batch)
        else:
            indices = deal_from_one_pass(self.seed, step, workers, self.among, len(self.data), self.batch)
        indices = indices.to(self.parameters.device, torch.int64)  # shards may hold narrower integers
        inputs, targets = IndexedBatch(self.data.inputs, indices), IndexedBatch(self.data.targets, indices).gather()
        if self.data.prepare is None:
            return inputs, targets
        prepared = [
            self.data.prepare(batch, random_streams.generator(self.seed, "augment", worker, step))
            for worker, batch in zip(workers, inputs.gather(), strict=True)
        ]
        return prepared, targets

    def transform(self) -> GradientTransform:
        """Return how a gradient becomes a row at the current parameters."""
        if self.l2 == 0:
            return GradientTransform(None, self.clip)
        if self.l2_form == "half-squared":  # lambda/2 * ||theta||^2
            return GradientTransform(self.parameters * self.l2, self.clip)
        # The released code's lambda^2 * ||theta||.
        norm = torch.linalg.vector_norm(self.parameters)
        unit = self.parameters / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        return GradientTransform(unit.mul_(self.l2**2), self.clip)


def present_among(finite: Tensor) -> Tensor | None:
    """Return the numbers of the rows to measure and attack: the finite ones; None for all, and where there is none."""
    return finite.nonzero().flatten() if 0 < int(finite.sum()) < len(finite) else None


def restore_buffers(model: nn.Module, before: list[Tensor]) -> None:
    """Write these values back into the model's buffers."""
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)


def choose(model: nn.Module, loss: Loss) -> Gradients:
    """Return gradients of all workers in one pass where the model allows it, else of one worker per pass."""
    modules = list(model) if type(model) is nn.Sequential and is_plain(model) else []
    # With a leading Flatten every layer's input has one row per sample, which `BatchedGradients` needs.
    samplewise = repr(modules[:1]) == repr([nn.Flatten()]) and all(
        type(module) in _SAMPLEWISE
        and is_plain(module)
        and (not isinstance(module, nn.LogSoftmax) or module.dim in (1, -1))
        for module in modules
    )
    linear = [parameter for module in modules if isinstance(module, nn.Linear) for parameter in module.parameters()]
    if samplewise and loss in _MEAN_LOSSES and len(linear) == len(trainable(model)):
        return BatchedGradients(modules, loss)
    return LoopGradients(model, loss)


class LoopGradients:
    """One backward pass per worker, which is correct for every model: batch-norm sees the worker's own batch.

    Each worker in turn updates batch-norm's running statistics, which serve evaluation only, never a gradient.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self.loss = model, loss
        self.parameters = trainable(model)

    def __call__(self, inputs: Inputs, targets: Tensor, noise: Noise, to_row: GradientTransform, out: Tensor) -> Tensor:
        seed, step, workers = noise
        self.model.train()
        losses = []
        for place, (worker, row) in enumerate(zip(workers, out, strict=True)):
            with random_streams.ambient(seed, "noise", worker, step, device=out.device):
                loss = task_checks.loss_of(
                    self.loss, task_checks.training_outputs(self.model, inputs[place]), targets[place]
                )
            if not loss.requires_grad:
                raise DataError(_NO_GRADIENT)
            gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            for piece, gradient in zip(split_like(row, self.parameters), gradients, strict=True):
                piece.copy_(gradient) if gradient is not None else piece.zero_()
            losses.append(loss.detach())
        shift_and_clip(out, *to_row)
        return torch.stack(losses)


def _counted(targets: Tensor) -> Tensor:
    """Return over how many samples of each worker's batch the mean is taken: torch ignores the target -100."""
    if targets.is_floating_point():  # class probabilities
        return torch.full(targets.shape[:1], targets.shape[1], device=targets.device)
    return (targets != _kernels.IGNORED).sum(dim=1)


_Passed = tuple[Sequence[Tensor | IndexedBatch], Sequence[Tensor], Tensor]
"""Each linear layer's input and the gradient of the sum of the workers' losses at its output, both with a row per
sample; and each sample's loss."""


class BatchedGradients:
    """All workers at once, for a chain of linear layers and element-wise functions; kernels compute the usual one.

    The workers share their parameters, so forward and backward are a few large matrix products over all samples; only
    the last step, the layers' weight gradients, differs by worker.
    """

    def __init__(self, modules: list[nn.Module], loss: Loss) -> None:
        # No module works in place: autograd needs the outputs that it differentiates.
        self.modules = [nn.ReLU() if isinstance(module, nn.ReLU) else module for module in modules]
        self.linear = [module for module in modules if isinstance(module, nn.Linear)]
        self.loss = loss
        end = [nn.LogSoftmax] if loss is F.nll_loss else []
        self.usual = [type(module) for module in modules] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, *end]
        """Whether this is a classifier with one hidden layer, as the paper's, for which there is a kernel."""

    def __call__(self, inputs: Inputs, targets: Tensor, noise: Noise, to_row: GradientTransform, out: Tensor) -> Tensor:
        h, b = targets.shape[:2]
        samples, flat, counted = self._flattened(inputs), targets.flatten(0, 1), _counted(targets)
        passed = self._classify(samples, flat, counted) if self.usual else None
        into, grad_outputs, each = passed or self._differentiate(samples, flat, counted)
        layers = [
            _kernels.Gradient(
                grad_output.view(h, b, -1),
                given if isinstance(given, IndexedBatch) else given.view(h, b, -1),
                layer.bias is not None,
            )
            for layer, given, grad_output in zip(self.linear, into, grad_outputs, strict=True)
        ]
        linear_layers.gradient_rows(layers, *to_row, out)
        return each.view(h, b).sum(dim=1) / counted

    def _classify(self, samples: Tensor | IndexedBatch, targets: Tensor, counted: Tensor) -> _Passed | None:
        first, last = self.linear
        found = linear_layers.classify(samples, first, last, targets, counted.to(first.weight.dtype).reciprocal())
        return found and ([samples, found.hidden], [found.grad_preactivation, found.grad_logits], found.losses)

    def _differentiate(self, samples: Tensor | IndexedBatch, targets: Tensor, counted: Tensor) -> _Passed:
        into: list[Tensor | IndexedBatch] = []
        from_: list[Tensor] = []  # each layer's output, at which the loss is differentiated
        values = samples
        with torch.enable_grad():
            for module in self.modules[1:]:
                if isinstance(module, nn.Linear):
                    if isinstance(values, Tensor) and values.requires_grad:
                        into.append(values.detach())
                        values = F.linear(values, *linear_layers.constants(module))
                    else:
                        into.append(values)
                        values = linear_layers.linear(values, *linear_layers.constants(module)).requires_grad_()
                    from_.append(values)
                else:
                    values = module(values)
            each = self.loss(values, targets, reduction="none")  # type: ignore[call-arg, arg-type]
            means = each.view(len(counted), -1).sum(dim=1) / counted
            grad_outputs = torch.autograd.grad(means.sum(), from_)
        return into, grad_outputs, each.detach()

    def _flattened(self, inputs: Inputs) -> Tensor | IndexedBatch:
        """Return one row per sample, as the leading Flatten makes them."""
        if isinstance(inputs, IndexedBatch):
            # (Rows of data that is not contiguous would be a copy of all of it.)
            if self.linear[:1] == self.modules[1:2] and inputs.source.is_contiguous():
                rows = inputs.as_rows()
                if linear_layers.reads_in_place(rows, self.linear):
                    return rows
            inputs = inputs.gather()
        samples = inputs if isinstance(inputs, Tensor) else torch.stack(list(inputs))
        return samples.flatten(0, 1).flatten(1)
