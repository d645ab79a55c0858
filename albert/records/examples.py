"""`tf.train.Example` messages: which features they have, and their bytes.

They are serialised here in NumPy, many at a time. It is faster than one protobuf message after
another, and spares every writing process the seconds that importing TensorFlow takes.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.errors import DataError
from albert.records import protobuf
from albert.records.tfrecord import FOOTER_BYTES, HEADER_BYTES, write_frames

# NumPy's type of each that a feature may have.
DTYPES = {"int64": np.int64, "float32": np.float32}


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """Fixed-length features of one record, in the order in which they are written."""

    # name -> (dtype "int64" or "float32", length); length None is a scalar.
    features: Mapping[str, tuple[str, int | None]]
    # L, where input_ids, input_mask, segment_ids and p_mask hold rows of L places and nothing
    # but `row_features` depends on L: then a batch's places that are padding in all its
    # rows can go.
    row_length: int | None = None
    # Other features with a number for each place.
    row_features: tuple[str, ...] = ()
    # (parsed batch, int64 [B] places of its records in the run) -> the batch that is learned
    # from, where that is another one; see `pair_records.MasksOnTheFly`.
    complete: Callable[[Any, Any], dict[str, np.ndarray]] | None = None

    def zeros(self, count: int) -> dict[str, np.ndarray]:
        """Returns `count` records of zeros: {name: [count, length] or [count]}."""
        return {
            name: np.zeros((count,) if length is None else (count, length), DTYPES[dtype])
            for name, (dtype, length) in self.features.items()
        }


def encode_examples(
    batch: Mapping[str, np.ndarray], spec: FeatureSpec, before: int = 0, after: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns N serialised `tf.train.Example` messages: (flat bytes, sizes [N]).

    Args:
      batch: {name: [N, length]}, or [N] for a scalar feature.
      before, after: bytes of 0 around each message, which `sizes` do not count.
    """
    count = len(next(iter(batch.values())))
    columns, size = _Columns(count), 0
    for name, (dtype, length) in spec.features.items():
        values = np.asarray(batch[name], DTYPES[dtype]).reshape(count, length or 1)
        size = size + _add_entry(columns, name, dtype, values)
    # Example { features = 1 { feature = 1 { key = 1, value = 2 }... } }
    head = _Columns(count)
    head.add(bytes(before) + b"\x0a")
    size = size + head.add_size(size) + 1
    columns.add(bytes(after))
    flat = _flatten([*head.parts(), *columns.parts()])
    return flat, np.broadcast_to(size, (count, 1))[:, 0].astype(np.int64)


def frame_examples(batch: Mapping[str, np.ndarray], spec: FeatureSpec) -> bytes:
    """Returns the bytes of a TFRecord file of `tf.train.Example` messages.

    Args:
      batch: as of `encode_examples`.
    """
    flat, sizes = encode_examples(batch, spec, HEADER_BYTES, FOOTER_BYTES)
    write_frames(flat, sizes)
    return flat.tobytes()


def decode_examples(
    serialized: Sequence[bytes], spec: FeatureSpec
) -> dict[str, np.ndarray]:
    """Returns the features of N serialised `tf.train.Example` messages: {name: [N, length] or [N]}.

    Raises:
      DataError: a message is none, lacks a feature, or has another number of values.
    """
    wanted = {name.encode(): [] for name in spec.features}
    # A file's records mostly have the layout of its first one, and are read faster by it.
    layout = _layout_of(serialized[0]) if serialized else []
    for message in serialized:
        features = _features_by(layout, message) or _features_of(message)
        for name, parts in wanted.items():
            if name not in features:
                raise DataError(f"Key: {name.decode()}. A record has no such feature")
            parts.append(features[name])
    return {
        name: _values(name, parts, dtype, length)
        for (name, (dtype, length)), parts in zip(
            spec.features.items(), wanted.values(), strict=True
        )
    }


def feature_lengths(message: bytes) -> dict[str, int]:
    """Returns {feature: number of values} of a serialised message."""
    return {
        name.decode("utf-8", "replace"): _count(*feature)
        for name, feature in _features_of(message).items()
    }


def feature_values(message: bytes, name: str) -> np.ndarray | None:
    """Returns the values of one feature of a serialised message; None if it has no such feature."""
    found = _features_of(message).get(name.encode())
    if found is None:
        return None
    kind, payload = found
    return np.frombuffer(payload, "<f4") if kind == _FLOATS else _decode_varints(payload)


# Fields of a feature: which kind of list it is.
_FLOATS, _INTEGERS = 2, 3


def _count(kind: int, payload: bytes) -> int:
    if kind == _FLOATS:
        return len(payload) // 4
    return int((np.frombuffer(payload, np.uint8) < 0x80).sum())


