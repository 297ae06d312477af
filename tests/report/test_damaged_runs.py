"""One bad run costs one line, not the report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gyroscope.cli import main
from gyroscope.experiments import results

DAMAGES = {
    "evaluations.csv": [b"", b"step,accuracy\n", b"\x00\xff\x00", b"step,accuracy\n0,abc\n", b"step,other\n0,1\n"],
    "metrics.csv": [None, b"", b"nonsense"],
    "config.toml": [b"rule = [", b"no_such_setting = 1", b"\xff\xfe"],
    "status.json": [b"{", b"[]", b'{"status": 3}', None],
}


@pytest.mark.parametrize(("name", "content"), [(name, each) for name, contents in DAMAGES.items() for each in contents])
def test_a_damaged_run_is_named_and_the_others_are_reported(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    good, *_ = sorted(path.parent for path in folder.glob("*/config.toml"))
    for place in ("good", "bad"):
        shutil.copytree(good, tmp_path / place)
    if content is None:
        (tmp_path / "bad" / name).unlink()
    else:
        (tmp_path / "bad" / name).write_bytes(content)
    assert main(["report", str(tmp_path), "--format", "md,csv"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("1 runs")
    if (name, content) != ("status.json", b'{"status": 3}'):  # that is a run of some other status, which has not ended
        assert said.err.count("left out") == 1 and str(tmp_path / "bad") in said.err


def test_links_to_runs_are_followed_once_and_a_circle_ends(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *_ = sorted(path.parent for path in folder.glob("*/config.toml"))
    (tmp_path / "mine").mkdir()
    for name, target in {"a": first, "b": first, "back": tmp_path, "more": tmp_path / "elsewhere"}.items():
        (tmp_path / "mine" / name).symlink_to(target)
    shutil.copytree(second, tmp_path / "elsewhere" / "c")
    assert main(["report", str(tmp_path / "mine"), "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("2 runs")


def test_a_run_is_named_by_its_own_folder_and_not_by_a_link_beside_it(folder: Path, tmp_path: Path) -> None:
    first = min(path.parent for path in folder.glob("*/config.toml"))
    shutil.copytree(first, tmp_path / "run")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    assert [run.path for run in results.load(tmp_path)] == [tmp_path / "run"]
