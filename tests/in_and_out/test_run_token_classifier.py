"""The command line of run_token_classifier, as a real process on a tiny model."""

import json
import pathlib

import helpers
import numpy as np
import pytest

from albert import run_token_classifier
from albert.cli import flags
from albert.errors import DataError, FlagError
from albert.tasks import entity_metrics as entities

FIRST, LAST = [f"n{i}" for i in range(8)], [f"m{i}" for i in range(8)]
OTHERS = [f"w{i}" for i in range(18)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *FIRST, *LAST, *OTHERS]


def sentence(rng, parts):
    """First names, half of them with a last one, among others; in upper case, which is the same."""
    lines = []
    for word in rng.choice([*FIRST, *OTHERS], parts):
        lines.append(f"{str(word).upper()} x {'B-PER' if word in FIRST else 'O'}\n")
        if word in FIRST and rng.random() < 0.5:
            lines.append(f"{rng.choice(LAST)} x I-PER\n")
    return "".join(lines) + ". x O\n\n"


def write_conll(folder):
    rng = np.random.default_rng(4)
    # Some of the sentences are longer than a row.
    for split, count in (("train", 60), ("dev", 12), ("test", 7)):
        text = "".join(sentence(rng, 4 + 60 * (i % 6 == 0)) for i in range(count))
        if split == "test":  # which nobody can find
            text += "w1 x B-PER\nw2 x I-PER\n. x O\n\n"
        (folder / f"{split}.txt").write_text("-DOCSTART- x O\n\n" + text)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conll")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    write_conll(folder)
    config = helpers.write_config(
        folder, max_position_embeddings=48, hidden_dropout_prob=0, attention_probs_dropout_prob=0
    )
    return [
        f"--data_dir={folder}", f"--vocab_file={folder}/vocab.txt",
        f"--albert_config_file={config}", "--max_seq_length=40", "--classifier_dropout=0",
        "--learning_rate=0.005", "--train_step=60", "--warmup_step=6",
        "--save_checkpoints_steps=30",
        "--train_batch_size=16", "--eval_batch_size=4", "--predict_batch_size=4",
    ]


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "out"
    done = helpers.run("albert.run_token_classifier", *inputs, f"--output_dir={output}",
                       "--do_train", "--do_eval", "--do_predict")
    assert done.returncode == 0, done.stderr
    assert "sentences are longer than --max_seq_length=40 and were split" in done.stderr
    return output


def results(folder, name="eval_results"):
    return json.loads((folder / f"{name}.json").read_text())


def test_it_learns_which_words_are_entities(trained):
    found = results(trained)
    assert found["eval_f1"] > 0.8 and found["eval_accuracy"] > 0.9
    assert found["eval_f1_PER"] == found["eval_f1"]
    assert results(trained, "best")["metric"] == "eval_f1"


def test_predictions_have_a_label_for_every_word_and_give_the_results(inputs, trained):
    folder = inputs[0].removeprefix("--data_dir=")
    given = pathlib.Path(folder, "test.txt").read_text().splitlines()
    written = (trained / "test_predictions.txt").read_text().splitlines()
    assert [line.rsplit(" ", 1)[0] if line else "" for line in written] == given
    gold, guessed = [], []
    for line in filter(None, written[2:]):
        gold.append(line.split()[-2])
        guessed.append(line.split()[-1])
    found = results(trained, "predict_results")
    hits = np.mean([a == b for a, b in zip(gold, guessed, strict=True)])
    assert found["eval_accuracy"] == pytest.approx(hits) and hits < 1
    # The "." of every sentence is outside, so that end to end they score the same.
    assert found["eval_f1"] == pytest.approx(entities.score([gold], [guessed])["eval_f1"])


def run(*arguments):
    run_token_classifier.main(
        flags.parse(run_token_classifier.define_flags, ["command", *map(str, arguments)])
    )


