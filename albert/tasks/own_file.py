"""The user's labelled texts: columns of a table, found by name, and a held-out part. No TensorFlow."""

import collections
import dataclasses
import logging
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from albert.errors import DataError, FlagError, some
from albert.runtime.seeds import child_seed
from albert.tasks import glue
from albert.tasks.glue import Example
from albert.tasks.tables import NAMED, Table, ending

log = logging.getLogger("albert")

# Common names of columns, in lower case; the first one present is used.
TEXTS = ("text", "sentence", "sentence1", "text_a", "premise", "question1", "question", "review",
         "comment", "content", "tweet", "message", "body", "utterance")
PAIRS = ("text_pair", "sentence2", "text_b", "text2", "hypothesis", "question2", "passage",
         "context", "choice")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "tag", "score",
          "rating")
MAX_LABELS = 200
# Cells that say that a label is missing, in lower case.
_MISSING = ("nan", "-nan", "null", "<na>", "n/a", "#n/a", "na")
# What programs write for a missing or an infinite number.
_NO_NAMES = ("None", "inf", "-inf", "NaT")
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]|^[\u200c-\u200f]+|[\u200c-\u200f]+$")
_WHOLE_NUMBER = re.compile(r"(-?\d+)(?:\.0+)?")

# Text, second text if any, label if any (a tuple if there may be several).
Row = tuple[Any, ...]
# A word between blanks, or an ideograph, syllable or kana, which have none between them.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|(?<!\S)[^\d\W_]\S*")
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
    several: Sequence[str] = (), max_texts: int = 2,
) -> Columns:
    """Returns the columns that are named or numbered, else those with common names, and logs them.

    If no flag names a column of texts and there are two, they are a pair.

    Args:
      needs_label: whether a label is looked for.
      several: one column per label, for multi-label tasks.
      max_texts: 1 if there is no second text.

    Raises:
      UserError: there is no such column, none with a common name, or two of that name.
    """
    columns = [_column(table, text, "text_column"), _column(table, pair, "text_pair_column")]
    flags = tuple(_column(table, name, "label_columns") for name in several if needs_label)
    needs_label &= not flags
    columns.append(_column(table, label, "label_column") if needs_label else None)
    for which, common in ((0, TEXTS), (1, PAIRS), (2, LABELS)):
        if columns[which] is None and (which != 1 or max_texts > 1):
            used = (*columns, *flags)
            columns[which] = _common_column(table, common, used, ("text", "text_pair", "label")[which])

    def left() -> list[int]:
        return [n for n, name in enumerate(table.names) if name and n not in (*columns, *flags)]

    if columns[0] is None and len(left()) == 1:
        columns[0] = left()[0]
    if not needs_label:
        columns[2] = None
    elif columns[2] is None and columns[0] is not None and len(left()) == 1:
        columns[2] = left()[0]
    others = [n for n in left() if _holds_texts(table, n)] if columns[0] is not None else []
    if len(others) == 1 and text is pair is columns[1] is None and max_texts > 1:
        columns[:2] = sorted((columns[0], others.pop()))
        if needs_label and columns[2] is None and len(left()) == 1:
            columns[2] = left()[0]
    for number, name in ((columns[0], "text"), (columns[2] if needs_label else 0, "label")):
        if number is None:
            raise FlagError(f"{table.path}: give --{name}_column; its columns are {table.named}. If these are "
                            "data, give --notsv_header, and columns by number: --text_column=0")
    used = [n for n in (*columns, *flags) if n is not None]
    if len(set(used)) < len(used):
        raise FlagError(
            f"{table.path}: --text_column, --text_pair_column and those of labels must be different "
            f"columns, got {', '.join(table.names[n] for n in used)}"
        )
    _log_columns(table, text, used, left(), others)
    return Columns(*columns, flags)


def _common_column(
    table: Table, common: Sequence[str], used: Sequence[int | None], flag: str
) -> int | None:
    """Returns the unused column with the first of these names, in any case."""
    names = [None if n in used else name.lower() for n, name in enumerate(table.names)]
    name = next((name for name in common if name in names), None)
    return _column(table, name, f"{flag}_column", names)


def _holds_texts(table: Table, column: int) -> bool:
    """Whether a column has the name of texts, or four words or more in a cell on average."""
    if table.names[column].lower() in (*TEXTS, *PAIRS):
        return True
    cells = [table.cell(row, column) for row in range(min(len(table.rows), 1000))]
    words = [len(_WORD.findall(cell)) for cell in cells if isinstance(cell, str) and cell.strip()]
    return bool(words) and sum(words) >= 4 * len(words)


def _log_columns(
    table: Table, text: str | None, used: Sequence[int], unused: Sequence[int], unused_texts: Sequence[int]
) -> None:
    """Logs which columns are used and which are not; warns of texts that are not."""
    def listed(numbers):
        return ", ".join(table.names[n] for n in numbers)

    # Without a header, columns are named by their numbers.
    known = (*TEXTS, str(text).lower(), *map(str, range(len(table.names))))
    log.info("%s: columns %s%s%s", table.path, listed(used),
             f"; not used: {listed(unused)}" if unused else "",
             "" if table.names[used[0]].lower() in known or ending(table.path) in NAMED else
             "; --notsv_header if its first line is data")
    if unused_texts:
        log.warning("%s: texts that are not used: %s; --text_column and --text_pair_column choose",
                    table.path, listed(unused_texts))


