"""Answers as spans of a passage: SQuAD 1.1, and 2.0 with questions that have none (spec 4.3, 4.4).

Legend: B batch, L sequence, K and K2 first and last tokens kept.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from albert.config import AlbertConfig
from albert.model.encoder_options import EncoderOptions
from albert.modeling import (
    AlbertForBeamQuestionAnswering,
    AlbertForQuestionAnswering,
    cross_entropy,
)
from albert.records.examples import FeatureSpec
from albert.tasks.batch_sums import chosen, mean, real
from albert.tasks.squad.records import record_spec
from albert.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class SquadV1Task(Task):
    """Two logits of each token; the loss is the mean of their cross entropies over L positions."""

    max_seq_length: int  # L
    # From the predictions of all windows to the official numbers; None without known answers.
    scorer: Callable[[Mapping[str, np.ndarray]], dict[str, Any]] | None = None
    has_labels: bool = True
    name: str = "squad_v1"
    best_metric: str = "f1"
    statistic_names = ("end_accuracy", "start_accuracy")

    def for_evaluation(self) -> "SquadV1Task":
        """Returns the task over windows without labels, as there are for prediction."""
        return dataclasses.replace(self, has_labels=False)

    def feature_spec(self) -> FeatureSpec:
        return record_spec(self.max_seq_length, self.has_labels)

    def build_model(
        self, config: AlbertConfig, encoder_options: EncoderOptions = EncoderOptions()
    ) -> keras.Model:
        return AlbertForQuestionAnswering(config, encoder_options=encoder_options)

    def loss_weights(self, batch):
        if not self.has_labels:
            return {}
        count = ops.sum(real(batch))
        return {"start": 2.0 * count, "end": 2.0 * count}

    def loss_sums(self, batch, outputs):
        if not self.has_labels:
            return {}
        return {
            part: ops.sum(
                cross_entropy(outputs[f"{part}_logits"], batch[f"{part}_positions"]) * real(batch)
            )
            for part in ("start", "end")
        }

    def statistics(self, batch, outputs):
        if not self.has_labels:
            return {}
        return _accuracies(batch, outputs["start_logits"], outputs["end_logits"])

    def predictions(self, batch, outputs):
        names = ("start_logits", "end_logits")
        return _identity(batch) | {n: ops.cast(outputs[n], "float32") for n in names}

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return self.scorer(predictions) if self.scorer else {}


@dataclasses.dataclass(frozen=True)
class SquadV2Task(SquadV1Task):
    """First tokens, last tokens given the first, and answerability.

    loss = (CE(start) + CE(end)) / 2 + sigmoid CE(has no answer) / 2. The end is learned for the
    right start. In windows without an answer, both are at [CLS].
    """

    name: str = "squad_v2"
    statistic_names = ("answerability_accuracy", *SquadV1Task.statistic_names)
    start_n_top: int = 5  # K
    end_n_top: int = 5  # K2
    dropout_prob: float = 0.1  # on the hidden layer of the answerability

    def feature_spec(self) -> FeatureSpec:
        # Here padding cannot be an answer, so batches can be shortened. In 1.1 padding counts in
        # the softmax.
        return dataclasses.replace(super().feature_spec(), row_length=self.max_seq_length)

    def build_model(
        self, config: AlbertConfig, encoder_options: EncoderOptions = EncoderOptions()
    ) -> keras.Model:
        return AlbertForBeamQuestionAnswering(
            config, self.start_n_top, self.end_n_top, self.dropout_prob,
            encoder_options=encoder_options,
        )

    def loss_weights(self, batch):
        if not self.has_labels:
            return {}
        return super().loss_weights(batch) | {"answerability": 2.0 * ops.sum(real(batch))}

    def loss_sums(self, batch, outputs):
        if not self.has_labels:
            return {}
        sums = {
            part: -ops.sum(
                _at(outputs[f"{part}_log_probs"], batch[f"{part}_positions"]) * real(batch)
            )
            for part in ("start", "end")
        }
        labels = ops.cast(batch["is_impossible"], "float32")
        logits = ops.cast(outputs["cls_logits"], "float32")
        missing = keras.losses.binary_crossentropy(
            labels[:, None], logits[:, None], from_logits=True
        )
        return sums | {"answerability": ops.sum(missing * real(batch))}

    def statistics(self, batch, outputs):
        if not self.has_labels:
            return {}
        hits = ops.cast(outputs["cls_logits"] > 0, "int32") == batch["is_impossible"]
        spans = _accuracies(batch, outputs["start_log_probs"], outputs["end_log_probs"])
        return spans | {"answerability_accuracy": mean(hits, real(batch))}

    def predictions(self, batch, outputs):
        names = ("start_top_log_probs", "end_top_log_probs", "cls_logits")
        indices = ("start_top_index", "end_top_index")
        return (
            _identity(batch)
            | {n: ops.cast(outputs[n], "float32") for n in names}
            | {n: outputs[n] for n in indices}
        )


def _at(values, positions):
    """Returns the value [B] at each row's position, of values [B, L]."""
    return ops.take_along_axis(values, positions[:, None], axis=1)[:, 0]


def _identity(batch) -> dict[str, Any]:
    return {"unique_ids": batch["unique_ids"], "is_real_example": batch["is_real_example"]}


def _accuracies(batch, start, end):
    """Returns the share of windows whose likeliest first and last tokens are the gold ones."""
    return {
        f"{part}_accuracy": mean(chosen(scores) == batch[f"{part}_positions"], real(batch))
        for part, scores in (("start", start), ("end", end))
    }
