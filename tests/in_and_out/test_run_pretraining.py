"""run_pretraining: the original's numbers and files, packing, precisions, and refusals."""

import json
import math
import os
import shutil

import jobs
import keras
import numpy as np
import pytest
from helpers import (
    LENGTH, PREDICTIONS, assert_one_clear_line, metrics, pretraining_rows, results_of, write_config,
)
from jobs import pretrain, tensors
from tensorflow.core.util import event_pb2
from record_files_made import payloads_of, write_records

from albert.config import AlbertConfig
from albert.formats import checkpoints
from albert.training import costs
from albert.records import manifests
from albert.runtime import progress, workers
from albert.tasks.pretraining import PretrainingTask
from albert.training import metrics as training_metrics
from albert.training.metrics import History
from albert.training.tf_engine import TensorFlowEngine

SPEC = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()


def test_evaluation_of_the_golden_checkpoint_reports_the_originals_numbers(golden_path, tmp_path):
    folder = golden_path("tf1_ckpt_tiny")
    golden = np.load(folder / "io.npz")
    inputs = {k[3:]: golden[k] for k in golden.files if k.startswith("in/")}
    rows, length = inputs["input_ids"].shape
    task = PretrainingTask(length, inputs["masked_lm_ids"].shape[1])
    path = str(tmp_path / "golden.tfrecord")
    each = ({k: v[i] for k, v in inputs.items()} for i in range(rows))
    write_records(path, each, task.feature_spec(), {})
    assert 0 == jobs.pretrain(
        f"--input_file={path}", f"--albert_config_file={folder / 'albert_config.json'}",
        f"--init_checkpoint={folder / 'model.ckpt-best'}", f"--output_dir={tmp_path / 'out'}",
        f"--max_seq_length={length}", "--max_predictions_per_seq=5", f"--eval_batch_size={rows}",
        "--nodo_train", "--do_eval", "--max_eval_steps=3",
    )
    results = results_of(tmp_path / "out")
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


def test_a_run_leaves_the_files_that_the_originals_own_test_expects(whole):
    names = set(os.listdir(whole.out))
    for prefix in ("model.ckpt-10", "model.ckpt-20", "model.ckpt-23", "model.ckpt-best"):
        assert {prefix + ".index", prefix + ".data-00000-of-00001"} <= names
    assert {"eval_results.txt", "checkpoint", "albert_config.json"} <= names
    named = set(checkpoints.open_weights(str(whole.out / "model.ckpt-23")).shapes)
    assert "bert/embeddings/word_embeddings/adam_m" in named and "global_step" in named
    # The results are those of the last step; the best checkpoint has the lowest loss.
    evaluated = [line for line in metrics(whole.out) if line["kind"] == "eval"]
    assert [line["step"] for line in evaluated] == [10, 20, 23]
    results = results_of(whole.out)
    assert results == {k: v for k, v in evaluated[-1].items() if k not in ("kind", "step")} | {
        "global_step": 23
    }
    best = results_of(whole.out, "best")
    assert best["value"] == max(line[best["metric"]] for line in evaluated)


def test_tensorboard_finds_the_same_scalars_as_metrics_jsonl(whole):
    found = {}
    [events] = (whole.out / "summaries/train").glob("events.*")
    for record in payloads_of(str(events)):
        event = event_pb2.Event.FromString(record)
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    lines = [line for line in metrics(whole.out) if line["kind"] == "train"]
    assert [line["step"] for line in lines] == list(range(1, 24))
    for line in lines:
        for name in ("loss", "learning_rate"):
            np.testing.assert_allclose(found[name, line["step"]], line[name], rtol=1e-6)


def test_each_evaluation_reports_the_accuracy_of_the_most_frequent_answer(whole, tmp_path, capsys):
    """Over the evaluated records, excluding those that pad the last batch."""
    rows = list(pretraining_rows(13, seed=3))
    for number, row in enumerate(rows):
        row["next_sentence_labels"] = [number % 3 == 0]  # 5 of 13
        row["masked_lm_weights"] = [1.0, 1.0, number % 2]
        row["masked_lm_ids"] = [7 if number < 11 else 9, 8, 7]
    write_records(str(tmp_path / "held.tfrecord"), rows, SPEC, {})
    assert 0 == pretrain(
        *whole.flags, "--nodo_train", "--do_eval", f"--eval_input_file={tmp_path}/held.tfrecord",
        "--max_eval_steps=0", f"--init_checkpoint={whole.out}", f"--output_dir={tmp_path}/out",
    )
    said = capsys.readouterr().err
    results = results_of(tmp_path / "out")
    for name, value in (("masked_lm", 17 / 32), ("sentence_order", 8 / 13)):
        assert results[f"{name}_accuracy_baseline"] == pytest.approx(value)
        assert f"  {name}_accuracy_baseline = {value:.4f}"[:-1] in said


