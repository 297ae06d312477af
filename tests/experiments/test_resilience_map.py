"""The resilience map: what is in it, what is made of its runs, and that its words follow the numbers."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.pages import DOCS, update_resilience_map
from gyroscope import attacks, rules
from gyroscope._core.errors import RunDirectoryError
from gyroscope.cli import main
from gyroscope.experiments import estimate, grid, resilience_map, resilience_ranking
from gyroscope.experiments.resilience_ranking import Accuracy, ResilienceMap
from gyroscope.report import map_report
from gyroscope.runs import run_dir

Accuracies = Callable[[resilience_map.CellSetup, int], float]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of four rules and four attacks: the evaluation of a map does not depend on how many there are."""
    names = {"RULES": ("average", "krum", "median", "bulyan"), "ATTACKS": ("little", "empire", "nan", "zero")}
    for module, table in ((rules, "RULES"), (attacks, "ATTACKS")):
        monkeypatch.setattr(module, table, {name: getattr(module, table)[name] for name in names[table]})
    monkeypatch.setattr(resilience_map, "BEFORE", ())
    monkeypatch.setattr(resilience_map, "MORE", ())
    monkeypatch.setattr(resilience_map, "RULE_SETTINGS", {})
    monkeypatch.setattr(resilience_map, "ATTACK_SPECS", {})


# -- the recipe --------------------------------------------------------------------------------------------------------


def test_every_rule_meets_every_attack_with_both_placements_and_both_f() -> None:
    cells = {(entry.defence, entry.attack, entry.placement, entry.f) for entry in resilience_map.cells()}
    missing = {(defence, f) for defence, f, _ in resilience_map.infeasible()}
    for rule in rules.RULES:
        for attack in (*attacks.ATTACKS, "none"):
            if attack in resilience_map.ATTACK_SPECS:
                continue
            for placement in ("server", "workers"):
                for f in (3, 6):
                    assert ((rule, attack, placement, f) in cells) != ((rule, f) in missing)
    assert len(cells) == len(resilience_map.cells())


def test_what_is_infeasible_is_listed_with_the_reason_and_not_run() -> None:
    ((_, f, reason),) = (each for each in resilience_map.infeasible() if each[0] == "bulyan")
    assert f == 6 and "4f + 3 = 27" in reason
    assert {entry.f for entry in resilience_map.cells() if entry.defence == "bulyan"} == {3}


def test_a_new_rule_and_a_new_attack_are_in_it_by_being_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Other(rules.Median):
        name = "other"

    monkeypatch.setitem(rules.RULES, "other", Other)
    monkeypatch.setitem(attacks.ATTACKS, "again", attacks.Zero)
    assert (
        "other" in [defence.name for defence in resilience_map.defences()] and "again" in resilience_map.attack_specs()
    )


def test_rules_come_with_the_pre_aggregations_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PREAGGREGATIONS", {"nnm": object, "bucketing": object}, raising=False)
    monkeypatch.setitem(resilience_map.RULE_SETTINGS, "krum", {"rule": "krum:m=1", "l2": 0.5})
    monkeypatch.setattr(resilience_map, "MORE", ())
    found = {defence.name: defence for defence in resilience_map.defences()}
    assert list(found)[:3] == ["average", "nnm+average", "bucketing+average"]
    assert found["nnm+krum"] == resilience_map.DefenceVariant("nnm+krum", "nnm+krum:m=1", {"l2": 0.5})
    assert len(found) == 3 * len(rules.RULES)


def test_every_further_defence_exists_where_pre_aggregations_do() -> None:
    names = [defence.name for defence in resilience_map.defences()]
    assert len(set(names)) == len(names)
    assert set(resilience_map.MORE) < set(names) and all(rules.parse(spec) for spec in resilience_map.MORE), (
        "a name is misspelt"
    )


@dataclasses.dataclass(frozen=True)
class Trusting(rules.Median):
    def trusts(self, n: int) -> tuple[int, ...]:
        return (0,)


@pytest.mark.usefixtures("few")
def test_a_trusting_defence_is_ranked_and_marked_but_does_not_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rules.RULES, "median", Trusting)
    maps = map_report.MapPair(write(tmp_path, made_up(median_is_best)))
    assert maps.best.ranking(3)[0].defence == "median"
    text = map_report.verdicts(maps)
    assert text.count("**`krum` with momentum at the workers loses least") == 2
    assert "known to be honest, or samples at the server, `median` with momentum at the workers loses less: 5.0" in text
    assert "| 3 | `median` (trusts) | workers | 1 | 5.0 |" in update_resilience_map.best_table(maps)


