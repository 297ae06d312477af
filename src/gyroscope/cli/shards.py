"""`gyroscope shards`: which worker holds which samples, as a table and as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError
from gyroscope.cli.list_names import text_table
from gyroscope.runs import command_options

_KINDS = (".png", ".pdf", ".svg")


def add(commands: Any) -> None:
    command = commands.add_parser(
        "shards",
        help="which worker holds which samples when data is not common: a table and a picture",
        description="Deals the task's training data to the workers as gyroscope train --shards would with the same "
        "seed and number of workers, and shows how many samples of each label each worker holds. The Byzantine "
        "workers of a run are the last ones.",
    )
    command.add_argument("--task", default="digits", metavar="TASK", help="the task (default: %(default)s)")
    command.add_argument("--shards", default="dirichlet:alpha=0.1", metavar="SHARDING",
                         help="how it is dealt, see gyroscope list shardings (default: %(default)s)")  # fmt: skip
    command.add_argument("--workers", type=int, metavar="N", help="n, all workers (default: the task's)")
    command.add_argument("--seed", type=int, default=1, metavar="SEED", help="of the run (default: %(default)s)")
    command.add_argument(
        "--data-dir", metavar="DIR", help="folder that holds the data set (built-in tasks: or set GYROSCOPE_DATA)"
    )
    command.add_argument("--out", metavar="FILE", help=f"the picture to write ({', '.join(_KINDS)})")
    command.set_defaults(run=_shards, reword=command_options.in_options)


def _shards(options: argparse.Namespace) -> int:
    from gyroscope.runs import training
    from gyroscope.runs.config import Config
    from gyroscope.simulation.data import shards
    from gyroscope.simulation.data.batches import Split

    out = Path(options.out) if options.out else None
    if out is not None and out.suffix not in _KINDS:
        raise ConfigError(f"cannot draw into {out}: its name must end in {', '.join(_KINDS)}")
    config = Config(
        task=options.task, shards=options.shards, workers=options.workers, seed=options.seed, data_dir=options.data_dir
    ).resolve()
    targets = Split.of(training.load_task(config, progress=True).train).targets
    dealt = shards.parse(config.shards).deal(targets, config.workers, config.seed)
    if dealt is None:
        raise ConfigError("with common data every worker draws from all samples: choose --shards iid, sorted, ...")
    labels, counts = shards.counts(dealt, targets)
    rows = [[str(worker), *map(str, held), str(sum(held))] for worker, held in enumerate(counts.tolist())]
    print("\n".join(text_table(["worker", *map(str, labels.tolist()), "all"], rows, str.rjust)))
    sizes = counts.sum(dim=1)
    print(
        f"{config.workers} workers hold {int(sizes.min()):,} to {int(sizes.max()):,} of {int(sizes.sum()):,} samples; "
        f"label skew {shards.skew(counts):.2f} (0: all like the whole data; {1 - 1 / len(labels):.2f}: one label each)"
    )
    if out is not None:
        from gyroscope.report import shard_figure

        title = f"{config.task}, {config.shards}, {config.workers} workers, seed {config.seed}"
        print(f"picture: {shard_figure.draw(labels, counts, title, out)}")
    return 0
