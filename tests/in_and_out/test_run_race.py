"""The command line of run_race, as a real process on a tiny model."""

import json

import helpers
import numpy as np
import pytest

from albert import modeling, run_race
from albert.cli import flags
from albert.errors import DataError, FlagError
from albert.tasks import race
from albert.tokenization import FullTokenizer

WORDS = [f"w{i}" for i in range(35)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def passage(rng, number):
    """Two questions whose answer is the option that the passage starts with."""
    options = [[str(w) for w in rng.choice(WORDS, 4, replace=False)] for _ in range(2)]
    answers = [int(rng.integers(4)), int(rng.integers(4))]
    return {
        "id": f"{number}.txt", "article": " ".join([options[0][answers[0]], *rng.choice(WORDS, 5)]),
        "questions": ["w1 _ w2", "w3"], "options": options,
        "answers": ["ABCD"[a] for a in answers],
    }


def write_race(folder):
    """Passages in the archive's layout (middle) and in one file (high)."""
    rng = np.random.default_rng(3)
    for split, count in (("train", 3), ("dev", 2), ("test", 2)):
        middle, high = (folder / "RACE" / split / level for level in ("middle", "high"))
        middle.mkdir(parents=True)
        high.mkdir()
        for number in range(count):
            (middle / f"{number}.txt").write_text(json.dumps(passage(rng, number)))
        lines = [json.dumps(passage(rng, number)) + "\n" for number in range(count + 1)]
        (high / "all.txt").write_text("".join(lines))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("race")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    write_race(folder)
    return [
        f"--data_dir={folder}", f"--vocab_file={folder}/vocab.txt",
        f"--albert_config_file={helpers.write_config(folder)}", "--max_seq_length=16",
        "--max_qa_length=6", "--train_step=4", "--warmup_step=1", "--save_checkpoints_steps=2",
        "--train_batch_size=4", "--eval_batch_size=4", "--predict_batch_size=4",
    ]


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "out"
    done = helpers.run("albert.run_race", *inputs, f"--output_dir={output}", "--do_predict")
    assert done.returncode == 0, done.stderr
    return output


def test_one_run_tells_accuracy_overall_and_for_each_level(trained):
    results = json.loads((trained / "eval_results.json").read_text())
    # Two passages of the middle level, three of the high one, two questions each.
    middle, high = results["eval_accuracy_middle"] * 4, results["eval_accuracy_high"] * 6
    assert results["eval_accuracy"] * 10 == pytest.approx(middle + high)
    for hits in (middle, high):
        assert hits == pytest.approx(round(hits), abs=1e-5)
    text = (trained / "eval_results.txt").read_text()
    assert f"eval_accuracy_high = {results['eval_accuracy_high']}\n" in text


def test_predictions_are_written_with_the_results_of_the_test_questions(trained):
    lines = (trained / "test_results.tsv").read_text().splitlines()
    values = np.array([[float(x) for x in line.split("\t")] for line in lines])
    assert values.shape == (10, 4)
    text = (trained / "submit_results.tsv").read_text()
    submit = [line.split("\t") for line in text.splitlines()]
    assert [guid for guid, _ in submit[:4]] == ["index", "0.txt-0", "0.txt-1", "1.txt-0"]
    assert [answer for _, answer in submit[1:]] == ["ABCD"[i] for i in values.argmax(axis=1)]
    header, *lines = (trained / "predict_results.txt").read_text().splitlines()
    results = dict(line.split(" = ") for line in lines)
    assert header == "***** Predict results *****" and lines[:-1] == sorted(lines[:-1])
    assert {"eval_accuracy", "eval_accuracy_high", "eval_loss", "global_step"} <= set(results)
    best = json.loads((trained / "best.json").read_text())
    assert lines[-1] == f"best = {best['value']}"


def run(*arguments):
    run_race.main(flags.parse(run_race.define_flags, ["run_race", *map(str, arguments)]))


def test_evaluation_and_prediction_alone_give_the_same(inputs, trained, tmp_path):
    run(*inputs, f"--output_dir={tmp_path}", "--nodo_train", "--do_predict",
        f"--checkpoint={trained}", f"--eval_file={tmp_path}/dev.tfrecord")
    ours = json.loads((tmp_path / "eval_results.json").read_text())
    assert ours == pytest.approx(json.loads((trained / "eval_results.json").read_text()), abs=1e-5)
    assert (tmp_path / "test_results.tsv").read_text() == (trained / "test_results.tsv").read_text()
    assert (tmp_path / "dev.tfrecord").exists()


def test_answers_score_as_is_reported_where_their_probabilities_are_equal(
    inputs, trained, tmp_path
):
    model = modeling.AlbertForMultipleChoice.from_pretrained(str(trained))
    model.output_weights.assign(model.output_weights * 1e-7)
    model.save_pretrained(str(tmp_path / "model"))
    run(*inputs, f"--output_dir={tmp_path}", "--nodo_train", "--nodo_eval", "--do_predict",
        f"--checkpoint={tmp_path}/model")
    rows, (_, *answers) = (
        [line.split("\t") for line in (tmp_path / name).read_text().splitlines()]
        for name in ("test_results.tsv", "submit_results.tsv")
    )
    assert any(row.count(max(row, key=float)) > 1 for row in rows)
    folder = inputs[0].removeprefix("--data_dir=")
    tokenizer = FullTokenizer(f"{folder}/vocab.txt", True, None)
    questions = race.read_questions(folder, "test", tokenizer)
    hits = [answer == "ABCD"[q.label] for (_, answer), q in zip(answers, questions, strict=True)]
    results = json.loads((tmp_path / "predict_results.json").read_text())
    assert np.mean(hits) == results["eval_accuracy"]
    assert {answer for _, answer in answers} > {"A"}


def test_a_feature_file_of_the_original_is_taken_as_it_is(inputs, trained, tmp_path):
    run(*inputs, f"--output_dir={tmp_path}", "--nodo_train", f"--checkpoint={trained}",
        f"--eval_file={tmp_path}/dev.tfrecord")
    before = json.loads((tmp_path / "eval_results.json").read_text())
    for path in tmp_path.glob("dev.tfrecord.*"):
        path.unlink()  # the manifest, which the original does not write
    run(*inputs, f"--output_dir={tmp_path}", "--nodo_train", f"--checkpoint={trained}",
        f"--eval_file={tmp_path}/dev.tfrecord")
    after = json.loads((tmp_path / "eval_results.json").read_text())
    assert set(before) - set(after) == {"eval_accuracy_middle", "eval_accuracy_high"}
    assert after["eval_loss"] == before["eval_loss"]


def test_one_level_alone_is_read_alone(inputs, trained, tmp_path):
    run(*inputs, f"--output_dir={tmp_path}", "--nodo_train", f"--checkpoint={trained}",
        "--high_only")
    results = json.loads((tmp_path / "eval_results.json").read_text())
    assert results["eval_accuracy"] == pytest.approx(results["eval_accuracy_high"])
    assert "eval_accuracy_middle" not in results


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max_qa_length=14"], "--max_qa_length=14 leaves no room in --max_seq_length=16"),
        (["--high_only", "--middle_only"], "give one of --high_only and --middle_only"),
        (["--nodo_train", "--nodo_eval"], "at least one of --do_train, --do_eval and --do_predict"),
        (["--classifier_dropout=1"], "--dropout_prob=1: must be a number"),
        (["--data_dir=/nowhere"], "no such directory: /nowhere/RACE/train/middle; --data_dir must"),
    ],
)
def test_flags_that_cannot_work_are_refused(inputs, tmp_path, arguments, message):
    with pytest.raises((FlagError, DataError), match=message):
        run(*inputs, f"--output_dir={tmp_path}/out", *arguments)
    assert not (tmp_path / "out").exists()


def test_a_level_is_not_chosen_from_features_that_are_there_already(inputs, tmp_path):
    (tmp_path / "train.tfrecord").write_bytes(b"x")
    with pytest.raises(FlagError, match="--high_only has no effect on the features that are in"):
        run(*inputs, f"--output_dir={tmp_path}/out", "--high_only", "--nodo_eval",
            f"--train_file={tmp_path}/train.tfrecord")


def test_bad_data_is_one_clear_line_and_leaves_nothing(inputs, tmp_path):
    write_race(tmp_path)
    with open(tmp_path / "RACE/dev/high/all.txt", "a", encoding="utf-8") as stream:
        stream.write(json.dumps(passage(np.random.default_rng(1), 9) | {"answers": ["A", "F"]}))
    done = helpers.run("albert.run_race", *inputs, f"--data_dir={tmp_path}", "--nodo_train",
                       f"--output_dir={tmp_path}/out")
    assert done.returncode == 2
    assert helpers.assert_one_clear_line(done.stderr) == (
        f"error: {tmp_path}/RACE/dev/high/all.txt:4: question 2: "
        "answer 'F' is not one of A, B, C, D"
    )
    assert not list((tmp_path / "out").glob("*"))
