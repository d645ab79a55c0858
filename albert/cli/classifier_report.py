"""Reports on a classifier trained on the user's texts.

Legend: N held-out rows, C labels.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

import numpy as np

from albert.formats.model_card import table
from albert.storage import files
from albert.tasks import glue_metrics

_MAX_ERRORS = 10
_MAX_TEXT = 200  # characters to show
_NO_BETTER = ("**{} TF-IDF with logistic regression**, which trains in a second{}: start from a "
              "larger model, such as albert/albert-base-v2, or label more texts.")
_USAGE = """## Use it

    echo 'a new text' | python -m albert.predict --model={directory}

From Python:

    import albert

    session = albert.open_session({directory!r})
    print(session.classify('a new text'))
"""


@dataclasses.dataclass(frozen=True)
class Folds:
    """The accuracy on each fold of a cross-validation, and TF-IDF's unless the texts have no words."""

    accuracies: Sequence[float]
    tfidf: Sequence[float]
    num_rows: int  # of all folds

    def rows(self) -> list[tuple[str, str]]:
        """Returns the means with their standard errors, for a table."""
        count = len(self.accuracies)
        return [
            (f"{name}, {count}-fold cross-validation on {self.num_rows:,} rows",
             f"{np.mean(scores):.3f} ± {np.std(scores, ddof=1) / math.sqrt(count):.3f}")
            for name, scores in (("accuracy", self.accuracies), ("TF-IDF", self.tfidf)) if scores
        ]


def write(
    directory: str, texts: Sequence[str], labels: Sequence[str], expected: np.ndarray,
    logits: np.ndarray, probabilities: np.ndarray, settings: Sequence[tuple[str, str]],
    tfidf: np.ndarray | None = None, num_evaluations: int = 1, folds: Folds | None = None,
) -> str:
    """Publishes report.md and returns its path.

    Args:
      texts: N; the two texts of a pair are joined.
      labels: C, in the order of their ids.
      expected: ids of the labels, [N].
      logits, probabilities: [N, C].
      settings: (setting, its value and the reason), for a table.
      tfidf: ids of the labels that TF-IDF predicts, [N]; None if the texts have no words.
      num_evaluations: how many evaluations on these rows chose the checkpoint.
      folds: the results of cross-validation.
    """
    predicted = np.argmax(logits, axis=-1)
    confusion = glue_metrics.confusion_of(expected, predicted, len(labels))  # [C, C]
    accuracy = np.trace(confusion) / len(expected)
    right = predicted == expected
    cells = [_cell(label) for label in labels]
    by_label = glue_metrics.by_label(confusion)
    error_confidence = probabilities.max(-1) * ~right
    worst = np.argsort(-error_confidence, kind="stable")[:_MAX_ERRORS]
    parts = [
        f"# Classifier with {len(labels)} labels\n",
        table((f"on {len(expected):,} held-out rows", ""), [
            ("accuracy", "{:.3f} (95 % interval: {:.3f} to {:.3f})".format(
                accuracy, *interval(int(right.sum()), len(right)))),
            ("macro F1", f"{glue_metrics.macro_f1(confusion):.3f}"),
            ("TF-IDF with logistic regression", "not computed: the texts have no words"
             if tfidf is None else f"{(tfidf == expected).mean():.3f}"),
            ("always the most frequent label", f"{confusion.sum(1).max() / len(expected):.3f}"),
            *(folds.rows() if folds else ()),
        ]),
        verdict(right, None if tfidf is None else tfidf == expected, probabilities.max(-1),
                num_evaluations, folds),
        "## By label\n",
        table(("label", *by_label, "rows"), [
            (label, *(f"{values[i]:.3f}" for values in by_label.values()),
             f"{confusion[i].sum():,}")
            for i, label in enumerate(cells)
        ]),
        "## Confusion\n",
        table(("actual \\ predicted", *cells), [
            (f"**{label}**", *counts) for label, counts in zip(cells, confusion, strict=True)
        ]),
        "## Most confident errors\n",
        table(("text", "actual", "predicted", "probability"), [
            (_cell(texts[i]), cells[expected[i]], cells[predicted[i]], f"{error_confidence[i]:.3f}")
            for i in worst.tolist() if not right[i]
        ]),
    ]
    return _publish(directory, parts, settings)


