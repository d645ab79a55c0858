"""The two stages of the shuffle: pairs are dealt out to buckets, and each bucket is gathered.

`spill_block` tokenises a block, pairs its segments for some of the passes and
deals the pairs out to buckets, in a temporary file. `finish_bucket` gathers
one bucket from all those files, shuffles, masks and serialises it. Both draw
random numbers that depend on the seed and on what they work at, never on the
process: together they give the same bytes however the work is divided.

When a file is whole and on the disk, a note beside it says so. A file with such a note is not
made again. So a run goes on with what a killed one left.
"""

import contextlib
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from albert.data import files, temporaries
from albert.data.examples import frame_examples
from albert.errors import DataError, UserError
from albert.pretraining_data import rows
from albert.pretraining_data.documents import Item, cut_blocks
from albert.pretraining_data.pairs import create_pairs, tokenize_block, truncate_pairs
from albert.pretraining_data.recipe import Job, Recipe, Stream, load_tokenizer
from albert.tokenization import FullTokenizer

LAYOUT = 3  # of the temporary files: those of another are not gone on with
_BATCH = 1024  # instances masked and serialised together
_SOME = 1 << 14  # pairs whose tokens are gathered together
PAIR_NUMBERS = 4  # int32 of a spilled pair beside its tokens
_PAIR_BYTES = 4 * PAIR_NUMBERS
_STOP_FILE = "stop"
_DONE = ".done"


class StoppedError(Exception):
    """The main process asked for an end."""


def ask_to_stop(directory: str) -> None:
    """Makes the workers of this temporary directory end soon."""
    with open(os.path.join(directory, _STOP_FILE), "w", encoding="utf-8"):
        pass


def _end_if_asked(path: str) -> None:
    if os.path.exists(os.path.join(os.path.dirname(path), _STOP_FILE)):
        raise StoppedError


# === Work that is done ===


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


def _note_done(path: str, result: Sequence) -> None:
    files.write_json(path + _DONE, {"bytes": os.path.getsize(path), "result": result})


def _read_done(path: str) -> list | None:
    """Returns the note beside a file, if the file is as it was written, else None."""
    try:
        note = files.read_json_object(path + _DONE)
        return note.get("result") if note.get("bytes") == os.path.getsize(path) else None
    except (DataError, OSError):
        return None


def resume(directory: str) -> int:
    """Prepares the temporary directory that a killed run left; returns what is done in it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, _STOP_FILE))
    return sum(_read_done(os.path.join(directory, name.removesuffix(_DONE))) is not None
               for name in os.listdir(directory) if name.endswith(_DONE))


# === First stage ===


class BlockTask(NamedTuple):
    """Some passes over a block of a stream's documents."""

    stream: str
    index: int  # of the block in its stream
    documents: Sequence[Any]  # `Document`s, or what stands for them
    passes: range
    num_buckets: int


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


class Section(NamedTuple):
    """The pairs of one bucket in one spill."""

    path: str
    table_at: int  # byte where lengths and labels begin
    pairs: int
    tokens_at: int  # byte where tokens begin
    tokens: int
    token_bytes: int


class Spill(NamedTuple):
    """A file of pairs in the order of their buckets.

    It holds int32 [n, 4], see `DealtPairs.table`, then the tokens of all pairs, A before B.
    """

    path: str
    pairs: np.ndarray  # int64 [num_buckets], pairs in each bucket
    tokens: np.ndarray  # int64 [num_buckets], their tokens
    token_bytes: int  # bytes of a token

    def section(self, bucket: int) -> Section:
        """Returns where the pairs of one bucket are."""
        tokens_at = int(self.pairs.sum()) * _PAIR_BYTES
        tokens_at += int(self.tokens[:bucket].sum()) * self.token_bytes
        return Section(
            self.path, int(self.pairs[:bucket].sum()) * _PAIR_BYTES, int(self.pairs[bucket]),
            tokens_at, int(self.tokens[bucket]), self.token_bytes,
        )


