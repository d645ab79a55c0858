"""Records of segment pairs without masks, and masks drawn anew each time one is read.

Such a record holds a pair once, where the original's hold dupe_factor masked copies of
it. Its masks, and whether A and B are swapped, follow from the seed and the record's
position in the run: the same for whoever reads it, after however many restarts, and
others in every epoch.

Shapes: B batch, L sequence, P predictions.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.pretraining_data import masking
from albert.pretraining_data.draws import Draws, row_keys
from albert.pretraining_data.masking import MaskingSettings, Specials
from albert.pretraining_data.pairs import SENTENCE_OBJECTIVES, PairSettings
from albert.records import records
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles

_MARK = "segment_lengths"  # the feature that only such records have
_SPECIAL_KEYS = ("cls_id", "sep_id", "mask_id", "vocab_size")


def pair_features(max_seq_length: int) -> dict[str, tuple[str, int]]:
    """Returns the features of a record."""
    return {
        "input_ids": ("int64", max_seq_length),
        "token_boundary": ("int64", max_seq_length),
        _MARK: ("int64", 2),  # tokens of A and of B
        # As of the original's records. With a later swap: 0, unless B is of another document.
        "next_sentence_labels": ("int64", 1),
    }


def masked_features(
    max_seq_length: int, num_predictions: int, with_boundary: bool = False
) -> dict[str, tuple[str, int]]:
    """Returns the features that a model learns from, those of the original's records."""
    rows = ("input_ids", "input_mask", "segment_ids", *(["token_boundary"] * with_boundary))
    return {name: ("int64", max_seq_length) for name in rows} | {
        "masked_lm_positions": ("int64", num_predictions),
        "masked_lm_ids": ("int64", num_predictions),
        "masked_lm_weights": ("float32", num_predictions),
        # The original's name, of the days of next-sentence prediction: 1 is
        # swapped (or of another document), 0 in order.
        "next_sentence_labels": ("int64", 1),
    }


def manifest_info(specials: Specials, pairs: PairSettings) -> dict[str, Any]:
    """Returns what a reader that draws masks must know, for the manifest."""
    told = {key: int(getattr(specials, key)) for key in _SPECIAL_KEYS}
    return told | {"sentence_objective": pairs.sentence_objective}


def lengths_of(segments: np.ndarray) -> np.ndarray:
    """Returns the tokens of rows [B], [CLS] and each [SEP] counted, from those of A and B [B, 2].

    Where B is empty, it has no [SEP].
    """
    return segments.sum(axis=1) + 2 + (segments[:, 1] > 0)


