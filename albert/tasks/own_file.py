"""Your own labelled texts in one file: reading it, and splitting off a held-out part. No TensorFlow.

A file is CSV, TSV or JSON lines. Its columns are found by their names, and its labels are those
that occur.
"""

import collections
import csv
import dataclasses
import io
import itertools
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError, FlagError
from albert.runtime.seeds import child_seed
from albert.storage import files
from albert.tasks import glue
from albert.tasks.glue import Example
from albert.text import text_files
from albert.text.cleaning import scrub_surrogates

log = logging.getLogger("albert")

# What columns are called, in lower case; the first that is there.
TEXTS = ("text", "sentence", "sentence1", "text_a", "premise", "question1", "question", "review",
         "comment", "content", "tweet", "message", "body", "utterance")
PAIRS = ("text_pair", "sentence2", "text_b", "text2", "hypothesis", "question2")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "tag", "score",
          "rating")
MOST_LABELS = 200
_LONGEST_FIELD = 1 << 24  # characters
_PACKED = (".gz", ".bz2", ".xz", ".zst")

Row = tuple[str, ...]  # text, second text if there is one, label if there is one


@dataclasses.dataclass(frozen=True)
class Table:
    """The cells of a file."""

    path: str
    names: Sequence[str]  # of the columns
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]  # on which each row ends


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns hold what, by their names."""

    text: str
    pair: str | None
    label: str | None


def read_table(
    path: str, flag: str, has_header: bool | Callable[[Sequence[Sequence[str]]], bool] = True
) -> Table:
    """Returns the table of a *.csv, *.tsv or *.jsonl file, packed or not.

    Args:
      flag: named in errors.
      has_header: whether the first line of a *.csv or *.tsv file names the columns, or what tells
        it from all lines; else the columns' names are their numbers, from 0.

    Raises:
      DataError: it is absent, empty or malformed; FlagError: another kind of file.
    """
    ending = _ending(path)
    if ending not in (".csv", ".tsv", ".txt", ".jsonl", ".json"):
        raise FlagError(f"--{flag}={path} ends neither in .csv nor in .tsv nor in .jsonl")
    with text_files.open_text(path, flag) as raw:
        stream = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
        try:
            read = _json_rows if is_json(path) else _csv_rows
            found = list(read(stream, path, ending))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text: {error.reason}") from error
    if not found:
        raise DataError(f"{path}: nothing in it")
    if is_json(path):
        names = list(dict.fromkeys(name for _, row in found for name in row))
        rows = [[row.get(name, "") for name in names] for _, row in found]
        return Table(path, names, rows, [line for line, _ in found])
    (first, header), *others = found
    if callable(has_header):
        has_header = has_header([row for _, row in found])
    names = header if has_header else [str(i) for i in range(len(header))]
    others = others if has_header else [(first, header), *others]
    if len(set(names)) < len(names):
        raise DataError(f"{path}:{first}: two columns have the same name ({', '.join(names)[:200]})")
    for line, row in others:
        if len(row) != len(names):
            raise DataError(f"{path}:{line}: {len(row)} columns, the first line has {len(names)}")
    if not others:
        raise DataError(f"{path}: no rows below the names of the columns")
    return Table(path, names, [row for _, row in others], [line for line, _ in others])


def _ending(path: str) -> str:
    bare = next((path.removesuffix(e) for e in _PACKED if path.endswith(e)), path)
    return os.path.splitext(bare)[1]


def is_json(path: str) -> bool:
    """Whether a file's name is that of JSON lines."""
    return _ending(path).startswith(".json")


