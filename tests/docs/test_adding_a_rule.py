"""docs/adding-a-rule.md, followed to the letter: its rule passes the suite, and is found in another package."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-rule.md").read_text(encoding="utf-8")
RULE, ORACLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PYPROJECT,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(COMMAND,) = re.findall(r"^    gyroscope (train .*)$", PAGE, re.MULTILINE)

# What the page asks for, done from outside: the entry in the table before the suite reads it, and the oracle.
PLUGIN = """
import midrange, gyroscope.rules
gyroscope.rules.RULES["trimmed-midrange"] = gyroscope.rules.TrimmedMidrange = midrange.TrimmedMidrange

def pytest_collection_modifyitems():
    import oracles
    exec(open("oracle.py").read(), vars(oracles))
    oracles.RULE_ORACLES["trimmed-midrange"] = oracles.trimmed_midrange
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Write the files of the page's package."""
    (tmp_path / "midrange.py").write_text(RULE)
    (tmp_path / "oracle.py").write_text(ORACLE)
    (tmp_path / "plugin.py").write_text(PLUGIN)
    return tmp_path


def install(package: Path) -> None:
    """Write what an installation leaves beside the module: the package's name, its version and its entry points."""
    project = tomllib.loads(PYPROJECT)["project"]
    info = package / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def python(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(package), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, timeout=600)


def suite(package: Path, part: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the suite for this rule alone."""
    options = ("-q", "-p", "plugin", "-p", "no:cacheprovider", "-n", "0", "-k", "trimmed-midrange", *options)
    settings = ("-c", str(ROOT / "pyproject.toml"))
    return python(package, "-m", "pytest", str(ROOT / "tests" / "rules" / part), *settings, *options)


def test_the_rule_of_the_page_passes_the_suite(package: Path) -> None:
    done = suite(package, ".")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 50 and "failed" not in done.stdout


def test_a_broken_rule_does_not_pass_the_suite(package: Path) -> None:
    """It leaves out no row, so that one huge value decides the result."""
    broken = RULE.replace("ordered[f] / 2 + ordered[-1 - f] / 2", "ordered[0] / 2 + ordered[-1] / 2")
    assert broken != RULE
    (package / "midrange.py").write_text(broken)
    done = suite(package, "test_rule_guarantees.py", "-x", "-k", "trimmed-midrange and one_bad_value")
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]


def test_the_package_of_the_page_is_found_by_its_entry_point(package: Path) -> None:
    missing = python(package, "-m", "gyroscope", *shlex.split(COMMAND), "--steps", "3", "--quiet")
    assert missing.returncode == 2 and "trimmed-midrange" in missing.stderr
    install(package)
    done = python(package, "-m", "gyroscope", *shlex.split(COMMAND), "--steps", "3", "--quiet", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert 'rule = "midrange:TrimmedMidrange"' in (package / "run" / "config.toml").read_text()


def test_the_package_of_the_page_is_listed_with_its_name(package: Path) -> None:
    install(package)
    with (package / "midrange-0.1.dist-info" / "entry_points.txt").open("a") as points:
        points.write("gone = nowhere_at_all:Gone\n[gyroscope.attacks]\nnothing = midrange:TrimmedMidrange\n")
    done = python(package, "-m", "gyroscope", "list")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert "package midrange 0.1" in lines["trimmed-midrange"] and "n >= 2f + 1" in lines["trimmed-midrange"]
    assert "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all'" in lines["gone"]
    assert "package midrange 0.1" in lines["nothing"]
    assert "package" not in lines["krum"]
    broken = python(package, "-m", "gyroscope", "train", "--rule", "gone")
    assert broken.returncode == 2 and "cannot import rule 'gone'" in broken.stderr
