"""A training step compiled for the TPUs of a slice, on a machine that has none.

XLA's compiler for TPUs lies in the package libtpu. It needs no TPU: it takes a topology, and
reports what each device of it would need. It compiles the step that a run would make.
"""

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding

from albert.config import AlbertConfig
from albert.engines import has_tpu_compiler
from albert.errors import FlagError
from albert.optimization import OptimizerConfig
from albert.tasks.task import Task
from albert.training import jax_devices, jax_engine, steps
from albert.training.current_engine import current
from albert.training.run_settings import RunConfig
from albert.training.train_state import TrainState

GIB = 1 << 30
# What a program may use of a chip's memory, by the generation: XLA's own numbers.
MEMORY = {
    "v4": 30.75 * GIB, "v5e": 15.75 * GIB, "v5p": 95.74 * GIB, "v6e": 31.25 * GIB,
}
EXAMPLES = "v4:2x2x1, v5e:2x2, v5e:16x16, v5p:4x4x4, v6e:2x4"
_COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_SHAPE = re.compile(r"\b(f32|bf16|f16|s32|u32|s8|u8|pred|s64|u64|f64)\[([\d,]*)\]")
_BYTES = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
# Two ways in which the compiler says how much it would have needed.
_TOO_LARGE = re.compile(
    r"(?:Used |required for HLO temporaries \()([\d.]+)([GMK])\)? (?:of|exceeds)\D+([\d.]+)([GMK])"
)
# Settings that the compiler reads when it starts, because it can't ask a TPU.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# The two cores of such a chip are one device, as they are for JAX on a real one.
_OF_TWO_CORES = {"v4": {"chip_config_name": "megacore"}}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What a device needs for a step; bytes."""

    rows: int  # that a device computes at once
    capacity: float  # of a device
    needed: float  # arguments and temporaries
    arguments: float | None = None  # weights, moments and the batch; None: it does not fit
    temporaries: float | None = None  # all else that a step holds at one time
    # (kind, how many, bytes of all); None: the compiler does not report it.
    collectives: tuple[tuple[str, int, int], ...] | None = None

    @property
    def fits(self) -> bool:
        return self.arguments is not None


def devices_of(topology: str) -> Sequence:
    """Returns the devices of a slice, as `v5e:4x4`.

    Raises:
      FlagError: libtpu is not installed, or knows no such slice.
    """
    if not has_tpu_compiler():
        raise FlagError("XLA's compiler for TPUs is not installed: install albert[jax-tpu]")
    os.environ.update({name: os.environ.get(name, value) for name, value in _NO_TPU.items()})
    if not re.fullmatch(r"v\d\w*:\d+x\d+(x\d+)?", topology):
        raise FlagError(f"--topology={topology}: give one as {EXAMPLES}")
    if generation_of(topology) not in MEMORY:
        raise FlagError(
            f"--topology={topology}: the generation must be one of {', '.join(MEMORY)}"
        )
    options = _OF_TWO_CORES.get(generation_of(topology), {})
    try:
        return topologies.get_topology_desc(
            platform="tpu", topology_name=topology, **options
        ).devices
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        raise FlagError(
            f"--topology={topology}: libtpu knows no such slice; it knows {EXAMPLES}, for example"
        ) from error


def generation_of(topology: str) -> str:
    """Returns v5e of v5e:4x4."""
    return topology.partition(":")[0]


class StepCompiler:
    """Compiles steps of one model for one slice."""

    def __init__(
        self, task: Task, config: AlbertConfig, run: RunConfig, optimizer: OptimizerConfig,
        topology: str,
    ):
        """Raises a FlagError for a topology that is not known, or a batch that it cannot share."""
        self.task, self.run = task, run
        self.mesh = jax_devices.mesh_of(devices_of(topology))
        self.capacity = MEMORY[generation_of(topology)]
        with self._scope() as engine:
            engine.check_batch_size(run.train_batch_size, run.gradient_accumulation_steps)
        self.state = TrainState(task, config, run, optimizer)

    @contextlib.contextmanager
    def _scope(self) -> Iterator[jax_engine.JaxEngine]:
        engine = current()
        with engine.on(self.mesh):
            yield engine

    @property
    def rows(self) -> int:
        """Rows that a device computes at once in the run's step."""
        return self.run.train_batch_size // self.mesh.size // self.run.gradient_accumulation_steps

    def compile(self, rows: int | None = None) -> Compiled:
        """Returns what the step needs with `rows` at once; by default the run's."""
        rows = rows or self.rows
        run = self.run
        batch_size = rows * self.mesh.size * run.gradient_accumulation_steps
        with self._scope():
            train_steps = steps.train_steps(self.task, self.state, run)
            lowered = train_steps.lower(self._batch(batch_size))
        try:
            program = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if found := _TOO_LARGE.search(str(error)):
                return Compiled(rows, _size(*found.groups()[2:]), _size(*found.groups()[:2]))
            raise
        memory = program.memory_analysis()
        return Compiled(
            rows, self.capacity,
            memory.argument_size_in_bytes + memory.temp_size_in_bytes,
            memory.argument_size_in_bytes, memory.temp_size_in_bytes,
            _collectives(program),
        )

    def _batch(self, size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a batch of unpacked rows."""
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
        """Returns the largest micro-batch that fits, which the compiler has confirmed.

        Memory grows along a line: two compilations give it, a third one confirms. None: not one
        row fits.
        """
        other = self.compile(max(known.rows // 4, 1) if known.rows > 1 else 2)
        slope = (known.needed - other.needed) / (known.rows - other.rows)
        rows = int(known.rows + (known.capacity - known.needed) / max(slope, 1.0))
        for _ in range(4):
            rows = max(_round_down(rows), 1)
            found = self.compile(rows)
            if found.fits:
                return found
            if rows == 1:
                return None
            over = (found.needed - found.capacity) / max(slope, 1.0)
            rows = min(rows - 1, int(rows - over))
        return None


def _round_down(rows: int) -> int:
    """Returns the number of rows, rounded down to a multiple of 8 if there are 8."""
    return rows // 8 * 8 if rows >= 8 else rows


def _size(number: str, unit: str) -> float:
    return float(number) * 1024.0 ** (1 + "KMG".index(unit))


def _collectives(program):
    try:
        return collectives_of(program.as_text())
    except jax.errors.JaxRuntimeError:  # of some generations it cannot print the program
        return None


def collectives_of(program: str) -> tuple[tuple[str, int, int], ...]:
    """Returns (kind, how many, bytes of their results) of the exchanges in a compiled program."""
    found: dict[str, list[int]] = {}
    for shapes, kind in _COLLECTIVE.findall(program):
        found.setdefault(kind, []).append(sum(
            _BYTES.get(dtype, 1) * math.prod(map(int, filter(None, sizes.split(","))))
            for dtype, sizes in _SHAPE.findall(shapes)
        ))
    return tuple((kind, len(sizes), sum(sizes)) for kind, sizes in sorted(found.items()))
