"""SQuAD's scores by hand: thresholds, absent predictions, empty answers."""

import pytest

from albert.tasks.squad import metrics


def test_f1_is_of_the_shared_words_after_normalisation():
    # {cat, sat, here} and {cat, sat}: precision 2/2, recall 2/3.
    assert metrics.f1_score("The cat, sat HERE.", "a cat sat") == pytest.approx(0.8)
    # As bags: of two "cat" one is shared.
    assert metrics.f1_score("cat", "cat cat") == pytest.approx(2 / 3)


def test_the_best_of_several_answers_counts():
    scores = metrics.evaluate_v1(dict(q=["dog", "big cat", "cat"]), {"q": "the cat"})
    assert scores == {"exact_match": 100.0, "f1": 100.0}


@pytest.mark.parametrize(("version_2", "expected"), [(False, 0.0), (True, 1.0)])
def test_two_answers_without_words_agree_in_version_2_only(version_2, expected):
    assert metrics.f1_score("the", "", no_answer_is_one=version_2) == expected
    assert metrics.f1_score("the", "cat", no_answer_is_one=version_2) == 0.0


def test_an_answer_without_words_is_no_answer_but_its_question_has_one():
    scores = metrics.evaluate_v2(dict(q=["The"]), {"q": ""})
    assert (scores["f1"], scores["HasAns_total"]) == (100.0, 1) and "NoAns_total" not in scores


FOUR = dict(right=["cat"], none=[], wrong=["dog"], late=["cow"])
PREDICTIONS = {"right": "cat", "none": "sat", "wrong": "cat", "late": "cow"}
ODDS = {"late": 3.0, "none": 2.0, "wrong": 1.5, "right": -1.0}


def test_the_best_threshold_is_the_first_that_scores_best():
    # Answering none: 1 (none). Up to -1: 2. Up to 1.5: 2. Up to 2: 1. Up to 3: 2.
    scores = metrics.evaluate_v2(FOUR, PREDICTIONS, ODDS)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (50.0, -1.0)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50.0, -1.0)


def test_odds_above_the_threshold_leave_a_question_unanswered():
    # 1.0 by default: right is answered, none is rightly not, wrong and late are not.
    assert metrics.evaluate_v2(FOUR, PREDICTIONS, ODDS)["exact"] == 50.0
    # Odds that equal the threshold do not.
    assert metrics.evaluate_v2(FOUR, PREDICTIONS, ODDS, threshold=2.0)["exact"] == 25.0
    assert metrics.evaluate_v2(FOUR, PREDICTIONS, ODDS, threshold=9.0)["exact"] == 50.0


def test_no_absent_prediction_ever_raises_a_score():
    questions = dict(a=[], b=[], c=["cat"], d=["dog"])
    scores = metrics.evaluate_v2(questions, {"a": "", "c": "cat"}, {"a": 1.0, "c": 0.0, "d": -5})
    assert scores == {
        "exact": 50.0, "f1": 50.0, "total": 4,
        "HasAns_exact": 50.0, "HasAns_f1": 50.0, "HasAns_total": 2,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
        "best_exact": 50.0, "best_exact_thresh": 0.0, "best_f1": 50.0, "best_f1_thresh": 0.0,
    }
    nothing = metrics.evaluate_v2(questions, {}, {})
    assert {nothing[name] for name in ("exact", "f1", "best_exact", "best_f1")} == {0.0}


def test_scores_are_added_from_left_to_right():
    # Ten times 0.1 is 0.9999999999999999 so; rounded once at the end it is 1.0.
    assert metrics.averages({"f1": dict.fromkeys("abcdefghij", 0.1)}, "abcdefghij") == {
        "f1": 100.0 * 0.9999999999999999 / 10, "total": 10
    }
