"""Finds the files of a corpus, and how they contain documents.

Parquet is recognized by its first bytes, JSON lines by the name or the first line. In plain text,
blank lines separate documents; where there are none, each line is a document.
"""

import dataclasses
import os
import re

from albert.errors import DataError
from albert.storage import files
from albert.text import structured_files, text_files

# How plain text contains documents; the last one is for JSON lines.
BLANK_LINES, LINES, FILES, JSON = LAYOUTS = ("blank_lines", "lines", "files", "json")

_TABLE_NAME = re.compile(r"\.(?:csv|tsv)(?:\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Form:
    """How the files of a corpus contain documents."""

    layout: str | None = None  # None: by blank lines, or JSON, or each line, as the file is
    text_field: str = "text"  # of JSON objects and Parquet tables
    language: str | None = None  # split lines into sentences of this language

    def reader(self, head: bytes, name: str) -> structured_files.Reader | None:
        """Returns the reader of a file that begins with `head`; None for plain text.

        Raises:
          DataError: it is a CSV, according to its name, and no layout says otherwise.
        """
        if head.startswith(text_files.PARQUET):
            return structured_files.read_parquet
        if not self.layout and _TABLE_NAME.search(name):
            raise DataError(f"{name}: a table, not text: save its texts as JSON lines (pandas.read_csv(...)"
                            '.to_json("texts.jsonl", orient="records", lines=True)), or name it .txt')
        if self.layout == JSON or not self.layout and structured_files.is_json(head, name):
            return structured_files.read_json_lines
        return None


# === Which files ===


def find(patterns: str, flag: str) -> list[str]:
    """Returns the files of a comma-separated list of names, globs and directories.

    A directory means all files below it, sorted, without hidden ones.

    Raises:
      DataError: there is no file, or one cannot be read.
    """
    return files.expand_globs(patterns, flag, _expand)


def _expand(directory: str, flag: str) -> list[str]:
    """Returns the files of a name, glob or directory."""
    if not os.path.isdir(directory):
        return files.find_files(directory, flag)

    def refuse(error: OSError) -> None:
        raise DataError(f"{flag}: cannot read {error.filename}: {error.strerror}") from error

    paths: list[str] = []
    seen: set[str] = set()  # a symbolic link may lead back to a directory above it
    for parent, directories, names in os.walk(directory, onerror=refuse, followlinks=True):
        if os.path.realpath(parent) in seen:
            directories.clear()
            continue
        seen.add(os.path.realpath(parent))
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        paths += (os.path.join(parent, name) for name in names
                  if not (name.startswith(".") or name.endswith(files.BESIDE_RECORDS)))
    if not paths:
        raise DataError(f"{flag}: no file below the directory {directory}")
    return [files.require_file(path, flag) for path in sorted(paths)]
