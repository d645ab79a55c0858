"""run_pretraining: the original's numbers, exact resume, and bad input refused."""

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import (
    LENGTH,
    PREDICTIONS,
    REPO,
    assert_one_clear_line,
    metrics,
    pretraining_rows,
    run,
    run_here,
    start,
    write_config,
    write_pretraining_records,
)
from tensorflow.core.util import event_pb2

from albert import run_pretraining
from albert.formats import checkpoint_files, checkpoints
from albert.records import records, tfrecord
from albert.runtime import processor
from albert.storage import locks
from albert.tasks.pretraining import PretrainingTask

MODULE = "albert.run_pretraining"


def command(*arguments: str) -> int:
    """Runs the command in this process; returns its exit code."""
    return run_here(run_pretraining, *arguments)


@pytest.fixture
def job(tmp_path):
    """Flags of a tiny run: 23 steps over an epoch border, saved every 10."""
    return [
        f"--albert_config_file={write_config(tmp_path)}",
        f"--input_file={write_pretraining_records(tmp_path / 'train.tfrecord')}",
        f"--output_dir={tmp_path / 'out'}",
        "--max_seq_length=12", "--max_predictions_per_seq=3", "--train_batch_size=4",
        "--eval_batch_size=4", "--max_eval_steps=2", "--num_train_steps=23",
        "--num_warmup_steps=3", "--save_checkpoints_steps=10", "--log_steps=4",
        "--learning_rate=0.01",
    ]


def tensors(prefix: pathlib.Path) -> dict[str, np.ndarray]:
    weights = checkpoints.open_weights(str(prefix))
    return {name: weights.read(name) for name in weights.shapes}


def test_evaluation_of_the_golden_checkpoint_reports_the_originals_numbers(golden_path, tmp_path):
    folder = golden_path("tf1_ckpt_tiny")
    golden = np.load(folder / "io.npz")
    inputs = {k[3:]: golden[k] for k in golden.files if k.startswith("in/")}
    rows, length = inputs["input_ids"].shape
    task = PretrainingTask(length, inputs["masked_lm_ids"].shape[1])
    path = str(tmp_path / "golden.tfrecord")
    each = ({k: v[i] for k, v in inputs.items()} for i in range(rows))
    records.write_records(path, each, task.feature_spec(), {})
    assert 0 == command(
        f"--input_file={path}", f"--albert_config_file={folder / 'albert_config.json'}",
        f"--init_checkpoint={folder / 'model.ckpt-best'}", f"--output_dir={tmp_path / 'out'}",
        f"--max_seq_length={length}", "--max_predictions_per_seq=5", f"--eval_batch_size={rows}",
        "--nodo_train", "--do_eval", "--max_eval_steps=3",
    )
    results = json.loads((tmp_path / "out/eval_results.json").read_text())
    log_probs = golden["out/masked_lm_log_probs"]
    weights, ids = inputs["masked_lm_weights"].ravel(), inputs["masked_lm_ids"].ravel()
    losses = golden["out/masked_lm_example_loss"]
    sop = golden["out/sentence_order_log_probs"].argmax(1)
    expected = {
        "loss": golden["out/total_loss"],
        "masked_lm_loss": (weights * losses).sum() / weights.sum(),
        "masked_lm_accuracy": (weights * (log_probs.argmax(1) == ids)).sum() / weights.sum(),
        "sentence_order_loss": golden["out/sentence_order_loss"],
        "sentence_order_accuracy": (sop == inputs["next_sentence_labels"][:, 0]).mean(),
        "masked_lm_accuracy_baseline": np.bincount(ids[weights > 0]).max() / weights.sum(),
        "sentence_order_accuracy_baseline":
            np.bincount(inputs["next_sentence_labels"][:, 0]).max() / rows,
        "global_step": int(checkpoints.open_weights(str(folder)).read("global_step")),
    }
    assert set(results) == set(expected)
    for name, value in expected.items():
        assert math.isclose(results[name], value, rel_tol=1e-5), name
    text = (tmp_path / "out/eval_results.txt").read_text().splitlines()
    assert [line.split(" = ")[0] for line in text] == sorted(expected)