def test_evaluation_alone_takes_the_labels_of_the_checkpoint(inputs, trained, tmp_path):
    # A file with fewer labels than were trained.
    (tmp_path / "dev.txt").write_text("n1 O\nw1 O\n")
    run(*inputs, f"--data_dir={tmp_path}", f"--output_dir={tmp_path}/out", "--do_eval",
        f"--checkpoint={trained}")
    assert results(tmp_path / "out")["eval_precision"] == 0.0
    with pytest.raises(DataError, match="dev.txt:1: label 'O' is not one of B-PER, I-PER"):
        run(*inputs, f"--data_dir={tmp_path}", f"--output_dir={tmp_path}/out", "--do_eval",
            f"--checkpoint={trained}", "--label_list=B-PER,I-PER")
    with pytest.raises(FlagError, match="was trained with --label_list='O B-PER I-PER', not"):
        run(*inputs, f"--data_dir={tmp_path}", f"--output_dir={tmp_path}/out", "--do_eval",
            f"--checkpoint={trained}", "--label_list=O,I-PER,B-PER")


def test_full_rows_give_the_same_results(inputs, trained, tmp_path):
    run(*inputs, f"--output_dir={tmp_path}", "--do_eval", f"--checkpoint={trained}",
        "--pad_to_max_seq_length")
    assert results(tmp_path) == pytest.approx(results(trained), abs=1e-5)


def test_words_alone_are_predicted(inputs, trained, tmp_path):
    (tmp_path / "test.txt").write_text("n1\nw2\n\nw3\n")
    run(*inputs, f"--data_dir={tmp_path}", f"--output_dir={tmp_path}", "--do_predict",
        f"--checkpoint={trained}")
    written = (tmp_path / "test_predictions.txt").read_text()
    assert written == "n1 B-PER\nw2 O\n\nw3 O\n"
    assert not (tmp_path / "predict_results.json").exists()


def test_word_classes_are_judged_by_accuracy(inputs, tmp_path):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.txt").write_text("n1 NN\n. ,\n\nw1 VB\n" * 4)
    run(*inputs, f"--data_dir={tmp_path}", f"--output_dir={tmp_path}/out", "--scheme=none",
        "--do_train", "--do_eval", "--train_step=2", "--warmup_step=0",
        "--save_checkpoints_steps=2", "--train_batch_size=2")
    assert "eval_f1" not in results(tmp_path / "out")
    assert results(tmp_path / "out", "best")["metric"] == "eval_accuracy"
    recorded = json.loads((tmp_path / "out/model.ckpt-best.json").read_text())["flags"]
    assert recorded["labels"] == [",", "NN", "VB"]
    assert (tmp_path / "out/vocab.txt").exists()


def test_bad_data_is_one_clear_line_and_leaves_nothing(inputs, tmp_path):
    write_conll(tmp_path)
    with open(tmp_path / "dev.txt", "a") as stream:
        stream.write("n1 x O\nn2 x I-PER\n")
    line = len((tmp_path / "dev.txt").read_text().splitlines())
    done = helpers.run("albert.run_token_classifier", *inputs, f"--data_dir={tmp_path}",
                       "--do_train", "--do_eval", f"--output_dir={tmp_path}/out")
    assert done.returncode == 2
    assert helpers.assert_one_clear_line(done.stderr).startswith(
        f"error: {tmp_path}/dev.txt:{line}: I-PER continues nothing: O is before it"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data_dir=/nowhere", "--do_train"], "no such file: /nowhere/train.txt"),
        ([], "at least one of --do_train, --do_eval and --do_predict"),
        (["--do_train", "--label_list=O"], "not two or more different labels"),
        (["--do_train", "--max_seq_length=49"], "exceeds max_position_embeddings 48"),
        (["--do_train", "--classifier_dropout=1"], "--classifier_dropout=1: must be a number"),
        (["--do_eval"], "no checkpoint in .*out: train first"),
    ],
)
def test_flags_that_cannot_work_are_refused(inputs, tmp_path, arguments, message):
    with pytest.raises((FlagError, DataError), match=message):
        run(*inputs, f"--output_dir={tmp_path}/out", *arguments)
    assert not (tmp_path / "out").exists()