def test_settings_of_a_rule_and_forms_of_an_attack_reach_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(resilience_map.RULE_SETTINGS, "krum", {"rule": "krum:m=1", "l2": 0.5})
    monkeypatch.setitem(resilience_map.ATTACK_SPECS, "little", ("little", "little:factor=3"))
    found = [entry for entry in resilience_map.cells() if entry.defence == "krum" and entry.attack == "little:factor=3"]
    assert [entry.f for entry in found] == [3, 3, 6, 6]
    assert {(entry.config.rule, entry.config.l2) for entry in found} == {("krum:m=1", 0.5)}


def test_cells_are_distinct_and_have_names_of_their_own() -> None:
    entries = [*resilience_map.cells(), *resilience_map.baselines()]
    assert len({entry.key for entry in entries}) == len({entry.setup.name for entry in entries}) == len(entries)


@pytest.mark.usefixtures("few")
def test_runs_begin_with_the_unattacked_averages_and_go_on_seed_by_seed() -> None:
    setups = resilience_map.setups([1, 2])
    assert len({grid.fingerprint(setup.config) for setup in setups}) == len(setups)
    first = setups[: 2 * len(resilience_map.BASELINE_SEEDS)]
    assert {(s.config.rule, s.config.attack, s.config.declared_byzantine) for s in first} == {("average", "none", None)}
    rest = [setup.config.seed for setup in setups[len(first) :]]
    assert rest == sorted(rest), "one seed of everything before the next"
    assert {7} < {setup.config.seed for setup in resilience_map.setups([7])[:12]}, "a baseline for every seed"


# -- the evaluation of its runs ----------------------------------------------------------------------------------------


def made_up(accuracy: Accuracies, seeds: tuple[int, ...] = (1,)) -> resilience_ranking.Runs:
    """Runs whose maximum accuracy is as given, and whose final accuracy is ten points lower."""
    runs = {
        entry.key: {seed: Accuracy(a := accuracy(entry, seed), a - 0.1) for seed in seeds}
        for entry in resilience_map.cells()
    }
    for entry in resilience_map.baselines():
        runs[entry.key] = {seed: Accuracy(0.9 + 0.01 * seed, 0.9) for seed in resilience_map.BASELINE_SEEDS}
    return runs


def median_is_best(entry: resilience_map.CellSetup, seed: int) -> float:
    if entry.attack == "none":
        return 0.2  # no part of the worst case
    if entry.defence == "median" and entry.placement == "workers":
        return 0.86 if entry.attack == "empire" else 0.9
    if entry.defence == "krum" and entry.placement == "workers":
        return 0.84 if entry.attack == "zero" else 0.91
    return 0.5


def write(folder: Path, runs: resilience_ranking.Runs) -> Path:
    """The same as run directories, as far as the map reads them."""
    for entry in [*resilience_map.baselines(), *resilience_map.cells()]:
        for seed, accuracy in runs[entry.key].items():
            setup = entry.setup.run(seed)
            path = folder / setup.name
            path.mkdir(parents=True)
            (path / run_dir.CONFIG).write_text(setup.config.resolve().to_toml())
            (path / run_dir.STATUS).write_text(
                f'{{"status": "complete", "max_accuracy": {accuracy.best}, "final_accuracy": {accuracy.final}}}'
            )
    return folder


@pytest.mark.usefixtures("few")
def test_the_first_defence_loses_least_in_the_worst_case() -> None:
    first, second, *others = ResilienceMap(made_up(median_is_best), "best").ranking(3)
    assert (first.defence, first.placement, first.worst.cell.attack) == ("median", "workers", "empire")
    assert first.worst.drop == pytest.approx(91 - 86)
    assert (second.defence, second.worst.cell.attack) == ("krum", "zero")
    assert second.worst.drop == pytest.approx(91 - 84)
    assert second.mean < first.mean, "the mean does not decide"
    assert [other.worst.drop for other in others] == pytest.approx([41] * len(others))


@pytest.mark.usefixtures("few")
def test_a_defence_that_lacks_a_run_is_not_ranked() -> None:
    runs = dict(made_up(median_is_best))
    (gone,) = (
        entry.key
        for entry in resilience_map.cells()
        if (entry.defence, entry.placement, entry.f, entry.attack) == ("median", "workers", 3, "nan")
    )
    del runs[gone]
    one = ResilienceMap(runs, "best")
    assert next((s.defence, s.placement) for s in one.ranking(3)) == ("krum", "workers")
    assert one.ranking(6)[0].defence == "median"


