"""What a run's numbers may depend on besides its configuration: versions, threads, processor, commit."""

from __future__ import annotations

import contextlib
import datetime
import functools
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Return what the numbers of a run may depend on besides its configuration."""
    import numpy

    from gyroscope import __version__

    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gyroscope": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "command": sys.argv,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


@functools.cache
def _commit() -> str | None:
    """Return the commit of Gyroscope's source if it runs from a checkout, as it is when first asked for."""
    try:
        # An installed copy may be inside another repository: only one that tracks this very file is ours.
        _git("ls-files", "--error-unmatch", __file__)
        return _git("describe", "--always", "--dirty", "--abbrev=12") or None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
