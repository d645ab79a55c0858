"""An average of the weights goes on beside them: evaluated, kept as the best, resumed to the bit."""

import json
import pathlib

import numpy as np
import pytest
from helpers import (
    NEEDS_JAX,
    metrics,
    run,
    run_here,
    write_config,
    write_pretraining_records,
)

from albert import export_checkpoints, run_pretraining
from albert.formats import checkpoints, sidecars
from albert.training import evaluation

STEPS, DECAY = 6, 0.3
ENGINES = ["tensorflow", pytest.param("jax", marks=[NEEDS_JAX, pytest.mark.slow])]


@pytest.fixture
def job(tmp_path):
    """Flags of a tiny run of 6 steps with dropout, saved and evaluated every 3."""
    write_pretraining_records(tmp_path / "train.tfrecord", 60, least=4)
    config = write_config(tmp_path)

    def flags_of(out="out", **changes):
        given = dict(
            albert_config_file=config, input_file=tmp_path / "train.tfrecord",
            output_dir=tmp_path / out, max_seq_length=12, max_predictions_per_seq=3,
            train_batch_size=8, eval_batch_size=4, max_eval_steps=2, num_train_steps=STEPS,
            num_warmup_steps=1, save_checkpoints_steps=3, log_steps=1, learning_rate=0.02,
            weight_average=DECAY, do_eval=True,
        ) | changes
        return [f"--{name}={value}" for name, value in given.items()]

    return flags_of


def here(*arguments: str) -> int:
    return run_here(run_pretraining, *arguments)


