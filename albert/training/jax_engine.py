"""The JAX engine: functional steps, placed on the devices of all workers by `jax.sharding`.

Each device computes the gradients of its part of a batch (`jax.shard_map`), which are summed over
all, and updates its copy of the weights. Keras's variables hold them between two calls; inside a step they
are arguments and results (`keras.StatelessScope`).
"""

import atexit
import contextlib
import functools
import itertools
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import keras
import numpy as np
from jax import numpy as jnp
from jax.experimental import multihost_utils
from jax.interpreters import partial_eval
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from albert.errors import FlagError, WorkerLostError, first_line
from albert.formats import checkpoints
from albert.records import batches as numpy_batches
from albert.records.data_order import Share
from albert.runtime import workers
from albert.training import steps
from albert.training.engine import Engine

log = logging.getLogger("albert")

ROWS = "rows"  # the axis of the mesh: devices share the rows of a batch
EVERYWHERE, BY_ROW = PartitionSpec(), PartitionSpec(ROWS)
_AHEAD = 2  # batches that are placed on the devices before a step needs them


class JaxEngine(Engine):
    """The devices of this process and of the other workers."""

    always_compiles = True

    def __init__(self):
        self._mesh: Mesh | None = None

    # --- Devices and workers ---

    @contextlib.contextmanager
    def scope(self, values) -> Iterator[None]:
        kind = values.distribution_strategy
        if values.num_virtual_devices > 1:
            jax.config.update("jax_num_cpu_devices", values.num_virtual_devices)
        if kind == "multi_worker" and not jax.distributed.is_initialized():
            join()
        before, self._mesh, level = self._mesh, mesh_of(devices_of(values)), log.level
        if self.mesh.size > 1:
            log.info("%s: %d replicas", kind or "jax", self.mesh.size)
        if not self.is_chief:
            log.setLevel(logging.WARNING)  # the chief logs the rest
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            reason = re.search(r"(connection (?:closed|reset|refused)[^\n]{0,150})", str(error), re.I)
            if self.num_workers == 1 or not reason:
                raise
            atexit.register(_exit_at_once)
            newest = ["the start", *checkpoints.list_steps(values.output_dir).values()][-1]
            raise WorkerLostError(f"another worker was lost ({reason[1]}); restart all workers to "
                                  f"resume from {newest}") from error
        finally:
            self._mesh = before
            log.setLevel(level)

    @property
    def mesh(self) -> Mesh:
        return self._mesh or mesh_of(jax.devices()[:1])

    @property
    def local_devices(self) -> list:
        return [d for d in self.mesh.devices.flat if d.process_index == jax.process_index()]

    @property
    def num_replicas(self) -> int:
        return self.mesh.size

    @property
    def num_evaluating_replicas(self) -> int:
        return len(self.local_devices)

    @property
    def num_workers(self) -> int:
        return jax.process_count()

    @property
    def is_chief(self) -> bool:
        return jax.process_index() == 0

    @property
    def has_accelerator(self) -> bool:
        return jax.default_backend() != "cpu"

    @property
    def device_name(self) -> str:
        return self.mesh.devices.flat[0].device_kind

    def gather(self, value: np.ndarray) -> np.ndarray:
        return np.asarray(multihost_utils.process_allgather(np.asarray(value)[None], tiled=True))

    # --- Inside a step ---

    def grad_sums(self, loss, inputs_of, batch, loss_weights, scale, state, run):
        values = [(variable, variable.value) for variable in state.variables]
        trained = {name: weight.value for name, weight in state.trained.items()}
        weights, parts = jax.lax.psum(loss_weights(batch), ROWS), run.gradient_accumulation_steps
        of_batch = functools.partial(inputs_of, batch, jax.lax.axis_index(ROWS))

        def of_weights(weights_by_name, part, seed):
            replaced = [(state.trained[name], value) for name, value in weights_by_name.items()]
            with keras.StatelessScope(state_mapping=[*values, *replaced]):
                return loss(part, seed, weights, scale)

        # Without the weights that the loss does not depend on.
        program = jax.make_jaxpr(of_weights)(trained, *of_batch(0)).jaxpr
        is_loss = [i == 0 for i in range(len(program.outvars))]
        _, is_used = partial_eval.dce_jaxpr(program, is_loss)
        trained = {name: trained[name] for name, used in zip(sorted(trained), is_used, strict=False) if used}
        gradients = jax.grad(of_weights, has_aux=True)
        if parts == 1:
            return jax.lax.psum(gradients(trained, *of_batch(0)), ROWS)

        def add(total, i):
            return jax.tree.map(jnp.add, total, gradients(trained, *of_batch(i))), None

        # Zeros instead of the first part, so that the program contains the model once.
        shapes = jax.eval_shape(lambda i: gradients(trained, *of_batch(i)), jnp.int32(0))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.psum(jax.lax.scan(add, zeros, jnp.arange(parts, dtype=jnp.int32))[0], ROWS)

    # --- Around a step ---

    def train_step(self, task, state, run, batches=None) -> "TrainStep":
        return TrainStep(self, task, state, run)

    def eval_step(self, task, model, batches=None):
        mesh, variables = mesh_of(self.local_devices), [*model.variables, *task.constants]
        everywhere, by_row = NamedSharding(mesh, EVERYWHERE), NamedSharding(mesh, BY_ROW)
        newest: list = []  # the variables' values
        placed: list = []  # those on the devices

        def of_replica(values, batch):
            with keras.StatelessScope(list(zip(variables, values, strict=True))):
                *numbers, predictions = steps.eval_step(batch, task, model)
            return *jax.lax.psum(numbers, ROWS), predictions

        step = jax.jit(jax.shard_map(  # which compiles each shape of a batch on first use
            of_replica, mesh=mesh, in_specs=(EVERYWHERE, BY_ROW),
            out_specs=(EVERYWHERE, EVERYWHERE, EVERYWHERE, BY_ROW), check_vma=False,
        ))

        def evaluate(batch):
            values = [variable.value for variable in variables]
            if list(map(id, values)) != list(map(id, newest)):
                newest[:] = values
                placed[:] = (jax.device_put(np.asarray(value), everywhere) for value in values)
            return step(placed, jax.device_put(dict(batch), by_row))

        return evaluate

    def train_batches(self, source, spec, **options):
        count = len(self.local_devices)
        share = Share(self.num_replicas, jax.process_index() * count, count)
        parts = numpy_batches.train_batches(source, spec, **options, share=share)
        is_packed = self.num_workers > 1 and options.get("packed_rows")
        agree = (lambda sizes: self.gather(np.array(sizes)).max(0)) if is_packed else None
        return _placed(parts, count, self.mesh, options.get("micro_batches", 1), agree)

    def eval_batches(self, source, spec, **options):
        return _EvalBatches(source, spec, options, mesh_of(self.local_devices))


