"""Classification and regression of texts and pairs of texts, and multiple choice.

Legend: B batch, L sequence, C outputs of the classifier (1 for regression) or choices.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from albert.config import AlbertConfig
from albert.model.encoder_options import EncoderOptions
from albert.modeling import AlbertForMultipleChoice, AlbertForSequenceClassification, cross_entropy
from albert.records import features
from albert.records.examples import FeatureSpec
from albert.tasks import glue_metrics as metrics
from albert.tasks.task import Task, chosen, mean, real


@dataclasses.dataclass(frozen=True)
class ClassificationTask(Task):
    """Cross-entropy over C labels, or the squared error of one number, in label deviations.

    For multi-label tasks, the mean of the labels' binary cross-entropies.
    """

    name: str
    max_seq_length: int  # L
    num_labels: int  # C
    is_regression: bool
    metric: str  # one of glue_metrics.METRICS
    best_metric: str
    classifier_dropout: float = 0.1  # on the pooled output in training, as in the original
    class_weights: tuple[float, ...] = ()  # of the labels in the training loss; none: all 1
    label_names: tuple[str, ...] = ()  # C; if given, the results include each label's F1
    threshold: float | None = None  # minimum probability of a label, for multi-label tasks
    # Of the labels of a regression. The model learns standardized values, whose size suits its
    # initialization and learning rate; predictions and scores are in the labels' units.
    label_mean: float = 0.0
    label_deviation: float = 1.0

    @property
    def statistic_names(self) -> tuple[str, ...]:
        is_single_label = not self.is_regression and self.threshold is None
        return ("eval_accuracy", "eval_loss") if is_single_label else ("eval_loss",)

    def feature_spec(self) -> FeatureSpec:
        num_flags = None if self.threshold is None else self.num_labels
        return features.classification_spec(
            self.max_seq_length, self.is_regression, num_flags=num_flags
        )

    def build_model(
        self, config: AlbertConfig, encoder_options: EncoderOptions = EncoderOptions()
    ) -> keras.Model:
        return AlbertForSequenceClassification(
            config, self.num_labels, self.classifier_dropout, encoder_options=encoder_options
        )

    def loss_weights(self, batch):
        return {"loss": ops.sum(self._row_weights(batch))}

    def loss_sums(self, batch, outputs):
        return {"loss": ops.sum(self._example_loss(batch, outputs) * self._row_weights(batch))}

    def _row_weights(self, batch):  # [B]
        if not self.class_weights:
            return real(batch)
        weights = ops.convert_to_tensor(self.class_weights, "float32")
        return real(batch) * ops.take(weights, batch["label_ids"], axis=0)

    def statistics(self, batch, outputs):
        loss = {"eval_loss": mean(self._example_loss(batch, outputs), real(batch))}
        if "eval_accuracy" not in self.statistic_names:
            return loss
        hits = chosen(outputs["logits"]) == batch["label_ids"]
        return loss | {"eval_accuracy": mean(hits, real(batch))}

    def predictions(self, batch, outputs):
        probabilities = self.probabilities(outputs["logits"])
        logits = probabilities if self.is_regression else ops.cast(outputs["logits"], "float32")
        return {
            "logits": logits,
            "probabilities": probabilities,
            "label_ids": batch["label_ids"],
            "is_real_example": batch["is_real_example"],
        }

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        labels, logits = predictions["label_ids"], predictions["logits"]
        if self.threshold is not None:
            predicted = predictions["probabilities"] >= self.threshold
            return metrics.of_several_labels(labels > 0, predicted, self.label_names)
        results = metrics.score(self.metric, labels, logits)
        if self.label_names:
            results |= metrics.f1_by_label(labels, np.argmax(logits, axis=-1), self.label_names)
        return results

    def probabilities(self, logits: Any) -> Any:
        """Returns [B, C] in float32; for a regression the value in the labels' units."""
        logits = ops.cast(logits, "float32")
        if self.threshold is not None:
            return ops.sigmoid(logits)
        if self.is_regression:
            return logits * self.label_deviation + self.label_mean
        return ops.softmax(logits, axis=-1)

    def _example_loss(self, batch, outputs) -> Any:  # [B]
        if self.is_regression:
            values = ops.cast(outputs["logits"], "float32")[:, 0]
            return ops.square(values - (batch["label_ids"] - self.label_mean) / self.label_deviation)
        if self.threshold is not None:
            return keras.losses.binary_crossentropy(
                ops.cast(batch["label_ids"], "float32"), ops.cast(outputs["logits"], "float32"),
                from_logits=True,
            )
        return cross_entropy(outputs["logits"], batch["label_ids"])


@dataclasses.dataclass(frozen=True)
class MultipleChoiceTask(ClassificationTask):
    """Cross-entropy over C choices. A record holds a sequence of length L for each choice."""

    # (name, number of examples) of each part of the evaluated file, in order.
    parts: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of_choices(cls, name: str, max_seq_length: int, num_choices: int, **fields):
        """Returns a task with C choices, scored by accuracy, as in RACE."""
        return cls(name, max_seq_length, num_choices, False, "accuracy", "eval_accuracy", **fields)

    def feature_spec(self) -> FeatureSpec:
        return features.classification_spec(self.max_seq_length, False, self.num_labels)

    def build_model(
        self, config: AlbertConfig, encoder_options: EncoderOptions = EncoderOptions()
    ) -> keras.Model:
        return AlbertForMultipleChoice(
            config, self.num_labels, self.classifier_dropout, encoder_options=encoder_options
        )

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Adds `eval_accuracy_<part>` if the parts' sizes sum up to the number of examples."""
        results, start = super().score(predictions), 0
        if len(predictions["label_ids"]) != sum(count for _, count in self.parts):
            return results
        for part, count in self.parts:
            rows = {n: values[start : start + count] for n, values in predictions.items()}
            results[f"eval_accuracy_{part}"] = super().score(rows)["eval_accuracy"]
            start += count
        return results
