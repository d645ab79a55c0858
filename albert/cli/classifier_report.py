"""Reports on a model trained on the user's labelled texts.

Legend: N rows, C labels.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from albert.cli import report_page
from albert.formats.model_card import table
from albert.tasks import glue_metrics

# With fewer rows, a difference that matters is often a matter of luck.
ENOUGH_ROWS = 500
_MAX_ERRORS = 10
_MAX_TEXT = 200  # characters to show
_LARGER = "Start from a larger model, such as albert/albert-base-v2, or label more texts."
_VALIDATE = "`--cross_validation=5` tests all rows; it trains five more times."
_UNREADABLE = "Use a model whose vocabulary can read these texts (docs/guides/another_language.md)."
_THRESHOLD = "Lower `--threshold`, so that rare labels are predicted at smaller probabilities."
_BASELINE = "TF-IDF: words and word pairs, logarithmic counts; C = 10 for labels, alpha = 1 for numbers.\n"
_NEVER = "**Never predicts"
_WEIGHTS = "Add `--class_weights=balanced`, so that rare labels count as much as common ones."
_USE = "The model is better than both baselines: use it. A larger one, or more labelled texts, may gain more."
_LESS_ERROR = "less error on average"
_USAGE = """## Use it

    echo 'a new text' | python -m albert.predict --model={directory}

`README.md` shows how from Python.
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


def write(
    directory: str, texts: Sequence[str], labels: Sequence[str], rows: Sequence[Rows],
    probabilities: np.ndarray, settings: Sequence[tuple[str, str]], is_balanced: bool = False,
    may_validate: bool = True,
) -> str:
    """Publishes report.md and report.html; returns the path of the former.

    Args:
      texts: N; the two texts of a pair are joined.
      labels: C, in the order of their ids.
      rows: the held-out rows, and others; the largest number of them decides.
      probabilities: of the held-out rows, [N, C].
      settings: (setting, its value and the reason), for a table.
      is_balanced: whether all labels counted the same in training.
      may_validate: see `advice`.
    """
    confidence, expected, predicted = probabilities.max(-1), rows[0].expected, rows[0].predicted
    confusion = glue_metrics.confusion_of(expected, predicted, len(labels))  # [C, C]
    cells, right = [_cell(label) for label in labels], predicted == expected
    worst = np.argsort(-confidence * ~right, kind="stable")[:_MAX_ERRORS]
    findings = verdict(rows, labels)
    is_uneven = 2 * confusion.sum(1).min() < confusion.sum(1).mean()
    needs_weights = is_uneven and not is_balanced and any(line.startswith(_NEVER) for line in findings)
    return _publish(directory, f"Classifier with {len(labels)} labels", [
        table(("", *(one.name for one in rows)), [
            ("accuracy", *(_accuracy(one) for one in rows)),
            ("macro F1", *(f"{_macro_f1(one, labels):.3f}" for one in rows)),
            *_of_baselines(rows, lambda one, given: f"{np.mean(given == one.expected):.3f}", ": accuracy"),
        ]),
        _listed(findings),
        "## What to do next\n",
        _listed(advice(rows, gain_over, needs_weights, may_validate, _is_readable(settings))),
        *_by_label(rows[0], labels),
        "## Confusion\n",
        table(("actual \\ predicted", *cells), [
            (f"**{label}**", *counts) for label, counts in zip(cells, confusion, strict=True)
        ]),
        "## Most confident errors\n",
        table(("text", "actual", "predicted", "probability"), [
            (_cell(texts[i]), cells[expected[i]], cells[predicted[i]], f"{confidence[i]:.3f}")
            for i in worst.tolist() if not right[i]
        ]),
    ], "eval_accuracy", settings)


def write_several(
    directory: str, texts: Sequence[str], labels: Sequence[str], rows: Sequence[Rows],
    probabilities: np.ndarray, settings: Sequence[tuple[str, str]],
) -> str:
    """Like `write`, for texts that may have several labels."""
    held_out, expected = rows[0], rows[0].expected
    scores = [glue_metrics.of_several_labels(one.expected, one.predicted, labels) for one in rows]
    wrong = held_out.predicted != expected
    confidence = np.where(held_out.predicted, probabilities, 1 - probabilities) * wrong
    worst = np.argsort(-confidence, axis=None, kind="stable")[:_MAX_ERRORS]
    return _publish(directory, f"Classifier with {len(labels)} labels, several per text", [
        table(("", *(one.name for one in rows)), [
            *((name, *(f"{score[key]:.3f}" for score in scores)) for name, key in (
                ("micro F1", "micro_f1"), ("macro F1", "macro_f1"),
                ("all labels of a text right", "eval_accuracy"),
            )),
            *_of_baselines(rows, lambda one, given: (
                f"{glue_metrics.f1(one.expected.ravel(), given.ravel()):.3f}"), ": micro F1"),
        ]),
        _listed(_comparisons(rows, _f1_gain) + _unanswered(rows, labels)),
        "## What to do next\n",
        _listed([_THRESHOLD] * any(line.startswith(_NEVER) for line in _unanswered(rows, labels))
                + advice(rows, _f1_gain, False, False, _is_readable(settings))),
        *_by_label(held_out, labels),
        "## Most confident errors\n",
        table(("text", "label", "actual", "probability"), [
            (_cell(texts[i]), _cell(labels[j]), "yes" if expected[i, j] else "no",
             f"{probabilities[i, j]:.3f}")
            for i, j in zip(*np.unravel_index(worst, wrong.shape), strict=True) if wrong[i, j]
        ]),
    ], "micro_f1", settings)


