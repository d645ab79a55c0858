"""Plain text -> documents of sentences, and the one-sentence-a-line file made of them.

The file format of pretraining text everywhere in the toolkit: one sentence a
line, a blank line between documents; see `text_files`.
"""

import dataclasses
import logging

from albert.data import files, text_files
from albert.errors import DataError
from albert.own_text.sentences import split_sentences

log = logging.getLogger("albert")

# Documents are what is held out, from pretraining and from the labelled task;
# a text with fewer than this is cut into pseudo-documents.
MIN_DOCUMENTS = 3
PSEUDO_DOCUMENT_SENTENCES = 50
MIN_SENTENCES = 30  # less text than this can be neither held out nor learned from


@dataclasses.dataclass(frozen=True)
class Document:
    """A run of sentences that belong together."""

    name: str  # where it is from, for messages and the split
    part: str  # which part of the text it belongs to, a class of the labelled task
    sentences: list[str]


@dataclasses.dataclass(frozen=True)
class Text:
    """What was read, with what a user should know about the reading."""

    documents: list[Document]
    bytes: int
    invalid_utf8_lines: int  # decoded with U+FFFD
    is_cut: bool  # documents are pseudo-documents of ours


def read_text_file(path: str) -> Text:
    """Reads one sentence or paragraph a line, blank line between documents.

    Lines that are not UTF-8 are kept with U+FFFD for what cannot be decoded,
    counted, and reported in one warning. The documents of the first half of
    the file are part "first", the others "second".

    Raises:
      DataError: see `text_files`; less than `MIN_SENTENCES` sentences.
    """
    blocks, counts = _read_blocks(path)
    sentences = sum(map(len, blocks))
    if sentences < MIN_SENTENCES:
        raise DataError(
            f"{path}: {sentences} sentences; at least {MIN_SENTENCES} are needed "
            "(one sentence or paragraph a line, blank line between documents)"
        )
    if counts.bad_utf8_lines:
        log.warning("%s: %d lines are not UTF-8; what cannot be decoded became U+FFFD",
                    path, counts.bad_utf8_lines)
    is_cut = len(blocks) < MIN_DOCUMENTS
    if is_cut:
        blocks = _cut(path, blocks)
    half = (len(blocks) + 1) // 2
    documents = [
        Document(f"document {i + 1}", "first" if i < half else "second", block)
        for i, block in enumerate(blocks)
    ]
    return Text(documents, counts.bytes, counts.bad_utf8_lines, is_cut)


def _read_blocks(path: str) -> tuple[list[list[str]], text_files.Counts]:
    """Returns the sentences of each document, and what was met while reading."""
    blocks: list[list[str]] = [[]]
    counts, is_blank = text_files.Counts(), True
    with text_files.open_text(path) as stream:
        for text, _, ends in text_files.read_lines(stream, path, counts):
            if text.strip():
                blocks[-1] += split_sentences(text)
                is_blank = False
            elif ends and is_blank and blocks[-1]:
                blocks.append([])
            is_blank |= ends
    return [block for block in blocks if block], counts


def _cut(path: str, blocks: list[list[str]]) -> list[list[str]]:
    """Cuts a text of very few documents into pseudo-documents, with a warning."""
    count = sum(map(len, blocks))
    size = min(PSEUDO_DOCUMENT_SENTENCES, count // 10)
    pieces = [b[i : i + size] for b in blocks for i in range(0, len(b), size)]
    log.warning(
        "%s: %s; cut into %d pseudo-documents of about %d sentences, so that some can be held "
        "out. Put a blank line between documents if the text has any",
        path, "no blank line, so one document" if len(blocks) == 1 else "only two documents",
        len(pieces), size,
    )
    return pieces


def write_corpus(path: str, documents: list[Document]) -> None:
    """Publishes the documents, one sentence a line, a blank line between documents."""
    with files.atomic_write(path) as stream:
        for i, document in enumerate(documents):
            stream.write("\n" if i else "")
            stream.writelines(f"{sentence}\n" for sentence in document.sentences)


def count_words(documents: list[Document]) -> int:
    """Returns the number of white-space separated words."""
    return sum(len(s.split()) for document in documents for s in document.sentences)
