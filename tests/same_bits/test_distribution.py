"""One device, several, several machines, micro-batches: the same numbers. Real processes."""

import json
import os
import re
import time

import numpy as np
import pytest
import jobs
from helpers import (
    LENGTH,
    NEEDS_JAX,
    PREDICTIONS,
    SIZES,
    VOCAB,
    assert_one_clear_line,
    metrics,
    pretraining_rows,
    run,
    start,
    write_config,
    write_pretraining_records,
    write_weights,
)

from albert.errors import FlagError
from albert.formats import checkpoints
from albert.records import records
from albert.tasks.pretraining import PretrainingTask
from albert.training import engine as engines
from albert.training import tensorflow_engine
from albert.training.tensorflow_engine import TensorFlowEngine

free_ports = jobs.script("chaos").free_ports

STEPS = 6
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The arguments of a short run without dropout: its numbers depend on nothing but the data."""
    folder = tmp_path_factory.mktemp("job")
    config = write_config(folder, **NO_DROPOUT)
    records = write_pretraining_records(folder / "records.tfrecord", 60, least=4)  # to be packed
    return [
        f"--albert_config_file={config}", f"--input_file={records}", "--do_train", "--do_eval",
        f"--init_checkpoint={write_weights(folder / 'first', SIZES | NO_DROPOUT)}",
        f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}",
        "--train_batch_size=8", "--eval_batch_size=8", "--max_eval_steps=0",
        f"--num_train_steps={STEPS}", "--num_warmup_steps=2", "--learning_rate=0.02",
        "--save_checkpoints_steps=3", "--log_steps=1",
    ]


@pytest.fixture(scope="module")
def alone(job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    done = run("albert.run_pretraining", *job, f"--output_dir={folder}")
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parametrize(
    "how",
    [
        ["--num_virtual_devices=2"],
        ["--gradient_accumulation_steps=4"],
        *(
            pytest.param(flags, marks=[pytest.mark.slow, *[NEEDS_JAX] * ("jax" in flags[0])])
            for flags in (
                ["--num_virtual_devices=4", "--use_xla"],
                ["--num_virtual_devices=2", "--gradient_accumulation_steps=2", "--remat"],
                ["--use_xla", "--remat"],
                ["--engine=jax"],
                ["--engine=jax", "--num_virtual_devices=8"],
                ["--engine=jax", "--num_virtual_devices=2", "--nopack_rows"],
                ["--engine=jax", "--num_virtual_devices=4", "--shard_moments"],
                ["--engine=jax", "--num_virtual_devices=2", "--gradient_accumulation_steps=2",
                 "--remat"],
            )
        ),
    ],
    ids=lambda flags: "-".join(f.strip("-") for f in flags),
)
def test_replicas_and_micro_batches_give_the_curve_of_one_device(how, job, alone, tmp_path):
    done = run("albert.run_pretraining", *job, *how, f"--output_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert ("rows: packed" in done.stderr) == ("--nopack_rows" not in how)
    assert_same_run(tmp_path, alone)


def mean_of_each_row_and_of_all(rows, weights) -> list[tuple[float, float]]:
    """Returns (loss, norm of its gradient): the mean of each row's own, and that of the batch."""
    import tensorflow as tf

    from albert.modeling import AlbertConfig, AlbertForPreTraining, cross_entropy, named_weights

    config = AlbertConfig(**SIZES | NO_DROPOUT)
    model = AlbertForPreTraining(config)
    named = named_weights(model)
    for name, weight in named.items():
        weight.assign(weights.read(name))

    def loss(rows):
        batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        out = model(batch)
        of_words = cross_entropy(out["prediction_logits"], batch["masked_lm_ids"])
        of_order = cross_entropy(out["sop_logits"], batch["next_sentence_labels"][:, 0])
        counted = batch["masked_lm_weights"]
        return tf.reduce_sum(of_words * counted) / counted.sum() + tf.reduce_mean(of_order)

    found = []
    for parts in ([[row] for row in rows], [rows]):
        with tf.GradientTape() as tape:
            value = sum(loss(part) for part in parts) / len(parts)
        gradients = tape.gradient(value, [weight.value for weight in named.values()])
        dense = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        found.append((float(value), float(tf.linalg.global_norm(dense))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["per_replica_loss", "noper_replica_loss"])
def test_a_replica_counts_by_its_weights_or_with_per_replica_loss_as_every_other(
    flag, job, tmp_path
):
    rows = list(pretraining_rows(2, seed=3, least=LENGTH))
    # One masked token in one replica's row, three in the other's.
    rows[1] |= {"masked_lm_positions": np.array([2, 4, 7]),
                "masked_lm_ids": np.array([9, 20, 31]),
                "masked_lm_weights": np.ones(3, "float32")}
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    written = str(tmp_path / "two.tfrecord")
    records.write_records(written, rows, spec, {"vocab_size": VOCAB})
    out = tmp_path / "out"
    # The first step warms up at a rate of 0, so that its weights are those of the start.
    done = run("albert.run_pretraining", *job, f"--input_file={written}", f"--output_dir={out}",
               "--train_batch_size=2", "--num_virtual_devices=2", f"--{flag}",
               "--num_train_steps=2", "--num_warmup_steps=1", "--save_checkpoints_steps=1",
               "--nodo_eval")
    assert done.returncode == 0, done.stderr
    [told] = [line for line in metrics(out) if line["step"] == 1]
    weights = checkpoints.open_weights(str(out / "model.ckpt-1"))
    of_each, of_all = mean_of_each_row_and_of_all(rows, weights)
    assert abs(of_each[0] - of_all[0]) > 1e-3 and abs(of_each[1] - of_all[1]) > 1e-3
    expected = of_each if flag == "per_replica_loss" else of_all
    assert (told["loss"], told["gradient_norm"]) == pytest.approx(expected, rel=1e-5)


def start_workers(
    count: int, *arguments: str, of_each=None, module: str = "albert.run_pretraining"
):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [
        start(
            module, *arguments, *(of_each[i] if of_each else ()),
            env={
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
                ),
            },
        )
        for i in range(count)
    ]


