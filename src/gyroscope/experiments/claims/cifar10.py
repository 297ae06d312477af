"""Claims on CIFAR-10: figures 3 to 5 and 10 to 13, and the text on them."""

from __future__ import annotations

import itertools
import math

from gyroscope.experiments.claims.base import Check, Claim, Finding, Lab, labelled, log_ratio, mean, percents, spread
from gyroscope.experiments.claims.mnist import workers_never_worse

PLACES = ("server", "workers")


def _cifar_range(attack: str, rule: str, f: int, lr: float, place: str, low: float, high: float) -> Check:
    def check(lab: Lab) -> Finding:
        values = percents(lab.get("cifar10", attack, rule, f, lr, place))
        return Finding(f"{spread(values)} %", low <= mean(values) <= high)

    return check


def _cifar_median_gain(attack: str, f: int, least: float) -> Check:
    def check(lab: Lab) -> Finding:
        server, workers = (lab.get("cifar10", attack, "median", f, 0.01, place) for place in PLACES)
        gains = lab.differences(server, workers)
        return Finding(f"{spread(gains)} points", mean(gains) >= least)

    return check


def _cifar_empire_void(lab: Lab) -> Finding:
    drops = {
        f"{rule} {place}": lab.drops("cifar10", "empire", rule, 5, 0.01, place)
        for rule, place in itertools.product(("krum", "median", "bulyan"), PLACES)
    }
    return Finding(f"{labelled(drops)} points", all(mean(drop) <= 5 for drop in drops.values()))


def _cifar_half_like_quarter(lab: Lab) -> Finding:
    drops = {
        f"{rule} f={f}": lab.drops("cifar10", "little", rule, f, 0.01, "server")
        for rule in ("krum", "median")
        for f in (11, 5)
    }
    alike = all(mean(drops[f"{rule} f=11"]) - mean(drops[f"{rule} f=5"]) <= 5 for rule in ("krum", "median"))
    return Finding(f"{labelled(drops)} points", alike)


def _cifar_bulyan_faster(lab: Lab) -> Finding:
    areas = {
        rule: lab.get("cifar10", "empire", rule, 5, 0.01, "workers").each(
            lambda run: 100 * float(run.evaluations["accuracy"].mean())
        )
        for rule in ("bulyan", "krum", "median")
    }
    faster = mean(areas["bulyan"]) > max(mean(areas["krum"]), mean(areas["median"]))
    return Finding(f"{labelled(areas)} %", faster)


