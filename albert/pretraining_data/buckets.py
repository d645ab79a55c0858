"""The two stages of the shuffle: pairs are dealt out to buckets, and each bucket is gathered.

`spill_block` tokenises a block, pairs its segments for some of the passes and
deals the pairs out to buckets, in a temporary file. `finish_bucket` gathers
one bucket from all those files, shuffles, masks and serialises it. Both draw
random numbers that depend on the seed and on what they work at, never on the
process: together they give the same bytes however the work is divided.
"""

import contextlib
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from albert.data import temporaries
from albert.data.examples import frame_examples
from albert.errors import UserError
from albert.pretraining_data import pair_records, rows
from albert.pretraining_data.documents import Item, cut_blocks
from albert.pretraining_data.pairs import create_pairs, tokenize_block, truncate_pairs
from albert.pretraining_data.recipe import Job, Recipe, Stream, load_tokenizer
from albert.tokenization import FullTokenizer

LAYOUT = 4  # of the temporary files: those of another are not gone on with
_BATCH = 1024  # instances masked and serialised together
_SOME = 1 << 14  # pairs whose tokens are gathered together
PAIR_NUMBERS = 4  # int32 of a spilled pair beside its tokens
_PAIR_BYTES = 4 * PAIR_NUMBERS
_ENDS_BYTES = 16  # for each bucket, at the beginning of a spill
_STOP_FILE = "stop"


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


def _end_if_asked(path: str) -> None:
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


# === First stage ===


class BlockTask(NamedTuple):
    """Some passes over a block of a stream's documents."""

    stream: str
    index: int  # of the block in its stream
    documents: Sequence[Any]  # `Document`s, or what stands for them
    passes: range
    num_buckets: int

    @property
    def name(self) -> str:
        """The name of its spill."""
        return f"{self.stream}-{self.index}-{self.passes.start}-{self.passes.stop}.spill"


def plan_blocks(
    job: Job,
    documents: Iterable[tuple[Item, int]],
    text_bytes: int,
    passes_at_once: Callable[[Stream], int],
) -> Iterator[BlockTask]:
    """Yields the first stage's tasks; documents are (one, its characters), in order."""
    for which, index, block in cut_blocks(documents, job.block_characters, job.is_held_out()):
        stream = job.streams[which]
        step, buckets = passes_at_once(stream), stream.buckets(text_bytes)
        for first in range(0, stream.passes, step):
            passes = range(first, min(first + step, stream.passes))
            yield BlockTask(stream.name, index, block, passes, buckets)


class DealtPairs(NamedTuple):
    """The pairs of some passes over a block, in the order of their buckets."""

    ids: np.ndarray  # tokens of the block
    ranges: np.ndarray  # int64 [n, 5], see `pairs.PairRange`
    lost: np.ndarray  # int64 [n], tokens that were cut off each pair, or left out before it
    counts: np.ndarray  # int64 [num_buckets], pairs in each bucket

    def table(self, some: slice = slice(None)) -> np.ndarray:
        """Returns length of A, length of B, label and lost tokens of pairs: int32 [n, 4]."""
        ranges = self.ranges[some]
        return np.column_stack([_lengths(ranges), ranges[:, 4], self.lost[some]]).astype("<i4")

    def tokens(self, dtype: np.dtype, some: slice = slice(None)) -> np.ndarray:
        """Returns the tokens of pairs, A before B."""
        ranges = self.ranges[some]
        starts, lengths = ranges[:, [0, 2]].ravel(), _lengths(ranges).ravel()
        before = np.cumsum(lengths) - lengths
        places = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
        return self.ids[places].astype(dtype)

    def tokens_of_buckets(self) -> np.ndarray:
        """Returns int64 [num_buckets], the tokens in each."""
        bucket = np.repeat(np.arange(len(self.counts)), self.counts)
        sizes = _lengths(self.ranges).sum(axis=1)
        return np.bincount(bucket, sizes, len(self.counts)).astype(np.int64)


def _lengths(ranges: np.ndarray) -> np.ndarray:
    """Returns the tokens of A and of B of pairs: [n, 2]."""
    return ranges[:, [1, 3]] - ranges[:, [0, 2]]


def _count_unpaired(size: int, ranges: np.ndarray) -> int:
    """Returns how many of a block's `size` tokens are in no pair of these ranges."""
    begins = np.bincount(ranges[:, [0, 2]].ravel(), minlength=size + 1)
    ends = np.bincount(ranges[:, [1, 3]].ravel(), minlength=size + 1)
    return np.count_nonzero(np.cumsum(begins - ends)[:size] == 0)


