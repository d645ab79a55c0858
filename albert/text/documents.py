"""Reads text files as documents and gathers documents into blocks; a corpus is never held in memory.

A corpus has one sentence (or paragraph) a line and a blank line between documents, or another form:
see `corpus_files`.
"""

import dataclasses
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from albert.text import corpus_files, text_files
from albert.text.corpus_files import FILES, LINES, Form
from albert.text.sentences import split_sentences

Document = list[str]  # its lines, none of them blank

LONGEST_DOCUMENT = 8 << 20  # characters; a longer one is cut, so that memory stays bounded


# === Reading ===


@dataclasses.dataclass
class ReadingCounts(text_files.Counts):
    """Counts of what was read."""

    documents: int = 0
    sentences: int = 0  # lines with text
    cut_documents: int = 0  # positions at which a very long document was cut


def read_documents(
    paths: Sequence[str],
    preprocess: Callable[[str], str],
    counts: ReadingCounts,
    break_between_files: bool = True,
    form: Form = Form(),
    longest: int | None = None,
    position: text_files.Position | None = None,
) -> Iterator[Document]:
    """Yields the documents of files in order, updating `counts`.

    Args:
      preprocess: `FullTokenizer.preprocess`; a line that it empties is blank.
      break_between_files: documents end with their file; otherwise the next file's first lines
        continue them, as in the original.
      form: how documents lie in the files; the layout of a pipe may still be `AUTO`.
      longest: characters of a document; by default `LONGEST_DOCUMENT`.
      position: updated while files are read.

    Raises:
      DataError: see `corpus_files`.
    """
    longest = LONGEST_DOCUMENT if longest is None else longest
    document: Document = []
    size = 0
    for path in paths:
        with corpus_files.open_lines(path, form, position=position) as (stream, layout):
            for text, is_end in _read_lines(stream, path, preprocess, counts, layout):
                if text:
                    document.append(text)
                    counts.sentences += 1
                    size += len(text)
                if document and (is_end or size >= longest):
                    counts.documents += 1
                    counts.cut_documents += not is_end
                    yield document
                    document, size = [], 0
        if document and (break_between_files or layout == FILES):
            counts.documents += 1
            yield document
            document, size = [], 0
    if document:
        counts.documents += 1
        yield document


def _read_lines(
    stream: BinaryIO,
    name: str,
    preprocess: Callable[[str], str],
    counts: text_files.Counts,
    layout: str,
) -> Iterator[tuple[str, bool]]:
    """Yields (text of a line or of a part of a long one, whether a document ends after it).

    Blank parts of a very long line are dropped: they end no document.
    """
    is_blank = True
    for text, _, ends in text_files.read_lines(stream, name, counts):
        text = text.strip()
        is_end = ends and layout == LINES
        # Cleaning drops combining marks: only a line that starts with one can vanish.
        if text and (not unicodedata.combining(text[0]) or preprocess(text)):
            is_blank = ends
        else:
            text = ""
            is_end |= ends and is_blank and layout != FILES
            is_blank |= ends
        if text or is_end:
            yield text, is_end


def split_documents(documents: Sequence[Document], language: str | None) -> list[Document]:
    """Splits the lines of documents into sentences, if a language is given."""
    if language is None:
        return list(documents)
    return [
        [sentence for line in document for sentence in split_sentences(line, language)]
        for document in documents
    ]


# === Blocks ===


def cut_blocks(
    documents: Iterable[tuple[Document, int]],
    size: int,
    split: Callable[[Document, int], Iterable[tuple[bool, Document, int]]] = (
        lambda document, characters: [(False, document, characters)]
    ),
) -> Iterator[tuple[bool, int, list[Document]]]:
    """Yields (is held out, number of the block among its kind, documents) of every block.

    A block has `size` characters and at least two documents: random other documents are drawn from
    it. So a single document at the end joins the previous block.

    Args:
      documents: (document, characters), in order.
      split: see `HeldOut.split`.
    """
    current: list[list[Document]] = [[], []]  # by kind
    previous: list[list[Document]] = [[], []]
    characters, numbers = [0, 0], [0, 0]
    for kind, document, more in (part for one in documents for part in split(*one)):
        current[kind].append(document)
        characters[kind] += more
        if characters[kind] >= size and len(current[kind]) > 1:
            if previous[kind]:
                yield kind, numbers[kind], previous[kind]
                numbers[kind] += 1
            previous[kind], current[kind], characters[kind] = current[kind], [], 0
    for kind in (False, True):
        if previous[kind] and len(current[kind]) == 1:
            previous[kind] += current[kind]
            current[kind] = []
        left = filter(None, (previous[kind], current[kind]))
        for number, block in enumerate(left, numbers[kind]):
            yield kind, number, block
