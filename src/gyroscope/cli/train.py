"""`gyroscope train`: one run."""

from __future__ import annotations

import argparse
from typing import Any

from gyroscope.runs import command_options

_TRAIN_EXAMPLES = """\
examples:
  an attack in its default form that costs Krum 10 points with momentum at the server, and 1 at the workers:
    gyroscope train --rule krum --attack little --byzantine 5 --momentum server  --out runs/a
    gyroscope train --rule krum --attack little --byzantine 5 --momentum workers --out runs/b

  the defence that lost least to the attack searched so far, here against empire by almost half of the workers:
    gyroscope train --defence best --workers 15 --attack empire --byzantine 7

  one of the paper's experiments:
    gyroscope train --task mnist --rule bulyan --attack little --byzantine 12 --lr 0.5 --seed 1 --out runs/c

  the same from a file, and an interrupted run continued:
    gyroscope train --config runs/c/config.toml --out runs/d
    gyroscope train --resume runs/c

a run directory holds config.toml, metrics.csv, evaluations.csv, workers.csv, environment.json, status.json, and at the
end model.pt (checkpoint.pt before). `gyroscope list rules` and its siblings show the names that options accept.

"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "train",
        help="run one experiment",
        description="Train a model with n workers, f of them Byzantine. The task gives the values that you leave out.",
        epilog=_TRAIN_EXAMPLES + command_options.EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        options=_add_options,
    )
    command.set_defaults(run=_train, reword=command_options.in_options)


def _add_options(command: command_options.CommandParser) -> None:
    command_options.add_files(command)
    command_options.add_configuration(command)
    shown = command.add_argument_group("what is shown")
    shown.add_argument("--quiet", action="store_true", help="no progress")
    shown.add_argument("--tensorboard", action="store_true", help="write the scalars for TensorBoard, too")
    shown.add_argument("--wandb", action="store_true",
                       help="write them for Weights & Biases, too: offline unless WANDB_MODE=online")  # fmt: skip
    shown.add_argument("--mlflow", action="store_true",
                       help="write them to MLflow, too: to MLFLOW_TRACKING_URI (default: MLflow's own)")  # fmt: skip
    shown.add_argument("--profile", action="store_true", help="print at the end where the time went")


def _train(options: argparse.Namespace) -> int:
    from gyroscope._core.clock import UNTIMED, Stopwatch
    from gyroscope.runs import training
    from gyroscope.runs.trackers import TRACKERS

    watch = Stopwatch() if hasattr(options, "profile") else UNTIMED
    with command_options.interruption() as stop:
        common: dict[str, Any] = {"callbacks": command_options.shown(options), "stop": stop, "clock": watch}
        common |= {name: hasattr(options, name) for name in TRACKERS}
        if command_options.resuming(options, allowed=["data_dir"]):
            machine = {"data_dir": options.data_dir} if hasattr(options, "data_dir") else {}
            result = training.resume(options.resume, machine=machine, **common)
        else:
            config, out, overwrite = command_options.configuration(options)
            result = training.train(config, out=out, overwrite=overwrite, **common)
    if watch is not UNTIMED:
        print(watch)
    return command_options.conclude(result)
