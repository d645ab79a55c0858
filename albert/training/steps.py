"""One step of training or evaluation as a graph, on however many devices there are.

The step runs on every replica of the current `tf.distribute` strategy, each
with its rows of the global batch. Losses are divided by the weight of the whole
global batch and gradients are summed, over micro-batches and then over
replicas; so one device, many, and gradient accumulation compute the same.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert.data.seeds import child_seed
from albert.optimization import global_norm
from albert.tasks.task import Task
from albert.training import distribution

# Columns of a training step's row before the task's (sum, weight) pairs.
LOSS, NORM, RATE, BAD, OVERFLOW, TOKENS, PAIRS = range(7)


# With --skip_loss_spikes, a loss this many standard deviations above the mean of
# as many losses before it is a spike.
SPIKE_DEVIATIONS, SPIKE_WINDOW = 6.0, 128


class TrainSteps:
    """Training steps of a task; called with (iterator, count, control).

    Returns a row [columns] for each of `count` steps, and `control` summed over
    the replicas of all workers, by which they agree (see `trainer`). `depth` is how
    many layers these steps train, if not all.
    """

    def __init__(self, task: Task, state, run, depth: int | None = None):
        self.task, self.state, self.run, self.depth = task, state, run, depth
        self.names = sorted(task.statistic_names)
        self.strategy = tf.distribute.get_strategy()
        self.num_replicas = self.strategy.num_replicas_in_sync
        is_tpu = distribution.is_tpu()
        # On one device the update is compiled too: on small models half the time is its small
        # ops. On several only the gradients can be; a TPU compiles all there is by itself.
        whole = self.num_replicas == 1 and run.gradient_accumulation_steps == 1
        # Without AutoGraph, whose conversions are a sixth of the time to a first step: no Python
        # statement here or in a task depends on a tensor.
        self._gradients = tf.function(
            self._micro_gradients, jit_compile=run.use_xla and not whole and not is_tpu,
            reduce_retracing=True, autograph=False,
        )
        self._step = tf.function(
            self._replica_step, jit_compile=run.use_xla and whole and not is_tpu,
            reduce_retracing=True, autograph=False,
        )

    @tf.function(reduce_retracing=True, autograph=False)
    def __call__(self, iterator, count, control):
        def step(i, rows):
            row = self.strategy.run(self._step, args=(next(iterator),))
            return i + 1, rows.write(i, self.strategy.experimental_local_results(row)[0])

        rows = tf.while_loop(
            lambda i, _: i < count, step, (0, tf.TensorArray(tf.float32, size=count)),
            parallel_iterations=1,
        )[1]
        agreed = self.strategy.run(lambda: _sum_over_replicas(tf.identity(control)))
        return rows.stack(), self.strategy.experimental_local_results(agreed)[0]

    def _replica_step(self, batch):
        state = self.state
        step = tf.cast(state.optimizer.iterations.value, tf.int64)
        scale = tf.identity(state.loss_scale)[0]
        weights = self.task.loss_weights(batch)
        if self.run.per_replica_loss:
            weights = {name: w * self.num_replicas for name, w in weights.items()}
        else:
            weights = _sum_over_replicas(weights)
        sums, found = self._accumulated(batch, step, weights, scale)
        trained = [name for name in state.weights if name in found]
        grads = [g / scale for g in _sum_over_replicas([found[name] for name in trained])]
        sums = _sum_over_replicas(sums)
        norm = global_norm(grads)
        finite = tf.math.is_finite(sums[0]) & tf.math.is_finite(norm)
        spike = tf.constant(False)
        if self.run.skip_loss_spikes:
            spike = is_spike(tf.identity(state.recent_losses), sums[0])
            remember(state.recent_losses, sums[0])
        # The optimizer skips the update when a gradient is not finite.
        poison = tf.where(finite & ~spike, 1.0, float("nan"))
        rate = state.optimizer._learning_rate(step)
        variables = [state.weights[name] for name in trained]
        state.optimizer.apply([g * poison for g in grads], variables)
        # The scale multiplies gradients, not the loss: where the loss is a number and its
        # gradient is none, a lower scale may help; at scale 1, or without a loss, nothing does.
        overflow = tf.constant(False)
        if self.run.mixed_precision == "float16":
            overflow = ~finite & tf.math.is_finite(sums[0]) & (scale > 1.0)
            _update_loss_scale(state.loss_scale, finite, overflow)
        bad = ~finite & ~overflow | spike
        head = [sums[0], norm, rate, tf.cast(bad, tf.float32), tf.cast(overflow, tf.float32)]
        return tf.concat([tf.stack(head), sums[1:]], axis=0)

    def _accumulated(self, batch, step, weights, scale):
        """Returns what `_micro_gradients` does, of this replica's rows, part after part."""
        count = self.run.gradient_accumulation_steps
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        first = tf.cast(replica, tf.int64) * count

        def micro(i):
            # Of the first micro-batch of one device: what a run without any of this draws.
            seed = dropout_seed(self.run.seed, step, first + i)
            if count == 1:
                return self._gradients(batch, seed, weights, scale)
            rows = next(iter(batch.values())).shape[0] // count
            start = tf.cast(i, tf.int32) * rows
            part = {k: tf.ensure_shape(v[start : start + rows], [rows, *v.shape[1:]])
                    for k, v in batch.items()}
            return self._gradients(part, seed, weights, scale)

        sums, grads = micro(tf.constant(0, tf.int64))
        if count == 1:  # or else the graph holds the model twice
            return sums, grads

        def add(i, sums, grads):
            # One after another: or else a graph computes as many at a time as it can, and
            # holds the activations of all of them.
            with tf.control_dependencies([sums, *grads.values()]):
                more, more_grads = micro(tf.identity(i))
            return i + 1, sums + more, {name: grads[name] + more_grads[name] for name in grads}

        start = (tf.constant(1, tf.int64), sums, grads)
        return tf.while_loop(lambda i, *_: i < count, add, start, parallel_iterations=1)[1:]

    def _micro_gradients(self, batch, seed, weights, scale):
        """Returns ([loss, tokens, sums and weights of the statistics], {weight: gradient})."""
        variables = {
            name: weight.value for name, weight in self.state.weights.items()
            if weight.trainable and not (self.run.freeze_encoder and name.startswith("bert/"))
        }
        with tf.GradientTape() as tape:
            outputs = self.state.model(
                batch, training=True, dropout_seed=seed, depth=self.depth
            )
            sums = self.task.loss_sums(batch, outputs)
            loss = tf.add_n([sums[name] / weights[name] for name in sums])
            scaled = loss * scale
        grads = tape.gradient(scaled, variables)
        # Dense: a sum over the slices of an embedding gradient is not its norm.
        dense = {name: tf.convert_to_tensor(g) for name, g in grads.items() if g is not None}
        pairs = self.task.statistics(batch, outputs)
        flat = [tf.cast(x, tf.float32) for name in self.names for x in pairs[name]]
        tokens = tf.cast(tf.reduce_sum(batch["input_mask"]), tf.float32)
        return tf.stack([loss, tokens, *flat]), dense


