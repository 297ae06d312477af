"""A disk that is really small, and really full. Needs root: it is a file system of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


class CannotMountError(Exception):
    """A small disk cannot be mounted here; the text says why."""


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of that size in a folder of that name."""
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        raise CannotMountError("only root can mount a small disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        raise CannotMountError(f"mounting a small disk is not permitted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)


def fill(path: Path) -> None:
    """Write until nothing fits any more."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
