"""From shuffled pairs to serialized records, their statistics, and text for people to read."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from albert.pretraining_data.features import SEGMENT_LENGTHS, mask_sequences, sequence_lengths
from albert.pretraining_data.job import Recipe, load_tokenizer, vocabulary_info
from albert.pretraining_data.masking import token_boundaries
from albert.pretraining_data.shuffle import Bucket
from albert.records.examples import frame_examples

_BATCH = 1024  # records masked and serialized at once
_EXAMPLES = 3  # records shown in the log


def statistics_of(recipe: Recipe, bucket: Bucket) -> dict[str, int]:
    """Returns counts over the pairs of a bucket, for the report."""
    pairs = bucket.pairs
    counted = {
        "label_1": pairs["label"],
        "tokens": _segments(pairs),  # in records, without special ones
        "lost": pairs["lost"],  # truncated, or in no pair
        "unknown": bucket.ids == load_tokenizer(recipe).unk_id,
    }
    sums = {name: int(values.sum(dtype=np.int64)) for name, values in counted.items()}
    return sums | {"records": len(pairs)}


def _segments(pairs: np.ndarray) -> np.ndarray:
    """Returns the lengths of A and B; int64 [N, 2]."""
    return np.stack([pairs["a_length"], pairs["b_length"]], axis=1).astype(np.int64)


def frame_bucket(
    recipe: Recipe, split: str, number: int, bucket: Bucket, examples: list[str] | None = None
) -> Iterator[tuple[bytes, int]]:
    """Shuffles, masks and serializes bucket `number` of a split; appends text to `examples`.

    Yields (bytes, number of records) of successive blocks.
    """
    rng = np.random.default_rng(recipe.seed(split, "bucket", number))
    order, spec = rng.permutation(len(bucket.pairs)), recipe.feature_spec()
    for first in range(0, len(order), _BATCH):
        pairs = bucket.pairs[order[first : first + _BATCH]]
        batch = make_features(recipe, bucket.ids, pairs, rng)
        if examples is not None and not first:
            examples += (describe(recipe, batch, row) for row in range(len(pairs))[:_EXAMPLES])
        yield frame_examples(batch, spec), len(pairs)


def make_features(
    recipe: Recipe, ids: np.ndarray, pairs: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns the features of records; see `Recipe.feature_spec`.

    Args:
      ids: tokens; those of B follow those of A.
      pairs: `PAIR` [B].
    """
    is_start, special_ids = vocabulary_info(recipe)
    column, segments = np.arange(recipe.pairs.max_seq_length), _segments(pairs)
    length_a, lengths = segments[:, :1], sequence_lengths(segments)
    source = (pairs["a_start"].astype(np.int64)[:, None] - 1) + column
    source -= column > length_a + 1
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


def describe(recipe: Recipe, batch: Mapping[str, np.ndarray], row: int) -> str:
    """Returns a row of `make_features` as text, for people to read."""
    record = {name: values[row].tolist() for name, values in batch.items()}
    names = load_tokenizer(recipe).convert_ids_to_tokens
    lengths = batch[SEGMENT_LENGTHS][row : row + 1]
    length_a, length = record[SEGMENT_LENGTHS][0], int(sequence_lengths(lengths)[0])
    count = int(sum(record.get("masked_lm_weights", ())))
    shown = {
        "tokens": names(record["input_ids"][:length]),
        "segment_ids": [0] * (length_a + 2) + [1] * (length - length_a - 2),
        "masked_lm_positions": record.get("masked_lm_positions", [])[:count],
        "masked_lm_labels": names(record.get("masked_lm_ids", [])[:count]),
        "is_random_next": [bool(record["next_sentence_labels"][0])],
        "token_boundary": record["token_boundary"][:length],
    }
    # Records without masks have no predictions.
    return "".join(f"{name}: {' '.join(map(str, v))}\n" for name, v in shown.items() if v)
