"""tf.data: record files to batches, in an order that depends on seed and position alone.

The order of epoch e follows from the seed and e. So a checkpoint needs nothing of the pipeline
but the number of records consumed. Up to `SHUFFLE_BUFFER` of `data_order` records are shuffled as
a whole. A run that goes on skips what it has seen of one epoch, before parsing. More records are
read in the order of `data_order`. There a run that goes on seeks its place, and each worker reads
the blocks of its own records.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert.errors import DataError
from albert.records import batches as numpy_batches
from albert.records import data_order, packing
from albert.records.data_order import Share
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.runtime.seeds import child_seed

_READ_BYTES = 256 << 10  # at once, of a file
_FOREVER = 1 << 62
# Fixed, not tuned at run time: tf.data's tuner can hold up the end of a process
# for most of a minute, and parsing is a small share of a step.
_PARALLEL_CALLS = 2
_PREFETCH = 4  # batches ready ahead of the step


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
    micro_batches: int = 1,
    share: Share | None = None,
) -> tf.data.Dataset:
    """Returns an endless data set of batches that starts after `position` records.

    With `is_cut`, rows are as long as a batch needs (see `packing.cut_rows`). With
    `packed_rows`, several examples share one (see `albert.records.packing`): those of one of the
    `micro_batches`, whose number of rows is a multiple of it. With a
    `share`, each element is the part of one of its replicas, in their order:
    the global batches are the same however many replicas cut them up.
    """
    if not source.count:
        raise DataError(f"no records in {source}")
    if source.count > data_order.SHUFFLE_BUFFER:
        batches = _large_batches(source, batch_size, seed, position, share or Share())
    else:
        batches = _small_batches(source, batch_size, seed, position)
        batches = _shared(_numbered(batches, batch_size, position), share, batch_size)
    batches = _parsed(batches, spec, vocab_size, is_cut)
    return _ready(_packed(batches, spec, is_cut, packed_rows, micro_batches))


def _small_batches(
    source: RecordFiles, batch_size: int, seed: int, position: int
) -> tf.data.Dataset:
    """Returns whole batches of serialised records, each epoch shuffled at once."""
    source.fetch()
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
        found = files.interleave(tf.data.TFRecordDataset, cycle_length=min(numpy_batches.FILES_AT_ONCE, num_files))
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
    blocks = data_order.blocks_of(source.blocks)
    num_workers = share.num_replicas // share.count
    # The batch's first record is that of the first worker.
    worker = (share.first // share.count + position) % num_workers
    order_of = functools.lru_cache(maxsize=2)(
        lambda epoch: data_order.EpochOrder(blocks, seed, epoch)
    )
    epoch = position // blocks.num_records
    num_groups = order_of(epoch).num_groups
    first_group = epoch * num_groups + order_of(epoch).group_at(position)
    if not source.is_fetched():  # while the step is still being traced
        beginning = order_of(epoch).reading(first_group % num_groups, position, worker, num_workers)
        source.fetch_ahead(beginning.blocks)

    def plan(number):
        epoch, group = divmod(int(number), num_groups)
        order = order_of(epoch)
        found = order.reading(group, position, worker, num_workers)
        located = source.located(found.blocks)
        if not source.is_fetched():
            source.fetch_ahead(order.after(group, position, worker, num_workers))
        paths = np.array([path.encode() for path, _ in located], object)
        starts = np.array([start for _, start in located], np.int64)
        numbers = np.column_stack([starts, found.blocks[:, 2:]])  # and records, seed
        return paths, numbers, np.int64(found.skip), np.int64(found.every)

    def records_of_group(number):
        paths, numbers, skip, every = tf.numpy_function(
            plan, [number], [tf.string] + [tf.int64] * 3
        )
        chosen = tf.data.Dataset.from_tensor_slices(
            (tf.ensure_shape(paths, [None]), tf.ensure_shape(numbers, [None, 3]))
        )
        in_turn = chosen.interleave(records_of_block, cycle_length=data_order.LANES)
        skip, every = tf.ensure_shape(skip, []), tf.ensure_shape(every, [])
        return in_turn.skip(skip).shard(every, 0)

    def records_of_block(path, numbers):
        # Not tf.unstack, at which TensorFlow 2.21 crashes here.
        offset, count, block_seed = (numbers[i] for i in range(3))
        found = _records_from(path, offset).take(count)
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
    source.fetch(num_batches * batch_size)
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
    batches: tf.data.Dataset, spec: FeatureSpec, is_cut: bool, packed_rows: int,
    micro_batches: int = 1,
) -> tf.data.Dataset:
    if not (packed_rows and spec.row_length):
        return batches
    choices = spec.features["input_ids"][1] // spec.row_length

    def pack(batch):
        names = list(batch)

        def packed(*arrays):
            made = numpy_batches.pack(
                dict(zip(names, arrays, strict=True)), spec, is_cut, packed_rows, micro_batches
            )
            return [made[name] for name in packing.FEATURES]

        arrays = tf.numpy_function(packed, list(batch.values()), [tf.int32] * len(packing.FEATURES))
        length = batch["input_ids"].shape[1]
        rows = batch["input_ids"].shape[0]
        shape = [rows and rows * choices, length and length // choices]
        for array in arrays[:5]:  # of rows
            array.set_shape([None, None])
        for array in arrays[5:]:  # of examples
            array.set_shape(shape)
        return {**batch, **dict(zip(packing.FEATURES, arrays, strict=True))}

    return batches.map(pack, num_parallel_calls=_PARALLEL_CALLS, deterministic=True)


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


def _parsed(
    batches: tf.data.Dataset, spec: FeatureSpec, vocab_size: int, is_cut: bool
) -> tf.data.Dataset:
    is_cut = is_cut and numpy_batches.has_several_lengths(spec)
    features = parse_spec(spec)
    made = _made_of(spec, is_cut)

    def parse(positions, serialized):
        # A whole batch at once: four times the rate of record by record.
        batch = tf.io.parse_example(serialized, features)
        batch = {k: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for k, v in batch.items()}
        names = list(batch)

        def complete(positions, *arrays):
            found = numpy_batches.complete(
                dict(zip(names, arrays, strict=True)), positions, spec, vocab_size, is_cut
            )
            return [found[name] for name in made]

        arrays = tf.numpy_function(
            complete, [positions, *batch.values()], [dtype for dtype, _ in made.values()]
        )
        rows = serialized.shape[0]
        return {
            name: tf.ensure_shape(array, [rows, *shape])
            for array, (name, (_, shape)) in zip(arrays, made.items(), strict=True)
        }

    return batches.map(parse, num_parallel_calls=_PARALLEL_CALLS, deterministic=True)


def parse_spec(spec: FeatureSpec) -> dict[str, Any]:
    """Returns what `tf.io.parse_example` needs to read such records."""
    return {
        name: tf.io.FixedLenFeature([] if length is None else [length], getattr(tf, dtype))
        for name, (dtype, length) in spec.features.items()
    }


def _made_of(spec: FeatureSpec, is_cut: bool) -> dict[str, tuple[tf.DType, list[int | None]]]:
    """Returns type and shape, without the batch's rows, of what `complete` makes."""
    names = spec.features
    if spec.complete:
        names = spec.complete.features
    made = {
        name: (tf.float32 if dtype == "float32" else tf.int32, [] if length is None else [length])
        for name, (dtype, length) in names.items()
    }
    for name in packing.cut_features(spec.row_features) if is_cut else ():
        if name in made:
            made[name] = (made[name][0], [None])
    return made | {"is_real_example": made.get("is_real_example", (tf.int32, []))}


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
    except (
        tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.UnknownError
    ) as error:
        for source in sources:
            source.verify()
        failed = re.search(r"DataError: (.*)|(Key: .*)", error.message)
        if not failed:
            raise  # not the data's fault
        raise DataError(f"{', '.join(paths)}: {failed.group(1) or failed.group(2)}") from error
    except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
        gone = [path for path in paths if not os.access(path, os.R_OK)]
        if not gone:
            raise  # not the data's fault
        raise DataError(f"{', '.join(gone)}: gone while it was being read") from error
