"""The wheel as a stranger installs it: torch, NumPy and numba beside it, and nothing of the lab."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gyroscope._core.optional import LAB

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEPENDENCIES = {"torch", "numpy", "numba"}
INSTALL = "pip install 'gyroscope[lab]'"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, ROOT]
    subprocess.run(command, check=True)
    (built,) = out.glob("gyroscope-*.whl")
    return built


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and links to what it requires, directly or not, of what is installed here."""
    place = tmp_path_factory.mktemp("home")
    venv.create(place, with_pip=False, symlinks=True)
    target = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    for name in _closure(DEPENDENCIES):
        distribution = metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        assert tops, f"{name} does not say which files it has"
        for top in tops:
            source, link = Path(str(distribution.locate_file(top))), target / top
            if source.exists() and not link.exists():
                link.symlink_to(source)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    subprocess.run([*pip, "check"], check=True)
    return place


def _closure(names: set[str]) -> set[str]:
    """The distributions and all that they require here."""
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        found.add(name)
        for line in metadata.distribution(name).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting |= {canonicalize_name(requirement.name)} - found
    return found


def run(home: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Run in the environment, in its folder and without what this environment sets."""
    return subprocess.run(
        [str(home / "bin" / str(command[0])), *map(str, command[1:])],
        cwd=home,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "gyroscope"
    wanted = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_the_wheel_requires_torch_numpy_and_numba_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(archive.read(name).decode())
    requirements = [Requirement(line) for line in said.get_all("Requires-Dist", [])]
    plain = {each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})}
    assert plain == DEPENDENCIES
    extras = {
        "bench", "dev", "docs", "flower", "hugging-face", "lab", "lightning", "mlflow", "slurm", "tensorboard", "wandb"
    }  # fmt: skip
    assert set(said.get_all("Provides-Extra", [])) == extras
    lab = {each.name for each in requirements if each.marker and each.marker.evaluate({"extra": "lab"})}
    modules = {"scikit-learn": "sklearn", "tomli-w": "tomli_w"}
    assert {modules.get(name, name) for name in lab - DEPENDENCIES - {"tomli"}} == set(LAB)


def test_nothing_of_the_lab_is_there(home: Path) -> None:
    names = (*LAB, "pytest", "pip")
    code = f"import importlib.util as u; print([name for name in {names} if u.find_spec(name)])"
    finished = run(home, "python", "-c", code)
    assert finished.stdout.strip() == "[]", finished.stderr


def test_rules_state_dicts_and_training_work_without_the_lab(home: Path) -> None:
    script = home / "script.py"
    script.write_text(
        """
import sys
import gyroscope as gy

assert "torch" not in sys.modules
import torch
from gyroscope._linalg import _kernels, distances

rows = torch.randn(9, 5000, generator=torch.Generator().manual_seed(1))
rows[-2:] = torch.nan
assert _kernels.usable(rows)
fast = gy.rules.make("median")(rows, f=2).vector, distances.squared_distances(rows[:7])
with _kernels.switched_off():
    plain = gy.rules.make("median")(rows, f=2).vector, distances.squared_distances(rows[:7])
assert torch.equal(fast[0], plain[0])
torch.testing.assert_close(fast[1], plain[1])
krum = gy.rules.make("krum")(rows, f=2)
assert krum.vector.isfinite().all() and krum.weight[-2:].tolist() == [0, 0]
assert "numba" in sys.modules

model = torch.nn.Linear(3, 2)
states = [{key: value + k for key, value in model.state_dict().items()} for k in (0, 1, 2, 3, float("nan"))]
result = gy.aggregate(states, "median", f=1)
torch.testing.assert_close(result.state_dict["bias"], model.bias.detach() + 2)

inputs, targets = torch.randn(60, 4), torch.arange(60) % 2
task = gy.Task(torch.nn.Linear(4, 2), (inputs, targets), (inputs, targets), torch.nn.functional.cross_entropy)
trained = gy.train(gy.Config(rule="krum", attack="little", byzantine=1, workers=7, batch=4, steps=5), task=task)
assert trained.status == "complete" and 0 <= trained.max_accuracy <= 1
for call in (lambda: trained.metrics, lambda: gy.train(gy.Config(steps=1)), lambda: gy.Config().to_toml()):
    try:
        call()
    except gy.errors.MissingExtraError as problem:
        print(problem)
    else:
        raise AssertionError("nothing was missing")
""",
        encoding="utf-8",
    )
    finished = run(home, "python", script)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == [
        f"the table of a result needs the package pandas, which is not installed: {INSTALL}",
        f"the task digits needs the package sklearn, which is not installed: {INSTALL}",
        f"writing a configuration file needs the package tomli_w, which is not installed: {INSTALL}",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        "train",
        "demo",
        "reproduce mnist",
        "sweep zoo",
        "report .",
        "launch --workers 3",
        "async",
    ],
)
def test_commands_that_need_the_lab_say_what_to_install(home: Path, arguments: str) -> None:
    finished = run(home, "gyroscope", *arguments.split())
    assert (finished.returncode, finished.stdout) == (2, "")
    (said,) = finished.stderr.splitlines()
    assert said.startswith("gyroscope: error: ") and "pandas" in said and said.endswith(INSTALL)


@pytest.mark.parametrize("arguments", ["--version", "--help", "train --help", "list", "list rules"])
def test_commands_that_need_no_lab(home: Path, arguments: str) -> None:
    finished = run(home, "gyroscope", *arguments.split())
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "gyroscope" in finished.stdout or "krum" in finished.stdout
