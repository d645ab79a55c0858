"""A batch that grows at steps of a run: the same records in the same order, cut otherwise."""

import numpy as np
import pytest
from helpers import (
    LENGTH,
    NEEDS_JAX,
    PREDICTIONS,
    VOCAB,
    metrics,
    run,
    run_here,
    write_config,
    write_pretraining_records,
)

from albert import run_pretraining
from albert.errors import FlagError
from albert.formats import checkpoints, sidecars
from albert.records import batches, data_order
from albert.records.record_files import RecordFiles
from albert.runtime import schedules
from albert.tasks.pretraining import PretrainingTask
from albert.training.run_settings import RunConfig

RECORDS = 60


@pytest.fixture
def job(tmp_path):
    """Flags of a tiny run without dropout: batches of 4, then 8, then 12, saved at each step."""
    write_pretraining_records(tmp_path / "train.tfrecord", RECORDS, least=4)
    config = write_config(tmp_path, hidden_dropout_prob=0, attention_probs_dropout_prob=0)

    def flags_of(out="out", **changes):
        given = {
            "albert_config_file": config, "input_file": tmp_path / "train.tfrecord",
            "output_dir": tmp_path / out, "max_seq_length": 12, "max_predictions_per_seq": 3,
            "train_batch_size": 12, "batch_schedule": "4:2,8:4", "num_train_steps": 7,
            "num_warmup_steps": 1, "save_checkpoints_steps": 1, "keep_checkpoint_max": 0,
            "log_steps": 1, "learning_rate": 0.02,
        } | changes
        return [f"--{name}={value}" for name, value in given.items()]

    return flags_of


def here(*arguments: str) -> int:
    return run_here(run_pretraining, *arguments)


def weights(prefix) -> dict[str, np.ndarray]:
    opened = checkpoints.open_weights(str(prefix))
    return {name: opened.read(name) for name in opened.shapes}


def assert_same(folder, other, step: int, tolerance: float = 0) -> None:
    ours, theirs = weights(folder / f"model.ckpt-{step}"), weights(other / f"model.ckpt-{step}")
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=tolerance, err_msg=name)


def test_each_stage_takes_the_next_records_in_batches_of_its_size(job, tmp_path, monkeypatch):
    from albert.records import tf_dataset

    asked = []
    make = tf_dataset.train_batches

    def noted(*arguments, **options):
        asked.append((options["batch_size"], options["position"]))
        return make(*arguments, **options)

    monkeypatch.setattr(tf_dataset, "train_batches", noted)
    assert here(*job()) == 0
    assert asked == [(4, 0), (8, 8), (12, 24)]  # a pipeline for each stage, where the last ended
    seen = [
        sidecars.read_sidecar(str(tmp_path / f"out/model.ckpt-{step}"))["records_seen"]
        for step in range(1, 8)
    ]
    assert seen == [4, 8, 16, 24, 36, 48, 60]
    rates = [line["learning_rate"] for line in metrics(tmp_path / "out")]
    assert here(*job("plain", batch_schedule="")) == 0
    assert rates == [line["learning_rate"] for line in metrics(tmp_path / "plain")]


@pytest.mark.slow
def test_a_stage_computes_what_a_run_of_that_batch_size_would(job, tmp_path):
    assert here(*job()) == 0
    assert here(*job("small", batch_schedule="", train_batch_size=4, until_step=2)) == 0
    assert_same(tmp_path / "out", tmp_path / "small", 2)
    # That run goes on with larger batches, as one does whose flags are changed by hand.
    assert here(*job("small", batch_schedule="", train_batch_size=8, until_step=4)) == 0
    assert here(*job("small", batch_schedule="")) == 0
    assert_same(tmp_path / "out", tmp_path / "small", 7)


