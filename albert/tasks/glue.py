"""The GLUE tasks: files, columns and metrics.

A `classification.ClassificationTask` is trained on them. This module needs no TensorFlow.

Legend: N rows, C classes.
"""

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.errors import DataError, FlagError
from albert.tasks import lines
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels

log = logging.getLogger("albert")

_BINARY = ("0", "1")
_NLI = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
LAST = -1  # the last column of a row, however many there are


class Columns(NamedTuple):
    """The columns of a file, from 0."""

    text_a: int
    text_b: int | None = None
    label: int | None = None  # None: the file has no labels
    guid: int | None = 0  # None: "<split>-<row>", the header being row 0

    @property
    def minimum(self) -> int:
        """The minimum number of columns; a label in the LAST column needs one more."""
        return max(column for column in self if column is not None) + 1 + (self.label == LAST)


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One row of the table below."""

    name: str
    directory: str  # under --data_dir
    labels: tuple[str, ...]  # in the order of their ids; none for a regression
    labelled: Columns | None  # of train and dev, if there are any
    test: Columns
    submission: str  # file name of the benchmark's server
    metric: str = "accuracy"  # a key of BEST_RESULT
    kind: str = ""  # suffix of the names of the dev and test files
    has_header: bool = True  # in train and dev
    skips_short_rows: bool = False  # in train and dev

    def columns(self, split: str) -> Columns | None:
        """Returns the columns of train, dev or test; None if there is no such file."""
        return self.test if split == "test" else self.labelled

    def file(self, split: str) -> str:
        """Returns the name of train, dev or test in the directory."""
        if not self.labelled:
            return f"{self.directory}.tsv"
        return f"{split}{self.kind if split != 'train' else ''}.tsv"


# By their names on the command line.
TASKS = {task.name: task for task in (
    GlueTask("ax", "diagnostic", _NLI, None, Columns(1, 2), "AX.tsv"),
    GlueTask("cola", "CoLA", _BINARY, Columns(3, label=1, guid=None), Columns(1), "CoLA.tsv", "matthews",
             has_header=False),
    GlueTask("mismnli", "MNLI", _NLI, Columns(8, 9, LAST), Columns(8, 9), "MNLI-mm.tsv", kind="_mismatched"),
    GlueTask("mnli", "MNLI", _NLI, Columns(8, 9, LAST), Columns(8, 9), "MNLI-m.tsv", kind="_matched"),
    GlueTask("mrpc", "MRPC", _BINARY, Columns(3, 4, 0, guid=None), Columns(3, 4), "MRPC.tsv",
             "accuracy_and_f1"),
    GlueTask("qnli", "QNLI", _ENTAILMENT, Columns(1, 2, LAST), Columns(1, 2), "QNLI.tsv"),
    # The real train file has a few rows with a line break inside a question.
    GlueTask("qqp", "QQP", _BINARY, Columns(3, 4, 5), Columns(1, 2), "QQP.tsv", "accuracy_and_f1",
             skips_short_rows=True),
    GlueTask("rte", "RTE", _ENTAILMENT, Columns(1, 2, LAST), Columns(1, 2), "RTE.tsv"),
    GlueTask("sst-2", "SST-2", _BINARY, Columns(0, label=1, guid=None), Columns(1), "SST-2.tsv"),
    GlueTask("sts-b", "STS-B", (), Columns(7, 8, LAST), Columns(7, 8), "STS-B.tsv", "regression"),
    GlueTask("wnli", "WNLI", _BINARY, Columns(1, 2, LAST), Columns(1, 2), "WNLI.tsv"),
)}


@dataclasses.dataclass(frozen=True)
class Example:
    """One row of a task's file or of a table."""

    guid: str
    text_a: str
    text_b: str | None
    # A name, a tuple of names for multi-label tasks, a number for a regression, None if it is not
    # known. In a file of GLUE without labels, the task's first label, or 0.0.
    label: Any
    place: str = dataclasses.field(default="", compare=False)  # file and line of a table


def read_data(
    task: GlueTask, data_dir: str, splits: Sequence[str], normalize: Callable[[str], str] = str
) -> FineTuningData:
    """Returns the examples of these splits; see `read_examples`."""
    paths = {split: path_of(task, data_dir, split) for split in splits}  # before the first is read
    examples = {split: read_examples(task, data_dir, split, normalize) for split in splits}
    if "train" in splits:
        warn_of_labels(paths["train"], [example.label for example in examples["train"]], task.labels)
    return FineTuningData(task.name, examples, task.labels)


