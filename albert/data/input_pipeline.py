"""tf.data: record files to batches, in an order that depends on seed and position alone.

The order of epoch e is a function of (seed, e), so nothing of the pipeline needs to
be in a checkpoint but the number of records consumed. Up to `SHUFFLE_BUFFER`
records are shuffled as a whole, and a run that resumes skips, before parsing,
what it has seen of one epoch. More are read in the order of `data_order`, in which a
run that resumes seeks its place, and each of several workers reads its own
records' blocks.
"""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert.data import data_order, packing
from albert.data.examples import FeatureSpec
from albert.data.record_files import RecordFiles
from albert.data.seeds import child_seed
from albert.data.tfrecord import verify_records
from albert.errors import DataError

SHUFFLE_BUFFER = 65536  # records; whole data sets of usual size fit
_READ_BYTES = 256 << 10  # at once, of a file
_FOREVER = 1 << 62
# Fixed, not tuned at run time: tf.data's tuner can hold up the end of a process
# for most of a minute, and parsing is a small share of a step.
_PARALLEL_CALLS = 2
_PREFETCH = 4  # batches ready ahead of the step
# Batches are cut to few lengths: each is a graph of its own for XLA.
_MOST_LENGTHS = 8
_LEAST_LENGTH = 32  # places of the shortest
_ROWS = ("input_ids", "input_mask", "segment_ids", "p_mask")


@dataclasses.dataclass(frozen=True)
class Share:
    """The replicas of one input pipeline, among all; each gets an equal share of a batch."""

    num_replicas: int = 1  # in all
    first: int = 0  # of this pipeline
    count: int = 1  # of this pipeline


def train_batches(
    source: RecordFiles,
    spec: FeatureSpec,
    *,
    batch_size: int,
    vocab_size: int,
    seed: int,
    position: int = 0,
    is_cut: bool = False,
    packed_rows: int = 0,
    share: Share | None = None,
) -> tf.data.Dataset:
    """Returns an endless data set of batches that starts after `position` records.

    With `is_cut`, rows are as long as a batch needs (see `cut_rows`). With
    `packed_rows`, several examples share one (see `albert.data.packing`), and the
    number of a batch's rows is a multiple of it. With a
    `share`, each element is the part of one of its replicas, in their order:
    the global batches are the same however many replicas cut them up.
    """
    if not source.count:
        raise DataError(f"no records in {source}")
    if source.count > SHUFFLE_BUFFER:
        batches = _large_batches(source, batch_size, seed, position, share or Share())
    else:
        batches = _small_batches(source, batch_size, seed, position)
        batches = _shared(_numbered(batches, batch_size, position), share, batch_size)
    return _ready(_packed(_parsed(batches, spec, vocab_size, is_cut), spec, is_cut, packed_rows))


def _small_batches(
    source: RecordFiles, batch_size: int, seed: int, position: int
) -> tf.data.Dataset:
    """Returns whole batches of serialised records, each epoch shuffled at once."""
    num_files = len(source.paths)

    def seed_of(number):
        # tf.data takes a signed one.
        return np.uint64(child_seed(seed, "order", int(number))).astype(np.int64)

    def epoch(number):
        own = tf.ensure_shape(tf.numpy_function(seed_of, [number], tf.int64), [])
        files = tf.data.Dataset.from_tensor_slices(list(source.paths))
        files = files.shuffle(num_files, seed=own, reshuffle_each_iteration=False)
        # Not in parallel, which hands over record by record: a wake-up for each, longer than
        # reading it.
        found = files.interleave(tf.data.TFRecordDataset, cycle_length=min(4, num_files))
        return found.shuffle(source.count, seed=own, reshuffle_each_iteration=False)

    first, offset = divmod(position, source.count)
    found = tf.data.Dataset.range(first, _FOREVER).flat_map(epoch).skip(offset)
    return found.batch(batch_size, drop_remainder=True)