# --- Other optimizers, engines and precisions ---


# test_preemption has LAMB's.
@pytest.mark.slow
@pytest.mark.parametrize("extra", [
    "--optimizer=muon", "--use_xla", "--mixed_precision=float16", "--gradient_accumulation_steps=2",
])
def test_a_run_resumes_to_the_same_bits_across_an_epoch_whatever_makes_its_steps(extra, tmp_path, capsys):
    flags = [*jobs.pretraining_flags(
        tmp_path, num_train_steps=4, num_warmup_steps=1, save_checkpoints_steps=2, log_steps=1,
        train_batch_size=16,
    ), extra]
    assert pretrain(*flags) == 0
    assert "sequences: full length" in capsys.readouterr().err  # full sequences are not packed
    half = jobs.Run(tmp_path / "out", flags).copy(tmp_path / "half", step=2)
    assert pretrain(*half.flags) == 0
    jobs.assert_same_run(half.out, tmp_path / "out", 4)


def test_the_log_has_the_share_of_the_peak_where_it_is_known(whole, tmp_path, monkeypatch, capsys):
    assert not any("mfu" in line for line in metrics(whole.out))  # of a CPU it is not
    monkeypatch.setattr(TensorFlowEngine, "device_name", "NVIDIA H100 80GB HBM3")
    monkeypatch.setitem(training_metrics._PEAKS, "H100 80GB HBM3", (1e-6, 1))  # a tiny model's
    assert pretrain(*whole.flags, f"--output_dir={tmp_path}", "--until_step=4", "--log_steps=4") == 0
    config = AlbertConfig.from_json_file(str(tmp_path / "albert_config.json"))
    flops = costs.training_flops(config, LENGTH, PREDICTIONS)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert line["mfu"] == pytest.approx(flops * line["tokens_per_second"] / 1e6, rel=1e-2)
    assert ", mfu " in capsys.readouterr().err


@pytest.mark.parametrize("precision, noise", [
    pytest.param("bfloat16", 0.2, marks=pytest.mark.slow), ("float16", 0.05)
])
def test_mixed_precision_trains_like_float32_and_keeps_float32_weights_and_the_policy(
    precision, noise, whole, tmp_path, capsys
):
    flags = [*whole.flags, f"--output_dir={tmp_path}", "--until_step=4"]
    assert pretrain(*flags, f"--mixed_precision={precision}") == 0
    assert "start: random weights" in capsys.readouterr().err
    half, full = metrics(tmp_path)[0], metrics(whole.out)[0]
    assert half["step"] == full["step"] == 1 and half["skipped_steps"] == 0
    assert half["loss"] != full["loss"]
    assert math.isclose(half["loss"], full["loss"], rel_tol=0.02)
    # Of gradients in float16, those without its scale.
    assert half["gradient_norm"] == pytest.approx(full["gradient_norm"], rel=noise)
    assert keras.config.dtype_policy().name == "float32"
    assert {t.dtype for t in tensors(tmp_path / "model.ckpt-4").values()} == {
        np.dtype("float32"), np.dtype("int64"),
    }


# --- Short and odd records ---


