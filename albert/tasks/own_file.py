"""Your own labelled texts: tables, what their columns hold, and a held-out part. No TensorFlow.

A table is CSV, TSV or JSON lines. Columns are found by their names.
"""

import collections
import csv
import dataclasses
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError, FlagError
from albert.runtime.seeds import child_seed
from albert.storage import files
from albert.tasks import glue, lines
from albert.tasks.glue import Example
from albert.text.cleaning import scrub_surrogates

log = logging.getLogger("albert")

# What columns are called, in lower case; the first that is there.
TEXTS = ("text", "sentence", "sentence1", "text_a", "premise", "question1", "question", "review",
         "comment", "content", "tweet", "message", "body", "utterance")
PAIRS = ("text_pair", "sentence2", "text_b", "text2", "hypothesis", "question2")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "tag", "score",
          "rating")
MOST_LABELS = 200
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
    """The numbers of the columns that hold texts and labels."""

    text: int
    pair: int | None
    label: int | None

    @property
    def used(self) -> list[int]:
        return [n for n in (self.text, self.pair, self.label) if n is not None]


def read_table(
    path: str, flag: str, has_header: Callable[[Sequence[Sequence[str]]], bool] = lambda rows: True
) -> Table:
    """Returns the table of a *.csv, *.tsv or *.jsonl file, packed or not.

    Args:
      flag: named in errors.
      has_header: whether the first of all rows of a *.csv or *.tsv file names the columns; else
        the columns' names are their numbers, from 0.

    Raises:
      DataError: it is absent, empty or malformed; FlagError: another kind of file.
    """
    if is_json(path):
        numbered = list(_json_rows(path, flag))
        names = list(dict.fromkeys(name for _, row in numbered for name in row))
        numbered = [(line, [row.get(name, "") for name in names]) for line, row in numbered]
    elif _ending(path) in (".csv", ".tsv", ".txt"):
        read = _csv_rows if _ending(path) == ".csv" else _tsv_rows
        numbered = list(read(path, flag))
        names = numbered[0][1] if numbered else []
        if not numbered or has_header([row for _, row in numbered]):
            del numbered[:1]
        else:
            names = [str(i) for i in range(len(names))]
    else:
        raise FlagError(f"--{flag}={path} ends neither in .csv nor in .tsv nor in .jsonl")
    if not numbered:
        problem = "no rows below the names of the columns" if names else "nothing in it"
        raise DataError(f"{path}: {problem}")
    for line, row in numbered:
        if len(row) != len(names):
            raise DataError(
                f"{path}:{line}: {len(row)} columns, the first line has {len(names)}; quote texts "
                "with commas or line ends in *.csv, and remove tabs from those in *.tsv"
            )
    return Table(path, names, [row for _, row in numbered], [line for line, _ in numbered])


def _ending(path: str) -> str:
    bare = next((path.removesuffix(e) for e in _PACKED if path.endswith(e)), path)
    return os.path.splitext(bare)[1]


def is_json(path: str) -> bool:
    """Whether a file's name is that of JSON lines."""
    return _ending(path).startswith(".json")


def _tsv_rows(path: str, flag: str) -> Iterator[tuple[int, list[str]]]:
    for number, text in lines.read_lines(path, flag):
        if text := text.rstrip("\r\n"):
            yield number, text.split("\t")


def _csv_rows(path: str, flag: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(lines.MAX_LINE)
    texts = (text for _, text in lines.read_lines(path, flag))
    first = next(texts, "")
    # Where a comma is the decimal point, a semicolon separates columns.
    delimiter = ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(itertools.chain([first], texts), delimiter=delimiter, strict=True)
    try:
        for row in filter(None, reader):
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not a row of columns: {error}") from error


def _json_rows(path: str, flag: str) -> Iterator[tuple[int, dict]]:
    num_rows = num_replaced = 0
    for number, line in lines.read_lines(path, flag):
        if not line.strip():
            continue
        values = files.parse_json_object(line, f"{path}:{number}")
        row = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items() if value is not None
        }
        scrubbed = {scrub_surrogates(k): scrub_surrogates(v) for k, v in row.items()}
        num_rows += 1
        num_replaced += scrubbed != row
        yield number, scrubbed
    if num_replaced:
        log.warning("%s: %s of %s rows had half of a surrogate pair, replaced by U+FFFD", path,
                    f"{num_replaced:,}", f"{num_rows:,}")


