"""Numbers that are none, and losses out of line: the update is skipped, the good state stays."""

import json
import math

import numpy as np
import pytest
from helpers import (
    LENGTH,
    NEEDS_JAX,
    PREDICTIONS,
    REPO,
    VOCAB,
    assert_one_clear_line,
    metrics,
    pretraining_rows,
    run,
    strict_json,
)
from invariants import nothing_lost

from albert.formats import checkpoints, run_states
from albert.records import records
from albert.tasks.pretraining import PretrainingTask
from albert.training import steps
from albert.training.history import Averages, DivergenceCheck
import jobs, odd_pretraining


def write_with_one_odd_record(path, weight, count=40):
    """Random records, one of which weighs its masked token by `weight`."""
    rows = list(pretraining_rows(count))
    rows[4]["masked_lm_weights"] = np.array([weight, 0, 0], "float32")
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
    job = jobs.pretraining_flags(tmp_path, log_steps=1, save_checkpoints_steps=1,
                                 keep_checkpoint_max=0, num_warmup_steps=0)
    write_with_one_odd_record(tmp_path / "train.tfrecord", weight)
    assert jobs.pretrain(*job, *extra, "--num_train_steps=10") == 0
    [bad] = skipped_steps(tmp_path / "out")  # an epoch is ten steps
    said = capsys.readouterr().err
    assert f"step {bad} skipped: loss" in said and "of epoch 0" in said
    out = tmp_path / "out"
    assert list(checkpoints.list_steps(str(out))) == list(range(1, 11))
    assert 1 < bad < 10  # by the seed
    assert_nothing_moved(out, bad)
    before, after = tensors(out, bad), tensors(out, bad + 1)
    changed = [n for n in before if not np.array_equal(before[n], after[n])]
    assert changed and all(np.isfinite(value).all() for value in after.values())
    strict_json((out / f"model.ckpt-{bad}.json").read_text())


@pytest.mark.parametrize("engine", ["tensorflow", pytest.param("jax", marks=NEEDS_JAX)])
def test_averages_leave_skipped_steps_out_and_are_json(engine, tmp_path):
    job = [*jobs.pretraining_flags(tmp_path), "--num_train_steps=10", f"--engine={engine}"]
    write_with_one_odd_record(tmp_path / "train.tfrecord", np.nan)
    found = {}
    for log_steps in (1, 10):
        flags = [*job, f"--log_steps={log_steps}", f"--output_dir={tmp_path / str(log_steps)}"]
        assert run(jobs.PRETRAINING, *flags).returncode == 0
        lines = metrics(tmp_path / str(log_steps))
        found[log_steps] = [line for line in lines if line["kind"] == "train"]
    [skipped] = [line for line in found[1] if line["skipped_steps"]]
    assert skipped["loss"] is skipped["masked_lm_accuracy"] is None
    sound, [whole] = [line for line in found[1] if line != skipped], found[10]
    assert len(sound) == 9 and whole["skipped_steps"] == 1
    for name in ("loss", "gradient_norm"):
        assert whole[name] == pytest.approx(np.mean([line[name] for line in sound]), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["tensorflow", pytest.param("jax", marks=NEEDS_JAX)])
def test_gradient_norms_leave_overflows_of_float16_out(engine, tmp_path):
    job = jobs.pretraining_flags(tmp_path, num_train_steps=20, log_steps=10)
    # The other three records of the batch weigh 3: a sum near zero makes the gradient huge.
    write_with_one_odd_record(tmp_path / "train.tfrecord", -2.9999)
    done = run(jobs.PRETRAINING, *job, f"--engine={engine}", "--mixed_precision=float16")
    assert done.returncode == 0, done.stderr
    lines = [line for line in metrics(tmp_path / "out") if line["kind"] == "train"]
    assert [line["loss_scale_overflows"] for line in lines] == [1, 1]
    assert all(0 < line["gradient_norm"] < 10 for line in lines)


def test_an_average_with_nan_of_an_earlier_version_is_begun_anew(caplog):
    state = {"sums": [math.nan] * steps.PAIRS, "steps": 3}
    averages = Averages([])
    averages.restore(state)
    assert averages.steps == 0 and "starting again" in caplog.text
    averages.add(np.array([2.0, 1.0, 0.1, 0, 0, 7]))
    averages.add(np.array([math.inf, math.nan, 0.2, 0, 1, 7]))
    found = averages.flush()
    assert (found["loss"], found["learning_rate"], averages.tokens) == (2.0, 0.2, 14)


