"""Corpora in whatever form: plain text, JSON lines, Parquet; files, folders, lists. No TensorFlow.

Every form is read as lines, with blank lines that end documents. Parquet is told by its first
bytes, JSON lines by the name or by the first line, and how documents lie in plain text by a sample.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from albert.errors import DataError, some
from albert.storage import files, filesystem
from albert.text import text_files

log = logging.getLogger("albert")

# How documents lie in plain text; the last one says that the files are JSON lines.
AUTO, BLANK_LINES, LINES, FILES, JSON = LAYOUTS = ("auto", "blank_lines", "lines", "files", "json")
_STDIN = "/dev/stdin"

LONGEST_OBJECT = 256 << 20  # bytes of a line of JSON, which is held whole
_SAMPLE = 16 << 20  # bytes of all files that are looked at
_SAMPLED_FILES = 64
_LONG_LINE = 500  # bytes; half of the lines are longer where each is a document
_JSON_NAME = re.compile(r"\.(?:jsonl|ndjson|json)(?:\.(?:gz|bz2|xz|zst|zstd))?$", re.IGNORECASE)
_LINES_A_SLIP = 50  # long lines for each blank one, from which on blank ones end no documents
_OBJECT = re.compile(rb'\{\s*"[^"]*"\s*:')
_PARQUET_ROWS = 256  # read together


@dataclasses.dataclass(frozen=True)
class Form:
    """How documents lie in the files of a corpus; see `recognise`."""

    layout: str = BLANK_LINES
    text_field: str = "text"  # of JSON objects and of Parquet tables
    looks_for_json: bool = True
    language: str | None = None  # lines are split into the sentences of this language

    @property
    def is_json(self) -> bool:
        return self.layout == JSON


# === Which files ===


def find(
    patterns: str, flag: str, find_files: Callable[[str, str], list[str]] = files.find_files,
    is_read_once: bool = False,
) -> list[str]:
    """Returns the files of a comma-separated list of names, globs, folders and `@lists`.

    Of a folder they are all files below it, sorted, without hidden ones. `@names.txt` has a name,
    glob or folder a line, relative to its own folder. `-` is the standard input, where a text is
    read once.

    Raises:
      DataError: there is none, or one cannot be read.
    """
    if is_read_once and patterns.strip() == "-":
        return [_STDIN]
    if is_read_once and is_pipe(patterns):
        return [patterns]

    def found(pattern: str, flag: str, lists: tuple[str, ...] = ()) -> list[str]:
        if pattern == "-":
            raise DataError(f"--{flag}=-: the standard input can be read only once: write it to a "
                            "file first")
        if pattern.startswith("@") and not os.path.exists(pattern):
            lists = (*lists, os.path.realpath(pattern[1:]))
            if lists[-1] in lists[:-1]:
                raise DataError(f"--{flag}: the list {pattern[1:]} names itself")
            names = _listed(pattern[1:], flag)
            return [path for name in names for path in found(name, flag, lists)]
        if os.path.isdir(pattern):
            return [files.require_file(path, flag) for path in _below(pattern, flag)]
        return find_files(pattern, flag)

    return files.expand_globs(patterns, flag, found)


def is_pipe(path: str) -> bool:
    """Whether a path is of a pipe or a device, which can be read only once."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _listed(path: str, flag: str) -> list[str]:
    with text_files.open_text(files.require_file(path, flag), flag) as stream:
        lines = text_files.read_lines(stream, path, text_files.Counts())
        names = [name for text, *_ in lines if (name := text.strip())]
    if not names:
        raise DataError(f"--{flag}: the list {path} names no file")
    return [_beside(path, name) for name in names]


def _beside(path: str, name: str) -> str:
    """Returns a name that a list has, relative to the list's folder; an address as it is."""
    mark = "@" if name.startswith("@") else ""
    name = name.removeprefix("@")
    is_address = filesystem.is_remote(name) or name == "-"
    return mark + (name if is_address else os.path.join(os.path.dirname(path), name))


def _below(folder: str, flag: str) -> list[str]:
    """Returns the files below a folder, in the order of their names."""
    def refuse(error: OSError) -> None:
        raise DataError(f"--{flag}: cannot read {error.filename}: {error.strerror}") from error

    found: list[str] = []
    seen: set[str] = set()  # a symbolic link may lead back to a folder above it
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if os.path.realpath(place) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(place))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += (os.path.join(place, name) for name in names if not name.startswith("."))
    found = sorted(path for path in found if not path.endswith(files.MANIFEST_SUFFIX))
    if not found:
        raise DataError(f"--{flag}: no file below the folder {folder}")
    return found


