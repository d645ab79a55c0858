"""The GLUE tasks: files, columns and metrics.

A `classification.ClassificationTask` is trained on them. This module needs no TensorFlow.

Legend: N rows, C classes.
"""

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError, FlagError
from albert.tasks import lines
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels

log = logging.getLogger("albert")

_BINARY = ("0", "1")
_INFERENCE = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
# In the order of their ids; a regression has none.
_LABELS: dict[str, tuple[str, ...]] = {
    "ax": _INFERENCE, "cola": _BINARY, "mismnli": _INFERENCE, "mnli": _INFERENCE,
    "mrpc": _BINARY, "qnli": _ENTAILMENT, "qqp": _BINARY, "rte": _ENTAILMENT,
    "sst-2": _BINARY, "sts-b": (), "wnli": _BINARY,
}
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
    metric: str  # a key of BEST_RESULT
    train: Split | None
    dev: Split | None
    test: Split
    submission: str  # file name of the benchmark's server

    @property
    def is_regression(self) -> bool:
        return not self.labels

    def file(self, data_dir: str, split: str) -> tuple[str, Split]:
        """Returns path and layout of train, dev or test.

        Raises:
          FlagError: the task has no such file.
          DataError: it does not exist.
        """
        layout = {"train": self.train, "dev": self.dev, "test": self.test}[split]
        if layout is None:
            raise FlagError(
                f"--{'do_train' if split == 'train' else 'do_eval'}: task {self.name} has no {split} "
                "file; train with another task and give its --checkpoint to --do_predict"
            )
        path = os.path.join(data_dir, self.directory, layout.file)
        if not os.path.isfile(path):
            raise DataError(
                f"no such file: {path}; --data_dir must hold the folder {self.directory}"
            )
        return path, layout


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
        name, folder, _LABELS[name], metric, train, dev, split(f"test{kind}", test),
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
    "ax", "diagnostic", _LABELS["ax"], "accuracy", None, None,
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
    (path, layout), examples, num_skipped = task.file(data_dir, split), [], 0
    for line, columns in read_tsv(path):
        if layout.has_header and line == 1:
            if len(columns) >= layout.min_columns and _is_data(task, layout, columns):
                # Otherwise the first example would be lost silently.
                raise DataError(f"{path}:1: expected a header, got data: {columns[0][:40]!r} ...")
            continue
        if len(columns) < layout.min_columns:
            if layout.skips_short_rows:
                num_skipped += 1
                continue
            raise DataError(
                f"{path}:{line}: expected at least {layout.min_columns} tab-separated columns, got "
                f"{len(columns)}; is this the {task.directory} file of GLUE?"
            )
        if layout.label is None:
            label: str | float = task.labels[0] if task.labels else 0.0
        else:
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
        task.file(data_dir, split)  # all files must exist before the first one is read
    examples = {split: read_examples(task, data_dir, split, normalize) for split in splits}
    if "train" in splits:
        labels = [example.label for example in examples["train"]]
        warn_of_labels(task.file(data_dir, "train")[0], labels, task.labels)
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


def _is_data(task: GlueTask, layout: Split, columns: list[str]) -> bool:
    """Whether a file's first line is an example rather than a header."""
    if layout.label is None:
        return layout.guid is not None and columns[layout.guid].isdecimal()
    text = columns[layout.label]
    return number(text) is not None if task.is_regression else text in task.labels


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