@pytest.mark.slow
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


# --- Every strategy, every precision ---

LOSS, GRADIENT = np.nan, odd_pretraining.MARK  # what weight of a masked token spoils which
ONE, MIRRORED, ACCUMULATED = [], ["--num_virtual_devices=2"], ["--gradient_accumulation_steps=2"]
QUICK = [(GRADIENT, "bfloat16", ACCUMULATED)]


def cases():
    for kind in (LOSS, GRADIENT):
        for precision in ("float32", "bfloat16", "float16"):
            for how in (ONE, MIRRORED, ACCUMULATED):
                name = f"{'loss' if kind is LOSS else 'gradient'} {precision} {' '.join(how)}"
                marks = () if (kind, precision, how) in QUICK else pytest.mark.slow
                yield pytest.param(kind, precision, how, id=name.strip(), marks=marks)


def write_odd_records(path, weight):
    """Records whose loss or gradient is no number, each of them."""
    rows = list(pretraining_rows(40))
    for row in rows:
        row["masked_lm_weights"] = np.array([weight, 0, 0], "float32")
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    records.write_records(str(path), rows, spec, {"vocab_size": VOCAB})


def train_on(flags) -> tuple[int, str | None]:
    """Returns (exit code, stderr); several devices need a process of their own."""
    if MIRRORED[0] in flags:
        paths = {"PYTHONPATH": f"{REPO}:{REPO / 'tests/support'}"}
        done = run("odd_pretraining", *flags, env=paths)
        return done.returncode, done.stderr
    with odd_pretraining.odd_gradients():
        return jobs.pretrain(*flags), None


@pytest.mark.parametrize(("kind", "precision", "how"), list(cases()))
def test_a_loss_or_gradient_that_is_no_number_is_skipped_and_counted_everywhere(
    kind, precision, how, begun, tmp_path
):
    write_odd_records(tmp_path / "odd.tfrecord", kind)
    flags = [
        *begun.flags, *how, f"--mixed_precision={precision}", "--num_train_steps=12",
        f"--input_file={tmp_path / 'odd.tfrecord'}", "--log_steps=2",
    ]
    code, stderr = train_on(flags)
    assert code == 0, stderr
    before, after = tensors(begun.out, 10), tensors(begun.out, 12)
    assert after.pop("global_step") == before.pop("global_step") + 2
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    [line] = [line for line in metrics(begun.out) if line["step"] == 12]
    run_state = run_states.read_run_state(str(begun.out / "model.ckpt-12"))
    bad, scale = run_state["skipped"]["consecutive"], run_state["loss_scale"][0]
    if precision != "float16":
        assert (bad, scale, line["skipped_steps"]) == (2, 1.0, 2)
        assert "loss_scale_overflows" not in line
    elif kind is LOSS:  # no scale helps, and none is tried
        assert (bad, scale) == (2, 2.0**15)
        assert (line["skipped_steps"], line["loss_scale_overflows"]) == (2, 0)
    else:  # the scale may be too high, and no update is held against the run
        assert (bad, scale) == (0, 2.0**13)
        assert (line["skipped_steps"], line["loss_scale_overflows"]) == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "precision", "how", "last"),
    [
        # 15 halvings lead from 2**15 to 1, and 11 bad steps to the end.
        (GRADIENT, "float16", ONE, 10 + 15 + 11),
        (GRADIENT, "float16", MIRRORED, 10 + 15 + 11),
        (LOSS, "float16", MIRRORED, 10 + 11),
        (LOSS, "bfloat16", MIRRORED, 10 + 11),
        (GRADIENT, "float32", ACCUMULATED, 10 + 11),
    ],
)
def test_more_than_ten_bad_steps_in_a_row_are_exit_3_and_the_good_checkpoint_stays_everywhere(
    kind, precision, how, last, begun, tmp_path, capsys
):
    write_odd_records(tmp_path / "odd.tfrecord", kind)
    flags = [
        *begun.flags, *how, f"--mixed_precision={precision}", "--num_train_steps=100",
        f"--input_file={tmp_path / 'odd.tfrecord'}", "--save_checkpoints_steps=1",
        "--keep_checkpoint_max=0",
    ]
    with nothing_lost(begun.out):
        code, stderr = train_on(flags)
    stderr = stderr or capsys.readouterr().err
    assert code == 3, stderr
    line = assert_one_clear_line(stderr)
    assert f"training diverged at step {last}" in line and "11 bad steps in a row" in line
    steps_saved = list(checkpoints.list_steps(str(begun.out)))
    assert steps_saved == list(range(10, last - 11 + 1))
    assert f"last good checkpoint: {begun.out}/model.ckpt-{steps_saved[-1]}" in line
    right = tensors(begun.out, 10)
    for name, value in tensors(begun.out, steps_saved[-1]).items():
        assert name == "global_step" or np.array_equal(value, right[name]), name


