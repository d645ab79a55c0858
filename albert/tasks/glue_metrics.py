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
    from sklearn.metrics import f1_score

    return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))


def confusion_of(labels: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """Returns the confusion matrix [C, C]: actual labels by predicted labels."""
    from sklearn.metrics import confusion_matrix

    return confusion_matrix(labels, predictions, labels=range(classes))


def by_label(labels: np.ndarray, predictions: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """Returns `precision`, `recall` and `f1` of each label, [C]; 0 if undefined.

    Or of each column, if labels and predictions are booleans [N, C].
    """
    from sklearn.metrics import precision_recall_fscore_support

    scores = precision_recall_fscore_support(
        labels, predictions, labels=range(classes), zero_division=0.0
    )
    return dict(zip(("precision", "recall", "f1"), scores[:3], strict=True))


def f1_by_label(
    labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]
) -> dict[str, float]:
    """Returns `macro_f1`, and `f1_<label>` of each label that occurs in `labels`.

    `macro_f1` leaves out labels that neither occur nor are predicted. For the shapes see `by_label`.
    """
    one_hot = np.eye(len(names), dtype=bool)
    actual, predicted = (x if x.ndim == 2 else one_hot[x] for x in (labels, predictions))
    scores, occurs = by_label(labels, predictions, len(names))["f1"], actual.any(0)
    is_counted = occurs | predicted.any(0)
    return {"macro_f1": float(scores[is_counted].mean()) if is_counted.any() else 0.0} | {
        f"f1_{names[i]}": float(scores[i]) for i in np.flatnonzero(occurs)
    }


def of_several_labels(
    actual: np.ndarray, predicted: np.ndarray, names: Sequence[str]
) -> dict[str, float]:
    """Returns multi-label scores of booleans [N, C].

    `eval_accuracy` is the fraction of texts with all labels right. `micro_f1` counts each label of
    each text.
    """
    return {
        "eval_accuracy": float((actual == predicted).all(1).mean()) if len(actual) else 0.0,
        "micro_f1": f1(actual.ravel(), predicted.ravel()),
    } | f1_by_label(actual, predicted, names)


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns Matthews' correlation of class ids [N]; 0.0 if one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    if len({*labels, *predictions}) < 2:  # of which scikit-learn warns
        return 0.0
    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the linear correlation of values [N]; 0.0 if one side is constant."""
    if len(labels) < 2 or not (np.ptp(labels) and np.ptp(predictions)):
        return 0.0
    return float(np.corrcoef(labels, predictions, dtype=np.float64)[1, 0])


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the rank correlation of values [N]; 0.0 if one side is constant."""
    from scipy.stats import rankdata

    return pearson(rankdata(labels), rankdata(predictions))


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
