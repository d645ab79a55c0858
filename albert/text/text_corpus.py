"""Any text -> documents of sentences, and the one-sentence-a-line file made of them.

The file format of pretraining text everywhere in the toolkit: one sentence a
line, a blank line between documents; see `corpus_files`. A text that is too large to be held
is written to a file first. Then a labelled task is of a sample of it.
"""

import collections
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from albert.errors import DataError
from albert.runtime.progress import Progress
from albert.storage import files
from albert.text import corpus_files, text_files
from albert.text.documents import ReadingCounts, read_documents

log = logging.getLogger("albert")

# The labelled task holds out documents: for it, a text of fewer is cut into pseudo-documents.
MIN_DOCUMENTS = 3
PSEUDO_DOCUMENT_SENTENCES = 50
MIN_SENTENCES = 30  # less text than this can be neither held out nor learned from
MOST_HELD = 16 << 20  # characters; a larger text is read from a file again
_SAMPLE = 8 << 20  # characters of a larger text that the labelled task is made of
_PIECE = 1000  # sentences of a long document that are held out together

Sentences = list[str]


@dataclasses.dataclass(frozen=True)
class Document:
    """A run of sentences that belong together."""

    name: str  # where it is from, for messages and the split
    part: str  # which part of the text it belongs to, a class of the labelled task
    sentences: Sentences


@dataclasses.dataclass
class Counts:
    """How much text there is."""

    documents: int = 0
    sentences: int = 0
    words: int = 0  # with white space between them
    characters: int = 0

    def add(self, sentences: Sentences) -> None:
        """Counts a document."""
        self.documents += 1
        self.sentences += len(sentences)
        self.words += sum(len(sentence.split()) for sentence in sentences)
        self.characters += sum(map(len, sentences))

    def told(self) -> dict[str, int]:
        """Returns what people are told."""
        return {"documents": self.documents, "sentences": self.sentences, "words": self.words}


def count(documents: Iterable[Document]) -> Counts:
    """Returns how much text is in documents."""
    counts = Counts()
    for document in documents:
        counts.add(document.sentences)
    return counts


@dataclasses.dataclass
class Text:
    """What was read, with what a user should know about the reading.

    Attributes:
      documents: all of it; of a large text the sample for the labelled task, if there is one.
      spool: the file that holds all of a large text, else None.
    """

    documents: list[Document]
    counts: Counts
    reading: ReadingCounts
    is_cut: bool  # documents are pseudo-documents of ours
    dropped: dict[str, Counts]  # what a filter left out, by its reason
    spool: str | None = None
    size: int = PSEUDO_DOCUMENT_SENTENCES  # sentences of a piece of the spool

    def write(self, path: str, kept: Sequence[Document] | None) -> Counts:
        """Publishes the text as `write_corpus`; returns how much it is.

        Args:
          kept: what is left of the `documents`, or None for all of them.
        """
        if self.spool is None:
            kept = self.documents if kept is None else kept
            write_corpus(path, (document.sentences for document in kept))
            return count(kept)
        rest = {}
        if kept is not None:
            # What is left of a document has its name; ends that were cut off have others.
            rest = {document.name: [] for document in self.documents}
            rest |= {document.name: document.sentences for document in kept}
        counts, progress = Counts(), Progress("writing", "MB", self.counts.characters / 1e6)

        def documents() -> Iterator[Sentences]:
            for document in _joined(self._pieces(), rest, self.is_cut):
                counts.add(document)
                progress.show(counts.characters / 1e6)
                yield document

        write_corpus(path, documents())
        progress.end()
        return counts

    def _pieces(self) -> Iterator[Document]:
        return _read_pieces(self.spool, self.size, self.counts)


# What is wrong with a document, or None.
Filter = Callable[[Sentences], str | None]