def finish(workers, timeout: float = 240):
    """Returns [(exit code, stderr)] of every worker."""
    results = []
    for worker in workers:
        _, err = worker.communicate(timeout=timeout)
        results.append((worker.returncode, err))
    return results


ENGINES = pytest.mark.parametrize(
    "engine", ["tensorflow", pytest.param("jax", marks=[pytest.mark.slow, NEEDS_JAX])]
)


@ENGINES
def test_two_machines_give_the_curve_of_one_and_only_the_chief_writes(
    engine, job, alone, tmp_path
):
    more = ["--shard_moments", "--gradient_accumulation_steps=2"] if engine == "jax" else []
    results = finish(
        start_workers(2, *job, *more, f"--output_dir={tmp_path}", f"--engine={engine}")
    )
    assert [code for code, _ in results] == [0, 0], results
    assert_same_run(tmp_path, alone)
    assert "step 1:" in results[0][1] and "step 1:" not in results[1][1]
    assert "rows: packed" in results[0][1]
    # Evaluated and kept by the chief, once.
    assert (tmp_path / "eval_results.json").exists()


@pytest.mark.parametrize("message, lost", [
    (
        "Graph execution error:\n\nCollective ops is aborted by: Connection reset by peer\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:1 while "
        "calling /tensorflow.WorkerService/RecvBuf:\nThe error could be from a previous operation.",
        "worker 1 at there:2 was lost (Connection reset by peer)",
    ),
    (
        "Collective ops is aborted by: Error reported from /job:worker/task:0: The following tasks "
        "are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1\nThe tasks have "
        "crashed. Check the task logs for an earlier error.",
        "worker 1 at there:2 was lost (stopped sending heartbeats)",
    ),
    ("AbortedError", "another worker was lost"),
], ids=["broken_connection", "silence", "no_word"])  # fmt: skip
def test_the_lost_worker_is_named_as_far_as_the_message_of_tensorflow_tells(
    message, lost, monkeypatch
):
    cluster = {"cluster": {"worker": ["here:1", "there:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert tensorflow_engine._who_is_lost(message) == lost


def wait_for(path, worker, seconds: float = 120):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline and worker.poll() is None, path
        time.sleep(0.2)


@pytest.mark.slow
@ENGINES
def test_a_killed_worker_ends_the_job_and_the_same_command_goes_on(engine, job, tmp_path):
    long = [*job, "--num_train_steps=4000", f"--engine={engine}"]
    together = [*long, f"--output_dir={tmp_path / 'together'}"]
    workers = start_workers(2, *together)
    wait_for(tmp_path / "together/model.ckpt-3.index", workers[0])
    workers[1].kill()
    (code, err), _ = finish(workers)
    assert code == 75, err
    line = assert_one_clear_line(err)
    lost = r"worker 1 at 127\.0\.0\.1:\d+" if engine == "tensorflow" else "another worker"
    assert re.search(rf"{lost} was lost \((.*onnect|stopped sending heartbeats)", line), line
    assert "goes on from" in line and "Graph execution" not in line
    for path in (tmp_path / "together").glob("model.ckpt-*"):
        if not path.name.startswith("model.ckpt-3."):
            path.unlink()
    # Both are started again. One device that was never interrupted has the same weights.
    assert [code for code, _ in finish(start_workers(2, *together, f"--until_step={STEPS}"))] == [
        0, 0
    ]
    done = run("albert.run_pretraining", *long, f"--until_step={STEPS}",
               f"--output_dir={tmp_path / 'alone'}")
    assert done.returncode == 0, done.stderr
    weights, expected = (
        checkpoints.open_weights(str(tmp_path / name / f"model.ckpt-{STEPS}"))
        for name in ("together", "alone")
    )
    for name in expected.shapes:
        np.testing.assert_allclose(
            weights.read(name), expected.read(name), atol=1e-4, err_msg=name
        )


@pytest.mark.slow
@ENGINES
def test_a_preempted_worker_stops_all_at_the_same_step_after_saving(engine, job, tmp_path):
    long = [*job, "--num_train_steps=4000", f"--output_dir={tmp_path}", f"--engine={engine}"]
    workers = start_workers(2, *long)
    wait_for(tmp_path / "model.ckpt-3.index", workers[0])
    workers[1].terminate()
    results = finish(workers)
    assert [code for code, _ in results] == [143, 143], results
    step = max(checkpoints.list_steps(str(tmp_path)))
    assert f"preempted at step {step}" in results[0][1]


def test_workers_with_different_flags_are_refused_by_the_flags_name(job, tmp_path):
    workers = start_workers(
        2, *job, f"--output_dir={tmp_path}",
        of_each=[["--learning_rate=0.02"], ["--learning_rate=0.03"]],
    )
    results = finish(workers)
    assert [code for code, _ in results] == [2, 2], results
    for (_, err), rate in zip(results, ("0.02", "0.03"), strict=True):
        line = assert_one_clear_line(err)
        assert f"workers differ in --learning_rate: this one has {rate}" in line
    assert not list(tmp_path.glob("model.ckpt*"))


@pytest.mark.slow
def test_two_machines_train_a_classifier_with_the_flags_defaults(tmp_path):
    arguments = jobs.classifier_flags(tmp_path)
    workers = start_workers(
        2, *arguments, "--do_train", "--do_eval", "--do_predict", module="albert.run_classifier"
    )
    results = finish(workers)
    assert [code for code, _ in results] == [0, 0], results
    for name in ("eval_results.json", "test_results.tsv"):
        assert (tmp_path / "out" / name).exists()


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (float("nan"), float("nan"), True), (0.25, 0.25, True), ([1, 2], (1, 2), True),
        (float("nan"), 0.25, False), (None, float("nan"), False), (0.25, 0.5, False),
    ],
)
def test_workers_agree_where_their_values_are_the_same(first, second, is_same, monkeypatch):
    monkeypatch.setattr(TensorFlowEngine, "num_workers", 2)
    digests = []

    def gather(self, own):
        digests.append(own)
        return np.stack([digests[0], own])

    monkeypatch.setattr(TensorFlowEngine, "gather", gather)
    TensorFlowEngine().check_agreement({"--threshold_to_export": first})
    if is_same:
        TensorFlowEngine().check_agreement({"--threshold_to_export": second})
    else:
        with pytest.raises(FlagError, match="workers differ in --threshold_to_export: this one has"):
            TensorFlowEngine().check_agreement({"--threshold_to_export": second})


@pytest.mark.slow
def test_workers_with_different_data_are_refused_before_a_step(job, tmp_path):
    other = write_pretraining_records(tmp_path / "records.tfrecord", 59)
    same = next(argument for argument in job if argument.startswith("--input_file"))
    workers = start_workers(
        2, *job, f"--output_dir={tmp_path / 'out'}", of_each=[[same], [f"--input_file={other}"]],
    )
    for code, err in finish(workers):
        assert code == 2, err
        assert "workers differ in --input_file" in assert_one_clear_line(err)
    assert not list(tmp_path.glob("out/model.ckpt*"))


def test_a_batch_that_cannot_be_shared_out_is_refused(job, tmp_path):
    done = run(
        "albert.run_pretraining", *job, "--num_virtual_devices=2",
        "--gradient_accumulation_steps=3", f"--output_dir={tmp_path / 'out'}",
    )
    assert done.returncode == 2
    line = assert_one_clear_line(done.stderr)
    assert "--train_batch_size=8 cannot be divided by 2 replicas x 3" in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG is not usable"),
        ("[]", "TF_CONFIG is not usable"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
         "task 'worker' 2 is not in its cluster of 2 worker"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}}', "task None None"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}',
         "an address stands twice"),
    ],
)
def test_an_inconsistent_cluster_is_refused(text, message):
    with pytest.raises(FlagError, match=message):
        engines.read_cluster(text)


def test_a_cluster_of_one_is_no_cluster():
    one = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
    assert engines.read_cluster(one) is None
    assert engines.read_cluster(None) is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_gpus=9"], "--num_gpus=9: this machine has"),
        (["--distribution_strategy=multi_worker"], "needs TF_CONFIG"),
        (["--use_tpu", "--engine=tensorflow"], "--use_tpu needs --engine=jax"),
        (["--use_tpu", "--num_virtual_devices=2"], "leave it out with --use_tpu"),
    ],
)
def test_devices_that_are_not_there_are_refused(flags, message, job, tmp_path):
    environment = {k: "" for k in os.environ if k == "TF_CONFIG"}
    out = f"--output_dir={tmp_path / 'out'}"
    done = run("albert.run_pretraining", *job, *flags, out, env=environment)
    assert done.returncode == 2
    assert message in assert_one_clear_line(done.stderr)
