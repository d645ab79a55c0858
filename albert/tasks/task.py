"""A `Task` is everything that the trainer knows about an experiment.

Legend: B batch.

A task gives a loss as a sum and a weight, not as a mean. The trainer divides by the weight of
the complete batch. So the result is right with padding rows, with several devices and with
gradient accumulation, and no task needs to know of them.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from albert.config import AlbertConfig
from albert.model.encoder_options import EncoderOptions
from albert.records.examples import FeatureSpec

Batch = Mapping[str, Any]
Outputs = Mapping[str, Any]


class Task(abc.ABC):
    """Everything specific to one experiment; the rest is in trainer.py.

    Methods that take a batch are traced by TensorFlow (without AutoGraph) or by JAX. So they use
    `keras.ops`, and no `if` or `for` in them may depend on the value of a tensor.
    """

    # Short name for logs and file names.
    name: str
    # Key of the evaluation results that picks the best checkpoint; larger is better.
    best_metric: str
    # Keys of what `statistics` returns for a batch of training.
    statistic_names: Sequence[str]

    def for_evaluation(self) -> "Task":
        """Returns the task for the records of an evaluation.

        If these records have no labels, its losses and statistics are empty.
        """
        return self

    @abc.abstractmethod
    def feature_spec(self) -> FeatureSpec:
        """Returns the features of a record, shared by writing and parsing."""

    @abc.abstractmethod
    def build_model(self, config: AlbertConfig, encoder_options: EncoderOptions) -> keras.Model:
        """Returns a built model that maps a batch to a dict of outputs."""

    @abc.abstractmethod
    def loss_weights(self, batch: Batch) -> dict[str, Any]:
        """Returns each loss term's divisor (a scalar) for this batch; needs no model."""

    @abc.abstractmethod
    def loss_sums(self, batch: Batch, outputs: Outputs) -> dict[str, Any]:
        """Returns each loss term's weighted sum; loss = sum over terms of sum / weight."""

    @abc.abstractmethod
    def statistics(self, batch: Batch, outputs: Outputs) -> dict[str, tuple[Any, Any]]:
        """Returns named (sum, weight) pairs; reported as sum of sums / sum of weights."""

    def predictions(self, batch: Batch, outputs: Outputs) -> dict[str, Any]:
        """Returns the tensors [B, ...] that `score` and prediction files need.

        If the last batch is padded, they include `is_real_example` [B].
        """
        return {}

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the official numbers of a data set. `predictions` are without padding rows."""
        return {}


# --- Sums over a batch; padding rows do not count ---


def real(batch) -> Any:
    """Returns [B]: 1.0 for an example, 0.0 for a row that only fills up the batch."""
    return ops.cast(batch["is_real_example"], "float32")


def mean(values: Any, weights: Any) -> tuple[Any, Any]:
    """Returns the weighted sum of values and the sum of the weights, as `Task.statistics` does.

    Args:
      values: numbers or truths, of the shape of the weights.
    """
    values = ops.cast(values, "float32")
    return ops.sum(values * weights), ops.sum(weights)


def chosen(scores: Any) -> Any:
    """Returns the class [...] with the highest of the scores [..., C]."""
    return ops.cast(ops.argmax(scores, axis=-1), "int32")
