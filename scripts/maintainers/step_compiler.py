"""Compiles a training step for the TPUs of a slice, on a machine that has none.

XLA's compiler for TPUs, in the package libtpu, needs no TPU: given a topology, it compiles a run's
step, and reports the memory of each device.
"""

import dataclasses
import math
import os
import re

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding

from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.optimization import OptimizerConfig
from albert.tasks.task import Task
from albert.training import jax_devices, jax_engine, steps
from albert.training.current_engine import current
from albert.training.run import RunConfig, TrainState

# Memory of a TPU that XLA can use, from data sheets.
_MEMORY_GIB = {"v3": 16, "v4": 30.75, "v5e": 15.75, "v5p": 95.74, "v6e": 31.25}
_COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_SHAPE = re.compile(r"\b(?:pred|[a-z]+(\d+))\[([\d,]*)\]")  # f32[16,8]
# Two forms of the compiler's message on the memory that it would have needed.
_TOO_LARGE = re.compile(
    r"(?:Used |required for HLO temporaries \()([\d.]+)([GMK])\)? (?:of|exceeds)\D+([\d.]+)([GMK])"
)
# Settings that the compiler reads when it starts, because it can't ask a TPU.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# The two cores of such a chip are one device, as for JAX on a real chip.
_OF_TWO_CORES = {"v4": {"chip_config_name": "megacore"}}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A device's memory for a step, in bytes."""

    rows: int  # sequences that a device computes at once
    capacity: float  # of a device
    needed: float  # arguments and temporaries
    arguments: float | None = None  # weights, moments and the batch; None: it does not fit
    temporaries: float | None = None  # peak of all else
    collectives: dict[str, dict[str, float]] | None = None  # {kind: count and MiB}; None: unknown

    @property
    def fits(self) -> bool:
        return self.arguments is not None


def devices_of(topology: str) -> list:
    """Returns the devices of a slice such as `v5e:4x4`.

    Raises:
      FlagError: libtpu knows no such slice.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in _NO_TPU.items()})
    error = FlagError(f"--topology={topology}: libtpu knows no such slice; examples: v4:2x2x1, "
                      "v5e:2x2, v5e:16x16, v5p:4x4x4, v6e:2x4")
    # The memory of other generations is unknown.
    if not re.fullmatch(r"(v4|v5e|v5p|v6e):\d+x\d+(x\d+)?", topology):
        raise error
    options = _OF_TWO_CORES.get(topology.partition(":")[0], {})
    try:
        return topologies.get_topology_desc(
            platform="tpu", topology_name=topology, **options
        ).devices
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as reason:
        raise error from reason


class StepCompiler:
    """Compiles steps of one model for one slice."""

    def __init__(
        self, task: Task, config: AlbertConfig, run: RunConfig, optimizer: OptimizerConfig,
        topology: str,
    ):
        """Raises a FlagError for an unknown topology, or a batch that it cannot share."""
        self.task, self.run = task, run
        self.mesh = jax_devices.mesh_of(devices_of(topology))
        self.capacity = _MEMORY_GIB[topology.partition(':')[0]] * 2**30
        with current().on(self.mesh):
            current().check_batch_size(run.train_batch_size, run.gradient_accumulation_steps)
        self.state = TrainState(task, config, run, optimizer)

    @property
    def rows(self) -> int:
        """Sequences that a device computes at once in the run's step."""
        return self.run.train_batch_size // self.mesh.size // self.run.gradient_accumulation_steps

    def compile(self, rows: int) -> Compiled:
        """Returns the memory of a step that computes `rows` sequences at once."""
        batch_size = rows * self.mesh.size * self.run.gradient_accumulation_steps
        with current().on(self.mesh):
            train_step = steps.compiled_step(self.task, self.state, self.run)
            lowered = train_step.lower(self._batch(batch_size))
        try:
            program = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if sizes := _TOO_LARGE.search(str(error)):
                return Compiled(rows, _size(*sizes.groups()[2:]), _size(*sizes.groups()[:2]))
            raise
        memory = program.memory_analysis()
        return Compiled(
            rows, self.capacity,
            memory.argument_size_in_bytes + memory.temp_size_in_bytes,
            memory.argument_size_in_bytes, memory.temp_size_in_bytes,
            _collectives(program),
        )

    def _batch(self, size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a batch without packing."""
        sharding = NamedSharding(self.mesh, jax_engine.BY_ROW)
        features = dict(self.task.feature_spec().features) | {"is_real_example": ("int64", None)}
        return {
            name: jax.ShapeDtypeStruct(
                (size,) if length is None else (size, length),
                np.float32 if dtype == "float32" else np.int32, sharding=sharding,
            )
            for name, (dtype, length) in features.items()
        }

    def largest(self, known: Compiled) -> Compiled | None:
        """Returns the largest micro-batch that fits, confirmed by the compiler; None if none does.

        Memory grows linearly: two compilations determine the line, a third one confirms the result.
        """
        other = self.compile(max(known.rows // 4, 1) if known.rows > 1 else 2)
        slope = max((known.needed - other.needed) / (known.rows - other.rows), 1.0)
        compiled, limit = known, math.inf
        for _ in range(4):
            rows = compiled.rows + int((compiled.capacity - compiled.needed) // slope)
            rows = min(rows, limit)
            rows = max(rows // 8 * 8 if rows >= 8 else rows, 1)
            compiled = self.compile(rows)
            if compiled.fits:
                return compiled
            limit = rows - 1
            if not limit:
                break
        return None


def _size(number: str, unit: str) -> float:
    return float(number) * 1024.0 ** (1 + "KMG".index(unit))


def _collectives(program) -> dict[str, dict[str, float]] | None:
    try:
        return collectives_of(program.as_text())
    except jax.errors.JaxRuntimeError:  # of some generations it cannot print the program
        return None


def collectives_of(program: str) -> dict[str, dict[str, float]]:
    """Returns {kind: count, MiB of the results} of the collective operations in a program."""
    collectives: dict[str, dict[str, float]] = {}
    for shapes, kind in _COLLECTIVE.findall(program):
        of_kind = collectives.setdefault(kind, {"count": 0, "mib": 0.0})
        of_kind["count"] += 1
        for bits, sizes in _SHAPE.findall(shapes):
            values = math.prod(map(int, filter(None, sizes.split(","))))
            of_kind["mib"] += values * int(bits or 8) / 8 / 2**20
    return collectives
