"""`gyroscope train`: one run."""

from __future__ import annotations

import argparse
import dataclasses
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError
from gyroscope.cli.wording import in_options

STOPPED = 3
"""The exit code of a process that lacked the others: a server without enough workers, a worker without its server."""

_TRAIN_EXAMPLES = """\
examples:
  an attack that momentum at the server does not withstand, and momentum at the workers does:
    gyroscope train --rule krum --attack little --byzantine 5 --momentum server  --out runs/a
    gyroscope train --rule krum --attack little --byzantine 5 --momentum workers --out runs/b

  the defence that has lost least so far, against almost half of the workers:
    gyroscope train --defence best --workers 15 --attack empire --byzantine 7

  one of the paper's experiments:
    gyroscope train --task mnist --rule bulyan --attack little --byzantine 12 --lr 0.5 --seed 1 --out runs/c

  six servers hold the model, one of them lies; each waits for 5 models and for the rows of all but 3 workers:
    gyroscope train --rule krum --attack little --byzantine 3 --servers 6 --byzantine-servers 1 --server-attack nan

  the same from a file, and an interrupted run continued:
    gyroscope train --config runs/c/config.toml --out runs/d
    gyroscope train --resume runs/c

what a run directory holds: config.toml, metrics.csv, evaluations.csv, workers.csv, environment.json, status.json,
and model.pt at the end (checkpoint.pt before). `gyroscope list rules` and its siblings tell what can be named above.
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "train",
        help="run one experiment",
        description="Train a model with n workers, f of them Byzantine. What you leave out is taken from the task.",
        epilog=_TRAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    add_files(command)
    add_configuration(command)
    shown = command.add_argument_group("what is shown")
    shown.add_argument("--quiet", action="store_true", help="no progress")
    shown.add_argument("--tensorboard", action="store_true", help="write the scalars for TensorBoard, too")
    shown.add_argument("--profile", action="store_true", help="print at the end where the time went")
    command.set_defaults(run=_train, reword=in_options)


def add_files(command: argparse.ArgumentParser) -> None:
    """The options that say where a run comes from and goes to."""
    files = command.add_argument_group("from and to files")
    files.add_argument("--config", metavar="TOML", help="read the configuration; options given besides it win")
    files.add_argument("--out", metavar="DIR", help="run directory to write (default: runs/ and a name of its own)")
    files.add_argument("--resume", metavar="DIR", help="continue the run in DIR, to the same bits as if uninterrupted")
    files.add_argument("--overwrite", action="store_true", help="replace the run in --out")


def add_configuration(command: argparse.ArgumentParser, kind: type[Any] | None = None) -> None:
    """An option for every field of a configuration, or of another `kind` of it."""
    groups: dict[str, Any] = {}
    for field in fields_of(kind):
        title = field.metadata["group"]
        group = groups.setdefault(title, None) or command.add_argument_group(title)
        groups[title] = group
        _add_option(group, field)
        if field.name == "rule":
            group.add_argument("--defence", metavar="NAME", help="instead of a rule and a placement of momentum: best, "
                               "what has lost least so far (see `gyroscope list defences`)")  # fmt: skip


def fields_of(kind: type[Any] | None = None) -> Iterator[dataclasses.Field[Any]]:
    """Yield the fields of a kind of configuration; without one, those of `Config` and of all its variants."""
    from gyroscope.runs.config import Config
    from gyroscope.runs.variants import variants

    yield from dataclasses.fields(kind or Config)
    if kind is None:
        for variant in variants():
            yield from variant.extra_fields().values()


def _add_option(group: Any, field: dataclasses.Field[Any]) -> None:
    flag = "--" + field.name.replace("_", "-")
    text = field.metadata["help"].replace("%", "%%")
    kind = str(field.type).split(" | ")[0]
    if kind == "bool":
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        return
    default = f" (default: {field.default})" if field.default is not None else ""
    group.add_argument(flag, type={"int": int, "float": float, "str": str}[kind], metavar=field.metadata["metavar"],
                       help=text + default)  # fmt: skip


def _train(options: argparse.Namespace) -> int:
    from gyroscope._core import clock
    from gyroscope.runs import training

    callbacks = shown(options)
    board = hasattr(options, "tensorboard")
    watch = clock.Stopwatch() if hasattr(options, "profile") else clock.UNTIMED
    with Interruption() as interruption:
        if resuming(options):
            result = training.resume(
                options.resume, callbacks=callbacks, stop=interruption, tensorboard=board, clock=watch
            )
        else:
            config, out, overwrite = configuration(options)
            result = training.train(
                config,
                out=out,
                overwrite=overwrite,
                callbacks=callbacks,
                stop=interruption,
                tensorboard=board,
                clock=watch,
            )
    if isinstance(watch, clock.Stopwatch):
        print(watch)
    return conclude(result)


def shown(options: argparse.Namespace) -> list[Any]:
    """Return the callbacks that show a run's progress: none with --quiet."""
    from gyroscope.runs import progress

    return [] if hasattr(options, "quiet") else [progress.choose()]


