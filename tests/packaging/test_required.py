"""With GYROSCOPE_REQUIRE_ALL, as in .ci/run, what is missing is a failure and not a skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULE = """
import pytest

@pytest.fixture
def browser():
    pytest.skip("there is no chromium")

def test_in_a_fixture(browser): ...

@pytest.mark.skipif(True, reason="set GYROSCOPE_DATA")
def test_by_a_mark(): ...

@pytest.mark.skipif(True, reason="needs pip install --no-deps byzfl")
def test_that_may_be_missing(): ...

@pytest.mark.xfail(strict=True)
def test_that_fails_as_it_should(): assert False
"""


@pytest.mark.parametrize(
    ("required", "outcome"), [("", "4 skipped, 1 xfailed"), ("1", "1 skipped, 1 xfailed, 3 errors")]
)
def test_what_is_missing(tmp_path: Path, required: str, outcome: str) -> None:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(MODULE)
    (tmp_path / "test_flower.py").write_text("import pytest\npytest.importorskip('no_such', reason='NO FLOWER')\n")
    command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
    environment = {**os.environ, "GYROSCOPE_REQUIRE_ALL": required}
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert outcome in finished.stdout.splitlines()[-1], finished.stdout
    assert (finished.returncode == 0) is not bool(required)
