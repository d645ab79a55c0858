"""From text files to documents to pairs of segments, without holding the corpus.

A corpus has one sentence (or paragraph) a line and a blank line between
documents. Documents are gathered into blocks of a few megabytes; a block is
tokenised at once, and all its pairs are ranges of one flat array of ids.
"""

import dataclasses
import fractions
import itertools
import random
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, Generic, NamedTuple, TypeVar

import numpy as np

from albert.data import text_files
from albert.tokenization import FullTokenizer

Document = list[str]  # its lines, none of them blank
Item = TypeVar("Item")  # a document, or what stands for it


# === Reading ===


@dataclasses.dataclass
class ReadingCounts(text_files.Counts):
    """What was met while reading."""

    documents: int = 0


def read_documents(
    paths: Sequence[str],
    preprocess: Callable[[str], str],
    counts: ReadingCounts,
    break_between_files: bool = True,
) -> Iterator[Document]:
    """Yields the documents of the files in order, updating `counts` on the way.

    Args:
      preprocess: `FullTokenizer.preprocess`; a line that it empties is blank.
      break_between_files: a file ends its last document. Without it the next
        file's first lines continue it, as in the original.

    Raises:
      DataError: see `text_files`.
    """
    document: Document = []
    for path in paths:
        with text_files.open_text(path) as stream:
            for text, _ in _read_texts(stream, path, preprocess, counts):
                if text:
                    document.append(text)
                elif document:
                    counts.documents += 1
                    yield document
                    document = []
        if document and break_between_files:
            counts.documents += 1
            yield document
            document = []
    if document:
        counts.documents += 1
        yield document


def _read_texts(
    stream: BinaryIO,
    name: str,
    preprocess: Callable[[str], str],
    counts: text_files.Counts,
    most_bad: float | None = None,
) -> Iterator[tuple[str, int]]:
    """Yields (text of a line or of a part of one, bytes up to its end); "" for a blank line.

    Of a very long line the blank parts are left out: they end no document.
    """
    end, is_blank = 0, True
    for text, size, ends in text_files.read_lines(stream, name, counts, most_bad=most_bad):
        end += size
        text = text.strip()
        # Cleaning drops combining marks; only a line that begins with one can vanish.
        if text and (not unicodedata.combining(text[0]) or preprocess(text)):
            is_blank = ends
            yield text, end
        else:
            if ends and is_blank:
                yield "", end
            is_blank |= ends


# === Reading, apart: where documents are, and their text ===


class Run(NamedTuple):
    """Lines of one file without a blank one between them: a document, or a part of it."""

    start: int  # byte at which its first line begins
    end: int
    characters: int  # of its text


class FileScan(NamedTuple):
    """Where the documents of one file are."""

    runs: np.ndarray  # int64 [n, 3], the fields of each `Run`: corpora have many
    starts_open: bool  # no blank line before the first run: it may continue a document
    ends_open: bool  # no blank line after the last run: the next file may continue it
    counts: ReadingCounts  # `documents` is not known yet


def scan_file(stream: BinaryIO, name: str, preprocess: Callable[[str], str]) -> FileScan:
    """Returns where the documents of a file are; `preprocess` as of `read_documents`.

    Args:
      stream: of `text_files.as_utf8`.
      name: what messages call it.
    """
    counts, runs, at = ReadingCounts(), [], 0
    starts_open = True
    current: Run | None = None
    for text, end in _read_texts(stream, name, preprocess, counts):
        if text:
            before = current or Run(at, end, 0)
            current = before._replace(end=end, characters=before.characters + len(text))
        else:
            starts_open &= bool(runs or current)
            if current:
                runs.append(current)
            current = None
        at = end
    ends_open = current is not None or not at
    if current:
        runs.append(current)
    return FileScan(np.array(runs, np.int64).reshape(-1, 3), starts_open, ends_open, counts)


def join_scans(
    scans: Sequence[FileScan], break_between_files: bool = True
) -> Iterator[tuple[list[tuple[int, Run]], int]]:
    """Yields the documents of `read_documents` as ([(number of the file, run)], characters)."""
    document: list[tuple[int, Run]] = []

    def finished() -> Iterator[tuple[list[tuple[int, Run]], int]]:
        if document:
            yield list(document), sum(run.characters for _, run in document)
            document.clear()

    for number, scan in enumerate(scans):
        if not scan.starts_open:
            yield from finished()
        for place, run in enumerate(scan.runs.tolist()):
            if place:
                yield from finished()
            document.append((number, Run(*run)))
        if break_between_files or not scan.ends_open:
            yield from finished()
    yield from finished()