def test_the_files_that_the_originals_own_test_expects_are_there(job, tmp_path):
    result = run(MODULE, *job, "--do_eval")
    assert result.returncode == 0, result.stderr
    names = set(os.listdir(tmp_path / "out"))
    for prefix in ("model.ckpt-10", "model.ckpt-20", "model.ckpt-23", "model.ckpt-best"):
        assert {prefix + ".index", prefix + ".data-00000-of-00001"} <= names
    assert {"eval_results.txt", "checkpoint", "albert_config.json", "metrics.jsonl"} <= names
    assert "***** Eval results *****" in result.stderr
    assert "  sentence_order_loss = " in result.stderr
    assert "Traceback" not in result.stderr and "oneDNN" not in result.stderr
    named = set(checkpoints.open_weights(str(tmp_path / "out/model.ckpt-23")).shapes)
    assert "bert/embeddings/word_embeddings/adam_m" in named and "global_step" in named


@pytest.mark.parametrize("engine", ["tensorflow", "jax"])
def test_each_evaluation_tells_what_the_commonest_answer_is_worth(engine, job, tmp_path):
    """Of the records it is made on, whichever rows fill up the last batch."""
    rows = list(pretraining_rows(13, seed=3))
    for number, row in enumerate(rows):
        row["next_sentence_labels"] = [number % 3 == 0]  # 5 of 13
        row["masked_lm_weights"] = [1.0, 1.0, number % 2]
        row["masked_lm_ids"] = [7 if number < 11 else 9, 8, 7]
    path = tmp_path / "held.tfrecord"
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    records.write_records(str(path), rows, spec, {})
    result = run(MODULE, *job, "--do_eval", f"--eval_input_file={path}", "--max_eval_steps=0",
                 "--num_train_steps=10", f"--engine={engine}")
    assert result.returncode == 0, result.stderr
    expected = {"masked_lm_accuracy_baseline": 17 / 32, "sentence_order_accuracy_baseline": 8 / 13}
    results = json.loads((tmp_path / "out/eval_results.json").read_text())
    line = next(x for x in reversed(metrics(tmp_path / "out")) if x["kind"] == "eval")
    for name, value in expected.items():
        assert results[name] == line[name] == pytest.approx(value)
        assert f"  {name} = {value:.4f}"[:-1] in result.stderr
        assert f"{name} = " in (tmp_path / "out/eval_results.txt").read_text()


def test_learning_lowers_the_loss_and_finds_the_pattern(job, tmp_path):
    # Wide initial weights let so small a model learn in so few steps.
    config = write_config(tmp_path, initializer_range=0.3)
    assert 0 == command(
        *job, f"--albert_config_file={config}", "--optimizer=adamw", "--num_train_steps=400",
        "--log_steps=100", "--train_batch_size=16", "--save_checkpoints_steps=400",
        "--learning_rate=0.003",
    )
    last = metrics(tmp_path / "out")[-1]
    # Guessing gives log 40 = 3.69 and the share of the commoner label, 0.55.
    assert last["masked_lm_loss"] < 1.5
    assert last["sentence_order_accuracy"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["--use_xla"], ["--optimizer=muon"]])