# === What lies in them ===


@contextlib.contextmanager
def open_lines(
    path: str, form: Form, flag: str = "input_file",
    position: text_files.Position | None = None,
) -> Iterator[tuple[BinaryIO, str]]:
    """Yields (a stream of lines, the layout of its documents); see `as_lines`.

    Args:
      position: tells how much of the file has been read meanwhile.

    Raises:
      DataError: it cannot be read (naming the flag).
    """
    position = position or text_files.Position()
    with text_files.open_raw(path, flag) as stream, position.follow(stream):
        yield as_lines(stream, path, form)


def as_lines(stream: BinaryIO, name: str, form: Form) -> tuple[BinaryIO, str]:
    """Returns a stream as `text_files.as_utf8` does, and the layout of its documents.

    The stream is `stream` itself, at its beginning, where places in it are those in the file. Of
    JSON lines and Parquet each object or row is a document, and its line breaks part lines. A
    layout that is not decided, as of a pipe, is recognised by the beginning, and told.

    Raises:
      DataError: see `as_utf8`; there is no such field; also while it is read.
    """
    text, layout = _as_lines(stream, name, form)
    samples = []
    if layout == AUTO:
        head = text.read(_SAMPLE)
        samples.append(_lines_of(head, len(head) < _SAMPLE))
        text = text_files.as_stream(itertools.chain([head], text_files.chunks(text)))
    if form.layout == AUTO:
        layout, reason = _layout_of(samples, is_each_a_document=False)
        log.info("documents: %s", reason)
    return text, layout


def _as_lines(stream: BinaryIO, name: str, form: Form) -> tuple[BinaryIO, str]:
    """Does what `as_lines` does, but leaves a layout that is not decided."""
    head, text = text_files.decoded(stream, name)
    if head.startswith(text_files.PARQUET):
        if text is not stream:
            raise DataError(f"{name}: Parquet that is packed, or comes from a pipe: write it to a "
                            "file, unpacked")
        return text_files.as_stream(_parquet_documents(stream, name, form)), BLANK_LINES
    if form.is_json or form.looks_for_json and _looks_like_json(head, name):
        return text_files.as_stream(_json_documents(text, name, form)), BLANK_LINES
    return text, form.layout


def size_of_text(path: str, form: Form, flag: str = "input_file") -> int:
    """Returns the bytes of a file's text as `as_lines` gives it; see `text_files.size_of_text`."""
    with text_files.open_raw(path, flag) as stream:
        text, _ = as_lines(stream, path, form)
        if text is stream:
            return os.path.getsize(path)
        return sum(map(len, text_files.chunks(text)))


def _looks_like_json(head: bytes, name: str) -> bool:
    """Whether the name says so, or the first line is an object."""
    if _JSON_NAME.search(name):
        return True
    line, end, _ = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")
    if not _OBJECT.match(line):
        return False
    if not end and len(head) >= text_files.LONGEST_LINE:  # its end is not seen
        return True
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _json_documents(stream: BinaryIO, name: str, form: Form) -> Iterator[bytes]:
    for number in itertools.count(1):
        line = stream.readline(LONGEST_OBJECT)
        if not line:
            return
        if len(line) == LONGEST_OBJECT:
            raise DataError(f"{name}:{number}: a line of more than {LONGEST_OBJECT >> 20} MB: cut "
                            "it, or give plain text, of which a line may be of any length")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            continue
        place = f"{name}:{number}"
        # What is no UTF-8 is kept, to be counted with that of plain text.
        found = files.parse_json_object(line.decode("utf-8", "surrogateescape"), place)
        if form.text_field not in found:
            raise DataError(
                f"{place}: no field {form.text_field!r} (there are: {some(list(found), 12)}): name "
                "one with --text_field, or read plain text with --document_layout=blank_lines"
            )
        yield _document(found[form.text_field], place, form)


