"""The report on a model trained on the user's labelled texts: verdict, advice, scores, errors.

Legend: N rows, C labels.
"""

import dataclasses
import math
import operator
import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from albert.cli import report_page
from albert.formats.model_card import table
from albert.tasks import glue
from albert.tasks.classification import f1_by_label, several_label_scores

ENOUGH_ROWS = 500  # with fewer, a difference that matters is often a matter of luck
_FEW_ROWS = 50  # with fewer, no difference decides
_MAX_ERRORS, _MAX_TEXT, _MAX_LABELS = 10, 200, 30  # errors and labels to show; characters of a text
_USE = "Use it. A larger model, or more labelled texts, may gain more."
_LARGER = "Start from a larger model, such as albert/albert-base-v2 instead of small_en, or label more texts."
_MORE = "Label more texts, or score a labelled `--test_file`."
_RETRY = ("All texts got one label: the training failed. Train again, in another `--output_dir`, with half "
          "of `--learning_rate`, more `--num_train_epochs` or, for pairs, a model other than small_en.")
_VALIDATE = "`--cross_validation=5` tests all rows; it trains five more times."
_UNREADABLE = "Use a model whose vocabulary can read these texts, such as one of `pretrain_from_text`."
_THRESHOLD = "Lower `--threshold`, so that rare labels are predicted at smaller probabilities."
_WEIGHTS = "Add `--class_weights=balanced`, so that rare labels count as much as common ones."
_BASELINE = "TF-IDF: words and word pairs, logarithmic counts; C = 10 for labels, alpha = 1 for numbers.\n"
_USAGE = """## Use it

    {command}

`README.md` shows how from Python.
"""
_FASTER = """## Answer faster

Precisions of `predict` (in Python `open_session(..., dtype=...)`) against float32, measured on this
processor with {count:,} of the held-out rows. bfloat16 needs `pip install 'albert-keras[openvino]'`.

"""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Labelled rows that the model was not trained on, with its answers and those of baselines.

    Answers are ids of labels [N], values of a regression [N], or, where a text may have several
    labels, whether it has each, [N, C].
    """

    name: str  # of these rows, with their number
    expected: np.ndarray
    predicted: np.ndarray
    baselines: Mapping[str, np.ndarray]  # {name: answers}, the simplest first

    def __len__(self) -> int:
        return len(self.expected)

    @property
    def metric(self) -> str:
        """The name of the mean of `scores`, without its sign."""
        if self.expected.dtype.kind == "f":
            return "mean absolute error"
        return "accuracy" if self.expected.ndim == 1 else "F1 per text"

    def scores(self, answers: np.ndarray) -> np.ndarray:
        """Returns how good each answer is [N]: whether it is right, its labels' F1, minus its error."""
        if self.expected.dtype.kind == "f":
            return -np.abs(answers - self.expected)
        if self.expected.ndim == 1:
            return (answers == self.expected).astype(float)
        sizes = answers.sum(1) + self.expected.sum(1)
        return np.where(sizes, 2 * (answers & self.expected).sum(1) / np.maximum(sizes, 1), 1.0)

    def gain(self, answers: np.ndarray) -> tuple[float, float, float]:
        """Returns the mean gain over other answers to the same rows, with its 95 % interval.

        Answers that are both right or both wrong do not count: for labels this is the interval of a
        difference of paired proportions (Agresti and Min 2005, Statistics in Medicine 24), which
        counts half a row more of each of the four outcomes.
        """
        gains = np.subtract(self.scores(self.predicted), self.scores(answers), dtype=float)
        most, limit = 1.0, 1.0  # a gain of a label or of F1 is at most that
        if self.expected.dtype.kind == "f":
            most, limit = np.abs(gains).mean(), math.inf
        count = len(gains) + 2
        middle = gains.sum() / count
        error = 1.96 * math.sqrt(((gains**2).sum() + most**2) / count - middle**2) / math.sqrt(count)
        return float(gains.mean()), max(middle - error, -limit), min(middle + error, limit)


def verdict(rows: Sequence[Rows]) -> tuple[str, str]:
    """Compares the model with the better baseline, on the largest number of rows.

    Returns:
      "better", "worse" or, if the rows do not decide, ""; and a sentence.
    """
    decisive = max(rows, key=len)
    name, answers = max(decisive.baselines.items(), key=lambda item: decisive.scores(item[1]).mean())
    _, low, high = decisive.gain(answers)
    if decisive.expected.dtype.kind == "f":
        interval = f"{low:+,.4g} to {high:+,.4g} less error"
    else:
        interval = f"{100 * low:+.1f} to {100 * high:+.1f} points"
    span = (f"{decisive.metric} {_mean(decisive, decisive.predicted)} against {_mean(decisive, answers)} on "
            f"{len(decisive):,} rows (95 % interval: {interval})")
    if len(decisive) < _FEW_ROWS:
        return "", f"**Too few rows to tell** whether the model is better than {name}: {span}."
    if low <= 0 <= high:
        return "", f"**Not significant**: no clear difference from {name}: {span}."
    outcome = "better" if low > 0 else "worse"
    return outcome, f"**{outcome.capitalize()} than {name}**: {span}."


