"""The statements about its figures in the report on a classifier of your texts."""

import re

import jobs
import numpy as np
import pytest

from albert.cli import classifier_report
from albert.tasks import baselines, own_file
from albert.tasks.glue import Example


def said(right: int, tfidf_right: int, count: int, confidence: float = 0.7, evaluations: int = 1) -> str:
    """The verdict if the first `right` rows are right, and TF-IDF is right on the last ones."""
    row = np.arange(count)
    return classifier_report.verdict(
        row < right, row >= count - tfidf_right, np.full(count, confidence), evaluations
    )


def test_a_classifier_is_compared_with_tfidf_row_by_row():
    assert "Better than TF-IDF by 20.0 points" in said(800, 600, 1000)
    assert "**Worse than TF-IDF" in said(600, 800, 1000)
    assert "**Not clearly better than TF-IDF" in said(620, 600, 1000)
    assert "nan" not in said(1, 0, 1)
    assert "TF-IDF" not in classifier_report.verdict(np.ones(600, bool), None, np.ones(600), 1)


def test_cross_validation_decides_the_comparison_if_there_is_one():
    rows = np.ones(60, bool), np.zeros(60, bool), np.full(60, 0.7), 1  # on these, the model is better
    folds = classifier_report.Folds([0.6, 0.62, 0.61, 0.63], [0.68, 0.67, 0.66, 0.69], 240)
    text = classifier_report.verdict(*rows, folds)
    # Differences -0.08, -0.05, -0.05, -0.06: mean -0.06, standard error 0.0141 / 2.
    assert "**Worse than TF-IDF" in text and "(-6.0 ± 0.7 points)" in text
    assert "cross_validation" in classifier_report.verdict(*rows) and "cross_validation" not in text


def test_overconfidence_few_rows_and_a_checkpoint_chosen_on_the_same_rows_are_said():
    assert "Overconfident: its mean confidence is 95 %, its accuracy 80 %" in said(
        800, 600, 1000, 0.95
    )
    assert "Overconfident" not in said(800, 600, 1000, 0.82)
    assert "40 rows give a rough" in said(30, 20, 40) and "rough" not in said(400, 300, 500)
    # The standard error is 1.26 points; sqrt(2 ln 8) = 2.04.
    assert "best of 8 evaluations" in said(800, 600, 1000, evaluations=8)
    assert "up to about 2.6 points" in said(800, 600, 1000, evaluations=8)


def test_the_interval_is_wilsons():
    # Newcombe 1998, Statistics in Medicine 17, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for hits, count, low, high in (
        (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert classifier_report.interval(hits, count) == pytest.approx((low, high), abs=1e-4)


def test_the_report_on_several_labels_shows_where_the_classifier_is_wrong(tmp_path):
    expected = np.array([[1, 0], [1, 1], [0, 1]], bool)
    probabilities = np.array([[0.9, 0.7], [0.2, 0.8], [0.1, 0.6]])
    tfidf = np.array([[1, 0], [1, 1], [0, 0]], bool)
    report = open(classifier_report.write_several(
        str(tmp_path), ["one", "two", "three"], ("a|b", "c"), expected, probabilities, 0.5, [], tfidf
    )).read()
    # Of 4 labels 3 are found, one is wrong: F1 = 2 * 3 / (4 + 4). TF-IDF: 2 * 3 / (4 + 3).
    assert "| micro F1 | 0.750 | 0.857 |" in report and "No better than TF-IDF" in report
    assert "| F1 of a\\|b | 0.667 | 1.000 | 2 |" in report
    assert "| two | a\\|b | yes | 0.200 |\n| one | c | no | 0.700 |\n" in report


def test_tfidf_learns_words_and_gives_up_where_there_are_none():
    texts = ["a fine film", "fine acting", "a dull film", "dull acting"] * 5
    labels = ["good", "good", "bad", "bad"] * 5
    found = baselines.tfidf_answers(texts, labels, ["fine", "dull", "so dull a film"])
    assert found.tolist() == ["good", "bad", "bad"]
    several = np.array([[label == "good", "acting" in text] for label, text in zip(labels, texts)])
    found = baselines.tfidf_answers(texts, several, ["fine acting", "a dull film"])
    assert found.tolist() == [[1, 1], [0, 0]]
    assert baselines.tfidf_answers(["!", "?"], ["good", "bad"], ["!"]) is None


def test_every_row_is_held_out_in_one_part_and_labels_are_spread_evenly():
    rows = [Example(str(i), f"text {i % 50}", None, "ab"[i % 50 < 10]) for i in range(60)]
    parts = own_file.folds(rows, 4, seed=1)
    assert sorted(row.guid for _, held_out in parts for row in held_out) == sorted(r.guid for r in rows)
    for train, held_out in parts:
        assert len(train) + len(held_out) == 60
        assert not {row.text_a for row in train} & {row.text_a for row in held_out}
        assert len({row.text_a for row in held_out}) in (12, 13)
        assert len({row.text_a for row in held_out if row.label == "b"}) in (2, 3)
    assert parts == own_file.folds(rows, 4, seed=1) != own_file.folds(rows, 4, seed=2)


def test_cross_validation_measures_on_rows_that_chose_nothing(tmp_path):
    table, out = tmp_path / "my.csv", tmp_path / "out"
    lines = [f"w{i % 5} w{10 + i % 7} w3,{'good' if i % 5 < 2 else 'bad'}" for i in range(60)]
    table.write_text("\n".join(["text,label", *lines]) + "\n")
    own = ("data_dir", "task_name", "save_checkpoints_steps")
    given = [flag for flag in jobs.classifier_flags(tmp_path) if not flag[2:].startswith(own)]
    command = [*given, f"--train_file={table}", "--cross_validation=2"]
    assert jobs.classify(*command) == 0
    report = (out / "report.md").read_text()
    row = re.search(r"accuracy, 2-fold cross-validation on 60 rows \| ([\d.]+) ± [\d.]+", report)
    assert row, report
    assert 0 < float(row[1]) <= 1 and "--cross_validation" not in report
    assert not [*out.rglob("*.tf_record*")]
    assert jobs.classify(*command, "--do_train=false", "--do_eval") == 2
    assert jobs.classify(*command[:-1], "--cross_validation=1") == 2
