"""GLUE's metrics: the original's numbers, and what is done where they are undefined."""

import numpy as np
import pytest

from albert.tasks import glue_metrics as glue


def golden_rows(golden_path, task):
    """Returns labels, logits and losses of the real rows of three batches, and the results."""
    data = np.load(golden_path("heads/classifier_metrics.npz"))

    def rows(name):
        return np.concatenate([data[f"{task}/batch{i}/{name}"] for i in range(3)])

    real = rows("is_real_example") > 0
    prefix = f"{task}/result/"
    results = {k.removeprefix(prefix): data[k] for k in data.files if k.startswith(prefix)}
    return rows("label_ids")[real], rows("logits")[real], rows("per_example_loss")[real], results


@pytest.mark.parametrize(
    ("task", "metric", "keys"),
    [
        ("mnli", "accuracy", ["eval_accuracy"]),
        ("cola", "matthews", ["eval_accuracy", "matthew_corr"]),
        ("sts-b", "regression", ["pearson", "MSE"]),
    ],
)
def test_scores_equal_the_originals_without_its_padding_rows(golden_path, task, metric, keys):
    labels, logits, losses, want = golden_rows(golden_path, task)
    got = glue.score(metric, labels, logits)
    for key in keys:
        assert got[key] == pytest.approx(float(want[key]), abs=2e-6), key
    assert losses.mean() == pytest.approx(float(want["eval_loss"]), abs=2e-6)


def test_f1_is_of_class_1():
    labels, guesses = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0])
    assert glue.f1(labels, guesses) == pytest.approx(2 / 3)
    assert glue.accuracy(labels, guesses) == pytest.approx(0.6)


def test_correlations_are_those_of_scipy_and_scikit_learn_ties_and_all():
    labels = np.array([0.0, 1.0, 1.0, 2.0, 3.5, 5.0, 5.0, 5.0])
    values = np.array([0.1, 0.3, 0.2, 2.0, 2.0, 4.0, 5.0, 3.0])
    assert glue.pearson(labels, values) == pytest.approx(0.9311247124513947, abs=1e-14)
    assert glue.spearman(labels, values) == pytest.approx(0.9632566387742928, abs=1e-14)
    labels = np.array([0, 1, 1, 2, 2, 2, 0, 1, 2, 0])
    guesses = np.array([0, 1, 2, 2, 2, 0, 0, 1, 1, 1])
    assert glue.matthews(labels, guesses) == 0.4090909090909091
    assert glue.matthews(labels % 2, guesses % 2) == 0.3563483225498992
    assert glue.f1(labels % 2, guesses % 2) == 0.5714285714285714


def test_scores_by_label_are_those_of_scikit_learn():
    labels, guesses = np.array([0] * 6 + [1] * 4 + [2]), np.array([0] * 5 + [1, 0, 0, 1, 1, 1])
    confusion = glue.confusion_of(labels, guesses, 4)
    np.testing.assert_array_equal(confusion[:3, :3], [[5, 1, 0], [2, 2, 0], [0, 1, 0]])
    scores = glue.by_label(confusion)
    np.testing.assert_allclose(scores["precision"], [5 / 7, 2 / 4, 0, 0])
    np.testing.assert_allclose(scores["recall"], [5 / 6, 2 / 4, 0, 0])
    np.testing.assert_allclose(scores["f1"], [10 / 13, 4 / 8, 0, 0])
    # f1_score(labels, guesses, average="macro"): the fourth label neither occurs nor is predicted.
    assert glue.macro_f1(confusion) == pytest.approx(0.4230769230769231)
    assert glue.f1_by_label(labels, guesses, ("a", "b", "c", "d")) == {
        "macro_f1": pytest.approx(0.4230769230769231), "f1_a": pytest.approx(10 / 13),
        "f1_b": 0.5, "f1_c": 0.0,
    }


def test_spearman_sees_ranks_only():
    values = np.array([0.0, 1.0, 2.0, 5.0])
    assert glue.spearman(values, np.exp(values)) == pytest.approx(1.0)
    assert glue.pearson(values, np.exp(values)) < 0.95


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", [glue.matthews, glue.pearson, glue.spearman, glue.f1])
def test_constant_predictions_score_zero_without_a_warning(metric):
    assert metric(np.array([0, 1, 1, 0]), np.zeros(4, np.int64)) == 0.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", [glue.matthews, glue.pearson, glue.spearman])
def test_a_single_row_has_correlation_zero(metric):
    assert metric(np.array([1]), np.array([1])) == 0.0


@pytest.mark.filterwarnings("error")
def test_predictions_that_hardly_vary_are_still_correlated():
    labels = np.array([1.0, 2.0, 3.0])
    assert glue.pearson(labels, 1e6 + labels * 1e-8) > 0.9