def _cifar_rate_drop(lab: Lab) -> Finding:
    setup = lab.get("cifar10", "empire", "bulyan", 5, 0.01, "workers")
    half = (setup.config.steps or 0) // 2
    window = max(10, half // 5)
    before = setup.mean(lambda run: log_ratio(run, half - window, half))
    after = setup.mean(lambda run: log_ratio(run, half + window, half + 2 * window))
    return Finding(f"x{math.exp(before - after):.1f} lower after the fall", after < before)


def _ratio_lower_at_workers(lab: Lab) -> Finding:
    gaps = {}
    for rate in (0.01, 0.001):
        server, workers = (lab.get("cifar10", "empire", "bulyan", 5, rate, place) for place in PLACES)
        half = (server.config.steps or 0) // 2
        gaps[rate] = mean(server.each(lambda run: log_ratio(run, 0, half))) - mean(  # noqa: B023
            workers.each(lambda run: log_ratio(run, 0, half))  # noqa: B023
        )
    text = ", ".join(f"rate {rate:g}: x{math.exp(gap):.1f} lower" for rate, gap in gaps.items())
    return Finding(text, all(gap > 0 for gap in gaps.values()))


def _amplified(lab: Lab) -> Finding:
    gains = {}
    for rate in (0.01, 0.001):
        server, workers = (lab.get("cifar10", "little", "median", 5, rate, place) for place in PLACES)
        gains[f"rate {rate:g}:"] = lab.differences(server, workers)
    return Finding(f"{labelled(gains)} points", mean(gains["rate 0.001:"]) > mean(gains["rate 0.01:"]))


def _workers_help_at_half(lab: Lab) -> Finding:
    gains = {}
    for rule, rate in itertools.product(("krum", "median"), (0.01, 0.001)):
        server, workers = (lab.get("cifar10", "little", rule, 11, rate, place) for place in PLACES)
        gains[f"{rule} {rate:g}"] = lab.differences(server, workers)
    return Finding(f"{labelled(gains)} points", all(mean(gain) > 0 for gain in gains.values()))


CLAIMS: tuple[Claim, ...] = (
    Claim("cifar10-little-quarter-krum", "Section 4.3, result analysis",
          "Krum reaches about 20 % (CIFAR-10, little, f = 5, larger rate, server)",
          "maximum accuracy", "20 %", "15 to 27 %",
          _cifar_range("little", "krum", 5, 0.01, "server", 15, 27)),
    Claim("cifar10-little-quarter-median", "Section 4.3, result analysis",
          "Momentum at the workers adds up to 50 points for Median (CIFAR-10, little, f = 5, larger rate)",
          "maximum accuracy at the workers minus at the server", "+50 points", "at least 40 points",
          _cifar_median_gain("little", 5, 40)),
    Claim("cifar10-little-half-like-quarter", "Figure 11, caption",
          "Going from f = 11 to f = 5 does not make the attack less effective (CIFAR-10, little, server)",
          "loss of maximum accuracy", "not less", "at most 5 points less, for Krum and for Median",
          _cifar_half_like_quarter),
    Claim("cifar10-little-half-low-rate", "Figure 10, caption",
          "Even with the smaller rate the maximum accuracy barely reaches 20 % (CIFAR-10, little, f = 11, Krum)",
          "maximum accuracy", "20 %", "at most 27 %",
          _cifar_range("little", "krum", 11, 0.001, "server", 0, 27)),
    Claim("cifar10-empire-half-krum", "Section 4.3, result analysis",
          "Krum reaches about 10 % (CIFAR-10, Fall of Empires, f = 11, larger rate, server)",
          "maximum accuracy", "10 %", "at most 15 %",
          _cifar_range("empire", "krum", 11, 0.01, "server", 0, 15)),
    Claim("cifar10-empire-half-median", "Section 4.3, result analysis",
          "Median reaches about 20 % there",
          "maximum accuracy", "20 %", "15 to 27 %",
          _cifar_range("empire", "median", 11, 0.01, "server", 15, 27)),
    Claim("cifar10-empire-half-median-gain", "Figure 12, caption",
          "Momentum at the workers has a substantial positive effect on Median there",
          "maximum accuracy at the workers minus at the server", "substantial", "at least 10 points",
          _cifar_median_gain("empire", 11, 10)),
    Claim("cifar10-empire-quarter", "Figure 13, caption",
          "With a quarter of Byzantine workers Fall of Empires is almost void (CIFAR-10, larger rate)",
          "loss of maximum accuracy", "almost none", "at most 5 points for each rule and placement",
          _cifar_empire_void),
    Claim("cifar10-empire-quarter-bulyan", "Figure 13, caption",
          "There Bulyan gains accuracy faster than Krum and Median",
          "mean accuracy over all evaluations, workers", "faster", "higher mean than both", _cifar_bulyan_faster),
    Claim("cifar10-ratio-rate", "Figure 5, caption",
          "The ratio falls when the learning rate is reduced halfway (CIFAR-10, empire, Bulyan, f = 5, workers)",
          "ratio before and after the fall", "clearly visible", "lower after it", _cifar_rate_drop),
    Claim("cifar10-ratio-workers", "Figure 5, caption",
          "The ratio is lower with momentum at the workers (CIFAR-10, empire, Bulyan, f = 5)",
          "mean log ratio over the first half of the steps, server against workers", "lower", "lower at both rates",
          _ratio_lower_at_workers),
    Claim("cifar10-little-quarter-amplified", "Figure 3, caption",
          "The positive effect of the workers' momentum is amplified with a lower rate (CIFAR-10, little, f = 5)",
          "Median's gain of maximum accuracy at the workers, at both rates", "amplified", "larger at the smaller rate",
          _amplified),
    Claim("cifar10-little-half-workers", "Figure 10, caption",
          "Momentum at the workers helps also at f = 11 (CIFAR-10, little)",
          "maximum accuracy at the workers minus at the server", "positively",
          "positive for Krum and Median, both rates", _workers_help_at_half),
    workers_never_worse("cifar10"),
)  # fmt: skip
