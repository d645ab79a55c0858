"""tf.data: record files to batches, in an order that depends on seed and position alone.

The order of epoch e is a function of (seed, e), and a run that resumes skips
the records it has seen before parsing them. So nothing of the pipeline needs
to be in a checkpoint but the number of records consumed.
"""

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from albert import records
from albert.errors import DataError
from albert.records import FeatureSpec

SHUFFLE_BUFFER = 65536  # records; whole data sets of usual size fit
_FOREVER = 1 << 62


def train_batches(
    paths: Sequence[str],
    spec: FeatureSpec,
    *,
    num_records: int,
    batch_size: int,
    vocab_size: int,
    seed: int,
    position: int = 0,
) -> tf.data.Dataset:
    """Returns an endless data set of batches that starts after `position` records."""
    if not num_records:
        raise DataError(f"no records in {', '.join(paths)}")

    def epoch(number):
        files = tf.data.Dataset.from_tensor_slices(list(paths))
        files = files.shuffle(len(paths), seed=seed + number, reshuffle_each_iteration=False)
        records = files.interleave(
            tf.data.TFRecordDataset,
            cycle_length=min(4, len(paths)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        buffer = min(num_records, SHUFFLE_BUFFER)
        return records.shuffle(buffer, seed=seed + number, reshuffle_each_iteration=False)

    first, offset = divmod(position, num_records)
    records = tf.data.Dataset.range(first, _FOREVER).flat_map(epoch).skip(offset)
    batches = records.batch(batch_size, drop_remainder=True)
    return _parsed(batches, spec, vocab_size).prefetch(tf.data.AUTOTUNE)


def eval_batches(
    paths: Sequence[str],
    spec: FeatureSpec,
    *,
    batch_size: int,
    vocab_size: int,
    num_batches: int = 0,
) -> tf.data.Dataset:
    """Returns batches in file order.

    With `num_batches`, that many full ones, repeating the data if need be (as
    the original evaluates); with 0, one pass whose last batch is filled up
    with zero rows of `is_real_example` 0.
    """
    records = tf.data.TFRecordDataset(list(paths))
    if num_batches:
        batches = records.repeat().batch(batch_size, drop_remainder=True).take(num_batches)
        return _parsed(batches, spec, vocab_size).prefetch(tf.data.AUTOTUNE)
    batches = _parsed(records.batch(batch_size), spec, vocab_size)
    return batches.map(lambda batch: _pad(batch, batch_size)).prefetch(tf.data.AUTOTUNE)


def _parsed(batches: tf.data.Dataset, spec: FeatureSpec, vocab_size: int) -> tf.data.Dataset:
    features = spec.parse_spec()

    def parse(serialized):
        # A whole batch at once: four times the rate of record by record.
        batch = tf.io.parse_example(serialized, features)
        batch = {k: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for k, v in batch.items()}
        for name in ("input_ids", "masked_lm_ids"):
            if name in batch:
                # Compiled look-ups clamp such ids without a word, and negative ones wrap.
                highest, lowest = tf.reduce_max(batch[name]), tf.reduce_min(batch[name])
                message = f"{name} outside the vocabulary of {vocab_size} pieces"
                tf.debugging.Assert((lowest >= 0) & (highest < vocab_size), [message])
        if "is_real_example" not in batch:
            rows = serialized.shape[0] or tf.shape(serialized)[0]
            batch["is_real_example"] = tf.ones([rows], tf.int32)
        return batch

    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _pad(batch: Mapping[str, tf.Tensor], batch_size: int) -> dict[str, tf.Tensor]:
    def pad(x):
        missing = batch_size - tf.shape(x)[0]
        padded = tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1))
        return tf.ensure_shape(padded, [batch_size, *x.shape[1:]])

    return {name: pad(value) for name, value in batch.items()}


def explain_failure(paths: Sequence[str], error: tf.errors.OpError) -> str:
    """Returns where the data is broken; TensorFlow names neither file nor record."""
    for path in paths:
        try:
            records.verify_records(path)
        except DataError as found:
            return str(found)
    failed = re.search(r"assertion failed: \[(.*?)\]", error.message)
    reason = failed.group(1) if failed else " ".join(error.message.split())[:300]
    return f"cannot use {', '.join(paths)}: {reason}"
