"""The JAX engine: functional steps, placed on the devices of all workers by `jax.sharding`.

Each device computes the gradients of its part of a batch (`jax.shard_map`), and they are summed over
all. Weights are on every device. Keras's variables hold them between two calls; inside a step they
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
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp
from jax.experimental import multihost_utils
from jax.interpreters import partial_eval
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from albert.errors import FlagError, WorkerLostError, first_line
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
        mesh = mesh_of(devices_of(values))
        level = log.level
        if mesh.size > 1:
            log.info("%s: %d replicas", kind or "jax", mesh.size)
        if not self.is_chief:
            log.setLevel(logging.WARNING)  # the chief logs the rest
        try:
            with self.on(mesh):
                yield
        finally:
            log.setLevel(level)

    @contextlib.contextmanager
    def on(self, mesh: Mesh) -> Iterator[None]:
        """Computes on these devices, inside the block."""
        before, self._mesh = self._mesh, mesh
        try:
            yield
        finally:
            self._mesh = before

    @property
    def mesh(self) -> Mesh:
        return self._mesh or mesh_of(jax.devices()[:1])

    @property
    def _local_devices(self) -> list:
        return [d for d in self.mesh.devices.flat if d.process_index == jax.process_index()]

    @property
    def num_replicas(self) -> int:
        return self.mesh.size

    @property
    def num_evaluating_replicas(self) -> int:
        return len(self._local_devices)

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

    @contextlib.contextmanager
    def errors(self, newest, *sources) -> Iterator[None]:
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            reason = re.search(r"(connection (?:closed|reset|refused)[^\n]{0,150})", str(error), re.I)
            if self.num_workers == 1 or not reason:
                raise
            atexit.register(_exit_at_once)
            raise WorkerLostError(f"another worker was lost ({reason[1]}); restart all workers to "
                                  f"resume from {newest() or 'the start'}") from error

    # --- Inside a step ---

    def grad_sums(self, loss, inputs_of, batch, loss_weights, scale, state, run):
        chosen, parts = {id(v) for v in state.trained.values()}, run.gradient_accumulation_steps

        def of_replica(values, batch):
            with keras.StatelessScope(list(zip(state.variables, values, strict=True))):
                trained = {name: weight.value for name, weight in state.trained.items()}
                others = [(v, v.value) for v in (*state.model.variables, *state.constants)
                          if id(v) not in chosen]
                weights = jax.lax.psum(loss_weights(batch), ROWS)
                of_batch = functools.partial(inputs_of, batch, jax.lax.axis_index(ROWS))

                def of_values(values, part, seed):
                    mapping = [(state.trained[name], x) for name, x in (trained | values).items()]
                    with keras.StatelessScope(state_mapping=[*others, *mapping]):
                        return loss(part, seed, weights, scale)

                names = _reached(of_values, trained, *of_batch(0))
                reached = {name: trained[name] for name in names}
                gradients = jax.grad(of_values, has_aux=True)
                if parts == 1:
                    return jax.lax.psum(gradients(reached, *of_batch(0)), ROWS)
                return jax.lax.psum(_added(lambda i: gradients(reached, *of_batch(i)), parts), ROWS)

        return jax.shard_map(
            of_replica, mesh=self.mesh, in_specs=(EVERYWHERE, BY_ROW), out_specs=EVERYWHERE,
            check_vma=False,
        )([variable.value for variable in state.variables], batch)

    def fold_in(self, key: np.ndarray, numbers: Sequence[Any]):
        key = jnp.asarray(key.view(np.uint32))
        for number in numbers:
            key = jax.random.fold_in(key, number)
        return key

    # --- Around a step ---

    def loops_layers(self, run) -> bool:
        # An H100 takes a quarter less time for unrolled layers, and compiles them as fast.
        return run.remat or jax.default_backend() != "gpu"

    def train_step(self, task, state, run, batches=None) -> "TrainStep":
        step = functools.partial(steps.train_step, task=task, state=state, run=run, engine=self)
        return TrainStep(step, state, self.mesh)

    def eval_step(self, task, model, batches=None) -> "EvalStep":
        return EvalStep(task, model, mesh_of(self._local_devices))

    def train_batches(self, source, spec, **options):
        count = len(self._local_devices)
        share = Share(self.num_replicas, jax.process_index() * count, count)
        parts = numpy_batches.train_batches(source, spec, **options, share=share)
        is_packed = self.num_workers > 1 and options.get("packed_rows")
        agree = self._max_of_workers if is_packed else None
        return _ahead(_placed(parts, count, self.mesh, options.get("micro_batches", 1), agree))

    def _max_of_workers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns the elementwise maximum over all workers, which must all call it."""
        return self.gather(np.array(numbers)).max(0)

    def eval_batches(self, source, spec, **options):
        return _EvalBatches(source, spec, options, mesh_of(self._local_devices))


def _reached(function: Callable[..., Any], values: Mapping[str, Any], *inputs: Any) -> list[str]:
    """Returns the names of the values that the first result of a function depends on."""
    program = jax.make_jaxpr(function)(values, *inputs).jaxpr
    is_first = [i == 0 for i in range(len(program.outvars))]
    _, is_used = partial_eval.dce_jaxpr(program, is_first)
    return [name for name, used in zip(sorted(values), is_used, strict=False) if used]


