"""The user's labelled texts: tables in CSV, TSV, JSON lines, JSON arrays or Parquet. No TensorFlow.

Not read by pandas, which fills short rows with empty cells and does not know on which line of the
file a row is.
"""

import collections
import csv
import dataclasses
import functools
import io
import json
import logging
import os
import re
import types
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from albert.errors import DataError, FlagError, first_line, some
from albert.runtime.seeds import child_seed
from albert.storage import files
from albert.tasks import lines
from albert.tasks.glue import Example, gold_label
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
# The first line of a file by Excel in some locales.
_SEPARATOR = re.compile(r'"?sep=(.)"?\r?', re.IGNORECASE)

# Usual names of columns, in lower case; the first one present is used.
TEXTS = ("text", "question", "sentence", "sentence1", "text_a", "premise", "question1", "review",
         "comment", "comment_text", "content", "tweet", "message", "body", "utterance")
PAIRS = ("text_pair", "sentence2", "text_b", "text2", "hypothesis", "question2", "passage",
         "context", "choice", "sentence")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "tag", "score",
          "rating")
MAX_LABELS = 200
# Cells that say that a label is missing, in lower case; then what programs write for a missing or an
# infinite number.
_MISSING = ("", "nan", "-nan", "null", "<na>", "n/a", "#n/a", "na")
_NO_NAMES = ("None", "inf", "-inf", "NaT")
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]|^[\u200c-\u200f]+|[\u200c-\u200f]+$")
_WHOLE_NUMBER = re.compile(r"(-?\d+)(?:\.0+)?")
_ARRAY = re.compile(r"\s*\[.*\]\s*", re.DOTALL)
_YES_OR_NO = dict.fromkeys(("1", "true", "yes", "y"), True) | dict.fromkeys(
    ("0", "false", "no", "n", ""), False
)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, column by column."""

    path: str
    names: Sequence[str]  # of the columns; "" of one without a name
    lines: Sequence[int]  # on which each row begins; of Parquet the row's number
    cells: Callable[[int], Sequence[Any]]  # those of a column by its number, as they were parsed

    def named(self, columns: Iterable[int]) -> str:
        """Returns the names of columns, for messages; the beginnings of those that are texts."""
        names = (self.names[n] for n in columns)
        return ", ".join(n if len(n) <= 30 else f"{n[:30]}..." for n in names if n)[:300]

    def place(self, row: int) -> str:
        """Returns the location of a row, for messages."""
        return f"{self.path}:{' row ' if ending(self.path) == PARQUET else ''}{self.lines[row]}"

    def column(
        self, flag: str, value: str | None, usual: Sequence[str] = (), used: Sequence[int | None] = ()
    ) -> int | None:
        """Returns the column of the flag's value, a name or a number, else one with a usual name.

        Args:
          usual: names in lower case; the first that an unused column has.
        """
        names = list(self.names)
        if value is None:
            names = [None if n in used else name.lower() for n, name in enumerate(names)]
            value = next((name for name in usual if name in names), None)
            if value is None:
                return None
        if names.count(value) > 1:
            raise DataError(f"{self.path}:1: two columns are named {value!r}: rename one, or pass "
                            f"a number as --{flag}")
        if value in names:
            return names.index(value)
        if value.isdecimal() and int(value) < len(names):
            return int(value)
        raise FlagError(f"--{flag}={value}: {self.path} has no such column ({self.named(range(len(names)))})")

    def texts(self, column: int) -> list[str]:
        """Returns the cells of a column as text.

        Raises:
          DataError: one holds a list or an object (file:line).
        """
        cells = list(map(_plain, self.cells(column)))
        for number, cell in enumerate(cells):
            if not isinstance(cell, str):
                kind = {list: "a list", bytes: "bytes that are not UTF-8"}.get(type(cell), "an object")
                raise DataError(f"{self.place(number)}: column {self.names[column]!r} holds {kind}, not text")
        return cells


def _plain(value: Any) -> Any:
    """Returns a parsed value as text, a list of texts, or as it is: a dict, or bytes that are no text."""
    if isinstance(value, str | bytes | dict):
        return value
    if isinstance(value, list):
        return list(map(_plain, value))
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 0 and 0.0 are the same label
    return json.dumps(value) if isinstance(value, bool) else str(value)


# === Reading ===


def ending(path: str) -> str:
    """Returns the ending of a file's name, in lower case, before that of its compression."""
    name, end = os.path.splitext(path.lower())
    return os.path.splitext(name)[1] if end in COMPRESSED else end


