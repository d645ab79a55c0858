"""Makes batches of record files in NumPy, for both engines.

One thread reads and decodes the next group of blocks, one puts its records into order and masks them,
and one makes the next batches, while a step computes. Records are masked in chunks, from which batches
are cut, because masking a small batch would take NumPy as long as a larger one. Several processes take
turns: each reads all records, and masks and packs those of its batches.

Legend: B examples of a batch.
"""

import functools
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.records import data_order, packing
from albert.records.data_order import Share
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.runtime import workers

PREFETCH = 4  # batches that are made ahead of time
CACHE_BYTES = 256 << 20  # records up to this size stay in memory for the next epoch
_BLOCKS_AT_ONCE = 8  # read together in evaluations
_CHUNK = 1 << 15  # positions of the sequences that are masked together: as many as fit the cache

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
    processes: int = 1,
) -> "Prefetcher":
    """Returns endless batches, which start after `position` records of the run.

    Seed and position determine their records; see `data_order`.

    Args:
      is_cut: whether to trim sequences to the length that a batch needs, see `packing.cut_rows`.
      packed_rows: if not 0, several examples share a sequence (see `packing`), separately for each
        of the `micro_batches`, and the number of sequences is a multiple of this number.
      share: the replicas to serve: batches are their parts of global batches, in order. Global
        batches are the same for any number of replicas.
      processes: number of processes that make the batches, which are the same for any number.
    """
    if not source.count:
        raise DataError(f"no records in {source}")
    share = share or Share()
    arguments = (source, spec, batch_size // share.num_replicas, vocab_size, seed, position, is_cut,
                 packed_rows, micro_batches, share)
    batches = (_train_batches(0, 1, *arguments) if processes == 1
               else workers.in_turn(_train_batches, processes, *arguments))
    return Prefetcher(batches, PREFETCH * share.count)


def _train_batches(
    number: int, count: int, source: RecordFiles, spec: FeatureSpec, size: int, vocab_size: int, seed: int,
    position: int, is_cut: bool, packed_rows: int, micro_batches: int, share: Share,
) -> Iterator[Batch]:
    """Yields every `count`-th batch of `train_batches`, from the one with this number on."""
    read_blocks = _block_reader(source, spec, vocab_size)

    def groups() -> Iterator[tuple[Batch, np.ndarray, np.ndarray]]:
        start = 0
        for blocks, lanes, rows, positions in data_order.readings(
            source.blocks.records, seed, position, share.worker, share.num_workers
        ):
            columns, starts = read_blocks(blocks)
            is_own = (start + np.arange(len(rows))) // size % count == number
            start += len(rows)
            yield columns, (starts[lanes] + rows)[is_own], positions[is_own]

    for batch in _batched(groups(), spec, size):
        yield pack(_trimmed(batch, spec, is_cut), spec, is_cut, packed_rows, micro_batches)


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
) -> "Prefetcher":
    """Returns batches in file order.

    Args:
      num_batches: number of full batches, repeating the records if necessary (as in the original).
        0: all records once; the last batch is padded with zeros, whose `is_real_example` is 0.
      others: as in `train_batches`.
    """
    read_blocks, count = _block_reader(source, spec, vocab_size), len(source.blocks.records)

    def groups() -> Iterator[tuple[Batch, np.ndarray, np.ndarray]]:
        starts, position = range(0, count, _BLOCKS_AT_ONCE), 0
        for first in itertools.cycle(starts) if num_batches else starts:
            columns, ends = read_blocks(np.arange(first, min(first + _BLOCKS_AT_ONCE, count)))
            rows = np.arange(ends[-1])
            yield columns, rows, position + rows
            position += len(rows)

    def batches() -> Iterator[Batch]:
        for batch in itertools.islice(_batched(groups(), spec, batch_size), num_batches or None):
            missing = batch_size - len(batch["is_real_example"])
            batch = {name: _padded(x, missing) for name, x in _trimmed(batch, spec, is_cut).items()}
            for part in _parts(batch, share or Share()):
                yield pack(part, spec, is_cut, packed_rows)

    return Prefetcher(batches(), PREFETCH)


# === From records to the model's batch ===


def _trimmed(batch: Batch, spec: FeatureSpec, is_cut: bool) -> Batch:
    """Returns a batch whose sequences have the length that it needs, if `is_cut`."""
    if is_cut and has_several_lengths(spec):
        return packing.cut_rows(batch, spec.row_length, spec.row_features)
    return batch


def has_several_lengths(spec: FeatureSpec) -> bool:
    """Returns whether the sequences of such records can be trimmed."""
    return bool(spec.row_length) and len(packing.row_lengths(spec.row_length)) > 1


def pack(
    batch: Batch, spec: FeatureSpec, is_cut: bool, packed_rows: int, micro_batches: int = 1
) -> Batch:
    """Returns the batch with several examples per sequence, if `packed_rows`; see `packing`.

    Micro-batches are packed separately, into equal numbers of sequences.
    """
    if not (packed_rows and spec.row_length):
        return batch
    lengths = packing.row_lengths(spec.row_length) if is_cut else [spec.row_length]
    choices = spec.features["input_ids"][1] // spec.row_length
    parts = _parts(batch, Share(micro_batches, 0, micro_batches))
    return joined([packing.pack_rows(part, choices, lengths, packed_rows) for part in parts])


