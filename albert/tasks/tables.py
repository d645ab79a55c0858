"""Tables: CSV, TSV, JSON lines, JSON arrays and Parquet, compressed or not. No TensorFlow."""

import csv
import dataclasses
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from albert.errors import DataError, FlagError, first_line
from albert.storage import files
from albert.tasks import lines
from albert.text import structured_files, text_files
from albert.text.cleaning import scrub_surrogates

log = logging.getLogger("albert")

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_JSON = (".json", ".jsonl", ".ndjson")
_DELIMITED = (".csv", ".tsv", ".txt")
PARQUET = ".parquet"
NAMED = (*_JSON, PARQUET)  # whose rows, or schema, name the columns
KINDS = (*_DELIMITED, *NAMED)
WRITTEN = (".csv", ".tsv", *_JSON)
MAX_BYTES = 512 << 20  # of a table in memory, which a small file can exceed
# The first line of a file by Excel in some locales.
_SEPARATOR = re.compile(r'"?sep=(.)"?\r?\n?', re.IGNORECASE | re.DOTALL)

Rows = list[tuple[int, list[str]]]  # (number of the line on which a row begins, cells)


@dataclasses.dataclass(frozen=True)
class Table:
    """The cells of a file."""

    path: str
    names: Sequence[str]  # of the columns; "" of one without a name
    rows: Sequence[Sequence[Any]]  # as they were parsed; see `cell`
    lines: Sequence[int]  # on which each row begins; of Parquet the row's number

    @property
    def named(self) -> str:
        """The names of the columns, for messages; the beginnings of those that are texts."""
        return ", ".join(n if len(n) <= 30 else f"{n[:30]}..." for n in self.names if n)[:300]

    def cell(self, row: int, column: int) -> Any:
        """Returns a cell as text, or a list of texts or a dict."""
        return _cell(self.rows[row][column])

    def place(self, row: int) -> str:
        """Returns the location of a row, for messages."""
        return f"{self.path}:{' row ' if ending(self.path) == PARQUET else ''}{self.lines[row]}"


def has_header(path: str, given: bool | None) -> bool:
    """Returns --tsv_header if it is given; by default every table has a header, except *.txt."""
    return ending(path) != ".txt" if given is None else given


def read_table(
    path: str, flag: str, has_header: bool = True, encoding: str | None = None,
    delimiter: str | None = None,
) -> Table:
    """Returns the table of a file, whose name determines the format.

    Args:
      flag: named in errors.
      has_header: whether the first row of a *.csv, *.tsv or *.txt file names the columns; otherwise
        their names are numbers from 0.
      encoding: of text, if not UTF-8.
      delimiter: of columns whose cells may be quoted. By default commas in *.csv, or what else
        separates the names of a header without commas; in *.tsv and *.txt tabs, and no quotes.

    Raises:
      DataError: it is missing, empty or malformed; FlagError: another kind of file.
    """
    try:
        names, numbered = _read(path, flag, has_header, encoding, delimiter)
    except text_files.Utf16Error as error:
        raise DataError(f"{error}, or give --encoding=utf-16") from error
    except DataError as error:
        if isinstance(error.__cause__, UnicodeDecodeError) and not encoding:
            raise DataError(f"{error}, or give --encoding=cp1252 if Excel wrote it") from error
        raise
    if not numbered:
        raise DataError(f"{path}: {'no rows below the header' if names else 'the file is empty'}")
    return Table(path, names, [row for _, row in numbered], [line for line, _ in numbered])


def _read(
    path: str, flag: str, has_header: bool, encoding: str | None, delimiter: str | None
) -> tuple[list[str], Rows]:
    kind = ending(path)
    if kind in _DELIMITED:
        numbered = _delimited_rows(path, flag, has_header, encoding, delimiter)
        names = [name.strip() for name in numbered[0][1]] if numbered else []
        if has_header:
            del numbered[:1]
        else:
            names = [str(i) for i in range(len(names))]
        return names, [(n, _fitting(row, names, f"{path}:{n}")) for n, row in numbered]
    if kind not in NAMED:
        raise FlagError(f"--{flag}={path}: expected a *.csv, *.tsv, *.jsonl, *.json or *.parquet file")
    objects = list(_parquet_rows(path, flag) if kind == PARQUET else _json_rows(path, flag, encoding))
    names = list(dict.fromkeys(name for _, row in objects for name in row))
    return names, [(line, [row.get(name, "") for name in names]) for line, row in objects]


def ending(path: str) -> str:
    """Returns the ending that determines a file's format, in lower case."""
    bare = next((path.removesuffix(e) for e in COMPRESSED if path.endswith(e)), path)
    return os.path.splitext(bare)[1].lower()


