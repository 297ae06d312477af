"""Dispatch, threads, child processes, and processes without numba or without a folder for its cache."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_inputs import fill, same
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._linalg import _kernels
from gyroscope._linalg._kernels import pairwise, row_updates, selections, sums, threads

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "median": selections.median,
    "mean_around_median": lambda matrix: selections.mean_around_median(matrix, 5),
    "squared_distances": pairwise.squared_distances,
    "by_parts": lambda matrix: torch.stack(pairwise.squared_distances_by_parts(matrix[:, :60_000], 5)),
    "scaled_distances": lambda matrix: pairwise.scaled_distances(matrix, matrix[:, :1].T.double())[0],
    "mixed_distances": lambda matrix: pairwise.mixed_distances(
        pairwise.squared_distances(matrix.T[:64].contiguous()), matrix.double().abs()[:, : 64 * 5].reshape(-1, 64)
    ),
    "gathered": lambda matrix: row_updates.finite_and_gathered(matrix, [torch.arange(0, 60_001, 3)])[1],
    "moments": lambda matrix: sums.moments(matrix).mean,
    "squares": lambda matrix: torch.tensor(sums.moments(matrix).squares, dtype=torch.float64),
    "products": lambda matrix: torch.tensor(sums.products(list(matrix)).dots, dtype=torch.float64),
}


@pytest.fixture
def matrix() -> Tensor:
    return fill(11, 60_001, 5, "normal", torch.float32)  # several pieces of work


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["openmp", "pool"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use both sources of threads: torch's OpenMP, and the pool of Python threads."""
    if request.param == "pool":
        monkeypatch.setattr(threads, "_openmp", lambda: None)
    elif threads._openmp() is None:
        pytest.skip("torch has no OpenMP here that we could call")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.usefixtures("source", "two_threads")
def test_the_number_of_threads_changes_no_bit(name: str, matrix: Tensor) -> None:
    many = FUNCTIONS[name](matrix)
    torch.set_num_threads(1)
    assert same(FUNCTIONS[name](matrix), many)


def test_one_thread_means_the_calling_thread(
    matrix: Tensor, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    torch.set_num_threads(1)
    for source in ("_openmp", "_threads"):
        monkeypatch.setattr(threads, source, lambda: pytest.fail("a second thread was used"))
    for function in FUNCTIONS.values():
        function(matrix)


def test_pieces_cover_all_columns_once() -> None:
    for n, d in ((1, 1), (51, 79_510), (25, 1_310_922), (3, 129), (300, 1000)):
        bounds = threads.pieces(n, d, 128).tolist()
        assert bounds[0] == 0 and bounds[-1] == d and bounds == sorted(set(bounds))
        assert all(bound % 128 == 0 for bound in bounds[:-1])


@pytest.mark.usefixtures("source", "two_threads")
def test_an_error_in_a_piece_reaches_the_caller() -> None:
    def work(begin: int, end: int) -> None:
        if begin <= 7 < end:
            raise RuntimeError("seven")

    with pytest.raises(RuntimeError, match="seven"):
        threads.spread(work, 10)


@pytest.mark.usefixtures("source", "two_threads")
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 40])
def test_each_piece_is_worked_on_once(count: int) -> None:
    done: list[int] = []
    for repetition in range(1, 51):
        threads.spread(lambda begin, end: done.extend(range(begin, end)), count)
        assert sorted(done) == sorted(repetition * list(range(count)))


@pytest.mark.usefixtures("source", "two_threads")
def test_called_from_several_threads_at_once(matrix: Tensor) -> None:
    expected = {name: function(matrix) for name, function in FUNCTIONS.items()}
    with ThreadPoolExecutor(4) as pool:
        calls = [(name, pool.submit(FUNCTIONS[name], matrix)) for _ in range(8) for name in FUNCTIONS]
        assert all(same(call.result(timeout=30), expected[name]) for name, call in calls)


def _results(values: NDArray[np.float32]) -> list[bytes]:
    matrix = torch.from_numpy(values)
    return [result.numpy().tobytes() for result in (selections.median(matrix), pairwise.squared_distances(matrix))]


def _child(connection: Connection, values: NDArray[np.float32]) -> None:
    # Nothing but kernels here: torch's own threads do not survive a fork, and its larger operations hang.
    torch.set_num_threads(2)
    connection.send(_results(values))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.usefixtures("two_threads")
def test_in_a_child_process(method: str, matrix: Tensor) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    expected = _results(matrix.numpy())
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, matrix.numpy()))
    child.start()
    try:
        assert ours.poll(60), "the child hangs"
        assert ours.recv() == expected
        child.join(30)
        assert child.exitcode == 0
    finally:
        child.kill()


def test_usable() -> None:
    matrix = torch.zeros(3, 4)
    assert _kernels.usable(matrix) and _kernels.usable(matrix.double()) and _kernels.usable(matrix[0])
    assert _kernels.usable(matrix[:, :2]) and _kernels.usable(matrix[::2]) and _kernels.usable(matrix[:1].expand(5, 4))
    assert _kernels.usable(torch.zeros(3, 1)) and _kernels.usable(matrix[:, :1])
    assert not _kernels.usable(matrix.t())
    assert not _kernels.usable(matrix.half())
    assert not _kernels.usable(matrix.to("meta"))
    assert not _kernels.usable(torch.zeros(3, 0))
    with _kernels.switched_off():
        assert not _kernels.usable(matrix)