def resuming(options: argparse.Namespace) -> bool:
    """Whether a run is to be continued. Then nothing else may be said about it."""
    if not hasattr(options, "resume"):
        return False
    others = [
        *_given(options), *(name for name in ("config", "defence", "out", "overwrite") if hasattr(options, name))
    ]  # fmt: skip
    if others:
        raise ConfigError(
            f"--resume takes everything from {options.resume}/config.toml: leave out "
            + ", ".join(f"--{name.replace('_', '-')}" for name in others)
        )
    return True


def configuration(options: argparse.Namespace, kind: type[Any] | None = None) -> tuple[Any, Path, bool]:
    """What is to be run, where it is to be written, and whether it may replace what is there."""
    from gyroscope.runs.config import Config

    chosen = kind or Config
    written = dataclasses.asdict(chosen.load(options.config)) if hasattr(options, "config") else {}
    config = chosen.from_mapping({**written, **_defended(options), **_given(options, kind)})
    if getattr(options, "trusted", 0) > 0:
        _check_trusted(config)
    out = Path(options.out) if hasattr(options, "out") else _fresh_directory(config)
    return config, out, hasattr(options, "overwrite")


def _check_trusted(config: Any) -> None:
    """Somebody asks for it by name, so it shall do something. (In a file it may stand for some of many rules.)"""
    from gyroscope import rules

    rule = rules.parse(config.rule)
    if "trusted" not in rule.uses:
        raise ConfigError(
            f"the rule {rule} compares with no samples of the server's own: trusted = {config.trusted} would change "
            "nothing: leave it out, or choose a rule that does (zeno, fltrust)"
        )


def _defended(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that a defence's name stands for."""
    from gyroscope.runs.defences import defence

    if not hasattr(options, "defence"):
        return {}
    settings = defence(options.defence)
    doubled = [f"--{name}" for name in settings if hasattr(options, name)]
    if doubled:
        means = ", ".join(f"{name} {value}" for name, value in settings.items())
        raise ConfigError(
            f"--defence {options.defence} says already: {means}. Leave out {' and '.join(doubled)}, or --defence"
        )
    return dict(settings)


def _given(options: argparse.Namespace, kind: type[Any] | None = None) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in fields_of(kind) if hasattr(options, field.name)}


def _fresh_directory(config: Any) -> Path:
    """A directory that says what is in it and does not exist yet."""
    parts = [
        config.task,
        config.aggregation,
        config.attack,
        f"f_{config.byzantine}",
        config.momentum,
        *(f"{name}_{value}" for name, value in config.unusual().items()),
        f"seed_{config.seed}",
    ]
    name = "-".join(re.sub(r"[:=,/()]", "_", part) for part in parts)
    candidate, number = Path("runs") / name, 2
    while candidate.exists():
        candidate, number = Path("runs") / f"{name}-{number}", number + 1
    return candidate


def conclude(result: Any, command: str = "train") -> int:
    """Say how a run went; the exit code."""
    from gyroscope.runs import run_dir

    where = f" -> {result.directory}" if result.directory else ""
    if result.status == run_dir.INTERRUPTED:
        because = f": {result.reason}" if result.reason else ""
        print(
            f"interrupted after step {result.step} of {result.config.steps}{because}. Continue with:\n"
            f"  gyroscope {command} --resume {result.directory}"
        )
        return STOPPED if result.reason else 130
    if result.status == run_dir.DIVERGED:
        print(
            f"diverged: the parameters were no longer finite after step {result.step}; maximum accuracy "
            f"{result.max_accuracy:.2%}{where}"
        )
        return 0
    print(f"maximum accuracy {result.max_accuracy:.2%}, final accuracy {result.final_accuracy:.2%}{where}")
    return 0


class Interruption:
    """Ctrl-C asks the run to stop after the round it is in; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interruption:
        self.previous = {name: signal.signal(name, self._ask) for name in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for name, handler in self.previous.items():
            signal.signal(name, handler)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping after this round ...", file=sys.stderr, flush=True)
