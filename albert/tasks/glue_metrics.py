"""The GLUE benchmark's metrics, under the original toolkit's keys and a few more.

Pure functions of what was right and what was predicted; no TensorFlow. Where a
correlation is undefined because one side never varies, it is 0.0: such a model
has learned nothing, and a run of many tasks goes on.

Legend: N rows, C classes.
"""

import warnings
from collections.abc import Callable

import numpy as np
import scipy.stats
import sklearn.metrics

from albert.tasks.choice_metrics import likeliest


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the share of rows that are right; labels and predictions are class ids [N]."""
    return float(np.mean(labels == predictions)) if len(labels) else 0.0


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the F1 of class 1 (paraphrase, duplicate); 0.0 when it is never right."""
    return float(sklearn.metrics.f1_score(labels, predictions, zero_division=0.0))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns Matthews' correlation of class ids [N]; 0.0 when one side is constant."""
    if _is_constant(labels) or _is_constant(predictions):
        return 0.0
    return float(sklearn.metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the linear correlation of values [N]; 0.0 when one side is constant."""
    return _correlation(scipy.stats.pearsonr, labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the rank correlation of values [N]; 0.0 when one side is constant."""
    return _correlation(scipy.stats.spearmanr, labels, predictions)


def mean_squared_error(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the mean of squared differences of values [N]."""
    labels, predictions = _as_float64(labels), _as_float64(predictions)
    return float(np.mean((labels - predictions) ** 2)) if len(labels) else 0.0


def score_accuracy(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Labels [N], logits [N, C] -> eval_accuracy: most tasks."""
    return {"eval_accuracy": accuracy(labels, likeliest(logits))}


def score_accuracy_and_f1(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Labels [N], logits [N, 2] -> eval_accuracy, f1: MRPC and QQP."""
    return score_accuracy(labels, logits) | {"f1": f1(labels, likeliest(logits))}


def score_matthews(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Labels [N], logits [N, C] -> eval_accuracy, matthew_corr (sic): CoLA."""
    correlation = matthews(labels, likeliest(logits))
    return score_accuracy(labels, logits) | {"matthew_corr": correlation}


def score_regression(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Labels [N], logits [N, 1] or [N] -> pearson, spearman, MSE: STS-B."""
    values = np.reshape(logits, [-1])
    return {
        "pearson": pearson(labels, values),
        "spearman": spearman(labels, values),
        "MSE": mean_squared_error(labels, values),
    }


SCORERS: dict[str, Callable[[np.ndarray, np.ndarray], dict[str, float]]] = {
    "accuracy": score_accuracy,
    "accuracy_and_f1": score_accuracy_and_f1,
    "matthews": score_matthews,
    "regression": score_regression,
}


def _as_float64(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64)


def _is_constant(values: np.ndarray) -> bool:
    return len(values) < 2 or bool(np.all(values == values[0]))


def _correlation(function, labels: np.ndarray, predictions: np.ndarray) -> float:
    labels, predictions = _as_float64(labels), _as_float64(predictions)
    if _is_constant(labels) or _is_constant(predictions):
        return 0.0
    with warnings.catch_warnings():
        # Nearly constant values are still ranked and correlated; scipy only warns.
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        return float(function(labels, predictions).statistic)
