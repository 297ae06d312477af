"""What an honest node of the ready app does: some steps of SGD on batches of its own."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import _kernels
from gyroscope._linalg.flat_parameters import attach
from gyroscope.integrations.flower.settings import Settings
from gyroscope.runs.schedule import Schedule
from gyroscope.runs.setup import first_model
from gyroscope.simulation import tasks
from gyroscope.simulation.data.splits import Split
from gyroscope.simulation.workers import SimulatedWorkers


def train(message: Message, context: Context) -> Message:
    """Answer a message of the server: train its arrays for `local-steps` steps, and send them back with the loss."""
    settings = Settings.of(context.run_config)
    config: ConfigRecord = message.content["config"]
    node = _Node(settings, partition(context))
    arrays, loss = node.train(message.content["arrays"], int(config["server-round"]))
    metrics = MetricRecord({"train-loss": loss, "num-examples": node.samples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def partition(context: Context) -> int:
    """Which batches the node draws. Simulations set it; a SuperNode is given it by `--node-config`."""
    number = context.node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(
            f"the node needs a number of its own, got partition-id = {number!r}: start its SuperNode with "
            '--node-config "partition-id=0" (1, 2, ... for the others)'
        )
    return number


@functools.lru_cache(maxsize=2)
def load_task(spec: str, data_dir: str) -> tasks.Task:
    """The task with its data, kept for the next message where the process lives that long."""
    return tasks.parse(spec).load(data_dir or None, progress=False)


class _Node(SimulatedWorkers):
    """One worker by itself: it draws the batches that worker number `number` would draw among many."""

    def __init__(self, settings: Settings, number: int) -> None:
        task = load_task(settings.task, settings.data_dir)
        self.model: nn.Module = first_model(task, settings.seed)
        config = settings.config(task.defaults.batch)
        super().__init__(
            self.model,
            task.loss,
            Split.of(task.train),
            attach(self.model),
            count=1,
            first=number,
            batch=config.batch,
            seed=settings.seed,
            clip=config.clip,
            l2=config.l2,
        )
        self.number, self.settings = number, settings

    def sample(self, step: int, out: Tensor | None = None, clock: Clock = UNTIMED) -> tuple[Tensor, Tensor]:
        # A node handles one message per process and has one row: to load the kernels takes longer than they save.
        with _kernels.switched_off():
            return super().sample(step, out, clock)

    @property
    def samples(self) -> int:
        return self.batch * self.settings.local_steps

    def train(self, arrays: ArrayRecord, server_round: int) -> tuple[ArrayRecord, float]:
        """(the arrays after the local steps, the mean loss over them)."""
        self.model.load_state_dict(arrays.to_torch_state_dict())
        steps = self.settings.local_steps
        rate = Schedule.parse(self.settings.lr).at(server_round - 1)
        losses: list[Tensor] = []
        row = self.parameters.new_empty(1, self.parameters.numel())
        for step in range((server_round - 1) * steps, server_round * steps):
            losses.append(self.sample(step, out=row)[0])
            self.parameters.sub_(row[0], alpha=rate)
        return ArrayRecord(self.model.state_dict()), float(torch.cat(losses).mean())
