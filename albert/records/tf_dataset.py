"""The batches of `batches` as a `tf.data.Dataset`."""

from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf

from albert.errors import UserError
from albert.records import batches as numpy_batches
from albert.records import packing
from albert.records.batches import Batch
from albert.records.data_order import Share
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles


def train_batches(source: RecordFiles, spec: FeatureSpec, **options) -> tf.data.Dataset:
    """Returns the batches of `batches.train_batches`, with the same arguments."""

    def make() -> Iterable[Batch]:
        return numpy_batches.train_batches(source, spec, **options)

    make()  # raises if there are no records
    return _dataset(make, source, spec, **options)


def eval_batches(source: RecordFiles, spec: FeatureSpec, **options) -> tf.data.Dataset:
    """Returns the batches of `batches.EvalBatches`, with the same arguments."""
    batches = numpy_batches.EvalBatches(source, spec, **options)
    return _dataset(lambda: batches, source, spec, **options)


def _dataset(
    make: Callable[[], Iterable[Batch]], source: RecordFiles, spec: FeatureSpec, *,
    batch_size: int, is_cut: bool = False, packed_rows: int = 0, share: Share | None = None, **_,
) -> tf.data.Dataset:
    def read() -> Iterator[Batch]:
        try:
            yield from make()
        except UserError as error:
            source.error = error
            raise

    rows = batch_size // (share or Share()).num_replicas
    signature = _signature(spec, rows, is_cut, bool(packed_rows))
    options = tf.data.Options()
    # tf.data's tuner can delay the end of a process by almost a minute.
    options.autotune.enabled = False
    return tf.data.Dataset.from_generator(read, output_signature=signature).with_options(options)


def _signature(
    spec: FeatureSpec, rows: int, is_cut: bool, is_packed: bool
) -> dict[str, tf.TensorSpec]:
    """Returns the type and the shape of each feature of a batch."""
    is_cut = is_cut and numpy_batches.has_several_lengths(spec)
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