def command(directory: str, has_pairs: bool) -> str:
    """Returns a command that asks the model in a directory."""
    asked = r"printf 'a text\tanother text\n'" if has_pairs else "echo 'a text'"
    return f"{asked} | python -m albert.predict --model={shlex.quote(directory)}"


def write(
    directory: str, texts: Sequence[str], labels: Sequence[str], rows: Sequence[Rows],
    probabilities: np.ndarray, settings: Mapping[str, str], is_balanced: bool = False,
    may_validate: bool = True, precisions: Mapping[str, tuple[float, list]] = {}, has_pairs: bool = False,
) -> str:
    """Publishes report.md and report.html; returns the path of the former.

    Args:
      texts: N; the two texts of a pair are joined.
      labels: C, in the order of their ids; none for a regression.
      rows: the held-out rows, and others; the largest number of them decides.
      probabilities: of the held-out rows, [N, C].
      settings: {setting: its value and the reason}, for a table.
      is_balanced: whether all labels counted the same in training.
      may_validate: whether --cross_validation is possible, and was not turned off.
      precisions: those of answers to held-out rows, as `precision.compare` returns them.
    """
    held_out, decisive, cells = rows[0], max(rows, key=len), list(map(_cell, labels))
    outcome, sentence = verdict(rows)
    never, absent, is_uneven, has_several = [], [], False, held_out.expected.ndim == 2
    if labels:
        counts, predicted = (
            answers.sum(0) if has_several else np.bincount(answers, minlength=len(labels))
            for answers in (decisive.expected, decisive.predicted))  # of the rows with each label, [C]
        never = [cells[i] for i in np.flatnonzero((counts > 0) & (predicted == 0))]
        absent = [cells[i] for i in np.flatnonzero(counts == 0)]
        is_uneven = 2 * min(counts) < np.mean(counts)
    steps = []
    if never and has_several:
        steps.append(_THRESHOLD)
    elif never and is_uneven and not is_balanced:
        steps.append(_WEIGHTS)
    if outcome == "better":
        steps = steps or [_USE]
    elif never and not (has_several or is_uneven) and np.count_nonzero(predicted) == 1:
        steps.append(_RETRY)
    elif len(decisive) < ENOUGH_ROWS and may_validate and len(rows) == 1:
        steps.append(_VALIDATE)
    elif _WEIGHTS not in steps:
        is_readable = not any("unknown to the vocabulary" in value for value in settings.values())
        steps.append(_UNREADABLE if not is_readable else _MORE if len(decisive) < _FEW_ROWS else _LARGER)
    metric = "pearson" if not labels else "micro_f1" if has_several else "eval_accuracy"
    several = ", several per text" * has_several
    title = f"Classifier with {len(labels)} labels{several}" if labels else "Regression"
    scores = [_scores(one, labels) for one in rows]
    return report_page.publish(directory, title, filter(None, [
        sentence + "\n",
        never and f"**Never predicts {', '.join(never[:_MAX_LABELS])}**.\n",
        absent and f"No row has the label {', '.join(absent[:_MAX_LABELS])}: nothing is measured for it.\n",
        "## What to do next\n", "".join(f"* {step}\n" for step in steps),
        "## Scores\n", table(("", *(one.name for one in rows)), [
            (name, *(of_rows[name] for of_rows in scores)) for name in scores[0]
        ]),
        labels and _by_label(held_out, cells),
        "## Learning curve\n", report_page.curve(directory, metric),
        f"## {'Most confident' if labels else 'Largest'} errors: {held_out.name}\n",
        _errors(held_out, texts, cells, probabilities),
        labels and not has_several and len(labels) <= _MAX_LABELS and _confusion(held_out, cells),
        "## Training\n", _BASELINE, table(("setting", "value"), settings.items()),
        _USAGE.format(command=command(directory, has_pairs)), _faster(precisions),
    ]))


# === Scores ===


def _mean(rows: Rows, answers: np.ndarray) -> str:
    mean = abs(rows.scores(answers).mean())
    return f"{mean:,.4g}" if rows.expected.dtype.kind == "f" else f"{mean:.3f}"


