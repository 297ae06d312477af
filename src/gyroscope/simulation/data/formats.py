"""Parse the bytes of the published files into tensors; anything else raises a `DataError`.

The formats have a fixed layout (IDX, CIFAR's binary records, gzip, tar). Nothing is unpickled, because a pickle from a
stranger runs code. Every length is compared with the header before memory is reserved, so a damaged file yields a
message rather than a crash or a data set that is too short. The messages state the cause; the caller adds the remedy.
"""

from __future__ import annotations

import gzip
import io
import math
import tarfile
import zlib
from collections.abc import Collection

import torch

from gyroscope._core.errors import DataError

MAX_BYTES = 1 << 30
"""No published file comes near this; a gzip or tar bomb stops here instead of filling the memory."""

GZIP_MAGIC = b"\x1f\x8b"
CIFAR_RECORD = 1 + 3 * 32 * 32

_IDX_TYPES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
_IDX_NOUNS = {1: "labels", 3: "images"}


def gunzip(raw: bytes, what: str, limit: int = MAX_BYTES) -> bytes:
    """Decompress; damaged gzip data raises a `DataError`. `what` names the file in messages."""
    if not raw:
        raise DataError(f"{what} is empty.")
    if not raw.startswith(GZIP_MAGIC):
        raise DataError(f"{what} is not gzip data: it begins with {raw[:4]!r}.")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            content = stream.read(limit + 1)
    except EOFError:
        raise DataError(f"{what} is truncated: the gzip data stops before its end.") from None
    except (OSError, zlib.error) as error:
        raise DataError(f"{what} is corrupt: {error}.") from None
    if len(content) > limit:
        raise DataError(f"{what} unpacks to more than {limit:,} bytes, which no such file does.")
    return content


def read_tar(raw: bytes, names: Collection[str], what: str, limit: int = MAX_BYTES) -> dict[str, bytes]:
    """Return the regular files with these basenames from a .tar.gz archive; names that it lacks are left out.

    Nothing is written to disk and the folders inside the archive are ignored, so a hostile path such as `../../x` has
    no effect.
    """
    found: dict[str, bytes] = {}
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name not in names or name in found or not member.isreg() or member.issparse():
                    continue
                stream = archive.extractfile(member)
                content = stream.read(limit + 1) if stream is not None else b""
                if len(content) > limit:
                    raise DataError(f"{name} in {what} is larger than {limit:,} bytes, which no such file is.")
                if len(content) < member.size:
                    raise DataError(f"{what} is truncated: it stops within {name}.")
                found[name] = content
            # tar stops at its own end mark; only the end of the gzip data holds the checksum of it all.
            while unpacked.read(1 << 20):
                pass
    except EOFError:
        raise DataError(f"{what} is truncated: the archive stops before its end.") from None
    except (tarfile.TarError, OSError, zlib.error, ValueError, ArithmeticError, LookupError) as error:
        raise DataError(f"{what} is a corrupt archive: {error}.") from None
    return found


def read_idx(raw: bytes, what: str, dims: int | None = None) -> torch.Tensor:
    """Parse an IDX file of unsigned bytes; `dims` (1 for labels, 3 for images) also catches swapped files."""
    if len(raw) < 4:
        raise DataError(f"{what} is truncated: {len(raw)} bytes are too few even for an IDX header.")
    if raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise DataError(f"{what} is not an IDX file: it begins with {raw[:4]!r}.")
    if raw[2] != 0x08:
        raise DataError(f"{what} holds {_IDX_TYPES[raw[2]]} values; the data sets here consist of unsigned bytes.")
    rank = raw[3]
    if dims is not None and {rank, dims} == {1, 3}:
        raise DataError(
            f"{what} holds {_IDX_NOUNS[rank]} where {_IDX_NOUNS[dims]} are expected: the files seem to be swapped."
        )
    if dims is not None and rank != dims:
        raise DataError(f"{what} has {rank} dimensions where {dims} are expected.")
    if not 1 <= rank <= 4:
        raise DataError(f"{what} is not a usable IDX file: its header claims {rank} dimensions.")
    start = 4 + 4 * rank
    if len(raw) < start:
        raise DataError(f"{what} is truncated: {len(raw)} bytes, but its header alone takes {start}.")
    shape = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    noun = _IDX_NOUNS.get(rank, "items")
    if 0 in shape:
        raise DataError(f"{what} holds no {noun}: its header gives the shape {tuple(shape)}.")
    item = math.prod(shape[1:])
    size, promised = len(raw) - start, item * shape[0]
    if size < promised:
        raise DataError(f"{what} is truncated: its header promises {shape[0]:,} {noun}, {size // item:,} are there.")
    if size > promised:
        raise DataError(
            f"{what} is too long: its header promises {shape[0]:,} {noun} in {start + promised:,} bytes, "
            f"the file has {len(raw):,}."
        )
    # A bytearray is a copy that torch may own and write to; bytes would be shared and read-only.
    return torch.frombuffer(bytearray(memoryview(raw)[start:]), dtype=torch.uint8).reshape(shape)


def read_cifar_binary(raw: bytes, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Parse CIFAR-10's binary version: per record one label byte, then 3x32x32 pixels, channel by channel."""
    count, rest = divmod(len(raw), CIFAR_RECORD)
    if not raw:
        raise DataError(f"{what} is empty.")
    if rest:
        raise DataError(
            f"{what} is truncated or not CIFAR-10's binary version: {len(raw):,} bytes are no whole number of "
            f"records of {CIFAR_RECORD:,} bytes ({count:,} records and {rest:,} bytes)."
        )
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(count, CIFAR_RECORD)
    return records[:, 1:].reshape(count, 3, 32, 32).contiguous(), records[:, 0].to(torch.int64)
