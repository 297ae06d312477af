"""Every test here has its own cache and no folder of the user's, so nothing of the machine shines through."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GYROSCOPE_DATA", raising=False)
    monkeypatch.setenv("GYROSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"
