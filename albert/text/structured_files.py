"""JSON lines and Parquet: each object or row is a document, whose text is in one field."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from albert.errors import DataError, some
from albert.storage import files
from albert.text import text_files

LONGEST_OBJECT = 256 << 20  # maximum bytes of a line of JSON, or of a few rows of Parquet
_JSON_NAME = re.compile(r"\.(?:jsonl|ndjson|json)(?:\.(?:gz|bz2|xz|zst|zstd))?$", re.IGNORECASE)
_OBJECT = re.compile(rb'\{\s*"[^"]*"\s*:')
_PARQUET_ROWS = 32  # read together, and held in memory
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")

# Yields (file:line or row, text) of each document. The text, as bytes, is its nonblank lines and a
# blank line, so that the size of a corpus does not depend on its format.
Reader = Callable[[BinaryIO, str, str], Iterator[tuple[str, bytes]]]


def is_json(head: bytes, name: str) -> bool:
    """Whether a file is JSON lines, by its name or its first line."""
    if _JSON_NAME.search(name):
        return True
    line, end, _ = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")
    if not _OBJECT.match(line):
        return False
    if not end and len(head) >= text_files.LONGEST_LINE:  # the line is longer
        return True
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def read_json_lines(stream: BinaryIO, name: str, text_field: str) -> Iterator[tuple[str, bytes]]:
    """Yields (file:line, text) of each object; see `Reader`.

    Raises:
      DataError: a line is not an object, or has no text in this field.
    """
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST_OBJECT), b""), 1):
        place = f"{name}:{number}"
        if len(line) == LONGEST_OBJECT:
            raise DataError(f"{place}: a line of more than {LONGEST_OBJECT >> 20} MB: divide it, or "
                            "use plain text, which has no limit")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            continue
        # Invalid bytes stay, and are counted like those of plain text.
        values = files.parse_json_object(line.decode("utf-8", "surrogateescape"), place)
        if text_field not in values:
            raise DataError(
                f"{place}: no field {text_field!r} (there are: {some(list(values), 12)}): name one "
                "with --text_field, or read plain text with --document_layout=blank_lines"
            )
        yield place, _text_of(values[text_field], place, text_field)


def read_parquet(stream: BinaryIO, name: str, text_field: str) -> Iterator[tuple[str, bytes]]:
    """Yields (file: row, text) of each row; see `Reader`.

    Raises:
      DataError: the file is damaged, or has no column of this name with text.
    """
    with open_parquet(stream, name) as file:
        _check_column(file.schema_arrow, name, text_field)
        for first, batch in batches_of(file, name, text_field, _PARQUET_ROWS):
            if batch.nbytes > LONGEST_OBJECT:
                raise DataError(f"{name}: row {first}: more than {LONGEST_OBJECT >> 20} MB of text in "
                                f"{len(batch)} rows: divide the texts")
            for number, value in enumerate(batch.column(0).cast("large_binary").to_pylist(), first):
                text = None if value is None else value.decode("utf-8", "surrogateescape")
                place = f"{name}: row {number}"
                yield place, _text_of(text, place, text_field)


@contextlib.contextmanager
def open_parquet(stream: BinaryIO, name: str) -> Iterator[Any]:
    """Yields the `ParquetFile` of a stream, whose columns are read in the block.

    Raises:
      DataError: the file is damaged.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{name}: Parquet needs pyarrow: pip install pyarrow") from error
    if not stream.seekable():
        raise DataError(f"{name}: Parquet that is compressed, or comes from a pipe: write it to an "
                        "uncompressed file")
    try:
        yield pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError, EOFError, ValueError) as error:
        detail = " ".join(str(error).split())[:200]
        raise DataError(f"{name}: damaged or truncated Parquet file ({detail})") from error


def batches_of(file: Any, name: str, column: str, rows: int) -> Iterator[tuple[int, Any]]:
    """Yields (number of its first row, batch) for a column of a `ParquetFile`, in batches of `rows` rows.

    Raises:
      DataError: rows are missing. Pages may be damaged unnoticed, as their headers have no checksum.
    """
    count, expected = 0, file.metadata.num_rows
    for batch in file.iter_batches(rows, columns=[column], use_threads=False):
        yield count + 1, batch
        count += len(batch)
    if count != expected:
        raise DataError(f"{name}: damaged Parquet file: {count:,} of {expected:,} rows can be read")


def _check_column(schema: Any, name: str, text_field: str) -> None:
    from pyarrow import types

    kind = dict(zip(schema.names, schema.types, strict=True)).get(text_field)
    if kind is None:
        raise DataError(f"{name}: no column {text_field!r} (there are: {some(schema.names, 12)}): "
                        "name one with --text_field")
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise DataError(f"{name}: the column {text_field!r} holds {kind}, not text: name another "
                        "with --text_field")


def _text_of(value: Any, place: str, text_field: str) -> bytes:
    if value is None:
        return b"\n"
    if not isinstance(value, str):
        raise DataError(f"{place}: {text_field!r} is {type(value).__name__}, not text")
    if "\0" in value:
        raise DataError(f"{place}: a NUL character in {text_field!r}: this is not text; remove it")
    lines = value.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    text = "".join(f"{line}\n" for line in lines if line.strip()) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError:  # invalid UTF-8, or half of a surrogate pair ("\ud83d")
        return _SURROGATE.sub(b"\xff", text.encode("utf-8", "surrogatepass"))
