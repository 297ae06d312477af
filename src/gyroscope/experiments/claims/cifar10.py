"""Claims on CIFAR-10: figures 3 to 5 and 10 to 13, and the text on them."""

from __future__ import annotations

import math
import statistics
from functools import partial

from gyroscope.experiments.claims.checks import (
    Check,
    Claim,
    PaperResults,
    accuracy,
    compare,
    each,
    gain,
    in_pairs,
    labelled,
    log_ratio,
    loss,
    placement_pairs,
    printed_decimals,
)
from gyroscope.experiments.claims.mnist import workers_never_worse
from gyroscope.experiments.grid import PAPER, PLACES, PaperKey

RATES = PAPER["cifar10"][2]
_little = partial(compare, task="cifar10", attack="little")
_empire = partial(compare, task="cifar10", attack="empire")


def _bulyan_under_empire(rate: float, place: str) -> PaperKey:
    return PaperKey("cifar10", "empire", "bulyan", 5, rate, place)


def _rate_drop() -> Check:
    key = _bulyan_under_empire(0.01, "workers")

    def judge(results: PaperResults) -> tuple[str, bool]:
        setup = results.get(key)
        half = (setup.config.steps or 0) // 2
        window = max(10, half // 5)
        before = setup.mean(lambda run: log_ratio(run, half - window, half))
        after = setup.mean(lambda run: log_ratio(run, half + window, half + 2 * window))
        return f"x{math.exp(before - after):.1f} lower after the fall", after < before

    return Check((key,), judge)


def _ratio_lower_at_workers() -> Check:
    pairs = {rate: [_bulyan_under_empire(rate, place) for place in PLACES] for rate in RATES}

    def judge(results: PaperResults) -> tuple[str, bool]:
        gaps = {}
        for rate, keys in pairs.items():
            server, workers = map(results.get, keys)
            first_half = partial(log_ratio, first=0, last=(server.config.steps or 0) // 2)
            gaps[rate] = server.mean(first_half) - workers.mean(first_half)
        text = ", ".join(f"rate {rate:g}: x{math.exp(gap):.1f} lower" for rate, gap in gaps.items())
        return text, min(gaps.values()) > 0

    return Check(tuple(key for keys in pairs.values() for key in keys), judge)


def _larger_than_mnist() -> Check:
    cases = {
        (task, rule): PaperKey(task, "little", rule, PAPER[task][0], PAPER[task][2][0], "server")
        for task in PAPER
        for rule in ("krum", "median")
    }

    def judge(results: PaperResults) -> tuple[str, bool]:
        found = {f"{task} {rule}": loss.of(results, key) for (task, rule), key in cases.items()}
        means = {name: statistics.fmean(values) for name, values in found.items()}
        larger = all(means[f"cifar10 {rule}"] > means[f"mnist {rule}"] for rule in ("krum", "median"))
        return labelled(found) + " points", larger

    return Check(tuple(needed for key in cases.values() for needed in loss.needs(key)), judge)


def _range_of_gains() -> Check:
    pairs = [pair for task in PAPER for pair in placement_pairs(task)]

    def in_range(smallest: float, largest: float) -> bool:
        return 2.5 <= smallest <= 10 and 40 <= largest <= 60

    def judge(results: PaperResults) -> tuple[str, bool]:
        gains = {server: statistics.fmean(gain.of(results, server)) for server, _ in pairs}
        least, most = (choose(gains, key=lambda key: gains[key]) for choose in (min, max))
        decimals = printed_decimals(in_range, gains[least], gains[most])
        text = ", ".join(f"{gains[key]:+.{decimals}f} ({key.task}, {key.attack}, {key.rule}, f = {key.f}, "
                         f"rate {key.lr:g})" for key in (least, most))  # fmt: skip
        return f"from {text}", in_range(gains[least], gains[most])

    return Check(tuple(key for pair in pairs for key in pair), judge)


CLAIMS: tuple[Claim, ...] = (
    Claim("cifar10-little-quarter-krum", "Section 4.3, result analysis",
          "Krum reaches about 20 % (CIFAR-10, little, f = 5, larger rate, server)",
          "maximum accuracy", "20 %", "15 to 27 %",
          _little(accuracy, "", lambda mean: 15 <= mean <= 27, " %", rule="krum", f=5, lr=0.01, place="server")),
    Claim("cifar10-little-quarter-median", "Section 4.3, result analysis",
          "Momentum at the workers adds up to 50 points for Median (CIFAR-10, little, f = 5, larger rate)",
          "maximum accuracy at the workers minus at the server", "+50 points", "at least 40 points",
          _little(gain, "", lambda mean: mean >= 40, rule="median", f=5, lr=0.01, place="workers")),
    Claim("cifar10-little-half-like-quarter", "Figure 11, caption",
          "Going from f = 11 to f = 5 does not make the attack less effective (CIFAR-10, little, server)",
          "loss of maximum accuracy", "not less", "at most 5 points less, for Krum and for Median",
          _little(loss, "{rule} f={f}", lambda *means: all(half - quarter <= 5 for half, quarter in in_pairs(means)),
                  rule=("krum", "median"), f=(11, 5), lr=0.01, place="server")),
    Claim("cifar10-little-half-low-rate", "Figure 10, caption",
          "Even with the smaller rate the maximum accuracy barely reaches 20 % (CIFAR-10, little, f = 11, server)",
          "maximum accuracy of Krum and Median", "20 %", "at most 27 % with both",
          _little(accuracy, "{rule}", lambda *means: max(means) <= 27, " %",
                  rule=("krum", "median"), f=11, lr=0.001, place="server")),
    Claim("cifar10-empire-half-krum", "Section 4.3, result analysis",
          "Krum reaches about 10 % (CIFAR-10, Fall of Empires, f = 11, larger rate, server)",
          "maximum accuracy", "10 %", "at most 15 %",
          _empire(accuracy, "", lambda mean: mean <= 15, " %", rule="krum", f=11, lr=0.01, place="server")),
    Claim("cifar10-empire-half-median", "Section 4.3, result analysis",
          "Median reaches about 20 % there",
          "maximum accuracy", "20 %", "15 to 27 %",
          _empire(accuracy, "", lambda mean: 15 <= mean <= 27, " %", rule="median", f=11, lr=0.01, place="server")),
    Claim("cifar10-empire-half-median-gain", "Figure 12, caption",
          "Momentum at the workers has a substantial positive effect on Median there",
          "maximum accuracy at the workers minus at the server", "substantial", "at least 10 points",
          _empire(gain, "", lambda mean: mean >= 10, rule="median", f=11, lr=0.01, place="workers")),
    Claim("cifar10-empire-quarter", "Figure 13, caption",
          "With a quarter of Byzantine workers Fall of Empires is almost void (CIFAR-10)",
          "loss of maximum accuracy", "almost none", "at most 5 points for each rule, placement and rate",
          _empire(loss, "{rule} {place} {lr:g}", lambda *means: max(means) <= 5,
                  rule=("krum", "median", "bulyan"), f=5, lr=RATES, place=PLACES)),
    Claim("cifar10-empire-quarter-bulyan", "Figure 13, caption",
          "There Bulyan gains accuracy faster than Krum and Median",
          "mean accuracy over all evaluations, workers", "faster", "higher mean than both",
          _empire(each(lambda run: 100 * float(run.evaluations["accuracy"].mean())), "{rule}",
                  lambda bulyan, *others: bulyan > max(others), " %",
                  rule=("bulyan", "krum", "median"), f=5, lr=0.01, place="workers")),
    Claim("cifar10-ratio-rate", "Figure 5, caption",
          "The ratio falls when the learning rate is reduced halfway (CIFAR-10, empire, Bulyan, f = 5, workers)",
          "ratio before and after the fall", "clearly visible", "lower after it", _rate_drop()),
    Claim("cifar10-ratio-workers", "Figure 5, caption",
          "The ratio is lower with momentum at the workers (CIFAR-10, empire, Bulyan, f = 5)",
          "mean log ratio over the first half of the steps, server against workers", "lower", "lower at both rates",
          _ratio_lower_at_workers()),
    Claim("cifar10-little-quarter-amplified", "Figure 3, caption",
          "The positive effect of the workers' momentum is amplified with a lower rate (CIFAR-10, little, f = 5)",
          "Median's gain of maximum accuracy at the workers, at both rates", "amplified", "larger at the smaller rate",
          _little(gain, "rate {lr:g}:", lambda large, small: small > large,
                  rule="median", f=5, lr=(0.01, 0.001), place="workers")),
    Claim("cifar10-little-half-workers", "Figure 10, caption",
          "Momentum at the workers helps also at f = 11 (CIFAR-10, little)",
          "maximum accuracy at the workers minus at the server", "positively",
          "positive for Krum and Median, both rates",
          _little(gain, "{rule} {lr:g}", lambda *means: min(means) > 0,
                  rule=("krum", "median"), f=11, lr=(0.01, 0.001), place="workers")),
    Claim("cifar10-little-half-substantial", "Figure 10, caption",
          "Compared with MNIST, the impact of the attack is substantial (little, half, larger rate, server)",
          "loss of maximum accuracy on both tasks", "substantial", "larger on CIFAR-10, for Krum and for Median",
          _larger_than_mnist()),
    Claim("gain-range", "Section 4.3, result analysis",
          "The gain from momentum at the workers ranges from 5 points (MNIST) to 50 points (CIFAR-10, Median)",
          "smallest and largest mean gain of maximum accuracy over all settings but the paper's exception",
          "+5 to +50 points", "smallest 2.5 to 10, largest 40 to 60 points", _range_of_gains()),
    workers_never_worse("cifar10"),
)  # fmt: skip
