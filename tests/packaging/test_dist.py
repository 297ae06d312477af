"""What `make dist` builds: a source distribution, and a wheel from it, that PyPI takes and a fresh environment runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import gyroscope as gy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STRAY = (
    "my-runs/a/config.toml",
    "runs/b/model.pt",
    "src/gyroscope/__pycache__/x.pyc",
    ".hypothesis/y",
    ".venv-2/z",
    "keys/k",
)
pytest.importorskip("build", reason="needs the extra dev")


def tracked() -> list[str]:
    """The files under version control; in an unpacked source distribution, its own."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this system cannot tell: the tests are not in a checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command of `make dist` builds from a copy of the checkout, with files beside it that do not belong."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in [*tracked(), *STRAY]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes() if name not in STRAY else b"")
    assert "$(BIN)/python -m build --no-isolation --outdir dist .\n" in (ROOT / "Makefile").read_text()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return out


def archive(dist: Path, ending: str) -> Path:
    (found,) = dist.glob(f"gyroscope-{gy.__version__}*{ending}")
    return found


def metadata(dist: Path) -> Message:
    with zipfile.ZipFile(archive(dist, ".whl")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(wheel.read(name).decode())


def test_twine_finds_nothing_to_complain_about(dist: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    finished = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert finished.returncode == 0 and finished.stdout.count("PASSED") == 2, finished.stdout


def test_the_source_holds_what_is_under_version_control_and_nothing_else(dist: Path) -> None:
    with tarfile.open(archive(dist, ".tar.gz")) as source:
        held = {member.name.partition("/")[2] for member in source.getmembers() if member.isfile()}
        size = sum(member.size for member in source.getmembers())
    known = set(tracked())
    assert {name for name in known - held if not name.startswith(".")} == set(), "name it in only-include"
    assert held - known == {"PKG-INFO"}
    assert size < 40e6


def test_the_metadata_say_what_it_is(dist: Path) -> None:
    said = metadata(dist)
    assert said["Version"] == gy.__version__ and said["License-Expression"] == "Apache-2.0"
    classifiers = said.get_all("Classifier", [])
    assert "Development Status :: 4 - Beta" in classifiers and "Typing :: Typed" in classifiers
    assert not [line for line in classifiers if line.startswith("License ::")]  # PEP 639: the expression says it
    with zipfile.ZipFile(archive(dist, ".whl")) as wheel:
        assert "gyroscope/py.typed" in wheel.namelist()


def test_the_page_on_pypi_has_no_link_or_picture_that_leads_nowhere(dist: Path) -> None:
    page = str(metadata(dist).get_payload())
    assert page.startswith("# Gyroscope") and "pip install" in page
    links = re.findall(r"\]\(([^)\s]+)\)|<(?:img|a|source)[^>]*(?:src|srcset|href)=\"([^\"]+)\"", page)
    assert [link for pair in links for link in pair if link and not link.startswith(("https:", "http:"))] == []


def test_the_changelog_has_this_version_with_a_date_and_a_tag() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = re.escape(gy.__version__)
    assert re.search(rf"^## \[{version}\] - \d{{4}}-\d\d-\d\d\n\nTag: `v{version}`", text, re.MULTILINE)


def test_a_fresh_environment_runs_it(dist: Path, tmp_path: Path) -> None:
    """The environment sees what is installed here, but for gyroscope itself, and has the wheel besides."""
    home = tmp_path / "home"
    venv.create(home, with_pip=False, symlinks=True)
    target = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    # Lines of a .pth file in a folder that is named like this are not read, so that no checkout is found.
    (target / "installed_here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(archive(dist, ".whl"))], check=True)

    def run(*arguments: str) -> str:
        finished = subprocess.run(
            [str(home / "bin" / arguments[0]), *arguments[1:]],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        said = [line for line in finished.stderr.splitlines() if not line.startswith("gyroscope: compiling the kernel")]
        assert (finished.returncode, said) == (0, []), finished.stderr
        return finished.stdout

    assert run("python", "-c", "import gyroscope; print(gyroscope.__file__)").startswith(str(target))
    assert run("gyroscope", "--version") == f"gyroscope {gy.__version__}\n"
    assert "krum" in run("gyroscope", "list", "rules")
    assert "final accuracy" in run("gyroscope", "train", "--task", "digits", "--steps", "1", "--quiet")
