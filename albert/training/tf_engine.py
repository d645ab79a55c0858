"""The TensorFlow engine: graphs, `tf.distribute`, tf.data.

A step runs on every replica of the current strategy of `tf.distribute`, which only this module
chooses.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from albert.errors import FlagError
from albert.model import islands
from albert.records import batches as numpy_batches
from albert.records import tf_dataset
from albert.records.data_order import Share
from albert.training import steps
from albert.training.engine import Engine

log = logging.getLogger("albert")


class TensorFlowEngine(Engine):
    """One device, or the current strategy of `tf.distribute`."""

    # --- Devices and workers ---

    @contextlib.contextmanager
    def scope(self, values) -> Iterator[None]:
        if values.distribution_strategy == "multi_worker":
            raise FlagError("TensorFlow trains on one machine: for several, use --engine=jax")
        gpus = tf.config.list_physical_devices("GPU")
        if (values.num_gpus or 0) > len(gpus):
            raise FlagError(f"--num_gpus={values.num_gpus}: this machine has {len(gpus)}")
        gpus = gpus[: values.num_gpus]
        has_several = len(gpus) > 1 or values.num_virtual_devices > 1
        kind = values.distribution_strategy or ("mirrored" if has_several else "one_device")
        if values.num_virtual_devices > 1:
            cpu = tf.config.list_physical_devices("CPU")[0]
            devices = [tf.config.LogicalDeviceConfiguration()] * values.num_virtual_devices
            tf.config.set_logical_device_configuration(cpu, devices)
        tf.config.set_visible_devices(gpus[:1] if kind == "one_device" else gpus, "GPU")
        if kind == "one_device":  # TensorFlow's default
            yield
            return
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
        log.info("%s: %d replicas", kind, strategy.num_replicas_in_sync)
        with strategy.scope():
            yield

    @property
    def num_replicas(self) -> int:
        return tf.distribute.get_strategy().num_replicas_in_sync

    @property
    def num_evaluating_replicas(self) -> int:
        return self.num_replicas

    @property
    def has_accelerator(self) -> bool:
        return bool(tf.config.list_logical_devices("GPU"))

    @property
    def device_name(self) -> str:
        gpus = tf.config.get_visible_devices("GPU")
        return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "") if gpus else ""

    # --- Inside a step ---

    def grad_sums(self, loss, inputs_of, batch, loss_weights, scale, state, run):
        weights, parts = _psum(loss_weights(batch)), run.gradient_accumulation_steps
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        of_batch = functools.partial(inputs_of, batch, tf.cast(replica, tf.int32))

        @functools.partial(
            tf.function, jit_compile=run.use_xla, reduce_retracing=True, autograph=False
        )
        def gradients(*arguments):
            with tf.GradientTape() as tape:
                value, metrics = loss(*arguments)
            grads = tape.gradient(value, {n: weight.value for n, weight in state.trained.items()})
            # Dense: the slices of an embedding's gradient may overlap, which makes their norm wrong.
            return {n: tf.convert_to_tensor(g) for n, g in grads.items() if g is not None}, metrics

        first = gradients(*of_batch(tf.constant(0)), weights, scale)
        if parts == 1:  # a loop would put the model into the graph a second time
            return _psum(first)

        def add(i, total):
            # Otherwise the graph computes several at the same time, and holds all activations.
            with tf.control_dependencies(tf.nest.flatten(total)):
                more = gradients(*of_batch(tf.identity(i)), weights, scale)
            return i + 1, tf.nest.map_structure(tf.add, total, more)

        return _psum(tf.while_loop(
            lambda i, _: i < parts, add, (tf.constant(1), first), parallel_iterations=1
        )[1])

    # --- Around a step ---

    def train_step(self, task, state, run, batches=None):
        strategy = tf.distribute.get_strategy()
        # XLA on one device compiles the update, too, whose many small ops take half of the time in
        # small models. Otherwise it compiles the gradients alone.
        is_single = strategy.num_replicas_in_sync == 1

        def step(batch, stop):
            with islands.islands(not run.use_xla):
                return steps.train_step(batch, stop, task=task, state=state, run=run, engine=self)

        # AutoGraph would take a sixth of the time to a first step, and has no use: no Python
        # statement here or in a task depends on a tensor.
        of_replica = tf.function(
            step, jit_compile=run.use_xla and is_single and run.gradient_accumulation_steps == 1,
            reduce_retracing=True, autograph=False,
        )

        def of_replicas(batch, stop=np.float32(0)):
            row = strategy.run(of_replica, args=(batch, stop))
            return strategy.experimental_local_results(row)[0]

        # One graph for batches of all lengths.
        signature = batches and (batches.element_spec, tf.TensorSpec([], tf.float32))
        return tf.function(
            of_replicas, input_signature=signature, reduce_retracing=True, autograph=False
        )

    def eval_step(self, task, model, batches=None):
        strategy = tf.distribute.get_strategy()
        # One graph for batches of all lengths.
        signature = None if batches is None else (batches.element_spec,)

        def of_batch(batch):
            with islands.islands():
                return steps.eval_step(batch, task, model)

        # Traced once for all replicas.
        of_replica = tf.function(of_batch, reduce_retracing=True, autograph=False)

        def of_replicas(batch):
            *numbers, predictions = strategy.run(of_replica, args=(batch,))

            def total(value):
                return strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)

            gathered = {n: strategy.gather(value, axis=0) for n, value in predictions.items()}
            return *tf.nest.map_structure(total, numbers), gathered

        return tf.function(of_replicas if self.num_evaluating_replicas > 1 else of_batch,
                           input_signature=signature, reduce_retracing=True, autograph=False)

    def train_batches(self, source, spec, **options):
        return iter(_distributed(numpy_batches.train_batches, source, spec, options))

    def eval_batches(self, source, spec, **options):
        return _distributed(numpy_batches.eval_batches, source, spec, options)


def _psum(values):
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def _distributed(make: Callable[..., Iterator], source, spec, options):
    """Returns the batches of a function of `records.batches`, distributed over the replicas."""
    strategy = tf.distribute.get_strategy()
    dataset = functools.partial(tf_dataset.dataset, make, source, spec, **options)

    def for_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        total = context.num_replicas_in_sync
        count = total // context.num_input_pipelines
        return dataset(share=Share(total, context.input_pipeline_id * count, count))

    if strategy.num_replicas_in_sync == 1:
        return dataset()
    return strategy.distribute_datasets_from_function(for_pipeline)
