"""The best checkpoint is the best of evaluations on the same data."""

import dataclasses
import pathlib

import jobs
import numpy as np
from damage import flipped
from helpers import LENGTH, PREDICTIONS, SIZES, results_of, write_pretraining_records

from albert.formats import checkpoints, metadata
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tasks.pretraining import PretrainingTask
from albert.training import evaluate
from albert.training.run import RunConfig

TASK = PretrainingTask(LENGTH, PREDICTIONS)


def keep(folder, step, accuracy, path, task=TASK, **changes):
    """Evaluates a made-up checkpoint; returns whether it is the best."""
    tensors = {"a/adam_m": np.ones(2), "global_step": np.int64(step)}
    checkpoints.write(str(folder / f"model.ckpt-{step}"), tensors)
    state = {"config": SIZES, "step": step, "records_seen": 0}
    files.write_sealed_json(str(folder / f"model.ckpt-{step}.json"), state)
    run = RunConfig(str(folder), max_eval_steps=3, **changes)
    results = {task.best_metric: accuracy, "global_step": step}
    return evaluate.keep_if_best(
        task, run, RecordFiles([path]), str(folder / f"model.ckpt-{step}"), results
    )


def step_of_best(folder) -> int:
    weights = checkpoints.open_weights(str(folder / "model.ckpt-best"))
    assert set(weights.shapes) == {"global_step"}  # without the optimizer's
    return weights.read("global_step")


def test_a_renamed_held_out_file_is_the_same(tmp_path, caplog):
    path = pathlib.Path(write_pretraining_records(tmp_path / "dev.tfrecord"))
    assert keep(tmp_path, 1, 0.9, str(path))
    (tmp_path / "dev.tfrecord.manifest.json").rename(tmp_path / "other.tfrecord.manifest.json")
    assert not keep(tmp_path, 2, 0.5, str(path.rename(tmp_path / "other.tfrecord")))
    assert "starts again" not in caplog.text


def test_on_other_examples_all_checkpoints_that_are_left_are_evaluated(tmp_path):
    """Of two, the one that was not the best before may be the best now."""
    flags = [*jobs.classifier_flags(tmp_path), "--learning_rate=0.1", "--seed=3", "--do_train", "--do_eval"]
    assert jobs.classify(*flags) == 0
    scores = {}
    for step in (3, 6):
        assert jobs.classify(*flags[:-2], "--do_predict", f"--checkpoint={tmp_path}/out/model.ckpt-{step}",
                             f"--output_dir={tmp_path / str(step)}") == 0
        lines = (tmp_path / f"{step}/test_results.tsv").read_text().splitlines()
        scores[step] = np.array([line.split("\t") for line in lines], float).argmax(-1)
    assert (scores[3] != scores[6]).any()
    for step in (3, 6):
        header, *rows = (tmp_path / "SST-2/dev.tsv").read_text().splitlines()
        rows = [f"{row[:-1]}{label}" for row, label in zip(rows, scores[step], strict=True)]
        (tmp_path / "SST-2/dev.tsv").write_text("\n".join([header, *rows]) + "\n")
        assert jobs.classify(*flags) == 0
        assert evaluate.read_best(str(tmp_path / "out"))["step"] == step
        assert results_of(tmp_path / "out")["eval_accuracy"] == 1
        assert results_of(tmp_path / "out")["global_step"] == step


CHANGES = {
    "files": lambda path: path.write_bytes(flipped(path.read_bytes(), 100, 1)) and {},
    "task": lambda path: {"task": dataclasses.replace(TASK, name="other")},
    "metric": lambda path: {"task": dataclasses.replace(TASK, best_metric="other")},
}


def test_the_best_is_sought_anew_with_one_warning_when_another_thing_is_measured(tmp_path, caplog):
    caplog.set_level("WARNING", "albert")  # a command that ran before may have lowered it
    for what, change in CHANGES.items():
        (folder := tmp_path / what).mkdir()
        path = write_pretraining_records(folder / "dev.tfrecord")
        assert keep(folder, 1, 0.9, path)
        assert not keep(folder, 2, 0.5, path) and not keep(folder, 2, 0.9, path)
        assert not caplog.records
        changes = change(pathlib.Path(path))
        assert keep(folder, 3, 0.4, path, **changes)
        [warning] = [r.getMessage() for r in caplog.records]
        assert f"of step 1, was evaluated differently ({what})" in warning and "step 3" in warning
        assert step_of_best(folder) == 3
        assert evaluate.read_best(str(folder))["value"] == 0.4
        caplog.clear()
        assert not keep(folder, 4, 0.3, path, **changes) and keep(folder, 5, 0.5, path, **changes)
        assert not caplog.records


def test_the_last_evaluated_is_kept_where_the_rows_are_too_few_to_choose(tmp_path):
    path = write_pretraining_records(tmp_path / "dev.tfrecord")
    for step, accuracy in ((1, 0.9), (2, 0.5)):
        assert keep(tmp_path, step, accuracy, path, keep_last=True)
        assert step_of_best(tmp_path) == step
        assert evaluate.read_best(str(tmp_path))["value"] == accuracy


# --- Real runs ---


def test_a_finished_run_seeks_its_best_anew_on_other_data(finished, tmp_path, capsys):
    flags = [*finished.flags, "--nodo_train", "--do_eval"]
    jobs.change_json(finished.out / "best.json", step=10, value=2.0)  # which no evaluation reaches
    before = (finished.out / "best.json").read_bytes()
    assert jobs.pretrain(*flags) == 0
    assert (finished.out / "best.json").read_bytes() == before
    assert "evaluated differently" not in capsys.readouterr().err
    other = write_pretraining_records(tmp_path / "dev.tfrecord", seed=5)
    assert jobs.pretrain(*flags, f"--eval_input_file={other}") == 0
    assert capsys.readouterr().err.count("of step 10, was evaluated differently (files)") == 1
    assert evaluate.read_best(str(finished.out))["step"] == 23
    assert metadata.read_run_state(str(finished.out / "model.ckpt-best"))["step"] == 23
