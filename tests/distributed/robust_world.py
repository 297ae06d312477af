"""A world of real processes that runs every scenario once, and the gradients that tests compute again.

`python robust_world.py FOLDER` forks N ranks (after torch is imported: that takes seconds), connects them through
a file in the folder, and writes each rank's results to FOLDER/RANK.pt: numbers and text only, by the scenario's name.
Then it runs the example with four ranks, as torchrun would, and writes their output to FOLDER/example-RANK.txt.
Meanwhile it runs worlds in which a rank hangs or dies: FOLDER/SIGNAL-RANK.txt holds the error of each other rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gyroscope import rules
from gyroscope._core.errors import ExchangeError, GyroscopeError
from gyroscope._linalg import _kernels
from gyroscope.distributed import RobustSGD

N = 7
STEPS = 4
FAULTY = 5
"""The rank whose gradients are wrong in some scenarios."""

PATIENCE = 60.0
"""Seconds that a world may take."""
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "robust_sgd.py"

Found = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SmallestNorm(rules.Rule):
    """A third party's rule that needs whole rows and does not declare it."""

    needs = "n >= f + 1"

    def min_workers(self, f: int) -> int:
        return f + 1

    def aggregate(self, rows: Tensor, f: int) -> rules.Aggregate:
        best = rows.norm(dim=1).nan_to_num(nan=torch.inf).argmin()
        return rules.Aggregate(rows[best].clone(), None)


@dataclasses.dataclass(frozen=True)
class Dice(SmallestNorm):
    """A rule that is random, and differently so on each rank."""

    def aggregate(self, rows: Tensor, f: int) -> rules.Aggregate:
        return rules.Aggregate(torch.rand_like(rows[0]), None)


@dataclasses.dataclass(frozen=True)
class Case:
    """Some steps with given gradients."""

    rule: rules.Rule
    f: int = 1
    shapes: tuple[tuple[int, ...], ...] = ((4, 3), (), (9, 1))  # 22 parameters: no multiple of 7
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    bad: float | None = None
    """The value that the faulty rank has in one coordinate of its gradient."""


SMALL = ((2,), (1,))
WIDE = ((70, 100),)
# With these, products are exact: it does not matter where a processor fuses a multiplication and an addition.
EXACT = {"mu": 0.5, "lr": 0.25}
CASES = {
    "average": Case(rules.Average(), 0),
    "average, d < n": Case(rules.Average(), 0, SMALL),
    "average, NaN": Case(rules.Average(), 0, bad=float("nan")),
    "krum": Case(rules.Krum()),
    "krum, d < n": Case(rules.Krum(m=1), 2, SMALL),
    "krum, wide": Case(rules.Krum(), 2, WIDE, {"clip": 30.0}),
    "krum, NaN": Case(rules.Krum(), bad=float("nan")),
    "krum, inf": Case(rules.Krum(), bad=-float("inf")),
    "krum, 3e38": Case(rules.Krum(), bad=3e38),
    "krum, inf, clipped": Case(rules.Krum(), settings={"clip": 1.0}, bad=float("inf")),
    "median": Case(rules.Median(), 3, settings=EXACT),
    "median, d < n": Case(rules.Median(), 3, SMALL, EXACT),
    "median, wide": Case(rules.Median(), 3, WIDE, {**EXACT, "nesterov": True}),
    "median, NaN": Case(rules.Median(), 3, settings=EXACT, bad=float("nan")),
    "median, 3e38": Case(rules.Median(), 3, settings={**EXACT, "momentum": "server"}, bad=3e38),
    "bulyan": Case(rules.Bulyan(), settings={"momentum": "server"}),
    "bulyan, d < n": Case(rules.Bulyan(rescore=True), 1, SMALL),
    "bulyan, wide": Case(rules.Bulyan(), 1, WIDE),
    "bulyan, NaN": Case(rules.Bulyan(), bad=float("nan")),
    "bulyan, 3e38": Case(rules.Bulyan(), settings={"momentum": "none"}, bad=-3e38),
    "third party": Case(SmallestNorm(), settings={"weight_decay": 0.1}),
    "third party, d < n": Case(SmallestNorm(), 1, SMALL),
    "third party, NaN": Case(SmallestNorm(), bad=float("nan")),
    "nnm, NaN": Case(rules.NNM() >> rules.Median(), 2, bad=float("nan")),
    "nnm and krum, inf": Case(rules.NNM() >> rules.Krum(), 2, bad=float("inf")),
    "remembering": Case(rules.CenteredClipping(), 2),
    "remembering, NaN": Case(rules.CenteredClipping(), 2, SMALL, bad=float("nan")),
    "at random": Case(rules.Bucketing() >> rules.Mixture([rules.Median(), rules.CenteredClipping()]), 1, bad=3e38),
    "in turn": Case(rules.Mixture([rules.Median(), rules.Krum()], "round-robin"), 1, settings={"seed": 3}),
    "plain SGD": Case(rules.Average(), 0, settings={"weight_decay": 0.2, "mu": 0.8}),
    "plain SGD, server": Case(rules.Average(), 0, settings={"momentum": "server", "nesterov": True}),
    "plain SGD, none": Case(rules.Average(), 0, settings={"momentum": "none", "weight_decay": 0.2}),
    "all settings": Case(
        rules.Krum(), settings={"weight_decay": 0.3, "clip": 2.0, "momentum": "server", "nesterov": True, "mu": 0.7}
    ),
}


