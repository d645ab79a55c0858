"""Numbers that are none, and losses out of line: the update is skipped, the good state stays."""

import json

import numpy as np
import pytest
from helpers import (
    LENGTH,
    PREDICTIONS,
    VOCAB,
    assert_one_clear_line,
    metrics,
    pretraining_rows,
)
from invariants import nothing_lost

from albert import checkpoints, records, steps
from albert.guards import DivergenceGuard
from albert.tasks.pretraining import PretrainingTask
from faults import jobs


def write_with_one_odd_record(path, weight, count=40):
    """Random records, one of which weighs its masked token by `weight`."""
    rows = list(pretraining_rows(count))
    rows[7]["masked_lm_weights"] = np.array([weight, 0, 0], "float32")
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    records.write_records(str(path), rows, spec, {"vocab_size": VOCAB})


def tensors(folder, step):
    weights = checkpoints.open_weights(str(folder / f"model.ckpt-{step}"))
    return {name: weights.read(name) for name in weights.shapes}


def skipped_steps(folder):
    return [line["step"] for line in metrics(folder) if line.get("skipped_steps")]


def assert_nothing_moved(folder, step):
    before, after = tensors(folder, step - 1), tensors(folder, step)
    for name in before:
        if name != "global_step":
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    assert after["global_step"] == before["global_step"] + 1


@pytest.mark.parametrize(
    ("weight", "extra"), [(np.nan, []), pytest.param(np.inf, ["--use_xla"], marks=pytest.mark.slow)]
)
def test_a_step_whose_loss_is_no_number_moves_neither_weights_nor_moments(
    weight, extra, tmp_path, capsys
):
    # Checkpoints are not written while steps are bad, so each step is its own run's last.
    job = jobs.pretraining_flags(tmp_path, log_steps=1, save_checkpoints_steps=1,
                                 keep_checkpoint_max=0, num_warmup_steps=0)
    write_with_one_odd_record(tmp_path / "train.tfrecord", weight)
    assert jobs.pretrain(*job, *extra, "--num_train_steps=10") == 0
    [bad] = skipped_steps(tmp_path / "out")  # an epoch is ten steps
    said = capsys.readouterr().err
    assert f"step {bad} skipped: loss" in said and "of epoch 0" in said
    out = tmp_path / "out"
    listed = list(checkpoints.list_steps(str(out)))
    if bad < 10:
        assert bad not in listed
        before, after = tensors(out, bad - 1), tensors(out, bad + 1)
        changed = [n for n in before if not np.array_equal(before[n], after[n])]
        assert changed and all(np.isfinite(value).all() for value in after.values())
    # The same with the bad step as the last one, which is always saved.
    again = tmp_path / "again"
    assert jobs.pretrain(*job, *extra, f"--output_dir={again}", f"--num_train_steps={bad}") == 0
    assert_nothing_moved(again, bad)


def test_more_than_one_in_a_hundred_bad_steps_is_exit_3_and_the_good_checkpoint_stays(
    tmp_path, capsys
):
    job = jobs.pretraining_flags(tmp_path, num_train_steps=500, save_checkpoints_steps=7)
    write_with_one_odd_record(tmp_path / "train.tfrecord", np.nan)
    assert jobs.pretrain(*job) == 3
    line = assert_one_clear_line(capsys.readouterr().err)
    # One bad step in ten; the eleventh of them is in the eleventh epoch, counted from 0.
    assert "training diverged at step 10" in line and "of epoch 10" in line
    newest = max(checkpoints.list_steps(str(tmp_path / "out")))
    assert f"last good checkpoint: {tmp_path}/out/model.ckpt-{newest}" in line
    assert all(np.isfinite(v).all() for v in tensors(tmp_path / "out", newest).values())
    with nothing_lost(tmp_path):
        assert jobs.pretrain(*job) == 3  # the bad steps before are not forgotten


def test_the_count_of_bad_steps_outlives_the_process():
    first, second = DivergenceGuard(), DivergenceGuard()
    for step in range(51):
        first.check(step, step % 7 == 0, 1.0, 1.0)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    assert not second.in_bad_streak
    second.check(51, True, 1.0, 1.0)
    assert second.in_bad_streak


def test_a_loss_spike_is_skipped_and_counted_if_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(steps, "SPIKE_WINDOW", 4)
    job = jobs.pretraining_flags(tmp_path, log_steps=1, learning_rate=1e-4)
    # The other three records of the batch weigh 3: a sum near zero makes the mean huge.
    write_with_one_odd_record(tmp_path / "train.tfrecord", -2.9999)
    assert jobs.pretrain(*job, "--num_train_steps=20") == 0
    assert skipped_steps(tmp_path / "out") == []
    losses = {line["step"]: line["loss"] for line in metrics(tmp_path / "out")}
    found = [step for step, loss in losses.items() if step > 4 and loss > 100]
    assert found
    skipping = tmp_path / "skipping"
    assert jobs.pretrain(
        *job, "--num_train_steps=20", f"--output_dir={skipping}", "--skip_loss_spikes"
    ) == 0
    assert skipped_steps(skipping)[:1] == found[:1]
    assert f"step {found[0]} skipped: loss" in capsys.readouterr().err


@pytest.mark.slow
def test_looking_for_spikes_changes_no_bit_where_there_are_none(tmp_path):
    job = jobs.pretraining_flags(tmp_path)
    for name, extra in (("off", []), ("on", ["--skip_loss_spikes"])):
        assert jobs.pretrain(*job, *extra, f"--output_dir={tmp_path / name}") == 0
    assert metrics(tmp_path / "on") == metrics(tmp_path / "off")
    on, off = tensors(tmp_path / "on", 23), tensors(tmp_path / "off", 23)
    for name in on:
        np.testing.assert_array_equal(on[name], off[name], err_msg=name)


def test_a_spike_is_above_six_standard_deviations_of_enough_losses():
    import tensorflow as tf

    recent = tf.Variable([float("nan")] * 128)
    losses = np.random.default_rng(0).normal(2.0, 0.1, 128).astype("float32")
    for loss in losses:
        assert not steps.is_spike(recent.value(), tf.constant(1e9))  # too few to judge by
        steps.remember(recent, tf.constant(loss))
    limit = losses.mean() + 6 * losses.std()
    assert not steps.is_spike(recent.value(), tf.constant(limit - 0.01))
    assert steps.is_spike(recent.value(), tf.constant(limit + 0.01))
    steps.remember(recent, tf.constant(float("nan")))
    np.testing.assert_array_equal(recent.numpy(), losses)