def _csv_rows(stream: io.TextIOBase, path: str, ending: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    first = stream.readline()
    if ending == ".csv":
        # Where a comma is the decimal point, a semicolon parts columns.
        style = {"delimiter": ";" if first.count(";") > first.count(",") else ",", "strict": True}
    else:
        style = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    reader = csv.reader(itertools.chain([first] if first else [], stream), **style)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not a row of columns: {error}") from error


def _json_rows(stream: io.TextIOBase, path: str, ending: str) -> Iterator[tuple[int, dict]]:
    num_rows = num_replaced = 0
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        values = files.parse_json_object(line, f"{path}:{number}")
        row = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items() if value is not None
        }
        scrubbed = {scrub_surrogates(name): scrub_surrogates(text) for name, text in row.items()}
        num_rows += 1
        num_replaced += scrubbed != row
        yield number, scrubbed
    if num_replaced:
        log.warning("%s: %s of %s rows had half of a surrogate pair, replaced by U+FFFD", path,
                    f"{num_replaced:,}", f"{num_rows:,}")


def find_columns(
    table: Table, text: str | None, pair: str | None, label: str | None, needs_label: bool = True
) -> Columns:
    """Returns the columns that are named, else those whose names tell what they hold.

    Raises:
      FlagError: there is no such column, or none that tells.
    """
    names = list(table.names)
    listed = ", ".join(names)[:300]

    def given(value: str | None, flag: str) -> str | None:
        if value is None or value in names:
            return value
        if value.isdecimal() and int(value) < len(names):
            return names[int(value)]
        raise FlagError(f"--{flag}={value}: {table.path} has no such column ({listed})")

    of_label, of_text = given(label, "label_column"), given(text, "text_column")
    of_pair = given(pair, "text_pair_column")
    lower = {
        name.strip().lower(): name for name in reversed(names)
        if name not in (of_label, of_text, of_pair)
    }

    def known(asked: str | None, usual: Sequence[str]) -> str | None:
        return asked or next((lower[name] for name in usual if name in lower), None)

    of_label, of_text, of_pair = known(of_label, LABELS), known(of_text, TEXTS), known(of_pair, PAIRS)
    left = [name for name in names if name not in (of_label, of_text, of_pair)]
    if of_text is None and len(left) == 1:
        of_text = left.pop()
    if of_label is None and needs_label and of_text is not None and len(left) == 1:
        of_label = left.pop()
    for name, flag in ((of_text, "text_column"), (of_label, "label_column")):
        if name is None and (flag == "text_column" or needs_label):
            raise FlagError(f"{table.path}: give --{flag}, one of its columns: {listed}")
    found = [name for name in (of_text, of_pair, of_label) if name is not None]
    if len(set(found)) < len(found):
        raise FlagError(
            f"{table.path}: --text_column, --text_pair_column and --label_column must be different "
            f"columns, got {', '.join(found)}"
        )
    return Columns(of_text, of_pair, of_label)


def has_header(
    path: str, rows: Sequence[Sequence[str]], text: str | None, pair: str | None,
    label: str | None, is_regression: bool = False, labels: Collection[str] = (),
) -> bool:
    """Returns whether the first row names the columns, and logs it where it is not certain.

    Columns that are given by number tell nothing of it. Then the first row is data if its label
    is that of another row or one of `labels`, or for a regression if it is a number.
    """
    first, others = rows[0], rows[1:]
    numbers = [str(i) for i in range(len(first))]
    given = [value for value in (text, pair, label) if value is not None]
    if not given or not set(given) <= set(numbers):
        return True
    try:
        columns = find_columns(Table(path, numbers, [], []), text, pair, label)
    except FlagError:
        return True  # a name must tell which column holds the labels
    place = int(columns.label)
    value, seen = first[place], {row[place] for row in others if len(row) == len(first)}
    is_data = glue.number(value) is not None if is_regression else value in seen or value in labels
    is_data &= list(first) != numbers  # what pandas calls unnamed columns
    log.info(
        "%s: the first line is taken as %s: %s in column %s; --%stsv_header decides otherwise",
        path, "data, there is no header" if is_data else "the header", repr(value)[:80], place,
        "" if is_data else "no",
    )
    return not is_data


