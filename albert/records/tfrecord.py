"""Reads and writes TFRecord files: each record is a length, its checksum, the payload, its checksum.

Many records are processed at once, without TensorFlow.
"""

import functools
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np

from albert.errors import DataError

HEADER_BYTES, FOOTER_BYTES = 12, 4  # length and its checksum; checksum of the payload
_FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_CHUNK_BYTES = 256 << 10  # read at once


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


def read_records(path: str) -> Iterator[bytes]:
    """Yields the payload of every record after checking it.

    Raises:
      DataError: a record is damaged; names its number and byte.
    """
    for content, starts, sizes, offset, first in _chunks(path):
        yield from _payloads(path, content, starts, sizes, offset, first)


def read_block(path: str, offset: int, size: int, first: int, count: int) -> list[bytes]:
    """Returns the payloads of `count` successive records in `size` bytes, after checking them.

    Args:
      offset: first byte of the block.
      first: number of its first record, for messages.

    Raises:
      DataError: the block cannot be read or is damaged; names record and byte.
    """
    content = read_range(path, offset, size)
    starts, sizes = _split(path, content, offset, first)
    payloads = _payloads(path, content, starts, sizes, offset, first)
    end = int(starts[-1] + sizes[-1]) + FOOTER_BYTES if len(starts) else 0
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


def count_records(path: str) -> int:
    """Returns the number of records, from the lengths alone; see `scan`."""
    return len(scan(path)[0])


def scan(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the start and size of every payload, from the lengths alone; int64 [N] each.

    Raises:
      DataError: the file cannot be read, ends inside a record, or a length is damaged.
    """
    starts, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for _, begins, lengths, offset, _ in _chunks(path):
        starts.append(begins + offset)
        sizes.append(lengths)
    return np.concatenate(starts), np.concatenate(sizes)


def _chunks(path: str) -> Iterator[tuple[bytes, np.ndarray, np.ndarray, int, int]]:
    """Yields (content, starts, sizes, first byte, first record) of successive chunks of records."""
    offset, first, size = 0, 0, _CHUNK_BYTES
    while content := read_range(path, offset, size):
        starts, sizes = _split(path, content, offset, first)
        if not len(starts):
            if len(content) < size:
                raise _damaged(path, "cut", first, offset)
            size *= 2  # a record is larger than the chunk
            continue
        yield content, starts, sizes, offset, first
        offset += int(starts[-1] + sizes[-1]) + FOOTER_BYTES
        first, size = first + len(starts), _CHUNK_BYTES


def _split(
    path: str, content: bytes, offset: int, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the start and size of the payload of each complete record in `content`."""
    starts, sizes, at, end = [], [], 0, len(content)
    while at + HEADER_BYTES <= end:
        size = _size_in(content[at : at + HEADER_BYTES])
        if size is None:
            raise _damaged(path, "corrupt", first + len(starts), offset + at)
        if at + _FRAME_BYTES + size > end:
            break
        starts.append(at + HEADER_BYTES)
        sizes.append(size)
        at += _FRAME_BYTES + size
    return np.array(starts, np.int64), np.array(sizes, np.int64)


@functools.lru_cache(maxsize=1 << 14)  # few lengths differ
def _size_in(header: bytes) -> int | None:
    """Returns the payload's size in a header, None if the checksum is wrong."""
    size, crc = struct.unpack("<QI", header)
    return size if masked_crc32c(header[:8]) == crc else None


def _payloads(
    path: str, content: bytes, starts: np.ndarray, sizes: np.ndarray, offset: int, first: int
) -> list[bytes]:
    """Returns the payloads of `_split` after checking them."""
    ends = starts + sizes
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    payloads = [content[start:end] for start, end in spans]
    stored = np.frombuffer(content, np.uint8)[ends[:, None] + np.arange(FOOTER_BYTES)]
    bad = np.flatnonzero(_masked_crcs(payloads) != stored.view("<u4")[:, 0])
    if len(bad):
        number = int(bad[0])
        raise _damaged(
            path, "corrupt", first + number, offset + int(starts[number]) - HEADER_BYTES
        )
    return payloads


def _damaged(path: str, how: str, record: int, byte: int) -> DataError:
    return DataError(f"{path}: {how} after record {record:,} (byte {byte:,}): write it again")
