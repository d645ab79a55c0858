"""The GLUE benchmark's metrics, under the original toolkit's keys and a few more.

A correlation is undefined if all labels or all predictions are equal. It is then 0.0, because
such a model has learned nothing. No TensorFlow.

Legend: N rows, C classes.
"""

from collections.abc import Sequence

import numpy as np

METRICS = ("accuracy", "accuracy_and_f1", "matthews", "regression")


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the fraction of rows that are right; labels and predictions are class ids [N]."""
    return float(np.mean(labels == predictions)) if len(labels) else 0.0


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the F1 of class 1 (paraphrase, duplicate); 0.0 when it is never right."""
    right = np.sum((labels == 1) & (predictions == 1))
    return float(2 * right / (np.sum(labels == 1) + np.sum(predictions == 1))) if right else 0.0


def macro_f1(confusion: np.ndarray) -> float:
    """Returns the mean F1 of the labels that occur or are predicted, as scikit-learn has it."""
    occurs = confusion.sum(0) + confusion.sum(1) > 0
    return float(by_label(confusion)["f1"][occurs].mean()) if occurs.any() else 0.0


def confusion_of(labels: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """Returns the confusion matrix [C, C]: actual labels by predicted labels."""
    flat = np.bincount(labels * classes + predictions, minlength=classes * classes)
    return flat.reshape(classes, classes)


def by_label(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Returns `precision`, `recall` and `f1` of each label, [C]; 0 if undefined."""
    return _scores(np.diag(confusion), confusion.sum(0), confusion.sum(1))


def _scores(right: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> dict[str, np.ndarray]:
    def ratio(part, total):
        return np.divide(part, total, out=np.zeros(len(part)), where=total > 0)

    return {
        "precision": ratio(right, predicted), "recall": ratio(right, actual),
        "f1": ratio(2 * right, predicted + actual),
    }


def f1_by_label(
    labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]
) -> dict[str, float]:
    """Returns `macro_f1`, and `f1_<label>` of each label that occurs in `labels` [N]."""
    confusion = confusion_of(labels, predictions, len(names))
    scores = by_label(confusion)["f1"]
    return {"macro_f1": macro_f1(confusion)} | {
        f"f1_{names[i]}": float(scores[i]) for i in np.flatnonzero(confusion.sum(1))
    }


def of_several_labels(
    actual: np.ndarray, predicted: np.ndarray, names: Sequence[str]
) -> dict[str, float]:
    """Returns multi-label scores of booleans [N, C].

    `eval_accuracy` is the fraction of texts with all labels right. `micro_f1` counts each label of
    each text; `macro_f1` leaves out labels that neither occur nor are predicted.
    """
    counts = ((actual & predicted).sum(0), predicted.sum(0), actual.sum(0))  # [C] each
    label_f1 = _scores(*counts)["f1"]
    is_counted = counts[1] + counts[2] > 0
    return {
        "eval_accuracy": float((actual == predicted).all(1).mean()) if len(actual) else 0.0,
        "micro_f1": float(_scores(*(x.sum(keepdims=True) for x in counts))["f1"][0]),
        "macro_f1": float(label_f1[is_counted].mean()) if is_counted.any() else 0.0,
    } | {f"f1_{names[i]}": float(label_f1[i]) for i in np.flatnonzero(counts[2])}


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns Matthews' correlation of class ids [N]; 0.0 if one side is constant.

    It is computed from the counts of each class (Gorodkin, 2004, equation 8).
    """
    right, count = float(np.sum(labels == predictions)), float(len(labels))
    classes = 1 + max(labels.max(initial=0), predictions.max(initial=0))
    x, y = (np.bincount(ids, minlength=classes).astype(float) for ids in (labels, predictions))
    variances = (count**2 - np.dot(x, x)) * (count**2 - np.dot(y, y))
    return float((right * count - np.dot(x, y)) / np.sqrt(variances)) if variances else 0.0


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the linear correlation of values [N]; 0.0 if one side is constant."""
    if len(labels) < 2 or not (np.ptp(labels) and np.ptp(predictions)):
        return 0.0
    return float(np.corrcoef(labels, predictions, dtype=np.float64)[1, 0])


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the rank correlation of values [N]; 0.0 if one side is constant."""
    return pearson(_ranks(labels), _ranks(predictions))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns each value's rank; equal values have the mean of their ranks."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[index]


def score(metric: str, labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Returns the results of one of METRICS.

    Args:
      labels: [N], class ids, or values of a regression.
      logits: [N, C]; of a regression [N, 1] or [N].
    """
    if metric == "regression":  # STS-B
        values = np.reshape(logits, [-1])
        errors = np.asarray(labels, np.float64) - np.asarray(values, np.float64)
        return {
            "pearson": pearson(labels, values),
            "spearman": spearman(labels, values),
            "MSE": float(np.mean(errors**2)) if len(errors) else 0.0,
        }
    # From logits: float32 can round different logits to equal probabilities.
    predictions = np.argmax(logits, axis=-1)
    results = {"eval_accuracy": accuracy(labels, predictions)}
    if metric == "accuracy_and_f1":  # MRPC and QQP
        results["f1"] = f1(labels, predictions)
    elif metric == "matthews":  # CoLA; the key is the original's
        results["matthew_corr"] = matthews(labels, predictions)
    return results


def best_metric(metric: str) -> str:
    """Returns the key of the result that decides on the best checkpoint, as in the original."""
    keys = {"matthews": "matthew_corr", "regression": "pearson", "several_labels": "micro_f1"}
    return keys.get(metric, "eval_accuracy")
