"""Draws masks when records are read, so that every epoch has different ones (as in RoBERTa).

Such records hold each pair once, instead of `dupe_factor` masked copies. The masks, and whether A
and B are swapped, depend on the seed and the record's position in the run alone: a resumed run draws
the same ones, with any number of readers.

Shapes: B batch, L sequence, P predictions.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from albert.errors import DataError
from albert.pretraining_data.features import (
    SEGMENT_LENGTHS,
    mask_sequences,
    masked_features,
    pair_features,
)
from albert.pretraining_data.masking import MaskingSettings, SpecialIds
from albert.pretraining_data.pairs import SENTENCE_OBJECTIVES, PairSettings
from albert.pretraining_data.rng import SequenceRng, keys_at
from albert.records import manifests
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
    """Turns records of pairs into masked batches."""

    max_seq_length: int
    settings: MaskingSettings
    special_ids: SpecialIds
    seed: int
    swap_prob: float = 0.0  # of swapping A and B, unless B is random
    whole_prob: float = 0.0  # of a sequence without masks

    def feature_spec(self) -> FeatureSpec:
        """Returns the features of the records; a batch has `features` instead."""
        length = self.max_seq_length
        return FeatureSpec(pair_features(length), row_length=length, masking=self)

    @property
    def features(self) -> dict[str, tuple[str, int]]:
        """The features that masking adds to a batch."""
        return masked_features(self.max_seq_length, self.settings.max_predictions_per_seq)

    def __call__(
        self, batch: Mapping[str, np.ndarray], positions: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Masks a batch.

        Args:
          batch: the `pair_features`, int32, and others, which are unchanged.
          positions: int64 [B], position of each record in the run.
        """
        names = ("input_ids", SEGMENT_LENGTHS, "token_boundary", "next_sentence_labels")
        ids, segments, boundary, labels = (batch[name] for name in names)
        keys = keys_at(self.seed, positions)
        if self.swap_prob:
            number = SequenceRng(keys).uniform(SequenceRng.SWAP, np.arange(len(keys)), 0)
            is_in_order = (labels[:, 0] == 0) & (segments[:, 1] > 0)
            is_swapped = (number < self.swap_prob) & is_in_order
            rows = np.flatnonzero(is_swapped)
            source = _swapped_columns(segments[rows], ids.shape[1]) + rows[:, None] * ids.shape[1]
            ids, boundary = ids.copy(), boundary.copy()
            for array in (ids, boundary):
                array[rows] = array.ravel().take(source)
            segments = np.where(is_swapped[:, None], segments[:, ::-1], segments)
            labels = labels | is_swapped[:, None]
        masked = mask_sequences(
            ids, segments, boundary, labels.astype(ids.dtype), self.special_ids, self.settings, keys
        )
        if self.whole_prob:
            number = SequenceRng(keys).uniform(SequenceRng.WHOLE, np.arange(len(keys)), 0)
            is_whole = number < self.whole_prob
            masked["input_ids"][is_whole] = ids[is_whole]
            for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
                masked[name][is_whole] = 0
        return {k: v for k, v in batch.items() if k not in pair_features(0)} | masked


def _swapped_columns(segments: np.ndarray, width: int) -> np.ndarray:
    """Returns where in [CLS] A [SEP] B [SEP] each token of [CLS] B [SEP] A [SEP] is; [B, L]."""
    column, first, last = np.arange(width), segments[:, :1] + 1, segments.sum(axis=1)[:, None] + 2
    rotated = column + first  # A [SEP] B [SEP], rotated until B leads
    rotated -= last * (rotated > last)
    return np.where((column == 0) | (column > last), column, rotated)


# === Manifests ===


def sentence_objectives(source: RecordFiles) -> tuple[str, ...]:
    """Returns the objectives of these records: one, "none", or both.

    Raises:
      DataError: they were made for two objectives.
    """
    objectives = {
        manifest.info.get("sentence_objective", "sop"): path for path, manifest in source.manifests()
    }
    for objective, path in objectives.items():
        if objective not in SENTENCE_OBJECTIVES:
            raise DataError(f"{path}: unknown sentence_objective {objective!r} in its manifest")
    if len(set(objectives) - {"none"}) > 1:
        (one, first), (other, path), *_ = ((o, p) for o, p in objectives.items() if o != "none")
        raise DataError(f"{path} was made with --sentence_objective={other}, {first} with {one}")
    return tuple(sorted(objectives, key=lambda objective: objective == "none"))


def dynamic_masking(
    source: RecordFiles, max_seq_length: int, settings: MaskingSettings, seed: int,
    whole_prob: float = 0.0,
) -> DynamicMasking | None:
    """Returns the masking of record files that hold pairs without masks; None if they hold masks.

    Raises:
      DataError: some hold masks, or a manifest lacks the ids of special tokens, or they differ.
    """
    paths: dict[SpecialIds | None, str] = {}
    for path, manifest in source.manifests():
        if SEGMENT_LENGTHS not in manifest.features:
            paths.setdefault(None, path)
            continue
        ids = [manifest.info.get(key) for key in SpecialIds._fields]
        if not all(isinstance(value, int) and value >= 0 for value in ids):
            raise DataError(f"{manifests.manifest_path(path)}: lacks {', '.join(SpecialIds._fields)}, "
                            "which masking needs: make the records again")
        paths.setdefault(SpecialIds(*ids), path)
    with_masks = paths.pop(None, None)
    if not paths:
        return None
    one, *others = paths.values()
    if with_masks:
        raise DataError(f"--{source.flag}: {one} holds pairs without masks, {with_masks} does not: "
                        "they cannot be read together")
    if others:
        raise DataError(f"{one} and {others[0]} were made with different vocabularies")
    (special_ids,) = paths
    pairs = PairSettings(sentence_objective=sentence_objectives(source)[0])
    return DynamicMasking(max_seq_length, settings, special_ids, seed, pairs.swap_prob, whole_prob)
