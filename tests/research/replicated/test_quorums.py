"""The bounds on servers, workers and quorums, and whom one hears."""

from __future__ import annotations

import pytest
import torch
from replicas import TASK, config

import gyroscope as gy
from gyroscope._core.errors import ConfigError, GyroscopeError, InfeasibleError
from gyroscope.research.replicated import quorums
from gyroscope.research.replicated.replicated_config import ResolvedReplicatedConfig
from gyroscope.runs.config import ResolvedConfig


@pytest.mark.parametrize("kind", ["servers", "workers"])
@pytest.mark.parametrize("f", [1, 2, 5])
def test_exactly_the_quorums_from_2f_plus_3_to_n_minus_f_are_feasible(kind: str, f: int) -> None:
    for n in range(3 * f, 3 * f + 8):
        for quorum in range(n + 2):
            if n >= 3 * f + 3 and 2 * f + 3 <= quorum <= n - f:
                quorums.check(kind, n, f, quorum)
            else:
                with pytest.raises(InfeasibleError):
                    quorums.check(kind, n, f, quorum)


def test_with_nobody_to_tolerate_any_quorum_will_do() -> None:
    for n in (1, 2, 7):
        for quorum in range(1, n + 1):
            quorums.check("servers", n, 0, quorum)
        for quorum in (0, n + 1):
            with pytest.raises(InfeasibleError):
                quorums.check("servers", n, 0, quorum)


def test_the_errors_name_bound_and_remedy() -> None:
    with pytest.raises(InfeasibleError, match=r"n >= 3f \+ 3 = 9 servers for f = 2, got n = 8: use 9 servers, or lower "
                       r"declared_byzantine_servers to 1"):  # fmt: skip
        quorums.check("servers", 8, 2, 7)
    with pytest.raises(InfeasibleError, match=r"2f \+ 3 = 7 and at most n - f = 8.*got 9: set worker_quorum"):
        quorums.check("workers", 10, 2, 9)


SERVERS = {"servers": 6, "byzantine_servers": 1, "server_attack": "sign-flip"}


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({**SERVERS, "servers": 5}, InfeasibleError, "use 6 servers"),
        ({**SERVERS, "server_quorum": 4}, InfeasibleError, "2f [+] 3 = 5"),
        ({**SERVERS, "server_quorum": 6}, InfeasibleError, "n - f = 5"),
        ({**SERVERS, "declared_byzantine": 3}, InfeasibleError, "use 12 workers"),
        ({**SERVERS, "declared_byzantine": 2, "worker_quorum": 6}, InfeasibleError, "2f [+] 3 = 7"),
        ({**SERVERS, "declared_byzantine": 2, "rule": "bulyan"}, InfeasibleError, "Bulyan needs"),
        ({**SERVERS, "momentum": "server-kept"}, ConfigError, "use workers or server or none"),
        ({**SERVERS, "rule": "fltrust", "trusted": 20}, ConfigError, "use another rule"),
        ({**SERVERS, "adapt": "mu"}, ConfigError, "two kinds of runs .* leave out adapt or leave out servers, byz"),
        ({**SERVERS, "server_attack": "none"}, ConfigError, "or neither"),
        ({**SERVERS, "byzantine_servers": 0}, ConfigError, "or neither"),
        ({**SERVERS, "declared_byzantine_servers": 0}, ConfigError, "declare 1"),
        ({"servers": 3, "attack": "little", "byzantine": 2, "declared_byzantine": 1}, ConfigError, "declare 2"),
        ({"byzantine_servers": 1}, ConfigError, "set servers to more"),
        ({"server_attack": "nan"}, ConfigError, "set servers to more"),
        ({"exchange_every": 2}, ConfigError, "set servers to more"),
        ({"worker_quorum": 9}, ConfigError, "worker_quorum is for .* set servers to more"),
        ({"servers": 0}, ConfigError, "servers must be at least 1"),
        ({**SERVERS, "server_attack": "sign-flop"}, GyroscopeError, "did you mean 'sign-flip'"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value if isinstance(value, str) else value.__name__,
)  # fmt: skip
def test_what_cannot_be_raises_before_anything_runs(values: dict[str, object], kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        config(**{"workers": 11, **values}).resolve(TASK)


def test_what_is_left_out_waits_for_all_that_one_can_wait_for() -> None:
    filled = config(**SERVERS, declared_byzantine=2).resolve(TASK)
    assert isinstance(filled, ResolvedReplicatedConfig)
    assert (filled.declared_byzantine_servers, filled.server_quorum, filled.worker_quorum) == (1, 5, 7)
    assert type(config().resolve(TASK)) is ResolvedConfig  # with one server there is nothing to wait for


def test_worker_processes_have_one_server() -> None:
    with pytest.raises(ConfigError, match="simulation only"):
        gy.train(config(servers=3), task=TASK, worker_factory=lambda config, honest: honest)


def test_a_receiver_hears_as_many_as_it_waits_for_and_itself() -> None:
    for step in range(20):
        heard = quorums.draw(3, "models", 2, step, among=6, count=4, own=2).tolist()
        assert len(set(heard)) == 4 and heard == sorted(heard) and 2 in heard and set(heard) <= set(range(6))
        assert heard == quorums.draw(3, "models", 2, step, among=6, count=4, own=2).tolist()
        others = quorums.draw(3, "rows", 2, step, among=6, count=4).tolist()
        assert len(set(others)) == 4 and others == sorted(others) and set(others) <= set(range(6))
    assert quorums.draw(3, "models", 0, 0, among=5, count=5, own=0).tolist() == [0, 1, 2, 3, 4]
    assert quorums.draw(3, "models", 4, 0, among=5, count=1, own=4).tolist() == [4]


def test_who_is_heard_changes_with_step_receiver_and_seed_and_favours_nobody() -> None:
    def heard(seed: int, receiver: int, own: int | None = None) -> torch.Tensor:
        counts = torch.zeros(6)
        for step in range(600):
            counts[quorums.draw(seed, "models", receiver, step, among=6, count=3, own=own)] += 1
        return counts / 600

    assert (heard(1, 0) - 0.5).abs().max() < 0.08
    with_own = heard(1, 3, own=3)
    assert with_own[3] == 1 and (with_own[[0, 1, 2, 4, 5]] - 0.4).abs().max() < 0.08

    def sequence(seed: int, receiver: int) -> list[list[int]]:
        return [quorums.draw(seed, "models", receiver, step, among=6, count=3).tolist() for step in range(10)]

    assert len({str(sequence(seed, receiver)) for seed in (1, 2) for receiver in (0, 1)}) == 4
    assert len({str(heard) for heard in sequence(1, 0)}) > 1
