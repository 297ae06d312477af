"""`gyroscope sweep`: a user's grid, or the resilience map."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import ConfigError
from gyroscope.cli import running

if TYPE_CHECKING:
    from gyroscope.experiments.grid import Setup
    from gyroscope.experiments.resilience_map import CellSetup

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

the recipe map needs no file: every rule (bare, after nnm, after bucketing) against every attack in its default form,
momentum at the server and at the workers, f = 3 and f = 6 of 15 workers, on digits; then the resilience map of what
each combination loses to these attacks:
  gyroscope sweep map --dry-run
  gyroscope sweep map
  gyroscope sweep map --best 10 --seeds 1-3       # then more seeds for those that matter

names say what runs: nnm_median-min_max-f_3-at_worker-seed_1 is the rule nnm+median against the attack min-max, f = 3,
and momentum at the workers (at_update: at the server); average-none-f_0 are the unattacked runs that the map compares
with. Those of a file are made of its keys: rule_krum-momentum_server-seed_1. --only takes a part of a name, or a
pattern for the whole of it, and may be repeated:
  gyroscope sweep map --only nnm_median           # or nnm+median
  gyroscope sweep map --only 'krum-*-f_6-*' --only average-none-f_0
"""
_MAP = ("map", "zoo")
"""The names of the recipe; the second is the one of version 0.1."""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "sweep",
        help="run a grid of your own, or the map of all rules and attacks",
        description="Every combination of the values in a TOML file, on all cores, resumable at any point.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("grid", metavar="GRID", help=f"a TOML file, or a recipe: {_MAP[0]} (also called {_MAP[1]})")
    command.add_argument("--seeds", metavar="LIST", help="of a recipe, as in 1-3 or 1,2,7 (default: the recipe's)")
    command.add_argument("--best", type=int, metavar="K",
                         help="of the map: only the K best defences for each f, by the runs that are in --out; with "
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
    recipe = options.grid in _MAP
    if not recipe and (options.seeds is not None or options.best is not None):
        raise ConfigError(
            f'--seeds and --best are for recipes: write the seeds into {options.grid}, as in seed = "1-3"'
        )
    setups = grid.only(_map_setups(options) if recipe else grid.read(options.grid), options.only)
    if options.executor != "local" and not options.dry_run:
        return running.submit(setups, options)
    code = running.run(setups, options)
    if code == 0 and not options.dry_run:
        if recipe:
            _write_map(Path(options.out))
        else:
            print(f"look at it with: gyroscope report {options.out}")
    return code


def _map_setups(options: argparse.Namespace) -> list[Setup]:
    from gyroscope.experiments import grid, resilience_map

    running.print_wrapped([resilience_map.description()])
    if options.dry_run and options.list:
        for defence, f, reason in resilience_map.infeasible():
            print(f"infeasible  {defence}, f = {f}: {reason}")
    elif options.dry_run:
        running.print_wrapped([*resilience_map.infeasible_summary(), "(--list shows why)"])
    seeds = grid.parse_seeds(options.seeds) if options.seeds else resilience_map.SEEDS
    return resilience_map.setups(seeds, None if options.best is None else _best_cells(options))


def _best_cells(options: argparse.Namespace) -> list[CellSetup]:
    from gyroscope.experiments import resilience_map, resilience_ranking

    if options.best < 1:
        raise ConfigError(f"--best must be at least 1, got {options.best}")
    known = resilience_ranking.ResilienceMap(resilience_ranking.read(options.out), "best")
    best = [result for f in resilience_map.BYZANTINE for result in known.top(f, options.best)]
    if not best:
        raise ConfigError(
            f"no defence has all its runs in {options.out}: run gyroscope sweep map first, without --best"
        )
    return [cell.cell for result in best for cell in result.cells.values()]


def _write_map(out: Path) -> None:
    from gyroscope.report import map_report

    maps, folder = map_report.MapPair(out), out / "report"
    print(map_report.verdicts(maps))
    if maps.measured:
        map_report.draw(maps, folder)
        map_report.write_csv(maps, folder / "zoo.csv")
        print(f"heat-maps and zoo.csv: {folder}")
