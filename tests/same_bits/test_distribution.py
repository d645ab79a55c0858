"""One device, several, several machines, micro-batches: the same numbers. Real processes."""

import contextlib
import os
import re
import signal
import socket
import types

import jobs
import numpy as np
import pytest
from helpers import (
    LENGTH, NEEDS_JAX, PREDICTIONS, REPO, SIZES, VOCAB, assert_one_clear_line, metrics,
    pretraining_rows, run, run_here, start, write_config, write_weights,
)
from record_files_made import write_records

from albert import run_pretraining
from albert.errors import FlagError
from albert.formats import checkpoints
from albert.records.record_files import RecordFiles
from albert.tasks.pretraining import PretrainingTask
from albert.training import engine as engines
from albert.training.tf_engine import TensorFlowEngine

STEPS = 4
CONFIG = SIZES | {
    "num_hidden_layers": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0
}


def records_of(path, rows) -> str:
    """Writes rows that alternate between one masked token and three."""
    for row in rows[1::2]:
        row |= {"masked_lm_positions": np.array([2, 4, 7]), "masked_lm_ids": np.array([9, 20, 31]),
                "masked_lm_weights": np.ones(3, "float32")}
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    write_records(str(path), rows, spec, {"vocab_size": VOCAB})
    return str(path)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The arguments of a short run without dropout: its numbers depend only on the data."""
    folder = tmp_path_factory.mktemp("job")
    written = records_of(folder / "records.tfrecord", list(pretraining_rows(60, least=4)))
    return [
        f"--albert_config_file={write_config(folder, **CONFIG)}", f"--input_file={written}",
        f"--init_checkpoint={write_weights(folder / 'first', CONFIG)}", "--do_train", "--do_eval",
        f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}",
        "--train_batch_size=8", "--eval_batch_size=8", "--max_eval_steps=2",
        f"--num_train_steps={STEPS}", "--num_warmup_steps=1", "--learning_rate=0.02",
        "--save_checkpoints_steps=2", "--log_steps=1",
    ]


@pytest.fixture(scope="module")
def alone(job, tmp_path_factory):
    """The folder of that run on one device."""
    folder = tmp_path_factory.mktemp("alone")
    assert jobs.pretrain(*job, f"--output_dir={folder}") == 0
    return folder


def assert_same_run(folder, alone):
    ours, theirs = metrics(folder), metrics(alone)
    assert [(line["step"], line["kind"]) for line in ours] == [
        (line["step"], line["kind"]) for line in theirs
    ]
    for mine, expected in zip(ours, theirs, strict=True):
        for name, value in expected.items():
            if isinstance(value, float):
                np.testing.assert_allclose(mine[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    weights, expected = (
        checkpoints.open_weights(str(f / f"model.ckpt-{STEPS}")) for f in (folder, alone)
    )
    for name in expected.shapes:
        if not checkpoints.is_slot(name):
            np.testing.assert_allclose(
                weights.read(name), expected.read(name), atol=1e-4, err_msg=name
            )


REPLICAS = ["--num_virtual_devices=2", "--gradient_accumulation_steps=2"]


@pytest.mark.parametrize("how", [
    REPLICAS,
    *(pytest.param(flags, marks=pytest.mark.slow) for flags in (
        ["--num_virtual_devices=4", "--use_xla"], ["--gradient_accumulation_steps=4", "--remat"],
        ["--use_xla", "--remat"],
    )),
    *(pytest.param(["--engine=jax", *flags], marks=[NEEDS_JAX, pytest.mark.slow]) for flags in (
        [], ["--num_virtual_devices=8"], ["--num_virtual_devices=2", "--nopack_rows"],
        [*REPLICAS, "--remat"],
    )),
], ids=lambda flags: "-".join(f.strip("-") for f in flags))  # fmt: skip
def test_replicas_and_micro_batches_give_the_curve_of_one_device(how, job, alone, tmp_path):
    done = run("albert.run_pretraining", *job, *how, f"--output_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert ("sequences: packed" in done.stderr) == ("--nopack_rows" not in how)
    assert_same_run(tmp_path, alone)


def worker_environment(place: str, index: int) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": f"{REPO}:{REPO}/tests/support",
        "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu",  # libtpu would wait for a TPU
        "JAX_COORDINATOR_ADDRESS": place, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(index),
    }


def run_workers(*arguments: str, module="albert.run_pretraining", second=None) -> list[tuple[int, str]]:
    """Runs two workers to completion; returns [(exit code, stderr)].

    `second` has the module and first arguments of the second worker, if different.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    workers = [
        start(*which, *arguments, "--distribution_strategy=multi_worker",
              env=worker_environment(place, index))
        for index, which in enumerate(([module], second or [module]))
    ]
    try:
        errors = [worker.communicate(timeout=240)[1] for worker in workers]
    finally:
        for worker in workers:  # one that waits for another, after a failure
            worker.kill()
    return [(worker.returncode, error) for worker, error in zip(workers, errors, strict=True)]


@pytest.mark.slow
@NEEDS_JAX
def test_two_machines_that_lose_one_resume_and_give_the_curve_of_one_device(job, alone, tmp_path):
    arguments = [*job, "--gradient_accumulation_steps=2", f"--output_dir={tmp_path}"]
    results = run_workers(*arguments, second=["ending_worker", str(int(signal.SIGKILL)), "3"])
    assert [code for code, _ in results] == [75, -signal.SIGKILL], results
    line = assert_one_clear_line(results[0][1])
    assert re.search(r"another worker was lost \((.*onnect|Socket closed)", line), line
    assert f"to resume from {tmp_path}/model.ckpt-2" in line
    assert "step 2:" in results[0][1] and "step 2:" not in results[1][1]
    assert "sequences: packed" in results[0][1]
    results = run_workers(*arguments)
    assert [code for code, _ in results] == [0, 0], results
    assert_same_run(tmp_path, alone)