def _scores(rows: Rows, labels: Sequence[str]) -> dict[str, str]:
    """Returns {name: score} of the model and of the baselines."""
    expected, predicted = rows.expected, rows.predicted
    scores = {rows.metric: _mean(rows, predicted)}
    if expected.dtype.kind == "f":
        found = glue.score("regression", expected, predicted)
        scores["root mean squared error"] = f"{math.sqrt(found['MSE']):,.4g}"
        scores["Pearson's correlation"] = f"{found['pearson']:.3f}"
    elif expected.ndim == 2:
        found = several_label_scores(expected, predicted, labels)
        scores["micro F1"] = f"{found['micro_f1']:.3f}"
        scores["all labels of a text right"] = f"{found['eval_accuracy']:.3f}"
        scores["macro F1"] = f"{found['macro_f1']:.3f}"
    else:
        one_hot = np.eye(len(labels), dtype=bool)
        scores["macro F1"] = f"{f1_by_label(one_hot[expected], one_hot[predicted], labels)['macro_f1']:.3f}"
    return scores | {f"{name}: {rows.metric}": _mean(rows, given) for name, given in rows.baselines.items()}


def _by_label(rows: Rows, cells: Sequence[str]) -> str:
    """Returns a section with the scores of the most common labels."""
    from sklearn.metrics import precision_recall_fscore_support

    *scores, counts = precision_recall_fscore_support(
        rows.expected, rows.predicted, labels=range(len(cells)), zero_division=0.0)
    common = sorted(np.argsort(-counts, kind="stable")[:_MAX_LABELS].tolist())
    return f"## By label: {rows.name}\n\n" + table(("label", "precision", "recall", "f1", "rows"), [
        (cells[i], *(f"{values[i]:.3f}" if counts[i] else "-" for values in scores), f"{int(counts[i]):,}")
        for i in common
    ])


def _confusion(rows: Rows, cells: Sequence[str]) -> str:
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(rows.expected, rows.predicted, labels=range(len(cells)))  # [C, C]
    return f"## Confusion: {rows.name}\n\n" + table(("actual \\ predicted", *cells), [
        (f"**{cell}**", *line) for cell, line in zip(cells, counts, strict=True)])


def _errors(rows: Rows, texts: Sequence[str], cells: Sequence[str], probabilities: np.ndarray) -> str:
    """Returns a table of the most confident errors, or of the largest of a regression."""
    expected, predicted = rows.expected, rows.predicted
    if not cells:
        worst = np.argsort(-np.abs(predicted - expected), kind="stable")[:_MAX_ERRORS]
        return table(("text", "actual", "predicted"), [
            (_cell(texts[i]), f"{expected[i]:.6g}", f"{predicted[i]:.6g}") for i in worst])
    confidence = (probabilities.max(-1) if expected.ndim == 1
                  else np.where(predicted, probabilities, 1 - probabilities))
    wrong = np.argwhere(predicted != expected)  # [errors, 1 or 2]: row, and label where there are several
    worst = wrong[np.argsort(-confidence[tuple(wrong.T)], kind="stable")][:_MAX_ERRORS]
    if expected.ndim == 1:
        return table(("text", "actual", "predicted", "probability"), [
            (_cell(texts[i]), cells[expected[i]], cells[predicted[i]], f"{confidence[i]:.3f}")
            for i, in worst])
    return table(("text", "label", "actual", "probability"), [
        (_cell(texts[i]), cells[j], "yes" if expected[i, j] else "no", f"{probabilities[i, j]:.3f}")
        for i, j in worst])


def _faster(precisions: Mapping[str, tuple[float, list]]) -> str | list:
    """Returns a section on the precisions that answer faster than float32; empty if none does."""
    rows, (_, expected) = [], precisions.get("float32", (1.0, []))
    for name, (speed, answers) in precisions.items():
        labels, numbers = zip(*(
            ([one.get("label", one.get("labels")) for one in each],
             np.array([[*one.get("probabilities", one).values()] for one in each]))
            for each in (answers, expected)
        ))
        if speed > 1:
            rows.append((f"`{name}`", f"{speed:.1f} times", f"{sum(map(operator.ne, *labels)):,}",
                         f"{np.abs(np.subtract(*numbers)).max():.2g}"))
    title = "`--mixed_precision`", "speed", "labels that differ", "largest change of a probability or value"
    return rows and _FASTER.format(count=len(expected)) + table(title, rows)


def _cell(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."
    return " ".join(short.split()).replace("<", "&lt;")
