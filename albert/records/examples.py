"""Encodes and decodes `tf.train.Example` messages.

NumPy processes many at once, which is faster than one by one, and needs no TensorFlow.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.records import protobuf

# NumPy's type for each type that a feature may have.
DTYPES = {"int64": np.int64, "float32": np.float32}


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """Fixed-length features of one record, in the order in which they are written."""

    # name -> (dtype "int64" or "float32", length); length None is a scalar.
    features: Mapping[str, tuple[str, int | None]]
    # L, if input_ids, input_mask, segment_ids and p_mask hold sequences of L positions, and only
    # they and `row_features` depend on L, so that padding of the entire batch can be removed.
    row_length: int | None = None
    # Other features with a number for each position.
    row_features: tuple[str, ...] = ()
    # (decoded batch, int64 [B] positions of its records in the run) -> the batch to train on;
    # see `dynamic_masking.DynamicMasking`.
    masking: Callable[[Any, Any], dict[str, np.ndarray]] | None = None


# === Encoding ===


def encode_examples(batch: Mapping[str, np.ndarray], spec: FeatureSpec) -> list[bytes]:
    """Returns N serialized `tf.train.Example` messages.

    Args:
      batch: {name: [N, length]}, or [N] for a scalar feature.
    """
    columns = []
    for name, (dtype, length) in spec.features.items():
        payloads = _packed(np.asarray(batch[name], DTYPES[dtype]).reshape(-1, length or 1))
        columns += [[_entry_head(name, dtype, len(payload)) for payload in payloads], payloads]
    # Example { features = 1 { feature = 1 { key = 1, value = 2 }... } }
    bodies = map(b"".join, zip(*columns, strict=True))
    return [b"\x0a" + protobuf.varint(len(body)) + body for body in bodies]


@functools.lru_cache(maxsize=1 << 14)  # few sizes differ
def _entry_head(name: str, dtype: str, size: int) -> bytes:
    """Returns the bytes of a feature's map entry before its `size` bytes of values."""

    def before(tag: bytes, head: bytes) -> bytes:
        return tag + protobuf.varint(len(head) + size) + head

    values = before(b"\x12" if dtype == "float32" else b"\x1a", before(b"\x0a", b""))
    key = name.encode()
    return before(b"\x0a", b"\x0a" + protobuf.varint(len(key)) + key + before(b"\x12", values))


def _packed(values: np.ndarray) -> list[bytes]:
    """Returns the values of each row in protobuf's packed format: float32, or int64 as varints."""
    if values.dtype == np.float32:
        flat, sizes = values.astype("<f4").tobytes(), np.full(len(values), 4 * values.shape[1])
    elif values.max(initial=0) < 1 << 7 and values.min(initial=0) >= 0:  # masks, labels
        flat, sizes = values.astype(np.uint8).tobytes(), np.full(len(values), values.shape[1])
    else:
        flat, sizes = _varints(values)
    ends = np.cumsum(sizes)
    return [flat[i:j] for i, j in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]


