"""Text files become documents, and documents become blocks; the corpus is never held whole.

A corpus has one sentence (or paragraph) a line and a blank line between
documents, or another form, see `corpus_files`. Documents are gathered into blocks of a few
megabytes; one that is longer is cut.
"""

import dataclasses
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np

from albert.text import corpus_files, text_files
from albert.text.corpus_files import BLANK_LINES, FILES, LINES, Form
from albert.text.sentences import split_sentences

Document = list[str]  # its lines, none of them blank
Item = TypeVar("Item")  # a document, or what stands for it

LONGEST_DOCUMENT = 8 << 20  # characters; a longer one is cut, so that memory stays bounded


# === Reading ===


@dataclasses.dataclass
class ReadingCounts(text_files.Counts):
    """Counts of what was read."""

    documents: int = 0
    sentences: int = 0  # or lines, if they are not split
    cut_documents: int = 0  # places where a very long document was cut


def read_documents(
    paths: Sequence[str],
    preprocess: Callable[[str], str],
    counts: ReadingCounts,
    break_between_files: bool = True,
    form: Form = Form(),
    longest: int | None = None,
    position: text_files.Position | None = None,
) -> Iterator[Document]:
    """Yields the documents of the files in order, updating `counts` on the way.

    Args:
      preprocess: `FullTokenizer.preprocess`; a line that it empties is blank.
      break_between_files: a file ends its last document. Without it the next
        file's first lines continue it, as in the original.
      form: of a layout that is decided; of a pipe, it may be left to its beginning.
      longest: characters of a document; by default `LONGEST_DOCUMENT`.
      position: see `corpus_files.open_lines`.

    Raises:
      DataError: see `corpus_files`.
    """
    document: Document = []
    for texts, ends in _texts_and_ends(
        paths, preprocess, counts, break_between_files, form,
        LONGEST_DOCUMENT if longest is None else longest, position,
    ):
        document += texts
        if document and ends:
            counts.documents += 1
            counts.cut_documents += bool(texts)  # nothing in the text ends it
            yield document
            document = []
    if document:
        counts.documents += 1
        yield document


def _texts_and_ends(
    paths: Sequence[str], preprocess: Callable[[str], str], counts: ReadingCounts,
    break_between_files: bool, form: Form, longest: int, position: text_files.Position | None,
) -> Iterator[tuple[Sequence[str], bool]]:
    """Yields (texts of a line or of a part of one, whether a document ends after them)."""
    before = 0  # characters of the document in earlier files
    for path in paths:
        size = 0  # and in this one
        with corpus_files.open_lines(path, form, position=position) as (stream, layout):
            for texts, _ in _read_texts(stream, path, preprocess, counts, layout, form.language):
                counts.sentences += len(texts)
                size += sum(map(len, texts))
                ends = not texts or size >= longest
                yield texts, ends
                if ends:
                    size = before = 0
        before += size
        if break_between_files or layout == FILES or before >= longest:
            yield (), True
            before = 0


def _read_texts(
    stream: BinaryIO,
    name: str,
    preprocess: Callable[[str], str],
    counts: text_files.Counts,
    layout: str,
    language: str | None,
    most_bad: float | None = None,
) -> Iterator[tuple[Sequence[str], int]]:
    """Yields (texts of a line or of a part of one, bytes up to its end); no text ends a document.

    Of a very long line the blank parts are left out: they end no document.

    Args:
      language: of the sentences that are a text each; without it, a line is one.
    """
    end, is_blank = 0, True
    for text, size, ends in text_files.read_lines(stream, name, counts, most_bad=most_bad):
        end += size
        text = text.strip()
        is_end = ends and layout == LINES
        # Cleaning drops combining marks; only a line that begins with one can vanish.
        if text and (not unicodedata.combining(text[0]) or preprocess(text)):
            is_blank = ends
            yield split_sentences(text, language) if language else (text,), end
        else:
            is_end |= ends and is_blank and layout != FILES
            is_blank |= ends
        if is_end:
            yield (), end


# === Reading, apart: where documents are, and their text ===


class Run(NamedTuple):
    """Lines of one file that are of one document, or of a part of it."""

    start: int  # byte at which its first line begins
    end: int
    characters: int  # of its text


