"""Claims on accuracy with MNIST: figures 2 and 6 to 9, and the text on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from gyroscope.experiments.claims.base import (
    USELESS,
    Claim,
    Finding,
    Lab,
    MissingRunsError,
    labelled,
    mean,
    pairs,
    percents,
    spread,
)
from gyroscope.experiments.results import RunResult

RATES = (0.5, 0.02)
PLACES = ("server", "workers")
TANGIBLE = 2.0
"""Points below which a loss is called not tangible."""
RESCORING = "bulyan:rescore=true"


def _server_drop(rule: str) -> Claim:
    def check(lab: Lab) -> Finding:
        drops = lab.drops("mnist", "little", rule, 12, 0.5, "server")
        return Finding(f"{spread(drops)} points", 10 <= mean(drops) <= 20)

    return Claim(
        f"mnist-little-quarter-server-{_short(rule)}", "Figure 2, caption",
        f"With momentum at the server {_spoken(rule)} loses about 15 points (MNIST, little, f = 12, rate 0.5)",
        "loss of maximum accuracy against the unattacked average", "15 points", "10 to 20 points", check,
    )  # fmt: skip


def _bulyan_drop(rule: str) -> Claim:
    def check(lab: Lab) -> Finding:
        drops = lab.drops("mnist", "little", rule, 12, 0.5, "workers")
        return Finding(f"{spread(drops)} points", mean(drops) <= TANGIBLE)

    return Claim(
        f"mnist-little-quarter-workers-{_short(rule)}", "Figure 2, caption",
        f"With momentum at the workers {_spoken(rule)} loses only 1 point (MNIST, little, f = 12, rate 0.5)",
        "loss of maximum accuracy against the unattacked average", "1 point", "at most 2 points", check,
    )  # fmt: skip


def _reduction(rule: str) -> Claim:
    def check(lab: Lab) -> Finding:
        server = mean(lab.drops("mnist", "little", rule, 12, 0.5, "server"))
        workers = mean(lab.drops("mnist", "little", rule, 12, 0.5, "workers"))
        factor = server / workers if workers > 0 else math.inf
        return Finding(f"x{factor:.1f} ({server:.1f} to {workers:.1f} points)", factor >= 5.5)

    return Claim(
        f"reduction-{_short(rule)}", "Section 1",
        f"Momentum at the workers reduces the loss by a factor of 11 ({_spoken(rule)}, MNIST, little, f = 12)",
        "loss with momentum at the server / at the workers", "x11", "at least half of it, x5.5", check,
    )  # fmt: skip


def _bulyan_best(rule: str) -> Claim:
    def check(lab: Lab) -> Finding:
        values = {
            f"{name}@{lr:g}": percents(lab.get("mnist", "little", name, 12, lr, "workers"))
            for lr in RATES
            for name in (rule, "krum", "median")
        }
        better = all(
            mean(values[f"{rule}@{lr:g}"]) > mean(values[f"{other}@{lr:g}"])
            for lr in RATES
            for other in ("krum", "median")
        )
        return Finding(labelled(values), better)

    return Claim(
        f"mnist-little-quarter-best-{_short(rule)}", "Figure 7, caption",
        f"With momentum at the workers {_spoken(rule)} is more resilient than Krum and Median (MNIST, little, f = 12)",
        "maximum accuracy at both learning rates", "better", "higher mean than both, at both rates", check,
    )  # fmt: skip


def _bulyan_untouched(rule: str) -> Claim:
    def check(lab: Lab) -> Finding:
        drops = {f"rate {lr:g}:": lab.drops("mnist", "little", rule, 12, lr, "workers") for lr in RATES}
        return Finding(f"{labelled(drops)} points", all(mean(drop) <= TANGIBLE for drop in drops.values()))

    return Claim(
        f"mnist-little-quarter-untouched-{_short(rule)}", "Figure 7, caption",
        f"There the attack has no tangible effect on {_spoken(rule)} any more",
        "loss of maximum accuracy at both learning rates", "none", "at most 2 points at both", check,
    )  # fmt: skip


def _same_as_parts(lab: Lab) -> Finding:
    values = {
        rule: percents(lab.get("mnist", "little", rule, 12, 0.5, "server")) for rule in ("bulyan", "krum", "median")
    }
    means = [mean(value) for value in values.values()]
    return Finding(labelled(values), max(means) - min(means) <= 5)


def _half_like_quarter(lab: Lab) -> Finding:
    drops = {
        f"{rule} f={f}": lab.drops("mnist", "little", rule, f, 0.5, "server")
        for rule in ("krum", "median")
        for f in (24, 12)
    }
    alike = all(abs(mean(drops[f"{rule} f=24"]) - mean(drops[f"{rule} f=12"])) <= 5 for rule in ("krum", "median"))
    return Finding(f"{labelled(drops)} points", alike)


def _rate_effect(lab: Lab, attack: str) -> dict[str, Sequence[float]]:
    return {
        f"{rule} {place} {lr:g}": lab.drops("mnist", attack, rule, 24, lr, place)
        for rule, place, lr in itertools.product(("krum", "median"), PLACES, RATES)
    }


def _lower_rate_helps(lab: Lab) -> Finding:
    drops = _rate_effect(lab, "little")
    return Finding(f"{labelled(drops)} points", all(gain > 0 for gain in _gains(drops)))


def _lower_rate_does_not_help(lab: Lab) -> Finding:
    drops = _rate_effect(lab, "empire")
    return Finding(f"{labelled(drops)} points", not all(gain > 0 for gain in _gains(drops)))


def _gains(drops: Mapping[str, Sequence[float]]) -> list[float]:
    """How many points less are lost at the smaller rate."""
    return [
        mean(drops[f"{rule} {place} 0.5"]) - mean(drops[f"{rule} {place} 0.02"])
        for rule, place in itertools.product(("krum", "median"), PLACES)
    ]


def _workers_add_five(lab: Lab) -> Finding:
    gains = {}
    for rule, lr in itertools.product(("krum", "median"), RATES):
        server, workers = (lab.get("mnist", "little", rule, 24, lr, place) for place in PLACES)
        gains[f"{rule} {lr:g}"] = lab.differences(server, workers, final=True)
    means = [mean(gain) for gain in gains.values()]
    return Finding(f"{labelled(gains)} points", min(means) > 0 and 2.5 <= mean(means) <= 10)


def _krum_useless(lab: Lab) -> Finding:
    setups = {lr: lab.get("mnist", "empire", "krum", 24, lr, "server") for lr in RATES}
    best = {f"rate {lr:g}:": setup.each(_best_after_30) for lr, setup in setups.items()}
    return Finding(f"{labelled(best)} %", all(mean(values) <= 100 * USELESS for values in best.values()))


def _krum_saved(lab: Lab) -> Finding:
    setups = {lr: lab.get("mnist", "empire", "krum", 24, lr, "workers") for lr in RATES}
    best = {f"rate {lr:g}:": setup.each(_best_after_30) for lr, setup in setups.items()}
    return Finding(f"{labelled(best)} %", all(mean(values) > 100 * USELESS for values in best.values()))


def _best_after_30(run: RunResult) -> float:
    evaluations = run.evaluations
    if evaluations["step"].iloc[-1] < 30:
        raise MissingRunsError("30 steps")
    return 100 * float(evaluations.loc[evaluations["step"] >= 30, "accuracy"].max())


def _median_beats_krum(lab: Lab) -> Finding:
    margins = {}
    for place, lr in itertools.product(PLACES, RATES):
        krum, median = (lab.get("mnist", "empire", rule, 24, lr, place) for rule in ("krum", "median"))
        margins[f"{place} {lr:g}"] = lab.differences(krum, median)
    return Finding(f"{labelled(margins)} points", all(mean(margin) >= 20 for margin in margins.values()))


def _median_gains(lab: Lab) -> Finding:
    gains = {}
    for lr in RATES:
        server, workers = (lab.get("mnist", "empire", "median", 24, lr, place) for place in PLACES)
        gains[f"rate {lr:g}:"] = lab.differences(server, workers)
    return Finding(f"{labelled(gains)} points", all(10 <= mean(gain) <= 30 for gain in gains.values()))


def _empire_quarter(lab: Lab) -> Finding:
    drops = {
        f"{rule} {place} {lr:g}": lab.drops("mnist", "empire", rule, 12, lr, place)
        for rule, place, lr in itertools.product(("krum", "bulyan"), PLACES, RATES)
    }
    return Finding(f"{labelled(drops)} points", all(mean(drop) <= TANGIBLE for drop in drops.values()))


def _empire_quarter_median(lab: Lab) -> Finding:
    drops = {
        f"{place} {lr:g}": lab.drops("mnist", "empire", "median", 12, lr, place)
        for place, lr in itertools.product(PLACES, RATES)
    }
    filtered = all(mean(drops[f"workers {lr:g}"]) <= min(TANGIBLE, mean(drops[f"server {lr:g}"])) for lr in RATES)
    return Finding(f"{labelled(drops)} points", filtered)


def _krum_eighty(lab: Lab) -> Finding:
    values = percents(lab.get("mnist", "little", "krum", 12, 0.5, "server"))
    return Finding(f"{spread(values)} %", 75 <= mean(values) <= 85)


def workers_never_worse(task: str) -> Claim:
    def check(lab: Lab) -> Finding:
        gains = [
            (mean(percents(workers)) - mean(percents(server)), server.config) for server, workers in pairs(lab, task)
        ]
        worst, config = min(gains, key=lambda pair: pair[0])
        below = sum(gain < -0.5 for gain, _ in gains)
        text = (
            f"{len(gains) - below} of {len(gains)} settings; gains from {worst:+.1f} ({config.rule}, {config.attack}, "
            f"f = {config.byzantine}, rate {config.lr}) to {max(gain for gain, _ in gains):+.1f} points"
        )
        return Finding(text, below == 0)

    return Claim(
        f"{task}-workers-never-worse", "Section 4.3",
        f"In every setting but Krum against Fall of Empires at half, momentum at the workers is as good ({task})",
        "maximum accuracy at the workers minus at the server", "an increase, systematically",
        "at least -0.5 points in every setting", check,
    )  # fmt: skip


def _spoken(rule: str) -> str:
    return {"bulyan:rescore=true": "Bulyan with rescoring", "bulyan": "Bulyan (scores once)"}.get(
        rule, rule.capitalize()
    )


def _short(rule: str) -> str:
    return rule.replace(":rescore=true", "-rescore")


CLAIMS: tuple[Claim, ...] = (
    *(_server_drop(rule) for rule in ("krum", "median", "bulyan", RESCORING)),
    *(_bulyan_drop(rule) for rule in ("bulyan", RESCORING)),
    *(_reduction(rule) for rule in ("bulyan", RESCORING)),
    *(_bulyan_best(rule) for rule in ("bulyan", RESCORING)),
    *(_bulyan_untouched(rule) for rule in ("bulyan", RESCORING)),
    Claim("mnist-little-quarter-parts", "Figure 7, caption",
          "With momentum at the server Bulyan does as well as Krum and Median (MNIST, little, f = 12, rate 0.5)",
          "maximum accuracies", "the same", "within 5 points of each other", _same_as_parts),
    Claim("mnist-krum-eighty", "Section 4.3, result analysis",
          "Krum reaches about 80 % (MNIST, little, f = 12, rate 0.5, server)",
          "maximum accuracy", "80 %", "75 to 85 %", _krum_eighty),
    Claim("mnist-little-half-like-quarter", "Figure 7, caption",
          "At the server and the larger rate, f = 12 hurts as much as f = 24 (MNIST, little)",
          "loss of maximum accuracy", "unchanged", "within 5 points, for Krum and for Median", _half_like_quarter),
    Claim("mnist-little-half-rate", "Figure 6, caption",
          "A smaller learning rate reduces the effect, for all rules and placements (MNIST, little, f = 24)",
          "loss of maximum accuracy at rates 0.5 and 0.02", "less", "less in all four cases", _lower_rate_helps),
    Claim("mnist-empire-half-rate", "Figure 6, caption",
          "This is not observed with Fall of Empires (MNIST, f = 24)",
          "loss of maximum accuracy at rates 0.5 and 0.02", "not observed", "not less in all four cases",
          _lower_rate_does_not_help),
    Claim("mnist-little-half-workers", "Figure 6, caption",
          "Momentum at the workers always increases the final accuracy, by about 5 points (MNIST, little, f = 24)",
          "final accuracy at the workers minus at the server", "+5 points",
          "an increase in all four cases, on average 2.5 to 10 points", _workers_add_five),
    Claim("mnist-empire-half-krum-server", "Figure 8, caption",
          "Fall of Empires drives Krum's model useless within 30 steps with momentum at the server (MNIST, f = 24)",
          "best accuracy from step 30 on", "10 %", "at most 15 % at both rates", _krum_useless),
    Claim("mnist-empire-half-krum-workers", "Figure 8, caption",
          "Momentum at the workers avoids such a model (MNIST, Fall of Empires, f = 24, Krum)",
          "best accuracy from step 30 on", "avoided", "above 15 % at both rates", _krum_saved),
    Claim("mnist-empire-half-median", "Figure 8, caption",
          "Median is substantially more resilient than Krum there",
          "maximum accuracy of Median minus Krum's", "substantially", "at least 20 points in all four cases",
          _median_beats_krum),
    Claim("mnist-empire-half-median-gain", "Figure 8, caption",
          "Momentum at the workers raises Median's maximum accuracy by 15 to 25 points there",
          "maximum accuracy at the workers minus at the server", "15 to 25 points", "10 to 30 points at both rates",
          _median_gains),
    Claim("mnist-empire-quarter", "Figure 9, caption",
          "With a quarter of Byzantine workers Fall of Empires has no tangible effect on Krum and Bulyan (MNIST)",
          "loss of maximum accuracy, all placements and rates", "none", "at most 2 points", _empire_quarter),
    Claim("mnist-empire-quarter-median", "Figure 9, caption",
          "Momentum at the workers filters out what effect there is on Median (MNIST, Fall of Empires, f = 12)",
          "loss of maximum accuracy", "filtered out", "at most 2 points and at most the server's, at both rates",
          _empire_quarter_median),
    workers_never_worse("mnist"),
)  # fmt: skip