def rows_of(table: Table, columns: Columns) -> list[Row]:
    """Returns text, second text and label of each row, without tabs and line ends.

    Raises:
      DataError: a text or a label is empty (file:line).
    """
    wanted = [name for name in (columns.text, columns.pair, columns.label) if name is not None]
    places = [table.names.index(name) for name in wanted]
    rows = []
    for line, cells in zip(table.lines, table.rows, strict=True):
        row = tuple(" ".join(cells[place].split()) for place in places)
        for name, cell in zip(wanted, row, strict=True):
            if not cell and name != columns.pair:
                raise DataError(f"{table.path}:{line}: nothing in column {name!r}")
        rows.append(row)
    return rows


def labels_of(rows: Sequence[Row], table: Table, columns: Columns) -> list[str]:
    """Returns the labels that occur, in order.

    Raises:
      DataError: they are one, or too many to be labels.
    """
    counts = collections.Counter(row[-1] for row in rows)
    where = f"{table.path}: column {columns.label!r}"
    if len(counts) < 2:
        raise DataError(f"{where} has one label only, {rows[0][-1]!r}: there is nothing to learn")
    if len(counts) > MOST_LABELS or len(counts) > max(2, len(rows) // 2):
        raise DataError(
            f"{where} has {len(counts)} different values in {len(rows)} rows: give --label_column, "
            "or --regression if they are numbers"
        )
    are_numbers = all(label.lstrip("-").isdecimal() for label in counts)
    return sorted(counts, key=int if are_numbers else str)


def examples_of(
    table: Table, rows: Sequence[Row], labels: Sequence[str], normalize: Callable[[str], str] = str
) -> list[Example]:
    """Returns the rows as examples.

    Args:
      labels: in the order of their ids; empty for a regression.
      normalize: cleans a label that is not one of them before it is looked up again.

    Raises:
      DataError: a label is none of them, or of a regression not a number (file:line).
    """
    return [
        Example(
            str(line), text, pair[0] if pair else None,
            glue.gold_label(label, labels, f"{table.path}:{line}", normalize),
        )
        for line, (text, *pair, label) in zip(table.lines, rows, strict=True)
    ]


def split_off(
    examples: Sequence[Example], share: float, seed: int, by_label: bool
) -> tuple[list[Example], list[Example]]:
    """Returns (training examples, held-out examples), each in the order of the file.

    Of each label the same share is held out. Examples with the same texts stay together. A label
    that only one text has stays in training.
    """
    groups: dict[tuple[str, str | None], list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault((example.text_a, example.text_b), []).append(number)
    strata: dict[Any, list[list[int]]] = {}
    for numbers in groups.values():
        strata.setdefault(examples[numbers[0]].label if by_label else "", []).append(numbers)
    rng = np.random.default_rng(child_seed(seed, "held-out rows"))
    held_out: set[int] = set()
    for _, stratum in sorted(strata.items()):
        count = min(max(1, round(share * len(stratum))), len(stratum) - 1)
        for group in rng.permutation(len(stratum))[:count].tolist():
            held_out.update(stratum[group])
    train, dev = [], []
    for number, example in enumerate(examples):
        (dev if number in held_out else train).append(example)
    return train, dev


# === Settings by the size of model and data ===


def learning_rate(hidden_size: int) -> float:
    """Returns a rate that suits models of this width; larger ones want a lower one."""
    for least, rate in ((2048, 1e-5), (768, 3e-5), (256, 1e-4)):
        if hidden_size >= least:
            return rate
    return 3e-4


def epochs(num_rows: int) -> float:
    """Returns how often to read so many rows: few rows more often."""
    for least, count in ((5000, 3.0), (1000, 5.0)):
        if num_rows >= least:
            return count
    return 10.0


def row_length(lengths: Sequence[int], most: int) -> int:
    """Returns the places of a row in which 99 % of the texts fit whole; a multiple of 16."""
    wanted = int(np.quantile(np.asarray(lengths), 0.99, method="higher"))
    return min(max(32, -(-wanted // 16) * 16), most)
