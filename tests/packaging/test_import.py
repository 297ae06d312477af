"""`import gyroscope`: light, complete, typed, and nothing public by accident."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import gyroscope as gy
from gyroscope._core.errors import MissingExtraError
from gyroscope._core.optional import LAB, extra, require_lab

PACKAGE = Path(gy.__file__).parent
PUBLIC_PACKAGES = {
    "attacks", "cli", "distributed", "experiments", "integrations", "momentum", "report", "research", "rules", "runs",
    "simulation",
}  # fmt: skip


def loaded_by(code: str) -> list[str]:
    """The modules that a fresh Python has loaded after the code."""
    command = [sys.executable, "-c", f"import sys; {code}; print(*sorted(sys.modules))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_the_import_loads_one_module_and_not_torch() -> None:
    loaded = loaded_by("import gyroscope")
    assert [name for name in loaded if name.partition(".")[0] in ("gyroscope", "torch", "numpy")] == ["gyroscope"]


def test_the_rules_load_neither_the_lab_nor_numba_nor_the_rest_of_the_package() -> None:
    before = loaded_by("import torch")
    loaded = set(loaded_by("import gyroscope as gy; gy.rules; gy.aggregate")) - set(before)
    assert {*LAB, "numba"} & loaded == set()
    ours = [name for name in loaded if name.partition(".")[0] == "gyroscope"]
    assert len(ours) <= 70
    assert {name.split(".")[1] for name in ours if "." in name} == {"_core", "_linalg", "rules"}


@pytest.mark.parametrize("command", ["--help", "list"])
def test_help_and_list_do_not_wait_for_torch(command: str) -> None:
    code = f"import sys, gyroscope.cli\ntry: gyroscope.cli.main([{command!r}])\nexcept SystemExit: pass"
    assert {"torch", "numpy"} & set(loaded_by(code)) == set()


def test_training_and_the_command_line_load_none_of_the_lab() -> None:
    loaded = set(loaded_by("import gyroscope.cli; gyroscope.cli.parser(); gyroscope.train"))
    assert set(LAB) & (loaded - set(loaded_by("import torch"))) == set()


def test_a_run_of_one_step_loads_no_package_that_it_does_not_use(tmp_path: Path) -> None:
    """Not the lab, and with kernels from disk neither numba's compiler nor SciPy's linear algebra, which that loads."""
    options = ["train", "--steps", "1", "--quiet", "--overwrite", "--out", str(tmp_path / "run")]
    code = f"import gyroscope.cli; gyroscope.cli.main({options})"
    loaded_by(code)  # compiles what no earlier test has
    loaded = set(loaded_by(code)) - set(loaded_by("import torch"))
    assert {"numba", "gyroscope._linalg._kernels.compiled.matmul_loops"} <= loaded
    heavy = {*LAB, "sklearn", "sympy", "torch._dynamo", "torch._inductor", "scipy.linalg", "numba.np.arraymath"}
    used = {"tomli_w", "scipy"}  # config.toml; numba imports scipy, but none of its parts
    assert heavy & loaded == used


@pytest.mark.parametrize("name", gy.__all__)
def test_every_name_is_there_and_loaded_when_it_is_used(name: str) -> None:
    assert getattr(gy, name) is getattr(gy, name) is not None
    assert name in dir(gy)


def test_public_packages_need_no_import_of_their_own() -> None:
    code = "import gyroscope as gy; print(gy.distributed.RobustSGD.__name__, gy.simulation.__name__)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout == "RobustSGD gyroscope.simulation\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'gyroscope' has no attribute 'trian'"):
        gy.trian  # type: ignore[attr-defined]  # noqa: B018


def test_nothing_is_public_by_accident() -> None:
    modules = {module.name for module in pkgutil.iter_modules(gy.__path__)}
    for name in modules - {"__main__"}:
        importlib.import_module(f"gyroscope.{name}")  # becomes an attribute of the package
    names = {name for name in {*modules, *vars(gy), *dir(gy)} if not name.startswith("_")}
    assert names - set(gy.__all__) - PUBLIC_PACKAGES == set()
    assert modules >= PUBLIC_PACKAGES


def test_a_type_checker_sees_every_name() -> None:
    """The table that Python reads and the imports that a type checker reads are the same."""
    seen = {
        alias.asname or alias.name: f"{node.module}"
        for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    places = gy._PLACES
    assert set(seen) == set(places) and set(gy.__all__) - {"__version__"} <= set(places)
    for name, module in seen.items():
        assert places[name] in (f"{module}:{name}", f"{module}.{name}")
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.slow
def test_strict_mypy_knows_the_types(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gyroscope as gy\n"
        "reveal_type(gy.rules.make('krum'))\n"
        "reveal_type(gy.aggregate([], f=1).report.left_out)\n"
        "reveal_type(gy.train(gy.Config()))\n"
        "gy.trian\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), script]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    for shown in ("gyroscope.rules.base.Rule", "list[int | str]", "gyroscope.runs.result.Result"):
        assert f'Revealed type is "{shown}"' in said.replace("builtins.", "")
    assert said.count("error:") == 1 and 'has no attribute "trian"' in said


def test_a_missing_package_is_named_with_what_needs_it_and_what_installs_it() -> None:
    with pytest.raises(MissingExtraError) as problem, extra("lab", "the test"):
        import no_such_package.inside  # type: ignore[import-not-found]  # noqa: F401
    assert str(problem.value) == (
        "the test needs the package no_such_package, which is not installed: pip install 'gyroscope[lab]'"
    )
    broken = r"needs a package \(cannot import name 'nothing' from 'ast'"
    with pytest.raises(MissingExtraError, match=broken), extra("lab", "the test"):
        from ast import nothing  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize(("module", "package", "name"), [
    ("lightning", "lightning.pytorch.strategies", "lightning"), ("hugging_face", "transformers", "hugging-face"),
])  # fmt: skip
def test_an_integration_names_the_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, name: str
) -> None:
    for each in ("lightning", "lightning.pytorch", package):
        monkeypatch.setitem(sys.modules, each, None)
    monkeypatch.delitem(sys.modules, f"gyroscope.integrations.{module}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"integrations\.{module} needs .*gyroscope\[{name}\]"):
        importlib.import_module(f"gyroscope.integrations.{module}")


def test_the_whole_lab_is_looked_for_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_lab("the test")
    monkeypatch.setattr("gyroscope._core.optional.LAB", ("pandas", "no_such_package", "nor_this"))
    with pytest.raises(MissingExtraError, match=r"the test needs .*\(no_such_package, nor_this\): pip install 'gyros"):
        require_lab("the test")
