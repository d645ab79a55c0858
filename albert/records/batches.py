"""Record files to batches without TensorFlow, and what both engines' batches are made of.

`train_batches` and `eval_batches` give the batches of `input_pipeline`, which has them from
tf.data, as NumPy arrays.

Legend: B examples of a batch.
"""

import itertools
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from albert.errors import DataError
from albert.records import data_order, packing, shuffle
from albert.records.data_order import Share
from albert.records.examples import FeatureSpec, decode_examples
from albert.records.record_files import RecordFiles
from albert.records.tfrecord import RecordReader, read_records, verify_records
from albert.runtime.seeds import child_seed

# Files whose records are shuffled at once are read so many at a time, a record of each in turn.
FILES_AT_ONCE = 4
PREFETCH = 4  # batches that are ready before a step asks for them

Batch = dict[str, np.ndarray]


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
) -> Iterator[Batch]:
    """Yields endless batches; arguments as of `input_pipeline.train_batches`."""
    if not source.count:
        raise DataError(f"no records in {source}")
    share = share or Share()
    is_large = source.count > data_order.SHUFFLE_BUFFER
    read = _large_batches if is_large else _small_batches

    def make():
        for positions, serialized in read(source, batch_size, seed, position, share):
            batch = parse(positions, serialized, spec, vocab_size, is_cut)
            yield pack(batch, spec, is_cut, packed_rows, micro_batches)

    return ahead(make(), PREFETCH * share.count)


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
) -> Iterator[Batch]:
    """Yields batches in file order; arguments as of `input_pipeline.eval_batches`."""

    def make():
        source.fetch(num_batches * batch_size)
        rounds = itertools.count() if num_batches else range(1)
        records = (r for _ in rounds for path in source.paths for r in read_records(path))
        for number in itertools.count():
            some = list(itertools.islice(records, batch_size))
            if not some or (num_batches and number == num_batches):
                return
            positions = number * batch_size + np.arange(len(some))
            batch = parse(positions, some, spec, vocab_size, is_cut)
            for part in _parts(fill_up(batch, batch_size), share or Share()):
                yield pack(part, spec, is_cut, packed_rows)

    return ahead(make(), PREFETCH)


# === From records to the batch that is learned from ===


def parse(
    positions: np.ndarray, serialized: Sequence[bytes], spec: FeatureSpec, vocab_size: int,
    is_cut: bool,
) -> Batch:
    """Returns the batch of some serialized records, at these places of the run."""
    parsed = {
        name: values.astype(np.int32) if values.dtype == np.int64 else values
        for name, values in decode_examples(serialized, spec).items()
    }
    return complete(parsed, positions, spec, vocab_size, is_cut)


def complete(
    batch: Mapping[str, np.ndarray], positions: np.ndarray, spec: FeatureSpec, vocab_size: int,
    is_cut: bool,
) -> Batch:
    """Returns the batch that is learned from: checked, with masks, and cut if wanted.

    Args:
      batch: the features of `spec`, int32 or float32.

    Raises:
      DataError: an id or a position is out of range.
    """
    for name in ("input_ids", "masked_lm_ids"):
        # Compiled look-ups clamp such ids without a word, and negative ones wrap.
        if name in batch and not (0 <= batch[name].min() and batch[name].max() < vocab_size):
            raise DataError(f"{name} outside the vocabulary of {vocab_size} pieces")
    if "masked_lm_positions" in batch:
        # Beyond its end, a look-up finds the next row.
        places = batch["masked_lm_positions"]
        if not (0 <= places.min() and places.max() < spec.row_length):
            raise DataError(f"masked_lm_positions outside the rows of {spec.row_length} places")
    batch = dict(batch)
    if "is_real_example" not in batch:
        batch["is_real_example"] = np.ones(len(positions), np.int32)
    if spec.complete:
        batch = {
            name: values.astype(np.int32) if values.dtype == np.int64 else values
            for name, values in spec.complete(batch, positions).items()
        }
    if is_cut and has_several_lengths(spec):
        batch = packing.cut_rows(batch, spec.row_length, spec.row_features)
    return batch


