"""Write files so that no reader ever sees half of one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

PART = ".part"
"""The suffix of a file that is still being written."""


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Create or replace a file, and the folders above it.

    A reader, or a crash at any moment, sees the old content or the new one. Raises OSError where the disk refuses, and
    leaves nothing behind then.

    Args:
        path: The file.
        content: All of its content.
        mode: Who may read and write it, less what the umask takes away. No moment gives others more than this.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile: its mode 0600 would shut out other users of a shared folder.
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}{PART}")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
