"""The user's labelled texts: columns of a table, found by name, and a held-out part. No TensorFlow."""

import ast
import collections
import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError, FlagError
from albert.runtime.seeds import child_seed
from albert.tasks import glue
from albert.tasks.glue import Example
from albert.tasks.tables import Table

log = logging.getLogger("albert")

# Common names of columns, in lower case; the first one present is used.
TEXTS = ("text", "sentence", "sentence1", "text_a", "premise", "question1", "question", "review",
         "comment", "content", "tweet", "message", "body", "utterance")
PAIRS = ("text_pair", "sentence2", "text_b", "text2", "hypothesis", "question2")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "tag", "score",
          "rating")
MAX_LABELS = 200
_WHOLE_NUMBER = re.compile(r"(-?\d+)(?:\.0+)?")

# Text, second text if any, label if any (a tuple if there may be several).
Row = tuple[Any, ...]
_FLAGS = dict.fromkeys(("1", "true", "yes", "y"), True) | dict.fromkeys(
    ("0", "false", "no", "n", ""), False
)


@dataclasses.dataclass(frozen=True)
class Columns:
    """The numbers of the columns that hold texts and labels."""

    text: int
    pair: int | None
    label: int | None
    flags: tuple[int, ...] = ()  # columns of labels: each says whether a text has its label

    @property
    def texts(self) -> list[int]:
        return [n for n in (self.text, self.pair) if n is not None]


def find_columns(
    table: Table, text: str | None, pair: str | None, label: str | None, needs_label: bool = True,
    several: Sequence[str] = (),
) -> Columns:
    """Returns the columns that are named or numbered, else those with common names.

    Args:
      needs_label: whether a label is looked for.
      several: one column per label, for multi-label tasks.

    Raises:
      UserError: there is no such column, or none with a common name.
    """
    columns = [_column(table, text, "text_column"), _column(table, pair, "text_pair_column")]
    flags = tuple(_column(table, name, "label_columns") for name in several if needs_label)
    needs_label &= not flags
    columns.append(_column(table, label, "label_column") if needs_label else None)
    numbers = {
        name.lower(): number for number, name in reversed(list(enumerate(table.names)))
        if number not in (*columns, *flags)
    }
    for which, common in enumerate((TEXTS, PAIRS, LABELS)):
        if columns[which] is None:
            columns[which] = next((numbers[name] for name in common if name in numbers), None)
    left = [n for n, name in enumerate(table.names) if name and n not in (*columns, *flags)]
    if columns[0] is None and len(left) == 1:
        columns[0] = left.pop()
    if not needs_label:
        columns[2] = None
    elif columns[2] is None and columns[0] is not None and len(left) == 1:
        columns[2] = left.pop()
    for number, name in ((columns[0], "text"), (columns[2] if needs_label else 0, "label")):
        if number is None:
            raise FlagError(f"{table.path}: give --{name}_column; its columns are {table.named}; or "
                            "numbers from 0, if these are data")
    used = [n for n in (*columns, *flags) if n is not None]
    if len(set(used)) < len(used):
        raise FlagError(
            f"{table.path}: --text_column, --text_pair_column and those of labels must be different "
            f"columns, got {', '.join(table.names[n] for n in used)}"
        )
    return Columns(*columns, flags)


def _column(table: Table, value: str | None, flag: str) -> int | None:
    """Returns the column of a name, or else of a number."""
    if value is None:
        return None
    count = table.names.count(value)
    if count > 1:
        raise DataError(f"{table.path}:1: two columns are named {value!r}; give --{flag} a number")
    if count:
        return table.names.index(value)
    if value.isdecimal() and int(value) < len(table.names):
        return int(value)
    raise FlagError(f"--{flag}={value}: {table.path} has no such column ({table.named})")


