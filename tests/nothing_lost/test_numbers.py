"""NaN or infinite losses and gradients: the update is skipped."""

import itertools
import json
import math
import types

import jobs
import numpy as np
import odd_pretraining
import pytest
from helpers import (
    LENGTH, PREDICTIONS, REPO, SIZES, VOCAB, assert_one_clear_line, metrics, pretraining_rows, run,
    strict_json,
)
from invariants import nothing_lost
from record_files_made import write_records

from albert.config import AlbertConfig
from albert.formats import checkpoints, metadata
from albert.tasks.pretraining import PretrainingTask
from albert.training import evaluate, loop, steps
from albert.training.metrics import History
from albert.training.run import RunConfig

# The masked-token weight that spoils each. Of one record, the loss becomes infinite, of several NaN.
LOSS, GRADIENT = 3e38, odd_pretraining.MARK


def write_odd_records(path, weight, odd=range(40)):
    """Random records, some of which weight their masked token by `weight`."""
    rows = list(pretraining_rows(40))
    for number in odd:
        rows[number]["masked_lm_weights"] = np.array([weight, 0, 0], "float32")
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    write_records(str(path), rows, spec, {"vocab_size": VOCAB})
    return f"--input_file={path}"


def assert_same_weights(folder, step, later, theirs=None):
    before, after = (jobs.tensors((theirs or folder) / f"model.ckpt-{step}"),
                     jobs.tensors(folder / f"model.ckpt-{later}"))
    for name in before.keys() - {"global_step"}:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    assert after["global_step"] == before["global_step"] + later - step


@pytest.mark.parametrize(
    ("weight", "extra"), [(LOSS, []), pytest.param(LOSS, ["--use_xla"], marks=pytest.mark.slow)]
)
def test_a_step_whose_loss_is_not_finite_moves_neither_weights_nor_moments(
    weight, extra, tmp_path, capsys
):
    job = jobs.pretraining_flags(tmp_path, log_steps=1, save_checkpoints_steps=1,
                                 keep_checkpoint_max=0, num_warmup_steps=0, num_train_steps=10)
    write_odd_records(tmp_path / "train.tfrecord", weight, [4])
    assert jobs.pretrain(*job, *extra) == 0
    out = tmp_path / "out"
    [line] = [line for line in metrics(out) if line["skipped_steps"]]  # an epoch is ten steps
    assert line["loss"] is line["masked_lm_accuracy"] is None and line["skipped_steps"] == 1
    assert "loss_scale_overflows" not in line
    bad = line["step"]
    said = capsys.readouterr().err
    assert f"step {bad} skipped: loss" in said and "of epoch 0" in said
    assert list(checkpoints.list_steps(str(out))) == list(range(1, 11))
    assert 1 < bad < 10  # depends on the seed
    assert_same_weights(out, bad - 1, bad)
    before, after = (jobs.tensors(out / f"model.ckpt-{step}") for step in (bad, bad + 1))
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    assert all(np.isfinite(value).all() for value in after.values())
    strict_json((out / f"model.ckpt-{bad}.json").read_text())


def test_averages_leave_skipped_steps_and_overflows_out_and_the_rate_a_processs_first_step(caplog):
    caplog.set_level("INFO", "albert")
    engine, source = types.SimpleNamespace(device_name=""), types.SimpleNamespace(count=100)
    run = RunConfig("", train_batch_size=4, mixed_precision="float16")
    task = PretrainingTask(LENGTH, PREDICTIONS, sentence_objective="none")
    history, lines = History(engine, task, AlbertConfig(**SIZES), run, source), []
    for step, (loss, norm, rate, bad, overflow) in enumerate((
        (2.0, 1.0, 0.1, 0, 0), (4.0, 3.0, 0.2, 0, 0), (3.0, math.inf, 0.3, 0, 1),
        (math.inf, math.nan, 0.4, 1, 0), (6.0, 2.0, 0.5, 0, 0),
    ), 1):
        history.note(step, np.array([loss, norm, rate, bad, overflow, 7000, 1, 2, 1, 4, 0]))
    writer = types.SimpleNamespace(write=lambda *line: lines.append(line))
    history.report(5, 2.0, 0.5, writer)
    assert lines == [(5, "train", {
        "loss": 4.0, "gradient_norm": 2.0, "learning_rate": 0.5, "skipped_steps": 1,
        "loss_scale_overflows": 1, "masked_lm_accuracy": 0.5, "masked_lm_loss": 0.25,
        "tokens_per_second": 14e3, "seconds": 2.0, "data_wait": 0.5,
    })]
    begin = "step 5: loss 4, gradient_norm 2, learning_rate 0.5, skipped_steps 1, "
    assert caplog.messages[-1].startswith(begin)
    assert caplog.messages[-1].endswith(", masked_lm_loss 0.25, tokens_per_second 14,000")
    assert history.records_seen == 20