def _parquet_documents(stream: BinaryIO, name: str, form: Form) -> Iterator[bytes]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{name}: Parquet needs pyarrow: pip install pyarrow") from error
    number = 0
    try:
        table = pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True)
        names, kinds = table.schema_arrow.names, table.schema_arrow.types
        kind = dict(zip(names, kinds, strict=True)).get(form.text_field)
        if kind is None:
            raise DataError(f"{name}: no column {form.text_field!r} (there are: {some(names, 12)}): "
                            "name one with --text_field")
        if pyarrow.types.is_dictionary(kind):
            kind = kind.value_type
        if not any(map(kind.equals, (pyarrow.string(), pyarrow.large_string(),
                                     pyarrow.string_view()))):
            raise DataError(f"{name}: the column {form.text_field!r} holds no text but {kind}: name "
                            "another with --text_field")
        for batch in table.iter_batches(_PARQUET_ROWS, columns=[form.text_field],
                                        use_threads=False):
            for value in batch.column(0).cast(pyarrow.large_binary()).to_pylist():
                number += 1
                text = None if value is None else value.decode("utf-8", "surrogateescape")
                yield _document(text, f"{name}: row {number}", form)
    except (pyarrow.ArrowException, OSError, EOFError, ValueError) as error:
        detail = " ".join(str(error).split())[:200]
        raise DataError(f"{name}: damaged or cut off: not a whole Parquet file ({detail})"
                        ) from error


def _document(value: Any, place: str, form: Form) -> bytes:
    """Returns a document's lines, without blank ones, and a blank one at the end."""
    if value is None:
        return b"\n"
    if not isinstance(value, str):
        raise DataError(f"{place}: {form.text_field!r} is no text but {type(value).__name__}")
    if "\0" in value:
        raise DataError(f"{place}: a NUL in {form.text_field!r}: this is no text; remove it")
    lines = value.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    text = "".join(f"{line}\n" for line in lines if line.strip()) + "\n"
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair of surrogates, which no text has
        return text.encode("utf-8", "surrogatepass")


# === How documents lie in plain text ===


def recognise(
    paths: Sequence[str], form: Form, break_between_files: bool = True, flag: str = "input_file",
    open_raw: Callable = text_files.open_raw,
) -> tuple[Form, str]:
    """Returns the form with its layout decided, and what decided it, for people to read.

    Where blank lines are in the sample, they end documents; a few among very many long lines are
    taken for slips.

    Args:
      paths: files that can be read twice.
      open_raw: that of `text_files`, or what opens files of other places too.
    """
    if form.layout != AUTO:
        return form, f"as --document_layout={form.layout} says"
    sampled = paths[:: -(-len(paths) // _SAMPLED_FILES)]
    size = _SAMPLE // len(sampled)

    def samples() -> Iterator[list[bytes]]:
        for path in sampled:
            with open_raw(path, flag) as stream:
                text, layout = _as_lines(stream, path, form)
                if layout == AUTO:
                    content = text.read(size)
                    yield _lines_of(content, len(content) < size)

    layout, reason = _layout_of(samples(), len(paths) > 1 and break_between_files)
    return dataclasses.replace(form, layout=layout), reason


def _layout_of(samples: Iterable[list[bytes]], is_each_a_document: bool) -> tuple[str, str]:
    """Returns the layout of plain texts, and what decided it.

    Args:
      samples: lines of each, see `_lines_of`.
      is_each_a_document: if nothing parts the lines of a text.
    """
    plain, blank, lengths = 0, 0, []
    for lines in samples:
        plain += 1
        blank += lines.count(b"")
        lengths += map(len, filter(None, lines))
    usual, layout = statistics.median(lengths or [0]), BLANK_LINES
    has_long_lines = len(lengths) > plain and usual >= _LONG_LINE
    if not plain:
        found = "each JSON object or row of a table is a document"
    elif blank and not (has_long_lines and blank * _LINES_A_SLIP < len(lengths)):
        return BLANK_LINES, "a blank line ends a document"
    elif has_long_lines:
        count = f"{blank} blank lines" if blank else "no blank line"
        found = f"each line is a document ({count} in the sample; {usual:,.0f} bytes a line)"
        layout = LINES
    else:
        which = "each file is a document" if is_each_a_document else "all of it is one document"
        found = f"{which} (no blank line in the sample)"
    return layout, f"{found}; --document_layout decides otherwise"


def _lines_of(content: bytes, is_whole: bool) -> list[bytes]:
    """Returns the lines of a sample, without blank ones at their beginning and end.

    Args:
      is_whole: nothing comes after it; otherwise its last line is cut.
    """
    *lines, last = content.strip().split(b"\n")
    if last and (not lines or is_whole):
        lines.append(last)
    return [line.strip() for line in lines]