def read_table(
    path: str, flag: str, has_header: bool | None = None, encoding: str | None = None,
    delimiter: str | None = None,
) -> Table:
    """Returns the table of a file, whose name determines the format.

    Args:
      flag: named in errors.
      has_header: whether the first row of a *.csv, *.tsv or *.txt file names the columns; otherwise
        their names are numbers from 0. Default: all but *.txt.
      encoding: of text, if not UTF-8.
      delimiter: of columns whose cells may be quoted. By default commas in *.csv, or what else
        separates the names of a header without commas; in *.tsv and *.txt tabs, and no quotes.

    Raises:
      DataError: it is missing, empty or malformed; FlagError: another kind of file.
    """
    kind = ending(path)
    if kind not in KINDS:
        raise FlagError(f"--{flag}={path}: expected a *.csv, *.tsv, *.jsonl, *.json or *.parquet file")
    if kind == PARQUET:
        table = _open_parquet(path, flag)
    else:
        try:
            if kind in _JSON:
                names, rows = _json_rows(path, flag, encoding)
            else:
                has_header = kind != ".txt" if has_header is None else has_header
                names, rows = _delimited_rows(path, flag, has_header, encoding, delimiter)
        except DataError as error:
            if isinstance(error.__cause__, UnicodeDecodeError) and not encoding:
                raise DataError(f"{error}, or pass --encoding=cp1252 (or utf-16) if Excel made it") from error
            raise
        columns = list(zip(*(row for _, row in rows), strict=True))
        table = Table(path, names, [line for line, _ in rows], columns.__getitem__)
    if not table.lines:
        raise DataError(f"{path}: {'no rows below the header' if table.names else 'the file is empty'}")
    return table


def _json_rows(path: str, flag: str, encoding: str | None) -> tuple[list[str], list[tuple[int, list]]]:
    """Returns the names of the columns, and (line, cells) of each row."""
    objects = list(lines.json_values(path, flag, encoding))
    for line, value in objects:
        if not isinstance(value, dict):
            raise DataError(f"{path}:{line}: expected a JSON object, got {value!r:.40}")
    names = list(dict.fromkeys(name for _, row in objects for name in row))
    return names, [(line, [row.get(name, "") for name in names]) for line, row in objects]


