"""Starts, restores and saves a run."""

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from albert import __version__
from albert.config import AlbertConfig
from albert.errors import TrainingDivergedError, some
from albert.formats import checkpoints, run_states
from albert.formats.weights import Weights
from albert.runtime.processor import bfloat16_gain
from albert.storage import files
from albert.tasks.task import Task
from albert.training import checkpoint_store
from albert.training.engine import Engine
from albert.training.history import History
from albert.training.run_settings import RunConfig
from albert.training.train_state import TrainState

log = logging.getLogger("albert")


@dataclasses.dataclass
class Checkpointer:
    """Reads and writes the checkpoints of a run: weights, optimizer and history."""

    engine: Engine
    task: Task
    config: AlbertConfig
    run: RunConfig
    state: TrainState
    history: History
    flags: Mapping[str, Any]
    newest: str | None = None  # prefix of the newest checkpoint

    def start(self, init: Weights | None, options: Mapping[str, bool]) -> None:
        """Initializes or restores everything, and logs from what.

        The first that applies: the newest undamaged checkpoint of output_dir; --init_checkpoint or
        a hub module (weights only; warm_start.json lists them); random weights.
        """
        run, state, is_chief = self.run, self.state, self.engine.is_chief
        newest = checkpoint_store.read_newest(
            run.output_dir, state.shapes(), self.config, self.task.name, may_rename=is_chief
        )
        if newest:
            self.newest, tensors, run_state = newest
            state.assign(tensors)
            self._restore(run_state)
            origin = f"resuming from {self.newest}"
        elif init is not None:
            shapes = {name: tuple(v.shape) for name, v in state.weights.items()}
            tensors, account = checkpoints.warm_start(shapes, init, may_lack_pooler=True, **options)
            state.assign(tensors)
            names = ("init_checkpoint", "albert_hub_module_handle")
            # What the user typed, not where it was unpacked or downloaded to on this machine.
            typed = next(filter(None, map(self.flags.get, names)), account["checkpoint"])
            account = account | {"checkpoint": typed}
            if is_chief:
                files.write_json(os.path.join(run.output_dir, "warm_start.json"), account)
            origin = checkpoints.describe_start(account)
        else:
            origin = "random weights"
        if is_chief:
            path = os.path.join(run.output_dir, "albert_config.json")
            with files.atomic_write(path) as stream:
                stream.write(self.config.to_json_string())
        size = sum(int(np.prod(v.shape)) for v in state.weights.values())
        log.info(
            "%s: %s parameters, steps %d to %d of %d sequences, %s, %s, into %s",
            self.task.name, f"{size:,}", state.step, run.last_step, run.train_batch_size,
            "compiled by XLA" if run.use_xla else "not compiled", run.mixed_precision,
            run.output_dir,
        )
        log.info("start: %s", origin)
        is_tensorflow = keras.backend.backend() == "tensorflow"  # JAX's products gain less
        if self.run.mixed_precision == "float32" and is_tensorflow and not self.engine.has_accelerator:
            if gain := bfloat16_gain():
                log.info("--mixed_precision=bfloat16 would be about %s times as fast here", gain)

    def _restore(self, run_state: Mapping[str, Any]) -> None:
        step = self.state.step
        if not run_state:  # a checkpoint of the original toolkit, or its JSON file was lost
            log.warning("no model.ckpt-%d.json: computing the data position from the step", step)
        self.history.restore(run_state, step)
        before = run_state.get("flags", {})
        # In other precisions the scale is 1, with which float16 cannot start.
        had_scale = before.get("mixed_precision", "float16") == "float16"
        if "loss_scale" in run_state and had_scale and self.run.mixed_precision == "float16":
            self.state.loss_scale.assign(run_state["loss_scale"])
        for name in sorted(set(before) & set(self.flags) - {"training_data"}):
            # NaN, the default of a flag, is null in the file.
            if not files.is_same_json(before[name], files.finite(self.flags[name])):
                log.warning("--%s changed from %s to %s since step %d", name, before[name],
                            self.flags[name], step)

    def save(self) -> None:
        """Saves a checkpoint.

        Raises:
          TrainingDivergedError: a weight is not finite; nothing was written.
        """
        run, state = self.run, self.state
        tensors = state.tensors()
        # At a high learning rate, a finite gradient can make a weight infinite.
        if bad := [name for name, value in tensors.items() if not np.isfinite(value).all()]:
            raise self.diverged(f"training diverged at step {state.step}: not finite: {some(bad)}. "
                                "A lower --learning_rate may help")
        if self.engine.is_chief:
            checkpoint_store.check_is_there(run.output_dir)
        else:
            self.newest = os.path.join(run.output_dir, f"model.ckpt-{state.step}")
            return
        run_state = self.history.state() | {
            "task": self.task.name,
            "architecture": type(state.model).__name__,
            "config": self.config.to_dict(),
            "loss_scale": state.loss_scale.numpy().tolist(),
            "flags": dict(self.flags),
            "version": __version__,
        }
        run_state["facts"] = run_states.metadata_of(run_state).to_dict()
        self.newest = checkpoint_store.save(
            run.output_dir, state.step, tensors, run_state, run.keep_checkpoint_max
        )
        log.info("saved %s", self.newest)

    def diverged(self, what: str) -> TrainingDivergedError:
        return TrainingDivergedError(f"{what}; last good checkpoint: {self.newest or 'none'}")
