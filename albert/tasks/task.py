"""The one seam: a `Task` is all that the trainer knows of an experiment.

Legend: B batch.

A loss is given as a sum and a weight, not as a mean: the trainer divides by
the weight of the whole global batch. That makes padding rows, several
replicas and gradient accumulation correct without any task knowing of them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from albert.config import AlbertConfig
    from albert.data.records import FeatureSpec

    Batch = Mapping[str, tf.Tensor]
    Outputs = Mapping[str, tf.Tensor]


class Task(Protocol):
    """What distinguishes one experiment from another; everything else is trainer.py.

    What takes a batch is traced as a graph, without AutoGraph: no Python statement in it may
    depend on a tensor's value.
    """

    # Short name for logs and file names.
    name: str
    # Key of the evaluation results that picks the best checkpoint; larger is better.
    best_metric: str

    def feature_spec(self) -> "FeatureSpec":
        """Returns the features of a record, shared by writing and parsing."""

    def build_model(self, config: "AlbertConfig") -> "keras.Model":
        """Returns a built model that maps a batch to a dict of outputs."""

    def loss_weights(self, batch: "Batch") -> dict[str, "tf.Tensor"]:
        """Returns each loss term's divisor (a scalar) for this batch; needs no model."""

    def loss_sums(self, batch: "Batch", outputs: "Outputs") -> dict[str, "tf.Tensor"]:
        """Returns each loss term's weighted sum; loss = sum over terms of sum / weight."""

    def statistics(
        self, batch: "Batch", outputs: "Outputs"
    ) -> dict[str, tuple["tf.Tensor", "tf.Tensor"]]:
        """Returns named (sum, weight) pairs; reported as sum of sums / sum of weights."""

    def predictions(self, batch: "Batch", outputs: "Outputs") -> dict[str, "tf.Tensor"]:
        """Returns tensors [B, ...] that `score` and prediction files need; may be empty.

        Where the last batch is padded, the row weight `is_real_example` [B] is among them.
        """

    def score(self, predictions: Mapping[str, "np.ndarray"]) -> dict[str, Any]:
        """Returns the official numbers for the real rows of a whole data set; may be empty."""

    # And, where the records of an evaluation differ from those of training:
    # for_evaluation() -> Task, whose losses and statistics may be empty.