def has_several_lengths(spec: FeatureSpec) -> bool:
    """Whether rows of such records can be cut to other lengths than their own."""
    return bool(spec.row_length) and len(packing.row_lengths(spec.row_length)) > 1


def fill_up(batch: Mapping[str, np.ndarray], batch_size: int) -> Batch:
    """Returns a batch of `batch_size` rows: zero rows follow, of `is_real_example` 0."""
    missing = batch_size - len(batch["is_real_example"])
    return {
        name: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for name, x in batch.items()
    }


def pack(
    batch: Batch, spec: FeatureSpec, is_cut: bool, packed_rows: int, micro_batches: int = 1
) -> Batch:
    """Returns the batch with several examples in a row, if wanted; see `albert.records.packing`.

    The examples of each micro-batch lie in rows of their own, and all have equally many rows.
    """
    if not (packed_rows and spec.row_length):
        return batch
    lengths = packing.row_lengths(spec.row_length) if is_cut else [spec.row_length]
    choices = spec.features["input_ids"][1] // spec.row_length
    parts = _parts(batch, Share(micro_batches, 0, micro_batches))
    return joined([packing.pack_rows(part, choices, lengths, packed_rows) for part in parts])


def joined(parts: Sequence[Batch], rows: int = 0) -> Batch:
    """Returns the batch of several parts, one after another.

    Packed rows may be more in one part than in another. Empty rows follow those of a part until
    it has as many as any other, and at least `rows`.
    """
    most = max(rows, *(len(part["input_ids"]) for part in parts))

    def filled(name: str, values: np.ndarray) -> np.ndarray:
        missing = most - len(values) if name in packing.OF_ROWS else 0
        return np.pad(values, [(0, missing)] + [(0, 0)] * (values.ndim - 1)) if missing else values

    if len(parts) == 1 and most == len(parts[0]["input_ids"]):
        return dict(parts[0])
    return {
        name: np.concatenate([filled(name, part[name]) for part in parts]) for name in parts[0]
    }


def _parts(batch: Batch, share: Share) -> Iterator[Batch]:
    """Yields the parts of a share's replicas, one after another."""
    rows = len(batch["is_real_example"]) // share.num_replicas
    for replica in range(share.first, share.first + share.count):
        yield {name: x[replica * rows : (replica + 1) * rows] for name, x in batch.items()}


# === Reading in the order of the run ===


def _small_batches(
    source: RecordFiles, batch_size: int, seed: int, position: int, share: Share
) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    """Yields places and records of each replica's part. Each epoch is shuffled at once."""
    source.fetch()
    readers = _Readers()
    rows = batch_size // share.num_replicas
    epoch, order = -1, np.zeros((0, 2), np.int64)
    for first in itertools.count(position, batch_size):
        for replica in range(share.first, share.first + share.count):
            places = first + replica * rows + np.arange(rows)
            found: list[bytes] = []
            for place in places.tolist():
                number, index = divmod(place, source.count)
                if number != epoch:
                    epoch, order = number, _order_of(source, seed, number)
                file, record = order[index].tolist()
                found.append(readers[source.paths[file]].record(record))
            yield places, found


def _order_of(source: RecordFiles, seed: int, epoch: int) -> np.ndarray:
    """Returns (file, record in it) of each record of an epoch, as tf.data shuffles them."""
    own = int(np.uint64(child_seed(seed, "order", epoch)).astype(np.int64))
    of_run = seed or 2**32  # TensorFlow's global seed, which the engine sets
    files = shuffle.permutation(len(source.paths), of_run, own)
    counts = [source.counts[file] for file in files]
    in_turn = np.array(list(shuffle.interleaved(counts, min(FILES_AT_ONCE, len(files)))))
    in_turn[:, 0] = files[in_turn[:, 0]]
    return in_turn[shuffle.permutation(source.count, of_run, own)]


