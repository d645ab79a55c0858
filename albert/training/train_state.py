"""The state that training steps change: model, optimizer and counters."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from albert import modeling
from albert.config import AlbertConfig
from albert.optimization import OptimizerConfig, create_optimizer
from albert.tasks.task import Task
from albert.training.run_settings import RunConfig, build_model


class TrainState:
    """Model, optimizer and step, each under its name in a checkpoint."""

    def __init__(
        self, task: Task, config: AlbertConfig, run: RunConfig, optimizer: OptimizerConfig
    ):
        self.model = build_model(task, config, run)
        self.weights = modeling.named_weights(self.model)
        self.trained = {
            name: weight for name, weight in self.weights.items()
            if weight.trainable and not (run.freeze_encoder and name.startswith("bert/"))
        }
        self.optimizer = create_optimizer(optimizer)
        # All variables must exist before a checkpoint is restored.
        self.optimizer.build(list(self.weights.values()))
        self.slots = self.optimizer.named_slots(self.weights)
        # Loss scale of half precision, whose gradients would underflow.
        half = run.mixed_precision == "float16"
        self.loss_scale = _number([2.0**15 if half else 1.0, 0.0])

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables that a step may change."""
        return [*self.model.variables, *self.optimizer.variables, self.loss_scale]

    @property
    def step(self) -> int:
        return int(ops.convert_to_numpy(self.optimizer.iterations))

    @property
    def named(self) -> dict[str, Any]:
        """The variables of a checkpoint without `global_step`: weights and moments."""
        return self.weights | self.slots

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(v.shape) for name, v in self.named.items()} | {"global_step": ()}

    def tensors(self) -> dict[str, np.ndarray]:
        """Returns the content of a checkpoint."""
        values = {name: variable.numpy() for name, variable in self.named.items()}
        return values | {"global_step": np.int64(self.step)}

    def assign(self, tensors: Mapping[str, np.ndarray]) -> None:
        named = self.named | {"global_step": self.optimizer.iterations}
        for name, value in tensors.items():
            named[name].assign(value)


def _number(values: list[float]) -> keras.Variable:
    """Returns a variable that is not a weight and has the same value on every replica."""
    return keras.Variable(
        np.array(values, np.float32), trainable=False, autocast=False,
        aggregation="only_first_replica",
    )
