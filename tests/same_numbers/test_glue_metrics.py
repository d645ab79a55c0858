"""GLUE's metrics: the original's numbers, and the values where they are undefined."""

import numpy as np
import pytest
from sklearn import metrics

from albert.tasks import glue_metrics as glue


def test_scores_equal_the_originals_without_its_padding_rows(golden_path):
    data = np.load(golden_path("heads/classifier_metrics.npz"))
    for task, metric, keys in (
        ("mnli", "accuracy", ["eval_accuracy"]),
        ("cola", "matthews", ["eval_accuracy", "matthew_corr"]),
        ("sts-b", "regression", ["pearson", "MSE"]),
    ):
        def rows(name):
            return np.concatenate([data[f"{task}/batch{i}/{name}"] for i in range(3)])

        real = rows("is_real_example") > 0
        ours = glue.score(metric, rows("label_ids")[real], rows("logits")[real])
        ours["eval_loss"] = rows("per_example_loss")[real].mean()
        for key in [*keys, "eval_loss"]:
            theirs = float(data[f"{task}/result/{key}"])
            assert ours[key] == pytest.approx(theirs, abs=2e-6), key


def test_f1_is_of_class_1_and_accuracy_of_all():
    labels, logits = np.array([1, 1, 1, 0, 0, 0, 0]), np.eye(2)[[1, 1, 0, 1, 0, 0, 0]]
    assert glue.score("accuracy_and_f1", labels, logits) == {
        "eval_accuracy": pytest.approx(5 / 7), "f1": pytest.approx(2 / 3)
    }


def test_correlations_are_those_of_scipy_and_scikit_learn_ties_and_all():
    labels = np.array([0.0, 1.0, 1.0, 2.0, 3.5, 5.0, 5.0, 5.0])
    values = np.array([0.1, 0.3, 0.2, 2.0, 2.0, 4.0, 5.0, 3.0])
    assert glue.score("regression", labels, values[:, None]) == pytest.approx({
        "pearson": 0.9311247124513947, "spearman": 0.9632566387742928,
        "MSE": 1.04875,
    }, abs=1e-14)
    assert glue.spearman(values[:4], np.exp(values[:4] * 9)) == pytest.approx(1.0)
    labels = np.array([0, 1, 1, 2, 2, 2, 0, 1, 2, 0])
    guesses = np.array([0, 1, 2, 2, 2, 0, 0, 1, 1, 1])
    assert glue.matthews(labels, guesses) == 0.4090909090909091
    assert glue.matthews(labels % 2, guesses % 2) == 0.3563483225498992
    assert glue.f1(labels % 2, guesses % 2) == 0.5714285714285714


def test_scores_by_label_are_those_of_scikit_learn():
    labels, guesses = np.array([0] * 6 + [1] * 4 + [2]), np.array([0] * 5 + [1, 0, 0, 1, 1, 1])
    scores = glue.by_label(labels, guesses, 4)
    np.testing.assert_allclose(scores["precision"], [5 / 7, 2 / 4, 0, 0])
    np.testing.assert_allclose(scores["recall"], [5 / 6, 2 / 4, 0, 0])
    # f1_score(labels, guesses, average="macro"): the fourth label neither occurs nor is predicted.
    assert glue.f1_by_label(labels, guesses, ("a", "b", "c", "d")) == {
        "macro_f1": pytest.approx(0.4230769230769231), "f1_a": pytest.approx(10 / 13),
        "f1_b": 0.5, "f1_c": 0.0,
    }
    # A label that is only predicted counts.
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels, guesses = rng.integers(0, 3, 12), rng.integers(0, 5, 12)
        assert glue.f1_by_label(labels, guesses, "abcdef")["macro_f1"] == pytest.approx(
            metrics.f1_score(labels, guesses, average="macro", zero_division=0))
        actual, found = rng.random((2, 12, 3)) < 0.3
        scores = glue.of_several_labels(actual, found, "abc")
        assert scores["micro_f1"] == pytest.approx(
            metrics.f1_score(actual, found, average="micro", zero_division=0))
        assert scores["eval_accuracy"] == pytest.approx(metrics.accuracy_score(actual, found))


@pytest.mark.filterwarnings("error")
def test_what_is_undefined_is_zero_without_a_warning():
    for metric in (glue.matthews, glue.pearson, glue.spearman, glue.f1):
        assert metric(np.array([0, 1, 1, 0]), np.zeros(4, np.int64)) == 0.0
        assert metric is glue.f1 or metric(np.array([1]), np.array([1])) == 0.0
    # Predictions that hardly vary can still be correlated.
    labels = np.array([1.0, 2.0, 3.0])
    assert glue.pearson(labels, 1e6 + labels * 1e-8) > 0.9
