"""TFRecord framing: each record's length, a checksum of it, the payload, a checksum.

Written and read many records at a time: no TensorFlow is imported.
"""

import mmap
import os
import struct
from collections.abc import Iterator, Sequence

import google_crc32c
import numpy as np

from albert.errors import DataError

_BATCH = 1024  # records checked together
HEADER_BYTES, FOOTER_BYTES = 12, 4  # length and its checksum; checksum of the payload
_FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_READ_BYTES = 256 << 10  # at once, of successive records


# === Checksums ===


def masked_crc32c(content: bytes) -> int:
    """Returns the checksum that TensorFlow's files store of some bytes."""
    return mask_crc(google_crc32c.value(content))


def mask_crc(crc: int) -> int:
    """Returns a CRC-32C rotated and shifted, so that it is not mistaken for one of data."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _masked_crc32c(flat: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns the checksum that TFRecord stores of every flat[start:start + size]; uint32 [N]."""
    ends = (starts + sizes).tolist()
    parts = (flat[start:end] for start, end in zip(starts.tolist(), ends, strict=True))
    crcs = np.fromiter(map(google_crc32c.value, parts), np.uint32, len(ends))
    # They are rotated and shifted, so that they are not mistaken for checksums of data
    # that holds checksums.
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(0xA282EAD8)


def _header_crcs(lengths: np.ndarray) -> np.ndarray:
    """Returns the checksum of every length, 8 bytes each of `lengths` [8 * N]."""
    # Few of them differ.
    distinct, places = np.unique(lengths.view("<i8"), return_inverse=True)
    starts = np.arange(len(distinct)) * 8
    content = distinct.view(np.uint8)
    return _masked_crc32c(content, starts, np.full(len(distinct), 8, np.int64))[places]


# === Writing ===


def frame_records(messages: Sequence[bytes]) -> bytes:
    """Returns the bytes of a TFRecord file that holds these messages."""
    before, after = bytes(HEADER_BYTES), bytes(FOOTER_BYTES)
    flat = bytearray().join(part for message in messages for part in (before, message, after))
    write_frames(np.frombuffer(flat, np.uint8), np.array([len(m) for m in messages], np.int64))
    return bytes(flat)


def write_frames(flat: np.ndarray, sizes: np.ndarray) -> None:
    """Writes the frames of N messages around them, which makes the bytes of a TFRecord file.

    Args:
      flat: uint8, the messages one after the other, each with room for a header before it
        and for a footer after it.
      sizes: int64 [N], of the messages alone.
    """
    count, sizes = len(sizes), np.asarray(sizes, np.int64)
    ends = np.cumsum(sizes + (HEADER_BYTES + FOOTER_BYTES)) - FOOTER_BYTES
    starts = ends - sizes
    lengths = np.ascontiguousarray(sizes, "<i8").view(np.uint8)
    headers = np.concatenate(
        [lengths.reshape(count, 8), _as_bytes(_header_crcs(lengths))], axis=1
    )
    flat[(starts - HEADER_BYTES)[:, None] + np.arange(HEADER_BYTES)] = headers
    footers = _as_bytes(_masked_crc32c(flat, starts, sizes))
    flat[ends[:, None] + np.arange(FOOTER_BYTES)] = footers


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
            if at + HEADER_BYTES + size + FOOTER_BYTES > end:
                break
            starts.append(at + HEADER_BYTES)
            sizes.append(size)
            at += HEADER_BYTES + size + FOOTER_BYTES
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
    lengths = np.ascontiguousarray(headers[:, :8]).ravel()
    return (_as_bytes(_header_crcs(lengths)) == headers[:, 8:]).all(axis=1)


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
            span = int(starts[some][-1] + sizes[some][-1]) + FOOTER_BYTES - begin
            stream.seek(begin)
            flat = np.frombuffer(stream.read(span), np.uint8)
            at, size = starts[some] - begin, sizes[some]
            crcs = _as_bytes(_masked_crc32c(flat, at, size))
            good = (crcs == flat[(at + size)[:, None] + np.arange(FOOTER_BYTES)]).all(axis=1)
            for row in range(len(at)):
                if not good[row]:
                    raise _corrupt(path, first + row, int(starts[first + row]) - HEADER_BYTES)
                yield flat[at[row] : at[row] + size[row]].tobytes()


class RecordReader:
    """Reads records of a file at any place, and checks them.

    It keeps the file open, but maps nothing: a file that is cut meanwhile is an error, not a
    signal. One that was closed is opened again when it is read; where its records begin is kept.
    """

    def __init__(self, path: str):
        self._path = path
        self._starts: np.ndarray | None = None
        self._file: int | None = None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def record(self, number: int) -> bytes:
        """Returns one record; a DataError if it is damaged."""
        if self._starts is None:
            self._starts, self._sizes = scan(self._path)
        size = int(self._sizes[number])
        [record] = self._payloads(int(self._starts[number]) - HEADER_BYTES, 1, size)
        return record

    def block(self, offset: int, count: int) -> list[bytes]:
        """Returns `count` records from a byte on; a DataError if one is damaged."""
        return self._payloads(offset, count)

    def _payloads(self, offset: int, count: int, size: int | None = None) -> list[bytes]:
        length_at, found, held = struct.Struct("<QI").unpack_from, [], b""
        at = 0
        # The size of a block is not known: what is left of it is guessed from its first records.
        wanted = _FRAME_BYTES + size if size is not None else _READ_BYTES
        while len(found) < count:
            if at + HEADER_BYTES > len(held):
                held, at, offset = self._read(offset + at, max(wanted, _FRAME_BYTES)), 0, offset + at
                if len(held) < _FRAME_BYTES:
                    raise self._damaged()
            length, crc = length_at(held, at)
            if masked_crc32c(held[at : at + 8]) != crc:
                raise self._damaged()
            if at + _FRAME_BYTES + length > len(held):
                needed = max(wanted, _FRAME_BYTES + length)
                held, at, offset = self._read(offset + at, needed), 0, offset + at
                if len(held) < _FRAME_BYTES + length:
                    raise self._damaged()
            begin = at + HEADER_BYTES
            payload = held[begin : begin + length]
            at = begin + length + FOOTER_BYTES
            if masked_crc32c(payload) != int.from_bytes(held[begin + length : at], "little"):
                raise self._damaged()
            found.append(payload)
        return found

    def _read(self, offset: int, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY)
            return os.pread(self._file, size, offset)
        except OSError as error:
            raise DataError(f"cannot read {self._path}: {error.strerror}") from error

    def _damaged(self) -> DataError:
        """Returns the error that tells where the damage is."""
        try:
            verify_records(self._path)
        except DataError as error:
            return error
        return DataError(f"{self._path} changed while it was being read")


def verify_records(path: str) -> int:
    """Returns the number of records after checking every byte (DataError: see `read_records`).

    What to call when a reader reports data loss: its error does not say where.
    """
    return sum(1 for _ in read_records(path))
