"""One interface to everything that TensorFlow and JAX do differently.

The loop, the step, the optimizer and the tasks are written once, with `keras.ops`. An `Engine`
provides the rest: gradients, a loop over micro-batches, sums over devices, compilation, batches
and the devices. Keras's backend determines the engine.

A replica is a device with its part of a batch. A worker is a process; several workers train
together, mostly one per machine. The chief is the worker that writes the run's files.
"""

import abc
import contextlib
import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.errors import FlagError

if TYPE_CHECKING:
    from albert.records.examples import FeatureSpec
    from albert.records.record_files import RecordFiles
    from albert.tasks.task import Task

log = logging.getLogger("albert")

# Flags in which workers may differ, since they don't change results.
_PER_WORKER = ("--log_steps", "--tpu_name", "--tpu_zone", "--gcp_project", "--master")


class Engine(abc.ABC):
    """TensorFlow or JAX, as the trainer sees it."""

    always_compiles = False  # whether XLA compiles each shape of a batch, whatever the flags say

    # --- Devices and workers ---

    num_replicas = 1  # devices, of all workers, that share a training batch
    num_evaluating_replicas = 1  # of this process, that share an evaluation batch
    num_workers = 1
    is_chief = True  # whether this process writes the run's files
    has_accelerator = False
    device_name = ""  # the model of the accelerators, where it is known

    @abc.abstractmethod
    def scope(self, values) -> contextlib.AbstractContextManager[None]:
        """Uses the devices that the flags ask for; raises a FlagError if they don't exist."""

    def gather(self, value: np.ndarray) -> np.ndarray:
        """Returns the values [workers, ...] of all workers, which must all call it."""
        return np.asarray(value)[None]

    # --- Inside a step, while it is traced ---

    @abc.abstractmethod
    def grad_sums(
        self, loss: Callable[..., tuple[Any, Any]], inputs_of: Callable[..., tuple[Any, Any]],
        batch: Any, loss_weights: Callable[[Any], Any], scale: Any, state: Any, run: Any,
    ) -> tuple[dict[str, Any], Any]:
        """Returns ({name: gradient}, metrics), summed over micro-batches and replicas.

        Micro-batches are computed one after another, to save memory. Gradients are dense. Weights
        that the loss does not depend on are left out: zeros would let weight decay, and LAMB's
        scaling of updates, change them.

        Args:
          loss: function of a micro-batch, a seed, the sums of `loss_weights` over all replicas, and
            `scale`; returns (value to differentiate, metrics).
          inputs_of: function of a replica's batch, its number, and the number of a micro-batch;
            returns the micro-batch and its seed.
        """

    # --- Around a step ---

    @abc.abstractmethod
    def train_step(
        self, task: "Task", state: Any, run: Any, batches: Iterator[Any] | None = None
    ) -> Callable[[Any, np.float32], Any]:
        """Returns `steps.train_step`, compiled, as a function of (complete batch, 1 to stop or 0).

        It updates the `TrainState` and returns the metrics [columns], which the device may still be
        computing.

        Args:
          batches: the result of `train_batches`, if the batches are from there.
        """

    @abc.abstractmethod
    def eval_step(self, task: "Task", model: Any, batches: Iterable[Any] | None = None) -> Callable[..., Any]:
        """Returns `steps.eval_step`, compiled, as a function of a complete batch.

        The replicas of this process share the batch; of several workers, only the chief evaluates.

        Args:
          batches: the result of `eval_batches`, if the batches are from there.
        """

    @abc.abstractmethod
    def train_batches(
        self, source: "RecordFiles", spec: "FeatureSpec", **options
    ) -> Iterator[Any]:
        """Returns endless batches for `train_step`; options as in `records.batches`."""

    @abc.abstractmethod
    def eval_batches(
        self, source: "RecordFiles", spec: "FeatureSpec", **options
    ) -> Iterable[Any]:
        """Returns batches for `eval_step`, which can be iterated over repeatedly."""


def check_agreement(engine: Engine, values: Mapping[str, Any]) -> None:
    """Checks that all workers have the same flags, files and step. All must call it.

    Raises:
      FlagError: names the first difference, with the value of this worker.
    """
    if engine.num_workers == 1:
        return
    compared = {name: values[name] for name in sorted(values) if name not in _PER_WORKER}
    digests = [
        zlib.crc32(json.dumps(item, sort_keys=True, default=str).encode()) >> 1
        for item in compared.items()
    ]
    gathered = engine.gather(np.array(digests, np.int32))  # [workers, values]
    for (name, value), of_workers in zip(compared.items(), gathered.T, strict=True):
        if len(set(of_workers.tolist())) > 1:
            raise FlagError(f"workers differ in {name}: this one has {value!r}")
