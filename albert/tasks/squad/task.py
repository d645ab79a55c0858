"""Answers as spans of a passage: SQuAD 1.1, and 2.0 with unanswerable questions.

Legend: B batch, L sequence, K and K2 beam sizes for first and last tokens.
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
from albert.tasks.squad.records import record_spec
from albert.tasks.task import Task, chosen, mean, real


@dataclasses.dataclass(frozen=True)
class SquadV1Task(Task):
    """Two logits per token; the loss is the mean of their cross-entropies over L positions."""

    max_seq_length: int  # L
    # Computes the official metrics from the predictions of all windows; None without known answers.
    scorer: Callable[[Mapping[str, np.ndarray]], dict[str, Any]] | None = None
    has_labels: bool = True
    name: str = "squad_v1"
    best_metric: str = "f1"
    statistic_names = ("end_accuracy", "start_accuracy")
    loss_terms = ("start", "end")
    predicted = ("start_logits", "end_logits")

    def for_evaluation(self) -> "SquadV1Task":
        """Returns the task for windows without labels, as in prediction."""
        return dataclasses.replace(self, has_labels=False)

    def feature_spec(self) -> FeatureSpec:
        return record_spec(self.max_seq_length, self.has_labels)

    def build_model(
        self, config: AlbertConfig, encoder_options: EncoderOptions = EncoderOptions()
    ) -> keras.Model:
        return AlbertForQuestionAnswering(config, encoder_options=encoder_options)

    def loss_weights(self, batch):
        weight = 2.0 * ops.sum(real(batch))
        return dict.fromkeys(self.loss_terms, weight) if self.has_labels else {}

    def loss_sums(self, batch, outputs):
        if not self.has_labels:
            return {}
        losses = self.losses(batch, outputs)
        return {term: ops.sum(losses[term] * real(batch)) for term in self.loss_terms}

    def statistics(self, batch, outputs):
        if not self.has_labels:
            return {}
        return {
            f"{part}_accuracy": mean(hits, real(batch))
            for part, hits in self.hits(batch, outputs).items()
        }

    def losses(self, batch, outputs) -> dict[str, Any]:
        """Returns each term of the loss, [B]."""
        return {
            part: cross_entropy(outputs[f"{part}_logits"], batch[f"{part}_positions"])
            for part in ("start", "end")
        }

    def hits(self, batch, outputs) -> dict[str, Any]:
        """Returns for start and end (and answerability) whether the prediction is correct, [B]."""
        return {
            part: chosen(outputs[f"{part}_logits"]) == batch[f"{part}_positions"]
            for part in ("start", "end")
        }

    def predictions(self, batch, outputs):
        answers = {name: batch[name] for name in ("unique_ids", "is_real_example")}
        for name in self.predicted:
            is_index = name.endswith("_index")
            answers[name] = outputs[name] if is_index else ops.cast(outputs[name], "float32")
        return answers

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return self.scorer(predictions) if self.scorer else {}


@dataclasses.dataclass(frozen=True)
class SquadV2Task(SquadV1Task):
    """First token, last token given the first, and answerability.

    loss = (CE(start) + CE(end)) / 2 + sigmoid CE(has no answer) / 2. The end is trained with the
    correct start. In windows without an answer, both are at [CLS].
    """

    name: str = "squad_v2"
    statistic_names = ("answerability_accuracy", *SquadV1Task.statistic_names)
    loss_terms = (*SquadV1Task.loss_terms, "answerability")
    predicted = ("start_top_log_probs", "end_top_log_probs", "cls_logits", "start_top_index",
                 "end_top_index")
    start_n_top: int = 5  # K
    end_n_top: int = 5  # K2
    dropout_prob: float = 0.1  # on the hidden layer of the answerability

    def feature_spec(self) -> FeatureSpec:
        # Padding cannot be an answer, so batches can be trimmed. In 1.1, it counts in the softmax.
        return dataclasses.replace(super().feature_spec(), row_length=self.max_seq_length)

    def build_model(
        self, config: AlbertConfig, encoder_options: EncoderOptions = EncoderOptions()
    ) -> keras.Model:
        return AlbertForBeamQuestionAnswering(
            config, self.start_n_top, self.end_n_top, self.dropout_prob,
            encoder_options=encoder_options,
        )

    def losses(self, batch, outputs):
        labels = ops.cast(batch["is_impossible"], "float32")
        logits = ops.cast(outputs["cls_logits"], "float32")
        missing = keras.losses.binary_crossentropy(
            labels[:, None], logits[:, None], from_logits=True
        )
        spans = {
            part: -_at(outputs[f"{part}_log_probs"], batch[f"{part}_positions"])
            for part in ("start", "end")
        }
        return spans | {"answerability": missing}

    def hits(self, batch, outputs):
        spans = {
            part: chosen(outputs[f"{part}_log_probs"]) == batch[f"{part}_positions"]
            for part in ("start", "end")
        }
        none = ops.cast(outputs["cls_logits"] > 0, "int32") == batch["is_impossible"]
        return spans | {"answerability": none}


def _at(values, positions):
    """Returns the value [B] at each row's position, of values [B, L]."""
    return ops.take_along_axis(values, positions[:, None], axis=1)[:, 0]
