"""Searches for garbage are put off where nearly everything stays, and only there."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch

from gyroscope import cli
from gyroscope._core.garbage import no_collection


def test_collection_is_off_within_the_block_and_as_before_after_it() -> None:
    assert gc.isenabled()
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), no_collection():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_command_freezes_what_it_has_imported_but_not_the_objects_of_another_program() -> None:
    assert torch.__name__ in sys.modules
    before = gc.get_freeze_count()
    assert cli.main(["list", "rules"]) == 0
    assert gc.get_freeze_count() == before and gc.isenabled()
    code = "import gc, gyroscope.cli; gyroscope.cli.main(['list']); print(gc.isenabled(), gc.get_freeze_count() > 1000)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["True", "True"]