def _delimited_rows(
    path: str, flag: str, has_header: bool, encoding: str | None, delimiter: str | None
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Returns the names of the columns, and (line, cells) of each row."""
    text = lines.read_text(path, flag, encoding)
    first = text.partition("\n")[0]
    if separator := _SEPARATOR.fullmatch(first):
        raise DataError(f"{path}:1: remove this line and pass --delimiter='{separator[1]}'")
    if not delimiter and ending(path) == ".csv":
        bare = re.sub(r'"[^"]*"', "", first)
        # Semicolons separate where the decimal point is a comma.
        delimiter = "," if "," in bare or not has_header else max(",;\t|", key=bare.count)
    csv.field_size_limit(len(text) + 1)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter or "\t", strict=True,
                        quoting=csv.QUOTE_MINIMAL if delimiter else csv.QUOTE_NONE)
    numbered, line = [], 1
    try:
        for row in reader:
            if row:
                numbered.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        reason = ('a " opens in this row and is not closed; a " inside of a cell is written ""'
                  if "unexpected end" in str(error) else f"not a row of columns: {error}")
        raise DataError(f"{path}:{line}: {reason}") from error
    first = numbered[0][1] if numbered else []
    names = [name.strip() if has_header else str(i) for i, name in enumerate(first)]
    rows = numbered[has_header:]
    for line, row in rows:
        # Only cells of unnamed columns may be missing, and only empty ones added.
        if any(names[len(row):]) or any(cell.strip() for cell in row[len(names):]):
            raise DataError(
                f"{path}:{line}: {len(row)} columns, the first line has {len(list(filter(None, names)))}; "
                "quote texts with commas or line ends in *.csv, remove tabs from those in *.tsv, or pass "
                "--delimiter=tab if a *.tsv quotes its cells"
            )
        row[:] = row[:len(names)] + [""] * (len(names) - len(row))
    return names, rows


def _open_parquet(path: str, flag: str) -> Table:
    """Returns a table that reads a column when its cells are asked for."""
    with text_files.open_text(path, flag) as stream, structured_files.open_parquet(stream, path) as file:
        names, num_rows = file.schema_arrow.names, file.metadata.num_rows
    if len(names) > len({*names}):
        raise DataError(f"{path}: two columns have the same name: {', '.join(names)}")

    @functools.cache
    def cells(column: int) -> list[Any]:
        values, size = [], 0
        with text_files.open_text(path, flag) as stream, structured_files.open_parquet(stream, path) as file:
            for _, batch in structured_files.batches_of(file, path, names[column], 128):
                found = batch.column(0)  # of a dictionary, each row gets a copy, which counts
                found = found.dictionary_decode() if hasattr(found, "dictionary_decode") else found
                if (size := size + found.nbytes) > lines.MAX_BYTES:
                    raise lines.too_large(path)
                try:
                    values += map(_decoded, found.to_pylist())
                except (ValueError, OverflowError) as error:  # no text, or dates that Python lacks
                    raise DataError(f"{path}: a value after row {len(values)} cannot be read: "
                                    f"{first_line(error)}") from error
        return values

    return Table(path, names, range(1, num_rows + 1), cells)


def _decoded(value: Any) -> Any:
    """Returns bytes as text, if they are: some programs write Parquet without saying what is text."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def write_table(path: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Publishes a *.csv, *.tsv or *.jsonl file."""
    with files.atomic_write(path) as stream:
        if ending(path) in _JSON:
            stream.writelines(_as_text(dict(zip(names, row, strict=True))) + "\n" for row in rows)
            return
        rows = (map(_as_text, row) for row in (names, *rows))
        if ending(path) == ".tsv":  # in which quotes are text, as when it is read
            stream.writelines("\t".join(map(lines.cell, row)) + "\n" for row in rows)
        else:
            # Because of the CR in this terminator, cells with one are quoted.
            lined = types.SimpleNamespace(write=lambda row: stream.write(row.removesuffix("\r\n") + "\n"))
            csv.writer(lined, lineterminator="\r\n").writerows(rows)


def _as_text(value: Any) -> str:
    is_text = value is None or isinstance(value, str)
    return scrub_surrogates((value or "") if is_text else json.dumps(value, ensure_ascii=False, default=str))


# === Columns ===


@dataclasses.dataclass(frozen=True)
class Columns:
    """The numbers of the columns that hold texts and labels."""

    text: int
    pair: int | None = None
    label: int | None = None
    flags: tuple[int, ...] = ()  # columns of labels: each says whether a text has its label

    @property
    def texts(self) -> list[int]:
        return [n for n in (self.text, self.pair) if n is not None]


def find_columns(
    table: Table, text: str | None = None, pair: str | None = None, label: str | None = None,
    needs_label: bool = True, several: Sequence[str] = (), max_texts: int = 2,
) -> Columns:
    """Returns the columns that are named or numbered, else those with usual names, and logs them.

    Without a label's name, two or more columns of 0 and 1, or true and false, are a label each.

    Args:
      needs_label: whether a label is looked for.
      several: one column per label, for multi-label tasks.
      max_texts: 1 if there is no second text.

    Raises:
      UserError: there is no such column, none with a usual name, or two of that name.
    """
    flags = [table.column("label_columns", name) for name in several]
    usual = {"text": TEXTS, "text_pair": PAIRS if max_texts > 1 else (),
             "label": LABELS if needs_label and not flags else ()}
    columns = {
        name: table.column(f"{name}_column", value)
        for name, value in zip(usual, (text, pair, label), strict=True)
    }
    for name in usual:
        if columns[name] is None:
            columns[name] = table.column(f"{name}_column", None, usual[name], (*columns.values(), *flags))
    used = [n for n in (*columns.values(), *flags) if n is not None]
    every = range(len(table.names))
    rest = [n for n in every if table.names[n] and n not in used]
    message = f"{table.path}: columns {table.named(used)}"
    if needs_label and columns["label"] is None and not flags:
        flags = [n for n in rest if all(
            str(_plain(cell)).strip().lower() in ("0", "1", "true", "false") for cell in table.cells(n))]
        flags = flags if len(flags) > 1 else []
        used, rest = used + flags, [n for n in rest if n not in flags]
        message = (f"{table.path}: columns {table.named(used)}; a label each: {len(flags)} "
                   "(--label_column chooses one)")
    missing = [f"--{name}_column" for name in ("text", "label")
               if columns[name] is None and (name == "text" or needs_label and not flags)]
    if missing:
        pair = ", and for pairs --text_pair_column" if columns["text"] is None and max_texts > 1 else ""
        raise FlagError(f"{table.path}: pass {' and '.join(missing)}{pair}; its columns are "
                        f"{table.named(every)}. If these are data, pass --notsv_header, and columns by "
                        "number: --text_column=0")
    if len({*used}) < len(used):
        raise FlagError(f"{table.path}: --text_column, --text_pair_column and those of labels must be "
                        f"different columns, got {', '.join(table.names[n] for n in used)}")
    if unused := table.named(rest):
        message += f"; not used: {unused}"
    # Without a header, columns are named by their numbers.
    known = (*TEXTS, str(text).lower(), *map(str, every))
    if table.names[used[0]].lower() not in known and ending(table.path) not in NAMED:
        message += "; --notsv_header if its first line is data"
    log.info("%s", message)
    return Columns(*columns.values(), tuple(flags))


# === Texts and labels ===


def read_examples(table: Table, columns: Columns, is_complete: bool = True) -> list[Example]:
    """Returns the rows of a table, with collapsed white space.

    A label is a name, a tuple of names where a text may have several, or None if there is none.

    Args:
      is_complete: whether rows that lack a text or a label are left out, and counted in the log.

    Raises:
      DataError: no row is left, or a cell holds no text (file:line).
    """
    texts = [[" ".join(text.split()) for text in table.texts(n)] for n in columns.texts]
    texts += [[None] * len(table.lines)] * (2 - len(texts))
    rows = zip(*texts, _labels(table, columns, is_complete), strict=True)
    examples = [Example(str(row), *cells, table.place(row)) for row, cells in enumerate(rows)]
    if not is_complete:
        return examples
    complete = [one for one in examples if one.text_a and one.label != ""]
    if len(complete) == len(examples):
        return complete
    first = next(one for one in examples if not one.text_a or one.label == "")
    gap = f"column {table.names[columns.label if first.text_a else columns.text]!r} is empty"
    if not complete:
        raise DataError(f"{first.place}: {gap}, and every row has a gap")
    log.warning("%s: skipped %s of %s rows without text or label, the first at %s: %s", table.path,
                f"{len(examples) - len(complete):,}", f"{len(examples):,}", first.place, gap)
    return complete


def _labels(table: Table, columns: Columns, is_complete: bool) -> list[Any]:
    """Returns the label of each row, see `read_examples`."""
    if columns.flags:
        return [_flagged(table, row, columns.flags, is_complete) for row in range(len(table.lines))]
    if columns.label is None:
        return [None] * len(table.lines)
    cells = list(map(_plain, table.cells(columns.label)))
    arrays = [row for row, cell in enumerate(cells) if isinstance(cell, str) and _ARRAY.fullmatch(cell)]
    if arrays and len(arrays) == sum(cell != "" for cell in cells):
        raise DataError(f"{table.place(arrays[0])}: the label {cells[arrays[0]]!r:.60} is a list: write JSON "
                        "lines, or a column for each label (--label_columns)")
    if is_complete and not any(isinstance(cell, list) for cell in cells):
        cells = table.texts(columns.label)
    elif is_complete:
        for row, (cell, parsed) in enumerate(zip(cells, table.cells(columns.label), strict=True)):
            if cell and not isinstance(cell, list):
                raise DataError(f"{table.place(row)}: label {cell!r:.60} is no list, unlike that of others")
            if odd := [one for one in cell and parsed if not isinstance(one, str)]:
                raise DataError(f"{table.place(row)}: a list of labels has their names, not {odd[0]!r}: "
                                "of numbers, make a column for each label (--label_columns)")
    return [tuple(sorted({label_name(str(one)) for one in cell})) if isinstance(cell, list)
            else label_name(str(cell)) for cell in cells]


@functools.lru_cache(1 << 16)
def label_name(text: str) -> str:
    """Returns the name that a label has, however it is written.

    White space collapses, invisible characters go, letters with accents are composed (NFC), and whole
    numbers lose the decimals that pandas adds if a column has gaps.
    """
    name = " ".join(unicodedata.normalize("NFC", _INVISIBLE.sub("", text)).split())
    number = _WHOLE_NUMBER.fullmatch(name)
    return number[1] if number else name


def _flagged(
    table: Table, row: int, columns: Sequence[int], is_complete: bool
) -> tuple[str, ...] | None:
    """Returns the names of the columns that say yes; None if one says neither and need not."""
    labels = []
    for n in columns:
        cell = str(_plain(table.cells(n)[row])).strip().lower()
        is_on = _YES_OR_NO.get(cell.removesuffix(".0"))
        if is_on is None and not is_complete:
            return None
        if is_on is None:
            raise DataError(f"{table.place(row)}: column {table.names[n]!r} must be 1 or 0, true or "
                            f"false, yes or no, or empty, got {cell!r:.40}")
        if is_on:
            labels.append(table.names[n])
    return tuple(labels)


def labels_of(path: str, examples: Sequence[Example]) -> list[str]:
    """Returns the labels that occur, sorted.

    Raises:
      DataError: there is only one, too many, or one that marks a missing value (file:line).
    """
    counts: collections.Counter[str] = collections.Counter()
    for one in examples:
        for name in one.label if isinstance(one.label, tuple) else (one.label,):
            if name.lower() in _MISSING or name in _NO_NAMES:
                raise DataError(f"{one.place}: is the label {name!r} a missing value? Remove the row, or "
                                "name all labels in --label_list")
            counts[name] += 1
    if len(counts) < 2:
        found = f"only one label, {[*counts][0]!r}" if counts else "no label"
        raise DataError(f"{path} has {found}: there is nothing to learn")
    if len(counts) > MAX_LABELS or len(counts) > max(2, len(examples) // 2):
        raise DataError(
            f"{path}: the label has {len(counts):,} different values in {len(examples):,} rows, too many to "
            "be found as labels. Pass --label_column if it is another column, --regression if they are "
            "numbers, or name the labels in --label_list"
        )
    alike = collections.defaultdict(list)
    for label in sorted(counts):
        alike[label.casefold().lstrip("0")].append(label)
    if twins := [" and ".join(names) for names in alike.values() if len(names) > 1]:
        log.warning("%s has labels that differ only by case or leading zeros: %s; they are different "
                    "labels", path, some(twins))
    return sorted(counts, key=int if all(map(_WHOLE_NUMBER.fullmatch, counts)) else str)


def with_known_labels(
    examples: Iterable[Example], labels: Sequence[str], normalize: Callable[[str], str],
    is_strict: bool = True,
) -> list[Example]:
    """Returns the examples with labels out of `labels`, or with numbers for a regression.

    Args:
      labels: in the order of their ids; empty for a regression.
      normalize: preprocesses an unknown label before it is looked up again.
      is_strict: whether a missing or unknown label, or for a regression no number, is an error;
        else the label becomes None.

    Raises:
      DataError: such a label (file:line).
    """
    known = []
    for one in examples:
        names = one.label if isinstance(one.label, tuple) else (one.label or "",)
        try:
            found: Any = tuple(gold_label(name, labels, one.place, normalize) for name in names)
            found = found if names is one.label else found[0]
        except DataError:
            if is_strict:
                raise
            found = None
        known.append(dataclasses.replace(one, label=found))
    return known


# === The split ===


def split_off(
    examples: Sequence[Example], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Returns (training examples, held-out examples), each in the order of the file.

    Texts and seed alone decide, by a hash: an example stays on its side whatever else is in the
    file and whatever its label, and copies of a text stay together. So the fraction held out, of
    all examples and of each label, is `share` up to chance.
    """
    parts: tuple[list[Example], list[Example]] = [], []
    for one in examples:
        parts[child_seed(seed, "held-out rows", *texts_of(one)) < share * 2**64].append(one)
    return parts


def texts_of(example: Example) -> tuple[str, ...]:
    """Returns an example's texts, to compare: equal for copies, whatever their case."""
    return tuple(text.casefold() for text in (example.text_a, example.text_b) if text is not None)