def joined(parts: Sequence[Batch], rows: int = 0, micro_batches: int = 1) -> Batch:
    """Returns the concatenation of several parts of a batch.

    If parts have different numbers of packed sequences, empty ones are added to their
    `micro_batches` until all parts have the same number, and at least `rows`.
    """
    if micro_batches > 1:
        split = ({name: np.split(x, micro_batches) for name, x in part.items()} for part in parts)
        parts = [{name: x[k] for name, x in s.items()} for s in split for k in range(micro_batches)]
    rows = max(rows // micro_batches, *(len(part["input_ids"]) for part in parts))
    if len(parts) == 1 and rows == len(parts[0]["input_ids"]):
        return dict(parts[0])

    def filled(name: str, values: np.ndarray) -> np.ndarray:
        return _padded(values, rows - len(values)) if name in packing.OF_ROWS else values

    return {name: np.concatenate([filled(name, part[name]) for part in parts]) for name in parts[0]}


def _parts(batch: Batch, share: Share) -> Iterator[Batch]:
    """Yields the parts of a share's replicas."""
    rows = len(batch["is_real_example"]) // share.num_replicas
    for replica in range(share.first, share.first + share.count):
        yield {name: x[replica * rows : (replica + 1) * rows] for name, x in batch.items()}


def _padded(values: np.ndarray, missing: int) -> np.ndarray:
    if not missing:
        return values
    return np.pad(values, [(0, missing)] + [(0, 0)] * (values.ndim - 1))


# === Reading ===


def _block_reader(
    source: RecordFiles, spec: FeatureSpec, vocab_size: int
) -> Callable[[np.ndarray], tuple[Batch, np.ndarray]]:
    """Returns a function that reads blocks, each only once if all records fit into `CACHE_BYTES`.

    It takes numbers of blocks, and returns their concatenated columns, and the start of each block; the
    last start is the number of all records.
    """
    read = functools.partial(source.read_block, spec=spec, vocab_size=vocab_size)
    if source.blocks.size.sum() <= CACHE_BYTES:
        read = functools.cache(read)

    def read_blocks(numbers: np.ndarray) -> tuple[Batch, np.ndarray]:
        blocks = list(map(read, numbers.tolist()))
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
        return columns, np.append(0, np.cumsum(source.blocks.records[numbers]))

    return read_blocks


def _batched(
    groups: Iterator[tuple[Batch, np.ndarray, np.ndarray]], spec: FeatureSpec, size: int
) -> Iterator[Batch]:
    """Yields batches of `size` records with masks; the last one may be smaller.

    Args:
      groups: (columns, indices of the rows to use in this order, their positions in the run).
    """
    parts, missing = [], size
    for chunk in Prefetcher(_chunks(Prefetcher(groups, 1), spec), 4):
        start, count = 0, len(chunk["is_real_example"])
        while start < count:
            stop = min(start + missing, count)
            parts.append({name: values[start:stop] for name, values in chunk.items()})
            start, missing = stop, missing - (stop - start)
            if not missing:
                yield _concatenated(parts)
                parts, missing = [], size
    if parts:
        yield _concatenated(parts)


def _chunks(
    groups: Iterable[tuple[Batch, np.ndarray, np.ndarray]], spec: FeatureSpec
) -> Iterator[Batch]:
    """Yields the records of groups in order, with masks."""
    step = max(_CHUNK // (spec.row_length or 1), 1)
    for columns, rows, positions in groups:
        for first in range(0, len(rows), step):
            used, at = rows[first : first + step], positions[first : first + step]
            chunk = {name: _int32(values[used]) for name, values in columns.items()}
            chunk.setdefault("is_real_example", np.ones(len(used), np.int32))
            if spec.masking:
                chunk = {name: _int32(values) for name, values in spec.masking(chunk, at).items()}
            yield chunk


def _int32(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind == "f" else values.astype(np.int32, copy=False)


def _concatenated(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Prefetcher:
    """An iterator whose next items are made by a thread; errors are raised in order.

    The thread starts with the first item, and ends when the iterator is closed or deleted.

    Args:
      items: the items to iterate over.
      count: number of items to make ahead of time.
    """

    def __init__(self, items: Iterator[Any], count: int):
        self._ready: queue.SimpleQueue = queue.SimpleQueue()
        self._free = threading.Semaphore(count)
        self._closed = threading.Event()
        # A daemon without a reference to the iterator, so that nothing waits for it.
        self._thread = threading.Thread(
            target=_make, args=(items, self._ready, self._free, self._closed), daemon=True,
            name="batches",
        )

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self) -> Any:
        if self._closed.is_set():
            raise StopIteration
        if self._thread.ident is None:
            self._thread.start()
        item, error = self._ready.get()
        if error is not None:
            self.close()
            raise error
        self._free.release()
        return item

    def close(self) -> None:
        """Ends the thread; there are no more items."""
        self._closed.set()
        self._free.release()

    __del__ = close


def _make(
    items: Iterator[Any], ready: queue.SimpleQueue, free: threading.Semaphore,
    closed: threading.Event,
) -> None:
    try:
        while free.acquire() and not closed.is_set():
            ready.put((next(items), None))
    except BaseException as error:  # of any kind: the reader must not wait forever
        ready.put((None, error))
