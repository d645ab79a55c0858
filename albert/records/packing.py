"""Reduces padding: trims sequences, and packs several examples into one sequence.

A packed batch has the same examples in the same order, in fewer sequences. Labels and weights of
examples stay unchanged, and `row_layout.PackedRows` finds the positions of each example.

Legend: B examples, L length of the longest, R packed sequences, M their length, C choices.
"""

from collections.abc import Mapping, Sequence

import numpy as np

# Batches are trimmed to few different lengths, because XLA compiles each one.
_NUM_LENGTHS = 8
_MIN_LENGTH = 32
# Shorter packed sequences would only save attention, and have more padding.
MIN_PACKED_LENGTH = 128

_SEQUENCES = ("input_ids", "input_mask", "segment_ids", "p_mask")
# Features of packed sequences, and of their examples; all but the first three are new.
OF_ROWS = "input_ids", "segment_ids", "input_mask", "position_ids", "example_ids"
OF_EXAMPLES = "packed_places", "packed_mask"


def row_lengths(row_length: int) -> list[int]:
    """Returns the lengths, in ascending order, to which sequences of `row_length` are trimmed."""
    width = max(_MIN_LENGTH, -(-row_length // _NUM_LENGTHS))
    return [*range(width, row_length, width), row_length]


def used_lengths(batch: Mapping[str, np.ndarray], row_length: int) -> np.ndarray:
    """Returns the length of each sequence that may affect a model's outputs.

    It includes the last token and the last position in use, which in records of other tools may be
    masked out or padding. If all tokens of a sequence are masked out, attention is spread over the
    entire sequence, so that all of it counts. Sequences of zeros have length 0.

    Args:
      batch: with `input_ids` and `input_mask` [B, C * row_length].

    Returns:
      int32 [B * C].
    """

    def last(is_used: np.ndarray) -> np.ndarray:
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
    """Returns the batch with sequences trimmed to the shortest of `row_lengths` that suffices.

    A model's outputs stay the same (see `used_lengths`), except for the random numbers of dropout.
    Features of length C * row_length are C concatenated sequences. `others` are trimmed, too.
    """
    used = int(used_lengths(batch, row_length).max())
    length = next(n for n in row_lengths(row_length) if n >= used)
    names = cut_features(others)
    return {
        name: x.reshape(-1, row_length)[:, :length].reshape(len(x), -1) if name in names else x
        for name, x in batch.items()
    }


def cut_features(others: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the features with a number for each position, which are trimmed."""
    return *_SEQUENCES, *others


def best_fit(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (packed sequence, first position in it) of each example, packing the longest first.

    Examples of length 0 (padding of the last batch) share the first position of sequence 0.

    Args:
      lengths: [B], each at most `capacity`.
      capacity: M, the length of a packed sequence.
    """
    rows, starts = np.zeros((2, len(lengths)), np.int32)
    # open_rows[n]: the sequences with n positions left.
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
    """Returns the batch with packed sequences, for which a model's outputs are the same.

    This holds for the first `used_lengths` positions of each example.

    Args:
      batch: with `input_ids`, `input_mask` and `segment_ids` [B, C * L].
      choices: C, the number of concatenated sequences in these features.
      lengths: candidates for M, ascending: the first that is at least L and MIN_PACKED_LENGTH is
        used, else the last.
      row_multiple: R is a multiple of it, for compilers that need few shapes.

    Returns:
      the batch with `OF_ROWS` [R, M] and `OF_EXAMPLES` [B * C, L].
    """
    length = batch["input_ids"].shape[1] // choices
    shortest = max(length, MIN_PACKED_LENGTH)
    capacity = next((n for n in lengths if n >= shortest), lengths[-1])
    ids, segments, mask = (
        batch[name].reshape(-1, length) for name in ("input_ids", "segment_ids", "input_mask")
    )
    used = used_lengths(batch, length)
    rows, starts = best_fit(used, capacity)
    count = -(-(int(rows.max()) + 1) // row_multiple) * row_multiple
    within = np.arange(length, dtype=np.int32)
    is_token = within < used[:, None]  # [B, L]
    positions = rows[:, None] * capacity + np.where(is_token, starts[:, None] + within, 0)

    def spread(values: np.ndarray) -> np.ndarray:
        flat = np.zeros(count * capacity, np.int32)
        flat[positions[is_token]] = values[is_token]
        return flat.reshape(count, capacity)

    # Examples are numbered within the batch; the numbers only need to differ.
    numbers = np.arange(1, len(used) + 1, dtype=np.int32)[:, None]
    return {
        **batch,
        "input_ids": spread(ids),
        "segment_ids": spread(segments),
        "input_mask": spread(mask),
        "position_ids": spread(np.broadcast_to(within, is_token.shape)),
        # A masked position attends to the tokens of its example, and no position attends to it.
        "example_ids": spread(np.where(mask > 0, numbers, -numbers)),
        "packed_places": positions.astype(np.int32),
        "packed_mask": mask,
    }