def _fitting(row: list[str], names: Sequence[str], place: str) -> list[str]:
    """Returns a row with a cell for each column; only cells of unnamed columns may be missing."""
    size = len(names)
    if any(cell.strip() for cell in row[size:]) or any(names[len(row):]):
        raise DataError(
            f"{place}: {len(row)} columns, the first line has {len(list(filter(None, names)))}; "
            "quote texts with commas or line ends in *.csv, remove tabs from those in *.tsv, or give "
            "--delimiter=tab if a *.tsv quotes its cells"
        )
    return row[:size] + [""] * (size - len(row))


# === CSV and TSV ===


def _delimited_rows(
    path: str, flag: str, has_header: bool, encoding: str | None, delimiter: str | None
) -> Rows:
    texts = [text for _, text in lines.read_lines(path, flag, encoding=encoding)]
    first = texts[0] if texts else ""
    if separator := _SEPARATOR.fullmatch(first):
        raise DataError(f"{path}:1: remove this line and give --delimiter='{separator[1]}'")
    if not delimiter and ending(path) == ".csv":
        bare = re.sub(r'"[^"]*"', "", first)
        # Semicolons separate where the decimal point is a comma.
        delimiter = "," if "," in bare or not has_header else max(",;\t|", key=bare.count)
    if delimiter:
        return _csv_rows(texts, delimiter, path)
    return [
        (number, text.rstrip("\r\n").split("\t")) for number, text in enumerate(texts, 1)
        if text.rstrip("\r\n")
    ]


def _csv_rows(texts: Iterable[str], delimiter: str, path: str) -> Rows:
    csv.field_size_limit(lines.MAX_LINE)
    reader, rows, start = csv.reader(texts, delimiter=delimiter, strict=True), [], 1
    try:
        for row in reader:
            if row:
                rows.append((start, row))
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f'{path}:{start}: not a row of columns: {error}; does a " open here?') from error
    return rows


# === JSON and Parquet ===


def _json_rows(path: str, flag: str, encoding: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    num_rows = num_replaced = 0
    for line, values in lines.json_values(path, flag, encoding):
        if not isinstance(values, dict):
            raise DataError(f"{path}:{line}: expected a JSON object, got {values!r:.40}")
        text = json.dumps(values, ensure_ascii=False)
        num_rows, num_replaced = num_rows + 1, num_replaced + (scrub_surrogates(text) != text)
        yield line, {scrub_surrogates(name): value for name, value in values.items()}
    if num_replaced:
        log.warning("%s: replaced lone surrogates by U+FFFD in %s of %s rows", path,
                    f"{num_replaced:,}", f"{num_rows:,}")


def _parquet_rows(path: str, flag: str) -> Iterator[tuple[int, dict[str, Any]]]:
    number = size = 0
    with text_files.open_file(path, flag) as stream:
        for batch in structured_files.parquet_batches(stream, path):
            if (size := size + batch.nbytes) > MAX_BYTES:
                raise DataError(f"{path}: more than {MAX_BYTES >> 20} MB when it is unpacked: keep the "
                                "columns that are needed, or divide it")
            if len(names := batch.schema.names) > len({*names}):
                raise DataError(f"{path}: two columns have the same name: {', '.join(names)}")
            try:
                rows = batch.to_pylist()
            except (ValueError, OverflowError) as error:  # such as bytes that are no text, or dates that Python lacks
                raise DataError(f"{path}: a value after row {number} cannot be read: "
                                f"{first_line(error)}") from error
            yield from enumerate(rows, number + 1)
            number += len(rows)


def _cell(value: Any) -> Any:
    """Returns a parsed value as text, a list of texts, or a dict."""
    if isinstance(value, str):
        return scrub_surrogates(value)
    if isinstance(value, list):
        return [_cell(one) for one in value]
    if isinstance(value, dict):
        return value
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 0 and 0.0 are the same label
    return json.dumps(value) if isinstance(value, bool) else str(value)


# === Writing ===


def write_table(path: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Publishes a *.csv, *.tsv or *.jsonl file."""
    with files.atomic_write(path) as stream:
        if ending(path) in _JSON:
            if len(names) > len({*names}):
                raise DataError(f"{path}: two columns have the same name: {', '.join(names)}")
            objects = (dict(zip(names, row, strict=True)) for row in rows)
            stream.writelines(_as_text(one) + "\n" for one in objects)
            return
        delimiter = "\t" if ending(path) == ".tsv" else ","
        writer = csv.writer(stream, lineterminator="\n", delimiter=delimiter)
        writer.writerow(names)
        writer.writerows(map(_as_text, row) for row in rows)


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return scrub_surrogates(value or "")
    return scrub_surrogates(json.dumps(value, ensure_ascii=False, default=str))