@pytest.mark.usefixtures("few")
def test_more_seeds_decide_among_the_first_and_fewer_seeds_are_no_advantage() -> None:
    """Krum is best by seed 1, then median, then bulyan; all but bulyan are tried again, and krum was lucky."""
    accuracies = {"krum": (0.9, 0.5), "median": (0.88, 0.8), "bulyan": (0.86, 0.1), "average": (0.2, 0.1)}

    def accuracy(entry: resilience_map.CellSetup, seed: int) -> float:
        return 0.1 if entry.placement == "server" or entry.f == 6 else accuracies[entry.defence][seed - 1]

    runs = {key: dict(seeds) for key, seeds in made_up(accuracy, seeds=(1, 2)).items()}
    assert [s.defence for s in ResilienceMap(runs, "best").ranking(3)][:3] == ["median", "krum", "bulyan"]
    for entry in resilience_map.cells():
        if entry.defence in ("bulyan", "average") or entry.placement == "server":
            del runs[entry.key][2]
    one = ResilienceMap(runs, "best")
    final = one.ranking(3)
    assert [(s.defence, len(s.seeds)) for s in final[:3]] == [("median", 2), ("krum", 2), ("bulyan", 1)]
    assert final[1].worst.drop > final[2].worst.drop, "bulyan looks better than krum, but was tried once only"
    assert one.noise(3).seeds == 2
    assert [s.defence for s in one.top(3, 2)] == ["median", "krum"]


@pytest.mark.usefixtures("few")
def test_drops_are_paired_by_seed_and_averaged() -> None:
    one = ResilienceMap(made_up(lambda entry, seed: 0.8 + 0.02 * seed, seeds=(1, 2, 9)), "best")
    cell = one.defences[0].cells["little"]
    assert cell.drops == pytest.approx({1: 91 - 82, 2: 92 - 84}), "there is no baseline for seed 9"
    assert cell.drop == pytest.approx(8.5)


@pytest.mark.usefixtures("few")
def test_noise_is_the_scatter_of_the_contenders_or_of_the_unattacked() -> None:
    several = ResilienceMap(made_up(lambda entry, seed: 0.8 if seed == 1 else 0.84, seeds=(1, 2)), "best").noise(3)
    # Drops of 11 and 8 points in every cell: a standard deviation of 3 / sqrt(2).
    assert several.of_attacked and several.seeds == 2
    assert several.deviation == pytest.approx(3 / math.sqrt(2))
    assert several.indistinct(2, 2) == pytest.approx(2 * 3 / math.sqrt(2))
    single = ResilienceMap(made_up(median_is_best), "best").noise(3)
    # Unattacked: 91 to 95 %, a standard deviation of sqrt(2.5); a drop is the difference of two runs.
    assert not single.of_attacked and single.deviation == pytest.approx(math.sqrt(2 * 2.5))


@pytest.mark.usefixtures("few")
def test_runs_are_read_back_and_a_diverged_one_has_nothing_at_the_end(tmp_path: Path) -> None:
    write(tmp_path, made_up(median_is_best))
    entry = next(entry for entry in resilience_map.cells() if entry.attack == "nan")
    status = tmp_path / entry.setup.run(1).name / run_dir.STATUS
    status.write_text('{"status": "diverged", "max_accuracy": 0.3, "final_accuracy": 0.3}')
    unfinished = tmp_path / resilience_map.cells()[5].setup.run(1).name / run_dir.STATUS
    unfinished.write_text('{"status": "running", "step": 3}')
    runs = resilience_ranking.read(tmp_path)
    assert runs[entry.key] == {1: Accuracy(0.3, 0.0)}
    assert resilience_map.cells()[5].key not in runs
    assert len(runs) == len(resilience_map.cells()) + 2 - 1
    with pytest.raises(RunDirectoryError, match="gyroscope sweep map"):
        resilience_ranking.read(tmp_path / "nowhere")


# -- in words, tables and pictures -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
def test_the_verdict_names_winner_runner_up_and_figures(tmp_path: Path) -> None:
    text = map_report.verdicts(map_report.MapPair(write(tmp_path, made_up(median_is_best))))
    three, six = text.split("\n\n")
    assert three.startswith("**f = 3 of 15:**") and six.startswith("**f = 6 of 15:**")
    attacks_there = len(resilience_map.attack_specs())
    assert (
        f"`median` with momentum at the workers loses least in the worst case over all {attacks_there} attacks: "
        "5.0 points of maximum accuracy, to `empire`" in three
    )
    assert "runner-up, `krum` with momentum at the workers, loses 7.0 points, to `zero`" in three
    assert "Without a defence the worst attack costs 41.0 points" in three
    assert "one seed per cell" in three and "by 2.2 points" in three and "1 other defence is too near" in three
    assert "By final instead of maximum accuracy it, too, loses least: 14.0 points" in three