@pytest.mark.slow
@NEEDS_JAX
def test_a_preempted_worker_stops_all_at_the_same_step_after_saving(job, tmp_path):
    results = run_workers(*job, f"--output_dir={tmp_path}",
                          second=["ending_worker", str(int(signal.SIGTERM)), "1"])
    assert [code for code, _ in results] == [143, 143], results
    [step] = checkpoints.list_steps(str(tmp_path))
    assert step < STEPS and f"stopped at step {step}" in results[0][1]


@pytest.mark.slow
@NEEDS_JAX
def test_two_machines_train_a_classifier_with_the_flags_defaults(tmp_path):
    results = run_workers(*jobs.classifier_flags(tmp_path), "--do_train", "--do_eval",
                          "--do_predict", module="albert.run_classifier")
    assert [code for code, _ in results] == [0, 0], results
    for name in ("eval_results.json", "test_results.tsv"):
        assert (tmp_path / "out" / name).exists()


@NEEDS_JAX
def test_workers_of_jax_share_the_batches_of_one_device(tmp_path, monkeypatch):
    """Each of two reads other records of them, from any position on."""
    import jax

    from albert.training import jax_engine

    rows = list(pretraining_rows(32, least=LENGTH))
    for number, row in enumerate(rows):
        row["input_ids"][1] = 5 + number
    source = RecordFiles([records_of(tmp_path / "records.tfrecord", rows)])
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()

    def batches(worker: int, workers: int, position: int = 0, devices: int = 2) -> list[list[int]]:
        for name, value in (("process_index", worker), ("process_count", workers)):
            monkeypatch.setattr(jax, name, lambda value=value: value)
        for name, value in (("local_devices", [None] * devices), ("mesh", None),
                            ("num_replicas", workers * devices)):
            monkeypatch.setattr(jax_engine.JaxEngine, name, value)
        monkeypatch.setattr(jax_engine, "_placed", lambda parts, count, *_: iter(
            lambda: [int(n) for _ in range(count) for n in next(parts)["input_ids"][:, 1]], None))
        found = jax_engine.JaxEngine().train_batches(
            source, spec, batch_size=8, vocab_size=VOCAB, seed=3, position=position)
        return [next(found) for _ in range(6)]

    alone, first, second = batches(0, 1, devices=1), batches(0, 2), batches(1, 2)
    assert sorted(n for batch in alone[:4] for n in batch) == list(range(5, 37))
    for whole, *parts in zip(alone, first, second, strict=True):
        assert [len(part) for part in parts] == [4, 4] and sorted(sum(parts, [])) == sorted(whole)
    for worker, own in enumerate((first, second)):
        assert batches(worker, 2, position=16)[:4] == own[2:]


@NEEDS_JAX
def test_the_devices_of_a_jax_worker_are_adjacent(monkeypatch):
    from albert.training import jax_engine

    monkeypatch.setattr(jax_engine, "Mesh", lambda devices, axes: devices.tolist())
    devices = [types.SimpleNamespace(process_index=p, id=i) for i, p in ((0, 1), (1, 0), (2, 1), (3, 0))]
    assert [device.id for device in jax_engine.mesh_of(devices)] == [1, 3, 0, 2]


@NEEDS_JAX
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_worker_that_waits_for_the_others_ends_at_the_first_signal(number, job, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as coordinator:
        place = f"127.0.0.1:{coordinator.getsockname()[1]}"
        worker = start("albert.run_pretraining", *job, "--distribution_strategy=multi_worker",
                       f"--output_dir={tmp_path}/out", env=worker_environment(place, 1))
        coordinator.accept()  # it has begun to wait
        worker.send_signal(number)
        assert worker.wait(timeout=60) == -number
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("first", "second", "is_same"), [
    (float("nan"), float("nan"), True), (0.25, 0.25, True), ([1, 2], (1, 2), True),
    (float("nan"), 0.25, False), (None, float("nan"), False), (0.25, 0.5, False),
])  # fmt: skip
def test_workers_agree_where_their_values_are_the_same(first, second, is_same, monkeypatch):
    monkeypatch.setattr(TensorFlowEngine, "num_workers", 2)
    digests = []

    def gather(self, own):
        digests.append(own)
        return np.stack([digests[0], own])

    monkeypatch.setattr(TensorFlowEngine, "gather", gather)
    engines.check_agreement(TensorFlowEngine(), {"--threshold_to_export": first})
    message = "workers differ in --threshold_to_export: this one has"
    with contextlib.nullcontext() if is_same else pytest.raises(FlagError, match=message):
        engines.check_agreement(TensorFlowEngine(), {"--threshold_to_export": second})


def test_devices_and_shares_that_are_not_there_are_refused(job, tmp_path, capsys):
    for message, *flags in (
        ("--num_gpus=9: this machine has", "--num_gpus=9"),
        ("for several, use --engine=jax", "--distribution_strategy=multi_worker"),
        ("--use_tpu needs --engine=jax", "--use_tpu", "--engine=tensorflow"),
        ("leave it out with --use_tpu", "--use_tpu", "--num_virtual_devices=2"),
        ("--train_batch_size=8 cannot be divided by 1 replica", "--gradient_accumulation_steps=3"),
    ):
        assert run_here(run_pretraining, *job, *flags, f"--output_dir={tmp_path / 'out'}") == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
