"""Reports on a model trained on the user's labelled texts.

Legend: N rows, C labels.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

import numpy as np

from albert.formats.model_card import table
from albert.storage import files
from albert.tasks import glue_metrics

# With fewer rows, a difference that matters is often a matter of luck.
ENOUGH_ROWS = 500
_MAX_ERRORS = 10
_MAX_TEXT = 200  # characters to show
_ADVICE = "Start from a larger model, such as albert/albert-base-v2, or label more texts."
_VALIDATE = "`--cross_validation=5` tests all rows; it trains five more times."
_USAGE = """## Use it

    echo 'a new text' | python -m albert.predict --model={directory}

From Python:

    import albert

    session = albert.open_session({directory!r})
    print(session.classify('a new text'))
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
    usual: np.ndarray  # the training rows' most frequent label or mean, for each row
    tfidf: np.ndarray | None  # None if the texts have no words

    def __len__(self) -> int:
        return len(self.expected)

    @classmethod
    def joined(cls, name: str, parts: Sequence["Rows"]) -> "Rows":
        """Returns the rows of the folds of a cross-validation."""
        def all_of(field: str) -> np.ndarray | None:
            arrays = [getattr(part, field) for part in parts]
            return None if any(array is None for array in arrays) else np.concatenate(arrays)

        return cls(name, *map(all_of, ("expected", "predicted", "usual", "tfidf")))

    def baselines(self) -> dict[str, np.ndarray]:
        """Returns the answers of the baselines, the simplest one first."""
        tfidf = {} if self.tfidf is None else {"TF-IDF": self.tfidf}
        return {"usual": self.usual} | tfidf


def write(
    directory: str, texts: Sequence[str], labels: Sequence[str], rows: Sequence[Rows],
    probabilities: np.ndarray, settings: Sequence[tuple[str, str]], num_evaluations: int = 1,
    is_balanced: bool = False,
) -> str:
    """Publishes report.md and returns its path.

    Args:
      texts: N; the two texts of a pair are joined.
      labels: C, in the order of their ids.
      rows: the held-out rows, and others; the largest number of them decides.
      probabilities: of the held-out rows, [N, C].
      settings: (setting, its value and the reason), for a table.
      num_evaluations: how many evaluations on the held-out rows chose the checkpoint.
      is_balanced: whether all labels counted the same in training.
    """
    held_out, confidence = rows[0], probabilities.max(-1)
    expected, predicted = held_out.expected, held_out.predicted
    confusion = glue_metrics.confusion_of(expected, predicted, len(labels))  # [C, C]
    cells, right = [_cell(label) for label in labels], predicted == expected
    by_label = glue_metrics.by_label(expected, predicted, len(labels))
    worst = np.argsort(-confidence * ~right, kind="stable")[:_MAX_ERRORS]
    usual = cells[held_out.usual[0]]
    findings = verdict(rows, labels, num_evaluations, is_balanced)
    findings += overconfidence(right, confidence)
    return _publish(directory, [
        f"# Classifier with {len(labels)} labels\n",
        table(("", *(one.name for one in rows)), [
            ("accuracy", *(_accuracy(one) for one in rows)),
            ("macro F1", *(f"{_macro_f1(one, labels):.3f}" for one in rows)),
            (f"always the most frequent label ({usual})",
             *(f"{np.mean(one.usual == one.expected):.3f}" for one in rows)),
            ("TF-IDF with logistic regression", *(
                "not computed: the texts have no words" if one.tfidf is None
                else f"{np.mean(one.tfidf == one.expected):.3f}" for one in rows)),
        ]),
        _listed(findings),
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
            (_cell(texts[i]), cells[expected[i]], cells[predicted[i]], f"{confidence[i]:.3f}")
            for i in worst.tolist() if not right[i]
        ]),
    ], settings)


