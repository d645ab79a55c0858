"""Reads and writes TFRecord files: each record is a length, its checksum, the payload, its checksum.

Many records are processed at once, without TensorFlow.
"""

import functools
import io
import os
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from albert.errors import DataError

HEADER_BYTES, FOOTER_BYTES = 12, 4  # length and its checksum; checksum of the payload
_FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES


# === Checksums ===


def masked_crc32c(content: bytes) -> int:
    """Returns the checksum that TensorFlow's files store for `content`."""
    return mask_crc(google_crc32c.value(content))


def mask_crc(crc: Any) -> Any:
    """Rotates and shifts a CRC-32C, or an array of them (uint64), as TensorFlow does.

    Data may contain CRCs themselves.
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _masked_crcs(contents: Sequence[bytes]) -> np.ndarray:
    """Returns `masked_crc32c` of each content, uint32 [N]."""
    crcs = np.fromiter(map(google_crc32c.value, contents), np.uint64, len(contents))
    return mask_crc(crcs).astype(np.uint32)


# === Writing ===


def frame_records(messages: Sequence[bytes]) -> bytes:
    """Returns the bytes of a TFRecord file with these messages."""
    footers = _masked_crcs(messages).astype("<u4").tobytes()
    parts = []
    for number, message in enumerate(messages):
        footer = footers[FOOTER_BYTES * number : FOOTER_BYTES * (number + 1)]
        parts += [_header_of(len(message)), message, footer]
    return b"".join(parts)


@functools.lru_cache(maxsize=1 << 14)  # few lengths differ
def _header_of(size: int) -> bytes:
    length = struct.pack("<Q", size)
    return length + struct.pack("<I", masked_crc32c(length))


# === Reading ===


def read_block(path: str, offset: int, size: int, first: int, count: int) -> list[bytes]:
    """Returns the payloads of `count` successive records in `size` bytes, after checking them.

    Args:
      offset: first byte of the block.
      first: number of its first record, for messages.

    Raises:
      DataError: the block cannot be read or is damaged; names record and byte.
    """
    content = read_range(path, offset, size)
    starts, sizes, end = _frames(path, io.BytesIO(content), len(content), offset, first)
    stops = starts + sizes
    spans = zip(starts.tolist(), stops.tolist(), strict=True)
    payloads = [content[start:stop] for start, stop in spans]
    stored = np.frombuffer(content, np.uint8)[stops[:, None] + np.arange(FOOTER_BYTES)]
    bad = np.flatnonzero(_masked_crcs(payloads) != stored.view("<u4")[:, 0])
    if len(bad):
        number = int(bad[0])
        raise _damaged(path, "corrupt", first + number, offset + int(starts[number]) - HEADER_BYTES)
    if len(starts) != count or end != size:
        how = "cut" if len(content) < size else "corrupt"
        raise _damaged(path, how, first + len(starts), offset + end)
    return payloads


def read_range(path: str, offset: int, size: int) -> bytes:
    """Returns the bytes of a file from `offset` on, fewer at its end; a DataError if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as stream:
            return os.pread(stream.fileno(), size, offset)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def scan(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the start and size of every payload, from the lengths alone; int64 [N] each.

    Raises:
      DataError: the file cannot be read, ends inside a record, or a length is damaged.
    """
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            starts, sizes, end = _frames(path, stream, size)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if end != size:
        raise _damaged(path, "cut", len(starts), end)
    return starts, sizes


def _frames(
    path: str, stream: BinaryIO, size: int, offset: int = 0, first: int = 0
) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the start and size of the payload of each complete record in a stream, and their end.

    Args:
      size: bytes of the stream.
      offset, first: byte of the file and number of the record with which it begins, for messages.
    """
    starts, sizes, at = [], [], 0
    while at + _FRAME_BYTES <= size:
        stream.seek(at)
        length = _size_in(stream.read(HEADER_BYTES))
        if length is None:
            raise _damaged(path, "corrupt", first + len(starts), offset + at)
        if at + _FRAME_BYTES + length > size:
            break
        starts.append(at + HEADER_BYTES)
        sizes.append(length)
        at += _FRAME_BYTES + length
    return np.array(starts, np.int64), np.array(sizes, np.int64), at


@functools.lru_cache(maxsize=1 << 14)  # few lengths differ
def _size_in(header: bytes) -> int | None:
    """Returns the payload's size in a header, None if the checksum is wrong."""
    size, crc = struct.unpack("<QI", header)
    return size if masked_crc32c(header[:8]) == crc else None


def _damaged(path: str, how: str, record: int, byte: int) -> DataError:
    return DataError(f"{path}: {how} after record {record:,} (byte {byte:,}): write it again")
