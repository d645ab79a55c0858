"""Your own labelled texts: tables, what their columns hold, and a held-out part. No TensorFlow.

A table is CSV, TSV or JSON lines. In --train_file, columns are found by their names, and the
labels are those that occur; with --task_name=tsv, flags name both.
"""

import collections
import contextlib
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
from albert.formats import known_tasks
from albert.runtime.seeds import child_seed
from albert.storage import files
from albert.tasks import glue
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels
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
    """The numbers of the columns that hold texts and labels."""

    text: int
    pair: int | None
    label: int | None


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
    if _ending(path) not in (".csv", ".tsv", ".txt", ".jsonl", ".json"):
        raise FlagError(f"--{flag}={path} ends neither in .csv nor in .tsv nor in .jsonl")
    if is_json(path):
        numbered = list(_json_rows(path, flag))
    elif _ending(path) == ".csv":
        numbered = list(_csv_rows(path, flag))
    else:
        numbered = list(glue.read_tsv(path, is_strict=True))
    if not numbered:
        raise DataError(f"{path}: nothing in it")
    if is_json(path):
        names = list(dict.fromkeys(name for _, row in numbered for name in row))
        rows = [[row.get(name, "") for name in names] for _, row in numbered]
        return Table(path, names, rows, [line for line, _ in numbered])
    names = numbered[0][1]
    if callable(has_header):
        has_header = has_header([row for _, row in numbered])
    if has_header:
        del numbered[0]
    else:
        names = [str(i) for i in range(len(names))]
    for line, row in numbered:
        if len(row) != len(names):
            raise DataError(
                f"{path}:{line}: {len(row)} columns, the first line has {len(names)}; quote texts "
                "with commas or line ends in *.csv, and remove tabs from those in *.tsv"
            )
    if not numbered:
        raise DataError(f"{path}: no rows below the names of the columns")
    return Table(path, names, [row for _, row in numbered], [line for line, _ in numbered])


def _ending(path: str) -> str:
    bare = next((path.removesuffix(e) for e in _PACKED if path.endswith(e)), path)
    return os.path.splitext(bare)[1]


def is_json(path: str) -> bool:
    """Whether a file's name is that of JSON lines."""
    return _ending(path).startswith(".json")