def test_a_preempted_run_resumes_bit_exactly_with_dropout_across_an_epoch(extra, job, tmp_path):
    whole = [*job, *extra, f"--output_dir={tmp_path / 'whole'}", "--do_eval"]
    assert 0 == command(*whole)
    process = start(MODULE, *job, *extra, "--do_eval")
    wait_for(tmp_path / "out/model.ckpt-10.index", process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode in (143, 0), stderr
    if process.returncode == 143:
        assert "preempted at step" in stderr
    assert 0 == command(*job, *extra, "--do_eval")
    assert metrics(tmp_path / "out") == metrics(tmp_path / "whole")
    ours, theirs = (tensors(tmp_path / d / "model.ckpt-23") for d in ("out", "whole"))
    assert set(ours) == set(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_checkpoint_to_the_same_end(job, tmp_path):
    assert 0 == command(*job, f"--output_dir={tmp_path / 'whole'}")
    process = start(MODULE, *job)
    wait_for(tmp_path / "out/model.ckpt-10.index", process)
    process.kill()
    process.communicate()
    assert 0 == command(*job)
    assert metrics(tmp_path / "out") == metrics(tmp_path / "whole")
    ours, theirs = (tensors(tmp_path / d / "model.ckpt-23") for d in ("out", "whole"))
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert not [n for n in os.listdir(tmp_path / "out") if ".tmp" in n]


def wait_for(path: pathlib.Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_where_training_starts_first_that_applies(job, tmp_path, capsys):
    # 3. random weights
    assert 0 == command(*job, "--num_train_steps=10")
    assert "start: random weights" in capsys.readouterr().err
    # 2. a checkpoint's weights, but neither its step nor its moments
    first, other = tmp_path / "out/model.ckpt-10", f"--output_dir={tmp_path / 'other'}"
    assert 0 == command(*job, other, f"--init_checkpoint={first}", "--num_train_steps=10")
    account = json.loads((tmp_path / "other/warm_start.json").read_text())
    assert not account["new"] and "global_step" in account["ignored"]
    assert f"start: from {first}: loaded" in capsys.readouterr().err
    # 1. the newest checkpoint of output_dir, whatever --init_checkpoint says
    assert 0 == command(*job, other, f"--init_checkpoint={first}")
    assert f"start: where {tmp_path / 'other/model.ckpt-10'} left off" in capsys.readouterr().err


@pytest.mark.slow
def test_a_finished_run_does_not_train_again(job, tmp_path, capsys):
    assert 0 == command(*job, "--do_eval")
    before = (tmp_path / "out/model.ckpt-23.data-00000-of-00001").stat().st_mtime_ns
    results = (tmp_path / "out/eval_results.txt").read_text()
    capsys.readouterr()
    assert 0 == command(*job, "--do_eval")
    assert "already trained to step 23" in capsys.readouterr().err
    assert (tmp_path / "out/model.ckpt-23.data-00000-of-00001").stat().st_mtime_ns == before
    assert (tmp_path / "out/eval_results.txt").read_text() == results


def test_the_same_command_gives_the_same_bytes_and_another_seed_does_not(job, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert 0 == command(*job, f"--output_dir={tmp_path / name}", f"--seed={seed}")
    data = "model.ckpt-23.data-00000-of-00001"
    a, b, c = ((tmp_path / name / data).read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        [],
        ["--use_xla"],
        ["--num_virtual_devices=2"],
    ],
)
def test_short_sequences_are_packed_and_train_and_evaluate_the_same(extra, tmp_path):
    config = write_config(
        tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    records = write_pretraining_records(tmp_path / "short.tfrecord", least=5, most=6)

    def train(name, *more):
        done = run(
            MODULE, f"--albert_config_file={config}", f"--input_file={records}",
            f"--output_dir={tmp_path / name}", "--max_seq_length=12",
            "--max_predictions_per_seq=3", "--train_batch_size=8", "--eval_batch_size=8",
            "--max_eval_steps=0", "--num_train_steps=6", "--num_warmup_steps=2", "--log_steps=1",
            "--learning_rate=0.01", "--do_eval", *extra, *more,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr, metrics(tmp_path / name)

    (said, packed), (said_too, padded) = train("packed"), train("padded", "--nopack_rows")
    assert "rows: packed" in said and "rows: cut" in said_too
    assert len(packed) == len(padded) == 7
    for found, expected in zip(packed, padded, strict=True):
        assert found.pop("kind") == expected.pop("kind")
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def write_foreign_records(path, change):
    """Records of another tool: `change(number, row)` makes them odd; there is no manifest."""
    rows = list(pretraining_rows(24, least=5, most=6))
    for number, row in enumerate(rows):
        row["input_mask"] = row["input_mask"].copy()
        row["masked_lm_weights"] = np.array([1.0, 1.0, 0.0], "float32")
        row["masked_lm_ids"] = np.array([row["masked_lm_ids"][0], 7, 0])
        change(number, row)
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    records.write_records(str(path), rows, spec, {})
    records.remove_manifest(str(path))
    return str(path)


@pytest.mark.slow
def test_masked_out_and_padding_places_that_are_read_give_the_same_packed(job, tmp_path, capsys):
    def make_odd(number, row):
        row["masked_lm_positions"] = np.array([2, [9, 3, 0][number % 3], 0])  # 9 is padding
        row["input_mask"][[[1], [3], [0, 2], []][number % 4]] = 0
        if number == 11:
            row["input_mask"][:] = 0

    path = write_foreign_records(tmp_path / "foreign.tfrecord", make_odd)
    results = []
    for number, extra in enumerate(["--pack_rows", "--nopack_rows"]):
        out = tmp_path / f"out{number}"
        arguments = [f"--input_file={path}", f"--output_dir={out}", "--num_train_steps=3", extra]
        wide = write_config(tmp_path, initializer_range=0.5)
        assert 0 == command(
            *job, *arguments, f"--albert_config_file={wide}", "--do_eval", "--learning_rate=1e-12"
        )
        results.append(json.loads((out / "eval_results.json").read_text()))
    said = capsys.readouterr().err
    assert "rows: packed" in said and "rows: cut" in said
    assert results[0] == pytest.approx(results[1], rel=1e-6)


@pytest.mark.parametrize("position", [LENGTH, pytest.param(-1, marks=pytest.mark.slow)])
def test_a_masked_position_outside_the_row_is_refused(position, job, tmp_path, capsys):
    def make_bad(number, row):
        row["masked_lm_positions"] = np.array([2, position if number == 20 else 0, 0])

    path = write_foreign_records(tmp_path / "foreign.tfrecord", make_bad)
    assert 2 == command(*job, f"--input_file={path}")
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "foreign.tfrecord: record 20: masked_lm_positions outside the sequence of 12 tokens" in line


def test_full_rows_are_not_packed(job, capsys):
    assert command(*job, "--num_train_steps=3") == 0
    assert "rows: whole" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", ["bfloat16", "float16"]
)
def test_mixed_precision_trains_like_float32_and_keeps_float32_weights(precision, job, tmp_path):
    assert 0 == command(*job, f"--output_dir={tmp_path / 'full'}")
    assert 0 == command(*job, f"--mixed_precision={precision}")
    half, full = metrics(tmp_path / "out")[-1], metrics(tmp_path / "full")[-1]
    assert half["skipped_steps"] == 0
    assert math.isclose(half["loss"], full["loss"], rel_tol=0.02)
    assert {t.dtype for n, t in tensors(tmp_path / "out/model.ckpt-23").items()} == {
        np.dtype("float32"), np.dtype("int64"),
    }


@pytest.mark.slow
def test_tensorboard_finds_the_same_scalars_as_metrics_jsonl(job, tmp_path):
    assert 0 == command(*job)
    [events] = (tmp_path / "out/summaries/train").glob("events.*")
    found = {}
    for record in tfrecord.read_records(str(events)):
        event = event_pb2.Event.FromString(record)
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    for line in metrics(tmp_path / "out"):
        np.testing.assert_allclose(found["loss", line["step"]], line["loss"], rtol=1e-6)


@pytest.mark.slow
def test_a_changed_rate_is_used_and_told(job, tmp_path, capsys):
    assert 0 == command(*job, "--num_train_steps=10")
    capsys.readouterr()
    assert 0 == command(*job, "--learning_rate=0.5")
    assert "--learning_rate changed from 0.01 to 0.5" in capsys.readouterr().err
    assert metrics(tmp_path / "out")[-1]["learning_rate"] > 0.01


@pytest.mark.slow
def test_a_run_that_diverges_exits_3_and_keeps_its_last_good_checkpoint(job, tmp_path, capsys):
    assert 0 == command(*job, "--num_train_steps=10")
    before = tensors(tmp_path / "out/model.ckpt-10")
    # A weight that is not finite makes every later step so.
    spoilt = dict(before)
    spoilt["bert/pooler/dense/bias"] = spoilt["bert/pooler/dense/bias"] * np.nan
    checkpoint_files.write(str(tmp_path / "out/model.ckpt-10"), spoilt)
    capsys.readouterr()
    assert 3 == command(*job, "--num_train_steps=60")
    assert "model.ckpt-10" in assert_one_clear_line(capsys.readouterr().err)
    assert list(checkpoints.list_steps(str(tmp_path / "out"))) == [10]


def test_two_processes_do_not_share_an_output_dir(job, tmp_path):
    with locks.hold(str(tmp_path / "out")):
        result = run(MODULE, *job)
    assert result.returncode == 2
    assert f"in use by pid {os.getpid()}" in assert_one_clear_line(result.stderr)
    assert os.listdir(tmp_path / "out") == [".lock"]


BAD = {
    "no flags": ([], "--input_file, --output_dir are required"),
    "unknown flag": (["--learningrate=1"], "did you mean --learning_rate?"),
    "bad value": (["--train_batch_size=many"], "train_batch_size"),
    "nothing to do": (["{job}", "--nodo_train"], "at least one of --do_train and --do_eval"),
    "budget": (["{job}", "--masked_lm_budget=20"], "--masked_lm_budget"),
    "warm-up": (["{job}", "--num_warmup_steps=99"], "--num_warmup_steps=99 exceeds"),
    "length": (["{job}", "--max_seq_length=17"], "exceeds max_position_embeddings 16"),
    "no input": (["{job}", "--input_file=/nowhere/x*"], "no file matches /nowhere/x*"),
    "no config": (["{job}", "--albert_config_file=/nowhere.json"], "no such file: /nowhere.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_usage_error_is_one_line_and_exit_code_2(case, job, tmp_path, capsys):
    arguments, message = BAD[case]
    expanded = [a for argument in arguments for a in (job if argument == "{job}" else [argument])]
    assert 2 == command(*expanded)
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_data_of_another_length_is_refused_with_the_flag_to_pass(job, tmp_path, capsys):
    assert 2 == command(*job, "--max_seq_length=8")
    assert "pass --max_seq_length=12" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("extra", [[], pytest.param(["--use_xla"], marks=pytest.mark.slow)])
def test_ids_outside_the_vocabulary_are_caught_without_a_manifest_too(
    extra, job, tmp_path, capsys
):
    os.unlink(tmp_path / "train.tfrecord.manifest.json")
    small = write_config(tmp_path, vocab_size=10)
    assert 2 == command(*job, f"--albert_config_file={small}", *extra)
    assert "outside the vocabulary of 10" in assert_one_clear_line(capsys.readouterr().err)


def test_a_corrupt_record_is_named(job, tmp_path, capsys):
    path = tmp_path / "train.tfrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert 2 == command(*job)
    assert "train.tfrecord" in assert_one_clear_line(capsys.readouterr().err)


def test_records_cut_at_a_border_are_caught_by_the_manifest(job, tmp_path, capsys):
    path = tmp_path / "train.tfrecord"
    size = path.stat().st_size // 40
    os.truncate(path, size * 30)
    assert 2 == command(*job)
    assert "its manifest says 40" in assert_one_clear_line(capsys.readouterr().err)


@pytest.mark.slow
def test_an_output_dir_of_another_architecture_is_refused(job, tmp_path, capsys):
    assert 0 == command(*job, "--num_train_steps=10")
    wide = write_config(tmp_path, hidden_size=32)
    capsys.readouterr()
    assert 2 == command(*job, f"--albert_config_file={wide}")
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "hidden_size: checkpoint 16, config 32" in line
    # The directory still says what it holds.
    kept = json.loads((tmp_path / "out/albert_config.json").read_text())
    assert kept["hidden_size"] == 16


def test_an_unrelated_checkpoint_is_refused_before_anything_is_written(job, tmp_path, capsys):
    checkpoint_files.write(str(tmp_path / "other"), {"w": np.zeros(3, "float32")})
    assert 2 == command(*job, f"--init_checkpoint={tmp_path / 'other'}")
    assert "does not fit the model" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out/albert_config.json").exists()


@pytest.mark.parametrize("arguments", [["--help"], ["--seed=x"], ["--nonsense"]])
def test_help_and_usage_errors_do_not_import_tensorflow(arguments):
    code = (
        "import sys; from albert import run_pretraining as r; from albert.cli import flags;"
        f"flags.run_command(r.__doc__, r.define_flags, r.main, ['x', *{arguments!r}]);"
        "print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO
    )
    assert out.stdout.splitlines()[-1] == "False False"


def test_the_rate_of_another_batch_is_scaled_by_the_root_of_its_size(job, tmp_path):
    assert command(*job, "--num_train_steps=4", "--scale_learning_rate", "--log_steps=1") == 0
    rates = [line["learning_rate"] for line in metrics(tmp_path / "out") if line["kind"] == "train"]
    # The step after the warm-up of 3: 0.01 sqrt(4 / 4096) of the rate, of which a quarter is left.
    np.testing.assert_allclose(rates[3], 0.01 * math.sqrt(4 / 4096) * 0.25, rtol=1e-5)


@pytest.mark.parametrize("flags, gain", [
    ("fpu avx2 avx512f avx512_bf16", 1.7), ("fpu avx512_bf16 amx_bf16 amx_tile", 2.0),
    ("fpu avx2 avx512f", None),
])
def test_a_processor_that_multiplies_in_bfloat16_is_known_by_its_features(flags, gain, tmp_path):
    (tmp_path / "cpuinfo").write_text(f"model name\t: Some\nflags\t\t: {flags}\n")
    assert processor.bfloat16_gain(str(tmp_path / "cpuinfo")) == gain
    assert processor.bfloat16_gain(str(tmp_path / "none")) is None
