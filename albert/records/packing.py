"""Several short examples in one row, so that padding costs next to nothing.

A batch keeps its examples, in their order; only the rows that the encoder
computes on are fewer. What belongs to an example (labels, weights) stays as it
is, and `row_layout.PackedRows` finds each example's places again.

Legend: B examples, L places of the longest, R rows, M places of a row.
"""

from collections.abc import Mapping, Sequence

import numpy as np

# Batches are cut to few lengths: each is compiled by itself where XLA compiles.
_MOST_LENGTHS = 8
_LEAST_LENGTH = 32  # places of the shortest
_ROWS = ("input_ids", "input_mask", "segment_ids", "p_mask")

# Shorter rows would save nothing but attention, and fill less well.
LEAST_PACKED_LENGTH = 128
# Of these a row is made; all but `input_ids` and `segment_ids` are new.
OF_ROWS = "input_ids", "segment_ids", "input_mask", "position_ids", "example_ids"
OF_EXAMPLES = "packed_places", "packed_mask"
FEATURES = *OF_ROWS, *OF_EXAMPLES


def row_lengths(row_length: int) -> list[int]:
    """Returns the few lengths, in ascending order, that rows of `row_length` are cut to."""
    width = max(_LEAST_LENGTH, -(-row_length // _MOST_LENGTHS))
    return [*range(width, row_length, width), row_length]


def used_places(batch: Mapping[str, np.ndarray], row_length: int) -> np.ndarray:
    """Returns how many places of each row, from its first, may matter to a model's outputs.

    These are the places up to the last token, and up to the last place that is read: records of
    other tools may read one that is masked out or in the padding. Where all tokens of a row are
    masked out, all its places matter, since its attention is spread over them. Of a row of zeros
    none does.

    Args:
      batch: with `input_ids` and `input_mask` [B, C * row_length].

    Returns:
      int32 [B * C].
    """

    def last(is_used):
        counts = np.arange(1, row_length + 1, dtype=np.int32)
        return np.where(is_used.reshape(-1, row_length), counts, 0).max(axis=1)

    used = last(batch["input_mask"] > 0)
    used = np.where((used == 0) & (last(batch["input_ids"] > 0) > 0), row_length, used)
    read = used
    for name in ("masked_lm_positions", "start_positions", "end_positions"):
        if name in batch:
            positions = batch[name].astype(np.int32).reshape(len(used), -1)
            read = np.maximum(read, positions.max(axis=1) + 1)
    if "p_mask" in batch:
        read = np.maximum(read, last(batch["p_mask"] == 0))
    return np.where(used > 0, read, 0).astype(np.int32)


def cut_rows(
    batch: Mapping[str, np.ndarray], row_length: int, others: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Returns the batch with rows of the least of `row_lengths` that holds all that is read.

    A model takes no notice of the rest (see `used_places`), so that its outputs
    are the same; only dropout inside the encoder draws other numbers. Features of
    C * row_length places are C rows one after another, and stay so. `others` are cut
    like the rows of ids.
    """
    used = int(used_places(batch, row_length).max())
    length = next(n for n in row_lengths(row_length) if n >= used)

    def cut(x):
        return x.reshape(-1, row_length)[:, :length].reshape(len(x), -1)

    of_places = cut_features(others)
    return {name: cut(x) if name in of_places else x for name, x in batch.items()}


def cut_features(others: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the features that have a number for each place, and are cut with the rows."""
    return *_ROWS, *others


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
    batch: Mapping[str, np.ndarray], choices: int, lengths: Sequence[int], row_multiple: int = 1
) -> dict[str, np.ndarray]:
    """Returns the batch with its rows packed; a model's outputs for it are the same.

    What they are of each row: those at its `used_places`.

    Args:
      batch: with `input_ids`, `input_mask` and `segment_ids` [B, C * L].
      choices: C, the examples one after another in these features.
      lengths: ascending, what M may be: the least that is no less than L and
        LEAST_PACKED_LENGTH, or else the last.
      row_multiple: R is a multiple of it, for compilers that need few shapes.
    """
    length = batch["input_ids"].shape[1] // choices
    least = max(length, LEAST_PACKED_LENGTH)
    capacity = next((n for n in lengths if n >= least), lengths[-1])
    apart = [batch[name].reshape(-1, length) for name in ("input_ids", "segment_ids", "input_mask")]
    arrays = _pack(*apart, used_places(batch, length), capacity, row_multiple)
    return {**batch, **dict(zip(FEATURES, arrays, strict=True))}


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