def test_the_speed_is_that_of_training_alone(begun, monkeypatch):
    clock, measure = itertools.count(), evaluate.measure

    def slow(*given, **options):
        for _ in range(10_000):
            next(clock)
        return measure(*given, **options)

    monkeypatch.setattr(evaluate, "measure", slow)
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    assert jobs.pretrain(*begun.flags, "--do_eval") == 0
    lines = map(json.loads, (begun.out / "metrics.jsonl").read_text().splitlines())
    assert max(line["seconds"] for line in lines if line["kind"] == "train") < 1000


def test_eleven_bad_steps_in_a_row_end_the_run(begun, tmp_path, capsys):
    odd = write_odd_records(tmp_path / "odd.tfrecord", LOSS)
    assert jobs.pretrain(
        *begun.flags, odd, "--save_checkpoints_steps=5", "--keep_checkpoint_max=1", "--log_steps=1"
    ) == 3
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "training diverged at step 21: loss nan" in line and "11 bad steps in a row" in line
    assert f"last good checkpoint: {begun.out}/model.ckpt-20" in line
    whole = jobs.tensors(begun.out / "model.ckpt-20")
    assert all(np.isfinite(value).all() for value in whole.values())


# --- Every strategy, every precision ---

PRECISIONS = ("float32", "bfloat16", "float16")
ONE, MIRRORED, ACCUMULATED = [], ["--num_virtual_devices=2"], ["--gradient_accumulation_steps=2"]
FAST = [(GRADIENT, "float16", ACCUMULATED)]
CASES = [
    pytest.param(
        *case, marks=() if case in FAST else pytest.mark.slow,
        id=f"{'loss' if case[0] is LOSS else 'gradient'} {case[1]} {' '.join(case[2])}".strip(),
    ) for case in itertools.product((LOSS, GRADIENT), PRECISIONS, (ONE, MIRRORED, ACCUMULATED))
]


def train_on(flags) -> tuple[int, str | None]:
    """Returns (exit code, stderr); several devices need a separate process."""
    if MIRRORED[0] in flags:
        paths = {"PYTHONPATH": f"{REPO}:{REPO / 'tests/support'}"}
        done = run("odd_pretraining", *flags, env=paths)
        return done.returncode, done.stderr
    with odd_pretraining.odd_gradients():
        return jobs.pretrain(*flags), None


@pytest.mark.parametrize(("kind", "precision", "how"), CASES)
def test_a_loss_or_gradient_that_is_not_finite_is_skipped_and_counted_everywhere(
    kind, precision, how, begun, tmp_path
):
    saved, scale = begun.out / "model.ckpt-10.json", 2.0**15
    if (precision, how) == ("float16", ACCUMULATED):  # a saved loss scale is restored
        scale = 2.0
        flags = json.loads(saved.read_text())["flags"] | {"mixed_precision": "float16"}
        jobs.change_json(saved, loss_scale=[scale, 5.0], flags=flags)
    flags = [
        *begun.flags, *how, f"--mixed_precision={precision}", "--num_train_steps=12",
        write_odd_records(tmp_path / "odd.tfrecord", kind), "--log_steps=2",
    ]
    code, stderr = train_on(flags)
    assert code == 0, stderr
    assert_same_weights(begun.out, 10, 12)
    [line] = [line for line in metrics(begun.out) if line["step"] == 12]
    run_state = metadata.read_run_state(str(begun.out / "model.ckpt-12"))
    found = run_state["loss_scale"]
    if precision != "float16":
        assert (found, line["skipped_steps"]) == ([1.0, 0.0], 2)
        assert "loss_scale_overflows" not in line
    elif kind is LOSS:  # no scale helps, and none is tried
        assert found == [scale, 0.0]
        assert (line["skipped_steps"], line["loss_scale_overflows"]) == (2, 0)
    else:  # the scale may be too high, and skipped updates do not count while it is above 1
        bad = int(scale == 2.0)
        assert found == [max(scale / 4, 1.0), 0.0]
        assert (line["skipped_steps"], line["loss_scale_overflows"]) == (bad, 2 - bad)


def test_the_loss_scale_is_halved_by_an_overflow_and_doubled_by_2000_good_steps():
    import keras

    run = RunConfig("", mixed_precision="float16")
    for before, loss, norm, after in (
        ([8, 1998], 1, 1, [8, 1999]), ([8, 1999], 1, 1, [16, 0]), ([8, 1999], 1, np.inf, [4, 0]),
        ([8, 5], np.inf, 1, [8, 0]), ([1, 5], 1, np.inf, [1, 0]),
    ):
        state = types.SimpleNamespace(loss_scale=keras.Variable([float(x) for x in before]))
        steps._judge(np.float32(loss), np.float32(norm), np.float32(before[0]), state, run)
        assert state.loss_scale.numpy().tolist() == after


def test_weights_that_overflow_are_never_saved(begun, capsys):
    flags = ["--learning_rate=3e38", "--save_checkpoints_steps=1", "--num_warmup_steps=0"]
    with nothing_lost(begun.out):
        assert jobs.pretrain(*begun.flags, *flags) == 3
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "training diverged at step" in line and "learning_rate" in line
    saved = checkpoints.list_steps(str(begun.out))
    assert 10 in saved
    for prefix in saved.values():
        assert all(np.isfinite(value).all() for value in jobs.tensors(prefix).values()), prefix