@pytest.mark.usefixtures("few")
def test_the_verdict_follows_the_numbers(tmp_path: Path) -> None:
    def krum_is_best(entry: resilience_map.CellSetup, seed: int) -> float:
        return 0.9 if (entry.defence, entry.placement) == ("krum", "server") else 0.4

    text = map_report.verdicts(map_report.MapPair(write(tmp_path, made_up(krum_is_best, seeds=(1, 2)))))
    assert text.count("**`krum` with momentum at the server loses least") == 2
    assert "2 seeds per cell of the best" in text and "No other defence is that near" in text


@pytest.mark.usefixtures("few")
def test_the_best_table_says_what_it_is_sorted_by_and_how_many_seeds_each_has(tmp_path: Path) -> None:
    runs = {key: dict(seeds) for key, seeds in made_up(median_is_best, seeds=(1, 2)).items()}
    once = write(tmp_path / "once", made_up(median_is_best))
    assert update_resilience_map.best_table(map_report.MapPair(once)).startswith(
        "Sorted by f, then by the worst case.\n\n| f |"
    )
    for entry in resilience_map.cells():
        if (entry.defence, entry.placement) != ("median", "workers"):
            del runs[entry.key][2]
    table = update_resilience_map.best_table(map_report.MapPair(write(tmp_path / "twice", runs)))
    assert table.startswith("Sorted by f; then the finalists, who ran with more seeds,")
    assert "| 3 | `median` | workers | 2 | 5.5 |" in table and "| 3 | `krum` | workers | 1 | 7.0 |" in table


@pytest.mark.usefixtures("few")
def test_a_part_of_the_map_is_judged_as_a_part(tmp_path: Path) -> None:
    """One defence alone, then without what it is compared with, then with one seed of everything."""

    def part(name: str, keep: Callable[[resilience_map.CellSetup, int], bool]) -> map_report.MapPair:
        runs = made_up(median_is_best)
        entries = [*resilience_map.baselines(), *resilience_map.cells()]
        kept = {e.key: {s: a for s, a in runs[e.key].items() if keep(e, s)} for e in entries}
        return map_report.MapPair(write(tmp_path / name, kept))

    def of_median(entry: resilience_map.CellSetup, seed: int) -> bool:
        return (entry.defence, entry.placement) == ("median", "workers") or entry.f == 0

    alone = map_report.verdicts(part("alone", of_median))
    assert "`median` with momentum at the workers loses least" in alone
    assert "nothing to compare it with. (Of 8 defences and placements 1 are measured.)" in alone
    assert "runner-up" not in alone and "that near" not in alone
    without = part("without", lambda entry, seed: entry.f != 0)
    assert map_report.verdicts(without).count("not measured: the unattacked averages to compare with are missing") == 2
    assert not without.measured
    one_attack = part("one attack", lambda entry, seed: entry.f == 0 or entry.attack == "zero")
    assert map_report.verdicts(one_attack).count("not measured: no defence has met every attack") == 2
    assert one_attack.measured
    one_seed = map_report.verdicts(part("one seed", lambda entry, seed: seed == 1))
    assert one_seed.count("how far drops scatter from seed to seed is not known") == 2
    assert "0.0 points" not in one_seed and "nan" not in one_seed and "that near" not in one_seed


@pytest.mark.usefixtures("few")
def test_without_runs_nothing_is_claimed(tmp_path: Path) -> None:
    maps = map_report.MapPair(tmp_path)
    assert map_report.verdicts(maps).count("not measured") == 2
    assert "cells (marked ?) are not measured yet" in update_resilience_map.size(maps)


