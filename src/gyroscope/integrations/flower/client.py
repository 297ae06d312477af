"""A node of the ready app: some steps of SGD on batches of its own."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import _kernels
from gyroscope.integrations.flower.settings import Settings
from gyroscope.runs import setup
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation import tasks


def train(message: Message, context: Context) -> Message:
    """Answer a message of the server: train its arrays for `local-steps` steps, and send them back with the loss."""
    settings, number = Settings.of(context.run_config), partition(context)
    task = load_task(settings.task, settings.data_dir)
    _, worker = setup.simulated_workers(settings.config(), task, only=number)
    worker.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    server_round = int(message.content["config"]["server-round"])
    rate = Schedule.parse(settings.lr).at(server_round - 1)
    row, losses = worker.parameters.new_empty(1, worker.parameters.numel()), []
    last = server_round * settings.local_steps
    with _kernels.switched_off():  # a process that handles one message loses more by loading them than they save
        for step in range(last - settings.local_steps, last):
            losses.append(worker.sample(step, out=row)[0])
            worker.parameters.sub_(row[0], alpha=rate)
    loss = float(torch.cat(losses).mean())
    metrics = MetricRecord({"train-loss": loss, "num-examples": worker.batch * settings.local_steps})
    arrays = ArrayRecord(worker.model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def partition(context: Context) -> int:
    """Return the node's number, which determines its batches. Simulations set it; SuperNodes by `--node-config`."""
    number = context.node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(
            f"the node needs a number of its own, got partition-id = {number!r}: start its SuperNode with "
            '--node-config "partition-id=0" (1, 2, ... for the others)'
        )
    return number


@functools.lru_cache(maxsize=2)
def load_task(spec: str, data_dir: str) -> tasks.Task:
    """Load a task with its data, and keep it for the next message where the process lives that long."""
    return tasks.parse(spec).load(data_dir or None, progress=False)
