"""Report on a search of the red team: a table, and a page that shows accuracy and weights under the worst attacks."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path

from gyroscope._core.files import write_atomically
from gyroscope.experiments.red_team import AttackResult, RedTeam
from gyroscope.report.figures import Curve, draw, new_figure
from gyroscope.report.text_tables import write_csv
from gyroscope.simulation.task_metric import ACCURACY

WORST = 5
"""How many attacks the page shows."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .2rem .8rem; border-bottom: 1px solid #ccc; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; font-family: monospace; overflow-wrap: anywhere; }}
pre {{ background: #f4f4f4; padding: .8rem; overflow-x: auto; }}
</style></head><body>
<h1>{title}</h1>
<p>{text}</p>
{figure}
<div class="wide"><table>
<tr><th>attack</th><th>{points} lost</th><th>to the defence itself</th><th>to the attack</th>
<th>{extreme}{unit}</th><th>final{unit}</th><th>liars' weight</th>
<th>seeds</th></tr>
{rows}</table></div>
<p>This command runs the worst attack again:</p><pre>{command}</pre>
</body></html>
"""


def write(team: RedTeam, ranking: Sequence[AttackResult]) -> Path:
    """Write redteam.csv and redteam.html into the search's folder; return the path of the page."""
    metric = ranking[0].metric
    header = ["attack", "cost_points", "max_accuracy_percent", "final_accuracy_percent", "byzantine_share", "seeds"]
    if metric != ACCURACY:
        header = ["attack", "cost", f"best_{metric.name}", f"final_{metric.name}", "byzantine_share", "seeds"]
    header += [f"{whose}_{header[1]}" for whose in ("defence", "attack")]
    values = [
        [
            result.attack,
            *(_number(result, value) for value in (result.cost, result.best, result.final)),
            "" if result.share is None else f"{result.share:.4f}",
            " ".join(map(str, result.seeds)),
            *(_number(result, value) for value in (result.defence_cost, result.attack_cost)),
        ]
        for result in ranking
    ]
    write_csv(team.out / "redteam.csv", [header, *values])
    path = team.out / "redteam.html"
    write_atomically(path, _page(team, ranking).encode())
    return path


def _number(result: AttackResult, value: float | None) -> str:
    return "" if value is None else f"{value:.{2 if result.metric.percent else 4}f}"


def _page(team: RedTeam, ranking: Sequence[AttackResult]) -> str:
    config, metric = team.defence.resolve(), ranking[0].metric
    goal = "best" if team.goal == "max" else "final"
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in (
            result.attack,
            *(_number(result, value) for value in (result.cost, result.defence_cost, result.attack_cost)),
            *(_number(result, value) for value in (result.best, result.final)),
            "-" if result.share is None else f"{result.share:.0%}", str(len(result.seeds))
        )) + "</tr>\n"
        for result in ranking
    )  # fmt: skip
    return _PAGE.format(
        title=html.escape(f"Red team against {config.rule}, {config.byzantine} of {config.workers} workers Byzantine"),
        text=html.escape(
            f"Task {config.task}, momentum at the {config.momentum} (mu {config.mu:g}, learning rate {config.lr}), "
            f"{config.steps} rounds; a budget of {team.budget:g} runs. What is lost is {goal} {metric.words} "
            "against the unattacked average, with seeds that had no part in the search: what the defence loses without "
            "an attack, and what the attack takes from it besides. What was not tried may cost more."
        ),
        figure=_figure(ranking[:WORST]),
        rows=rows,
        points=metric.points,
        extreme=metric.extreme,
        unit=" (%)" * metric.percent,
        command=html.escape(team.command(ranking[0])),
    )


def _figure(worst: Sequence[AttackResult]) -> str:
    """Return the curves as SVG: the metric on the left, the Byzantine workers' share of the weight on the right."""
    weighted = [result for result in worst if result.share is not None]
    figure, grid = new_figure(1, 2 if weighted else 1, share=False)
    metric = worst[0].metric
    draw(
        grid[0][0],
        [Curve(r.attack, [run.evaluations for run in r.runs], metric.name, metric.scale) for r in worst],
    )
    grid[0][0].set_ylabel(metric.axis)
    if metric.percent:
        grid[0][0].set_ylim(0, 100)
    grid[0][0].legend(loc="lower right", fontsize="x-small")
    if weighted:
        draw(grid[0][1], [Curve(r.attack, [run.metrics for run in r.runs], "byzantine_share", 100.0) for r in weighted])
        grid[0][1].set_ylabel("weight that the Byzantine workers got (%)")
        grid[0][1].set_ylim(0, 100)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
