"""Finds the files of a corpus, and detects how they contain documents.

Parquet is recognized by its first bytes, JSON lines by the name or the first line, and the layout of
plain text by a sample.
"""

import dataclasses
import itertools
import logging
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from albert.errors import DataError
from albert.storage import files, filesystem
from albert.text import structured_files, text_files

log = logging.getLogger("albert")

# How plain text contains documents; the last one is for JSON lines.
AUTO, BLANK_LINES, LINES, FILES, JSON = LAYOUTS = ("auto", "blank_lines", "lines", "files", "json")
_STDIN = "/dev/stdin"

_SAMPLE = 16 << 20  # bytes of all files
_SAMPLED_FILES = 64
_LONG_LINE = 500  # bytes; lines are documents if half of them are longer
_MAX_STRAY = 50  # blank lines are strays if there are more long lines per blank one


@dataclasses.dataclass(frozen=True)
class Form:
    """How the files of a corpus contain documents; see `recognize`."""

    layout: str = BLANK_LINES
    text_field: str = "text"  # of JSON objects and Parquet tables
    detects_json: bool = True
    language: str | None = None  # split lines into sentences of this language

    def reader(self, head: bytes, name: str) -> structured_files.Reader | None:
        """Returns the reader of a file that begins with `head`; None for plain text."""
        if head.startswith(text_files.PARQUET):
            return structured_files.read_parquet
        if self.layout == JSON or self.detects_json and structured_files.is_json(head, name):
            return structured_files.read_json_lines
        return None


# === Which files ===


def find(patterns: str, flag: str, is_read_once: bool = False) -> list[str]:
    """Returns the files of a comma-separated list of names, globs, directories and `@lists`.

    A directory means all files below it, sorted, without hidden ones. `@names.txt` has a name,
    glob or directory on each line, relative to the file's directory. `-` is the standard input.

    Args:
      is_read_once: the standard input and pipes are allowed.

    Raises:
      DataError: there is no file, or one cannot be read.
    """
    if is_read_once and patterns.strip() == "-":
        return [_STDIN]
    if is_read_once and is_pipe(patterns):
        return [patterns]
    return files.expand_globs(patterns, flag, _expand)


