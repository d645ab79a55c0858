"""The best checkpoint is the best of evaluations of the same."""

import dataclasses

import pytest
from helpers import (
    LENGTH,
    PREDICTIONS,
    SIZES,
    run_here,
    write_config,
    write_pretraining_records,
)

from albert import run_classifier
from albert.config import AlbertConfig
from albert.formats import run_states
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tasks.pretraining import PretrainingTask
from albert.training import evaluation
from albert.training.run_settings import RunConfig
import jobs

TASK = PretrainingTask(LENGTH, PREDICTIONS)
CONFIG = AlbertConfig.from_dict(SIZES)


def keep(folder, step, accuracy, path, task=TASK, **changes):
    """Evaluates a made-up checkpoint; returns whether it is the best."""
    for suffix in (".index", ".data-00000-of-00001", ".json"):
        (folder / f"model.ckpt-{step}{suffix}").write_text(f"of step {step}")
    run = RunConfig(str(folder), max_eval_steps=3, **changes)
    results = {task.best_metric: accuracy, "global_step": step}
    return evaluation.keep_if_best(
        task, CONFIG, run, RecordFiles([path]), str(folder / f"model.ckpt-{step}"), results
    )


def other_content(path):
    content = bytearray(open(path, "rb").read())
    content[100] ^= 1
    open(path, "wb").write(content)


CHANGES = {
    "files": lambda path: other_content(path) or {},
    "batches": lambda path: {"eval_batch_size": 16},
    "row_length": lambda path: {"task": PretrainingTask(LENGTH + 4, PREDICTIONS)},
    "task": lambda path: {"task": dataclasses.replace(TASK, name="other")},
    "metric": lambda path: {"task": dataclasses.replace(TASK, best_metric="other")},
    "layers": lambda path: {"depth_schedule": ((1, 100),)},
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_best_is_sought_anew_with_one_warning_when_another_thing_is_measured(
    what, tmp_path, caplog
):
    caplog.set_level("WARNING", "albert")  # a command that ran before may have lowered it
    path = write_pretraining_records(tmp_path / "dev.tfrecord")
    assert keep(tmp_path, 1, 0.9, path)
    assert not keep(tmp_path, 2, 0.5, path)
    assert not caplog.records
    changes = CHANGES[what](path)
    assert keep(tmp_path, 3, 0.4, path, **changes)
    [warning] = [r.getMessage() for r in caplog.records]
    assert f"of step 1, was evaluated otherwise ({what})" in warning and "step 3" in warning
    assert (tmp_path / "model.ckpt-best.index").read_text() == "of step 3"
    assert evaluation.read_best(str(tmp_path))["value"] == 0.4
    caplog.clear()
    assert not keep(tmp_path, 4, 0.3, path, **changes) and keep(tmp_path, 5, 0.5, path, **changes)
    assert not caplog.records


def test_batches_of_another_size_measure_the_same_in_a_full_pass(tmp_path):
    path = write_pretraining_records(tmp_path / "dev.tfrecord")
    first, second = (
        evaluation.what_is_measured(
            TASK, CONFIG, RunConfig("", eval_batch_size=n), RecordFiles([path]), 1
        )
        for n in (4, 8)
    )
    assert first == second


def test_a_best_that_does_not_tell_what_was_measured_is_no_measure(tmp_path, caplog):
    path = write_pretraining_records(tmp_path / "dev.tfrecord")
    old = {"metric": TASK.best_metric, "step": 7, "value": 0.9}
    files.write_sealed_json(str(tmp_path / "best.json"), old)
    assert keep(tmp_path, 9, 0.1, path)
    assert "of step 7, was evaluated otherwise" in caplog.text


def make_unbeatable(out):
    """Gives the best so far a value that no evaluation reaches."""
    best = files.read_sealed_json(str(out / "best.json"))
    files.write_sealed_json(str(out / "best.json"), best | {"value": 2.0})
    return (out / "best.json").read_bytes()


@pytest.mark.slow
def test_a_run_that_goes_on_with_another_evaluation_publishes_its_own_best(tmp_path, capsys):
    flags = jobs.pretraining_flags(tmp_path, num_train_steps=4, save_checkpoints_steps=2)
    assert jobs.pretrain(*flags, "--do_eval", "--until_step=2") == 0
    out = tmp_path / "out"
    before = make_unbeatable(out)
    assert jobs.pretrain(*flags, "--do_eval", "--until_step=2") == 0  # the same again
    assert (out / "best.json").read_bytes() == before
    assert "evaluated otherwise" not in capsys.readouterr().err
    other = write_pretraining_records(tmp_path / "dev.tfrecord", seed=5)
    assert jobs.pretrain(*flags, "--do_eval", f"--eval_input_file={other}") == 0
    assert capsys.readouterr().err.count("of step 2, was evaluated otherwise (files)") == 1
    assert run_states.read_run_state(str(out / "model.ckpt-best"))["step"] == 4


@pytest.mark.slow
def test_a_checkpoint_scored_with_few_layers_is_not_the_best_of_all_layers(tmp_path, capsys):
    flags = jobs.pretraining_flags(
        tmp_path, num_train_steps=4, save_checkpoints_steps=2, depth_schedule="1:2"
    )
    write_config(tmp_path, num_hidden_layers=3)
    assert jobs.pretrain(*flags, "--do_eval", "--until_step=2") == 0
    out = tmp_path / "out"
    assert evaluation.read_best(str(out))["measured"]["layers"] == 1
    before = make_unbeatable(out)
    assert jobs.pretrain(*flags, "--do_eval", "--until_step=2") == 0  # with one layer again
    assert (out / "best.json").read_bytes() == before
    assert jobs.pretrain(*flags, "--do_eval") == 0
    assert capsys.readouterr().err.count("was evaluated otherwise (layers)") == 1
    best = evaluation.read_best(str(out))
    assert (best["step"], best["measured"]["layers"]) == (4, 3)
    assert run_states.read_run_state(str(out / "model.ckpt-best"))["step"] == 4


@pytest.mark.slow
def test_a_finished_classifiers_best_takes_the_value_of_another_dev_file(tmp_path):
    arguments = [*jobs.classifier_flags(tmp_path), "--do_train", "--do_eval"]
    assert run_here(run_classifier, *arguments) == 0
    out = tmp_path / "out"
    make_unbeatable(out)
    assert run_here(run_classifier, *arguments) == 0
    assert evaluation.read_best(str(out))["value"] == 2.0
    (tmp_path / "SST-2/dev.tsv").write_text("text\tlabel\nabc\t0\nabc\t1\n")
    assert run_here(run_classifier, *arguments) == 0
    assert evaluation.read_best(str(out))["value"] == 0.5
