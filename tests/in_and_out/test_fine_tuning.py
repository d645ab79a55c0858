"""What the fine-tuning commands share: several runs, early stopping, what is evaluated."""

import json
import os
import shutil
import statistics

import numpy as np
import pytest
import test_run_classifier as classifier

from albert import predict
from albert.cli import fine_tuning, fine_tuning_settings, flags
from albert.errors import CheckpointError, DataError, FlagError
from albert.formats import checkpoints
from albert.training import steps

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "vocab.txt").write_text("\n".join(classifier.VOCABULARY) + "\n")
    (folder / "config.json").write_text(json.dumps(classifier.CONFIG))
    classifier.write_task_files(folder / "glue")
    return [
        f"--data_dir={folder}/glue", f"--albert_config_file={folder}/config.json",
        f"--vocab_file={folder}/vocab.txt", *classifier.SIZES, "--task_name=sst-2",
    ]


run = classifier.in_process


def results_of(folder):
    return json.loads((folder / "eval_results.json").read_text())


# --- Several runs ---


@pytest.fixture(scope="module")
def three_runs(inputs, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs")
    run(*inputs, f"--output_dir={output}", "--num_runs=3", "--seed=5", "--do_train", "--do_eval",
        "--do_predict", "--learning_rate=0.01")
    return output


def test_runs_have_following_seeds_and_are_summed_up_by_median_and_spread(three_runs):
    runs = [results_of(three_runs / f"seed-{seed}") for seed in (5, 6, 7)]
    losses = [one["eval_loss"] for one in runs]
    assert len(set(losses)) == 3
    summary = results_of(three_runs)
    assert summary["num_runs"] == 3
    assert summary["eval_loss"] == statistics.median(losses)
    assert (summary["eval_loss_min"], summary["eval_loss_max"]) == (min(losses), max(losses))
    assert summary["eval_loss_std"] == pytest.approx(np.std(losses, ddof=1))
    accuracies = [one["eval_accuracy"] for one in runs]
    assert accuracies[summary["best_seed"] - 5] == max(accuracies)
    text = (three_runs / "eval_results.txt").read_text()
    assert f"eval_accuracy_std = {summary['eval_accuracy_std']}\n" in text


def test_the_best_run_predicts(inputs, three_runs, tmp_path):
    winner = three_runs / f"seed-{results_of(three_runs)['best_seed']}"
    # Into a directory that is not there yet, though the records go elsewhere.
    run(*inputs, f"--output_dir={tmp_path / 'new'}", f"--cached_dir={tmp_path / 'records'}",
        "--do_predict", f"--checkpoint={winner}")
    assert (tmp_path / "new/test_results.tsv").read_text() == (
        three_runs / "test_results.tsv"
    ).read_text()


def test_prediction_alone_takes_the_best_run_too(inputs, three_runs):
    before = (three_runs / "test_results.tsv").read_text()
    (three_runs / "test_results.tsv").unlink()
    run(*inputs, f"--output_dir={three_runs}", "--num_runs=3", "--seed=5", "--do_predict")
    assert (three_runs / "test_results.tsv").read_text() == before


def labels_of(model, folder):
    (folder / "lines.txt").write_text("w1 w2\nw3\n")
    predict.main(flags.parse(predict.define_flags, [
        "x", f"--model={model}", f"--input_file={folder}/lines.txt",
        f"--output_file={folder}/answers.jsonl",
    ]))
    return (folder / "answers.jsonl").read_text()


def test_the_directory_of_several_runs_stands_for_the_best_of_them(inputs, three_runs, tmp_path):
    best = results_of(three_runs)["best_seed"]
    expected = labels_of(three_runs / f"seed-{best}", tmp_path)
    assert labels_of(three_runs, tmp_path) == expected
    # Whichever it is, and in every flag that names a model.
    copy, other = tmp_path / "copy", 5 if best != 5 else 6
    shutil.copytree(three_runs, copy)
    (copy / "eval_results.json").write_text(json.dumps({"best_seed": other}))
    assert labels_of(copy, tmp_path) == labels_of(copy / f"seed-{other}", tmp_path) != expected
    run(*inputs, f"--output_dir={tmp_path / 'out'}", "--do_eval", f"--checkpoint={copy}")
    ours, theirs = results_of(tmp_path / "out"), results_of(copy / f"seed-{other}")
    assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], rel=1e-5)
    (copy / "eval_results.json").unlink()
    for use in (lambda: labels_of(copy, tmp_path), lambda: checkpoints.open_weights(str(copy))):
        with pytest.raises(CheckpointError, match="runs seed-5, seed-6, seed-7.* name one"):
            use()


def test_finished_runs_are_not_made_again_and_more_can_be_added(inputs, three_runs, caplog):
    before = {p: p.stat().st_mtime_ns for p in three_runs.glob("seed-*/model.ckpt-*.index")}
    caplog.clear()
    with caplog.at_level("INFO", logger="albert"):
        run(*inputs, f"--output_dir={three_runs}", "--num_runs=4", "--seed=4", "--do_train",
            "--do_eval", "--learning_rate=0.01")
    assert sum(r.message.startswith("done already") for r in caplog.records) == 3
    assert all(p.stat().st_mtime_ns == time for p, time in before.items())
    assert results_of(three_runs)["num_runs"] == 4