def _exit_at_once() -> None:
    """Ends this process; JAX would wait for the lost worker first, and then die by a signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(WorkerLostError.exit_code)


# --- Batches ---


def _placed(
    parts: Iterator[Mapping[str, np.ndarray]],
    count: int,
    mesh: Mesh,
    micro_batches: int = 1,
    agree: Callable[[Sequence[int]], Sequence[int]] | None = None,
):
    """Yields complete batches on the devices, each made of `count` parts of this process.

    A few are transferred ahead of time.

    Args:
      agree: given this process's numbers of packed sequences in several batches, returns the
        maximum over all processes.
    """
    place = functools.partial(jax.make_array_from_process_local_data, NamedSharding(mesh, BY_ROW))
    batches, ready = iter(lambda: list(itertools.islice(parts, count)), []), []
    at_once = numpy_batches.PREFETCH if agree else 1
    while group := list(itertools.islice(batches, at_once)):
        sizes = [max(len(part["input_ids"]) for part in batch) for batch in group]
        for batch, size in zip(group, agree(sizes) if agree else sizes, strict=True):
            ready.append(jax.tree.map(place, numpy_batches.joined(batch, int(size), micro_batches)))
            if len(ready) > _AHEAD:
                yield ready.pop(0)
    yield from ready


class _EvalBatches:
    """Batches that can be iterated over repeatedly."""

    def __init__(self, source, spec, options, mesh: Mesh):
        self._make = functools.partial(numpy_batches.eval_batches, source, spec, **options)
        self._mesh = mesh

    def __iter__(self):
        count = self._mesh.size
        return _placed(self._make(share=Share(count, 0, count)), count, self._mesh)


# --- Devices ---


def mesh_of(devices: Iterable) -> Mesh:
    """Returns a one-dimensional mesh of devices; those of a worker are adjacent."""
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(ordered), (ROWS,))


def devices_of(values) -> list:
    """Returns the devices that the flags ask for; raises a FlagError if they don't exist."""
    if values.use_tpu and jax.default_backend() != "tpu":
        raise FlagError("--use_tpu: JAX finds no TPU on this machine: run the command on the TPU "
                        "machine itself, with albert-keras[jax-tpu] installed")
    if values.num_gpus == 0 and jax.default_backend() == "gpu":
        return _of_each_worker(jax.devices("cpu"), 1)
    devices = jax.devices()
    if values.num_gpus is not None:
        gpus = [device for device in devices if device.platform == "gpu"]
        local = sum(device.platform == "gpu" for device in jax.local_devices())
        if values.num_gpus > local:
            raise FlagError(f"--num_gpus={values.num_gpus}: this machine has {local}")
        devices = _of_each_worker(gpus, values.num_gpus) or devices
    return devices[:1] if values.distribution_strategy == "one_device" else devices