def write_several(
    directory: str, texts: Sequence[str], labels: Sequence[str], rows: Sequence[Rows],
    probabilities: np.ndarray, settings: Sequence[tuple[str, str]],
) -> str:
    """Like `write`, for texts that may have several labels."""
    expected, predicted = rows[0].expected, rows[0].predicted
    answers = {"model": predicted, "always the most frequent label": rows[0].usual}
    if rows[0].tfidf is not None:
        answers["TF-IDF"] = rows[0].tfidf
    scores = {
        name: glue_metrics.of_several_labels(expected, given, labels)
        for name, given in answers.items()
    }
    wrong = predicted != expected
    confidence = np.where(predicted, probabilities, 1 - probabilities) * wrong
    worst = np.argsort(-confidence, axis=None, kind="stable")[:_MAX_ERRORS]
    metrics = {"micro F1": "micro_f1", "macro F1": "macro_f1", "all labels of a text right":
               "eval_accuracy"} | {f"F1 of {_cell(name)}": f"f1_{name}" for name in labels}
    decisive = max(rows, key=len)
    findings = [
        _comparison(name, len(decisive), *_f1_gain(decisive, answers))
        for name, answers in zip(
            ("always the most frequent label", "TF-IDF with logistic regression"),
            decisive.baselines().values())
    ]
    return _publish(directory, [
        f"# Classifier with {len(labels)} labels, several per text\n",
        table((rows[0].name, *scores, "rows with it"), [
            (name, *(f"{score.get(key, 0):.3f}" for score in scores.values()), count)
            for (name, key), count in zip(
                metrics.items(), ["", "", "", *(f"{n:,}" for n in expected.sum(0))], strict=True)
        ]),
        _listed([
            *(f"Micro F1 on {one.name}: {glue_metrics.f1(one.expected.ravel(), one.predicted.ravel()):.3f}."
              for one in rows[1:]),
            *findings, *_labels_of_no_answer(decisive, labels),
        ]),
        "## Most confident errors\n",
        table(("text", "label", "actual", "probability"), [
            (_cell(texts[i]), _cell(labels[j]), "yes" if expected[i, j] else "no",
             f"{probabilities[i, j]:.3f}")
            for i, j in zip(*np.unravel_index(worst, wrong.shape), strict=True) if wrong[i, j]
        ]),
    ], settings)


def write_regression(
    directory: str, texts: Sequence[str], rows: Sequence[Rows],
    settings: Sequence[tuple[str, str]],
) -> str:
    """Like `write`, for numbers instead of labels."""
    held_out, decisive = rows[0], max(rows, key=len)
    errors = np.abs(held_out.predicted - held_out.expected)
    scores = [glue_metrics.score("regression", one.expected, one.predicted) for one in rows]
    findings = []
    for name, given in zip(("the mean", "TF-IDF with ridge regression"), decisive.baselines().values()):
        gains = np.abs(given - decisive.expected) - np.abs(decisive.predicted - decisive.expected)
        gain, error = float(gains.mean()), float(gains.std() / math.sqrt(len(gains)))
        findings.append(_comparison(
            name, len(decisive), gain, gain - 1.96 * error, gain + 1.96 * error, "less error on average"
        ))
    return _publish(directory, [
        "# Regression\n",
        table(("", *(one.name for one in rows)), [
            ("mean absolute error", *(_mean_error(one, one.predicted) for one in rows)),
            ("root mean squared error", *(_number(math.sqrt(score["MSE"])) for score in scores)),
            ("Pearson's correlation", *(f"{score['pearson']:.3f}" for score in scores)),
            (f"always the mean ({_number(held_out.usual[0])}): mean absolute error",
             *(_mean_error(one, one.usual) for one in rows)),
            ("TF-IDF with ridge regression: mean absolute error",
             *("not computed" if one.tfidf is None else _mean_error(one, one.tfidf) for one in rows)),
        ]),
        _listed(findings),
        "## Largest errors\n",
        table(("text", "actual", "predicted"), [
            (_cell(texts[i]), f"{held_out.expected[i]:.6g}", f"{held_out.predicted[i]:.6g}")
            for i in np.argsort(-errors, kind="stable")[:_MAX_ERRORS].tolist()
        ]),
    ], settings)


def _publish(directory: str, parts: list[str], settings: Sequence[tuple[str, str]]) -> str:
    parts = [*parts, "## Training\n", table(("setting", "value"), settings),
             _USAGE.format(directory=directory)]
    path = os.path.join(directory, "report.md")
    with files.atomic_write(path) as stream:
        stream.write("\n".join(parts))
    return path


# === The verdict ===