def has_header(
    path: str, rows: Sequence[Sequence[str]], text: str | None, pair: str | None,
    label: str | None, is_regression: bool = False,
) -> bool:
    """Returns whether the first row names the columns, and logs it if it is not certain.

    If columns are given by number, the first row is data if its label also occurs in another row or,
    for a regression, is a number.
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
    value = first[columns.label]
    seen = {row[columns.label] for row in others if len(row) == len(first)}
    is_data = glue.number(value) is not None if is_regression else value in seen
    is_data &= list(first) != numbers  # what pandas calls unnamed columns
    log_header(path, not is_data)
    return not is_data


def log_header(path: str, is_header: bool) -> None:
    """Logs how the first line of a table was interpreted."""
    log.info("%s: the first line is %s; --%stsv_header overrides this", path,
             *(("the header", "no") if is_header else ("data, not a header", "")))


def names_columns(first: Sequence[str], known: Sequence[str] = ()) -> bool:
    """Whether a first row names columns: one of its cells is a common name, or one of `known`."""
    names = {*TEXTS, *PAIRS, *LABELS, *known}
    return any(cell.strip() in names or cell.strip().lower() in names for cell in first)


def without_gaps(table: Table, columns: Columns) -> Table:
    """Returns the table without rows that lack a text or label, and logs their number.

    Raises:
      DataError: no row is left.
    """
    needed = [n for n in (columns.text, columns.label) if n is not None]
    gaps = {
        i: table.names[n] for i in range(len(table.rows)) for n in needed
        if isinstance(cell := table.cell(i, n), str) and not cell.strip()
    }
    if not gaps:
        return table
    first, name = next(iter(gaps.items()))
    if len(gaps) == len(table.rows):
        raise DataError(f"{table.place(first)}: column {name!r} is empty, and every row has a gap")
    log.warning("%s: skipped %s of %s rows without text or label, the first at %s: column %r is empty",
                table.path, f"{len(gaps):,}", f"{len(table.rows):,}", table.place(first), name)
    complete = [i for i in range(len(table.rows)) if i not in gaps]
    return dataclasses.replace(
        table, rows=[table.rows[i] for i in complete], lines=[table.lines[i] for i in complete]
    )


def rows_of(table: Table, columns: Columns, is_cleaned: bool = True) -> list[Row]:
    """Returns text, second text and label of each row, with collapsed white space if `is_cleaned`.

    Integer labels lose their decimals, which pandas adds if a column has gaps.

    Raises:
      DataError: a cell holds a list or an object (file:line).
    """
    rows: list[Row] = []
    for number in range(len(table.rows)):
        texts = [_text(table, number, n) for n in columns.texts]
        rows.append(tuple(" ".join(text.split()) if is_cleaned else text for text in texts))
    if columns.label is not None or columns.flags:
        labels = _labels(table, columns)
        rows = [(*row, label) for row, label in zip(rows, labels, strict=True)]
    return rows


def _text(table: Table, row: int, column: int) -> str:
    if isinstance(cell := table.cell(row, column), str):
        return cell
    kind = "a list" if isinstance(cell, list) else "an object"
    raise DataError(f"{table.place(row)}: column {table.names[column]!r} holds {kind}, not text")


def _labels(table: Table, columns: Columns) -> list[Any]:
    """Returns the label of each row, or the tuple of its labels."""
    if columns.flags:
        return [_flagged(table, i, columns.flags) for i in range(len(table.rows))]
    cells = [table.cell(i, columns.label) for i in range(len(table.rows))]
    # Lists in CSV: as in Python (by pandas) or as JSON.
    if all(isinstance(cell, str) and re.fullmatch(r"\s*\[.*\]\s*", cell, re.DOTALL) for cell in cells):
        with contextlib.suppress(ValueError, SyntaxError):
            cells = [ast.literal_eval(cell.strip()) for cell in cells]
    if all(isinstance(cell, list) for cell in cells):
        cells = [[" ".join(str(one).split()) for one in cell] for cell in cells]
        return [tuple(dict.fromkeys(cell)) for cell in cells]
    cells = [" ".join(_text(table, i, columns.label).split()) for i in range(len(cells))]
    numbers = [_WHOLE_NUMBER.fullmatch(cell) for cell in cells]
    return [number[1] for number in numbers] if all(numbers) else cells


def _flagged(table: Table, number: int, flags: Sequence[int]) -> tuple[str, ...]:
    labels = []
    for n in flags:
        cell = str(table.cell(number, n)).strip().lower()
        integer = _WHOLE_NUMBER.fullmatch(cell)
        is_on = _FLAGS.get(integer[1] if integer else cell)
        if is_on is None:
            raise DataError(f"{table.place(number)}: column {table.names[n]!r} must be 1 or 0, true or "
                            f"false, yes or no, or empty, got {cell!r:.40}")
        if is_on:
            labels.append(table.names[n])
    return tuple(labels)


def labels_of(rows: Sequence[Row], table: Table, columns: Columns) -> list[str]:
    """Returns the labels that occur, sorted.

    Raises:
      DataError: there is only one, or too many.
    """
    if columns.flags:
        return [table.names[n] for n in columns.flags]
    counts = collections.Counter(
        label for row in rows for label in (row[-1] if isinstance(row[-1], tuple) else row[-1:])
    )
    where = f"{table.path}: column {table.names[columns.label]!r}"
    if len(counts) < 2:
        raise DataError(f"{where} has only one label, {[*counts][0]!r}: there is nothing to learn")
    if len(counts) > MAX_LABELS or len(counts) > max(2, len(rows) // 2):
        raise DataError(
            f"{where} has {len(counts)} different values in {len(rows)} rows: give --label_column, "
            "or --regression if they are numbers"
        )
    are_numbers = all(label.lstrip("-").isdecimal() for label in counts)
    return sorted(counts, key=int if are_numbers else str)


def examples_of(
    table: Table, columns: Columns, rows: Sequence[Row], labels: Sequence[str],
    normalize: Callable[[str], str] = str, has_several: bool = False,
) -> list[Example]:
    """Returns the rows as examples; rows without labels get the first label, none, or 0.

    Args:
      labels: in the order of their ids; empty for a regression.
      normalize: preprocesses an unknown label before it is looked up again.

    Raises:
      DataError: a label is unknown or, for a regression, not a number (file:line).
    """
    examples = []
    for number, row in enumerate(rows):
        label: Any = () if has_several else labels[0] if labels else 0.0
        if len(row) > len(columns.texts):
            gold = [
                glue.gold_label(one, labels, table.place(number), normalize)
                for one in (row[-1] if isinstance(row[-1], tuple) else row[-1:])
            ]
            label = tuple(gold) if isinstance(row[-1], tuple) else gold[0]
        pair = None if columns.pair is None else row[1]
        examples.append(Example(str(number), row[0], pair, label))
    return examples


def split_off(
    examples: Sequence[Example], share: float, seed: int, by_label: bool
) -> tuple[list[Example], list[Example]]:
    """Returns (training examples, held-out examples), each in the order of the file.

    The same fraction of each label is held out. Examples with the same texts stay together. A label
    with only one text stays in training.
    """
    rng = np.random.default_rng(child_seed(seed, "held-out rows"))
    held_out: set[int] = set()
    for stratum in _strata(examples, by_label):
        count = min(max(1, round(share * len(stratum))), len(stratum) - 1)
        for group in rng.permutation(len(stratum))[:count].tolist():
            held_out.update(stratum[group])
    return _divided(examples, held_out)


def folds(
    examples: Sequence[Example], count: int, seed: int
) -> list[tuple[list[Example], list[Example]]]:
    """Returns (training examples, held-out examples) of each fold of a cross-validation.

    Each example is held out once. Each fold has the same fraction of every label; examples with the
    same texts stay together.
    """
    rng = np.random.default_rng(child_seed(seed, "folds"))
    held_out: list[set[int]] = [set() for _ in range(count)]
    first = 0
    for stratum in _strata(examples, by_label=True):
        for number, group in enumerate(rng.permutation(len(stratum)).tolist(), first):
            held_out[number % count].update(stratum[group])
        first += len(stratum)  # so that the sizes of folds differ by at most one
    return [_divided(examples, numbers) for numbers in held_out]


def _strata(examples: Sequence[Example], by_label: bool) -> list[list[list[int]]]:
    """Returns, for each label, the numbers of its examples, grouped by their texts."""
    groups: dict[tuple[str, str | None], list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault((example.text_a, example.text_b), []).append(number)
    strata: dict[Any, list[list[int]]] = {}
    for numbers in groups.values():
        strata.setdefault(examples[numbers[0]].label if by_label else "", []).append(numbers)
    return [stratum for _, stratum in sorted(strata.items())]


def _divided(
    examples: Sequence[Example], held_out: Collection[int]
) -> tuple[list[Example], list[Example]]:
    train, dev = [], []
    for number, example in enumerate(examples):
        (dev if number in held_out else train).append(example)
    return train, dev