def _column(table: Table, value: str | None, flag: str, names: Sequence[str | None] = ()) -> int | None:
    """Returns the column of a name, or else of a number; `names` are by default the table's."""
    if value is None:
        return None
    names = names or table.names
    count = names.count(value)
    if count > 1:
        raise DataError(f"{table.path}:1: two columns are named {value!r}: rename one, or give "
                        f"--{flag} a number")
    if count:
        return names.index(value)
    if value.isdecimal() and int(value) < len(table.names):
        return int(value)
    raise FlagError(f"--{flag}={value}: {table.path} has no such column ({table.named})")


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

    Labels are those of `label_name`.

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
    if all(isinstance(cell, str) and re.fullmatch(r"\s*\[.*\]\s*", cell, re.DOTALL) for cell in cells):
        raise DataError(f"{table.place(0)}: the label {cells[0]!r:.60} is a list: write JSON lines, or a "
                        "column for each label (--label_columns)")
    if all(isinstance(cell, list) for cell in cells):
        for number, row in enumerate(table.rows):
            if odd := [one for one in row[columns.label] if not isinstance(one, str)]:
                raise DataError(f"{table.place(number)}: a list of labels has their names, not {odd[0]!r}: "
                                "of numbers, make a column for each label (--label_columns)")
        return [tuple(dict.fromkeys(map(label_name, cell))) for cell in cells]
    return [label_name(_text(table, i, columns.label)) for i in range(len(cells))]


def label_name(text: str) -> str:
    """Returns the name that a label has, however it is written.

    White space collapses, invisible characters go, letters with accents are composed (NFC), and whole
    numbers lose the decimals that pandas adds if a column has gaps.
    """
    name = " ".join(unicodedata.normalize("NFC", _INVISIBLE.sub("", text)).split())
    number = _WHOLE_NUMBER.fullmatch(name)
    return number[1] if number else name


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


def refuse_missing(table: Table, rows: Sequence[Row]) -> None:
    """Raises a DataError for a label such as NaN, by which programs mark missing values (file:line)."""
    for number, row in enumerate(rows):
        for label in row[-1] if isinstance(row[-1], tuple) else row[-1:]:
            if label.lower() in ("", *_MISSING) or label in _NO_NAMES:
                raise DataError(f"{table.place(number)}: is the label {label!r} a missing value? "
                                "Remove the row, or name all labels in --label_list")


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
            f"{where} has {len(counts):,} different values in {len(rows):,} rows. Give --label_column if "
            "it is another one, --regression if they are numbers, or name the labels in --label_list if "
            f"there are more than {MAX_LABELS}, or than two rows for each"
        )
    alike = collections.defaultdict(list)
    for label in sorted(counts):
        alike[label.casefold().lstrip("0")].append(label)
    if twins := [" and ".join(names) for names in alike.values() if len(names) > 1]:
        log.warning("%s has labels that differ only by case or leading zeros: %s; they are different "
                    "labels", where, some(twins))
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


def known_labels(
    table: Table, columns: Columns, labels: Sequence[str], normalize: Callable[[str], str] = str
) -> list[Any]:
    """Returns each row's label like `examples_of`, but None where it is missing or unknown; logs it.

    Args:
      labels: in the order of their ids; empty for a regression.
    """
    found: list[Any] = []
    for number in range(len(table.rows)):
        part = slice(number, number + 1)
        row = dataclasses.replace(table, rows=table.rows[part], lines=table.lines[part])
        try:
            [example] = examples_of(row, columns, rows_of(row, columns), labels, normalize)
        except DataError:
            found.append(None)
        else:
            found.append(example.label)
    if None in found:
        first, count = table.place(found.index(None)), found.count(None)
        log.warning("%s: %s of %s rows have none of the labels, the first at %s, and are not scored",
                    table.path, f"{count:,}", f"{len(found):,}", first)
    return found


def split_off(
    examples: Sequence[Example], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Returns (training examples, held-out examples), each in the order of the file.

    Texts and seed alone decide, by a hash: an example stays on its side whatever else is in the
    file and whatever its label, and copies of a text stay together. So the fraction held out, of
    all examples and of each label, is `share` up to chance.
    """
    train: list[Example] = []
    held_out: list[Example] = []
    for one in examples:
        is_held_out = child_seed(seed, "held-out rows", *texts_of(one)) < share * 2**64
        (held_out if is_held_out else train).append(one)
    return train, held_out


def texts_of(example: Example) -> tuple[str, ...]:
    """Returns an example's texts, to compare: equal for copies, whatever their case."""
    return tuple(text.casefold() for text in (example.text_a, example.text_b) if text is not None)
