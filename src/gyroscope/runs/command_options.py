"""From command-line options to a configured run: what `train`, `serve` and the commands of other packages share."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

from gyroscope._core.errors import ConfigError, nearest


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, which adds its options when it parses or prints its help.

    Most of them come from modules that import torch, and `gyroscope --help` should not wait for that.
    """

    def __init__(self, *args: Any, options: Callable[[CommandParser], None] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._add_options = options

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._fill()
        found, unknown = super().parse_known_args(args, namespace)
        for option in (word.partition("=")[0] for word in unknown if word.startswith("--")):
            near = nearest(option, [name for name in self._option_string_actions if name.startswith("--")])
            self.error(f"unknown option {option}: " + (f"did you mean {near}?" if near else "see --help"))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and suggest what may have been meant instead of a choice that does not exist."""
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = nearest(wrong[1], re.findall(r"[\w-]+", wrong[2])) if wrong else ""
        message = re.sub(
            r"invalid (int|float) value: (.*)", lambda found: f"must be {_NUMBERS[found[1]]}, got {found[2]}", message
        )
        super().error(message + (f": did you mean {near!r}?" if near else ""))

    def format_help(self) -> str:
        self._fill()
        return super().format_help()

    def _fill(self) -> None:
        add, self._add_options = self._add_options, None
        if add is not None:
            add(self)


_NUMBERS = {"int": "a whole number", "float": "a number"}

STOPPED = 3
"""The exit code of a server that has too few workers, and of a worker that has lost its server."""
DIVERGED = 4
"""The exit code of a run whose parameters are no longer finite."""
EXIT_CODES = """\
exit codes: 0 the run is complete; 1 a bug, with a traceback; 2 a mistake, which the message names; 4 the run diverged:
its parameters are no longer finite (an accuracy that an attack has ruined is no such case); 130 interrupted.
"""


def add_files(command: argparse.ArgumentParser) -> None:
    """Add the options that name the files of a run."""
    files = command.add_argument_group("from and to files")
    files.add_argument("--config", metavar="TOML", help="read the configuration; options given besides it win")
    files.add_argument("--out", metavar="DIR", help="run directory to write (default: runs/ and a name of its own)")
    files.add_argument("--resume", metavar="DIR", help="continue the run in DIR, to the same bits as if uninterrupted")
    files.add_argument("--continue", action="store_true", dest="continuing",
                       help="continue the run in --out if there is one: for a service, which starts again and again "
                       "with the same options")  # fmt: skip
    files.add_argument("--overwrite", action="store_true", help="replace the run in --out")


def add_configuration(
    command: argparse.ArgumentParser, kind: type[Any] | None = None, without: Collection[str] = ()
) -> None:
    """Add an option for every field of a kind of configuration; without one, see `fields_of`.

    Args:
        command: the parser to add to.
        kind: the kind of configuration.
        without: fields that the command chooses by itself.
    """
    groups: dict[str, Any] = {}
    for field in (field for field in fields_of(kind) if field.name not in without):
        title = field.metadata["group"]
        if title not in groups:
            groups[title] = command.add_argument_group(title)
        _add_option(groups[title], field)
        if field.name == "rule":
            text = "instead of a rule and a placement of momentum: best, what lost least to the attack searched so far"
            groups[title].add_argument("--defence", metavar="NAME", help=f"{text} (see `gyroscope list defences`)")


def fields_of(kind: type[Any] | None = None) -> Iterator[dataclasses.Field[Any]]:
    """Yield the fields of a kind of configuration; without one, those of `Config` and of all its variants."""
    from gyroscope.runs.config import Config
    from gyroscope.runs.variants import variants

    yield from dataclasses.fields(kind or Config)
    for variant in () if kind else variants():
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


def shown(options: argparse.Namespace) -> list[Any]:
    """Return the callbacks that show a run's progress: none with --quiet."""
    from gyroscope.runs.progress import Bar, Lines

    return [] if hasattr(options, "quiet") else [Bar() if sys.stderr.isatty() else Lines()]


def resuming(options: argparse.Namespace, allowed: Collection[str] = ()) -> bool:
    """Return whether to continue a run, which is `options.resume`; raise where options would change it.

    Args:
        options: what was given.
        allowed: settings of the machine that may be given besides --resume.
    """
    if hasattr(options, "continuing"):
        return _continues(options)
    if not hasattr(options, "resume"):
        return False
    given = (name for name in _given(options) if name not in allowed)
    others = [*given, *(name for name in ("config", "defence", "out", "overwrite") if hasattr(options, name))]
    if others:
        raise ConfigError(
            f"--resume takes everything from {options.resume}/config.toml: leave out "
            + ", ".join(f"--{name.replace('_', '-')}" for name in others)
        )
    _say_where_it_begins(options)
    return True


def _say_where_it_begins(options: argparse.Namespace) -> None:
    """Say so where a run was interrupted before its first checkpoint."""
    from gyroscope.runs.run_dir import CHECKPOINT, CONFIG, MODEL

    has = {name: (Path(options.resume) / name).is_file() for name in (CONFIG, CHECKPOINT, MODEL)}
    if has[CONFIG] and not has[CHECKPOINT] and not has[MODEL] and not hasattr(options, "quiet"):
        print(f"{options.resume} has no checkpoint: the run begins at step 0", file=sys.stderr, flush=True)


def _continues(options: argparse.Namespace) -> bool:
    """Return whether --out holds the run that the options describe; raise where it holds another one."""
    from gyroscope.runs.run_dir import CONFIG, RunDirectory

    if not hasattr(options, "out") or hasattr(options, "resume") or hasattr(options, "overwrite"):
        raise ConfigError("--continue needs --out, which names the run, and goes with neither --resume nor --overwrite")
    if not (Path(options.out) / CONFIG).is_file():
        return False
    asked, kept = configuration(options)[0].resolve(), RunDirectory.read_config(options.out).resolve()
    wanted, there = ({**config.experiment(), "checkpoint_every": config.checkpoint_every} for config in (asked, kept))
    for name in sorted(wanted.keys() | there.keys()):
        mine, recorded = wanted.get(name), there.get(name)
        if mine != recorded:
            raise ConfigError(
                f"the run in {options.out} has {name} = {recorded!r}, not {mine!r}, and a run keeps its "
                "configuration: choose another --out for a new one, or take the old value"
            )
    options.resume = options.out
    _say_where_it_begins(options)
    return True


def configuration(options: argparse.Namespace, kind: type[Any] | None = None) -> tuple[Any, Path, bool]:
    """Return the configuration, the run directory, and whether to overwrite a run that is there."""
    from gyroscope.runs.config import Config

    chosen = kind or Config
    written = dataclasses.asdict(chosen.load(options.config)) if hasattr(options, "config") else {}
    config = chosen.from_mapping({**written, **_defended(options), **_given(options, kind)})
    if getattr(options, "trusted", 0) > 0:
        _check_trusted(config)
    if hasattr(options, "defence"):
        _caution(options.defence, config)
    out = Path(options.out) if hasattr(options, "out") else _fresh_directory(config)
    return config, out, hasattr(options, "overwrite")


def _check_trusted(config: Any) -> None:
    """Raise where --trusted would have no effect. (A file may hold it for some of many rules.)"""
    from gyroscope import rules

    rule = rules.parse(config.rule)
    if "trusted" not in rule.uses:
        raise ConfigError(
            f"the rule {rule} compares with no samples of the server's own: trusted = {config.trusted} would change "
            "nothing: leave it out, or choose a rule that does (zeno, fltrust)"
        )


def _caution(name: str, config: Any) -> None:
    """Warn of a defence that is not for workers with unequal data."""
    from gyroscope.runs.defences import DEFENCES

    if DEFENCES[name].caution and config.shards not in ("common", "iid"):
        warnings.warn(f"--defence {name} with --shards {config.shards}: {DEFENCES[name].caution}", stacklevel=1)


def _defended(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the defence that is named."""
    from gyroscope.runs.defences import defence

    settings = defence(options.defence) if hasattr(options, "defence") else {}
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
    """Return a directory whose name says what is in it and that does not exist yet."""
    from gyroscope.runs.run_dir import free_path

    unusual = (f"{name}_{value}" for name, value in config.unusual().items())
    parts = [config.task, config.aggregation, config.attack, f"f_{config.byzantine}", config.momentum, *unusual]
    return free_path(Path("runs") / re.sub(r"[:=,/()]", "_", "-".join([*parts, f"seed_{config.seed}"])))


def in_options(message: str, options: argparse.Namespace) -> str:
    """Return an error's message with options in place of fields, unless the mistake is in a file, which has none."""
    of_a_file = hasattr(options, "config") and message.startswith(f"{options.config}: ")
    return message if of_a_file or hasattr(options, "resume") else reworded(message)


def reworded(message: str) -> str:
    """Return `set --declared-byzantine 3` for `set declared_byzantine = 3`, as Python and files have it.

    A name of several words is always a field. A single word (`workers`) is one only where its value is mentioned.
    """
    names = [field.name for field in fields_of()]
    one, several = "|".join(names), "|".join(sorted((name for name in names if "_" in name), key=len, reverse=True))
    for pattern in (
        rf"(?<![\w.'\"/\\-])({one}) =(?= )",
        rf"^({one})(?= must be )",
        rf"(?<=\bset )({one})(?= to )",
        rf"(?<=\blower )({one})\b",
        rf"(?<=\bleave out )({one})\b",
        rf"(?<![\w.:'\"/\\-])({several})\b(?![./\\]\w)",
    ):
        message = re.sub(pattern, lambda found: "--" + found[1].replace("_", "-"), message)
    return message


def conclude(result: Any, command: str = "train", again: str = "") -> int:
    """Print the result of a run; return the exit code. `again` has the options to give once more."""
    from gyroscope.runs import run_dir

    where = f" -> {result.directory}" if result.directory else ""
    if result.status == run_dir.INTERRUPTED:
        because = f": {result.reason}" if result.reason else ""
        print(
            f"interrupted after step {result.step} of {result.config.steps}{because}. Continue with:\n"
            f"  gyroscope {command} --resume {result.directory}{again}"
        )
        return STOPPED if result.reason else 130
    if result.status == run_dir.DIVERGED:
        last = result.tables[run_dir.EVALUATIONS][-1]["step"]
        print(
            f"diverged after step {result.step} of {result.config.steps}: the parameters are no longer finite (lower "
            "--lr, set --clip, or choose a rule that withstands such rows: gyroscope list rules); "
            f"last evaluated at step {last}: {result.metric.summary(result.best, result.final)}{where}"
        )
        return DIVERGED
    print(f"{result.metric.summary(result.best, result.final)}{where}")
    return 0


@contextlib.contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C, so that a run stops after its round; a second one ends it."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("\nstopping after this round ...", file=sys.stderr, flush=True)

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
