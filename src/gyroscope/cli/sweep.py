"""`gyroscope sweep`: a grid of one's own, or a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import ConfigError
from gyroscope.cli import running

if TYPE_CHECKING:
    from gyroscope.experiments.grid import Setup
    from gyroscope.experiments.zoo import Entry

_EXAMPLES = """\
a grid is a TOML file; keys are those of a run's configuration (gyroscope train --help), values may be lists:
  [base]
  task = "digits"
  momentum = ["server", "workers"]
  seed = "1-3"

  [[grid]]
  rule = ["krum", "median", "bulyan"]
  attack = "little"
  byzantine = 5

  [[grid]]                # the unattacked baseline, against which a report states what an attack cost
  rule = "average"

then:
  gyroscope sweep grid.toml --out runs/mine
  gyroscope report runs/mine

the recipe zoo needs no file: every rule (bare, after nnm, after bucketing) against every attack, momentum at the server
and at the workers, f = 3 and f = 6 of 15 workers, on digits; then the map of what each combination loses:
  gyroscope sweep zoo --dry-run
  gyroscope sweep zoo
  gyroscope sweep zoo --best 10 --seeds 1-3       # then more seeds for those that matter

names say what runs: nnm_median-min_max-f_3-at_worker-seed_1 is the rule nnm+median against the attack min-max, f = 3,
and momentum at the workers (at_update: at the server); average-none-f_0 are the unattacked runs that the map compares
with. Those of a file are made of its keys: rule_krum-momentum_server-seed_1. --only takes a part of a name, or a
pattern for the whole of it, and may be repeated:
  gyroscope sweep zoo --only nnm_median           # or nnm+median
  gyroscope sweep zoo --only 'krum-*-f_6-*' --only average-none-f_0
"""
_RECIPES = ("zoo",)


def add(commands: Any) -> None:
    command = commands.add_parser(
        "sweep",
        help="run a grid of your own, or the map of all rules and attacks",
        description="Every combination of the values in a TOML file, on all cores, resumable at any point.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("grid", metavar="GRID", help=f"a TOML file, or a recipe: {', '.join(_RECIPES)}")
    command.add_argument("--seeds", metavar="LIST", help="of a recipe, as in 1-3 or 1,2,7 (default: the recipe's)")
    command.add_argument("--only", action="append", default=[], metavar="PATTERN",
                         help="only runs whose name holds this, or fits it if it has a * (see below)")  # fmt: skip
    command.add_argument("--best", type=int, metavar="K",
                         help="of zoo: only the K best defences for each f, by the runs that are in --out; with "
                         "--seeds a final among them")  # fmt: skip
    running.add_options(command, None)
    command.add_argument("--executor", choices=["local", "slurm", "submitit-local"], default="local",
                         help="local: processes here; slurm: one job per run on a cluster, through submitit; "
                         "submitit-local: the same machinery on this machine (default: %(default)s)")  # fmt: skip
    command.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE",
                         help="a parameter for submitit's executor, e.g. timeout_min=60")  # fmt: skip
    command.set_defaults(run=_sweep)


def _sweep(options: argparse.Namespace) -> int:
    from gyroscope.experiments import grid

    options.out = options.out or str(Path("runs") / Path(options.grid).stem)
    recipe = options.grid in _RECIPES
    setups = grid.only(_zoo(options) if recipe else _grid(options), options.only)
    if options.executor != "local" and not options.dry_run:
        return running.submit(setups, options)
    code = running.run(setups, options)
    if code == 0 and not options.dry_run:
        if recipe:
            _write_map(Path(options.out))
        else:
            print(f"look at it with: gyroscope report {options.out}")
    return code


def _grid(options: argparse.Namespace) -> list[Setup]:
    from gyroscope.experiments import grid

    if options.seeds is not None or options.best is not None:
        raise ConfigError(
            f'--seeds and --best are for recipes: write the seeds into {options.grid}, as in seed = "1-3"'
        )
    return grid.read(options.grid)


def _zoo(options: argparse.Namespace) -> list[Setup]:
    from gyroscope.experiments import grid, zoo

    running.print_wrapped([zoo.described()])
    if options.dry_run and options.list:
        for entry in zoo.infeasible():
            print(f"infeasible  {entry.defence}, f = {entry.f}: {entry.reason}")
    elif options.dry_run:
        running.print_wrapped([*zoo.missing(), "(--list tells why)"])
    seeds = grid.parse_seeds(options.seeds) if options.seeds else zoo.SEEDS
    return zoo.setups(seeds, None if options.best is None else _best(options))


def _best(options: argparse.Namespace) -> list[Entry]:
    from gyroscope.experiments import resilience, zoo

    if options.best < 1:
        raise ConfigError(f"--best must be at least 1, got {options.best}")
    known = resilience.Map(resilience.read(options.out), resilience.best)
    best = [standing for f in zoo.BYZANTINE for standing in known.best(f, options.best)]
    if not best:
        raise ConfigError(
            f"no defence has all its runs in {options.out}: run gyroscope sweep zoo first, without --best"
        )
    return [cell.entry for standing in best for cell in standing.cells.values()]


def _write_map(out: Path) -> None:
    from gyroscope.report import zoo

    maps, folder = zoo.Maps(out), out / "report"
    print(zoo.verdicts(maps))
    if not maps.anything:
        return
    zoo.draw(maps, folder)
    zoo.write_csv(maps, folder / "zoo.csv")
    print(f"heat-maps and zoo.csv: {folder}")