def _varints(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Returns int64 [N, C] as varints (seven bits per byte, the lowest first), and bytes per row."""
    numbers = values.reshape(-1).view(np.uint64)  # the representation of negative numbers
    highest = int(numbers.max())
    if highest < 1 << 32:
        numbers = numbers.astype(np.uint32)
    width = -(-highest.bit_length() // 7)
    content = np.empty((len(numbers), width), np.uint8)
    is_used = np.ones(content.shape, bool)
    for index in range(width):
        rest = numbers >> numbers.dtype.type(7 * index)
        content[:, index] = rest.astype(np.uint8) & np.uint8(0x7F)
        if index:
            is_used[:, index] = rest > 0
            content[:, index - 1] |= is_used[:, index].view(np.uint8) << np.uint8(7)
    # Flat, which takes NumPy half the time of rows.
    flat = content.ravel().compress(is_used.ravel())
    return flat.tobytes(), np.count_nonzero(is_used.reshape(len(values), -1), axis=1)


# === Decoding ===


class ExampleError(DataError):
    """A record does not hold the requested features."""

    def __init__(self, number: int, problem: str):
        super().__init__(f"record {number:,}: {problem}")
        self.number, self.problem = number, problem


def decode_examples(messages: Sequence[bytes], spec: FeatureSpec) -> dict[str, np.ndarray]:
    """Returns the features of N serialized `tf.train.Example` messages: {name: [N, length] or [N]}.

    Integers have the smallest type that their bytes fit: uint8, uint16, int32 or int64.

    Raises:
      ExampleError: a message is not an Example, lacks a feature, or has a wrong number of values.
    """
    payloads = _payloads(messages, spec)
    return {
        name: _values(name, payloads[name], dtype, length)
        for name, (dtype, length) in spec.features.items()
    }


def feature_values(message: bytes) -> dict[str, np.ndarray]:
    """Returns {feature: values} of a serialized message, without a spec."""
    return {
        name.decode("utf-8", "replace"): _unpacked(*feature)
        for name, feature in _features_of(message).items()
    }


# Fields of a feature: the kind of its list.
_FLOATS, _INTEGERS = 2, 3
_PADDING = bytes(256)  # so that no look-up exceeds the end of a damaged message


def _unpacked(kind: int, payload: bytes) -> np.ndarray:
    if kind == _FLOATS:
        return np.frombuffer(payload[: len(payload) // 4 * 4], "<f4")
    flat = np.frombuffer(payload, np.uint8)
    return _varint_values(flat, np.flatnonzero(flat < 0x80))


def _payloads(messages: Sequence[bytes], spec: FeatureSpec) -> dict[str, list[bytes]]:
    """Returns {feature: the packed values of each message}.

    The records of a file usually have the layout of its first one, as `encode_examples` writes it.
    These are parsed together, all others one by one.
    """
    layout = {name: kind for name, (kind, _) in _features_of(messages[0]).items()}
    flat = b"".join([*messages, _PADDING])
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    spans, is_usual = _spans(np.frombuffer(flat, np.uint8), np.cumsum(sizes), sizes, layout)
    nothing = np.zeros((2, len(messages)), np.int64)
    payloads = {
        name: [flat[i:j] for i, j in spans.get(name.encode(), nothing).T.tolist()]
        for name in spec.features
    }
    for number in {0, *np.flatnonzero(~is_usual).tolist()}:
        features = _features_of(messages[number], number)
        for name, (dtype, _) in spec.features.items():
            if name.encode() not in features:
                raise ExampleError(number, f"no feature {name}")
            kind, payload = features[name.encode()]
            if payload and kind != (_FLOATS if dtype == "float32" else _INTEGERS):
                raise ExampleError(number, f"the values of {name} are not of type {dtype}")
            payloads[name][number] = payload
    return payloads


def _features_of(message: bytes, number: int = 0) -> dict[bytes, tuple[int, bytes]]:
    """Returns {name: (kind of list, packed values)} of a serialized message."""
    try:
        features = {}
        for outer, content in protobuf.fields(message):
            for inner, entry in protobuf.fields(content) if outer == 1 else ():
                parts = dict(protobuf.fields(entry)) if inner == 1 else {}
                if parts:
                    features[bytes(parts.get(1, b""))] = _list_of(parts.get(2, b""))
        return features
    except (IndexError, ValueError, TypeError) as error:
        raise ExampleError(number, "not a tf.train.Example") from error


def _list_of(feature: bytes) -> tuple[int, bytes]:
    """Returns (kind, packed values) of a `Feature` message."""
    for kind, values in protobuf.fields(feature):
        if kind in (_FLOATS, _INTEGERS):
            # Usually one packed field; some writers use a field per value.
            return kind, b"".join(part for field, part in protobuf.fields(values) if field == 1)
    return 0, b""


def _spans(
    flat: np.ndarray, ends: np.ndarray, sizes: np.ndarray, layout: Mapping[bytes, int]
) -> tuple[dict[bytes, np.ndarray], np.ndarray]:
    """Finds the values of all features in N messages at once.

    Args:
      flat: uint8, the messages one after another, and `_PADDING`.
      ends, sizes: int64 [N], of each message.
      layout: {name: kind of list}, in the order in which `encode_examples` wrote them.

    Returns:
      {name: first byte of the values and the byte after them, int64 [2, N]}, and whether a
      message has this layout, bool [N]; the spans of other messages are meaningless.
    """
    limit, is_usual = len(flat) - len(_PADDING), np.ones(len(ends), bool)

    def skip(constant: bytes, at: np.ndarray, stop: np.ndarray | None) -> tuple:
        """Reads a constant and a size at `at`; the bytes of this size must end at `stop`, if given."""
        for offset, byte in enumerate(constant):
            is_usual.__iand__(flat[at + offset] == byte)
        size, begin = _varints_at(flat, at + len(constant))
        begin = np.minimum(begin, limit)
        if stop is not None:
            is_usual.__iand__(begin + size == stop)
        return begin, np.minimum(begin + size, limit)

    at, _ = skip(b"\x0a", ends - sizes, ends)
    spans = {}
    for name, kind in layout.items():
        key = b"\x0a" + protobuf.varint(len(name)) + name
        at, stop = skip(b"\x0a", at, None)
        for constant in (key + b"\x12", b"\x12" if kind == _FLOATS else b"\x1a", b"\x0a"):
            at, _ = skip(constant, at, stop)
        spans[name] = np.stack([at, stop])
        at = stop
    is_usual &= at == ends
    return spans, is_usual


def _varints_at(flat: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number at each byte of `at` (-1 if it has more than 4 bytes), and its end."""
    byte = flat[at]
    number, at = (byte & 0x7F).astype(np.int64), at + 1
    for shift in (7, 14, 21):
        goes_on = byte >= 0x80
        if not goes_on.any():
            return number, at
        byte = np.where(goes_on, flat[at], 0)
        number |= (byte & 0x7F).astype(np.int64) << shift
        at = at + goes_on
    return np.where(byte < 0x80, number, -1), at


def _values(
    name: str, payloads: Sequence[bytes], dtype: str, length: int | None
) -> np.ndarray:
    """Returns the values of a feature in all messages."""
    size = length or 1
    step = max(1, _VALUES_AT_ONCE // size)
    values = np.concatenate([
        _decode_values(name, payloads[first : first + step], dtype, size, first)
        for first in range(0, len(payloads), step)
    ])
    return values if length is None else values.reshape(-1, size)


# Decoded together: few enough for the processor's cache, and to reuse memory.
_VALUES_AT_ONCE = 1 << 13


def _decode_values(
    name: str, payloads: Sequence[bytes], dtype: str, size: int, first: int
) -> np.ndarray:
    flat = np.frombuffer(b"".join(payloads), np.uint8)
    stops = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
    wanted = size * np.arange(1, len(payloads) + 1)
    ends = np.flatnonzero(flat < 0x80) if dtype != "float32" else np.arange(3, len(flat), 4)
    # A correct total is not enough: each record must have the right number.
    if len(ends) != wanted[-1] or (ends[wanted - 1] != stops - 1).any():
        for number, payload in enumerate(payloads, first):
            count = len(_unpacked(_FLOATS if dtype == "float32" else _INTEGERS, payload))
            if count != size:
                raise ExampleError(number, f"{name} has {count:,} values, expected {size:,}")
        raise ExampleError(first, f"the values of {name} are damaged")
    return flat.view("<f4") if dtype == "float32" else _varint_values(flat, ends)


def _varint_values(flat: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the numbers of successive varints, which end at `ends`."""
    if len(ends) == len(flat):  # all of one byte
        return flat
    longest = int(np.diff(ends, prepend=-1).max(initial=1))
    values = flat[ends].astype(np.int32 if longest < 5 else np.uint64)
    is_longer = np.uint8(1)
    for index in range(1, longest):
        septet = flat[ends - index]  # before the first byte of all, it is one of another varint
        is_longer = is_longer & (septet >> np.uint8(7))  # 0 or 1
        values <<= is_longer * np.uint8(7)
        values |= (septet & np.uint8(0x7F)) * is_longer
    if longest > 4:
        return values.view(np.int64)
    return values if values.max(initial=0) >= 1 << 16 else values.astype(np.uint16)
