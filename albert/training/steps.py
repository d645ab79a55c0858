"""One step of training or evaluation as a graph, on any number of devices.

The step runs on every replica of the current `tf.distribute` strategy. Each replica has its
part of the batch's rows. Losses are divided by the weight of the whole batch. Gradients are
summed over micro-batches, and then over replicas. So one device, several devices, and gradient
accumulation all compute the same.
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

# With --skip_loss_spikes, a loss is a spike if it is more than SPIKE_DEVIATIONS standard
# deviations above the mean of the SPIKE_WINDOW losses before it.
SPIKE_DEVIATIONS, SPIKE_WINDOW = 6.0, 128


class TrainSteps:
    """Training steps of a task, called with (iterator, count, control).

    A call makes `count` steps. It returns a row for each, [count, columns], and `control` summed
    over the replicas of all workers (see `pace.Pace`). `depth` is the number of layers that the
    steps train; None: all.
    """

    def __init__(self, task: Task, state, run, depth: int | None = None):
        self.task, self.state, self.run, self.depth = task, state, run, depth
        self.names = sorted(task.statistic_names)
        self.strategy = tf.distribute.get_strategy()
        self.num_replicas = self.strategy.num_replicas_in_sync
        is_tpu = distribution.is_tpu()
        # XLA on one device compiles the update too: in small models, its many small ops take half
        # of the time. On several devices it can only compile the gradients. A TPU compiles all.
        whole = self.num_replicas == 1 and run.gradient_accumulation_steps == 1
        # AutoGraph would take a sixth of the time to a first step. It is not needed: no Python
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
        # The scale makes gradients larger, not the loss. So if only the gradient is not finite, a
        # lower scale may help, unless the scale is 1 already.
        overflow = tf.constant(False)
        if self.run.mixed_precision == "float16":
            overflow = ~finite & tf.math.is_finite(sums[0]) & (scale > 1.0)
            _update_loss_scale(state.loss_scale, finite, overflow)
        bad = ~finite & ~overflow | spike
        head = [sums[0], norm, rate, tf.cast(bad, tf.float32), tf.cast(overflow, tf.float32)]
        return tf.concat([tf.stack(head), sums[1:]], axis=0)

    def _accumulated(self, batch, step, weights, scale):
        """Returns `_micro_gradients` of this replica's rows, summed over the micro-batches."""
        count = self.run.gradient_accumulation_steps
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        first = tf.cast(replica, tf.int64) * count

        def micro(i):
            # The first micro-batch of the first replica draws what a single device would draw.
            seed = dropout_seed(self.run.seed, step, first + i)
            if count == 1:
                return self._gradients(batch, seed, weights, scale)
            rows = next(iter(batch.values())).shape[0] // count
            start = tf.cast(i, tf.int32) * rows
            part = {k: tf.ensure_shape(v[start : start + rows], [rows, *v.shape[1:]])
                    for k, v in batch.items()}
            return self._gradients(part, seed, weights, scale)

        sums, grads = micro(tf.constant(0, tf.int64))
        if count == 1:  # a loop would put the model into the graph a second time
            return sums, grads

        def add(i, sums, grads):
            # One after another. Otherwise the graph computes several at the same time, and
            # needs memory for the activations of all of them.
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
        # Dense, because the slices of an embedding's gradient may overlap: their norm is wrong.
        dense = {name: tf.convert_to_tensor(g) for name, g in grads.items() if g is not None}
        pairs = self.task.statistics(batch, outputs)
        flat = [tf.cast(x, tf.float32) for name in self.names for x in pairs[name]]
        tokens = tf.cast(tf.reduce_sum(batch["input_mask"]), tf.float32)
        return tf.stack([loss, tokens, *flat]), dense


def dropout_seed(seed: int, step: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    """Returns the seed of a micro-batch's dropout: int64 [2].

    Args:
      seed: of the run.
      step: int64.
      part: int64, the number of the micro-batch among those of all replicas.
    """
    key = np.frombuffer(child_seed(seed, "dropout").to_bytes(8, "little"), np.int32)
    for number in (step, part):  # as 32 bits: XLA takes no other seeds
        key = tf.random.experimental.stateless_fold_in(key, tf.cast(number, tf.int32))
    drawn = tf.random.stateless_uniform([2], key, None, None, tf.int32)
    return tf.cast(drawn, tf.int64)


def _sum_over_replicas(values):
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def is_spike(recent: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    """Whether a loss is far above the last ones. False until there are enough of them."""
    mean, variance = tf.nn.moments(recent, [0])
    # Until then the mean is NaN, and no loss is greater than NaN.
    return loss > mean + SPIKE_DEVIATIONS * tf.sqrt(variance)


def remember(recent: tf.Variable, loss: tf.Tensor) -> None:
    """Adds a loss to the last ones, if it is finite. The oldest one goes."""
    # Spikes are added too: where the loss stays high, that is soon the normal level.
    old = tf.identity(recent)
    newer = tf.concat([old[1:], [tf.cast(loss, tf.float32)]], 0)
    recent.assign(tf.where(tf.math.is_finite(loss), newer, old))


def _update_loss_scale(loss_scale: tf.Variable, finite: tf.Tensor, overflow: tf.Tensor) -> None:
    """Halves the scale after an overflow. Doubles it after 2,000 good steps in a row."""
    scale, good = loss_scale[0], loss_scale[1]
    grow = finite & (good >= 1999.0)
    scale = tf.where(grow, scale * 2.0, tf.where(overflow, tf.maximum(scale / 2.0, 1.0), scale))
    good = tf.where(finite & ~grow, good + 1.0, 0.0)
    loss_scale.assign(tf.stack([scale, good]))  # a list is refused where there are replicas


class EvalStep:
    """Evaluates a batch: returns (loss, {name: (sum, weight)}, predictions [B, ...] as NumPy).

    The loss is None if the batch has no labels. The replicas of this machine share the batch.
    Of several machines, only the chief evaluates, on one device.
    """

    def __init__(self, task: Task, model: keras.Model, depth: int | None = None):
        self.task, self.model, self.depth = task, model, depth
        self.strategy = tf.distribute.get_strategy()
        is_shared = distribution.num_evaluating_replicas() > 1
        self._outputs = tf.function(self._replica_outputs, reduce_retracing=True, autograph=False)
        self._whole = self._shared if is_shared else self._outputs

    def trace(self, spec) -> None:
        """Makes one graph for the batches of all lengths that `spec` describes."""
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
