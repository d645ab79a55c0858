"""The statements about its figures in the report on a classifier of your texts."""

import numpy as np
import pytest

from albert.cli import classifier_report
from albert.tasks import baselines


def said(right: int, tfidf_right: int, count: int, confidence: float = 0.7, evaluations: int = 1) -> str:
    """The verdict if the first `right` rows are right, and TF-IDF is right on the last ones."""
    row = np.arange(count)
    return classifier_report.verdict(
        row < right, row >= count - tfidf_right, np.full(count, confidence), evaluations
    )


def test_a_classifier_is_compared_with_tfidf_row_by_row():
    assert "Better than TF-IDF by 20.0 points" in said(800, 600, 1000)
    assert "**Worse than TF-IDF" in said(600, 800, 1000)
    assert "**No better than TF-IDF" in said(620, 600, 1000)
    assert "TF-IDF" not in classifier_report.verdict(np.ones(600, bool), None, np.ones(600), 1)


def test_overconfidence_few_rows_and_a_checkpoint_chosen_on_the_same_rows_are_said():
    assert "Overconfident: on average it gives its answers 95 %, and 80 % are right" in said(
        800, 600, 1000, 0.95
    )
    assert "Overconfident" not in said(800, 600, 1000, 0.82)
    assert "40 rows measure little" in said(30, 20, 40) and "measure little" not in said(400, 300, 500)
    # The standard error is 1.26 points; sqrt(2 ln 8) = 2.04.
    assert "best of 8 evaluations" in said(800, 600, 1000, evaluations=8)
    assert "at most about 2.6 points" in said(800, 600, 1000, evaluations=8)


def test_the_interval_is_wilsons():
    # Newcombe 1998, Statistics in Medicine 17, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for hits, count, low, high in (
        (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert classifier_report.interval(hits, count) == pytest.approx((low, high), abs=1e-4)


def test_tfidf_learns_words_and_gives_up_where_there_are_none():
    pytest.importorskip("sklearn")
    texts = ["a fine film", "fine acting", "a dull film", "dull acting"] * 5
    labels = ["good", "good", "bad", "bad"] * 5
    found = baselines.tfidf_answers(texts, labels, ["fine", "dull", "so dull a film"])
    assert found.tolist() == ["good", "bad", "bad"]
    assert baselines.tfidf_answers(["!", "?"], ["good", "bad"], ["!"]) is None