def read_text(
    paths: Sequence[str], form: corpus_files.Form, spool: str,
    filters: Sequence[Filter] = (), for_task: bool = True,
) -> Text:
    """Reads a text in any form. Documents of its first half are part "first", the others "second".

    Lines that are not UTF-8 are kept with U+FFFD for what cannot be decoded,
    counted, and reported in one warning.

    Args:
      form: with its layout decided.
      spool: name of a file that is written if the text is large.
      filters: a document is dropped for the first reason that one of them gives.
      for_task: a labelled task will hold out documents: a text of very few is cut into more.

    Raises:
      DataError: see `corpus_files`; less than `MIN_SENTENCES` sentences.
    """
    reading, counts = ReadingCounts(), Counts()
    dropped: dict[str, Counts] = collections.defaultdict(Counts)
    found = _kept_documents(paths, form, filters, reading, counts, dropped)
    held: list[Sentences] = []
    for document in found:
        held.append(document)
        if counts.characters > MOST_HELD:
            write_corpus(spool, itertools.chain(held, found))
            held.clear()
    name = ", ".join(paths[:3]) + f" and {len(paths) - 3:,} more" * (len(paths) > 3)
    _check(name, counts, reading, dropped)
    is_cut = for_task and counts.documents - reading.cut_documents < MIN_DOCUMENTS
    text = Text([], counts, reading, is_cut, dict(dropped))
    if held:
        text.documents = _named(_cut(name, held) if is_cut else held)
    else:
        if is_cut:
            _say_cut(name, counts.documents, -(-counts.sentences // text.size), text.size)
        else:
            text.size = _PIECE
        text.spool = spool
        if for_task:
            every = -(-counts.characters // _SAMPLE)
            text.documents = list(itertools.islice(text._pieces(), every // 2, None, every))
    return text


def _kept_documents(
    paths: Sequence[str], form: corpus_files.Form, filters: Sequence[Filter],
    reading: ReadingCounts, counts: Counts, dropped: dict[str, Counts],
) -> Iterator[Sentences]:
    """Yields the documents that no filter drops; counts all of them, and says how far it is."""
    position = text_files.Position()
    size = None if any(map(corpus_files.is_pipe, paths)) else sum(map(os.path.getsize, paths))
    progress = Progress("reading", "MB", size and size / 1e6)
    for document in read_documents(paths, str, reading, form=form, position=position):
        if reason := next(filter(None, (check(document) for check in filters)), None):
            dropped[reason].add(document)
        else:
            counts.add(document)
            yield document
        # Of a pipe, what is kept is all that is known.
        progress.show(lambda: (counts.characters if size is None else position.bytes) / 1e6)
    progress.end()


def _check(
    name: str, counts: Counts, reading: ReadingCounts, dropped: dict[str, Counts]
) -> None:
    if counts.sentences < MIN_SENTENCES:
        raise DataError(
            f"{name}: {counts.sentences} sentences; at least {MIN_SENTENCES} are needed "
            "(one sentence or paragraph a line, blank line between documents)"
            + "".join(f"; {left_out.documents:,} documents left out: {why}"
                      for why, left_out in dropped.items())
        )
    if reading.bad_utf8_lines:
        log.warning("%s: %d lines are not UTF-8; what cannot be decoded became U+FFFD",
                    name, reading.bad_utf8_lines)


def _named(blocks: list[Sentences]) -> list[Document]:
    half = (len(blocks) + 1) // 2
    return [
        Document(f"document {i + 1}", "first" if i < half else "second", block)
        for i, block in enumerate(blocks)
    ]


def _cut(name: str, blocks: list[Sentences]) -> list[Sentences]:
    """Cuts a text of very few documents into pseudo-documents, with a warning."""
    size = min(PSEUDO_DOCUMENT_SENTENCES, sum(map(len, blocks)) // 10)
    pieces = [b[i : i + size] for b in blocks for i in range(0, len(b), size)]
    _say_cut(name, len(blocks), len(pieces), size)
    return pieces


def _say_cut(name: str, documents: int, pieces: int, size: int) -> None:
    log.warning(
        "%s: %s; cut into %d pseudo-documents of about %d sentences, so that some can be held "
        "out. Put a blank line between documents if the text has any",
        name, "no blank line, so one document" if documents == 1 else "only two documents",
        pieces, size,
    )


# === Large texts ===


def _read_pieces(path: str, size: int, counts: Counts) -> Iterator[Document]:
    """Yields the pieces of a file of `write_corpus`, of `size` sentences at most."""
    with open(path, encoding="utf-8", newline="\n") as stream:
        lines, seen = (line[:-1] for line in stream), 0
        for number in range(counts.documents):
            sentences = itertools.takewhile(len, lines)
            for piece in itertools.count(1):
                if not (some := list(itertools.islice(sentences, size))):
                    break
                part = "first" if 2 * seen < counts.sentences else "second"
                seen += len(some)
                yield Document(f"document {number + 1}, piece {piece}", part, some)


def _joined(
    pieces: Iterable[Document], rest: dict[str, Sentences], is_cut: bool
) -> Iterator[Sentences]:
    """Yields the documents of pieces, some of them changed; a piece without text ends one."""
    document: Sentences = []
    for piece in pieces:
        if piece.name.endswith(" piece 1") or is_cut:
            if document:
                yield document
            document = []
        kept = rest.get(piece.name, piece.sentences)
        document = document + kept if kept else document
        if len(kept) < len(piece.sentences) and document:
            yield document
            document = []
    if document:
        yield document


def write_corpus(path: str, documents: Iterable[Sentences]) -> None:
    """Publishes the documents, one sentence a line, a blank line between documents."""
    with files.atomic_write(path) as stream:
        for i, document in enumerate(documents):
            stream.write("\n" if i else "")
            stream.writelines(f"{sentence}\n" for sentence in document)