def path_of(task: GlueTask, data_dir: str, split: str) -> str:
    """Returns the path of train, dev or test.

    Raises:
      FlagError: the task has no such file.
      DataError: it does not exist.
    """
    if not task.columns(split):
        raise FlagError(
            f"--{'do_train' if split == 'train' else 'do_eval'}: task {task.name} has no {split} "
            "file; train with another task and pass its --checkpoint to --do_predict"
        )
    path = os.path.join(data_dir, task.directory, task.file(split))
    if not os.path.isfile(path):
        raise DataError(f"no such file: {path}; --data_dir must hold the folder {task.directory}")
    return path


def read_examples(
    task: GlueTask, data_dir: str, split: str, normalize: Callable[[str], str] = str
) -> list[Example]:
    """Returns the examples of train, dev or test.

    `normalize` preprocesses a label before it is looked up: the original preprocesses labels like
    texts, so that a lower-casing model accepts `Entailment`.

    Raises:
      DataError: no such file, no examples, too few columns, unknown label (file:line).
    """
    path, layout, is_test = path_of(task, data_dir, split), task.columns(split), split == "test"
    has_header, examples, num_skipped = is_test or task.has_header, [], 0
    for line, cells in read_tsv(path):
        if has_header and line == 1:
            if len(cells) >= layout.minimum and _is_data(task, layout, cells):
                # Otherwise the first example would be lost silently.
                raise DataError(f"{path}:1: expected a header, got data: {cells[0][:40]!r} ...")
            continue
        if len(cells) < layout.minimum:
            if task.skips_short_rows and not is_test:
                num_skipped += 1
                continue
            raise DataError(
                f"{path}:{line}: expected at least {layout.minimum} tab-separated columns, got "
                f"{len(cells)}; is this the {task.directory} file of GLUE?"
            )
        label = task.labels[0] if task.labels else 0.0
        if layout.label is not None:
            label = gold_label(cells[layout.label], task.labels, f"{path}:{line}", normalize)
        guid = f"{split}-{line - 1}" if layout.guid is None else cells[layout.guid]
        text_b = None if layout.text_b is None else cells[layout.text_b]
        examples.append(Example(guid, cells[layout.text_a], text_b, label))
    if num_skipped:
        log.warning("%s: skipped %s rows with too few columns", path, f"{num_skipped:,}")
    if not examples:
        raise DataError(f"{path}: no examples")
    log.info("%s: %s examples", path, f"{len(examples):,}")
    return examples


def read_tsv(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number from 1, columns) of a tab-separated file, without empty lines at its end.

    Quotes have no meaning in GLUE files: otherwise a stray one would swallow the following lines.

    Raises:
      DataError: the file is empty, or see `lines.decoded`.
    """
    number = num_empty = 0
    for number, text in lines.numbered(lines.read_text(path, "data_dir", is_strict=False)):
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


def _is_data(task: GlueTask, layout: Columns, cells: list[str]) -> bool:
    """Whether a file's first line is an example rather than a header."""
    if layout.label is None:
        return cells[layout.guid].isdecimal()
    text = cells[layout.label]
    return text in task.labels if task.labels else number(text) is not None


# === Metrics ===

# The result that decides on the best checkpoint, as in the original.
BEST_RESULT = {
    "accuracy": "eval_accuracy", "accuracy_and_f1": "eval_accuracy", "matthews": "matthew_corr",
    "regression": "pearson",
}


def score(metric: str, labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Returns the results of a metric, under the original toolkit's keys and a few more.

    A correlation is undefined if all labels or all predictions are equal. It is then 0.0, because
    such a model has learned nothing.

    Args:
      metric: a key of BEST_RESULT.
      labels: [N], class ids, or values of a regression.
      logits: [N, C]; of a regression [N, 1] or [N].
    """
    from scipy.stats import rankdata
    from sklearn.metrics import f1_score, matthews_corrcoef

    if metric == "regression":  # STS-B
        values = np.reshape(logits, [-1])
        errors = np.asarray(labels, np.float64) - np.asarray(values, np.float64)
        return {
            "pearson": _correlation(labels, values),
            "spearman": _correlation(rankdata(labels), rankdata(values)),
            "MSE": float(np.mean(errors**2)),
        }
    # From logits: float32 can round different logits to equal probabilities.
    predictions = np.argmax(logits, axis=-1)
    results = {"eval_accuracy": float(np.mean(labels == predictions))}
    if metric == "accuracy_and_f1":  # MRPC and QQP: of class 1, paraphrase or duplicate
        results["f1"] = float(f1_score(labels == 1, predictions == 1, zero_division=0.0))
    elif metric == "matthews":  # CoLA; scikit-learn warns of a single class
        is_defined = len({*labels, *predictions}) > 1
        results["matthew_corr"] = float(matthews_corrcoef(labels, predictions)) if is_defined else 0.0
    return results


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if not (np.ptp(a) and np.ptp(b)):
        return 0.0
    return float(np.corrcoef(a, b, dtype=np.float64)[1, 0])