def test_a_kernel_replaces_the_plain_function_where_it_takes_the_arguments() -> None:
    @_kernels.accelerated_by(lambda rows, factor=1: ("kernel", factor))
    def first_decides(rows: Tensor, factor: int = 1) -> tuple[str, int]:
        """Say something."""
        return "plain", factor

    @_kernels.accelerated_by(lambda *_: "kernel", _kernels.usable)
    def both_decide(rows: Tensor, others: Tensor) -> str:
        return "plain"

    rows = torch.zeros(3, 4)
    assert first_decides(rows) == ("kernel", 1) and first_decides(rows, factor=2) == ("kernel", 2)
    assert first_decides(rows.half()) == ("plain", 1) and first_decides.__doc__ == "Say something."
    assert both_decide(rows, rows[0]) == "kernel"
    assert both_decide(rows, rows.double()) == both_decide(rows, rows.t()) == "plain"
    with _kernels.switched_off():
        assert first_decides(rows, 2) == ("plain", 2) and both_decide(rows, rows) == "plain"


def test_without_numba_nothing_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kernels, "_installed", lambda: False)
    assert not _kernels.usable(torch.zeros(3, 4))


def test_importing_gyroscope_does_not_import_numba() -> None:
    code = "import sys, gyroscope, gyroscope._linalg._kernels; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_where_nothing_can_be_kept_it_still_compiles() -> None:
    from gyroscope._linalg._kernels.compiled import build

    scope: dict[str, Callable[[int], int]] = {}
    exec("def double(x): return 2 * x", scope)  # numba finds no file, hence no folder to keep it in
    assert build.kernel(scope["double"])(21) == 42


def test_machine_code_is_made_of_whole_kernels_only() -> None:
    import numba

    from gyroscope._linalg._kernels.compiled import build

    scope: dict[str, Any] = {}
    exec("def inner(x): return x + 1\ndef outer(x): return 2 * inner(x)\ndef other(x): return 3 * inner(x)", scope)
    scope["inner"], outer = build.helper(scope["inner"]), build.kernel(scope["outer"])
    assert outer(20) == 42
    (part,), (whole,) = scope["inner"].overloads.values(), outer.overloads.values()
    engine = whole.codegen._engine
    assert engine.is_symbol_defined(whole.fndesc.llvm_func_name)
    assert not engine.is_symbol_defined(part.fndesc.llvm_func_name)
    assert numba.njit(scope["other"])(13) == 42  # what is compiled later, by others, can call it too
    assert type(whole.codegen.create_library("another")) is type(whole.codegen)._library_class
    assert part.library.get_pointer_to_function("no such function") == 0
    assert part.library.get_pointer_to_function(part.fndesc.llvm_func_name) != 0


@pytest.mark.slow
def test_a_kernel_says_so_when_it_is_compiled_and_nobody_compiles_the_others(tmp_path: Path) -> None:
    script = "import torch; from gyroscope._linalg import matrix; matrix.squared_lengths(torch.ones(2, 3))"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stderr.splitlines())
    assert said == [["gyroscope: compiling the kernel `row_sums` for later runs, too"], []]


@pytest.mark.slow
def test_of_several_ranks_one_says_what_is_compiled(tmp_path: Path) -> None:
    script = "import torch; from gyroscope._linalg import matrix; matrix.squared_lengths(torch.ones(2, 3))"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "LOCAL_RANK": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.rglob("*.nbc"))


ELSEWHERE = """
import re, torch
import llvmlite.binding as llvm
from gyroscope._linalg._kernels import compiled, pairwise

pairwise.squared_distances(torch.randn(5, 300))
(code,) = compiled.pairwise_loops.squares.inspect_llvm().values()
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
for triple, cpu, register in (
    ("x86_64-unknown-linux-gnu", "haswell", "%ymm"),
    ("x86_64-unknown-linux-gnu", "skylake-avx512", "%ymm"),
    ("aarch64-unknown-linux-gnu", "neoverse-n1", ".4s"),
):
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    moved = re.sub(r'target triple = ".*"', f'target triple = "{triple}"', code)
    moved = re.sub(r'target datalayout = ".*"', f'target datalayout = "{machine.target_data}"', moved)
    moved = re.sub(r'"target-(cpu|features)"="[^"]*"', "", moved)
    print(cpu, machine.emit_assembly(llvm.parse_assembly(moved)).count(register))
"""


@pytest.mark.slow
def test_the_vectors_are_those_of_other_processors_too(tmp_path: Path) -> None:
    """Machine code for AVX2, AVX-512 and NEON, from code that was not optimised for this processor."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split() for line in done.stdout.splitlines())
    assert {*found} == {"haswell", "skylake-avx512", "neoverse-n1"} and all(
        int(count) > 100 for count in found.values()
    )


def test_a_change_in_any_source_is_noticed() -> None:
    from gyroscope._linalg._kernels.compiled import build, selection_loops

    assert build._DIGEST in selection_loops.columns.__qualname__
