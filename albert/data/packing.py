"""Several short examples in one row, so that padding costs next to nothing.

A batch keeps its examples, in their order; only the rows that the encoder
computes on are fewer. What belongs to an example (labels, weights) stays as it
is, and `row_layout.PackedRows` finds each example's places again.

Legend: B examples, L places of the longest, R rows, M places of a row.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

# Shorter rows would save nothing but attention, and fill less well.
LEAST_PACKED_LENGTH = 128
# Of these a row is made; all but `input_ids` and `segment_ids` are new.
FEATURES = (
    "input_ids", "segment_ids", "input_mask", "position_ids", "example_ids",
    "packed_places", "packed_mask",
)


def used_places(batch: Mapping[str, tf.Tensor], row_length: int | tf.Tensor) -> tf.Tensor:
    """Returns how many places of each row, from its first, may matter to a model's outputs.

    Those up to the last token, and up to the last place that is read: records of other tools
    may read one that is masked out or in the padding. All places of a row whose tokens are all
    masked out, since its attention is spread over them; none of a row that is all zeros.

    Args:
      batch: with `input_ids` and `input_mask` [B, C * row_length].

    Returns:
      int32 [B * C].
    """

    def last(is_used):
        counts = tf.range(1, row_length + 1)
        rows = tf.reshape(is_used, [-1, row_length])
        return tf.reduce_max(tf.where(rows, counts, 0), axis=1)

    used = last(batch["input_mask"] > 0)
    used = tf.where((used == 0) & (last(batch["input_ids"] > 0) > 0), row_length, used)
    read = used
    for name in ("masked_lm_positions", "start_positions", "end_positions"):
        if name in batch:
            positions = tf.reshape(tf.cast(batch[name], tf.int32), [tf.shape(used)[0], -1])
            read = tf.maximum(read, tf.reduce_max(positions, axis=1) + 1)
    if "p_mask" in batch:
        read = tf.maximum(read, last(batch["p_mask"] == 0))
    return tf.where(used > 0, read, 0)


def place(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (row, first place in it) of each example, by best fit, the longest first.

    Args:
      lengths: [B], each at most `capacity`.
      capacity: M, the places of a row.

    Examples without a place (padding of the last batch) share the first one of row 0.
    """
    rows, starts = np.zeros((2, len(lengths)), np.int32)
    # open_rows[n]: the rows with n places left.
    open_rows: list[list[int]] = [[] for _ in range(capacity + 1)]
    count = 0
    for index in np.argsort(-lengths, kind="stable"):
        length = int(lengths[index])
        if not length:
            break
        left = next((n for n in range(length, capacity + 1) if open_rows[n]), None)
        if left is None:
            row, left = count, capacity
            count += 1
        else:
            row = open_rows[left].pop()
        rows[index], starts[index] = row, capacity - left
        open_rows[left - length].append(row)
    return rows, starts


def pack_rows(
    batch: Mapping[str, tf.Tensor], choices: int, lengths: Sequence[int], row_multiple: int = 1
) -> dict[str, tf.Tensor]:
    """Returns the batch with its rows packed; a model's outputs for it are the same.

    What they are of each row: those at its `used_places`.

    Args:
      batch: with `input_ids`, `input_mask` and `segment_ids` [B, C * L].
      choices: C, the examples one after another in these features.
      lengths: ascending, what M may be: the least that is no less than L and
        LEAST_PACKED_LENGTH, or else the last.
      row_multiple: R is a multiple of it, for compilers that need few shapes.
    """

    def packed(ids, segments, mask, used):
        least = max(ids.shape[1], LEAST_PACKED_LENGTH)
        capacity = next((n for n in lengths if n >= least), lengths[-1])
        return _pack(ids, segments, mask, used, capacity, row_multiple)

    names = ("input_ids", "segment_ids", "input_mask")
    apart = [_apart(batch[name], choices) for name in names]
    used = used_places(batch, tf.shape(apart[0])[1])
    arrays = tf.numpy_function(packed, [*apart, used], [tf.int32] * len(FEATURES))
    of_rows, of_examples = arrays[:5], arrays[5:]
    for array in of_rows:
        array.set_shape([None, None])
    for array in of_examples:
        array.set_shape(apart[0].shape)
    return {**batch, **dict(zip(FEATURES, arrays, strict=True))}


def _apart(x: tf.Tensor, choices: int) -> tf.Tensor:
    return tf.reshape(x, [-1, tf.shape(x)[1] // choices]) if choices > 1 else x


def _pack(ids, segments, mask, lengths, capacity: int, row_multiple: int) -> list[np.ndarray]:
    """Returns the arrays of FEATURES: five of [R, M], two of [B, L]."""
    rows, starts = place(lengths, capacity)
    count = -(-(int(rows.max()) + 1) // row_multiple) * row_multiple
    within = np.arange(mask.shape[1], dtype=np.int32)
    is_token = within < lengths[:, None]  # [B, L]
    places = rows[:, None] * capacity + np.where(is_token, starts[:, None] + within, 0)
    targets = places[is_token]

    def spread(values: np.ndarray) -> np.ndarray:
        flat = np.zeros(count * capacity, np.int32)
        flat[targets] = values[is_token]
        return flat.reshape(count, capacity)

    # The numbers are of the batch, not of the row: they only have to differ.
    numbers = np.arange(1, len(lengths) + 1, dtype=np.int32)[:, None]
    return [
        spread(ids),
        spread(segments),
        spread(mask),
        spread(np.broadcast_to(within, is_token.shape)),
        # A masked place asks what the tokens of its example ask, and is asked by none.
        spread(np.where(mask > 0, numbers, -numbers)),
        places.astype(np.int32),
        mask,
    ]
