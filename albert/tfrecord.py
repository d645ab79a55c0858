"""TFRecord framing: each record's length, a checksum of it, the payload, a checksum.

Written and read in NumPy, many records at a time: no TensorFlow is imported.
"""

import functools
import mmap
import os
import struct
from collections.abc import Iterator

import numpy as np

from albert.errors import DataError

_BATCH = 1024  # records checked together
HEADER_BYTES, _FOOTER = 12, 4  # length and its checksum; checksum of the payload


# === Checksums ===


@functools.cache
def _crc_byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        # CRC-32C, the polynomial of iSCSI, reflected.
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table.astype(np.uint32)


@functools.lru_cache(maxsize=2)
def _crc_distance_table(length: int) -> np.ndarray:
    """Returns [length * 256]: what a byte adds to the checksum, by its distance from the end."""
    byte_table = _crc_byte_table()
    table = np.empty((length, 256), np.uint32)
    table[0] = byte_table
    for distance in range(1, length):
        before = table[distance - 1]
        table[distance] = (before >> 8) ^ byte_table[before & 0xFF]
    return table.ravel()


_CRC_SPAN = 1024  # bytes whose contributions are added at once; longer messages go in steps


def _crc32c(flat: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns the CRC-32C of every message flat[start:start + size]; uint32 [N].

    The checksum is linear over GF(2), so a span of bytes is one look-up per
    byte and one exclusive or over each message, all messages at once.
    """
    table = _crc_distance_table(_CRC_SPAN)
    crcs = np.full(len(sizes), 0xFFFFFFFF, np.uint32)
    for done in range(0, int(sizes.max(initial=0)), _CRC_SPAN):
        active = np.flatnonzero(sizes > done)
        span = np.minimum(sizes[active] - done, _CRC_SPAN)
        first = np.cumsum(span) - span
        inner = np.arange(int(span.sum())) - np.repeat(first, span)
        data = flat[np.repeat(starts[active] + done, span) + inner].astype(np.intp)
        # The state so far acts as if combined with the next four bytes.
        for byte in range(4):
            has = span > byte
            data[first[has] + byte] ^= (crcs[active[has]] >> np.uint32(8 * byte)) & 0xFF
        distance = np.repeat(span, span) - 1 - inner
        new = np.bitwise_xor.reduceat(table[distance * 256 + data], first)
        shift = (8 * np.minimum(span, 4)).astype(np.uint64)
        new ^= (crcs[active].astype(np.uint64) >> shift).astype(np.uint32)
        crcs[active] = new
    return crcs ^ np.uint32(0xFFFFFFFF)


def _mask_crc(crcs: np.ndarray) -> np.ndarray:
    # TFRecord stores checksums rotated and shifted, so that they are not
    # mistaken for checksums of data that holds checksums.
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(0xA282EAD8)


# === Writing ===


def frame_records(flat: np.ndarray, sizes: np.ndarray) -> bytes:
    """Returns the bytes of a TFRecord file that holds N messages.

    Args:
      flat: uint8, the messages one after the other; sizes: int64 [N].
    """
    count, sizes = len(sizes), np.asarray(sizes, np.int64)
    starts = np.cumsum(sizes) - sizes
    frame_starts = starts + np.arange(count) * (HEADER_BYTES + _FOOTER)
    out = np.empty(len(flat) + count * (HEADER_BYTES + _FOOTER), np.uint8)
    lengths = np.ascontiguousarray(sizes, "<i8").view(np.uint8)
    eight = np.full(count, 8, np.int64)
    header_crc = _mask_crc(_crc32c(lengths, np.arange(count) * 8, eight))
    header = np.concatenate([lengths.reshape(count, 8), _as_bytes(header_crc)], axis=1)
    out[frame_starts[:, None] + np.arange(HEADER_BYTES)] = header
    footer_starts = frame_starts + HEADER_BYTES + sizes
    footer = _as_bytes(_mask_crc(_crc32c(flat, starts, sizes)))
    out[footer_starts[:, None] + np.arange(_FOOTER)] = footer
    shift = np.repeat(frame_starts + HEADER_BYTES - starts, sizes)
    out[np.arange(len(flat)) + shift] = flat
    return out.tobytes()


def _as_bytes(crcs: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(crcs, "<u4").view(np.uint8).reshape(-1, 4)


# === Reading ===


def scan(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns where every payload starts and its size, from the lengths alone.

    Raises:
      DataError: the file ends inside a record, or a length is damaged.
    """
    starts, sizes = [], []
    end = size_of(path)
    if end == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        length_at, at = struct.Struct("<Q").unpack_from, 0
        while at < end:
            size = length_at(data, at)[0] if at + HEADER_BYTES <= end else end
            if at + HEADER_BYTES + size + _FOOTER > end:
                break
            starts.append(at + HEADER_BYTES)
            sizes.append(size)
            at += HEADER_BYTES + size + _FOOTER
        # A damaged length sends the scan astray, so the first bad one is the fault.
        begins = [start - HEADER_BYTES for start in starts] + [at] * (at + HEADER_BYTES <= end)
        bad = np.flatnonzero(~_header_is_good(_gather(data, begins, HEADER_BYTES)))
    if bad.size:
        raise _corrupt(path, int(bad[0]), begins[int(bad[0])])
    if at < end:
        raise DataError(f"{path}: cut after record {len(starts):,} (byte {at:,}): write it anew")
    return np.array(starts, np.int64), np.array(sizes, np.int64)


def size_of(path: str) -> int:
    """Returns the size of a file in bytes; DataError if it cannot be read."""
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _gather(data: mmap.mmap, starts: list[int], width: int) -> np.ndarray:
    """Returns `width` bytes from every start: uint8 [N, width]."""
    out = np.empty((len(starts), width), np.uint8)
    for row, start in enumerate(starts):
        out[row] = np.frombuffer(data[start : start + width], np.uint8)
    return out


def _header_is_good(headers: np.ndarray) -> np.ndarray:
    count = len(headers)
    lengths = np.ascontiguousarray(headers[:, :8]).ravel()
    crcs = _mask_crc(_crc32c(lengths, np.arange(count) * 8, np.full(count, 8, np.int64)))
    return (_as_bytes(crcs) == headers[:, 8:]).all(axis=1)


def _corrupt(path: str, records: int, at: int) -> DataError:
    return DataError(f"{path}: corrupt after record {records:,} (byte {at:,}): write it anew")


def count_records(path: str) -> int:
    """Returns the number of records, from the lengths alone.

    Raises:
      DataError: the file cannot be read, is cut inside a record or a length is damaged.
    """
    return len(scan(path)[0])


def read_records(path: str) -> Iterator[bytes]:
    """Yields the payload of every record after checking it.

    Raises:
      DataError: at the first damaged record, with its number and byte.
    """
    starts, sizes = scan(path)
    with open(path, "rb") as stream:
        for first in range(0, len(starts), _BATCH):
            some = slice(first, first + _BATCH)
            begin = int(starts[some][0])
            span = int(starts[some][-1] + sizes[some][-1]) + _FOOTER - begin
            stream.seek(begin)
            flat = np.frombuffer(stream.read(span), np.uint8)
            at, size = starts[some] - begin, sizes[some]
            crcs = _as_bytes(_mask_crc(_crc32c(flat, at, size)))
            good = (crcs == flat[(at + size)[:, None] + np.arange(_FOOTER)]).all(axis=1)
            for row in range(len(at)):
                if not good[row]:
                    raise _corrupt(path, first + row, int(starts[first + row]) - HEADER_BYTES)
                yield flat[at[row] : at[row] + size[row]].tobytes()


def verify_records(path: str) -> int:
    """Returns the number of records after checking every byte (DataError: see `read_records`).

    What to call when a reader reports data loss: its error does not say where.
    """
    return sum(1 for _ in read_records(path))