def write_regression(
    directory: str, texts: Sequence[str], rows: Sequence[Rows],
    settings: Sequence[tuple[str, str]],
) -> str:
    """Like `write`, for numbers instead of labels."""
    held_out = rows[0]
    errors = np.abs(held_out.predicted - held_out.expected)
    scores = [glue_metrics.score("regression", one.expected, one.predicted) for one in rows]
    return _publish(directory, "Regression", [
        table(("", *(one.name for one in rows)), [
            ("mean absolute error", *(_mean_error(one, one.predicted) for one in rows)),
            ("root mean squared error", *(_number(math.sqrt(score["MSE"])) for score in scores)),
            ("Pearson's correlation", *(f"{score['pearson']:.3f}" for score in scores)),
            *_of_baselines(rows, _mean_error, ": mean absolute error"),
        ]),
        _listed(_comparisons(rows, _error_gain, _LESS_ERROR)),
        "## What to do next\n", _listed(advice(rows, _error_gain, False, False, _is_readable(settings))),
        "## Largest errors\n",
        table(("text", "actual", "predicted"), [
            (_cell(texts[i]), f"{held_out.expected[i]:.6g}", f"{held_out.predicted[i]:.6g}")
            for i in np.argsort(-errors, kind="stable")[:_MAX_ERRORS].tolist()
        ]),
    ], "pearson", settings)


def _is_readable(settings: Sequence[tuple[str, str]]) -> bool:
    return not any("unknown to the vocabulary" in value for _, value in settings)


def _publish(
    directory: str, title: str, parts: Sequence[str], metric: str, settings: Sequence[tuple[str, str]]
) -> str:
    """Publishes a report with the held-out `metric` of each evaluation."""
    return report_page.publish(directory, title, [
        *parts, "## Learning curve\n", report_page.curve(directory, metric),
        "## Training\n", _BASELINE, table(("setting", "value"), settings), _USAGE.format(directory=directory),
    ])


# === The verdict ===


def verdict(rows: Sequence[Rows], labels: Sequence[str]) -> list[str]:
    """Returns what the figures say; for the arguments see `write`."""
    return _comparisons(rows, gain_over) + _unanswered(rows, labels)


def advice(
    rows: Sequence[Rows], gain_of: Callable, needs_weights: bool = False, may_validate: bool = True,
    is_readable: bool = True,
) -> list[str]:
    """Returns what to do next.

    Args:
      gain_of: see `_gains`.
      may_validate: whether --cross_validation is possible, and was not turned off.
      is_readable: whether the vocabulary can read the texts.
      needs_weights: whether labels that are never predicted counted less than others in training.
    """
    decisive, steps = max(rows, key=len), [_WEIGHTS] if needs_weights else []
    if all(low > 0 for _, low, _ in _gains(decisive, gain_of).values()):
        return steps or [_USE]
    if len(decisive) < ENOUGH_ROWS and may_validate and len(rows) == 1:
        steps.append(_VALIDATE)
    elif not needs_weights:
        steps.append(_LARGER if is_readable else _UNREADABLE)
    return steps


def gain_over(rows: Rows, answers: np.ndarray) -> tuple[float, float, float]:
    """Returns the gain in accuracy over other answers to the same rows, with its 95 % interval.

    What both get right, or both wrong, tells nothing; so this is the interval of a difference of
    paired proportions (Agresti and Min 2005, Statistics in Medicine 24), in points.
    """
    gains = (rows.predicted == rows.expected).astype(float) - (answers == rows.expected)
    count = len(gains) + 2  # half a row more of each of the four outcomes
    middle = gains.sum() / count
    error = math.sqrt((np.abs(gains).sum() + 1 - count * middle**2)) / count
    return tuple(100 * x for x in (gains.mean(), middle - 1.96 * error, middle + 1.96 * error))


def _gains(rows: Rows, gain_of: Callable) -> dict[str, tuple[float, float, float]]:
    """Returns {baseline: the gain over its answers, with its 95 % interval}.

    Args:
      gain_of: (rows, answers of a baseline) -> gain, and the ends of its interval.
    """
    return {name: gain_of(rows, given) for name, given in rows.baselines.items()}


def _comparisons(rows: Sequence[Rows], gain_of: Callable, unit: str = "points") -> list[str]:
    """Compares the largest number of rows with each baseline, by a gain in this unit."""
    decisive = max(rows, key=len)
    return [
        _comparison(name, len(decisive), *gain, unit) for name, gain in _gains(decisive, gain_of).items()
    ]