def _of_each_worker(devices: Iterable, count: int) -> list:
    """Returns the first `count` devices of each process."""
    by_worker: dict[int, list] = {}
    for device in sorted(devices, key=lambda device: device.id):
        by_worker.setdefault(device.process_index, []).append(device)
    return [device for of_worker in by_worker.values() for device in of_worker[:count]]


def join() -> None:
    """Joins the other machines, each of which runs this command; ends at the first signal.

    JAX finds those of a TPU slice, Slurm, MPI and Kubernetes. Others set JAX_COORDINATOR_ADDRESS (host
    and port of the first one), JAX_NUM_PROCESSES and JAX_PROCESS_ID.

    Raises:
      FlagError: it finds none.
    """
    try:
        count, number = (
            int(os.environ[name]) if name in os.environ else None
            for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
        )
        # It waits in C++, where Python's handlers of signals do not run.
        with workers.on_signals(signal.SIG_DFL):
            jax.distributed.initialize(num_processes=count, process_id=number)
    except (ValueError, RuntimeError) as error:
        raise FlagError("--distribution_strategy=multi_worker: set JAX_COORDINATOR_ADDRESS, "
                        f"JAX_NUM_PROCESSES and JAX_PROCESS_ID: {first_line(error)}") from error


# --- Steps ---


class TrainStep:
    """A training step, called with (batch, whether to stop); see `Engine.train_step`."""

    def __init__(self, engine: JaxEngine, task, state, run):
        self._variables, mesh = state.variables, engine.mesh
        everywhere, by_row = NamedSharding(mesh, EVERYWHERE), NamedSharding(mesh, BY_ROW)
        for variable in self._variables:
            host = np.asarray(variable.value)
            variable._value = jax.make_array_from_callback(host.shape, everywhere, host.__getitem__)
        # Of each device: whether its worker was asked to stop.
        count = len(engine.local_devices)
        self._stop = [
            jax.make_array_from_process_local_data(by_row, np.full(count, stop, np.float32))
            for stop in (0, 1)
        ]

        def of_replica(values, batch, stop):
            with keras.StatelessScope(list(zip(state.variables, values, strict=True))) as scope:
                row = steps.train_step(batch, jax.lax.psum(stop[0], ROWS), task, state, run, engine)
            return [scope.get_current_value(variable) for variable in state.variables], row

        step = jax.shard_map(of_replica, mesh=mesh, in_specs=(EVERYWHERE, BY_ROW, BY_ROW),
                             out_specs=EVERYWHERE, check_vma=False)
        # The old values' buffers are donated to the new ones: there is no memory for both.
        self._step = jax.jit(step, donate_argnums=0)

    def lower(self, batch: Mapping[str, jax.ShapeDtypeStruct]):
        """Returns a step on batches of these shapes, ready to be compiled."""
        return self._step.lower([variable.value for variable in self._variables], batch, self._stop[0])

    def __call__(self, batch, stop=np.float32(0)):
        values = [variable.value for variable in self._variables]
        values, row = self._step(values, batch, self._stop[int(stop)])
        for variable, value in zip(self._variables, values, strict=True):
            variable._value = value
        return row