def find_columns(
    table: Table, text: str | None, pair: str | None, label: str | None, needs_label: bool = True
) -> Columns:
    """Returns the columns that are named or numbered, else those with a usual name.

    Labels are left out if they aren't needed.

    Raises:
      UserError: there is no such column, or none with a usual name.
    """
    found = [_column(table, text, "text_column"), _column(table, pair, "text_pair_column")]
    found.append(_column(table, label, "label_column") if needs_label else None)
    numbers = {
        name.strip().lower(): number for number, name in reversed(list(enumerate(table.names)))
        if number not in found
    }
    for which, usual in enumerate((TEXTS, PAIRS, LABELS)):
        if found[which] is None:
            found[which] = next((numbers[name] for name in usual if name in numbers), None)
    left = [number for number in range(len(table.names)) if number not in found]
    if found[0] is None and len(left) == 1:
        found[0] = left.pop()
    if not needs_label:
        found[2] = None
    elif found[2] is None and found[0] is not None and len(left) == 1:
        found[2] = left.pop()
    for number, name in ((found[0], "text"), (found[2] if needs_label else 0, "label")):
        if number is None:
            raise FlagError(
                f"{table.path}: give --{name}_column, one of its columns: "
                f"{', '.join(table.names)[:300]}"
            )
    columns = Columns(*found)
    if len(set(columns.used)) < len(columns.used):
        raise FlagError(
            f"{table.path}: --text_column, --text_pair_column and --label_column must be different "
            f"columns, got {', '.join(table.names[n] for n in columns.used)}"
        )
    return columns


def _column(table: Table, value: str | None, flag: str) -> int | None:
    """Returns the column of a name, or else of a number."""
    if value is None:
        return None
    count = table.names.count(value)
    if count > 1:
        raise DataError(f"{table.path}:1: two columns are named {value!r}; give a number: --{flag}")
    if count:
        return table.names.index(value)
    if value.isdecimal() and int(value) < len(table.names):
        return int(value)
    names = ", ".join(table.names)[:300]
    raise FlagError(f"--{flag}={value}: {table.path} has no such column ({names})")


def has_header(
    path: str, rows: Sequence[Sequence[str]], text: str | None, pair: str | None,
    label: str | None, is_regression: bool = False,
) -> bool:
    """Returns whether the first row names the columns, and logs it where it is not certain.

    If columns are given by number, the first row is data if its label
    is that of another row, or for a regression if it is a number.
    """
    first, others = rows[0], rows[1:]
    numbers = [str(i) for i in range(len(first))]
    given = [value for value in (text, pair, label) if value is not None]
    if not given or not set(given) <= set(numbers):
        return True
    try:
        columns = find_columns(Table(path, numbers, [], []), text, pair, label)
    except FlagError:
        return True  # only a name shows which column holds the labels
    place = columns.label
    value, seen = first[place], {row[place] for row in others if len(row) == len(first)}
    is_data = glue.number(value) is not None if is_regression else value in seen
    is_data &= list(first) != numbers  # what pandas calls unnamed columns
    kind, opposite = ("data, there is no header", "") if is_data else ("the header", "no")
    log.info("%s: the first line is taken as %s: %s in column %s; --%stsv_header decides otherwise",
             path, kind, repr(value)[:80], place, opposite)
    return not is_data


def rows_of(table: Table, columns: Columns) -> list[Row]:
    """Returns text, second text and label of each row, without surplus white space.

    Raises:
      DataError: a text or a label is empty (file:line).
    """
    rows = []
    for line, cells in zip(table.lines, table.rows, strict=True):
        rows.append(tuple(" ".join(cells[n].split()) for n in columns.used))
        for n, cell in zip(columns.used, rows[-1], strict=True):
            if not cell and n != columns.pair:
                raise DataError(f"{table.path}:{line}: nothing in column {table.names[n]!r}")
    return rows


def labels_of(rows: Sequence[Row], table: Table, columns: Columns) -> list[str]:
    """Returns the labels that occur, in order.

    Raises:
      DataError: there is only one, or too many to be labels.
    """
    counts = collections.Counter(row[-1] for row in rows)
    where = f"{table.path}: column {table.names[columns.label]!r}"
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
    table: Table, columns: Columns, rows: Sequence[Row], labels: Sequence[str],
    normalize: Callable[[str], str] = str,
) -> list[Example]:
    """Returns the rows as examples; without a column of labels, with the first label, or 0.

    Args:
      labels: in the order of their ids; empty for a regression.
      normalize: cleans a label that is not one of them before it is looked up again.

    Raises:
      DataError: a label is none of them, or of a regression not a number (file:line).
    """
    examples = []
    for number, (line, row) in enumerate(zip(table.lines, rows, strict=True)):
        label: str | float = labels[0] if labels else 0.0
        if columns.label is not None:
            label = glue.gold_label(row[-1], labels, f"{table.path}:{line}", normalize)
        pair = None if columns.pair is None else row[1]
        examples.append(Example(str(number), row[0], pair, label))
    return examples


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