class FileScan(NamedTuple):
    """Where the documents of one file are."""

    runs: np.ndarray  # int64 [n, 3], the fields of each `Run`: corpora have many
    starts_open: bool  # nothing ends a document before the first run: it may continue one
    ends_open: bool  # nor after the last run: the next file may continue it
    counts: ReadingCounts  # `documents` is not known yet


def scan_file(
    stream: BinaryIO, name: str, preprocess: Callable[[str], str], layout: str,
    language: str | None = None,
) -> FileScan:
    """Returns where the documents of a file are; `preprocess` as of `read_documents`.

    Args:
      stream: of `corpus_files.as_lines`, with its layout.
      name: what messages call it.
      language: see `_read_texts`.
    """
    counts, runs, at = ReadingCounts(), [], 0
    starts_open = True
    current: Run | None = None
    for texts, end in _read_texts(stream, name, preprocess, counts, layout, language):
        counts.sentences += len(texts)
        if texts:
            before = current or Run(at, end, 0)
            size = before.characters + sum(map(len, texts))
            current = before._replace(end=end, characters=size)
        else:
            starts_open &= bool(runs or current)
        if current and (not texts or current.characters >= LONGEST_DOCUMENT):
            counts.cut_documents += bool(texts)
            runs.append(current)
            current = None
        at = end
    ends_open = (current is not None or not at) and layout != FILES
    if current:
        runs.append(current)
    return FileScan(np.array(runs, np.int64).reshape(-1, 3), starts_open, ends_open, counts)


def join_scans(
    scans: Sequence[FileScan], break_between_files: bool = True
) -> Iterator[tuple[list[tuple[int, Run]], int]]:
    """Yields the documents of `read_documents` as ([(number of the file, run)], characters)."""
    document: list[tuple[int, Run]] = []

    def characters() -> int:
        return sum(run.characters for _, run in document)

    def finished() -> Iterator[tuple[list[tuple[int, Run]], int]]:
        if document:
            yield list(document), characters()
            document.clear()

    for number, scan in enumerate(scans):
        if not scan.starts_open:
            yield from finished()
        for place, run in enumerate(scan.runs.tolist()):
            if place:
                yield from finished()
            document.append((number, Run(*run)))
        if break_between_files or not scan.ends_open or characters() >= LONGEST_DOCUMENT:
            yield from finished()
    yield from finished()


def read_run(
    stream: BinaryIO, run: Run, preprocess: Callable[[str], str], language: str | None = None
) -> Document:
    """Returns the lines of a run of the file that `scan_file` was given."""
    stream.seek(run.start)
    lines: Document = []
    # How much of the file is no UTF-8 was looked at when it was scanned.
    texts = _read_texts(
        stream, "", preprocess, text_files.Counts(), BLANK_LINES, language, most_bad=1
    )
    for found, end in texts:
        lines += found
        if run.start + end >= run.end:
            break
    return lines


# === Blocks ===


def cut_blocks(
    documents: Iterable[tuple[Item, int]],
    size: int,
    split: Callable[[Item, int], Iterable[tuple[bool, Item, int]]] = lambda d, n: [(False, d, n)],
) -> Iterator[tuple[bool, int, list[Item]]]:
    """Yields (whether held out, number of the block among its like, documents) of every block.

    A block has `size` characters, and two documents at least: random other documents are drawn
    within it. So a single document at the end joins the block before.

    Args:
      documents: (document, its characters), in order.
      split: see `HeldOut.split`.
    """
    blocks: list[list[Item]] = [[], []]  # of each kind: that which is being gathered
    waiting: list[list[Item]] = [[], []]  # and the one before
    characters, numbers = [0, 0], [0, 0]
    for which, document, more in (part for one in documents for part in split(*one)):
        blocks[which].append(document)
        characters[which] += more
        if characters[which] >= size and len(blocks[which]) > 1:
            if waiting[which]:
                yield which, numbers[which], waiting[which]
                numbers[which] += 1
            waiting[which], blocks[which], characters[which] = blocks[which], [], 0
    for which in (False, True):
        if waiting[which] and len(blocks[which]) == 1:
            waiting[which] += blocks[which]
            blocks[which] = []
        left = filter(None, (waiting[which], blocks[which]))
        for number, block in enumerate(left, numbers[which]):
            yield which, number, block