def mask_rows(
    ids: np.ndarray,
    segments: np.ndarray,
    boundary: np.ndarray,
    labels: np.ndarray,
    specials: Specials,
    settings: MaskingSettings,
    keys: np.ndarray,
    shares: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Returns the `masked_features` of rows.

    Args:
      ids: [B, L], [CLS] A [SEP] B [SEP] and zeros; see `lengths_of`.
      segments: [B, 2], tokens of A and of B.
      boundary: [B, L], not 0 where a word begins.
      labels: [B, 1].
      keys: uint64 [B], see `draws.row_keys`.
      shares: [B], see `masking.num_to_predict`.
    """
    column, lengths = np.arange(ids.shape[1]), lengths_of(segments)
    inside = column < lengths[:, None]
    masked = masking.mask_batch(ids, lengths, boundary, specials, settings, keys, shares)
    rank = np.arange(settings.num_predictions)
    return {
        "input_ids": masked.input_ids,
        "input_mask": inside.astype(ids.dtype),
        "segment_ids": (inside & (column > segments[:, :1] + 1)).astype(ids.dtype),
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.labels,
        "masked_lm_weights": (rank < masked.counts[:, None]).astype(np.float32),
        "next_sentence_labels": labels,
    }


@dataclasses.dataclass(frozen=True)
class MasksOnTheFly:
    """How records of pairs become rows to learn from."""

    max_seq_length: int
    settings: MaskingSettings
    specials: Specials
    seed: int
    swap_prob: float = 0.0  # of A and B, where B is not of a random document
    # The share of masked tokens changes along a line to this one, within so many records.
    last_share: float | None = None
    num_rows: int = 0

    def feature_spec(self) -> FeatureSpec:
        """Returns the features of a record; those of a batch are `masked_features`."""
        length = self.max_seq_length
        return FeatureSpec(pair_features(length), row_length=length, complete=self)

    @property
    def features(self) -> dict[str, tuple[str, int]]:
        """Those that a batch has beside what else its records hold."""
        return masked_features(self.max_seq_length, self.settings.num_predictions)

    def __call__(
        self, batch: Mapping[str, np.ndarray], positions: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Returns the batch with masks.

        Args:
          batch: the `pair_features`, int32, and others that are left as they are.
          positions: int64 [B], the place of each record in the run.
        """
        names = ("input_ids", _MARK, "token_boundary", "next_sentence_labels")
        masked = self.mask(*(batch[name] for name in names), positions)
        return {k: v for k, v in batch.items() if k not in pair_features(0)} | masked

    def mask(
        self,
        ids: np.ndarray,
        segments: np.ndarray,
        boundary: np.ndarray,
        labels: np.ndarray,
        positions: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Returns the `masked_features` of records; arguments as of `mask_rows`."""
        keys = row_keys(self.seed, positions)
        if self.swap_prob:
            draw = Draws(keys).uniform(Draws.SWAP, np.arange(len(keys)), 0)
            is_ordered = (labels[:, 0] == 0) & (segments[:, 1] > 0)  # not of a single sentence
            swapped = (draw < self.swap_prob) & is_ordered
            rows = np.flatnonzero(swapped)
            places = _swapped_places(segments[rows], ids.shape[1]) + rows[:, None] * ids.shape[1]
            ids, boundary = ids.copy(), boundary.copy()
            for table in (ids, boundary):
                table[rows] = table.ravel().take(places)
            segments = np.where(swapped[:, None], segments[:, ::-1], segments)
            labels = labels | swapped[:, None]
        return mask_rows(
            ids, segments, boundary, labels.astype(ids.dtype), self.specials, self.settings, keys,
            self._shares(positions),
        )

    def _shares(self, positions: np.ndarray) -> np.ndarray | None:
        if self.last_share is None:
            return None
        first, done = self.settings.masked_lm_prob, np.minimum(positions / self.num_rows, 1.0)
        return first + (self.last_share - first) * done


def _swapped_places(segments: np.ndarray, width: int) -> np.ndarray:
    """Returns where each token of [CLS] B [SEP] A [SEP] is in [CLS] A [SEP] B [SEP]; [B, L]."""
    column, first, last = np.arange(width), segments[:, :1] + 1, segments.sum(axis=1)[:, None] + 2
    # A [SEP] B [SEP], turned until B comes first.
    turned = column + first
    turned -= last * (turned > last)
    return np.where((column == 0) | (column > last), column, turned)


def pair_files(source: RecordFiles) -> list[str]:
    """Returns the files whose manifest tells of pairs without masks."""
    return source.with_feature(_MARK)


def sentence_objectives(source: RecordFiles) -> tuple[str, ...]:
    """Returns what these record files were made for: an objective, "none", or both.

    Raises:
      DataError: they were made for two objectives.
    """
    found = {manifest.sentence_objective: path for path, manifest in source.manifests()}
    for objective, path in found.items():
        if objective not in SENTENCE_OBJECTIVES:
            raise DataError(f"{path}: sentence_objective {objective!r} in its manifest is unknown")
    if len(set(found) - {"none"}) > 1:
        (one, first), (other, path), *_ = ((o, p) for o, p in found.items() if o != "none")
        raise DataError(
            f"{path} was made with --sentence_objective={other}, {first} with {one}"
        )
    return tuple(sorted(found, key=lambda objective: objective == "none"))


def masks_of(
    source: RecordFiles, max_seq_length: int, settings: MaskingSettings, seed: int
) -> MasksOnTheFly:
    """Returns how pairs of these files, all of which are `pair_files`, are masked.

    Raises:
      DataError: a manifest does not tell the ids of the special pieces, or they differ.
    """
    found: dict[Specials, str] = {}
    for path, manifest in source.manifests():
        ids = [manifest.info.get(key) for key in _SPECIAL_KEYS]
        if not all(isinstance(value, int) and value >= 0 for value in ids):
            raise DataError(
                f"{records.manifest_path(path)}: no {', '.join(_SPECIAL_KEYS)} to draw masks "
                "with: make the records anew"
            )
        found.setdefault(Specials(*ids), path)
    if len(found) > 1:
        one, two, *_ = found.values()
        raise DataError(f"{one} and {two} were made with different vocabularies")
    (specials,) = found
    pairs = PairSettings(sentence_objective=sentence_objectives(source)[0])
    return MasksOnTheFly(max_seq_length, settings, specials, seed, pairs.swaps_of_ordered)