def is_pipe(path: str) -> bool:
    """Whether a path is a pipe or a device, which can be read only once."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _expand(pattern: str, flag: str, lists: tuple[str, ...] = ()) -> list[str]:
    """Returns the files of a name, glob, directory or list; `lists` are those that contain it."""
    if pattern == "-":
        raise DataError(f"--{flag}=-: the standard input can be read only once: write it to a file "
                        "first")
    if pattern.startswith("@") and not os.path.exists(pattern):
        is_remote = filesystem.is_remote(pattern[1:])
        path = pattern[1:] if is_remote else os.path.realpath(pattern[1:])
        if path in lists:
            raise DataError(f"--{flag}: the list {pattern[1:]} names itself")
        names = _read_list(pattern[1:], flag)
        return [file for name in names for file in _expand(name, flag, (*lists, path))]
    if filesystem.is_remote(pattern):
        if set("*?[") & set(pattern) or not filesystem.is_dir(pattern):
            return files.find_files(pattern, flag)
        names = filesystem.files_below(pattern)
        return _visible((f"{pattern.rstrip('/')}/{name}" for name in names), pattern, flag)
    if os.path.isdir(pattern):
        return [files.require_file(path, flag) for path in _files_below(pattern, flag)]
    return files.find_files(pattern, flag)


def _read_list(path: str, flag: str) -> list[str]:
    """Returns the names in a list; relative ones with the directory of the list."""
    with text_files.open_text(files.require_file(path, flag), flag) as stream:
        lines = text_files.read_lines(stream, path, text_files.ReadingCounts())
        names = [name for text, _ in lines if (name := text.strip())]
    if not names:
        raise DataError(f"--{flag}: the list {path} names no file")
    directory, paths = os.path.dirname(path), []
    for name in names:
        mark, name = ("@", name[1:]) if name.startswith("@") else ("", name)
        is_address = filesystem.is_remote(name) or name == "-"
        paths.append(mark + (name if is_address else os.path.join(directory, name)))
    return paths


def _files_below(directory: str, flag: str) -> list[str]:
    def refuse(error: OSError) -> None:
        raise DataError(f"--{flag}: cannot read {error.filename}: {error.strerror}") from error

    paths: list[str] = []
    seen: set[str] = set()  # a symbolic link may lead back to a directory above it
    for parent, directories, names in os.walk(directory, onerror=refuse, followlinks=True):
        if os.path.realpath(parent) in seen:
            directories.clear()
            continue
        seen.add(os.path.realpath(parent))
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        paths += (os.path.join(parent, name) for name in names if not name.startswith("."))
    return _visible(paths, directory, flag)


def _visible(paths: Iterable[str], directory: str, flag: str) -> list[str]:
    """Returns the text files below a directory, sorted; a DataError if there are none."""
    visible = sorted(
        path for path in paths if not path.endswith(files.BESIDE_RECORDS)
        and "/." not in path.removeprefix(directory)
    )
    if not visible:
        raise DataError(f"--{flag}: no file below the directory {directory}")
    return visible


# === Layouts of plain text ===


def recognize(paths: Sequence[str], form: Form, break_between_files: bool = True) -> Form:
    """Returns the form with a layout that is detected from a sample, and logged; see `_layout_of`.

    The layout of pipes remains `AUTO` until they are read.
    """
    if form.layout != AUTO or any(map(is_pipe, paths)):
        return form
    sampled = paths[:: -(-len(paths) // _SAMPLED_FILES)]
    size = _SAMPLE // len(sampled)

    def samples() -> Iterator[bytes]:
        for path in sampled:
            with text_files.open_file(path) as file:
                stream, head = text_files.decode(file, path)
                if form.reader(head, path) is None:
                    yield stream.read(size)

    layout = _layout_of(samples(), size, len(paths) > 1 and break_between_files)
    return dataclasses.replace(form, layout=layout)


def recognize_stream(stream: BinaryIO, is_plain: bool) -> tuple[BinaryIO, str]:
    """Returns a stream that cannot seek, at its beginning, and the layout of its text."""
    samples = []
    if is_plain:
        samples = [stream.read(_SAMPLE)]
        stream = text_files.as_stream(itertools.chain(samples, text_files.chunks(stream)))
    return stream, _layout_of(samples, _SAMPLE, is_each_a_document=False)


def _layout_of(samples: Iterable[bytes], size: int, is_each_a_document: bool) -> str:
    """Returns the layout of plain texts, and logs the reason.

    Blank lines end documents, unless they are a few strays among very many long lines.

    Args:
      samples: the first bytes of each text.
      size: a sample of this size is not the complete text.
      is_each_a_document: whether a text without blank or long lines is a document.
    """
    num_texts, blank, lengths = 0, 0, []
    for sample in samples:
        num_texts += 1
        content = sample.strip()
        lines = [line.strip() for line in content.split(b"\n")] if content else []
        if len(sample) == size and len(lines) > 1:
            lines.pop()  # which may be incomplete
        blank += lines.count(b"")
        lengths += map(len, filter(None, lines))
    median, layout = statistics.median(lengths or [0]), BLANK_LINES
    has_long_lines = len(lengths) > num_texts and median >= _LONG_LINE
    if not num_texts:
        reason = "each JSON object or row of a table is a document"
    elif blank and not (has_long_lines and blank * _MAX_STRAY < len(lengths)):
        reason = "a blank line ends a document"
    elif has_long_lines:
        layout, count = LINES, f"{blank} blank lines" if blank else "no blank line"
        reason = f"each line is a document ({count} in the sample; {median:,.0f} bytes a line)"
    else:
        which = "each file is a document" if is_each_a_document else "all of it is one document"
        reason = f"{which} (no blank line in the sample)"
    log.info("documents: %s; --document_layout overrides this", reason)
    return layout