def _comparison(name: str, count: int, gain: float, low: float, high: float, unit: str) -> str:
    """Interprets a gain over a baseline and its 95 % interval."""
    shown = [f"{x:+.1f}" if unit == "points" else _number(x, sign=True) for x in (gain, low, high)]
    span = "{} {}, 95 % interval: {} to {}".format(shown[0], unit, *shown[1:])
    if low > 0:
        return f"Better than {name} ({span})."
    if high < 0:
        return f"**Worse than {name}** ({span})."
    if count < ENOUGH_ROWS:
        return f"**{count} rows cannot tell** whether the model is better than {name} ({span})."
    return f"**No clear difference from {name}** on {count:,} rows ({span})."


def _unanswered(rows: Sequence[Rows], labels: Sequence[str]) -> list[str]:
    """Names the labels that are never predicted, and those that no row has."""
    decisive = max(rows, key=len)
    occurring, given = (  # [C]; where texts may have several labels, they are booleans [N, C]
        x.sum(0) if x.ndim == 2 else np.bincount(x, minlength=len(labels))
        for x in (decisive.expected, decisive.predicted)
    )
    silent, absent = (
        ", ".join(_cell(label) for label, is_meant in zip(labels, chosen) if is_meant)
        for chosen in ((given == 0) & (occurring > 0), occurring == 0)
    )
    return [
        *([f"{_NEVER} {silent}**."] if silent else []),
        *([f"No row has the label {absent}, so nothing is measured for it."] if absent else []),
    ]


# === Figures ===


def _accuracy(rows: Rows) -> str:
    """Returns the accuracy with its 95 % interval (Wilson 1927)."""
    from scipy.stats import binomtest

    hits = int((rows.predicted == rows.expected).sum())
    low, high = binomtest(hits, len(rows)).proportion_ci(method="wilson")
    return f"{hits / len(rows):.3f} (95 % interval: {low:.3f} to {high:.3f})"


def _macro_f1(rows: Rows, labels: Sequence[str]) -> float:
    return glue_metrics.f1_by_label(rows.expected, rows.predicted, labels)["macro_f1"]


def _mean_error(rows: Rows, answers: np.ndarray) -> str:
    return _number(np.abs(answers - rows.expected).mean())


def _number(value: float, **options: bool) -> str:
    """Returns four significant digits, without exponents."""
    return np.format_float_positional(value, 4, fractional=False, trim="-", **options)


def _f1_gain(rows: Rows, answers: np.ndarray) -> tuple[float, float, float]:
    """Returns the gain in micro F1 in points, with its 95 % interval by bootstrapping the rows."""
    rng, count = np.random.default_rng(0), len(rows)
    weights = rng.multinomial(count, [1 / count] * count, size=2000)  # [samples, N]

    def f1_of(predicted: np.ndarray, weights: np.ndarray = weights) -> np.ndarray:
        hits = 2 * (rows.expected & predicted).sum(1)
        return weights @ hits / np.maximum(weights @ (rows.expected.sum(1) + predicted.sum(1)), 1)

    gain = f1_of(rows.predicted, np.ones(count)) - f1_of(answers, np.ones(count))
    low, high = np.quantile(f1_of(rows.predicted) - f1_of(answers), (0.025, 0.975))
    return 100 * float(gain), 100 * float(low), 100 * float(high)


def _error_gain(rows: Rows, answers: np.ndarray) -> tuple[float, float, float]:
    """Returns by how much less the absolute error is, with its 95 % interval."""
    gains = np.abs(answers - rows.expected) - np.abs(rows.predicted - rows.expected)
    gain, error = float(gains.mean()), float(gains.std() / math.sqrt(len(gains)))
    return gain, gain - 1.96 * error, gain + 1.96 * error


def _of_baselines(
    rows: Sequence[Rows], measure: Callable[[Rows, np.ndarray], str], suffix: str = ""
) -> list[tuple[str, ...]]:
    """Returns a line of a table for each baseline."""
    return [
        (name + suffix, *(measure(one, one.baselines[name]) for one in rows)) for name in rows[0].baselines
    ]


def _by_label(rows: Rows, labels: Sequence[str]) -> list[str]:
    """Returns a heading and a table of each label's scores."""
    scores = glue_metrics.by_label(rows.expected, rows.predicted, len(labels))
    is_one = rows.expected.ndim == 1
    counts = np.bincount(rows.expected, minlength=len(labels)) if is_one else rows.expected.sum(0)
    return ["## By label\n", table(("label", *scores, "rows"), [
        (_cell(label), *(f"{values[i]:.3f}" if counts[i] else "-" for values in scores.values()),
         f"{counts[i]:,}")
        for i, label in enumerate(labels)
    ])]


def _listed(findings: Sequence[str]) -> str:
    return "".join(f"* {line}\n" for line in findings)


def _cell(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."
    return " ".join(short.split()).replace("|", "\\|").replace("<", "&lt;")
