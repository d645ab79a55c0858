"""Streams a corpus as documents, and gathers documents into blocks."""

import hashlib
import io
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from albert.text import text_files
from albert.text.corpus_files import BLANK_LINES, FILES, LINES, Form
from albert.text.sentences import split_sentences
from albert.text.text_files import ReadingCounts

Document = list[str]  # its lines, none of them blank

LONGEST_DOCUMENT = 8 << 20  # characters; longer ones are divided, so that memory stays bounded


# === Reading ===


def read_documents(
    paths: Sequence[str],
    preprocess: Callable[[str], str],
    counts: ReadingCounts,
    break_between_files: bool = True,
    form: Form = Form(),
) -> Iterator[Document]:
    """Yields the documents of files in order, updating `counts`.

    Copies of earlier documents are dropped if the text is raw, that is, split into sentences later.

    Args:
      preprocess: `FullTokenizer.preprocess`; a line of which it leaves nothing is blank.
      break_between_files: whether documents end with their file; otherwise the next file's first
        lines continue them, as in the original.
      form: how the files contain documents.

    Raises:
      DataError: a file cannot be read or, at the end, too many lines are not UTF-8.
    """
    document: Document = []
    size, seen = 0, set[bytes]()
    lines = _read_files(paths, preprocess, counts, break_between_files, form)
    for text, is_end in lines:
        if text:
            document.append(text)
            size += len(text)
        if document and (is_end or size >= LONGEST_DOCUMENT):
            digest = hashlib.blake2b("\n".join(document).encode("utf-8", "replace"), digest_size=12).digest()
            counts.cut_documents += not is_end
            if form.language and is_end and digest in seen:
                counts.copies += 1
            else:
                seen.add(digest)
                counts.documents += 1
                yield document
            document, size = [], 0
    counts.check()


def _read_files(
    paths: Sequence[str], preprocess: Callable[[str], str], counts: ReadingCounts,
    break_between_files: bool, form: Form,
) -> Iterator[tuple[str, bool]]:
    """Yields (text, whether a document ends after it) for each line; the text may be empty."""
    for path in paths:
        with text_files.open_text(path) as stream:
            head = text_files.head_of(stream)
            layout, reader = form.layout or BLANK_LINES, form.reader(head, path)
            if not (reader or form.layout) and _has_lines_alone(head):
                layout = LINES
                counts.files_of_lines.append(path)
            if reader:
                for place, content in reader(stream, path, form.text_field):
                    lines = text_files.read_lines(io.BytesIO(content), place, counts)
                    yield from _drop_blank(lines, preprocess, FILES)
                    yield "", True
            else:
                lines = text_files.read_lines(stream, path, counts)
                yield from _drop_blank(lines, preprocess, layout)
        if break_between_files or layout == FILES:
            yield "", True
    yield "", True


def _has_lines_alone(head: bytes) -> bool:
    """Whether there are several lines, and no blank one between them."""
    text = head.decode("utf-8", "replace").strip()
    return "\n" in text and not re.search(r"\n\s*\n", text)


def _drop_blank(
    lines: Iterable[tuple[str, bool]], preprocess: Callable[[str], str], layout: str
) -> Iterator[tuple[str, bool]]:
    """Yields (text of a line or of a part of a long one, whether a document ends after it).

    Blank parts of a very long line are dropped, since they don't end documents.
    """
    is_blank = True
    for text, is_line_end in lines:
        text = text.strip()
        is_end = is_line_end and layout == LINES
        # Preprocessing drops combining marks, so only a line that starts with one can become empty.
        if text and (not unicodedata.combining(text[0]) or preprocess(text)):
            is_blank = is_line_end
        else:
            text = ""
            is_end |= is_line_end and is_blank and layout != FILES
            is_blank |= is_line_end
        if text or is_end:
            yield text, is_end


def size_of_text(path: str, form: Form = Form()) -> int:
    """Returns the size of a file's text in bytes of UTF-8.

    Compressed files and other formats are read, which takes little time compared with what follows.

    Raises:
      DataError: see `read_documents`.
    """
    with text_files.open_text(path) as stream:
        if reader := form.reader(text_files.head_of(stream), path):
            return sum(len(content) for _, content in reader(stream, path, form.text_field))
        if stream.seekable():
            return os.path.getsize(path)
        return sum(map(len, iter(lambda: stream.read(1 << 16), b"")))


def sentences_of(document: Sequence[str], language: str | None) -> Document:
    """Returns the sentences of a document, or its lines if there is no language."""
    if language is None:
        return list(document)
    return [sentence for line in document for sentence in split_sentences(line, language)]


# === Blocks ===


def cut_blocks(
    documents: Iterable[tuple[bool, Document]], size: int
) -> Iterator[tuple[bool, int, list[Document]]]:
    """Yields (is held out, number of the block of its kind, documents) for each block.

    A block has `size` characters and at least two documents, since random other documents are drawn
    from it. So a single document at the end joins the previous block.

    Args:
      documents: (is held out, document), in order.
    """
    current: list[list[Document]] = [[], []]  # by kind
    previous: list[list[Document]] = [[], []]
    characters, numbers = [0, 0], [0, 0]
    for kind, document in documents:
        current[kind].append(document)
        characters[kind] += sum(map(len, document))
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