def test_short_sequences_are_packed_and_train_and_evaluate_the_same(tmp_path, capsys):
    """Also records of another tool, with predictions at masked-out positions or padding."""
    rows = list(pretraining_rows(24, least=5, most=6))
    for number, row in enumerate(rows):
        row["masked_lm_weights"] = np.array([1.0, 1.0, 0.0], "float32")
        row["masked_lm_ids"] = np.array([row["masked_lm_ids"][0], 7, 0])
        row["masked_lm_positions"] = np.array([2, [9, 3, 0][number % 3], 0])  # 9 is padding
        row["input_mask"] = row["input_mask"].copy()
        row["input_mask"][[[1], [3], [0, 2], []][number % 4]] = 0
        if number == 11:
            row["input_mask"][:] = 0
    path = str(tmp_path / "foreign.tfrecord")
    write_records(path, rows, SPEC, {})
    os.unlink(manifests.manifest_path(path))
    flags = jobs.pretraining_flags(
        tmp_path, input_file=path, max_eval_steps=0, num_train_steps=3, num_warmup_steps=1, log_steps=1,
        train_batch_size=8,
    )
    write_config(tmp_path, initializer_range=0.5, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    found = []
    for way, message in (("--pack_rows", "sequences: packed"), ("--nopack_rows", "sequences: trimmed")):
        assert pretrain(*flags, "--do_eval", way, f"--output_dir={tmp_path / way}") == 0
        assert message in capsys.readouterr().err
        found.append([line | {"kind": line["kind"] == "eval"} for line in metrics(tmp_path / way)])
    assert len(found[0]) == 4
    for packed, padded in zip(*found, strict=True):
        assert packed == pytest.approx(padded, rel=1e-5, abs=1e-6)


# --- Usage ---

BAD = [
    ([], "--input_file, --output_dir are required"),
    (["{job}", "--nodo_train"], "at least one of --do_train and --do_eval"),
    (["{job}", "--num_warmup_steps=99"], "--num_warmup_steps=99 exceeds --num_train_steps=23"),
    (["{job}", "--num_decay_steps=21"],
     "--num_warmup_steps=3 + --num_decay_steps=21 exceeds --num_train_steps=23"),
    (["{job}", "--start_warmup_step=30", "--num_warmup_steps=0"],
     "--start_warmup_step=30 exceeds --num_train_steps=23"),
    (["{job}", "--start_warmup_step=20", "--num_warmup_steps=5"],
     "--start_warmup_step=20 + --num_warmup_steps=5 exceeds --num_train_steps=23"),
    (["{job}", "--max_seq_length=17"], "exceeds max_position_embeddings 16"),
    (["{job}", "--max_seq_length=8"], "pass --max_seq_length=12"),
    (["{job}", "--input_file=/nowhere/x*"], "no file matches /nowhere/x*"),
    (["{job}", "--albert_config_file=/nowhere.json"], "no such file: /nowhere.json"),
    (["{job}", "--nodo_train", "--do_eval", "--vocab_file=x"], "--vocab_file needs --do_train"),
]


def test_a_usage_error_is_one_line_and_exit_code_2(job, tmp_path, capsys):
    for arguments, message in BAD:
        given = [a for argument in arguments for a in (job if argument == "{job}" else [argument])]
        assert pretrain(*given) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert not (tmp_path / "out").exists(), message
    checkpoints.write(str(tmp_path / "other"), {"w": np.zeros(3, "float32")})
    assert pretrain(*job, f"--init_checkpoint={tmp_path / 'other'}") == 2
    assert "does not fit the model" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out/albert_config.json").exists()


def test_a_processor_that_multiplies_in_bfloat16_is_known_by_its_features(tmp_path):
    path = tmp_path / "cpuinfo"
    for flags, gain in (("fpu avx2 avx512f avx512_bf16", 1.7),
                        ("fpu avx512_bf16 amx_bf16 amx_tile", 2.0), ("fpu avx2 avx512f", None)):
        path.write_text(f"model name\t: Some\nflags\t\t: {flags}\n")
        assert workers.bfloat16_gain(str(path)) == gain
    assert workers.bfloat16_gain(str(tmp_path / "none")) is None


# --- Resuming, and what happens meanwhile ---


def test_resuming_with_another_batch_size_repeats_and_skips_no_record(begun, monkeypatch):
    class Asked(BaseException):
        pass

    def train_batches(self, source, spec, **options):
        raise Asked(options["position"])

    monkeypatch.setattr(TensorFlowEngine, "train_batches", train_batches)
    with pytest.raises(Asked) as asked:  # after 10 steps of 4
        jobs.pretrain(*begun.flags, "--train_batch_size=8")
    assert asked.value.args == (40,)


def test_a_directory_that_is_removed_during_the_run_is_not_made_again(job, tmp_path, monkeypatch, capsys):
    note, out = History.note, tmp_path / "out"

    def removing(self, step, *rest):
        if step >= 5 and out.exists():
            shutil.rmtree(out)
        note(self, step, *rest)

    monkeypatch.setattr(History, "note", removing)
    assert jobs.pretrain(*job, "--do_eval") == 2
    assert f"{out} was removed or emptied during the run" in assert_one_clear_line(capsys.readouterr().err)
    assert not out.exists()


def test_the_default_warm_up_is_a_part_of_the_steps(job, begin):
    job = [flag for flag in job if "num_warmup_steps" not in flag]
    for steps, more, expected in (
        (20, [], 0), (125_000, [], 3125), (10_000, [], 250), (40, ["--num_decay_steps=40"], 0),
        (400, ["--num_warmup_steps=7"], 7),
    ):
        (_, _, _, optimizer, _), options = begin(jobs.pretrain, *job, f"--num_train_steps={steps}", *more)
        assert optimizer.num_warmup_steps == options["flags"]["num_warmup_steps"] == expected


def test_the_time_left_is_that_of_steps_after_the_first_which_compiles(monkeypatch, caplog):
    clock = iter([0.0, 40.0, 45.0, 80.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    caplog.set_level("INFO")
    shown = progress.Progress("trained", 100, "steps")
    for step in (1, 2, 9):
        shown.update(step)
    assert "trained 1/100" not in caplog.text  # one step says nothing yet
    assert "trained 9/100 steps, 0.2 steps/s, 7m35s left" in caplog.text
