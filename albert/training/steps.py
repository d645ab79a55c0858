"""Computes one step of training or evaluation, on either engine.

Each replica has its part of the batch. Losses are divided by the weight of the complete batch, and
gradients are summed over micro-batches and replicas. So one device, several devices, and gradient
accumulation all compute the same.
"""

import keras
import numpy as np
from keras import ops

from albert.model.dropout import fold_in
from albert.optimization import global_norm
from albert.runtime.seeds import child_seed
from albert.tasks.task import Task
from albert.training.engine import Engine
from albert.training.metrics import BAD, LOSS, NORM, OVERFLOW, PAIRS, RATE, STOP, TOKENS  # noqa: F401


def train_step(batch, stop, task: Task, state, run, engine: Engine):
    """Makes a step with a batch, of which each replica has a part. Returns its metrics [columns].

    Args:
      stop: number of workers that were asked to stop.
      state: the `TrainState`, which is updated.
      engine: differentiates, sums over replicas, and has compiled this function.
    """
    scale = ops.convert_to_tensor(state.loss_scale)[0]
    parts, names = run.gradient_accumulation_steps, sorted(task.statistic_names)

    def inputs_of(batch, replica, i):
        """Returns the i-th micro-batch of a replica, and the seed of its dropout."""
        step = ops.cast(state.optimizer.iterations, "int32")
        # The first micro-batch of the first replica draws what a single device would draw.
        return _part_of(batch, i, parts), dropout_seed(run.seed, step, replica * parts + i)

    def loss_of(part, seed, weights, scale):
        # --- Forward ---
        outputs = task.outputs(state.model, part, training=True, dropout_seed=seed)
        # --- Loss ---
        sums, pairs = task.loss_sums(part, outputs), task.statistics(part, outputs)
        first, *others = (sums[name] / weights[name] for name in sums)
        loss = sum(others, first)
        tokens, *flat = (ops.cast(x, "float32") for x in (
            ops.sum(part["input_mask"]), *(x for name in names for x in pairs[name])
        ))
        return loss * scale, ops.stack([loss, tokens, *flat])

    # --- Gradients, summed over micro-batches and replicas ---
    grads, sums = engine.grad_sums(loss_of, inputs_of, batch, task.loss_weights, scale, state, run)
    gradients = {name: grads[name] / scale for name in state.weights if name in grads}
    norm = global_norm(list(gradients.values()))

    # --- Skip? ---
    is_sound, bad, overflow = _judge(sums[0], norm, scale, state, run)

    # --- Update ---
    rate, weights = state.optimizer.learning_rate, [state.weights[name] for name in gradients]
    state.optimizer.update(list(gradients.values()), weights, norm, is_sound)
    head = [sums[0], norm, rate, ops.cast(bad, "float32"), ops.cast(overflow, "float32")]
    return ops.concatenate([ops.stack(head), sums[1:], ops.stack([stop])], axis=0)


def _judge(loss, norm, scale, state, run):
    """Returns whether a step's gradients are applied, whether it is bad, and whether it overflows.

    An overflow halves the loss scale of float16, and 2,000 good steps in a row double it; other values
    that are not finite are bad steps.
    """
    finite = ops.logical_and(ops.isfinite(loss), ops.isfinite(norm))
    if run.mixed_precision != "float16":
        return finite, ops.logical_not(finite), ops.zeros_like(finite)
    # The scale applies to gradients, not to the loss. So if only the gradient is not finite, a lower
    # scale may help, unless it is already 1.
    can_help = ops.logical_and(ops.isfinite(loss), scale > 1.0)
    overflow = ops.logical_and(ops.logical_not(finite), can_help)
    good = ops.convert_to_tensor(state.loss_scale)[1]
    grow = ops.logical_and(finite, good >= 1999.0)
    lower = ops.where(overflow, ops.maximum(scale / 2.0, 1.0), scale)
    counts = ops.logical_and(finite, ops.logical_not(grow))
    state.loss_scale.assign(
        ops.stack([ops.where(grow, scale * 2.0, lower), ops.where(counts, good + 1.0, 0.0)])
    )
    return finite, ops.logical_not(ops.logical_or(finite, overflow)), overflow


def dropout_seed(seed: int, step, part):
    """Returns the seed of a micro-batch's dropout: two integers.

    Args:
      seed: of the run.
      step: int32.
      part: int32, the micro-batch's number among those of all replicas.
    """
    key = np.frombuffer(child_seed(seed, "dropout").to_bytes(8, "little"), np.int32)
    return fold_in(key, (step, part))


def _part_of(batch, i, count: int):
    """Returns the i-th of `count` equal parts of a batch."""
    if count == 1:
        return batch

    def part(x):
        size = ops.shape(x)[0] // count
        return ops.take(x, i * size + ops.arange(size, dtype="int32"), axis=0)

    return {name: part(x) for name, x in batch.items()}


def eval_step(batch, task: Task, model: keras.Model) -> tuple[dict, dict, dict, dict]:
    """Returns (sums of the loss, their weights, statistics, predictions) of a replica's part of a batch."""
    outputs = task.outputs(model, batch, training=False)
    pairs = {
        name: (ops.cast(a, "float32"), ops.cast(b, "float32"))
        for name, (a, b) in task.statistics(batch, outputs).items()
    }
    sums, weights = task.loss_sums(batch, outputs), task.loss_weights(batch)
    return sums, weights, pairs, task.predictions(batch, outputs)