def test_the_numbers_over_runs():
    results = {1: {"f1": 0.5, "global_step": 10}, 2: {"f1": 0.75, "global_step": 20}}
    assert fine_tuning.over_runs(results) == {
        "num_runs": 2, "global_step": 15, "f1": 0.625, "f1_min": 0.5, "f1_max": 0.75,
        "f1_std": pytest.approx(0.1767767),
    }
    with pytest.raises(DataError, match="run of seed 2 has other numbers .*f1"):
        fine_tuning.over_runs({1: {"f1": 0.5}, 2: {"f 1": 0.75}})


@pytest.mark.slow
def test_several_runs_without_evaluation_have_no_best(inputs, tmp_path):
    with pytest.raises(FlagError, match="add --do_eval"):
        run(*inputs, f"--output_dir={tmp_path}", "--num_runs=2", "--do_train", "--do_predict",
            "--train_step=1")


# --- Early stopping ---

# With a rate of almost 0 nothing improves after the first evaluation.
STALLED = ["--train_step=20", "--save_checkpoints_steps=2", "--learning_rate=1e-12",
           "--early_stopping_patience=2", "--do_train", "--do_eval"]


def test_training_ends_when_evaluations_bring_nothing_and_keeps_the_best_and_the_last(
    inputs, tmp_path, caplog
):
    arguments = [*inputs, f"--output_dir={tmp_path}", *STALLED, "--keep_checkpoint_max=1"]
    with caplog.at_level("INFO", logger="albert"):
        run(*arguments)
    assert "stopped early at step 6: eval_accuracy has not risen in 2 evaluations" in caplog.text
    assert results_of(tmp_path)["global_step"] == 2
    kept = {p.name for p in tmp_path.glob("*.index")}
    assert kept == {"model.ckpt-6.index", "model.ckpt-best.index"}
    caplog.clear()
    run(*arguments)  # the same command again does not go on
    assert {p.name for p in tmp_path.glob("*.index")} == kept


@pytest.mark.slow
def test_without_patience_training_goes_to_its_end(inputs, tmp_path):
    run(*inputs, f"--output_dir={tmp_path}", *STALLED, "--early_stopping_patience=0")
    assert (tmp_path / "model.ckpt-20.index").exists()


# --- What is evaluated ---


def test_a_run_traces_its_evaluation_once_whatever_its_rows_and_its_best(
    inputs, tmp_path, monkeypatch
):
    traced, trace = [], steps.EvalStep.outputs

    def note(self, batch):
        traced.append(self)
        return trace(self, batch)

    monkeypatch.setattr(steps.EvalStep, "outputs", note)
    # The first checkpoint stays the best, and is not the last.
    run(*inputs, f"--output_dir={tmp_path}", "--do_train", "--do_eval", "--learning_rate=1e-12")
    best = json.loads((tmp_path / "best.json").read_text())
    assert results_of(tmp_path)["global_step"] == best["step"] < 6
    assert len(traced) == 1


@pytest.mark.slow
def test_evaluation_alone_takes_the_best_the_newest_or_the_named_checkpoint(inputs, tmp_path):
    arguments = [*inputs, f"--output_dir={tmp_path}", "--learning_rate=0.01"]
    run(*arguments, "--do_train", "--do_eval")
    best = json.loads((tmp_path / "best.json").read_text())
    trained = results_of(tmp_path)
    run(*arguments, "--do_eval")
    assert results_of(tmp_path) == pytest.approx(trained, abs=1e-5)
    assert results_of(tmp_path)["global_step"] == best["step"]
    for step in (3, 6):
        run(*arguments, "--do_eval", f"--checkpoint={tmp_path}/model.ckpt-{step}")
        assert results_of(tmp_path)["global_step"] == step
    for path in tmp_path.glob("model.ckpt-best.*"):
        path.unlink()
    run(*arguments, "--do_eval")
    assert results_of(tmp_path)["global_step"] == 6


@pytest.mark.slow
def test_dropout_flags_change_training_and_their_absence_changes_nothing(inputs, tmp_path):
    def loss(name, *arguments):
        run(*inputs, f"--output_dir={tmp_path}/{name}", "--do_train", "--log_steps=1",
            "--train_step=1", "--save_checkpoints_steps=1", *arguments)
        return json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])["loss"]

    plain = loss("plain")
    # The configuration's rates are 0, the classifier's is 0.1 as in the original.
    assert loss("same", "--albert_dropout=0", "--classifier_dropout=0.1") == plain
    assert loss("encoder", "--albert_dropout=0.3") != plain
    assert loss("classifier", "--classifier_dropout=0.4") != plain
    config = json.loads((tmp_path / "encoder" / "albert_config.json").read_text())
    assert config["hidden_dropout_prob"] == config["attention_probs_dropout_prob"] == 0.3


def test_features_need_a_named_folder_where_nothing_can_be_written_beside_the_run(
    inputs, tmp_path, monkeypatch
):
    monkeypatch.setattr(fine_tuning_settings.os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(FlagError, match=r"cannot write to .*/\.out\.work: give --cached_dir"):
        run(*inputs, f"--output_dir={tmp_path / 'out'}", "--do_train")
    assert not [*tmp_path.iterdir()]