def write_several(
    directory: str, texts: Sequence[str], labels: Sequence[str], expected: np.ndarray,
    probabilities: np.ndarray, threshold: float, settings: Sequence[tuple[str, str]],
    tfidf: np.ndarray | None = None,
) -> str:
    """Like `write`, for texts that may have several labels.

    Args:
      expected, tfidf: whether a text has a label, and whether TF-IDF predicts it, [N, C].
      probabilities: [N, C]; a label is predicted from `threshold` on.
    """
    predicted = probabilities >= threshold
    scores = {"model": glue_metrics.of_several_labels(expected, predicted, labels)}
    if tfidf is not None:
        scores["TF-IDF"] = glue_metrics.of_several_labels(expected, tfidf, labels)
    wrong = predicted != expected
    confidence = np.where(predicted, probabilities, 1 - probabilities) * wrong
    worst = np.argsort(-confidence, axis=None, kind="stable")[:_MAX_ERRORS]
    rows = {"micro F1": "micro_f1", "macro F1": "macro_f1", "all labels of a text right":
            "eval_accuracy"} | {f"F1 of {_cell(name)}": f"f1_{name}" for name in labels}
    verdict = ""
    if tfidf is not None and scores["model"]["micro_f1"] <= scores["TF-IDF"]["micro_f1"]:
        verdict = f"* {_NO_BETTER.format('No better than', '')}\n"
    return _publish(directory, [
        f"# Classifier with {len(labels)} labels, several per text\n",
        table((f"on {len(expected):,} held-out rows", *scores, "rows with it"), [
            (name, *(f"{score.get(key, 0):.3f}" for score in scores.values()), count)
            for (name, key), count in zip(
                rows.items(), ["", "", "", *(f"{n:,}" for n in expected.sum(0))], strict=True)
        ]),
        verdict,
        "## Most confident errors\n",
        table(("text", "label", "actual", "probability"), [
            (_cell(texts[i]), _cell(labels[j]), "yes" if expected[i, j] else "no",
             f"{probabilities[i, j]:.3f}")
            for i, j in zip(*np.unravel_index(worst, wrong.shape), strict=True) if wrong[i, j]
        ]),
    ], settings)


def _publish(directory: str, parts: list[str], settings: Sequence[tuple[str, str]]) -> str:
    parts = [*parts, "## Training\n", table(("setting", "value"), settings),
             _USAGE.format(directory=directory)]
    path = os.path.join(directory, "report.md")
    with files.atomic_write(path) as stream:
        stream.write("\n".join(parts))
    return path


def interval(hits: int, count: int) -> tuple[float, float]:
    """Returns Wilson's 95 % interval of a fraction (Wilson 1927)."""
    z, p = 1.96, hits / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + (z / (2 * count)) ** 2)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def verdict(
    right: np.ndarray, tfidf_right: np.ndarray | None, confidence: np.ndarray,
    num_evaluations: int, folds: Folds | None = None,
) -> str:
    """Interprets the figures.

    Args:
      right, tfidf_right: which rows the model and TF-IDF get right, [N].
      confidence: the probability of each answer, [N].
      num_evaluations, folds: see `write`.
    """
    count, accuracy, findings = len(right), right.mean(), []
    # A paired comparison: what both get right, or both wrong, carries no information.
    if folds and folds.tfidf:
        findings.append(_comparison(np.subtract(folds.accuracies, folds.tfidf)))
    elif tfidf_right is not None:
        findings.append(_comparison(right.astype(float) - tfidf_right))
    over, error = confidence.mean() - accuracy, math.sqrt(accuracy * (1 - accuracy) / count)
    if over > max(0.05, 2 * error):
        findings.append(f"Overconfident: its mean confidence is {100 * confidence.mean():.0f} %, its "
                        f"accuracy {100 * accuracy:.0f} %.")
    if num_evaluations > 1:
        # An upper bound on the expected maximum of `num_evaluations` independent errors.
        bias = error * math.sqrt(2 * math.log(num_evaluations))
        findings.append(f"The checkpoint is the best of {num_evaluations} evaluations on these rows, "
                        f"which inflates the accuracy by up to about {100 * bias:.1f} points; a "
                        "separate `--test_file` gives an unbiased estimate.")
    if count < 500 and not folds:
        findings.append(f"{count} rows give a rough estimate only: see the interval, or add "
                        "`--cross_validation=5`.")
    return "\n".join(f"* {line}" for line in findings) + "\n"


def _comparison(gains: np.ndarray) -> str:
    """Interprets gains over TF-IDF, [N]: of each row, or of each fold."""
    spread = gains.std(ddof=len(gains) > 1)  # 0 for a single row
    gain, error = 100 * gains.mean(), 100 * spread / math.sqrt(len(gains))
    if gain > 2 * error:
        return f"Better than TF-IDF by {gain:.1f} points (± {error:.1f})."
    how = "Worse than" if gain < -2 * error else "Not clearly better than"
    return _NO_BETTER.format(how, f" ({gain:+.1f} ± {error:.1f} points)")


def _cell(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."
    return short.replace("|", "\\|").replace("<", "&lt;")