def _added(part: Callable[[Any], Any], count: int):
    """Returns part(0) + ... + part(count - 1), computed one after another to save memory."""
    def add(total, i):
        return jax.tree.map(jnp.add, total, part(i)), None

    # Zeros instead of the first part, so that the program contains the model once.
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, jnp.int32(0)))
    return jax.lax.scan(add, zeros, jnp.arange(count, dtype=jnp.int32))[0]


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

    Args:
      agree: given this process's numbers of packed sequences in several batches, returns the
        maximum over all processes.
    """
    place = functools.partial(
        jax.make_array_from_process_local_data, NamedSharding(mesh, BY_ROW)
    )
    batches = iter(lambda: list(itertools.islice(parts, count)), [])
    at_once = numpy_batches.PREFETCH if agree else 1
    while group := list(itertools.islice(batches, at_once)):
        sizes = [max(len(part["input_ids"]) for part in batch) for batch in group]
        for batch, size in zip(group, agree(sizes) if agree else sizes, strict=True):
            yield jax.tree.map(place, numpy_batches.joined(batch, int(size), micro_batches))


def _ahead(batches: Iterator) -> Iterator:
    """Yields the same batches, with a few being transferred to the devices ahead of time."""
    ready: list = []
    for batch in batches:
        ready.append(batch)
        if len(ready) > _AHEAD:
            yield ready.pop(0)
    yield from ready


class _EvalBatches:
    """Batches that can be iterated over repeatedly."""

    def __init__(self, source, spec, options, mesh: Mesh):
        share = Share(mesh.size, 0, mesh.size)
        self.parts = numpy_batches.EvalBatches(source, spec, **options, share=share)
        self.mesh = mesh

    def __iter__(self):
        return _ahead(_placed(iter(self.parts), self.mesh.size, self.mesh))


# --- Steps ---


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
    """Joins the other machines, each of which runs this command; ends at the first signal meanwhile.

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
        raise FlagError("--distribution_strategy=multi_worker: JAX finds no other machines (see "
                        f"docs/guides/accelerators.md): {first_line(error)}") from error


# --- Steps ---


class TrainStep:
    """A training step, called with (batch, whether to stop); see `Engine.train_step`."""

    def __init__(self, step, state, mesh: Mesh):
        self.step, self.variables = step, state.variables
        self._everywhere = NamedSharding(mesh, EVERYWHERE)
        # The old values' buffers are donated to the new ones: there is no memory for both.
        self._step = jax.jit(self._compute, donate_argnums=0, out_shardings=self._everywhere)
        local = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
        # Of each device: whether its worker was asked to stop.
        self._stop = [
            jax.make_array_from_process_local_data(
                NamedSharding(mesh, BY_ROW), np.full(len(local), stop, np.float32)
            ) for stop in (0, 1)
        ]

    def _compute(self, values, batch, stop):
        with keras.StatelessScope(list(zip(self.variables, values, strict=True))) as scope:
            row = self.step(batch, jnp.sum(stop))
        return [scope.get_current_value(v) for v in self.variables], row

    def lower(self, batch: Mapping[str, jax.ShapeDtypeStruct]):
        """Returns a step on batches of these shapes, ready to be compiled."""
        values = [
            jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=self._everywhere)
            for v in self.variables
        ]
        return self._step.lower(values, batch, self._stop[0])

    def __call__(self, batch, stop=np.float32(0)):
        values = [self._placed(variable.value) for variable in self.variables]
        values, row = self._step(values, batch, self._stop[int(stop)])
        for variable, value in zip(self.variables, values, strict=True):
            variable._value = value
        return row

    def _placed(self, value):
        if isinstance(value, jax.Array) and value.sharding == self._everywhere:
            return value
        host = np.asarray(value)
        return jax.make_array_from_callback(host.shape, self._everywhere, lambda at: host[at])


class EvalStep:
    """An evaluation step, called with a complete batch; see `Engine.eval_step`.

    Each batch shape is compiled on first use.
    """

    def __init__(self, task, model, mesh: Mesh):
        self.task, self.model, self.mesh = task, model, mesh
        self.variables = [*model.variables, *task.constants]
        self._placed: tuple[list, list] = ([], [])  # values as they are, and on the devices
        self._outputs = jax.jit(self._compute)

    def _compute(self, values, batch):
        def of_replica(values, batch):
            with keras.StatelessScope(list(zip(self.variables, values, strict=True))):
                *numbers, predictions = steps.eval_step(batch, self.task, self.model)
            return jax.lax.psum(numbers, ROWS), predictions

        numbers, predictions = jax.shard_map(
            of_replica, mesh=self.mesh, in_specs=(EVERYWHERE, BY_ROW),
            out_specs=(EVERYWHERE, BY_ROW), check_vma=False,
        )(values, batch)
        return *numbers, predictions

    def __call__(self, batch):
        values = [variable.value for variable in self.variables]
        seen, placed = self._placed
        if len(seen) != len(values) or any(a is not b for a, b in zip(seen, values, strict=True)):
            everywhere = NamedSharding(self.mesh, EVERYWHERE)
            placed = [jax.device_put(np.asarray(value), everywhere) for value in values]
            self._placed = values, placed
        batch = {
            name: jax.device_put(x, NamedSharding(self.mesh, BY_ROW)) for name, x in batch.items()
        }
        return self._outputs(placed, batch)
