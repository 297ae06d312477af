"""Claims on CIFAR-10: figures 3 to 5 and 10 to 13, and the text on them."""

from __future__ import annotations

import itertools
import math

from gyroscope.experiments.claims.base import Check, Claim, Finding, Lab, labelled, log_ratio, mean, percents, spread

PLACES = ("server", "workers")


def _cifar_range(attack: str, rule: str, f: int, lr: float, place: str, low: float, high: float) -> Check:
    def check(lab: Lab) -> Finding:
        values = percents(lab.get("cifar10", attack, rule, f, lr, place))
        return Finding(f"{spread(values)} %{_reduced(lab)}", low <= mean(values) <= high)

    return check


def _reduced(lab: Lab) -> str:
    """A remark where CIFAR-10 was not run in full."""
    configs = {(setup.config.task, setup.config.steps) for setup in lab.attacked("cifar10")}
    remarks = {f"{task}, {steps} steps" for task, steps in configs if task != "cifar10" or steps != 3000}
    return f" ({'; '.join(sorted(remarks))})" if remarks else ""


def _cifar_median_gain(attack: str, f: int, least: float) -> Check:
    def check(lab: Lab) -> Finding:
        server, workers = (percents(lab.get("cifar10", attack, "median", f, 0.01, place)) for place in PLACES)
        gains = [b - a for a, b in zip(server, workers, strict=False)]
        return Finding(f"{spread(gains)} points{_reduced(lab)}", mean(gains) >= least)

    return check


def _cifar_empire_void(lab: Lab) -> Finding:
    drops = {
        f"{rule} {place}": lab.drops("cifar10", "empire", rule, 5, 0.01, place)
        for rule, place in itertools.product(("krum", "median", "bulyan"), PLACES)
    }
    return Finding(f"{labelled(drops)} points{_reduced(lab)}", all(mean(drop) <= 5 for drop in drops.values()))


def _cifar_half_like_quarter(lab: Lab) -> Finding:
    drops = {
        f"{rule} f={f}": lab.drops("cifar10", "little", rule, f, 0.01, "server")
        for rule in ("krum", "median")
        for f in (11, 5)
    }
    alike = all(mean(drops[f"{rule} f=11"]) - mean(drops[f"{rule} f=5"]) <= 5 for rule in ("krum", "median"))
    return Finding(f"{labelled(drops)} points{_reduced(lab)}", alike)


def _cifar_bulyan_faster(lab: Lab) -> Finding:
    areas = {
        rule: lab.get("cifar10", "empire", rule, 5, 0.01, "workers").each(
            lambda run: 100 * float(run.evaluations["accuracy"].mean())
        )
        for rule in ("bulyan", "krum", "median")
    }
    faster = mean(areas["bulyan"]) > max(mean(areas["krum"]), mean(areas["median"]))
    return Finding(f"{labelled(areas)} %{_reduced(lab)}", faster)


def _cifar_rate_drop(lab: Lab) -> Finding:
    setup = lab.get("cifar10", "empire", "bulyan", 5, 0.01, "workers")
    half = (setup.config.steps or 0) // 2
    window = max(10, half // 5)
    before = setup.mean(lambda run: log_ratio(run, half - window, half))
    after = setup.mean(lambda run: log_ratio(run, half + window, half + 2 * window))
    return Finding(f"x{math.exp(before - after):.1f} lower after the fall{_reduced(lab)}", after < before)


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
)  # fmt: skip