def test_checkpoints_of_bad_steps_never_push_out_the_last_good_one(begun, tmp_path, capsys):
    write_odd_records(tmp_path / "odd.tfrecord", LOSS)
    flags = [
        *begun.flags, f"--input_file={tmp_path / 'odd.tfrecord'}", "--save_checkpoints_steps=1",
        "--keep_checkpoint_max=1",
    ]
    # The command may stop while steps are bad; the next process may be the one that diverges.
    assert jobs.pretrain(*flags, "--num_train_steps=14") == 0
    assert list(checkpoints.list_steps(str(begun.out))) == [10, 11, 12, 13, 14]
    capsys.readouterr()
    assert jobs.pretrain(*flags, "--num_train_steps=100") == 3
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"last good checkpoint: {begun.out}/model.ckpt-10" in line
    assert list(checkpoints.list_steps(str(begun.out))) == [10]
    assert "model.ckpt-10" in (begun.out / "checkpoint").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["pretraining", pytest.param("classifier", marks=pytest.mark.slow)]
)
def test_weights_that_grow_beyond_the_largest_number_are_never_saved(
    task, begun, classified, tmp_path, capsys
):
    extra = ["--learning_rate=3e38", "--save_checkpoints_steps=1", "--log_steps=1"]
    if task == "pretraining":
        folder = begun.out
        flags = [*begun.flags, *extra, "--num_warmup_steps=0"]
    else:
        trained = classified.copy(tmp_path / "classifier")
        folder, flags = trained.out, [*trained.flags, *extra, "--do_train", "--train_step=20"]
    newest = max(checkpoints.list_steps(str(folder)))
    code = {"pretraining": jobs.pretrain, "classifier": jobs.classify}[task]
    with nothing_lost(folder):
        assert code(*flags) == 3
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "training diverged at step" in line and "learning_rate" in line
    saved = checkpoints.list_steps(str(folder))
    assert newest in saved
    for step in saved:
        for name, value in tensors(folder, step).items():
            assert np.isfinite(value).all(), (step, name)


def test_the_count_of_bad_steps_outlives_the_process():
    first, second = DivergenceCheck(), DivergenceCheck()
    for step in range(51):
        first.check(step, step % 7 == 0, 1.0, 1.0)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    assert second.consecutive == 0
    second.check(51, True, 1.0, 1.0)
    assert second.consecutive == 1


@pytest.mark.slow
def test_a_loss_spike_is_skipped_and_counted_if_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(steps, "SPIKE_WINDOW", 4)
    job = jobs.pretraining_flags(tmp_path, log_steps=1, learning_rate=1e-4)
    # The other three records of the batch weigh 3: a sum near zero makes the mean huge,
    # and mostly positive, as the odd token is a rather unlikely one.
    write_with_one_odd_record(tmp_path / "train.tfrecord", -3.0001)
    assert jobs.pretrain(*job, "--num_train_steps=60") == 0
    assert skipped_steps(tmp_path / "out") == []
    losses = {line["step"]: line["loss"] for line in metrics(tmp_path / "out")}
    found = [step for step, loss in losses.items() if step > 4 and loss > 100]
    assert found
    skipping = tmp_path / "skipping"
    assert jobs.pretrain(
        *job, "--num_train_steps=60", f"--output_dir={skipping}", "--skip_loss_spikes"
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