def token_type(tokenizer: FullTokenizer) -> np.dtype:
    """Returns the type of a spilled token: two bytes, if its id fits them."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def pair_block(
    recipe: Recipe, task: BlockTask, before_pass: Callable[[], None] = lambda: None
) -> DealtPairs:
    """Returns the pairs of some passes over a block, dealt out to buckets."""
    block = tokenize_block(task.documents, load_tokenizer(recipe))
    pairs, buckets = [np.zeros((0, 5), np.int64)], [np.zeros(0, np.int64)]
    lost = [np.zeros(0, np.int64)]
    for number in task.passes:
        before_pass()
        seed = recipe.seed(task.stream, "pairs", task.index, number)
        found = create_pairs(block, recipe.pairs, random.Random(seed))
        rng = np.random.default_rng(seed)
        whole = np.array(found, np.int64).reshape(-1, 5)
        pairs.append(
            truncate_pairs(whole, recipe.pairs.max_tokens, rng, recipe.pairs.is_swapped_later)
        )
        lost.append((_lengths(whole) - _lengths(pairs[-1])).sum(axis=1))
        if recipe.pairs.strict_sentence_order and len(whole):
            # They are a pass's, not a pair's: its first one has them.
            lost[-1][0] += _count_unpaired(len(block.ids), whole)
        buckets.append(_deal(len(whole), task.num_buckets, rng))
    bucket = np.concatenate(buckets)
    order = np.argsort(bucket, kind="stable")
    counts = np.bincount(bucket, minlength=task.num_buckets)
    return DealtPairs(block.ids, np.concatenate(pairs)[order], np.concatenate(lost)[order], counts)


def _deal(count: int, num_buckets: int, rng: np.random.Generator) -> np.ndarray:
    """Returns a random bucket for each pair; all buckets get equally many, if they can."""
    bucket = np.empty(count, np.int64)
    bucket[rng.permutation(count)] = np.arange(count) + rng.integers(num_buckets)
    return bucket % num_buckets


def spill_block(recipe: Recipe, task: BlockTask, path: str) -> None:
    """Writes the pairs of some passes over a block to `path`, in the order of their buckets.

    The file begins with int64 [num_buckets + 1, 2]: how many pairs, and how many tokens, are in
    the buckets before each one. Then for each bucket come int32 [n, 4], see `DealtPairs.table`,
    and the tokens of its pairs, A before B.

    Raises:
      UserError: the disk is full; StoppedError: see `ask_to_stop`.
    """
    pairs = pair_block(recipe, task, lambda: _end_if_asked(path))
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

    directories: tuple[str, ...]  # the pieces of work are dealt out to them
    stream: str
    blocks: int
    passes: int
    step: int  # passes over a block in one piece of work
    buckets: int

    def directory(self, task: BlockTask) -> str:
        """Returns where the spill of a piece of work goes."""
        number = task.index * -(-self.passes // self.step) + task.passes.start // self.step
        return self.directories[number % len(self.directories)]

    def paths(self) -> Iterator[str]:
        """Yields the spills in the order of the text."""
        for index in range(self.blocks):
            for first in range(0, self.passes, self.step):
                passes = range(first, min(first + self.step, self.passes))
                task = BlockTask(self.stream, index, (), passes, 0)
                yield os.path.join(self.directory(task), task.name)


# === Second stage ===


class PairFacts(NamedTuple):
    """Counts of pairs, for the report."""

    labelled: int = 0  # pairs of label 1
    tokens: int = 0  # in pairs
    lost: int = 0  # cut off them, or in none
    unknown: int = 0  # tokens in pairs that the vocabulary does not have

    @classmethod
    def of(cls, table: np.ndarray, ids: np.ndarray, unknown_id: int) -> "PairFacts":
        """Returns those of a `DealtPairs.table` and its tokens."""
        sums = table[:, 2].sum(), table[:, :2].sum(), table[:, 3].sum()
        return cls(*map(int, sums), int(np.count_nonzero(ids == unknown_id)))

    def __add__(self, other: Sequence[int]) -> "PairFacts":
        return PairFacts(*map(sum, zip(self, other, strict=True)))


class Part(NamedTuple):
    """Framed records in a file of their own: a finished bucket, or more.

    What is told of them once alone comes after them in the file: see `read_tail`.
    """

    path: str
    records: int
    bytes: int  # of the records
    examples: list[str]  # the first instances, for people to read
    facts: Sequence[int]  # `PairFacts`


class Tail(NamedTuple):
    """What follows the records of a part."""

    blocks: list[list[int]]  # (records, bytes) of successive parts of it
    lengths: np.ndarray  # int64 [n], how many records have so many tokens

    def __bytes__(self) -> bytes:
        numbers = [[len(self.blocks)], np.ravel(self.blocks), self.lengths]
        return np.concatenate(numbers).astype("<i8").tobytes()


def read_tail(stream: BinaryIO, part: Part) -> Tail:
    """Returns what follows the records of a part, whose file is given."""
    stream.seek(part.bytes)
    numbers = np.frombuffer(stream.read(), "<i8")
    end = 1 + 2 * int(numbers[0])
    return Tail(numbers[1:end].reshape(-1, 2).tolist(), numbers[end:])


def finish_bucket(
    recipe: Recipe, bucket: int, spills: Spills, path: str, examples: int
) -> Part:
    """Shuffles, masks and serialises one bucket into `path`; prints the first `examples`.

    Raises:
      UserError: the disk is full; StoppedError: see `ask_to_stop`.
    """
    table, ids = _read_bucket(spills, bucket, token_type(load_tokenizer(recipe)))
    framed = frame_bucket(recipe, spills.stream, bucket, table, ids, examples)
    with write_whole(path) as out:
        return write_part(
            path, out, framed, *facts_of(recipe, table, ids), lambda: _end_if_asked(path)
        )


def facts_of(recipe: Recipe, table: np.ndarray, ids: np.ndarray) -> tuple[PairFacts, np.ndarray]:
    """Returns (what is told of a bucket's pairs, how many of them have so many tokens)."""
    lengths = pair_records.lengths_of(table[:, :2])
    unknown = load_tokenizer(recipe).unk_id
    return PairFacts.of(table, ids, unknown), np.bincount(
        lengths, minlength=recipe.pairs.max_seq_length + 1
    )


def write_part(
    path: str,
    out: BinaryIO,
    framed: Iterable[tuple[bytes, int, list[str]]],
    facts: PairFacts,
    lengths: np.ndarray,
    before_each: Callable[[], None] = lambda: None,
) -> Part:
    """Writes what `frame_bucket` yields to a file that becomes `path`.

    Args:
      lengths: see `Tail`.
    """
    blocks, printed = [], []
    for content, count, texts in framed:
        before_each()
        out.write(content)
        blocks.append([count, len(content)])
        printed += texts
    out.write(bytes(Tail(blocks, lengths)))
    records, size = (sum(column) for column in zip(*blocks, strict=True)) if blocks else (0, 0)
    return Part(path, records, size, printed, facts)


def frame_bucket(
    recipe: Recipe, stream: str, bucket: int, table: np.ndarray, ids: np.ndarray, examples: int
) -> Iterator[tuple[bytes, int, list[str]]]:
    """Yields (framed records, how many, instances for people to read) of a bucket, shuffled.

    Args:
      table: int64 [n, 4], see `DealtPairs.table`, of all blocks in order.
      ids: their tokens.
    """
    rng = np.random.default_rng(recipe.seed(stream, "bucket", bucket))
    sizes = table[:, 0] + table[:, 1]
    starts = np.cumsum(sizes) - sizes
    order, spec = rng.permutation(len(table)), recipe.feature_spec()
    for first in range(0, len(order), _BATCH):
        some = order[first : first + _BATCH]
        batch = rows.make_features(recipe, ids, starts[some], table[some], rng)
        texts = [rows.describe_row(recipe, batch, row) for row in range(min(len(some), examples))]
        examples -= len(texts)
        yield frame_examples(batch, spec), len(some), texts


def _read_bucket(spills: Spills, bucket: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Returns (`DealtPairs.table` [n, 4], tokens) of a bucket."""
    tables, tokens = [np.zeros(0, "<i4")], [np.zeros(0, dtype)]
    for path in spills.paths():
        with open(path, "rb") as stream:
            stream.seek(bucket * _ENDS_BYTES)
            (pair, token), (pair_end, token_end) = np.frombuffer(
                stream.read(2 * _ENDS_BYTES), "<i8"
            ).reshape(2, 2).tolist()
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