@pytest.mark.parametrize("until", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_it_is_resumed_to_the_bit_within_a_stage_and_between_two(until, job, tmp_path):
    assert here(*job("whole")) == 0
    assert here(*job("parts", until_step=until)) == 0
    if until == 2:  # without what lies beside it, the place in the data follows from the step
        (tmp_path / "parts/model.ckpt-2.json").unlink()
    assert here(*job("parts")) == 0
    assert_same(tmp_path / "parts", tmp_path / "whole", 7)
    if until != 2:
        assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("how", [
    ["--num_virtual_devices=2", "--gradient_accumulation_steps=2"],
    ["--use_xla"],
    pytest.param(["--engine=jax"], marks=NEEDS_JAX),
    pytest.param(["--engine=jax", "--num_virtual_devices=4"], marks=NEEDS_JAX),
], ids=lambda flags: "-".join(f.strip("-") for f in flags))
def test_replicas_and_micro_batches_share_each_stage_equally(how, job, tmp_path):
    def do(out, *flags, **changes):
        done = run("albert.run_pretraining", *job(out, **changes), *flags)
        assert done.returncode == 0, done.stderr

    do("first", until_step=1)
    start = {"init_checkpoint": tmp_path / "first/model.ckpt-1"}  # engines draw their own weights
    do("one", **start)
    do("several", *how, **start)
    ours, theirs = (
        [line["loss"] for line in metrics(tmp_path / out)] for out in ("several", "one")
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    do("parts", *how, **start, until_step=3)
    do("parts", *how, **start)
    assert_same(tmp_path / "parts", tmp_path / "several", 7)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_large", [False, True])
def test_the_records_come_in_the_order_that_batches_of_one_size_have(
    is_large, workers, tmp_path, monkeypatch
):
    if is_large:
        monkeypatch.setattr(data_order, "GROUP_RECORDS", 10)
    source = RecordFiles([write_pretraining_records(tmp_path / "x.tfrecord", 64)])
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()

    def rows_of(size: int, position: int, count: int) -> list[bytes]:
        """Returns the rows of some batches of all workers, those of each batch in any order."""
        parts = [
            batches.train_batches(
                source, spec, batch_size=size, vocab_size=VOCAB, seed=1, position=position,
                share=data_order.Share(workers, worker, 1),
            )
            for worker in range(workers)
        ]
        found = []
        for _ in range(count):
            ids = np.concatenate([next(part)["input_ids"] for part in parts])
            found.append(sorted(row.tobytes() for row in ids))
        return found

    grown = rows_of(4, 0, 2) + rows_of(8, 8, 2) + rows_of(12, 24, 4)
    plain = rows_of(4, 0, 18)
    begin = 0
    for batch in grown:
        count = len(batch) // 4
        assert batch == sorted(sum(plain[begin : begin + count], []))
        begin += count
    assert begin == 18


@pytest.mark.parametrize("more, said", [
    ({"batch_schedule": "4"}, "--batch_schedule=4: give SIZE:STEP"),
    ({"batch_schedule": "4:3,8:3"}, "steps must rise"),
    ({"batch_schedule": "0:3"}, "size be at least 1"),
    ({"scale_learning_rate": True}, "give --learning_rate alone"),
    ({"gradient_accumulation_steps": 3}, "--batch_schedule: 4 cannot be divided by 1 replicas x 3"),
])
def test_schedules_that_cannot_be_are_refused(more, said, job, tmp_path, capsys):
    assert here(*job(**more)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_total_of_a_schedule_counts_each_step_once():
    schedule = schedules.read("4:2,8:4", "x", "SIZE")
    sizes = [4, 4, 8, 8, 12, 12, 12]
    for steps in range(8):
        assert schedules.total(schedule, 12, steps) == sum(sizes[:steps])
    run_config = RunConfig("", train_batch_size=12, batch_schedule=schedule)
    assert [run_config.stage_at(step).batch_size for step in range(7)] == sizes
    with pytest.raises(FlagError, match="give SIZE:STEP"):
        schedules.read("4:x", "x", "SIZE")
