"""The same gradients through every path give the same numbers, and one NaN gradient costs its worker one round."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from rank_world import BAD_STEP, BAD_WORKER, MU, STEPS, D, N, gradients
from torch import Tensor

import gyroscope as gy
from gyroscope._core.clock import UNTIMED, Clock
from gyroscope.momentum import RobustAggregator, WorkerMomentum
from gyroscope.research.asynchronous.async_placement import AsyncPlacement
from gyroscope.simulation.round import RoundConfig, RoundState, play_round

by_rule = pytest.mark.parametrize("rule", ["krum", "median"])
by_bad = pytest.mark.parametrize("bad", [False, True], ids=["finite", "one NaN"])
LATER = [step for step in range(STEPS) if step > BAD_STEP]


def own_loop(rule: str, momentum: str, bad: bool, absent: bool = False) -> Tensor:
    """The two objects, as a user puts them together. absent: the bad worker takes no part in the bad round at all."""
    workers = [WorkerMomentum(MU) for _ in range(N)]
    server = RobustAggregator(rule, f=1, momentum=momentum, mu=MU)
    seen = []
    for step, rows in enumerate(gradients(bad)):
        sent = rows.clone()
        for number, worker in enumerate(workers):
            if momentum == "workers" and not (absent and step == BAD_STEP and number == BAD_WORKER):
                sent[number] = worker.update(rows[number])
        if absent and step == BAD_STEP:
            sent[BAD_WORKER] = float("nan")
        seen.append(server.step(sent).vector)
    return torch.stack(seen)


@dataclasses.dataclass
class GivenGradients:
    """`Workers` whose gradients are given."""

    steps: list[Tensor]
    count: int = N
    accumulates: bool = False
    present: Tensor | None = None

    def __post_init__(self) -> None:
        self.parameters = torch.zeros(D)

    def ask(self, step: int) -> None: ...

    def sample(self, step: int, out: Tensor | None = None, clock: Clock = UNTIMED) -> tuple[Tensor, Tensor]:
        assert out is not None
        out.copy_(self.steps[step])
        finite = out.isfinite().all(dim=1)
        self.present = None if bool(finite.all()) else finite.nonzero().flatten()
        return torch.zeros(N), out

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: dict[str, Tensor]) -> None: ...


def simulated(rule: str, momentum: str, bad: bool) -> Tensor:
    """The round of the simulation and of the parameter server."""
    workers = GivenGradients(gradients(bad))
    config = RoundConfig(workers=workers, attack=None, byzantine=0, momentum=momentum, mu=MU, seed=1)
    server = RobustAggregator(rule, f=1, momentum=momentum, mu=MU)
    state = RoundState(config, server, WorkerMomentum(MU) if momentum == "workers" else None)
    seen = []
    for step in range(STEPS):
        workers.parameters.zero_()
        play_round(config, state, step, lr=1.0)
        seen.append(-workers.parameters.clone())
    return torch.stack(seen)


@by_rule
@by_bad
@pytest.mark.parametrize("momentum", ["workers", "server", "none", "server-kept"])
def test_the_simulation_is_the_two_objects(rule: str, momentum: str, bad: bool) -> None:
    assert torch.equal(simulated(rule, momentum, bad), own_loop(rule, momentum, bad))


@pytest.mark.slow
@by_rule
@by_bad
@pytest.mark.parametrize("momentum", ["workers", "server"])
def test_every_rank_of_robust_sgd_is_the_two_objects(
    rule: str, momentum: str, bad: bool, ranks: list[dict[str, Tensor]]
) -> None:
    expected = own_loop(rule, momentum, bad)
    assert len(ranks) == N
    for found in ranks:
        torch.testing.assert_close(found[f"{rule} {momentum} {bad}"], expected, rtol=1e-6, atol=1e-6)


@by_rule
@by_bad
@pytest.mark.parametrize("momentum", ["workers", "server"])
def test_flower_is_the_two_objects(rule: str, momentum: str, bad: bool) -> None:
    pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")
    assert torch.allclose(in_flower(rule, momentum, bad), own_loop(rule, momentum, bad), rtol=1e-5, atol=1e-5)


def in_flower(rule: str, momentum: str, bad: bool) -> Tensor:
    """A federation whose nodes add the given gradients to the arrays, with the mod where momentum is at the workers."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp
    from memory_grid import MemoryGrid, arrays_of, context, reply_with, server_round

    from gyroscope.integrations.flower import RobustStrategy, worker_momentum

    steps = gradients(bad)

    def node(number: int) -> object:
        app = ClientApp(mods=[worker_momentum(mu=MU)] if momentum == "workers" else [])

        @app.train()
        def answer(message: Message, _: Context) -> Message:
            step = steps[server_round(message) - 1][number].numpy()
            return reply_with(message, {"w": arrays_of(message)["w"] + step})

        here = context(number)
        return lambda message: app(message, here)

    strategy = RobustStrategy(rule, f=1, n=N, server_momentum=MU if momentum == "server" else 0.0)
    positions = [torch.zeros(D)]

    def follow(server_round: int, arrays: ArrayRecord) -> None:
        positions.append(torch.from_numpy(arrays["w"].numpy().copy()))

    start = ArrayRecord({"w": Array(np.zeros(D, dtype=np.float32))})
    grid = MemoryGrid({number + 1: node(number) for number in range(N)})  # type: ignore[misc]
    strategy.start(grid, start, num_rounds=STEPS, timeout=30, evaluate_fn=follow)
    moved = torch.stack(positions[1:])
    return moved[1:] - moved[:-1]


def test_an_asynchronous_worker_sends_what_worker_momentum_sends() -> None:
    placement, workers = AsyncPlacement("workers", N, MU), [WorkerMomentum(MU) for _ in range(N)]
    for version, rows in enumerate(gradients(bad=True)):
        for number, worker in enumerate(workers):
            sent = placement.sent(number, rows[number], version)
            torch.testing.assert_close(sent, worker.update(rows[number]), rtol=0, atol=0, equal_nan=True)


@by_rule
@pytest.mark.parametrize("momentum", ["workers", "server", "none", "server-kept"])
def test_after_a_nan_everything_is_as_if_its_worker_had_missed_that_round(rule: str, momentum: str) -> None:
    """In the paths above the same holds, because they equal this one."""
    bad, absent = own_loop(rule, momentum, bad=True), own_loop(rule, momentum, bad=False, absent=True)
    assert bool(bad.isfinite().all())
    for step in LATER:
        torch.testing.assert_close(bad[step], absent[step], rtol=0, atol=0)


@pytest.mark.slow
def test_a_run_through_worker_processes_is_the_simulation(tmp_path: object) -> None:
    from launching import gyroscope

    options = ("--workers", 5, "--rule", "krum", "--declared-byzantine", 1, "--steps", 8, "--threads", 1, "--quiet")
    found = []
    for command in ("train", "launch"):
        out = f"{tmp_path}/{command}"
        assert gyroscope(command, *options, "--out", out).code == 0
        found.append(gy.resume(out).model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
