"""The interface of a task to the trainer, and to the commands that fine-tune.

A task can be made before Keras is imported, so that a command checks its data first.

Legend: B batch.

In a batch of packed texts (`RunConfig.pack_rows`), `input_ids`, `input_mask` and `segment_ids` have
fewer rows than B; labels, weights and the model's outputs have B.

A task returns a loss as a sum and a weight, not as a mean. The trainer divides by the weight of
the complete batch, so that results are correct with padding examples, several devices and gradient
accumulation, of which tasks know nothing.
"""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.config import AlbertConfig
from albert.engines import LazyModule
from albert.formats.metadata import Metadata, settings_among
from albert.records.examples import FeatureSpec
from albert.tokenization import FullTokenizer, TextSettings

if TYPE_CHECKING:
    import keras

ops = LazyModule("keras.ops")

Batch = Mapping[str, Any]
Outputs = Mapping[str, Any]


class Task(abc.ABC):
    """Everything specific to a task; the rest is in `albert.training`.

    Methods that take a batch are traced by TensorFlow (without AutoGraph) or by JAX. So they use
    `keras.ops`, and no `if` or `for` in them may depend on the value of a tensor.
    """

    name: str  # for logs and file names
    best_metric: str  # key of the evaluation results that decides on the best checkpoint; maximized
    statistic_names: Sequence[str]  # keys of `statistics` in training
    constants: Sequence[Any] = ()  # variables besides the model's that `outputs` reads

    def for_evaluation(self) -> "Task":
        """Returns the task for evaluation records.

        Without labels in the records, its losses and statistics are empty.
        """
        return self

    def metadata(self, flags: Mapping[str, Any]) -> Metadata:
        """Returns what is known of a model that a run with these flags trains, but its class."""
        lower = flags.get("do_lower_case")
        return Metadata(
            task=self.name, max_seq_length=flags.get("max_seq_length"), pooling=flags.get("pooling"),
            text=None if lower is None else TextSettings(lower), settings=settings_among(flags),
        )

    @abc.abstractmethod
    def feature_spec(self) -> FeatureSpec:
        """Returns the features of a record, for writing and parsing."""

    @abc.abstractmethod
    def build_model(self, config: AlbertConfig, **options: Any) -> "keras.Model":
        """Returns a built model that maps a batch to a dict of outputs.

        Args:
          options: of the model, such as `encoder_options`.
        """

    def outputs(self, model: "keras.Model", batch: Batch, **options: Any) -> Outputs:
        """Returns the outputs of a batch; options are arguments of the model's call."""
        return model.of_batch(batch, **options)

    @abc.abstractmethod
    def loss_weights(self, batch: Batch) -> dict[str, Any]:
        """Returns each loss term's divisor (a scalar) for this batch."""

    @abc.abstractmethod
    def loss_sums(self, batch: Batch, outputs: Outputs) -> dict[str, Any]:
        """Returns each loss term's weighted sum; loss = sum over terms of sum / weight."""

    @abc.abstractmethod
    def statistics(self, batch: Batch, outputs: Outputs) -> dict[str, tuple[Any, Any]]:
        """Returns named (sum, weight) pairs, whose totals' ratio is reported."""

    def predictions(self, batch: Batch, outputs: Outputs) -> dict[str, Any]:
        """Returns the tensors [B, ...] that `score` and prediction files need.

        If the last batch is padded, they include `is_real_example` [B].
        """
        return {}

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the official metrics of a data set, given `predictions` without padding."""
        return {}

    # --- Only for fine-tuning, on examples that were read from files ---

    untrained_weights: Sequence[str] = ()  # that a run does not take over from what it starts from

    def rows(
        self, examples: Sequence[Any], tokenizer: FullTokenizer, split: str
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the records of the examples of train, dev or test."""
        raise NotImplementedError

    def scoring(self, examples: Sequence[Any]) -> "Task":
        """Returns the task that scores the predictions of these examples."""
        return self

    def write_predictions(
        self, examples: Sequence[Any], predictions: Mapping[str, np.ndarray], directory: str,
        origin: str,
    ) -> list[str]:
        """Publishes the predictions of the examples; returns the paths of the files.

        Args:
          origin: the checkpoint that they are from.
        """
        raise NotImplementedError


# --- Sums over a batch, without padding examples ---


def real(batch) -> Any:
    """Returns [B]: 1.0 for an example, 0.0 for padding of the batch."""
    return ops.cast(batch["is_real_example"], "float32")


def mean(values: Any, weights: Any) -> tuple[Any, Any]:
    """Returns the weighted sum of values (numbers or booleans) and the sum of the weights."""
    values = ops.cast(values, "float32")
    return ops.sum(values * weights), ops.sum(weights)


def chosen(scores: Any) -> Any:
    """Returns the class [...] with the highest of the scores [..., C]."""
    import keras

    if keras.backend.backend() == "tensorflow":  # where argmax takes three times as long
        return ops.top_k(scores, 1)[1][..., 0]
    return ops.cast(ops.argmax(scores, axis=-1), "int32")