def read_run(stream: BinaryIO, run: Run, preprocess: Callable[[str], str]) -> Document:
    """Returns the lines of a run of the file that `scan_file` was given."""
    stream.seek(run.start)
    lines: Document = []
    # How much of the file is no UTF-8 was looked at when it was scanned.
    for text, end in _read_texts(stream, "", preprocess, text_files.Counts(), most_bad=1):
        lines.append(text)
        if run.start + end >= run.end:
            break
    return lines


# === Held-out documents and blocks ===


class HeldOut:
    """Chooses every k-th document, evenly and reproducibly, for an exact share."""

    def __init__(self, fraction: float, seed: int):
        share = fractions.Fraction(fraction).limit_denominator(1_000_000)
        self._numerator, self._denominator = share.numerator, share.denominator
        self._offset = random.Random(seed).randrange(self._denominator)

    def __call__(self, index: int) -> bool:
        """Whether document `index` (from 0) is held out."""
        at = index * self._numerator + self._offset
        return at // self._denominator != (at + self._numerator) // self._denominator


class BlockCutter(Generic[Item]):
    """Gathers documents into blocks of `size` characters, two documents at least.

    A single document at the end joins the block before: random other
    documents are drawn within a block, so each needs at least two.
    """

    def __init__(self, size: int):
        self._size = size
        self._block: list[Item] = []
        self._characters = 0
        self._waiting: list[Item] | None = None

    def add(self, document: Item, characters: int) -> list[Item] | None:
        """Takes a document of so many characters; returns a block that is complete, or None."""
        self._block.append(document)
        self._characters += characters
        if self._characters < self._size or len(self._block) < 2:
            return None
        ready, self._waiting = self._waiting, self._block
        self._block, self._characters = [], 0
        return ready

    def finish(self) -> Iterator[list[Item]]:
        """Yields the blocks that are left."""
        if self._waiting and len(self._block) == 1:
            self._waiting += self._block
            self._block = []
        for block in (self._waiting, self._block):
            if block:
                yield block
        self._waiting, self._block = None, []


def cut_blocks(
    documents: Iterable[tuple[Item, int]],
    size: int,
    is_held_out: Callable[[int], bool] = lambda index: False,
) -> Iterator[tuple[bool, int, list[Item]]]:
    """Yields (whether held out, number of the block among its like, documents) of every block.

    Args:
      documents: (document, its characters), in order.
      is_held_out: of the index of a document; see `HeldOut`.
    """
    cutters: list[BlockCutter[Item]] = [BlockCutter(size), BlockCutter(size)]
    numbers = [0, 0]
    for index, (document, characters) in enumerate(documents):
        which = bool(is_held_out(index))
        block = cutters[which].add(document, characters)
        if block:
            yield which, numbers[which], block
            numbers[which] += 1
    for which in (False, True):
        for number, block in enumerate(cutters[which].finish(), numbers[which]):
            yield which, number, block


def with_size(documents: Iterable[Document]) -> Iterator[tuple[Document, int]]:
    """Yields every document with its characters."""
    for document in documents:
        yield document, sum(map(len, document))


class Block(NamedTuple):
    """Tokenised documents: document d has the segments documents[d]:documents[d + 1]."""

    ids: np.ndarray  # int32, all tokens
    segments: list[int]  # where each segment begins in `ids`, and the end
    documents: list[int]  # where each document begins in `segments`, and the end


_ENCODE_LINES = 4096  # lines given to the tokenizer at once


def tokenize_block(documents: Sequence[Document], tokenizer: FullTokenizer) -> Block:
    """Returns the documents as ids; segments and documents without any token go."""
    lines = [line for document in documents for line in document]
    flat: list[np.ndarray] = [np.zeros(0, np.int32)]
    sizes: list[int] = []
    for start in range(0, len(lines), _ENCODE_LINES):
        rows = tokenizer.encode_batch(lines[start : start + _ENCODE_LINES])
        sizes += map(len, rows)
        flat.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
    segments, borders, line, at = [0], [0], 0, 0
    for document in documents:
        for size in sizes[line : line + len(document)]:
            at += size
            if size:
                segments.append(at)
        line += len(document)
        if len(segments) - 1 > borders[-1]:
            borders.append(len(segments) - 1)
    return Block(np.concatenate(flat), segments, borders)


# === Pairs ===


# What the label of a pair is about, and the chance that label 1 comes by a random B, and
# by A and B swapped: sentence order (the paper's), next sentence (BERT's), either, neither.
SENTENCE_OBJECTIVES = {
    "sop": (0.0, 0.5), "nsp": (0.5, 0.0), "both": (0.25, 0.25), "none": (0.0, 0.0),
}


