"""From shuffled pairs to serialized records, their statistics, and text for people to read."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from albert.pretraining_data.features import SEGMENT_LENGTHS, mask_sequences, sequence_lengths
from albert.pretraining_data.job import Recipe, load_tokenizer, vocabulary_info
from albert.pretraining_data.masking import token_boundaries
from albert.records.examples import encode_examples
from albert.records.tfrecord import frame_records

_BATCH = 1024  # records masked and serialized at once
_SHOWN = 100  # tokens of the first record in the log


def statistics_of(recipe: Recipe, ids: np.ndarray, pairs: np.ndarray) -> dict[str, int]:
    """Returns counts over pairs, for the report; arguments as in `make_features`."""
    is_unknown = ids == load_tokenizer(recipe).unk_id
    before = np.append(0, np.cumsum(is_unknown))
    unknown = [
        before[pairs[f"{side}_start"] + pairs[f"{side}_length"]] - before[pairs[f"{side}_start"]]
        for side in "ab"
    ]
    counted = {
        "label_1": pairs["label"],
        "tokens": _segments(pairs),  # in records, without special ones
        "lost": pairs["lost"],  # truncated, or in no pair
        "unknown": np.stack(unknown),
    }
    counted = {name: int(values.sum(dtype=np.int64)) for name, values in counted.items()}
    return counted | {"records": len(pairs)}


def _segments(pairs: np.ndarray) -> np.ndarray:
    """Returns the lengths of A and B; int64 [N, 2]."""
    return np.stack([pairs["a_length"], pairs["b_length"]], axis=1).astype(np.int64)


def frame_pairs(
    recipe: Recipe, ids: np.ndarray, pairs: np.ndarray, rng: np.random.Generator,
    examples: list[str],
) -> Iterator[tuple[bytes, int]]:
    """Masks and serializes pairs; an empty `examples` gets the first record as text.

    Yields (bytes, number of records) of successive blocks.
    """
    spec = recipe.feature_spec()
    for first in range(0, len(pairs), _BATCH):
        part = pairs[first : first + _BATCH]
        batch = make_features(recipe, ids, part, rng)
        if not examples:
            examples.append(describe(recipe, batch))
        yield frame_records(encode_examples(batch, spec)), len(part)


def make_features(
    recipe: Recipe, ids: np.ndarray, pairs: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns the features of records; see `Recipe.feature_spec`.

    Args:
      ids: tokens of a block.
      pairs: `PAIR` [B], ranges of `ids`.
    """
    is_start, special_ids = vocabulary_info(recipe)
    column, segments = np.arange(recipe.pairs.max_seq_length), _segments(pairs)
    length_a, lengths = segments[:, :1], sequence_lengths(segments)
    a, b = (pairs[f"{side}_start"].astype(np.int64)[:, None] for side in "ab")
    source = np.where(column > length_a + 1, b - length_a - 2, a - 1) + column
    # The positions before the first token and after the last one are overwritten below.
    unmasked = ids.take(source, mode="clip").astype(np.int64)
    unmasked *= column < lengths[:, None]
    unmasked[:, 0] = special_ids.cls_id
    for position in (length_a + 1, lengths[:, None] - 1):
        np.put_along_axis(unmasked, position, special_ids.sep_id, axis=1)
    boundary = token_boundaries(unmasked, lengths, is_start, special_ids)
    labels = pairs["label"].astype(np.int64)[:, None]
    features: dict[str, Any] = {"token_boundary": boundary, SEGMENT_LENGTHS: segments}
    if not recipe.static_masks:
        return features | {"input_ids": unmasked, "next_sentence_labels": labels}
    keys = rng.integers(0, 1 << 64, len(pairs), np.uint64)
    return features | mask_sequences(
        unmasked, segments, boundary, labels, special_ids, recipe.masking, keys
    )


def describe(recipe: Recipe, batch: Mapping[str, np.ndarray]) -> str:
    """Returns the first row of `make_features` as a line: its tokens, masked ones with their labels."""
    names, record = load_tokenizer(recipe).convert_ids_to_tokens, {name: x[0] for name, x in batch.items()}
    length = int(sequence_lengths(batch[SEGMENT_LENGTHS])[0])
    tokens = names(record["input_ids"][:length].tolist())
    if recipe.static_masks:
        count = int(record["masked_lm_weights"].sum())
        labels = names(record["masked_lm_ids"][:count].tolist())
        for position, label in zip(record["masked_lm_positions"].tolist(), labels):
            tokens[position] += f"({label})"
    shown = " ".join(tokens[:_SHOWN]) + " ..." * (length > _SHOWN)
    return f"{length} tokens, label {record['next_sentence_labels'][0]}: {shown}"