def verdict(
    rows: Sequence[Rows], labels: Sequence[str], num_evaluations: int = 1, is_balanced: bool = False
) -> list[str]:
    """Returns what the figures say; for the arguments see `write`."""
    decisive, findings = max(rows, key=len), []
    names = (f"always answering {_cell(labels[decisive.usual[0]])}", "TF-IDF with logistic regression")
    silent = _labels_of_no_answer(decisive, labels, is_balanced)
    gains = [gain_over(decisive, given) for given in decisive.baselines().values()]
    findings = [
        _comparison(name, len(decisive), *gain) for name, gain in zip(names, gains)
    ] + silent
    is_better = all(low > 0 for _, low, _ in gains)
    if not is_better and len(decisive) < ENOUGH_ROWS and len(rows) == 1:
        findings.append(_VALIDATE)
    elif not is_better and (is_balanced or not silent):
        findings.append(_ADVICE)
    if num_evaluations > 1:
        count, accuracy = len(rows[0]), np.mean(rows[0].predicted == rows[0].expected)
        # An upper bound on the expected maximum of `num_evaluations` independent errors.
        bias = math.sqrt(accuracy * (1 - accuracy) / count * 2 * math.log(num_evaluations))
        findings.append(f"The checkpoint is the best of {num_evaluations} evaluations on the held-out "
                        f"rows, which inflates their accuracy by up to about {100 * bias:.1f} points; "
                        "a labelled `--test_file` gives an unbiased estimate.")
    return findings


def is_undecided(rows: Rows) -> bool:
    """Whether the rows are too few to tell that the model is better or worse than a baseline."""
    gains = [gain_over(rows, given) for given in rows.baselines().values()]
    return len(rows) < ENOUGH_ROWS and any(low <= 0 <= high for _, low, high in gains)


def overconfidence(right: np.ndarray, confidence: np.ndarray) -> list[str]:
    """Compares the probabilities of the answers [N] with how many are right [N]."""
    accuracy = right.mean()
    over = confidence.mean() - accuracy
    if over <= max(0.05, 2 * math.sqrt(accuracy * (1 - accuracy) / len(right))):
        return []
    return [f"Overconfident: its mean confidence is {100 * confidence.mean():.0f} %, its accuracy "
            f"{100 * accuracy:.0f} %."]


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


def _comparison(
    name: str, count: int, gain: float, low: float, high: float, unit: str = "points"
) -> str:
    """Interprets a gain over a baseline and its 95 % interval."""
    shown = [f"{x:+.1f}" if unit == "points" else _number(x, sign=True) for x in (gain, low, high)]
    span = "{} {}, 95 % interval: {} to {}".format(shown[0], unit, *shown[1:])
    if low > 0:
        return f"Better than {name} ({span})."
    if high < 0:
        return f"**Worse than {name}** ({span})."
    if count < ENOUGH_ROWS:
        return f"**{count} rows cannot tell** whether it is better than {name} ({span})."
    return f"**No clear difference from {name}** on {count:,} rows ({span})."


def _labels_of_no_answer(
    rows: Rows, labels: Sequence[str], is_balanced: bool = True
) -> list[str]:
    """Names the labels that are never predicted, and those that no row has."""
    if rows.expected.ndim == 1:
        occurring, given = (np.bincount(x, minlength=len(labels)) for x in (rows.expected, rows.predicted))
    else:
        occurring, given = rows.expected.sum(0), rows.predicted.sum(0)
    silent, absent = (
        ", ".join(_cell(label) for label, is_meant in zip(labels, chosen) if is_meant)
        for chosen in ((given == 0) & (occurring > 0), occurring == 0)
    )
    remedy = "label more texts of this kind" if is_balanced else "add `--class_weights=balanced`"
    return [
        *([f"**Never predicts {silent}**: {remedy}."] if silent else []),
        *([f"No row has the label {absent}, so nothing is measured for it."] if absent else []),
    ]


# === Figures ===


def interval(hits: int, count: int) -> tuple[float, float]:
    """Returns Wilson's 95 % interval of a fraction (Wilson 1927)."""
    z, p = 1.96, hits / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + (z / (2 * count)) ** 2)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _accuracy(rows: Rows) -> str:
    hits = int((rows.predicted == rows.expected).sum())
    low, high = interval(hits, len(rows))
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


def _listed(findings: Sequence[str]) -> str:
    return "".join(f"* {line}\n" for line in findings)


def _cell(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."
    return short.replace("|", "\\|").replace("<", "&lt;")
