"""run_race: accuracy by level, predictions of the test questions, feature files, passages of your own."""

import json

import jobs
import numpy as np
import pytest
from helpers import assert_one_clear_line, results_of

RIGHT = [*"ADCB", *"ABDBCBBB"]  # the answers to the test questions, and to those of dev


def rows_of(path):
    return [line.split("\t") for line in path.read_text().splitlines()]


@pytest.fixture
def race(tuned, tmp_path):
    """Function that runs the command without training and returns its output directory."""
    run = tuned("race")
    base = [*run.flags, "--nodo_train", "--nodo_predict", f"--checkpoint={run.out}"]

    def get(name, *more):
        assert jobs.race(*base, f"--output_dir={tmp_path / name}", *more) == 0
        return tmp_path / name

    return get


def test_accuracy_is_told_overall_and_for_each_level_and_predictions_have_its_hits(tuned):
    out = tuned("race").out
    results = results_of(out)
    # Four questions at the middle level, eight at the high level.
    hits = [results[f"eval_accuracy_{level}"] * n for level, n in (("middle", 4), ("high", 8))]
    assert results["eval_accuracy"] * 12 == pytest.approx(sum(hits))
    values = np.array(rows_of(out / "test_results.tsv"), float)
    assert values.shape == (12, 4)
    header, *submit = rows_of(out / "submit_results.tsv")
    assert header == ["index", "prediction"]
    assert [guid for guid, _ in submit[2:7]] == [
        "middle2.txt-0", "middle3.txt-0", "high0.txt-0", "high0.txt-1", "high1.txt-0",
    ]
    assert [answer for _, answer in submit] == ["ABCD"[i] for i in values.argmax(axis=1)]
    found = [a == b for a, (_, b) in zip(RIGHT, submit, strict=True)]
    assert [sum(found[:4]), sum(found[4:])] == pytest.approx(hits)
    title, *lines = (out / "predict_results.txt").read_text().splitlines()
    assert title == "***** Predict results *****" and lines[:-1] == sorted(lines[:-1])
    assert lines[-1] == f"best = {results_of(out, 'best')['value']}"
    predicted = results_of(out, "predict_results")
    assert predicted == pytest.approx(results) and f"eval_loss = {predicted['eval_loss']}" in lines


def test_a_feature_file_of_the_original_has_no_effect_and_is_left_as_it_is(tuned, race, tmp_path, capsys):
    features = tmp_path / "dev.tfrecord"
    features.write_bytes(b"x")
    out = race("a", f"--eval_file={features}", "--do_predict")
    assert "--eval_file: no effect: features are kept in memory" in capsys.readouterr().err
    assert features.read_bytes() == b"x"
    # The best result of a run is reported with its checkpoint, wherever that predicts.
    predicted = "predict_results.txt"
    assert (out / predicted).read_text() == (tuned("race").out / predicted).read_text()
    assert results_of(out) == pytest.approx(results_of(tuned("race").out), abs=1e-5)


def test_one_level_alone_is_read_alone(tuned, race):
    results, whole = results_of(race("h", "--high_only")), results_of(tuned("race").out)
    assert results["eval_accuracy"] == pytest.approx(results["eval_accuracy_high"])
    assert results["eval_accuracy"] == pytest.approx(whole["eval_accuracy_high"])
    assert "eval_accuracy_middle" not in results


def test_predict_chooses_as_the_command_did(tuned, tmp_path):
    run = tuned("race")
    lines = []
    for level in ("middle", "high"):
        for path in sorted((run.out.parent / "RACE/test" / level).iterdir()):
            one = json.loads(path.read_text())
            lines += ["\t".join([one["article"], question, *options]) for question, options in
                      zip(one["questions"], one["options"], strict=True)]
    answers = jobs.ask(tmp_path, run.out, lines)
    found = [[answer["probabilities"][letter] for letter in "ABCD"] for answer in answers]
    expected = np.array(rows_of(run.out / "test_results.tsv"), float)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_own_questions_may_have_any_number_of_options_also_different_ones(tmp_path, capsys):
    """Options that a question does not have are never chosen."""
    (folder := tmp_path / "data").mkdir()
    for split in ("train", "dev", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({
            "id": str(i), "article": f"w{i} w{i + 1}", "questions": ["w3 _", "w4"],
            "options": [[f"w{n}" for n in range(5)], ["w6", "w7"]],
            "answers": ["ABCDE"[i % 5], "AB"[i % 2]],
        }) + "\n" for i in range(8)))
    flags = [*jobs.race_flags(tmp_path), f"--data_dir={folder}"]
    assert jobs.race(*flags, "--middle_only") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert line.endswith("--middle_only has no effect on {folder}/train.jsonl, whose questions have no level".format(folder=folder))
    assert jobs.race(*flags) == 0
    table = (tmp_path / "out/test_results.tsv").read_text().splitlines()
    probabilities = np.array([[float(x) for x in line.split("\t")] for line in table])
    assert probabilities.shape == (16, 5) and (probabilities[1::2, 2:] == 0).all()
    assert (probabilities[::2] > 0).all()
    lines = [f"w{i} w{i + 1}\t{question}" for i in range(8) for question in (
        "w3 _\tw0\tw1\tw2\tw3\tw4", "w4\tw6\tw7"
    )]
    for size in ("--batch_size=3", "--batch_size=1"):
        answers = jobs.ask(tmp_path, tmp_path / "out", lines, size)
        for answer, row in zip(answers, probabilities, strict=True):
            found = list(answer["probabilities"].values())
            assert found == pytest.approx(row[row > 0], abs=1e-5)
            assert answer["label"] == "ABCDE"[row.argmax()]