def _large_batches(
    source: RecordFiles, batch_size: int, seed: int, position: int, share: Share
) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    """Yields places and records of each replica's part, in the order of `data_order`."""
    num_workers = share.num_replicas // share.count
    rows = batch_size // share.num_replicas
    records = _large_records(source, seed, position, share.first // share.count, num_workers)
    first = position + share.first // share.count
    for number in itertools.count():
        places = first + (number * rows + np.arange(rows)) * num_workers
        yield places, list(itertools.islice(records, rows))


def _large_records(
    source: RecordFiles, seed: int, position: int, worker: int, num_workers: int
) -> Iterator[bytes]:
    """Yields a worker's records. The first batch's first record is that of worker 0."""
    blocks = data_order.blocks_of(source.blocks)
    readers = _Readers()
    worker = (worker + position) % num_workers
    for epoch in itertools.count(position // blocks.num_records):
        order = data_order.EpochOrder(blocks, seed, epoch)
        begin = max(position, order.start)
        for group in range(order.group_at(begin), order.num_groups):
            reading = order.reading(group, position, worker, num_workers)
            located = source.located(reading.blocks)
            found = [
                _shuffled(_block(readers, source, place, row), seed, row[3])
                for place, row in zip(located, reading.blocks.tolist(), strict=True)
            ]
            if not source.is_fetched():
                source.fetch_ahead(order.after(group, position, worker, num_workers))
            # In turn a record of each block.
            turns = itertools.zip_longest(*found)
            in_turn = (record for turn in turns for record in turn if record is not None)
            yield from itertools.islice(in_turn, reading.skip, None, reading.every)


def _block(
    readers: "_Readers", source: RecordFiles, place: tuple[str, int], row: Sequence[int]
) -> list[bytes]:
    """Returns the records of a block; see `RecordFiles.located` and `data_order.Reading`."""
    path, offset = place
    try:
        return readers[path].block(offset, row[2])
    except DataError:
        if path != source.paths[row[0]]:  # a copy of the block alone: the file is to be blamed
            verify_records(source.paths[row[0]])
        raise


def _shuffled(records: list[bytes], seed: int, block_seed: int) -> list[bytes]:
    places = shuffle.permutation(len(records), seed or 2**32, block_seed)
    return [records[place] for place in places]


class _Readers:
    """Readers of files, of which so many have their file open at a time."""

    _MOST = 64

    def __init__(self):
        self._readers: dict[str, RecordReader] = {}
        self._open: dict[str, RecordReader] = {}  # the last that was used is the last

    def __getitem__(self, path: str) -> RecordReader:
        reader = self._open.pop(path, None) or self._readers.setdefault(path, RecordReader(path))
        self._open[path] = reader
        if len(self._open) > self._MOST:
            oldest = next(iter(self._open))
            self._open.pop(oldest).close()
        return reader


# === Ahead of the step ===


def ahead(batches: Iterator, count: int) -> Iterator:
    """Yields the same, of which a thread makes `count` ready in time. Errors come in their turn."""
    ready: queue.Queue = queue.Queue(count)
    ended = threading.Event()

    def offer(item) -> None:
        while not ended.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def make() -> None:
        try:
            for batch in batches:
                offer((batch, None))
                if ended.is_set():
                    return
            offer((None, StopIteration()))
        except BaseException as error:  # whatever it is, the reader must not wait for ever
            offer((None, error))

    def read() -> Iterator:
        try:
            while True:
                batch, error = ready.get()
                if isinstance(error, StopIteration):
                    return
                if error is not None:
                    raise error
                yield batch
        finally:
            ended.set()

    threading.Thread(target=make, daemon=True, name="batches").start()
    return read()
