"""Reads and writes TensorFlow's checkpoint files, `<prefix>.index` and `<prefix>.data-*`, with NumPy.

The index is a sorted table in LevelDB's block format that maps a tensor's name to its location; every
block and every tensor has a checksum.
"""

import glob
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.errors import CheckpointError, first_line, some
from albert.records.protobuf import field, fields, varint, varint_at
from albert.records.tfrecord import masked_crc32c

SUFFIXES = (".data-00000-of-00001", ".index")  # in the order of writing
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# What reading and parsing damaged bytes raises.
_MALFORMED = (OSError, LookupError, ValueError, struct.error, OverflowError)
_MAGIC = 0xDB4775248B80FB57  # the last eight bytes of a table
_FOOTER_BYTES = 48
_MAX_EXPANSION = 16  # bytes of names per byte of the index, which omits common prefixes
# TensorFlow's numbers of the types that a tensor may have.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool",
    14: "bfloat16", 17: "uint16", 19: "float16", 22: "uint32", 23: "uint64",
}


class _Entry(NamedTuple):
    """The location of a tensor, from a `BundleEntryProto`."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    is_sliced: bool


class BundleReader:
    """The tensors of one bundle.

    Raises:
      CheckpointError: it is not a bundle, or its index is damaged.
    """

    def __init__(self, prefix: str):
        import ml_dtypes  # noqa: F401  (makes bfloat16 a NumPy type; only here: it takes long to import)

        self._prefix = prefix
        try:
            with open(prefix + ".index", "rb") as stream:
                rows = dict(_rows_of(stream.read()))
            header = dict(fields(rows.pop(b"")))
            self._shards = _number_of(header, 1)
            if _number_of(header, 2):
                raise ValueError("it was written on a big-endian machine")
            # Names that begin with a zero are of the parts of partitioned variables.
            self._entries = {
                name.decode(): _entry_of(value)
                for name, value in rows.items() if not name.startswith(b"\0")
            }
        except _MALFORMED as error:
            why = "it has no header" if isinstance(error, KeyError) else _reason(error)
            raise CheckpointError(f"{prefix} is not a readable checkpoint: {why}") from error
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor.

        Raises:
          CheckpointError: it is damaged, or of a kind that no model has.
        """
        try:
            return self._read(self._entries[name])
        except _MALFORMED as error:
            raise CheckpointError(f"{self._prefix}: cannot read {name}: {_reason(error)}") from error

    def _read(self, entry: _Entry) -> np.ndarray:
        if entry.is_sliced:
            raise ValueError("it is partitioned; save it without a partitioner")
        if entry.dtype not in _DTYPES:
            raise ValueError(f"it is of TensorFlow's type {entry.dtype}, which is not supported")
        if not self._is_complete(entry):
            raise ValueError("its file is truncated")
        with open(self._shard(entry.shard), "rb") as stream:
            stream.seek(entry.offset)
            content = stream.read(entry.size)
        if len(content) != entry.size or masked_crc32c(content) != entry.crc:
            raise ValueError("its checksum does not match: the file is damaged")
        # A copy: an array of bytes is read-only.
        return np.frombuffer(content, _DTYPES[entry.dtype]).reshape(entry.shape).copy()

    def _shard(self, number: int) -> str:
        return f"{self._prefix}.data-{number:05d}-of-{self._shards:05d}"

    def _is_complete(self, entry: _Entry) -> bool:
        """Whether the file contains the entire tensor, and the tensor has the size it states."""
        if entry.dtype in _DTYPES and not entry.is_sliced:
            if entry.size != math.prod(entry.shape) * np.dtype(_DTYPES[entry.dtype]).itemsize:
                return False
        return entry.shard < self._shards and (
            entry.offset + entry.size <= os.path.getsize(self._shard(entry.shard))
        )

    def check_complete(self) -> None:
        """Refuses data files that are missing, or too short for their tensors, used or not.

        Raises:
          CheckpointError: names the missing files or tensors.
        """
        paths = shards(self._prefix)
        names = set(map(os.path.basename, paths))
        # The header may claim any number of files: as many are looked for as an error shows.
        wanted = map(self._shard, range(min(self._shards, len(paths) + 7)))
        if missing := [name for name in map(os.path.basename, wanted) if name not in names]:
            raise CheckpointError(f"{self._prefix}.index lacks {some(missing)}: a checkpoint needs all "
                                  f"of its files, here {self._shards:,}")
        truncated = sorted(name for name, entry in self._entries.items() if not self._is_complete(entry))
        if truncated:
            raise CheckpointError(
                f"{self._prefix} is truncated: its data files have "
                f"{sum(map(os.path.getsize, paths)):,} bytes, its tensors "
                f"{sum(entry.size for entry in self._entries.values()):,}; cannot be read: "
                f"{some(truncated)}; copy it again"
            )


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or first_line(error)


# === The index ===