def dropout_seed(seed: int, step: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    """Returns the two integers, int64, from which a micro-batch of a step draws its dropout.

    Args:
      seed: the run's.
      step, part: int64; `part` numbers the micro-batches of all replicas.
    """
    key = np.frombuffer(child_seed(seed, "dropout").to_bytes(8, "little"), np.int32)
    # Numbers of 32 bits: XLA takes no others as seeds.
    for number in (step, part):
        number = tf.cast(number, tf.int32)
        key = tf.random.experimental.stateless_fold_in(key, number)
    drawn = tf.random.stateless_uniform([2], key, None, None, tf.int32)
    return tf.cast(drawn, tf.int64)


def _sum_over_replicas(values):
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def is_spike(recent: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    """Whether a loss is far above the last ones; never before there are enough of them."""
    mean, variance = tf.nn.moments(recent, [0])
    # Nothing is greater than what is not a number.
    return loss > mean + SPIKE_DEVIATIONS * tf.sqrt(variance)


def remember(recent: tf.Variable, loss: tf.Tensor) -> None:
    """Puts a loss behind the last ones, unless it is not finite."""
    # Spikes too: a level that stays high is no spike for long.
    old = tf.identity(recent)
    newer = tf.concat([old[1:], [tf.cast(loss, tf.float32)]], 0)
    recent.assign(tf.where(tf.math.is_finite(loss), newer, old))


def _update_loss_scale(loss_scale: tf.Variable, finite: tf.Tensor, overflow: tf.Tensor) -> None:
    """Halves the scale after an overflow, doubles it after 2,000 good steps without one."""
    scale, good = loss_scale[0], loss_scale[1]
    grow = finite & (good >= 1999.0)
    scale = tf.where(grow, scale * 2.0, tf.where(overflow, tf.maximum(scale / 2.0, 1.0), scale))
    good = tf.where(finite & ~grow, good + 1.0, 0.0)
    loss_scale.assign(tf.stack([scale, good]))  # a list is refused where there are replicas


class EvalStep:
    """One evaluation batch: (loss, {name: (sum, weight)}, predictions [B, ...] as NumPy).

    The loss is None where the task has none without labels.
    Replicas of this machine share the batch. Of several machines only the
    chief evaluates, on one device: it needs nobody for that.
    """

    def __init__(self, task: Task, model: keras.Model, depth: int | None = None):
        self.task, self.model, self.depth = task, model, depth
        self.strategy = tf.distribute.get_strategy()
        is_shared = distribution.num_evaluating_replicas() > 1
        self._outputs = tf.function(self._replica_outputs, reduce_retracing=True, autograph=False)
        self._whole = self._shared if is_shared else self._outputs

    def trace(self, spec) -> None:
        """Makes the one graph for batches of all lengths that `spec` stands for."""
        self._whole.get_concrete_function(spec)

    def __call__(
        self, batch
    ) -> tuple[float | None, dict[str, tuple[float, float]], dict[str, Any]]:
        sums, weights, pairs, predictions = self._whole(batch)
        loss = sum(float(sums[name]) / float(weights[name]) for name in sums) if sums else None
        numbers = {name: (float(total), float(weight)) for name, (total, weight) in pairs.items()}
        return loss, numbers, {name: value.numpy() for name, value in predictions.items()}

    @tf.function(reduce_retracing=True)
    def _shared(self, batch):
        parts = self.strategy.run(self._outputs, args=(batch,))

        def total(value):
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)

        sums, weights, pairs, predictions = parts
        return (
            {name: total(value) for name, value in sums.items()},
            {name: total(value) for name, value in weights.items()},
            {name: (total(a), total(b)) for name, (a, b) in pairs.items()},
            {name: self.strategy.gather(value, axis=0) for name, value in predictions.items()},
        )

    def _replica_outputs(self, batch: Mapping[str, tf.Tensor]):
        outputs = self.model(batch, training=False, depth=self.depth)
        pairs = {
            name: (tf.cast(a, tf.float32), tf.cast(b, tf.float32))
            for name, (a, b) in self.task.statistics(batch, outputs).items()
        }
        sums, weights = self.task.loss_sums(batch, outputs), self.task.loss_weights(batch)
        return sums, weights, pairs, self.task.predictions(batch, outputs)