@dataclasses.dataclass(frozen=True)
class PairSettings:
    """How segments become pairs; the flags of the same names."""

    max_seq_length: int = 512  # [CLS] A [SEP] B [SEP] together
    short_seq_prob: float = 0.1  # share of documents cut into shorter pairs
    sentence_objective: str = "sop"  # key of `SENTENCE_OBJECTIVES`
    strict_sentence_order: bool = False  # a lone segment has no B of another document
    # A and B are always in order here: whoever reads the pairs swaps them.
    is_swapped_later: bool = False

    @property
    def max_tokens(self) -> int:
        """Tokens of A and B together."""
        return self.max_seq_length - 3

    @property
    def swaps_of_ordered(self) -> float:
        """Chance that A and B are swapped where B is not of a random document."""
        is_random, is_swapped = SENTENCE_OBJECTIVES[self.sentence_objective]
        return is_swapped / (1 - is_random)


# Ranges of ids: (begin of A, its end, begin of B, its end, label).
Pair = tuple[int, int, int, int, int]


def create_pairs(block: Block, settings: PairSettings, rng: random.Random) -> list[Pair]:
    """Returns the pairs of one pass over a block, not truncated yet."""
    pairs: list[Pair] = []
    for index in range(len(block.documents) - 1):
        pairs += create_instances_from_document(block, index, settings, rng)
    return pairs


def create_instances_from_document(
    block: Block, index: int, settings: PairSettings, rng: random.Random
) -> list[Pair]:
    """Returns the pairs of document `index`, not truncated yet.

    Segments gather until they reach the target length, and are divided at a
    random border. Label 1: A and B are swapped, or B is of a random document
    (always so for a single segment, unless `strict_sentence_order`).
    """
    segments, at, end = block.segments, block.documents[index], block.documents[index + 1]
    target = settings.max_tokens
    if rng.random() < settings.short_seq_prob:
        target = rng.randint(2, target)
    pairs: list[Pair] = []
    is_random = SENTENCE_OBJECTIVES[settings.sentence_objective][0]
    is_swapped = 0.0 if settings.is_swapped_later else settings.swaps_of_ordered
    while at < end:
        last = min(bisect_left(segments, segments[at] + target, at + 1, end), end)
        if settings.strict_sentence_order:
            last = min(max(last, at + 2), end)
            if last - at < 2:  # a document's lone last segment has nothing to follow it
                break
        count = last - at
        border = at + (1 + below(count - 1, rng) if count > 1 else 1)
        a = (segments[at], segments[border])
        b = (segments[border], segments[last])
        at = last
        if count == 1 or (is_random and rng.random() < is_random):
            b = _random_segments(block, index, target - (a[1] - a[0]), rng)
            pairs.append((*a, *b, 1))
            at = border  # what B did not use comes again
        elif is_swapped and rng.random() < is_swapped:
            pairs.append((*b, *a, 1))
        else:
            pairs.append((*a, *b, 0))
    return pairs


def below(count: int, rng: random.Random) -> int:
    """Returns the number that `rng.randrange(count)` would, in half its time."""
    bits = count.bit_length()
    while (number := rng.getrandbits(bits)) >= count:
        pass
    return number


def _random_segments(
    block: Block, index: int, length: int, rng: random.Random
) -> tuple[int, int]:
    """Returns a range of at least `length` tokens, where the document has them."""
    for _ in range(10):
        other = below(len(block.documents) - 1, rng)
        if other != index:
            break
    start, end = block.documents[other], block.documents[other + 1]
    start += below(end - start, rng)
    wanted = block.segments[start] + length
    last = min(bisect_left(block.segments, wanted, start + 1, end), end)
    return block.segments[start], block.segments[last]


def truncate_pairs(
    pairs: np.ndarray, max_tokens: int, rng: np.random.Generator, is_swapped_later: bool = False
) -> np.ndarray:
    """Returns the pairs cut to `max_tokens`; [N, 5] in and out.

    The original drops one token at a time, of the longer segment (of B when
    equal), at the front or the end with equal chance. So the lengths that
    remain are determined, and how much goes at the front is binomial.

    Args:
      is_swapped_later: A and B may still change places, where the original had swapped them
        before. Then chance decides which of two equal ones loses a token: else A would keep
        the odd one, and whoever is longer after the swap would tell that there was one.
    """
    cut = pairs.copy()
    of_a = rng.integers(0, 2, len(pairs)) if is_swapped_later else 0
    a, b = pairs[:, 1] - pairs[:, 0], pairs[:, 3] - pairs[:, 2]
    excess = np.maximum(a + b - max_tokens, 0)
    unequal = np.minimum(excess, np.abs(a - b))
    both = excess - unequal
    from_a = np.where(a > b, unequal, 0) + (both + of_a) // 2
    from_b = np.where(a > b, 0, unequal) + (both + 1 - of_a) // 2
    for column, dropped in ((0, from_a), (2, from_b)):
        front = rng.binomial(dropped, 0.5)
        cut[:, column] += front
        cut[:, column + 1] -= dropped - front
    return cut