def _rows_of(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields (key, value) of a sorted table."""
    footer = table[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("its index is not the table that TensorFlow writes")
    at, size, last = 0, 0, None
    for _ in range(2):  # the location of the index block
        _, at = varint_at(footer, at)
    for name, handle in _rows_of_block(table, footer, at):
        before, (length, _) = last, varint_at(handle, varint_at(handle, 0)[1])
        size += len(name) + length
        for key, value in _rows_of_block(table, handle, 0):
            size += len(key)
            # Prefixes, or blocks that overlap, could become any number of gigabytes.
            if last is not None and key <= last or size > _MAX_EXPANSION * len(table):
                raise ValueError("its index is not a sorted table of names")
            yield key, value
            last = key
        if last is before:  # an empty block could be named any number of times
            raise ValueError("its index has an empty block")


def _rows_of_block(table: bytes, handle: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields (key, value) of the block whose offset and size are at a byte of `handle`."""
    offset, at = varint_at(handle, at)
    size, at = varint_at(handle, at)
    block, tail = table[offset : offset + size], table[offset + size : offset + size + 5]
    if len(block) != size or len(tail) != 5:
        raise ValueError("its index is truncated")
    if masked_crc32c(block + tail[:1]) != struct.unpack("<I", tail[1:])[0]:
        raise ValueError("the checksum of its index does not match: the file is damaged")
    if tail[0]:
        raise ValueError("its index is compressed")
    restarts = struct.unpack("<I", block[-4:])[0]
    end, at, key = len(block) - 4 * (restarts + 1), 0, b""
    while at < end:  # keys omit the prefix that they share with the one before
        shared, at = varint_at(block, at)
        added, at = varint_at(block, at)
        length, at = varint_at(block, at)
        key = key[:shared] + block[at : at + added]
        yield key, block[at + added : at + added + length]
        at += added + length


def _number_of(message: Mapping[int, bytes], field_number: int) -> int:
    """Returns a number among a message's fields; a missing one is zero."""
    return varint_at(message[field_number], 0)[0] if field_number in message else 0


def _entry_of(value: bytes) -> _Entry:
    message = dict(fields(value))
    sizes = [dict(fields(size)) for number, size in fields(message.get(2, b"")) if number == 2]
    if len(sizes) > 64:  # NumPy's limit
        raise ValueError(f"a tensor of {len(sizes):,} axes")
    return _Entry(
        dtype=_number_of(message, 1),
        shape=tuple(_number_of(size, 1) for size in sizes),
        shard=_number_of(message, 3),
        offset=_number_of(message, 4),
        size=_number_of(message, 5),
        crc=struct.unpack("<I", message.get(6, bytes(4)))[0],
        is_sliced=7 in message,
    )


# === The data files ===


def shards(prefix: str) -> list[str]:
    """Returns the paths of a bundle's data files."""
    return glob.glob(f"{glob.escape(prefix)}.data-*")


def write(prefix: str, tensors: Mapping[str, Any]) -> None:
    """Writes a bundle with one data file; raises an OSError if it cannot."""
    data, index = (prefix + suffix for suffix in SUFFIXES)
    rows, offset = [(b"", _HEADER)], 0
    with open(data, "wb") as stream:
        for name in sorted(tensors, key=str.encode):
            value = np.asarray(tensors[name], order="C")
            content = value.tobytes()
            stream.write(content)
            rows.append((name.encode(), _entry(value, offset, content)))
            offset += len(content)
    with open(index, "wb") as stream:
        stream.write(_table(rows))


# One data file, little-endian, of version 1.
_HEADER = b"\x08\x01" + field(3, b"\x08\x01")
_NUMBERS = {name: number for number, name in _DTYPES.items()}


def _entry(value: np.ndarray, offset: int, content: bytes) -> bytes:
    """Returns a `BundleEntryProto`."""
    shape = b"".join(field(2, b"\x08" + varint(size)) for size in value.shape)
    return (
        b"\x08" + varint(_NUMBERS[value.dtype.name]) + field(2, shape) + b"\x20" + varint(offset)
        + b"\x28" + varint(len(content)) + b"\x35" + struct.pack("<I", masked_crc32c(content))
    )


def _table(rows: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Returns a sorted table whose rows are in one block."""
    table, handles = bytearray(), []
    for content in (rows, []):  # the second block may hold statistics
        handles.append(_append_block(table, content))
    handles.append(_append_block(table, [(rows[-1][0], handles[0])]))
    footer = (handles[1] + handles[2]).ljust(_FOOTER_BYTES - 8, b"\0")
    return bytes(table) + footer + struct.pack("<Q", _MAGIC)


def _append_block(table: bytearray, rows: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Appends a block without shared prefixes of keys; returns its offset and size."""
    block, restarts = bytearray(), [0]
    for key, value in rows:
        if block:
            restarts.append(len(block))
        block += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    handle = varint(len(table)) + varint(len(block))
    table += block + b"\0" + struct.pack("<I", masked_crc32c(bytes(block) + b"\0"))
    return handle