def spill_block(recipe: Recipe, task: BlockTask, path: str) -> Spill:
    """Writes the pairs of some passes over a block to `path`.

    Raises:
      UserError: the disk is full; StoppedError: see `ask_to_stop`.
    """
    if done := _read_done(path):
        counts, tokens, token_bytes = done
        return Spill(path, np.array(counts), np.array(tokens), token_bytes)
    pairs = pair_block(recipe, task, lambda: _end_if_asked(path))
    dtype, tokens = token_type(load_tokenizer(recipe)), pairs.tokens_of_buckets()
    with write_whole(path) as out:
        out.write(pairs.table().tobytes())
        for start in range(0, len(pairs.ranges), _SOME):
            out.write(pairs.tokens(dtype, slice(start, start + _SOME)).tobytes())
    _note_done(path, [pairs.counts.tolist(), tokens.tolist(), dtype.itemsize])
    return Spill(path, pairs.counts, tokens, dtype.itemsize)


# === Second stage ===


class PairFacts(NamedTuple):
    """Counts of pairs, for the report."""

    labelled: int = 0  # pairs of label 1
    tokens: int = 0  # in pairs
    lost: int = 0  # cut off them, or in none

    @classmethod
    def of(cls, table: np.ndarray) -> "PairFacts":
        """Returns those of a `DealtPairs.table`."""
        return cls(*map(int, (table[:, 2].sum(), table[:, :2].sum(), table[:, 3].sum())))

    def __add__(self, other: Sequence[int]) -> "PairFacts":
        return PairFacts(*map(sum, zip(self, other, strict=True)))


class Part(NamedTuple):
    """Framed records in a file of their own: a finished bucket, or more."""

    path: str
    examples: list[str]  # the first instances, for people to read
    blocks: list[tuple[int, int]]  # (records, bytes) of successive parts of it
    facts: Sequence[int]  # `PairFacts`

    @property
    def records(self) -> int:
        return sum(count for count, _ in self.blocks)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.blocks)


def finish_bucket(
    recipe: Recipe, stream: str, bucket: int, sections: Sequence[Section], path: str, examples: int
) -> Part:
    """Shuffles, masks and serialises one bucket into `path`; prints the first `examples`.

    Args:
      sections: the bucket's pairs in every spill, in order; one at least.

    Raises:
      UserError: the disk is full; StoppedError: see `ask_to_stop`.
    """
    if done := _read_done(path):
        return Part(path, *done)
    table, ids = _read_bucket(sections)
    framed = frame_bucket(recipe, stream, bucket, table, ids, examples)
    with write_whole(path) as out:
        part = write_part(path, out, framed, PairFacts.of(table), lambda: _end_if_asked(path))
    _note_done(path, part[1:])
    return part


def write_part(
    path: str,
    out: BinaryIO,
    framed: Iterable[tuple[bytes, int, list[str]]],
    facts: PairFacts,
    before_each: Callable[[], None] = lambda: None,
) -> Part:
    """Writes what `frame_bucket` yields to a file that becomes `path`."""
    blocks, printed = [], []
    for content, count, texts in framed:
        before_each()
        out.write(content)
        blocks.append((count, len(content)))
        printed += texts
    return Part(path, printed, blocks, facts)


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


def _read_bucket(sections: Sequence[Section]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (`DealtPairs.table` [n, 4], tokens) of a bucket."""
    tables, tokens = [], []
    for section in sections:
        with open(section.path, "rb") as stream:
            stream.seek(section.table_at)
            tables.append(np.frombuffer(stream.read(section.pairs * _PAIR_BYTES), "<i4"))
            stream.seek(section.tokens_at)
            size = section.token_bytes
            tokens.append(np.frombuffer(stream.read(section.tokens * size), f"<u{size}"))
    table = np.concatenate(tables).reshape(-1, PAIR_NUMBERS).astype(np.int64)
    return table, np.concatenate(tokens)
