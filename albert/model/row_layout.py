"""The positions of a batch's examples in the sequences that an encoder computes.

Usually a sequence is one example. With packing (`albert.records.packing`), several examples share a
sequence, and each attends only to itself. Code that reads hidden states asks the layout for those
of an example, and works with both.

Legend: B examples, L length of the longest, R sequences, M their length, H hidden, P positions.
"""

from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from albert.config import MASK_ADDER


def mask_of(attends: Any, dtype: str):
    """Returns the mask that is added to the scores: 0 where `attends` is 1, else MASK_ADDER."""
    return (1.0 - ops.cast(attends, dtype)) * MASK_ADDER


class RowLayout:
    """Each example is a sequence: R = B, M = L."""

    def __init__(self, input_mask: Any, position_ids: Any = None):
        self.mask = input_mask  # [B, L]
        # [B, L] or [1, L]; None: 0, 1, 2, ...
        self.position_ids = None if position_ids is None else ops.convert_to_tensor(position_ids)

    def row_mask(self):
        """Returns 1 where a query attends to a key: [B, 1, 1, L], for all queries of a sequence."""
        return self.mask[:, None, None, :]

    def every(self, hidden):
        """Returns the states of each example [B, L, H], given those of sequences [R, M, H]."""
        return hidden

    def first(self, hidden):
        """Returns the state of each example at its first position, `[CLS]`: [B, H]."""
        return hidden[:, 0]

    def flat(self, positions):
        """Returns `positions` [B, P] of each example among all R * M: [B, P]."""
        return _flat(positions, ops.shape(self.mask)[1])

    def at(self, hidden, positions):
        """Returns the states of each example at `positions` [B, P]: [B, P, H]."""
        return gather_positions(hidden, positions)

    def first_and(self, positions):
        """Returns `[CLS]` and `positions` [B, 1 + P], or None if that may be more than L.

        This happens with truncated batches, which have as many positions as the longest ones.
        """
        first = ops.zeros_like(self.mask[:, :1], dtype="int32")
        if positions is None:
            return first
        length, count = self.mask.shape[1], positions.shape[1]
        if None in (length, count) or 1 + count >= length:
            return None
        return ops.concatenate([first, ops.cast(positions, "int32")], axis=1)


class PackedRows(RowLayout):
    """Several examples in a sequence."""

    def __init__(self, inputs: Mapping[str, Any]):
        # Both [R, M]: the position in the example, and the number of the example (0: none; negative
        # where the example's mask is 0).
        self.position_ids = ops.convert_to_tensor(inputs["position_ids"])
        self._examples = ops.convert_to_tensor(inputs["example_ids"])
        # Both [B, L]: the position among all R * M, and whether there is one.
        self._positions = ops.convert_to_tensor(inputs["packed_places"])
        self.mask = ops.convert_to_tensor(inputs["packed_mask"])

    def row_mask(self):
        """Returns whether query and key belong to the same example: [R, 1, M, M]."""
        of_queries = ops.absolute(self._examples)
        return ops.equal(of_queries[:, None, :, None], self._examples[:, None, None, :])

    def every(self, hidden):
        return _vectors_at(hidden, self._positions)

    def first(self, hidden):
        return _vectors_at(hidden, self._positions[:, 0])

    def first_and(self, positions):
        return None if positions is not None else ops.zeros_like(self.mask[:, :1], dtype="int32")

    def flat(self, positions):
        return ops.take_along_axis(self._positions, positions, axis=1)

    def at(self, hidden, positions):
        return _vectors_at(hidden, self.flat(positions))


INPUT_NAMES = ("input_mask", "segment_ids")  # optional


def _optional(inputs: Mapping[str, Any], name: str, default: Callable):
    """Returns an input, or `default` of the ids."""
    value = inputs.get(name)
    return ops.convert_to_tensor(default(inputs["input_ids"]) if value is None else value)


def segments_of(inputs: Mapping[str, Any]):
    """Returns the segments of a batch, zeros by default."""
    return _optional(inputs, "segment_ids", ops.zeros_like)


def layout_of(inputs: Mapping[str, Any]) -> RowLayout:
    """Returns the layout of a batch."""
    if "packed_places" in inputs:
        return PackedRows(inputs)
    positions = inputs.get("position_ids")
    return RowLayout(_optional(inputs, "input_mask", ops.ones_like), positions)


def gather_positions(sequence: Any, positions: Any):
    """Returns the vectors [B, P, H] of `sequence` [B, L, H] at `positions` [B, P]."""
    return _vectors_at(sequence, _flat(positions, ops.shape(sequence)[1]))


def _flat(positions: Any, length: Any):
    """Returns positions [B, P] in sequences of this length as positions among all B * L."""
    offsets = ops.arange(ops.shape(positions)[0], dtype="int32")[:, None] * length
    return ops.cast(positions, "int32") + offsets


def weighted(values: Any, weights: Any):
    """Returns the `values` [B, P, ...] whose weights [B, P] aren't 0, in the same order: [K, ...]."""
    (indices,) = ops.nonzero(ops.reshape(weights, (-1,)))
    shape = ops.shape(values)
    return ops.take(ops.reshape(values, (-1, *shape[2:])), indices, axis=0)


def _vectors_at(hidden, indices):
    """Returns the vectors [..., H] of `hidden` at `indices` [...] among all of its vectors."""
    width = ops.shape(hidden)[-1]
    vectors = ops.take(ops.reshape(hidden, (-1, width)), ops.reshape(indices, (-1,)), axis=0)
    return ops.reshape(vectors, (*ops.shape(indices), width))