def _values(
    name: str, parts: Sequence[tuple[int, bytes]], dtype: str, length: int | None
) -> np.ndarray:
    kind = _FLOATS if dtype == "float32" else _INTEGERS
    size = length or 1
    for found, payload in parts:
        if payload and found != kind:
            raise DataError(f"Key: {name}. A record's values are not of type {dtype}")
    flat = b"".join(payload for _, payload in parts)
    stops = np.cumsum([len(payload) for _, payload in parts])
    # Together as many as there should be is not enough: each record has its own.
    if kind == _FLOATS:
        is_good = (stops == 4 * size * np.arange(1, len(parts) + 1)).all()
    else:
        is_end = np.frombuffer(flat, np.uint8) < 0x80
        counts = np.add.accumulate(is_end, dtype=np.int64)[stops - 1] if flat else stops
        is_good = stops[0] and is_end[stops - 1].all() and (
            counts == size * np.arange(1, len(parts) + 1)
        ).all()
    if not is_good:
        raise DataError(f"Key: {name}. A record does not have {size} values")
    values = np.frombuffer(flat, "<f4") if kind == _FLOATS else _decode_varints(flat)
    return values.reshape(len(parts)) if length is None else values.reshape(len(parts), size)


def _features_of(message: bytes) -> dict[bytes, tuple[int, bytes]]:
    """Returns {name: (kind of list, its values, packed)} of a serialised message."""
    try:
        found = {}
        for outer, features in protobuf.fields(message):
            for inner, entry in protobuf.fields(features) if outer == 1 else ():
                parts = dict(protobuf.fields(entry)) if inner == 1 else {}
                if parts:
                    found[bytes(parts.get(1, b""))] = _list_of(parts.get(2, b""))
        return found
    except (IndexError, ValueError, TypeError) as error:
        raise DataError("a record is not a tf.train.Example") from error


@dataclasses.dataclass
class _Entry:
    """Where a feature lies in the messages of a layout."""

    name: bytes
    kind: int
    before: bytes = b"-"  # from the entry's begin to the values, in the last message that differed
    size: int = 0  # of the values then


def _layout_of(message: bytes) -> list[_Entry]:
    return [_Entry(name, kind) for name, (kind, _) in _features_of(message).items()]


def _features_by(layout: list[_Entry], message: bytes) -> dict[bytes, tuple[int, bytes]] | None:
    """Returns what `_features_of` does, of a message as `encode_examples` makes it with the
    features of the layout; None of any other.
    """
    found, end = {}, len(message)
    try:
        size, at = protobuf.varint_at(message, 1)
        if message[0] != 0x0A or at + size != end:
            return None
        for entry in layout:
            if not message.startswith(entry.before, at):  # other sizes than in the last message
                start, stop = _values_at(entry, message, at)
                entry.before, entry.size = message[at:start], stop - start
            start = at + len(entry.before)
            at = start + entry.size
            if at > end:
                return None
            found[entry.name] = entry.kind, message[start:at]
    except (IndexError, ValueError):
        return None
    return found if at == end else None


def _values_at(entry: _Entry, message: bytes, at: int) -> tuple[int, int]:
    """Returns where the values of an entry begin and end. Each part ends with the one around it.

    Raises:
      ValueError, IndexError: it is not as `encode_examples` makes it.
    """
    name = b"\x0a" + protobuf.varint(len(entry.name)) + entry.name
    stop = None
    for head in (b"\x0a", name + b"\x12", b"\x12" if entry.kind == _FLOATS else b"\x1a", b"\x0a"):
        if not message.startswith(head, at):
            raise ValueError(head)
        size, at = protobuf.varint_at(message, at + len(head))
        if stop not in (None, at + size):
            raise ValueError(size)
        stop = at + size
    return at, stop


def _list_of(feature: bytes) -> tuple[int, bytes]:
    """Returns (kind, packed values) of a `Feature` message."""
    for kind, values in protobuf.fields(feature):
        if kind in (_FLOATS, _INTEGERS):
            # Usually one packed field; a writer may also give each value one of its own.
            return kind, b"".join(part for field, part in protobuf.fields(values) if field == 1)
    return 0, b""


def _decode_varints(flat: bytes) -> np.ndarray:
    """Returns the numbers of successive varints, int64."""
    content = np.frombuffer(flat, np.uint8)
    ends = np.flatnonzero(content < 0x80)
    if len(ends) == len(content):  # all of one byte
        return content.astype(np.int64)
    if not len(ends) or ends[-1] != len(content) - 1:
        raise DataError("a record's values are cut")
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    values = np.zeros(len(ends), np.uint64)
    for i in range(int(sizes.max())):
        has = sizes > i
        values[has] |= (content[starts[has] + i] & 0x7F).astype(np.uint64) << np.uint64(7 * i)
    return values.view(np.int64)


class _Part(NamedTuple):
    """Columns of messages: bytes, of which some rows may leave some out."""

    content: np.ndarray  # uint8 [N, C]
    is_used: np.ndarray | None = None  # bool [N, C]; None: all of them

    def sizes(self) -> np.ndarray | int:
        """Returns the bytes of each row, int64 [N, 1], or of all rows."""
        if self.is_used is None:
            return self.content.shape[1]
        return np.count_nonzero(self.is_used, axis=1, keepdims=True)