def _large_batches(
    source: RecordFiles, batch_size: int, seed: int, position: int, share: Share
) -> tf.data.Dataset:
    """Returns the parts of a share's replicas, one after another, in the order of `data_order`.

    Of a batch, a worker has every row whose number is its own modulo the workers.
    """
    blocks = _blocks(source)
    num_workers = share.num_replicas // share.count
    # The batch's first record is that of the first worker.
    worker = (share.first // share.count + position) % num_workers
    order_of = functools.lru_cache(maxsize=2)(
        lambda epoch: data_order.EpochOrder(blocks, seed, epoch)
    )
    epoch = position // blocks.num_records
    num_groups = order_of(epoch).num_groups
    first_group = epoch * num_groups + order_of(epoch).group_at(position)

    def plan(number):
        epoch, group = divmod(int(number), num_groups)
        found = order_of(epoch).reading(group, position, worker, num_workers)
        return found.blocks, np.int64(found.skip), np.int64(found.every)

    def records_of_group(number):
        numbers, skip, every = tf.numpy_function(plan, [number], [tf.int64] * 3)
        chosen = tf.data.Dataset.from_tensor_slices(tf.ensure_shape(numbers, [None, 4]))
        in_turn = chosen.interleave(records_of_block, cycle_length=data_order.LANES)
        skip, every = tf.ensure_shape(skip, []), tf.ensure_shape(every, [])
        return in_turn.skip(skip).shard(every, 0)

    def records_of_block(numbers):
        # Not tf.unstack, at which TensorFlow 2.21 crashes here.
        file, offset, count, block_seed = (numbers[i] for i in range(4))
        found = _records_from(tf.gather(list(source.paths), file), offset).take(count)
        return found.shuffle(count, seed=block_seed, reshuffle_each_iteration=False)

    groups = tf.data.Dataset.range(first_group, _FOREVER)
    rows = batch_size // share.num_replicas
    parts = groups.flat_map(records_of_group).batch(rows, drop_remainder=True)
    return _numbered(parts, rows, position + share.first // share.count, num_workers)


def _numbered(
    batches: tf.data.Dataset, rows: int, first: int, every: int = 1
) -> tf.data.Dataset:
    """Returns pairs of (int64 places of the records in the run, records) of batches of `rows`.

    Args:
      first: place of the first record.
      every: distance from one record to the next.
    """

    def number(batch, serialized):
        count = serialized.shape[0] or tf.shape(serialized, tf.int64)[0]
        return first + (batch * rows + tf.range(count, dtype=tf.int64)) * every, serialized

    return batches.enumerate().map(number)


def _blocks(source: RecordFiles) -> data_order.Blocks:
    """Returns where the blocks of all files begin."""
    rows = []
    for number, blocks in enumerate(source.blocks):
        offset = 0
        for count, size in blocks:
            if count:
                rows.append((number, offset, count))
            offset += size
    return data_order.Blocks(*np.array(rows, np.int64).T)


def _records_from(path: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    """Returns the records of a file from a byte on."""
    # What tf.data.TFRecordDataset is made of; it has no argument for the byte.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=path[None], compression_type="", buffer_size=_READ_BYTES,
        byte_offsets=offset[None],
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def eval_batches(
    source: RecordFiles,
    spec: FeatureSpec,
    *,
    batch_size: int,
    vocab_size: int,
    num_batches: int = 0,
    is_cut: bool = False,
    packed_rows: int = 0,
    share: Share | None = None,
) -> tf.data.Dataset:
    """Returns batches in file order, their rows as `train_batches` makes them.

    With `num_batches`, that many full ones, repeating the data if need be (as
    the original evaluates); with 0, one pass whose last batch is filled up
    with zero rows of `is_real_example` 0.
    """
    found = tf.data.TFRecordDataset(list(source.paths))
    if num_batches:
        batches = found.repeat().batch(batch_size, drop_remainder=True).take(num_batches)
    else:
        batches = found.batch(batch_size)
    batches = _parsed(_numbered(batches, batch_size, 0), spec, vocab_size, is_cut)
    if not num_batches:
        batches = batches.map(lambda batch: _pad(batch, batch_size))
    return _ready(_packed(_shared(batches, share, batch_size), spec, is_cut, packed_rows))


def _packed(
    batches: tf.data.Dataset, spec: FeatureSpec, is_cut: bool, packed_rows: int
) -> tf.data.Dataset:
    if not (packed_rows and spec.row_length):
        return batches
    lengths = row_lengths(spec.row_length) if is_cut else [spec.row_length]
    choices = spec.features["input_ids"][1] // spec.row_length
    return batches.map(
        lambda batch: packing.pack_rows(batch, choices, lengths, packed_rows),
        num_parallel_calls=_PARALLEL_CALLS, deterministic=True,
    )


def _shared(batches: tf.data.Dataset, share: Share | None, batch_size: int) -> tf.data.Dataset:
    """Returns the parts of a share's replicas, one after another, instead of whole batches."""
    if share is None or share.num_replicas == 1:
        return batches
    rows = batch_size // share.num_replicas
    first, last = share.first * rows, (share.first + share.count) * rows

    def apart(*batch):
        def stack(x):
            return tf.reshape(x, tf.concat([[share.count, rows], tf.shape(x)[1:]], 0))

        own = tf.nest.map_structure(lambda x: x[first:last], batch)
        parts = tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(stack, own))
        return parts.map(_with_rows)

    def _with_rows(*part):
        part = part if len(part) > 1 else part[0]
        return tf.nest.map_structure(lambda x: tf.ensure_shape(x, [rows, *x.shape[1:]]), part)

    return batches.flat_map(apart)


def _ready(batches: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.prefetch(_PREFETCH).with_options(options)


def row_lengths(row_length: int) -> list[int]:
    """Returns the few lengths, in ascending order, that rows of `row_length` are cut to."""
    width = max(_LEAST_LENGTH, -(-row_length // _MOST_LENGTHS))
    return [*range(width, row_length, width), row_length]


def cut_rows(
    batch: Mapping[str, tf.Tensor], row_length: int, others: Sequence[str] = ()
) -> dict[str, tf.Tensor]:
    """Returns the batch with rows of the least of `row_lengths` that holds all that is read.

    A model takes no notice of the rest (see `packing.used_places`), so that its outputs
    are the same; only dropout inside the encoder draws other numbers. Features of
    C * row_length places are C rows one after another, and stay so. `others` are cut
    like the rows of ids.
    """
    lengths = tf.constant(row_lengths(row_length), tf.int32)
    used = tf.reduce_max(packing.used_places(batch, row_length))
    length = lengths[tf.searchsorted(lengths, used[None])[0]]

    def cut(x):
        choices = x.shape[1] // row_length
        kept = tf.reshape(x, [-1, row_length])[:, :length]
        return tf.ensure_shape(tf.reshape(kept, [-1, choices * length]), [x.shape[0], None])

    return {name: cut(x) if name in (*_ROWS, *others) else x for name, x in batch.items()}


def _parsed(
    batches: tf.data.Dataset, spec: FeatureSpec, vocab_size: int, is_cut: bool
) -> tf.data.Dataset:
    features = spec.parse_spec()

    def parse(positions, serialized):
        # A whole batch at once: four times the rate of record by record.
        batch = tf.io.parse_example(serialized, features)
        batch = {k: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for k, v in batch.items()}
        for name in ("input_ids", "masked_lm_ids"):
            if name in batch:
                # Compiled look-ups clamp such ids without a word, and negative ones wrap.
                highest, lowest = tf.reduce_max(batch[name]), tf.reduce_min(batch[name])
                message = f"{name} outside the vocabulary of {vocab_size} pieces"
                tf.debugging.Assert((lowest >= 0) & (highest < vocab_size), [message])
        if "masked_lm_positions" in batch:
            # Beyond its end, a look-up finds the next row.
            positions = batch["masked_lm_positions"]
            is_inside = (positions >= 0) & (positions < spec.row_length)
            message = f"masked_lm_positions outside the rows of {spec.row_length} places"
            tf.debugging.Assert(tf.reduce_all(is_inside), [message])
        if "is_real_example" not in batch:
            rows = serialized.shape[0] or tf.shape(serialized)[0]
            batch["is_real_example"] = tf.ones([rows], tf.int32)
        if spec.complete:
            batch = spec.complete(batch, positions)
        # One length only: it stays a constant, which is a little faster.
        if is_cut and spec.row_length and len(row_lengths(spec.row_length)) > 1:
            batch = cut_rows(batch, spec.row_length, spec.row_features)
        return batch

    return batches.map(parse, num_parallel_calls=_PARALLEL_CALLS, deterministic=True)


def _pad(batch: Mapping[str, tf.Tensor], batch_size: int) -> dict[str, tf.Tensor]:
    def pad(x):
        missing = batch_size - tf.shape(x)[0]
        padded = tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1))
        return tf.ensure_shape(padded, [batch_size, *x.shape[1:]])

    return {name: pad(value) for name, value in batch.items()}


@contextlib.contextmanager
def blame_data(*sources: RecordFiles) -> Iterator[None]:
    """Turns TensorFlow's failures over bad records into a DataError that names file and record."""
    paths = [path for source in sources for path in source.paths]
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        for path in paths:
            verify_records(path)
        failed = re.search(r"assertion failed: \[(.*?)\]|(Key: .*)", error.message)
        if not failed:
            raise  # not the data's fault
        raise DataError(f"{', '.join(paths)}: {failed.group(1) or failed.group(2)}") from error
    except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
        gone = [path for path in paths if not os.access(path, os.R_OK)]
        if not gone:
            raise  # not the data's fault
        raise DataError(f"{', '.join(gone)}: gone while it was being read") from error
