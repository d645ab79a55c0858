"""What one step of training or evaluation computes, on either engine.

Each replica has its part of the batch's rows. Losses are divided by the weight of the whole
batch. Gradients are summed over micro-batches, and then over replicas. So one device, several
devices, and gradient accumulation all compute the same.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from albert.model.encoder_options import Depth
from albert.optimization import global_norm
from albert.runtime.seeds import child_seed
from albert.tasks.task import Task
from albert.training.current_engine import current

# Columns of a training step's row before the task's (sum, weight) pairs.
LOSS, NORM, RATE, BAD, OVERFLOW, TOKENS, PAIRS = range(7)

# With --skip_loss_spikes, a loss is a spike if it is more than SPIKE_DEVIATIONS standard
# deviations above the mean of the SPIKE_WINDOW losses before it.
SPIKE_DEVIATIONS, SPIKE_WINDOW = 6.0, 128


class TrainStep:
    """A training step of a task: `gradients` on each replica, then `update`.

    `depth` is how many layers it trains. An engine may replace `micro_gradients` by a compiled
    form.
    """

    def __init__(self, task: Task, state, run, depth: Depth = None):
        self.engine, self.task, self.state, self.run, self.depth = current(), task, state, run, depth
        self.names = sorted(task.statistic_names)
        self.trained = {
            name: weight for name, weight in state.weights.items()
            if weight.trainable and not (run.freeze_encoder and name.startswith("bert/"))
        }
        self.micro_gradients = self._micro_gradients

    def gradients(self, batch) -> tuple[Any, dict[str, Any]]:
        """Returns ([loss, tokens, sums and weights of the statistics], {weight: gradient}).

        They are of the whole batch.

        Args:
          batch: this replica's part.
        """
        engine, run = self.engine, self.run
        weights = self.task.loss_weights(batch)
        if run.per_replica_loss:
            weights = {name: w * engine.num_replicas for name, w in weights.items()}
        else:
            weights = engine.sum_over_replicas(weights)
        scale = self._scale()
        count = run.gradient_accumulation_steps
        step = ops.cast(self.state.optimizer.iterations, "int32")
        first = engine.replica() * count

        def part(i):
            # The first micro-batch of the first replica draws what a single device would draw.
            seed = dropout_seed(run.seed, step, first + i)
            return self.micro_gradients(_rows(batch, i, count), seed, weights, scale)

        sums, found = engine.add_up(part, count)
        sums, found = engine.sum_over_replicas(sums), engine.sum_over_replicas(found)
        return sums, {name: g / scale for name, g in found.items()}

    def _scale(self):
        return ops.convert_to_tensor(self.state.loss_scale)[0]

    def _micro_gradients(self, batch, seed, weights, scale):
        """Returns what `gradients` does, of a micro-batch, times the scale of the loss."""
        def losses():
            outputs = self.state.model(batch, training=True, dropout_seed=seed, depth=self.depth)
            sums = self.task.loss_sums(batch, outputs)
            first, *others = (sums[name] / weights[name] for name in sums)
            loss = sum(others, first)
            pairs = self.task.statistics(batch, outputs)
            flat = [ops.cast(x, "float32") for name in self.names for x in pairs[name]]
            tokens = ops.cast(ops.sum(batch["input_mask"]), "float32")
            return loss * scale, ops.stack([loss, tokens, *flat])

        return self.engine.gradients(losses, self.state.model, self.trained)

    def update(self, sums, found: dict[str, Any]):
        """Updates weights, moments and the rest of the state. Returns the step's row [columns].

        Args:
          sums, found: what `gradients` returned.
        """
        state, optimizer, scale = self.state, self.state.optimizer, self._scale()
        names = [name for name in state.weights if name in found]
        grads = [found[name] for name in names]
        norm = global_norm(grads)
        has_loss = ops.isfinite(sums[0])
        finite = ops.logical_and(has_loss, ops.isfinite(norm))
        spike = ops.zeros_like(finite)
        if self.run.skip_loss_spikes:
            spike = is_spike(ops.convert_to_tensor(state.recent_losses), sums[0])
            remember(state.recent_losses, sums[0])
        # The optimizer skips the update when a gradient is not finite.
        is_sound = ops.logical_and(finite, ops.logical_not(spike))
        poison = ops.where(is_sound, 1.0, float("nan"))
        rate = optimizer._learning_rate(ops.convert_to_tensor(optimizer.iterations))
        optimizer.apply([g * poison for g in grads], [state.weights[name] for name in names])
        # The scale makes gradients larger, not the loss. So if only the gradient is not finite, a
        # lower scale may help, unless the scale is 1 already.
        overflow = ops.zeros_like(finite)
        if self.run.mixed_precision == "float16":
            can_help = ops.logical_and(has_loss, scale > 1.0)
            overflow = ops.logical_and(ops.logical_not(finite), can_help)
            _update_loss_scale(state.loss_scale, finite, overflow)
        fails = ops.logical_and(ops.logical_not(finite), ops.logical_not(overflow))
        bad = ops.logical_or(fails, spike)
        head = [sums[0], norm, rate, ops.cast(bad, "float32"), ops.cast(overflow, "float32")]
        return ops.concatenate([ops.stack(head), sums[1:]], axis=0)


def dropout_seed(seed: int, step, part):
    """Returns the seed of a micro-batch's dropout: two integers.

    Args:
      seed: of the run.
      step: int32.
      part: int32, the number of the micro-batch among those of all replicas.
    """
    key = np.frombuffer(child_seed(seed, "dropout").to_bytes(8, "little"), np.int32)
    return current().fold_in(key, (step, part))


def train_steps(task: Task, state, run, depth: Depth = None):
    """Returns what makes several steps in one call; see `Engine.train_steps`."""
    step = TrainStep(task, state, run, depth)
    return step.engine.train_steps(step)


def _rows(batch, i, count: int):
    """Returns the i-th of `count` equal parts of a batch: of its examples and of their rows."""
    if count == 1:
        return batch

    def part(x):
        size = ops.shape(x)[0] // count
        return ops.take(x, i * size + ops.arange(size, dtype="int32"), axis=0)

    return {name: part(x) for name, x in batch.items()}


def is_spike(recent, loss):
    """Whether a loss is far above the last ones. False until there are enough of them."""
    mean, variance = ops.moments(recent, axes=[0])
    # Until then the mean is NaN, and no loss is greater than NaN.
    return loss > mean + SPIKE_DEVIATIONS * ops.sqrt(variance)


def remember(recent: keras.Variable, loss) -> None:
    """Adds a loss to the last ones, if it is finite. The oldest one goes."""
    # Spikes are added too: where the loss stays high, that is soon the normal level.
    old = ops.convert_to_tensor(recent)
    newer = ops.concatenate([old[1:], ops.cast(loss, "float32")[None]], axis=0)
    recent.assign(ops.where(ops.isfinite(loss), newer, old))


def _update_loss_scale(loss_scale: keras.Variable, finite, overflow) -> None:
    """Halves the scale after an overflow. Doubles it after 2,000 good steps in a row."""
    old = ops.convert_to_tensor(loss_scale)
    scale, good = old[0], old[1]
    grow = ops.logical_and(finite, good >= 1999.0)
    lower = ops.where(overflow, ops.maximum(scale / 2.0, 1.0), scale)
    counts = ops.logical_and(finite, ops.logical_not(grow))
    loss_scale.assign(
        ops.stack([ops.where(grow, scale * 2.0, lower), ops.where(counts, good + 1.0, 0.0)])
    )


class EvalStep:
    """Evaluates a batch: returns (loss, {name: (sum, weight)}, predictions [B, ...] as NumPy).

    The loss is None if the batch has no labels. The replicas of this process share the batch. Of
    several workers, only the chief evaluates.
    """

    def __init__(self, task: Task, model: keras.Model, depth: Depth = None):
        self.engine, self.task, self.model, self.depth = current(), task, model, depth
        self.outputs_of = self.engine.eval_outputs(self)

    def prepare(self, batches) -> None:
        """Gets ready for batches of `Engine.eval_batches`."""
        self.outputs_of.prepare(batches)

    def __call__(
        self, batch
    ) -> tuple[float | None, dict[str, tuple[float, float]], dict[str, np.ndarray]]:
        sums, weights, pairs, predictions = self.outputs_of(batch)
        loss = sum(float(sums[name]) / float(weights[name]) for name in sums) if sums else None
        numbers = {name: (float(total), float(weight)) for name, (total, weight) in pairs.items()}
        return loss, numbers, {name: np.asarray(value) for name, value in predictions.items()}

    def outputs(self, batch):
        """Returns (sums and weights of the loss, statistics, predictions) of a replica's rows."""
        outputs = self.model(batch, training=False, depth=self.depth)
        pairs = {
            name: (ops.cast(a, "float32"), ops.cast(b, "float32"))
            for name, (a, b) in self.task.statistics(batch, outputs).items()
        }
        sums, weights = self.task.loss_sums(batch, outputs), self.task.loss_weights(batch)
        return sums, weights, pairs, self.task.predictions(batch, outputs)
