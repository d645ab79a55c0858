"""The features of pretraining records, with and without masks.

Shapes: B batch, L sequence, P predictions.
"""

import numpy as np

from albert.pretraining_data import masking
from albert.pretraining_data.masking import MaskingSettings, SpecialIds

SEGMENT_LENGTHS = "segment_lengths"  # a feature of records without masks only


def pair_features(max_seq_length: int) -> dict[str, tuple[str, int]]:
    """Returns the features of a pair without masks: {name: (dtype, length)}."""
    return {
        "input_ids": ("int64", max_seq_length),
        "token_boundary": ("int64", max_seq_length),
        SEGMENT_LENGTHS: ("int64", 2),  # of A and B
        "next_sentence_labels": ("int64", 1),
    }


def masked_features(
    max_seq_length: int, num_predictions: int, with_boundary: bool = False
) -> dict[str, tuple[str, int]]:
    """Returns the features of the original's records: {name: (dtype, length)}."""
    sequences = ("input_ids", "input_mask", "segment_ids", *(["token_boundary"] * with_boundary))
    return {name: ("int64", max_seq_length) for name in sequences} | {
        "masked_lm_positions": ("int64", num_predictions),
        "masked_lm_ids": ("int64", num_predictions),
        "masked_lm_weights": ("float32", num_predictions),
        # BERT's name; 1: swapped, or B is from another document; 0: in order.
        "next_sentence_labels": ("int64", 1),
    }


def sequence_lengths(segments: np.ndarray) -> np.ndarray:
    """Returns the lengths [B] of [CLS] A [SEP] B [SEP], given those of A and B [B, 2].

    An empty B has no [SEP].
    """
    return segments.sum(axis=1) + 2 + (segments[:, 1] > 0)


def mask_sequences(
    ids: np.ndarray,
    segments: np.ndarray,
    boundary: np.ndarray,
    labels: np.ndarray,
    special_ids: SpecialIds,
    settings: MaskingSettings,
    keys: np.ndarray,
) -> dict[str, np.ndarray]:
    """Returns the `masked_features` of sequences.

    Args:
      ids: [B, L], [CLS] A [SEP] B [SEP] and zeros.
      segments: [B, 2], lengths of A and B.
      boundary: [B, L], nonzero where a word starts.
      labels: [B, 1].
      keys: uint64 [B], see `masking.mask_batch`.
    """
    column, lengths = np.arange(ids.shape[1]), sequence_lengths(segments)
    is_inside = column < lengths[:, None]
    masked, positions, originals, counts = masking.mask_batch(
        ids, lengths, boundary, special_ids, settings, keys
    )
    is_prediction = np.arange(settings.max_predictions_per_seq) < counts[:, None]
    return {
        "input_ids": masked,
        "input_mask": is_inside.astype(ids.dtype),
        "segment_ids": (is_inside & (column > segments[:, :1] + 1)).astype(ids.dtype),
        "masked_lm_positions": positions,
        "masked_lm_ids": originals,
        "masked_lm_weights": is_prediction.astype(np.float32),
        "next_sentence_labels": labels,
    }