def _csv_rows(path: str, flag: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    with _open_utf8(path, flag) as stream:
        first = stream.readline()
        # Where a comma is the decimal point, a semicolon separates columns.
        delimiter = ";" if first.count(";") > first.count(",") else ","
        reader = csv.reader(
            itertools.chain([first] if first else [], stream), delimiter=delimiter, strict=True
        )
        try:
            for row in filter(None, reader):
                yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: not a row of columns: {error}") from error


def _json_rows(path: str, flag: str) -> Iterator[tuple[int, dict]]:
    num_rows = num_replaced = 0
    with _open_utf8(path, flag) as stream:
        for number, line in enumerate(stream, start=1):
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


@contextlib.contextmanager
def _open_utf8(path: str, flag: str) -> Iterator[io.TextIOBase]:
    with text_files.open_text(path, flag) as raw:
        try:
            yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text: {error.reason}") from error


def find_columns(
    table: Table, text: str | None, pair: str | None, label: str | None, needs_label: bool = True
) -> Columns:
    """Returns the columns that are named or numbered, else those whose names tell what they hold.

    Raises:
      UserError: there is no such column, or none that tells.
    """
    given = [
        _column(table, value, flag) for value, flag in
        ((text, "text_column"), (pair, "text_pair_column"), (label, "label_column"))
    ]
    numbers = {
        name.strip().lower(): number for number, name in reversed(list(enumerate(table.names)))
        if number not in given
    }

    def known(asked: int | None, usual: Sequence[str]) -> int | None:
        if asked is not None:
            return asked
        return next((numbers[name] for name in usual if name in numbers), None)

    of_text, of_pair, of_label = (
        known(asked, usual) for asked, usual in zip(given, (TEXTS, PAIRS, LABELS), strict=True)
    )
    left = [n for n in range(len(table.names)) if n not in (of_text, of_pair, of_label)]
    if of_text is None and len(left) == 1:
        of_text = left.pop()
    if of_label is None and needs_label and of_text is not None and len(left) == 1:
        of_label = left.pop()
    missing = "text" if of_text is None else "label" if of_label is None and needs_label else None
    if missing:
        raise FlagError(
            f"{table.path}: give --{missing}_column, one of its columns: {_listed(table)}"
        )
    return _different(table, Columns(of_text, of_pair, of_label))


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
    raise FlagError(f"--{flag}={value}: {table.path} has no such column ({_listed(table)})")


def _listed(table: Table) -> str:
    return ", ".join(table.names)[:300]


def _different(table: Table, columns: Columns) -> Columns:
    used = [n for n in (columns.text, columns.pair, columns.label) if n is not None]
    if len(set(used)) < len(used):
        raise FlagError(
            f"{table.path}: --text_column, --text_pair_column and --label_column must be different "
            f"columns, got {', '.join(table.names[n] for n in used)}"
        )
    return columns


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
    place = columns.label
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
    """Returns text, second text and label of each row, without surplus white space.

    Raises:
      DataError: a text or a label is empty (file:line).
    """
    used = [n for n in (columns.text, columns.pair, columns.label) if n is not None]
    rows = []
    for line, cells in zip(table.lines, table.rows, strict=True):
        rows.append(tuple(" ".join(cells[n].split()) for n in used))
        for n, cell in zip(used, rows[-1], strict=True):
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


def read_folder(
    data_dir: str,
    splits: Sequence[str],
    *,
    labels: Sequence[str],
    text: str,
    text_pair: str | None,
    label: str | None,
    has_header: bool = True,
    normalize: Callable[[str], str] = str,
) -> FineTuningData:
    """Returns the examples of --task_name=tsv: of train.tsv, dev.tsv and test.tsv of a folder.

    Args:
      labels: in the order of their ids; empty for a regression.
      text, text_pair, label: columns, by the header's name or by number from 0. Labels of test.tsv
        are not read.

    Raises:
      DataError: a file is absent, empty or malformed; FlagError: there is no such column.
    """
    examples = {}
    for split in splits:
        path = os.path.join(data_dir, f"{split}.tsv")
        if not os.path.isfile(path):
            raise DataError(f"no such file: {path}; --data_dir must hold the file {split}.tsv")
        table = read_table(path, "data_dir", has_header)
        columns = _different(table, Columns(
            _column(table, text, "text_column"),
            _column(table, text_pair, "text_pair_column"),
            None if split == "test" else _column(table, label, "label_column"),
        ))
        if has_header:
            _check_header(table, columns, labels, is_certain=text in table.names)
        used = [n for n in (columns.text, columns.pair, columns.label) if n is not None]
        rows = [tuple(cells[n] for n in used) for cells in table.rows]
        examples[split] = examples_of(table, columns, rows, labels, normalize)
        log.info("%s: %s examples", path, f"{len(rows):,}")
        if split == "train":
            warn_of_labels(path, [example.label for example in examples[split]], labels)
    return FineTuningData(
        known_tasks.TSV, examples, tuple(labels), {"labels": list(labels) or None}
    )


def _check_header(
    table: Table, columns: Columns, labels: Sequence[str], is_certain: bool
) -> None:
    """Refuses a file without a header: its first example would be lost without a word."""
    if columns.label is None:
        if not is_certain:
            log.info("%s: the first line is taken as the header; --notsv_header if it is data",
                     table.path)
        return
    name = table.names[columns.label]
    if name in labels or (not labels and glue.number(name) is not None):
        raise DataError(
            f"{table.path}:1: a header line is expected, this is data: "
            f"{table.names[0][:40]!r} ...; give --notsv_header"
        )


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
