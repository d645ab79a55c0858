"""Pairs on their way from blocks to buckets: files in which each bucket has its place."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from albert.errors import UserError
from albert.pretraining_data.dealing import (
    PAIR_NUMBERS,
    BlockTask,
    DealtPairs,
    pair_block,
    token_type,
)
from albert.pretraining_data.recipe import Recipe, load_tokenizer
from albert.storage import temporaries

LAYOUT = 6  # of the temporary files: those of another are not gone on with
_SOME = 1 << 14  # pairs whose tokens are gathered together
_PAIR_BYTES = 4 * PAIR_NUMBERS
_ENDS_BYTES = 16  # for each bucket, at the beginning of a spill
_STOP_FILE = "stop"
_MOST_READS = 1 << 20  # of a bucket from a spill; more are spared by merging
_MERGED = 64  # spills merged into one
_MERGED_BYTES = 32 << 20  # of them held at a time


class StoppedError(Exception):
    """The main process asked for an end."""


def ask_to_stop(directory: str) -> None:
    """Makes the workers of this temporary directory end soon."""
    with (
        contextlib.suppress(FileNotFoundError),  # it is gone, and so is the work
        open(os.path.join(directory, _STOP_FILE), "w", encoding="utf-8"),
    ):
        pass


def resume(directory: str) -> None:
    """Takes back what `ask_to_stop` asked of an earlier run."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, _STOP_FILE))


def end_if_asked(path: str) -> None:
    if os.path.exists(os.path.join(os.path.dirname(path), _STOP_FILE)):
        raise StoppedError


@contextlib.contextmanager
def write_whole(path: str) -> Iterator[BinaryIO]:
    """Yields a file that becomes `path`, synced to the disk, when the block ends well.

    Raises:
      UserError: it cannot be written.
    """
    # A process whose owner was killed may write a moment longer: not into the same file.
    own = temporaries.temporary_name(path)
    try:
        with open(own, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(own, path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error


def spill_block(recipe: Recipe, task: BlockTask, path: str) -> None:
    """Writes the pairs of some passes over a block to `path`, in the order of their buckets.

    The file begins with int64 [num_buckets + 1, 2]: how many pairs, and how many tokens, are in
    the buckets before each one. Then for each bucket come int32 [n, 4], see `DealtPairs.table`,
    and the tokens of its pairs, A before B.

    Raises:
      UserError: the disk is full; StoppedError: see `ask_to_stop`.
    """
    pairs = pair_block(recipe, task, lambda: end_if_asked(path))
    dtype = token_type(load_tokenizer(recipe))
    sizes = np.column_stack([pairs.counts, pairs.tokens_of_buckets()])
    ends = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(sizes, axis=0)])
    with write_whole(path) as out:
        out.write(ends.astype("<i8").tobytes())
        first = 0
        while first < len(sizes):
            # Small buckets are gathered together, large ones in parts.
            last = int(np.searchsorted(ends[:, 0], ends[first, 0] + _SOME, "right")) - 1
            if last > first:
                _write_small(out, pairs, dtype, ends[first : last + 1])
            else:
                last = first + 1
                _write_large(out, pairs, dtype, *ends[first : last + 1, 0].tolist())
            first = last


def _write_small(out: BinaryIO, pairs: DealtPairs, dtype: np.dtype, ends: np.ndarray) -> None:
    some = slice(int(ends[0, 0]), int(ends[-1, 0]))
    table = memoryview(pairs.table(some).tobytes())
    tokens = memoryview(pairs.tokens(dtype, some).tobytes())
    places = ((ends - ends[0]) * (_PAIR_BYTES, dtype.itemsize)).tolist()
    for (table_at, tokens_at), (table_end, tokens_end) in itertools.pairwise(places):
        out.write(table[table_at:table_end])
        out.write(tokens[tokens_at:tokens_end])


def _write_large(
    out: BinaryIO, pairs: DealtPairs, dtype: np.dtype, start: int, end: int
) -> None:
    out.write(pairs.table(slice(start, end)).tobytes())
    for at in range(start, end, _SOME):
        out.write(pairs.tokens(dtype, slice(at, min(at + _SOME, end))).tobytes())