class _Columns:
    """Columns of N messages as they are gathered; what is the same in all rows, as bytes."""

    def __init__(self, count: int):
        self._count, self._parts, self._same = count, [], b""

    def add(self, part: _Part | bytes) -> None:
        """Adds columns."""
        if isinstance(part, bytes):
            self._same += part
        else:
            self._parts += [*self._take_same(), part]

    def add_size(self, size: np.ndarray | int) -> np.ndarray | int:
        """Adds a size, which may be that of all rows; returns the bytes that it takes itself."""
        if isinstance(size, int):
            content = protobuf.varint(size)
            self.add(content)
            return len(content)
        part = _varints(size)
        self.add(part)
        return part.sizes()

    def parts(self) -> list[_Part]:
        """Returns all that was added."""
        self._parts += self._take_same()
        return self._parts

    def _take_same(self) -> list[_Part]:
        row, self._same = np.frombuffer(self._same, np.uint8), b""
        return [_Part(np.broadcast_to(row, (self._count, len(row))))] if len(row) else []


def _add_entry(
    columns: _Columns, name: str, dtype: str, values: np.ndarray
) -> np.ndarray | int:
    """Adds one map entry to columns; returns its size in bytes, [N, 1] or of all rows."""
    if dtype == "float32":
        tag, payload = b"\x12", _Part(np.ascontiguousarray(values, "<f4").view(np.uint8))
    else:
        tag, payload = b"\x1a", _varints(values)  # int64_list = 3; float_list = 2
    key, size = name.encode(), payload.sizes()
    if len(key) > 127:
        raise ValueError(f"feature name of more than 127 bytes: {name}")
    packed = 1 + _size_of_varint(size) + size  # value = 1 [packed]
    feature = 1 + _size_of_varint(packed) + packed
    entry = 2 + len(key) + 1 + _size_of_varint(feature) + feature
    before = (b"\x0a", b"\x0a" + bytes([len(key)]) + key + b"\x12", tag, b"\x0a")
    for constant, number in zip(before, (entry, feature, packed, size), strict=True):
        columns.add(constant)
        columns.add_size(number)
    columns.add(payload)
    return 1 + _size_of_varint(entry) + entry


def _size_of_varint(number: np.ndarray | int) -> np.ndarray | int:
    if isinstance(number, int):
        return len(protobuf.varint(number))
    return 1 + sum((number >= 1 << 7 * n).astype(np.int64) for n in range(1, 5))


def _varints(numbers: np.ndarray) -> _Part:
    """Returns int64 [N, C] as varints: seven bits a byte, the lowest first."""
    numbers = numbers.view(np.uint64)  # as negative ones are written
    highest = int(numbers.max(initial=1))
    if highest < 1 << 7:  # most features: masks, positions, the number of a class
        return _Part(numbers.astype(np.uint8))
    if highest < _FEW:  # pieces, sizes
        bytes_of, uses_of = _varint_table()
        content, is_used = bytes_of.take(numbers).view(np.uint8), uses_of.take(numbers).view(bool)
    else:
        content, is_used = _compute_varints(numbers)
    content, is_used = (part.reshape(len(numbers), -1) for part in (content, is_used))
    used = is_used[:1]
    if (is_used == used).all():  # as the sizes of a batch mostly are
        return _Part(content[:, used[0]])
    return _Part(content, is_used)


_FEW = 1 << 16


@functools.cache
def _varint_table() -> tuple[np.ndarray, np.ndarray]:
    """Returns what `_compute_varints` does for numbers below `_FEW`, four bytes each; uint32.

    To look them up is several times as fast as to compute them, and faster four bytes at once.
    """
    content, is_used = _compute_varints(np.arange(_FEW, dtype=np.uint64))
    return tuple(
        np.pad(part, [(0, 0), (0, 4 - part.shape[1])]).view(np.uint32).ravel()
        for part in (content, is_used)
    )


def _compute_varints(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns uint8 [..., most bytes that one takes] and which of them are used, of uint64 [...]."""
    width = -(-int(numbers.max(initial=1)).bit_length() // 7)
    septets = numbers[..., None] >> np.arange(0, 7 * width, 7, np.uint64)
    is_used = septets != 0
    is_used[..., 0] = True
    content = septets.astype(np.uint8) & 0x7F
    content[..., :-1] |= is_used[..., 1:].astype(np.uint8) << 7
    return content, is_used


def _flatten(parts: Sequence[_Part]) -> np.ndarray:
    """Returns the bytes of all rows, one row after the other."""
    content = np.concatenate([part.content for part in parts], axis=1).ravel()
    if all(part.is_used is None for part in parts):
        return content
    is_used = np.concatenate([
        np.broadcast_to(np.True_ if part.is_used is None else part.is_used, part.content.shape)
        for part in parts
    ], axis=1)
    # Flat, which NumPy does in half the time of rows.
    return content.compress(is_used.ravel())
