"""Measure what row formats cost in accuracy, and rewrite the table of docs/server.md.

    python -m benchmarks.pages.update_row_formats        # see --help; some minutes

The workers are simulated, but each row goes through `RowWriter` and `decode`, as on its way from a worker process to
the server. tests/distributed/test_row_formats.py shows that a run with processes has the same numbers. Byzantine rows
are the simulated attack's, as in `gyroscope launch`: they come after the honest ones and through no format.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import torch
from torch import Tensor

from benchmarks.pages import DOCS, markers
from gyroscope._core.clock import UNTIMED, Clock
from gyroscope.distributed import row_formats
from gyroscope.distributed.row_formats import RowWriter
from gyroscope.experiments.claims.checks import mean_text
from gyroscope.experiments.grid import parse_seeds
from gyroscope.momentum import Update, WorkerMomentum
from gyroscope.report.text_tables import markdown_table
from gyroscope.runs.config import NO_ATTACK, Config, ResolvedConfig
from gyroscope.runs.result import Result
from gyroscope.runs.training import train
from gyroscope.simulation.workers import SimulatedWorkers

FORMATS = (
    "full",
    "float16",
    "bfloat16",
    "top-k:share=0.1",
    "top-k:share=0.1,feedback=true",
    "top-k:share=0.01",
    "top-k:share=0.01,feedback=true",
)
BYZANTINE = 5
CASES = (("average", NO_ATTACK), *itertools.product(("median", "krum", "caf-history"), (NO_ATTACK, "little")))


class WritingWorkers:
    """Simulated workers with momentum whose rows go through a format: an implementation of `Workers`."""

    accumulates = True

    def __init__(self, config: ResolvedConfig, simulated: SimulatedWorkers, spec: str) -> None:
        self.simulated, self.count, self.parameters = simulated, simulated.count, simulated.parameters
        self.row_format = row_formats.parse(spec)
        self.momentum = WorkerMomentum(config.mu, nesterov=config.nesterov)
        self.writers = [RowWriter(self.row_format) for _ in range(self.count)]
        self.present: Tensor | None = None
        self.participation = simulated.participation
        d, dtype = self.parameters.numel(), self.parameters.dtype
        self.values = torch.empty(self.row_format.count(d), dtype=self.row_format.dtype_for(dtype))

    def ask(self, step: int) -> None: ...

    def judged(self, step: int, update: Update) -> None: ...

    def sample(self, step: int, out: Tensor | None = None, clock: Clock = UNTIMED) -> tuple[Tensor, Tensor]:
        losses, sampled = self.simulated.sample(step, clock=clock)
        rows = torch.empty_like(sampled) if out is None else out
        finite = []
        for number, sent in enumerate(self.momentum.update(sampled)):
            self.writers[number].write(sent, self.values)
            if self.row_format.decode(self.values, rows[number]):
                finite.append(number)
        self.present = None if len(finite) == self.count else torch.tensor(finite)
        return losses, rows

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        raise NotImplementedError("these runs are too short to be resumed")


def run(config: Config, spec: str) -> Result:
    """Run a configuration with momentum at the workers, whose rows are sent in this format."""
    return train(config, worker_factory=lambda resolved, simulated: WritingWorkers(resolved, simulated, spec))


def measure(rule: str, attack: str, spec: str, seeds: list[int], steps: int | None) -> list[Result]:
    """Return the runs of one case in one format."""
    attacked = {} if attack == NO_ATTACK else {"attack": attack, "byzantine": BYZANTINE}
    declared = 0 if rule == "average" else BYZANTINE
    settings = {"rule": rule, "declared_byzantine": declared, "momentum": "workers", "threads": 1, **attacked}
    if steps is not None:
        settings["steps"] = steps
    return [run(Config.from_mapping({**settings, "seed": seed}), spec) for seed in seeds]


def accuracies(results: list[Result]) -> str:
    best, final = ([100 * getattr(result, name) for result in results] for name in ("max_accuracy", "final_accuracy"))
    return f"{mean_text(best)}, {mean_text(final)}"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-3", help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, help="rounds (default: the task's)")
    parser.add_argument("--print", action="store_true", help="print the table, and leave the page as it is")
    options = parser.parse_args(arguments)
    seeds, lines = parse_seeds(options.seeds), []
    for rule, attack in CASES:
        found = [measure(rule, attack, spec, seeds, options.steps) for spec in FORMATS]
        lines.append([f"`{rule}`", attack, *map(accuracies, found)])
        print(*lines[-1], sep="   ", file=sys.stderr, flush=True)
    table = markdown_table(["rule", "attack", *(f"`{spec}`" for spec in FORMATS)], lines, right=())
    if options.print:
        print(table)
    else:
        markers.replace(DOCS / "server.md", {"row formats": table})


if __name__ == "__main__":
    main(sys.argv[1:])