class Spills(NamedTuple):
    """The spills of a stream. They have names, and are not listed: there may be very many."""

    directories: tuple[str, ...]  # the spills are dealt out to them, in their groups
    stream: str
    blocks: int
    passes: int
    step: int  # passes over a block in one piece of work
    buckets: int
    group: int = 1  # successive spills that are merged into one before they are read

    @property
    def groups(self) -> int:
        return -(-self.blocks * self._pieces // self.group)

    @property
    def _pieces(self) -> int:
        return -(-self.passes // self.step)

    def group_of(self, task: BlockTask) -> int:
        """Returns which group the spill of a piece of work belongs to."""
        return (task.index * self._pieces + task.passes.start // self.step) // self.group

    def directory(self, group: int) -> str:
        """Returns where the spills of a group go."""
        return self.directories[group % len(self.directories)]

    def merged(self, group: int) -> str:
        """Returns the file that a group is merged into."""
        return os.path.join(self.directory(group), f"{self.stream}-{group}.merged")

    def sources(self, group: int) -> list[str]:
        """Returns the spills of a group, in the order of the text."""
        found = []
        last = min((group + 1) * self.group, self.blocks * self._pieces)
        for number in range(group * self.group, last):
            index, piece = divmod(number, self._pieces)
            first = piece * self.step
            passes = range(first, min(first + self.step, self.passes))
            task = BlockTask(self.stream, index, (), passes, 0)
            found.append(os.path.join(self.directory(group), task.name))
        return found

    def paths(self) -> Iterator[str]:
        """Yields the files that hold the buckets, in the order of the text."""
        for group in range(self.groups):
            if self.group == 1:
                yield from self.sources(group)
            else:
                yield self.merged(group)


def group_size(spills: float, buckets: int) -> int:
    """Returns how many of so many spills are merged into one: 1 where they need not be.

    Each bucket is read from every file. So the work grows with the square of the text, but for
    the merging.
    """
    return 1 if spills * buckets <= _MOST_READS else _MERGED


def merge_spills(
    recipe: Recipe, sources: Sequence[str], num_buckets: int, path: str
) -> None:
    """Writes the pairs of several spills as one, in the order of `sources`; see `spill_block`.

    Raises:
      UserError: the disk is full; StoppedError: see `ask_to_stop`.
    """
    token_bytes = token_type(load_tokenizer(recipe)).itemsize
    with contextlib.ExitStack() as stack, write_whole(path) as out:
        streams = [stack.enter_context(open(source, "rb")) for source in sources]
        ends = np.stack([_read_ends(stream, num_buckets + 1) for stream in streams])
        out.write(ends.sum(axis=0).astype("<i8").tobytes())
        places = ends @ (_PAIR_BYTES, token_bytes)  # [S, num_buckets + 1]
        before = places.sum(axis=0)
        first = 0
        while first < num_buckets:
            end_if_asked(path)
            wanted = before[first] + _MERGED_BYTES
            last = max(first + 1, int(np.searchsorted(before, wanted, "right")) - 1)
            sizes = (places[:, last] - places[:, first]).tolist()
            contents = [memoryview(stream.read(size))
                        for stream, size in zip(streams, sizes, strict=True)]
            some = slice(first, last + 1)
            _write_merged(out, contents, places[:, some], ends[:, some, 0])
            first = last


def _write_merged(
    out: BinaryIO, contents: Sequence[memoryview], places: np.ndarray, pairs: np.ndarray
) -> None:
    """Writes successive buckets: of each, the tables of all spills, then their tokens.

    Args:
      contents: of S spills.
      places: [S, N + 1], where each bucket begins in its spill's file, and the end.
      pairs: [S, N + 1], the pairs before each of them.
    """
    begins = places - places[:, :1]
    middles = (begins[:, :-1] + np.diff(pairs) * _PAIR_BYTES).T.tolist()
    for (begin, end), middle in zip(
        itertools.pairwise(begins.T.tolist()), middles, strict=True
    ):
        tables = map(_part, contents, begin, middle)
        out.write(b"".join([*tables, *map(_part, contents, middle, end)]))


def _part(content: memoryview, begin: int, end: int) -> memoryview:
    return content[begin:end]


def _read_ends(stream: BinaryIO, count: int) -> np.ndarray:
    """Returns [count, 2] of what a spill begins with, from where it is read on."""
    return np.frombuffer(stream.read(count * _ENDS_BYTES), "<i8").reshape(count, 2)


def read_bucket(spills: Spills, bucket: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Returns (`DealtPairs.table` [n, 4], tokens) of a bucket."""
    tables, tokens = [np.zeros(0, "<i4")], [np.zeros(0, dtype)]
    for path in spills.paths():
        with open(path, "rb") as stream:
            stream.seek(bucket * _ENDS_BYTES)
            (pair, token), (pair_end, token_end) = _read_ends(stream, 2).tolist()
            if pair == pair_end:
                continue
            stream.seek(
                (spills.buckets + 1) * _ENDS_BYTES + pair * _PAIR_BYTES + token * dtype.itemsize
            )
            size = (pair_end - pair) * _PAIR_BYTES
            content = stream.read(size + (token_end - token) * dtype.itemsize)
            tables.append(np.frombuffer(content, "<i4", (pair_end - pair) * PAIR_NUMBERS))
            tokens.append(np.frombuffer(content, dtype, offset=size))
    table = np.concatenate(tables).reshape(-1, PAIR_NUMBERS).astype(np.int64)
    return table, np.concatenate(tokens)