def do(*arguments: str) -> str:
    done = run("albert.run_pretraining", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def raw(prefix: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns what a checkpoint holds, under the names that it has there."""
    opened = checkpoints.open_weights(str(prefix), averaged=False)
    return {name: opened.read(name) for name in opened.shapes}


def split(prefix: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the weights and their averages, by the names of the weights."""
    found = raw(prefix)
    averages = {
        name.removesuffix("/average"): value for name, value in found.items()
        if name.endswith("/average")
    }
    return {name: found[name] for name in averages}, averages


def follow(folder: pathlib.Path, average: dict, first: int, begun: int) -> dict[str, np.ndarray]:
    """Returns the average at the last step by the formula, from that of step `first` on.

    Args:
      begun: the step at which it began.
    """
    for step in range(first, STEPS):
        kept = min(DECAY, (1 + step - begun) / (10 + step - begun))
        weights, _ = split(folder / f"model.ckpt-{step + 1}")
        average = {k: kept * v + (1 - kept) * weights[k] for k, v in average.items()}
    return average


def assert_equal(ours, theirs, tolerance: float = 0) -> None:
    assert ours.keys() == theirs.keys() and ours
    for name in ours:
        np.testing.assert_allclose(
            ours[name], theirs[name], rtol=0, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_average_follows_from_the_weights(engine, job, tmp_path):
    flags = job(engine=engine, save_checkpoints_steps=1, keep_checkpoint_max=0)
    assert "average of the weights from step 0 on" in do(*flags)
    out = tmp_path / "out"
    weights, averages = split(out / f"model.ckpt-{STEPS}")
    assert any(not np.array_equal(weights[name], averages[name]) for name in weights)
    # The random weights that it begins with are in no checkpoint.
    assert_equal(averages, follow(out, split(out / "model.ckpt-1")[1], 1, begun=0), 1e-6)


@pytest.mark.slow
def test_a_run_with_an_average_is_resumed_to_the_bit(job, tmp_path):
    assert here(*job("whole")) == 0
    assert here(*job("parts", until_step=3)) == 0
    assert here(*job("parts")) == 0
    ours, theirs = (raw(tmp_path / f"{name}/model.ckpt-{STEPS}") for name in ("parts", "whole"))
    assert_equal(ours, theirs)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    # And the weights themselves are those of a run without it.
    assert here(*job("plain", weight_average=0)) == 0
    plain = raw(tmp_path / f"plain/model.ckpt-{STEPS}")
    assert_equal({name: theirs[name] for name in plain}, plain)


def test_the_best_checkpoint_holds_the_average_as_its_weights(job, tmp_path):
    assert here(*job()) == 0
    out = tmp_path / "out"
    best = evaluation.read_best(str(out))
    assert best["measured"]["weights"] == "average"
    _, averages = split(out / f"model.ckpt-{best['step']}")
    assert_equal(raw(out / "model.ckpt-best"), averages | {"global_step": np.int64(best["step"])})
    assert sidecars.read_sidecar(str(out / "model.ckpt-best"))["step"] == best["step"]
    # What was measured in the run is what a checkpoint gives whoever opens it.
    line = next(x for x in metrics(out) if x["kind"] == "eval" and x["step"] == STEPS)
    assert here(*job("again", do_train=False, init_checkpoint=out / f"model.ckpt-{STEPS}")) == 0
    found = json.loads((tmp_path / "again/eval_results.json").read_text())
    assert found["loss"] == pytest.approx(line["loss"], rel=1e-6)
    # Also where the run's own directory is evaluated.
    (out / "best.json").unlink()
    assert here(*job(do_train=False)) == 0
    _, averages = split(out / f"model.ckpt-{STEPS}")
    assert_equal(raw(out / "model.ckpt-best"), averages | {"global_step": np.int64(STEPS)})
    assert evaluation.read_best(str(out))["measured"]["weights"] == "average"


@pytest.mark.slow
def test_a_run_without_evaluation_gives_the_average_too(job, tmp_path):
    assert here(*job(do_eval=False)) == 0
    out = tmp_path / "out"
    _, averages = split(out / f"model.ckpt-{STEPS}")
    opened = checkpoints.open_weights(str(out))
    assert_equal({name: opened.read(name) for name in averages}, averages)
    assert 0 == run_here(
        export_checkpoints, f"--albert_directory={out}", f"--export_path={tmp_path / 'export'}",
        f"--checkpoint_name=model.ckpt-{STEPS}",
    )
    exported = raw(tmp_path / "export")
    assert exported.pop("global_step") == 0
    assert_equal(exported, {name: averages[name] for name in exported})


@pytest.mark.slow
def test_an_average_begins_where_it_is_asked_for_and_ends_where_it_is_not(job, tmp_path, capsys):
    each = dict(save_checkpoints_steps=1, keep_checkpoint_max=0)
    assert here(*job(weight_average=0, until_step=2, **each)) == 0
    assert here(*job(until_step=4, **each)) == 0
    assert "average of the weights from step 2 on" in capsys.readouterr().err
    assert here(*job(**each)) == 0
    out = tmp_path / "out"
    assert sidecars.read_sidecar(str(out / f"model.ckpt-{STEPS}"))["average_from"] == 2
    plain = raw(out / "model.ckpt-2")
    first = {name: plain[name] for name in plain if not checkpoints.is_slot(name)}
    _, averages = split(out / f"model.ckpt-{STEPS}")
    assert_equal(averages, follow(out, first, 2, begun=2), 1e-6)
    capsys.readouterr()
    assert here(*job(weight_average=0, num_train_steps=STEPS + 1, **each)) == 0
    said = capsys.readouterr().err
    assert "the average of the weights, of step 6, is dropped" in said
    assert "was evaluated otherwise (weights)" in said
    last = raw(out / f"model.ckpt-{STEPS + 1}")
    assert not any(name.endswith("/average") for name in last)
    best = raw(out / "model.ckpt-best")
    assert_equal(best, {name: last[name] for name in best})


def test_a_step_that_is_skipped_leaves_the_average():
    import keras

    from albert.optimization import Lamb

    weight = keras.Variable(np.ones([2, 3], "float32"), name="kernel")
    optimizer = Lamb(0.1, average_decay=0.5)
    optimizer.build([weight])
    [average] = optimizer.averages
    average.assign(weight)
    for gradient, is_kept in ((1.0, False), (np.nan, True), (np.inf, True), (1.0, False)):
        before = average.numpy()
        optimizer.apply([keras.ops.full([2, 3], gradient)], [weight])
        assert np.array_equal(average.numpy(), before) == is_kept
        assert np.isfinite(average.numpy()).all()


@pytest.mark.slow
@pytest.mark.parametrize("how", [
    ["--num_virtual_devices=2"],
    ["--num_virtual_devices=2", "--gradient_accumulation_steps=2"],
    ["--use_xla"],
    pytest.param(["--engine=jax", "--num_virtual_devices=2"], marks=NEEDS_JAX),
    pytest.param(["--engine=jax", "--num_virtual_devices=4", "--shard_moments"], marks=NEEDS_JAX),
], ids=lambda flags: "-".join(f.strip("-") for f in flags))
def test_replicas_have_the_average_of_one_device(how, job, tmp_path):
    config = write_config(tmp_path, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    do(*job("alone", albert_config_file=config))
    first = tmp_path / "alone/model.ckpt-3"
    for out, flags in (("one", []), ("several", how)):
        do(*job(out, albert_config_file=config, init_checkpoint=first), *flags)
    (_, one), (_, several) = (split(tmp_path / o / f"model.ckpt-{STEPS}") for o in ("one", "several"))
    assert_equal(several, one, 1e-4)
    lines = [[x["loss"] for x in metrics(tmp_path / o)] for o in ("one", "several")]
    np.testing.assert_allclose(*lines, rtol=1e-5)


@pytest.mark.slow
@NEEDS_JAX
@pytest.mark.parametrize("more", [[], ["--num_virtual_devices=2", "--shard_moments"]])
def test_a_run_of_jax_with_an_average_is_resumed_to_the_bit(more, job, tmp_path):
    do(*job("whole"), "--engine=jax", *more)
    for step in (3, 0):
        do(*job("parts", until_step=step), "--engine=jax", *more)
    ours, theirs = (raw(tmp_path / f"{name}/model.ckpt-{STEPS}") for name in ("parts", "whole"))
    assert_equal(ours, theirs)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


@pytest.mark.parametrize("value", ["1", "-0.1"])
def test_a_decay_that_cannot_be_is_refused(value, job, capsys):
    assert here(*job(weight_average=value)) == 2
    assert f"--weight_average={value}: must be a number, at least 0, below 1" in capsys.readouterr().err


def test_what_an_optimizer_keeps_is_no_weight():
    for slot in ("adam_m", "adam_v", "momentum", "average"):
        assert checkpoints.is_slot(f"bert/pooler/dense/kernel/{slot}")
    assert not checkpoints.is_slot("bert/pooler/dense/kernel")
