"""The first steps of training against the original's own run (golden `train5.npz`)."""

import functools

import numpy as np
import pytest

from albert.config import AlbertConfig
from albert.formats import checkpoints
from albert.optimization import OptimizerConfig
from albert.tasks.pretraining import PretrainingTask
from albert.training.run import RunConfig, TrainState, current

STEPS, ROWS, LENGTH, PREDICTIONS = 5, 4, 20, 4


@functools.cache
def five_steps(folder, golden_file, optimizer: str):
    """Returns (row of metrics, weights) after each of the trainer's steps from the checkpoint."""
    golden = np.load(golden_file)
    config = AlbertConfig.from_json_file(str(folder / "albert_config.json")).with_dropout(0.0)
    task, run = PretrainingTask(LENGTH, PREDICTIONS), RunConfig("unused")
    state = TrainState(task, config, run, OptimizerConfig(optimizer, 0.02, 20, 3))
    weights = checkpoints.open_weights(str(folder / "model.ckpt-best"))
    for name, weight in state.weights.items():
        weight.assign(weights.read(name))
    train_step, found = current().train_step(task, state, run), []
    for step in range(STEPS):
        prefix = f"in/step{step}/"
        batch = {k[len(prefix) :]: golden[k] for k in golden.files if k.startswith(prefix)}
        batch["is_real_example"] = np.ones(ROWS, "int32")
        row = train_step(batch)
        found.append((row.numpy(), {n: w.numpy() for n, w in state.weights.items()}))
    return found


def assert_close(ours, golden, scope, rtol):
    for name, value in ours.items():
        expected = golden[scope + name]
        # Relative to the variable: adaptive steps amplify noise in its smallest elements.
        difference = np.abs(value - expected).max() / np.abs(expected).max()
        assert difference < rtol, (name, difference)


@pytest.mark.parametrize("optimizer", ["lamb", pytest.param("adamw", marks=pytest.mark.slow)])
def test_losses_and_weights_follow_the_originals(optimizer, golden_path):
    # `onehot` is the original's form for TPUs, with a dense embedding gradient: like ours, it
    # clips by the norm of the gradient.
    folder = golden_path("tf1_ckpt_tiny")
    path, scope = golden_path("tf1_ckpt_tiny/train5.npz"), f"{optimizer}/onehot/"
    golden = np.load(path)
    for step, (row, weights) in enumerate(five_steps(folder, path, optimizer)):
        loss, norm = row[:2]
        np.testing.assert_allclose(loss, golden[f"{scope}loss_before_step{step}"], rtol=1e-5)
        seen = golden[f"{scope}clip_norm_seen_step{step}"]
        np.testing.assert_allclose(norm, seen, rtol=1e-4)
        if f"{scope}after{step + 1}/bert/pooler/dense/bias" in golden.files:
            assert_close(weights, golden, f"{scope}after{step + 1}/", 1e-4)


@pytest.mark.parametrize(("case", "optimizer"), [
    ("tf1_ckpt_tiny", "lamb"), ("tf1_ckpt_tiny", "adamw"),
    pytest.param("tf1_ckpt_tiny_groups", "adamw", marks=pytest.mark.slow),
])
def test_with_sparse_embedding_gradients_only_the_originals_clip_norm_differs(
    case, optimizer, golden_path
):
    # `lookup`: there the norm of the word table's gradient is of its slices, duplicates not
    # summed (up to 0.4 % off), so the updates differ by as much and the losses by less.
    folder = golden_path(case)
    path, scope = golden_path(f"{case}/train5.npz"), f"{optimizer}/lookup/"
    golden = np.load(path)
    for step, (row, weights) in enumerate(five_steps(folder, path, optimizer)):
        loss, norm = row[:2]
        np.testing.assert_allclose(loss, golden[f"{scope}loss_before_step{step}"], rtol=1e-3)
        if step < 2:  # before the different norms have moved the weights
            dense = golden[f"{scope}dense_global_norm_step{step}"]
            np.testing.assert_allclose(norm, dense, rtol=1e-5)
        if step in (1, 4):
            assert_close(weights, golden, f"{scope}after{step + 1}/", {1: 1e-3, 4: 1e-2}[step])
