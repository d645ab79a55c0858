"""The second stage of the shuffle: each bucket is gathered, shuffled and made into records.

Random numbers depend on the seed and on the bucket, never on the process: together with `dealing`
this gives the same bytes however the work is divided.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from albert.pretraining_data import pair_records, rows
from albert.pretraining_data.dealing import token_type
from albert.pretraining_data.recipe import Recipe, load_tokenizer
from albert.pretraining_data.spills import Spills, end_if_asked, read_bucket, write_whole
from albert.records.examples import frame_examples

_BATCH = 1024  # instances masked and serialised together


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
    table, ids = read_bucket(spills, bucket, token_type(load_tokenizer(recipe)))
    framed = frame_bucket(recipe, spills.stream, bucket, table, ids, examples)
    with write_whole(path) as out:
        return write_part(
            path, out, framed, *facts_of(recipe, table, ids), lambda: end_if_asked(path)
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