@pytest.mark.usefixtures("few")
def test_the_csv_file_has_every_drop(tmp_path: Path) -> None:
    maps = map_report.MapPair(write(tmp_path / "runs", made_up(median_is_best)))
    with map_report.write_csv(maps, tmp_path / "new" / "zoo.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * len(maps.best.defences)
    (line,) = (
        line
        for line in lines
        if [line[key] for key in ("measure", "f", "momentum", "defence")] == ["maximum", "6", "workers", "median"]
    )
    assert (line["worst"], line["worst_attack"], line["empire"], line["none"]) == ("5.00", "empire", "5.00", "71.00")


@pytest.mark.usefixtures("few")
def test_the_page_is_written_from_a_folder_of_runs(tmp_path: Path) -> None:
    shutil.copy(DOCS / "zoo.md", tmp_path / "zoo.md")
    update_resilience_map.main(write(tmp_path / "runs", made_up(median_is_best)), tmp_path)
    page = (tmp_path / "zoo.md").read_text(encoding="utf-8")
    assert "<!-- verdicts begin -->\n**f = 3 of 15:** **`median` with momentum" in page
    for picture in ("zoo-f_3-server", "zoo-f_3-workers", "zoo-f_6-server", "zoo-f_6-workers"):
        assert f"(zoo/{picture}.png)" in page
        assert (tmp_path / "zoo" / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    assert "| `median` | 5.0 | 71 |" in page and "- f = 6: `bulyan`. Bulyan needs" in page


@pytest.mark.parametrize(
    ("drop", "text"), [(0.04, "0.0"), (-0.04, "0.0"), (-1.26, "-1.3"), (9.94, "9.9"), (47.2, "47")]
)
def test_figures_are_short(drop: float, text: str) -> None:
    assert map_report.short(drop) == text


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
def test_a_part_of_the_map_is_run_once_and_has_two_names(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setitem(resilience_map.BASE, "steps", 4)
    command = ["sweep", "map", "--out", str(tmp_path), "--only", "median-zero-f_3-*", "--seeds", "1", "--jobs", "1",
               "--quiet"]  # fmt: skip
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "2 of 2 runs are complete" in said and "not measured" in said
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob(f"*/{run_dir.STATUS}")}
    assert len(written) == 2
    assert main(["sweep", "zoo", *command[2:]]) == 0, "resumable: nothing is left to do"
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_a_dry_run_lists_what_is_infeasible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "map", "--out", str(tmp_path / "out"), "--only", "krum-nan-f_6-at_w", "--dry-run"]
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    defences, attacks_there = len(resilience_map.defences()), len(resilience_map.attack_specs())
    assert f"the resilience map: {defences} defences, {attacks_there} attacks and none" in said
    assert re.search(r"not feasible for f = 6 \(\d+\): .*\bbulyan, nnm\+bulyan,", said)
    assert "not feasible for f = 3 and 6 (5): bucketing+krum, bucketing+bulyan, bucketing+monna," in said
    assert "run krum-nan-f_6-at_worker-seed_1" in said
    assert main([*command, "--list", "--quiet"]) == 0
    assert "infeasible  bulyan, f = 6: Bulyan needs" in capsys.readouterr().out


@pytest.mark.usefixtures("few")
def test_a_dry_run_of_many_shows_the_values_of_each_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def estimated(jobs: object, processes: int, advance: Callable[[str, int, int], None]) -> estimate.Estimate:
        advance("timing krum", 0, 7)
        advance("timing median", 1, 7)
        return estimate.Estimate(1.0, 1.0, 7)

    monkeypatch.setattr(estimate, "estimate", estimated)
    command = ["sweep", "map", "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "run   " not in shown.out and "(--list names every run)" in shown.out
    assert "rule, 4 values: average (30), krum (20), median (20), bulyan (10)" in " ".join(shown.out.split())
    assert "seed, 5 values: 1 (72), 2 (2), 3 (2), 4 (2), 5 (2)" in " ".join(shown.out.split())
    assert "momentum, 2 values: server (40), workers (40)" in shown.out
    assert "0 of 80 runs are complete, 80 are left" in shown.out
    assert max(map(len, shown.out.splitlines())) <= shutil.get_terminal_size().columns
    assert shown.err == "timing 7 kinds of run ...\n"
    assert main([*command, "--list"]) == 0
    assert capsys.readouterr().out.count("\nrun   ") == 80


@pytest.mark.usefixtures("few")
def test_only_a_dry_run_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "map", "--out", str(tmp_path / "out"), "--list"]) == 2
    assert "add --dry-run" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.usefixtures("few")
def test_the_best_are_chosen_by_the_runs_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "map", "--out", str(tmp_path), "--best", "1", "--seeds", "1-2", "--dry-run"]
    assert main(command) == 2
    assert "no defence has all its runs" in capsys.readouterr().err
    write(tmp_path, made_up(median_is_best))
    assert main(command) == 0
    planned = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run ")]
    attacked = len(resilience_map.attack_specs()) + 1
    assert len(planned) == 2 * attacked, "each cell of the best one for both f, with the seed that it lacks"
    assert all("median-" in line and "at_worker-seed_2" in line for line in planned)


def test_seeds_of_a_file_stand_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "grid.toml").write_text("[grid]\nseed = [1]\n")
    assert main(["sweep", str(tmp_path / "grid.toml"), "--seeds", "1-2"]) == 2
    assert "--seeds and --best are for recipes" in capsys.readouterr().err
