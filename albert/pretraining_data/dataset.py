"""Batches of pretraining records for training loops other than `run_pretraining`.

Legend: B examples, L sequence, P predictions.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from albert.pretraining_data import cooccurrence, dynamic_masking
from albert.pretraining_data.masking import MaskingSettings, num_to_predict
from albert.records import batches
from albert.records.batches import Batch
from albert.records.record_files import RecordFiles

_PACKED_SHAPES = 8  # the maximum number
_LABELS = "masked_lm_ids", "masked_lm_weights", "next_sentence_labels", "is_real_example"


def pretraining_dataset(
    pattern: str, batch_size: int, *, masked_lm_prob: float = 0.15, pack: bool = False,
    shuffle: bool = True, seed: int = 12345,
) -> Any:
    """Returns batches of record files as `Model.fit` of an `AlbertForPreTraining` takes them.

    They are those of `run_pretraining`. Records that `create_pretraining_data --nostatic_masks` made get
    new masks each time they are read.

    Args:
      pattern: comma-separated globs of record files with their manifests, of one sequence length.
      batch_size: B.
      masked_lm_prob: fraction of tokens to mask, for records without masks.
      pack: whether short examples share sequences, which saves padding. Outputs stay the same.
      shuffle: whether to read endlessly, in an order that follows from `seed`; else once, in the order
        of the files, for evaluation.
      seed: of the order and the masks.

    Returns:
      A `tf.data.Dataset`, or an iterator if TensorFlow is not installed. An element is (inputs, labels,
      weights of the labels):

      - `input_ids`, `input_mask`, `segment_ids` int32 [B, L] and `masked_lm_positions` int32 [B, P]; with
        `pack`, the arrays of `records.packing` instead of the first three
      - `prediction_logits` int32 [B, P] and `sop_logits` int32 [B]
      - the same names, float32; 0 where there is nothing to predict

    Raises:
      DataError: the files cannot be read, or not together.
    """
    source = RecordFiles.of_flag(pattern, "pattern")
    spec = cooccurrence.feature_spec(source)
    length = spec.row_length
    predictions = int(num_to_predict(length, MaskingSettings(length, masked_lm_prob)))
    settings = MaskingSettings(predictions, masked_lm_prob)
    if masking := dynamic_masking.dynamic_masking(source, length, settings, seed):
        spec = masking.feature_spec()
    source.check(spec)
    options = dict(
        batch_size=batch_size, vocab_size=max(manifest.vocab_size for _, manifest in source.manifests()),
        # Few different numbers of sequences, since XLA compiles each one.
        packed_rows=-(-batch_size // _PACKED_SHAPES) if pack else 0,
    )

    def elements() -> Iterator[tuple[Batch, Batch, Batch]]:
        if shuffle:
            return map(_element, batches.train_batches(source, spec, seed=seed, **options))
        return map(_element, batches.eval_batches(source, spec, **options))

    try:
        import tensorflow as tf
    except ImportError:
        return elements()
    signature = tuple(
        {name: tf.TensorSpec([None if pack else len(x), *x.shape[1:]], x.dtype) for name, x in part.items()}
        for part in next(elements())
    )
    count = tf.data.INFINITE_CARDINALITY if shuffle else -(-source.count // batch_size)
    data = tf.data.Dataset.from_generator(elements, output_signature=signature)
    return data.apply(tf.data.experimental.assert_cardinality(count))


def _element(batch: Batch) -> tuple[Batch, Batch, Batch]:
    inputs = {name: values for name, values in batch.items() if name not in _LABELS}
    segments = batch["segment_ids"]  # [B, L], after packing
    if "packed_places" in batch:
        segments = segments.ravel()[batch["packed_places"]] * batch["packed_mask"]
    is_real = batch["is_real_example"].astype(np.float32)
    return (
        inputs,
        {"prediction_logits": batch["masked_lm_ids"], "sop_logits": batch["next_sentence_labels"][:, 0]},
        {
            "prediction_logits": batch["masked_lm_weights"] * is_real[:, None],
            "sop_logits": is_real * (segments > 0).any(axis=1),  # a single sentence has no order
        },
    )
