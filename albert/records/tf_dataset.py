"""The batches of `batches` as a `tf.data.Dataset`."""

from collections.abc import Callable, Iterator

import tensorflow as tf

from albert.errors import UserError
from albert.records import packing
from albert.records.batches import Batch, has_several_lengths
from albert.records.data_order import Share
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles


def dataset(
    make: Callable[..., Iterator[Batch]], source: RecordFiles, spec: FeatureSpec, *,
    batch_size: int, is_cut: bool = False, packed_rows: int = 0, share: Share | None = None, **others,
) -> tf.data.Dataset:
    """Returns what a function of `batches` makes of these arguments, each time it is iterated over."""
    options = {"batch_size": batch_size, "is_cut": is_cut, "packed_rows": packed_rows, "share": share}

    def read() -> Iterator[Batch]:
        try:
            yield from make(source, spec, **options, **others)
        except UserError as error:
            source.error = error
            raise

    rows = batch_size // (share or Share()).num_replicas
    signature = _signature(spec, rows, is_cut, bool(packed_rows))
    settings = tf.data.Options()
    # tf.data's tuner can delay the end of a process by almost a minute.
    settings.autotune.enabled = False
    return tf.data.Dataset.from_generator(read, output_signature=signature).with_options(settings)


def _signature(
    spec: FeatureSpec, rows: int, is_cut: bool, is_packed: bool
) -> dict[str, tf.TensorSpec]:
    """Returns the type and the shape of each feature of a batch."""
    is_cut = is_cut and has_several_lengths(spec)
    cut = packing.cut_features(spec.row_features) if is_cut else ()
    features = spec.masking.features if spec.masking else spec.features
    signature = {"is_real_example": tf.TensorSpec([rows], tf.int32)}
    for name, (dtype, length) in features.items():
        shape = [] if length is None else [None if name in cut else length]
        signature[name] = tf.TensorSpec([rows, *shape], tf.float32 if dtype == "float32" else tf.int32)
    if is_packed and spec.row_length:
        choices = spec.features["input_ids"][1] // spec.row_length
        length = None if is_cut else spec.row_length
        signature |= {name: tf.TensorSpec([None, None], tf.int32) for name in packing.OF_ROWS}
        examples = tf.TensorSpec([rows * choices, length], tf.int32)
        signature |= {name: examples for name in packing.OF_EXAMPLES}
    return signature
