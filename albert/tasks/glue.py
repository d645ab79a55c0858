"""The GLUE tasks: files, columns and metrics.

A `classification.ClassificationTask` is trained on them. This module needs no TensorFlow.
"""

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from albert.errors import DataError, FlagError
from albert.formats.known_tasks import GLUE_LABELS
from albert.tasks import lines
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels

log = logging.getLogger("albert")

LAST = -1  # the last column of a row, however many there are


@dataclasses.dataclass(frozen=True)
class Split:
    """The layout of one file; columns count from 0."""

    file: str
    text_a: int
    text_b: int | None = None
    label: int | None = None  # None: the file has no labels
    guid: int | None = 0  # None: "<split>-<row>", the header being row 0; of a test file the row
    has_header: bool = True
    skips_short_rows: bool = False

    @property
    def min_columns(self) -> int:
        """Minimum number of columns; a label in the LAST column needs one more."""
        columns = [c for c in (self.text_a, self.text_b, self.label, self.guid) if c is not None]
        return max(columns) + 1 + (self.label == LAST)


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One row of the table below."""

    name: str
    directory: str  # under --data_dir
    labels: tuple[str, ...]  # in the order of their ids; empty for regression
    metric: str  # one of glue_metrics.METRICS
    train: Split | None
    dev: Split | None
    test: Split
    submission: str  # file name of the benchmark's server

    @property
    def is_regression(self) -> bool:
        return not self.labels

    def split(self, name: str) -> Split:
        """Returns the layout of train, dev or test.

        Raises:
          FlagError: the task has no such file.
        """
        split = getattr(self, name)
        if split is None:
            flag = {"train": "do_train", "dev": "do_eval"}[name]
            raise FlagError(
                f"--{flag}: task {self.name} has no {name} file; train with another task and "
                f"give its --checkpoint to --do_predict"
            )
        return split

    def path(self, data_dir: str, name: str) -> str:
        """Returns the file of train, dev or test.

        Raises:
          DataError: it does not exist.
        """
        path = os.path.join(data_dir, self.directory, self.split(name).file)
        if not os.path.isfile(path):
            raise DataError(
                f"no such file: {path}; --data_dir must hold the folder {self.directory}"
            )
        return path


@dataclasses.dataclass(frozen=True)
class Example:
    """One row of a task file."""

    guid: str
    text_a: str
    text_b: str | None
    # A tuple for multi-label tasks. In a file without labels, the task's first label, or 0.0.
    label: str | float | tuple[str, ...]


def _task(
    folder: str,
    test: tuple[int, ...] = (1, 2),
    metric: str = "accuracy",
    *,
    name: str = "",
    texts: tuple[int, ...] = (),
    label: int = LAST,
    kind: str = "",
    submission: str = "",
    **layout: Any,
) -> GlueTask:
    """Returns a task of the benchmark; by default index, two texts, label in the last column.

    Args:
      test, texts: columns of the texts in test.tsv, and in the others if these differ.
      kind: suffix of the names of the dev and test files.
      layout: fields of `Split` for train and dev.
    """
    name = name or folder.lower()

    def split(file: str, columns: tuple[int, ...], **layout: Any) -> Split:
        return Split(f"{file}.tsv", *columns, **layout)

    train, dev = (
        split(file, texts or test, label=label, **layout) for file in ("train", f"dev{kind}")
    )
    return GlueTask(
        name, folder, GLUE_LABELS[name], metric, train, dev, split(f"test{kind}", test),
        submission or f"{folder}.tsv",
    )


COLA = _task("CoLA", (1,), "matthews", texts=(3,), label=1, guid=None, has_header=False)
MNLI = _task("MNLI", (8, 9), kind="_matched", submission="MNLI-m.tsv")
MISMNLI = _task("MNLI", (8, 9), name="mismnli", kind="_mismatched", submission="MNLI-mm.tsv")
MRPC = _task("MRPC", (3, 4), "accuracy_and_f1", label=0, guid=None)
QNLI = _task("QNLI")
# The real train file has a few rows with a line break inside a question.
QQP = _task("QQP", (1, 2), "accuracy_and_f1", texts=(3, 4), label=5, skips_short_rows=True)
RTE = _task("RTE")
SST_2 = _task("SST-2", (1,), texts=(0,), label=1, guid=None)
STS_B = _task("STS-B", (7, 8), "regression")
WNLI = _task("WNLI")
AX = GlueTask(
    "ax", "diagnostic", GLUE_LABELS["ax"], "accuracy", None, None,
    Split("diagnostic.tsv", text_a=1, text_b=2),
    "AX.tsv",
)

# By their names on the command line.
TASKS = {
    task.name: task
    for task in (AX, COLA, MISMNLI, MNLI, MRPC, QNLI, QQP, RTE, SST_2, STS_B, WNLI)
}


def read_examples(
    task: GlueTask, data_dir: str, split: str, normalize: Callable[[str], str] = str
) -> list[Example]:
    """Returns the examples of train, dev or test.

    `normalize` preprocesses a label before it is looked up: the original preprocesses labels like
    texts, so that a lower-casing model accepts `Entailment`.

    Raises:
      DataError: no such file, no examples, too few columns, unknown label (file:line).
    """
    layout, path = task.split(split), task.path(data_dir, split)
    examples, num_skipped = [], 0
    for line, columns in read_tsv(path):
        if layout.has_header and line == 1:
            _check_header(task, layout, path, columns)
            continue
        if len(columns) < layout.min_columns:
            if layout.skips_short_rows:
                num_skipped += 1
                continue
            raise DataError(
                f"{path}:{line}: expected at least {layout.min_columns} tab-separated columns, got "
                f"{len(columns)}; is this the {task.directory} file of GLUE?"
            )
        label: str | float = task.labels[0] if task.labels else 0.0
        if layout.label is not None:
            label = gold_label(columns[layout.label], task.labels, f"{path}:{line}", normalize)
        if layout.guid is not None:
            guid = columns[layout.guid]
        else:
            guid = str(line - 1 - layout.has_header) if split == "test" else f"{split}-{line - 1}"
        text_b = None if layout.text_b is None else columns[layout.text_b]
        examples.append(Example(guid, columns[layout.text_a], text_b, label))
    if num_skipped:
        log.warning("%s: skipped %s rows with too few columns", path, f"{num_skipped:,}")
    if not examples:
        raise DataError(f"{path}: no examples")
    log.info("%s: %s examples", path, f"{len(examples):,}")
    return examples


def read_data(
    task: GlueTask, data_dir: str, splits: Sequence[str], normalize: Callable[[str], str] = str
) -> FineTuningData:
    """Returns the examples of these splits; see `read_examples`."""
    for split in splits:
        task.path(data_dir, split)  # all files must exist before the first one is read
    examples = {split: read_examples(task, data_dir, split, normalize) for split in splits}
    if "train" in splits:
        labels = [example.label for example in examples["train"]]
        warn_of_labels(task.path(data_dir, "train"), labels, task.labels)
    return FineTuningData(task.name, examples, task.labels)


def read_tsv(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number from 1, columns) of a tab-separated file, without empty lines at its end.

    Quotes have no meaning in GLUE files: otherwise a stray one would swallow the following lines.

    Raises:
      DataError: the file is empty, or see `lines.decode_lines`.
    """
    number = num_empty = 0
    for number, text in lines.read_lines(path, "data_dir", is_strict=False):
        text = text.rstrip("\r\n")
        if not text:
            num_empty += 1
            continue
        # Other empty lines are rows of one empty column.
        yield from ((line, [""]) for line in range(number - num_empty, number))
        num_empty = 0
        yield number, text.split("\t")
    if number == num_empty:
        raise DataError(f"{path}: the file is empty")


def gold_label(
    text: str, labels: Sequence[str], place: str, normalize: Callable[[str], str]
) -> str | float:
    """Returns the label in a cell; without `labels`, as for a regression, its value.

    Raises:
      DataError: it is none of the labels, or not a number (at `place`).
    """
    if not labels:
        if (value := number(text)) is None:
            raise DataError(f"{place}: label {text!r:.80} is not a number")
        return value
    label = text if text in labels else normalize(text)
    if label not in labels:
        raise DataError(f"{place}: label {text!r:.80} is not one of {', '.join(labels)}")
    return label


def number(text: str) -> float | None:
    """Returns a finite number, else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _check_header(task: GlueTask, layout: Split, path: str, columns: list[str]) -> None:
    """Refuses a file without a header, whose first example would be lost silently."""
    if len(columns) < layout.min_columns:
        return  # `read_examples` reports it
    if layout.label is not None:
        text = columns[layout.label]
        is_data = number(text) is not None if task.is_regression else text in task.labels
    else:
        is_data = layout.guid is not None and columns[layout.guid].isdecimal()
    if is_data:
        raise DataError(f"{path}:1: expected a header, got data: {columns[0][:40]!r} ...")
