"""`gyroscope redteam`: search for the attack that costs a defence most."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import GyroscopeError
from gyroscope.cli import running
from gyroscope.runs import command_options

if TYPE_CHECKING:
    from gyroscope.experiments.red_team import AttackResult

_CHOSEN_HERE = ("attack", "seed", "measure_every", "checkpoint_every", "device", "threads")
_SHOWN = 8

_EXAMPLES = """\
examples:
  the rule that you want to deploy, on data like yours:
    gyroscope redteam --rule krum --task mnist --workers 51 --byzantine 12

  the defence that lost least to the attack searched so far, at twice the default budget:
    gyroscope redteam --defence best --task mnist --workers 51 --byzantine 12 --budget 80

  a rule and an attack of your own, from a module in this folder:
    gyroscope redteam --rule my_module:MyRule --byzantine 3 --try my_module:MyAttack:strength=2

what happens: scout tries attacks in a quarter of the rounds, the most promising first: all of some 40 with the default
budget of 40 runs, 8 with --budget 5. Search runs the worst in full, refine runs variants and combinations of these,
confirm runs the worst of all with fresh seeds. A search can be interrupted at any time; the same command goes on. It
ends with the worst attack as a command that reproduces it, redteam.csv and redteam.html.

a search that finds nothing proves nothing: the next attack may be one that nobody has tried.
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "redteam",
        help="search for the attack that costs a defence most",
        description="Search, within a budget of runs, for the attack that costs a rule, a pre-aggregation or a whole "
        "defence most accuracy, or whatever the task's metric is. Costs are points lost against the unattacked "
        "average: those that the defence loses without an attack, and those that the attack takes from it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        options=_add_options,
    )
    command.set_defaults(run=_redteam, reword=command_options.in_options)


def _add_options(command: command_options.CommandParser) -> None:
    search = command.add_argument_group("how to search")
    search.add_argument("--budget", type=float, metavar="RUNS",
                        help="how many full-length runs it may take (default: 40)")  # fmt: skip
    search.add_argument("--goal", choices=["max", "final"],
                        help="what to spoil: the best accuracy of a run, or the final one (default: max)")  # fmt: skip
    search.add_argument("--try", dest="extra", action="append", metavar="ATTACK",
                        help="an attack to try besides those of the table; may be repeated")  # fmt: skip
    search.add_argument("--seeds", type=int, metavar="K", help="fresh seeds that confirm the worst (default: 3)")
    search.add_argument("--out", metavar="DIR", help="folder of the search (default: runs/redteam_ and the defence)")
    search.add_argument("--jobs", type=int, metavar="N", help="processes at a time (default: one per core)")
    search.add_argument("--quiet", action="store_true", help="no progress")
    command_options.add_configuration(command, without=_CHOSEN_HERE)


def _redteam(options: argparse.Namespace) -> int:
    from gyroscope.experiments.grid import rule_label
    from gyroscope.experiments.red_team import RedTeam
    from gyroscope.report import red_team_report
    from gyroscope.runs.defences import defence

    config, _, _ = command_options.configuration(argparse.Namespace(**{**vars(options), "out": "unused"}))
    named = defence(options.defence) if hasattr(options, "defence") else {}
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    label = f"redteam-{config.task}-{config.rule}-f_{config.byzantine}-{config.momentum}"
    out = Path(getattr(options, "out", None) or Path("runs") / rule_label(label))
    given = {name: getattr(options, name) for name in ("budget", "goal", "seeds") if hasattr(options, name)}
    team = RedTeam(
        config, out, dataclasses.replace(config, **{name: defaults[name] for name in named}),
        extra=tuple(getattr(options, "extra", ())), **given,
    )  # fmt: skip
    how = argparse.Namespace(
        out=out, jobs=getattr(options, "jobs", None), devices=None, data_dir=config.data_dir, dry_run=False, list=False,
        quiet=hasattr(options, "quiet"),
    )  # fmt: skip
    ranking: list[AttackResult] = []
    for stage in team.stages():
        print(f"{stage.name}: {len(stage.setups)} runs")
        if not stage.setups:
            continue
        if running.run(stage.setups, how) == 130:
            return 130
        ranking = team.ranking(stage)
        if not ranking:
            raise GyroscopeError(
                f"no attack could be judged: of the runs of the stage {stage.name!r} too few are complete. What to do: "
                "mend what is reported above, and give the same command again"
            )
        _print_table(f"{stage.name}: the worst of {len(ranking)} attacks", ranking[:_SHOWN])
    worst = ranking[0]
    page = red_team_report.write(team, ranking)
    seeds = "1 seed" if len(worst.seeds) == 1 else f"mean of {len(worst.seeds)} seeds"
    print(
        f"worst: {worst.attack} costs {worst.metric.number(worst.cost)} {worst.metric.points} of "
        f"{'best' if team.goal == 'max' else 'final'} {worst.metric.words}, {seeds}"
    )
    if worst.defence_cost is not None and worst.attack_cost is not None:
        print(
            f"of these, lost to the defence itself: {worst.metric.number(worst.defence_cost)}; "
            f"lost to the attack: {worst.metric.number(worst.attack_cost)}"
        )
    print(f"again: {team.command(worst)}")
    print(f"table and page: {page.with_suffix('.csv')}, {page}")
    return 0


def _print_table(title: str, ranking: Sequence[AttackResult]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Without lines between the columns most attacks' names fit 80 columns.
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("attack", overflow="fold", min_width=22)
    metric = ranking[0].metric
    # Two lines, so that the table fits 80 columns.
    headings = (f"{metric.points}\nlost", "to the\ndefence", "to the\nattack", f"best{metric.unit}".replace(" ", "\n"),
                f"final{metric.unit}".replace(" ", "\n"), "liars'\nweight")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in ranking:
        share = "-" if result.share is None else f"{result.share:.0%}"
        values = (result.cost, result.defence_cost, result.attack_cost, result.best, result.final)
        numbers = ("-" if value is None else metric.number(value) for value in values)
        table.add_row(result.attack, *numbers, share)
    Console(highlight=False).print(table)
