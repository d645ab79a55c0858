"""Where the examples of a batch lie in the rows that an encoder computes on.

Usually an example is a row. In packed rows several examples share one, each
attending to itself alone; `albert.records.packing` makes them. Whoever reads an
encoder's hidden states asks the layout, and need not know which it is.

Legend: B examples, L length of the longest, R packed sequences, M their length, H hidden,
P positions.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras import ops

# Added to the scores of masked keys. Not -inf: a row without any unmasked key
# must become a plain softmax, as in the released models.
MASK_ADDER = -10000.0


class Mask(NamedTuple):
    """Which keys a query sees."""

    adder: Any  # what is added to the scores: [R, 1, 1 or Q, L]
    # The same in two arrays, [R, Q] and [R, L], for kernels that take it so: a query sees the
    # keys of its group. None: all.
    groups: tuple[Any, Any] | None = None


def mask_of(seen: Any, dtype: str, groups: tuple[Any, Any] | None = None) -> Mask:
    """Returns the additive mask that lets attention see only where `seen` is 1."""
    return Mask((1.0 - ops.cast(seen, dtype)) * MASK_ADDER, groups)


class RowPerExample:
    """Each example is a row: R = B, M = L."""

    def __init__(self, input_mask: Any, position_ids: Any = None):
        self.mask = input_mask  # [B, L]
        # [B, L] or [1, L]; None: 0, 1, 2 ...
        self.position_ids = None if position_ids is None else ops.convert_to_tensor(position_ids)

    def row_mask(self):
        """Returns which keys a query sees, the same for every query of a row: [B, 1, 1, L]."""
        return self.mask[:, None, None, :]

    def row_groups(self):
        """Returns the same as groups of queries and of keys, each [B, L]; see `Mask`."""
        return ops.ones_like(self.mask), self.mask

    def key_mask(self):
        """Returns which positions an example has: [B, 1, 1, L]."""
        return self.mask[:, None, None, :]

    def every(self, hidden):
        """Returns all positions of each example [B, L, H] of `hidden` [R, M, H]."""
        return hidden

    def first(self, hidden):
        """Returns each example's first position, `[CLS]`: [B, H]."""
        return hidden[:, 0]

    def at(self, hidden, positions):
        """Returns each example at `positions` [B, P]: [B, P, H]."""
        return gather_positions(hidden, positions)

    def first_and(self, positions):
        """Returns the positions [B, 1 + P] of `[CLS]` and of `positions`, if there are any.

        None: they may be more than the example has, as where a batch is cut,
        which has as many positions as the longest that there may be.
        """
        first = ops.zeros_like(self.mask[:, :1], dtype="int32")
        if positions is None:
            return first
        length, count = self.mask.shape[1], positions.shape[1]
        if None in (length, count) or 1 + count >= length:
            return None
        return ops.concatenate([first, ops.cast(positions, "int32")], axis=1)


class PackedRows:
    """Several examples in a sequence, each at the positions in `packed_places`."""

    def __init__(self, inputs: Mapping[str, Any]):
        # Both [R, M]: the position within the example, and the example's number (0: none;
        # negative where the example's mask is 0).
        self.position_ids = ops.convert_to_tensor(inputs["position_ids"])
        self._examples = ops.convert_to_tensor(inputs["example_ids"])
        # Both [B, L]: the position among all R * M, and whether there is one.
        self._places = ops.convert_to_tensor(inputs["packed_places"])
        self.mask = ops.convert_to_tensor(inputs["packed_mask"])

    def row_mask(self):
        """Returns whether query and key are of one example: [R, 1, M, M]."""
        asking = ops.absolute(self._examples)
        return ops.equal(asking[:, None, :, None], self._examples[:, None, None, :])

    def row_groups(self):
        return ops.absolute(self._examples), self._examples

    def key_mask(self):
        return self.mask[:, None, None, :]

    def every(self, hidden):
        return _vectors_at(hidden, self._places)

    def first(self, hidden):
        return _vectors_at(hidden, self._places[:, 0])

    def first_and(self, positions):
        return None if positions is not None else ops.zeros_like(self.mask[:, :1], dtype="int32")

    def at(self, hidden, positions):
        places = ops.take_along_axis(self._places, positions, axis=1)
        return _vectors_at(hidden, places)


RowLayout = RowPerExample | PackedRows


INPUT_NAMES = ("input_mask", "segment_ids")  # optional


def _optional(inputs: Mapping[str, Any], name: str, default: Callable):
    """Returns an input, else what `default` makes of the ids."""
    found = inputs.get(name)
    return ops.convert_to_tensor(default(inputs["input_ids"]) if found is None else found)


def segments_of(inputs: Mapping[str, Any]):
    """Returns the segments of a batch, zeros by default."""
    return _optional(inputs, "segment_ids", ops.zeros_like)


def layout_of(inputs: Mapping[str, Any]) -> RowLayout:
    """Returns the layout of a batch; by default, each sequence is an example."""
    if "packed_places" in inputs:
        return PackedRows(inputs)
    positions = inputs.get("position_ids")
    return RowPerExample(_optional(inputs, "input_mask", ops.ones_like), positions)


def gather_positions(sequence: Any, positions: Any):
    """Returns the vectors [B, P, H] of `sequence` [B, L, H] at `positions` [B, P]."""
    batch, length, _ = ops.shape(sequence)
    offsets = ops.arange(batch, dtype="int32")[:, None] * length
    return _vectors_at(sequence, ops.cast(positions, "int32") + offsets)


def weighted(values: Any, weights: Any):
    """Returns those of `values` [B, P, ...] whose weight [B, P] is not 0, in their order: [K, ...]."""
    (places,) = ops.nonzero(ops.reshape(weights, (-1,)))
    shape = ops.shape(values)
    return ops.take(ops.reshape(values, (-1, *shape[2:])), places, axis=0)


def _vectors_at(hidden, places):
    """Returns the vectors [..., H] of `hidden` at `places` among all of its vectors."""
    width = ops.shape(hidden)[-1]
    found = ops.take(ops.reshape(hidden, (-1, width)), ops.reshape(places, (-1,)), axis=0)
    return ops.reshape(found, (*ops.shape(places), width))
