"""revoked.txt: which certificates do not count any more, reread while the server runs."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gyroscope._core.errors import CertificateError
from gyroscope._core.foreign_text import quoted, shortened

REVOKED = "revoked.txt"
"""The list's name in the folder of an authority, and of a server."""
HEADER = """\
# Certificates that do not count any more, one per line: serial number (hexadecimal), name, date.
# `gyroscope keys revoke NAME` adds a line. A running server reads the file again when it has changed.
"""
_LARGEST = 16_000_000
_SERIAL = re.compile(r"[0-9A-Fa-f]{1,40}")


class RevocationList:
    """The serial numbers in a file that may change at any time.

    Where there is no file, nobody is revoked. A changed file that cannot be read leaves the last good content in force,
    and so does a file that disappears later: a slip in an editor must not let a revoked worker back in.

    It may be used by several threads. It looks at the file at most once per `interval`, and reads it only when its
    modification time, size or inode has changed.

    Args:
        path: The file; see HEADER for its format.
        report: Called with a message when the file cannot be used, once per problem, in the thread that has noticed it.
        interval: For how many seconds an answer may be old.

    Raises:
        CertificateError: The file is there and cannot be read: without any good content the server must not start.
    """

    def __init__(
        self, path: str | os.PathLike[str], report: Callable[[str], None] | None = None, interval: float = 1.0
    ) -> None:
        self.path = Path(path)
        self.problem = ""
        """Why the file as it is now is not in force; empty when it is."""
        self._report = report
        self._interval = interval
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._seen: tuple[int, int, int] | None = None
        self._serials: frozenset[int] = frozenset()
        try:
            self._refresh()
        except OSError as problem:
            raise CertificateError(
                f"cannot read {self.path} ({problem.strerror}): let the user who runs this read it"
            ) from problem

    def is_revoked(self, serial: int) -> bool:
        """Return whether the certificate with this serial number is revoked. No state of the file raises an error."""
        news = ""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= self._interval:
                self._looked = now
                try:
                    self._refresh()
                    problem = ""
                except (OSError, CertificateError) as error:
                    cause = str(error) if isinstance(error, CertificateError) else f"{self.path}: {error.strerror}"
                    problem = f"{cause}. The {len(self._serials)} revocations read before stay in force"
                news, self.problem = problem if problem != self.problem else "", problem
            revoked = serial in self._serials
        if news and self._report:
            self._report(news)  # without the lock: it may ask us something
        return revoked

    def _refresh(self) -> None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            if self._seen is None:
                return
            raise
        # Looked at before the file is read: a change in between is seen the next time.
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            if stat.S_ISFIFO(status.st_mode) or status.st_size > _LARGEST:  # to read a pipe may never end
                raise CertificateError(f"{self.path} is no file of at most {_LARGEST:,} bytes: write it anew")
            self._serials = parse_revoked(self.path.read_bytes(), self.path)
            self._seen = seen


def parse_revoked(content: bytes, path: Path) -> frozenset[int]:
    """Return the serial numbers of a revoked.txt.

    Args:
        content: The file's bytes.
        path: The file's name, for the error.

    Raises:
        CertificateError: A line does not begin with a serial number; the message names it.
    """
    try:
        lines = content.decode("utf-8-sig").splitlines()  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as problem:
        raise CertificateError(f"{path} is no text in UTF-8 ({shortened(problem)}): save it as plain text") from problem
    serials = set()
    for number, line in enumerate(lines, 1):
        fields = line.partition("#")[0].split()
        if fields:
            digits = fields[0].replace(":", "")  # openssl separates the bytes with colons
            if not _SERIAL.fullmatch(digits):
                raise CertificateError(
                    f"{path}, line {number}: {quoted(fields[0])} is no serial number of at most 40 hexadecimal digits; "
                    "write SERIAL NAME DATE, or put # before a comment"
                )
            serials.add(int(digits, 16))
    return frozenset(serials)