def gradient(rank: int, step: int, size: int, bad: float | None = None) -> Tensor:
    """Return a rank's gradient. Ranks share a part, so that a rule has something to agree on."""
    shared = torch.randn(size, generator=torch.Generator().manual_seed(step))
    own = torch.randn(size, generator=torch.Generator().manual_seed(1000 * rank + step + 500))
    values = shared + (0.2 + 0.05 * rank) * own
    if bad is not None and rank == FAULTY:
        values[step % size] = bad  # one coordinate: for most ranks' columns this rank looks honest
    return values


def fresh(shapes: tuple[tuple[int, ...], ...], rank: int) -> list[nn.Parameter]:
    """Parameters that differ between ranks until the optimizer makes them equal."""
    generator = torch.Generator().manual_seed(77 + rank)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def give(parameters: list[nn.Parameter], values: Tensor) -> None:
    """Set the parameters' gradients, as a backward pass would."""
    pieces = torch.split(values, [parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view(parameter.shape).clone()


def values_of(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


def optimizer_of(case: Case, parameters: Any) -> RobustSGD:
    return RobustSGD(parameters, **{"lr": 0.1, "rule": case.rule, "f": case.f, **case.settings})


def run_case(case: Case, rank: int) -> Found:
    parameters = fresh(case.shapes, rank)
    optimizer = optimizer_of(case, parameters)
    trace = [values_of(parameters)]
    for step in range(STEPS):
        give(parameters, gradient(rank, step, len(trace[0]), case.bad))
        optimizer.step()
        trace.append(values_of(parameters))
    return {"trace": torch.stack(trace), "weight": optimizer.last_weight}


# -- scenarios --------------------------------------------------------------------------------------------------------


def random_rule(rank: int) -> Found:
    torch.manual_seed(rank)
    return run_case(Case(Dice()), rank)


def groups_scheduler_and_frozen(rank: int) -> Found:
    """Two groups, a scheduler, a gradient that some ranks lack, a third group added, a parameter frozen and freed."""
    weight, bias, late, frozen = fresh(((3, 2), (2,), (4,), (5,)), rank)
    frozen.requires_grad_(False)
    groups: list[dict[str, Any]] = [{"params": [weight, frozen], "lr": 0.5}, {"params": [bias], "weight_decay": 0.25}]
    optimizer = RobustSGD(groups, lr=0.125, rule="median", f=2, mu=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    everything = [weight, bias, late, frozen]
    trace = []
    for step in range(6):
        if step == 2:
            optimizer.add_param_group({"params": [late], "lr": 1.0})
        if step == 4:
            frozen.requires_grad_(True)
        give(everything, gradient(rank, step, 17))
        if rank < 3:
            bias.grad = None
        if step < 4:
            frozen.grad = None
        optimizer.step()
        scheduler.step()
        trace.append(values_of(everything if step >= 2 else [weight, bias, torch.zeros_like(late), frozen]))
    return {"trace": torch.stack(trace)}


def resume(rank: int) -> Found:
    """Stop after two steps of five, continue in other objects, and compare with a run that does not stop."""
    found: Found = {}
    remembering = rules.Bucketing() >> rules.CenteredClipping()  # and one that draws at random
    for rule, momentum in ((rules.Krum(), "workers"), (rules.Krum(), "server"), (rules.Krum(), "none"),
                           (remembering, "workers")):  # fmt: skip
        for nesterov in (False, True) if momentum != "none" else (False,):
            case = Case(rule, settings={"momentum": momentum, "nesterov": nesterov, "weight_decay": 0.1})
            parameters = fresh(case.shapes, rank)
            optimizer = optimizer_of(case, parameters)
            for step in range(5):
                give(parameters, gradient(rank, step, 22))
                optimizer.step()
                if step == 1:
                    file = io.BytesIO()
                    model = [parameter.detach() for parameter in parameters]
                    torch.save({"model": model, "optimizer": optimizer.state_dict()}, file)
                    optimizer.param_groups[0]["lr"] *= 0.5
            saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            others = fresh(case.shapes, rank + 50)
            second = optimizer_of(case, others)
            with torch.no_grad():
                for parameter, value in zip(others, saved["model"], strict=True):
                    parameter.copy_(value)
            second.load_state_dict(saved["optimizer"])
            second.param_groups[0]["lr"] *= 0.5
            before = [state.clone() for value in saved["optimizer"]["state"].values() for state in value.values()]
            for step in range(2, 5):
                give(others, gradient(rank, step, 22))
                second.step()
            after = [state for value in saved["optimizer"]["state"].values() for state in value.values()]
            found[f"{momentum} {nesterov} {rule}"] = {
                "straight": values_of(parameters),
                "resumed": values_of(others),
                "saved untouched": all(torch.equal(a, b) for a, b in zip(before, after, strict=True)),
                "saved": len(before),
            }
    return found


def recovery(rank: int) -> Found:
    """The faulty rank's gradient is NaN in the second step, and overflows its momentum in the third."""
    parameters = fresh(SMALL, rank)
    optimizer = RobustSGD(parameters, lr=0.1, rule="krum", f=1, mu=0.5)
    momenta, weights = [], []
    for step in range(5):
        size = 3
        values = gradient(rank, step, size)
        if rank == FAULTY and step in (1, 2):
            values = torch.full((size,), float("nan") if step == 1 else float("inf"))
        give(parameters, values)
        optimizer.step()
        momenta.append(torch.cat([optimizer.state[parameter]["workers"].clone() for parameter in parameters]))
        weights.append(optimizer.last_weight)
    return {"momenta": torch.stack(momenta), "weights": torch.stack([w for w in weights if w is not None])}


def transposed(rank: int) -> Found:
    """A parameter that is not stored row by row, and a gradient that is sparse."""
    weight = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(rank)).t())
    table = nn.Embedding(5, 2, sparse=True, _weight=torch.full((5, 2), float(rank)))
    optimizer = RobustSGD([weight, table.weight], lr=0.5, rule="average", f=0, momentum="none")
    weight.grad = gradient(rank, 0, 12).view(3, 4)
    table(torch.tensor([1, 1, 4])).sum().backward()
    optimizer.step()
    return {"trace": torch.stack([values_of([weight, table.weight])])}


def closure(rank: int) -> Found:
    (parameter,) = fresh(((3,),), rank)
    optimizer = RobustSGD([parameter], lr=0.1, rule="average", f=0, momentum="none")

    def loss() -> float:
        optimizer.zero_grad()
        value = parameter.square().sum() / 2
        value.backward()
        return float(value.detach())

    before = parameter.detach().clone()
    return {"loss": optimizer.step(loss), "before": before, "after": parameter.detach()}


def mistakes(rank: int) -> Found:
    """Make every mistake on all ranks, or so that all notice it: no rank waits for another."""
    here = dist.new_group([0, 1, 2])
    state: dict[str, Any] = {}

    def saved(**settings: Any) -> dict[str, Any]:
        optimizer = RobustSGD(fresh(SMALL, rank), lr=0.1, rule="median", f=1, **settings)
        optimizer.step()
        result: dict[str, Any] = optimizer.state_dict()
        return result

    def load(state: dict[str, Any], **settings: Any) -> None:
        RobustSGD(fresh(SMALL, rank), lr=0.1, rule="median", f=1, **settings).load_state_dict(state)

    state = saved()
    of_server = saved(momentum="server")
    shape, number = ((2, 3), (6,)) if rank != 4 else ((3, 2), (6,)), SMALL if rank != 3 else (*SMALL, (2,))
    made: dict[str, Callable[[], Any]] = {
        "infeasible": lambda: RobustSGD(fresh(SMALL, rank), lr=0.1, rule="krum", f=3),
        "numbers": lambda: RobustSGD(fresh(number, rank), lr=0.1, rule="krum", f=1),
        "shapes": lambda: RobustSGD(fresh(shape, rank), lr=0.1, rule="krum", f=1),
        "settings": lambda: RobustSGD(fresh(SMALL, rank), lr=0.1, rule="krum", f=1 if rank != 2 else 2),
        "lr": lambda: RobustSGD(fresh(SMALL, rank), lr=-0.1, rule="krum", f=1),
        "clip": lambda: RobustSGD(fresh(SMALL, rank), lr=0.1, rule="krum", f=1, clip=0),
        "decay": lambda: RobustSGD([{"params": fresh(SMALL, rank), "weight_decay": -1}], lr=0.1, rule="krum", f=1),
        "momentum": lambda: RobustSGD(fresh(SMALL, rank), lr=0.1, rule="krum", f=1, momentum="servers"),
        "types": lambda: RobustSGD([*fresh(SMALL, rank), nn.Parameter(torch.zeros(2).double())], 0.1, rule="krum", f=1),
        "all frozen": lambda: RobustSGD([torch.zeros(2)], lr=0.1, rule="krum", f=1),
        "other rank's state": lambda: load({**state, "rank": (state["rank"] + 1) % N}),
        "other momentum's state": lambda: load(of_server),
        "other model's state": lambda: load({**state, "state": {1: {"workers": torch.zeros(2)}}}),
        "trusted": lambda: RobustSGD(fresh(SMALL, rank), lr=0.1, rule="nnm+fltrust", f=1),
        "not a member": lambda: RobustSGD(fresh(SMALL, rank), lr=0.1, rule="krum", f=0, process_group=here),
    }  # fmt: skip
    found: Found = {}
    for name, make in made.items():
        try:
            make()
            found[name] = "nothing"
        except GyroscopeError as error:
            found[name] = f"{type(error).__name__}: {error}"
    load({**of_server, "rank": 0}, momentum="server")  # the server's momentum is the same everywhere
    return found


def digits(rank: int) -> Found:
    """Five ranks, not those with the first numbers; the gradients of one are -10 times what they should be."""
    members = [2, 3, 4, 5, 6]
    group = dist.new_group(members)
    if rank not in members:
        return {}
    pictures, labels = load_digits(return_X_y=True)
    inputs, targets = torch.from_numpy(pictures).float() / 16, torch.from_numpy(labels)
    found: Found = {}
    for rule in ("krum", "average"):
        torch.manual_seed(rank)  # rank 2's model is everyone's; batches are each rank's own
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = RobustSGD(model.parameters(), lr=0.1, rule=rule, f=1, process_group=group)
        for _ in range(80):
            batch = torch.randint(300, len(inputs), (32,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
            if rank == FAULTY:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad *= -10
            optimizer.step()
        accuracy = (model(inputs[:300]).argmax(dim=1) == targets[:300]).float().mean()
        found[rule] = {"accuracy": float(accuracy), "weight": optimizer.last_weight}
        found[rule]["values"] = values_of(list(model.parameters()))
    return found


SCENARIOS = (random_rule, groups_scheduler_and_frozen, resume, recovery, transposed, closure, mistakes, digits)


def live(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error", FutureWarning)  # the collectives' names change between versions of torch
    store = dist.FileStore(str(folder / "store"), N)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=N, timeout=timedelta(seconds=20))
    found: Found = {name: run_case(case, rank) for name, case in CASES.items()}
    for scenario in SCENARIOS:
        found[scenario.__name__] = scenario(rank)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def live_example(rank: int, folder: Path, port: int) -> None:
    """Run the example as torchrun runs a script."""
    torch.set_num_threads(1)
    os.dup2(os.open(folder / f"example-{rank}.txt", os.O_WRONLY | os.O_CREAT), 1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="4", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    runpy.run_path(str(EXAMPLE), run_name="__main__")


LOST, LOST_TIMEOUT = 1, 20.0
"""The rank that hangs or dies, and how long the others wait for it."""


def live_with_a_lost_rank(rank: int, folder: Path, word: signal.Signals) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store-{word.name}"), 3)
    patience = timedelta(seconds=LOST_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=patience)
    parameters = fresh(SMALL, rank)
    optimizer = RobustSGD(parameters, lr=0.1, rule="median", f=1)
    message = "nothing"
    for step in range(5):
        if rank == LOST and step == 3:
            os.kill(os.getpid(), word)
        give(parameters, gradient(rank, step, 3))
        try:
            optimizer.step()
        except ExchangeError as error:
            message = f"at step {step}: {error}"
            break
    (folder / f"{word.name}-{rank}.txt").write_text(message)


@contextlib.contextmanager
def worlds_with_a_lost_rank(folder: Path) -> Iterator[None]:
    """Run in the background: most of the time they only wait."""
    context = multiprocessing.get_context("fork")
    words = (signal.SIGSTOP, signal.SIGKILL)
    ranks = {
        (word, rank): context.Process(target=live_with_a_lost_rank, args=(rank, folder, word))
        for word in words
        for rank in range(3)
    }
    for process in ranks.values():
        process.start()
    try:
        yield
    finally:
        for (_, rank), process in ranks.items():
            if rank != LOST:  # the others end by themselves
                process.join(PATIENCE)
        for process in ranks.values():
            process.kill()
            process.join()


def together(count: int, work: Callable[..., None], *arguments: Any) -> None:
    """Run one process per rank, with a time limit."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=work, args=(rank, *arguments)) for rank in range(count)]
    for process in ranks:
        process.start()
    end = time.monotonic() + PATIENCE
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
    late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        process.kill()
        process.join()
    failed = {rank: process.exitcode for rank, process in enumerate(ranks) if process.exitcode}
    if late or failed:
        raise SystemExit(f"{work.__name__}: ranks {late} took too long; exit codes {failed}")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    # Whatever is slow the first time is done once, before the ranks part; torch's first optimizer imports a compiler.
    _kernels.warm_up()
    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).state_dict()
    with worlds_with_a_lost_rank(folder):
        together(N, live, folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        together(4, live_example, folder, port)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
