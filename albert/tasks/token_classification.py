"""A label for every word: named entities, word classes. The data is `conll`'s.

Legend: B batch, L sequence, C labels, N rows.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert.config import AlbertConfig
from albert.data.examples import FeatureSpec
from albert.formats.known_tasks import WORDS
from albert.model.encoder_options import EncoderOptions
from albert.modeling import AlbertForTokenClassification, cross_entropy
from albert.tasks import conll
from albert.tasks import entity_metrics as entities
from albert.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class TokenClassificationTask(Task):
    """Cross entropy over C labels at the first piece of each word; other places have no part."""

    max_seq_length: int  # L
    labels: tuple[str, ...]  # C, in the order of their ids
    has_entities: bool = True  # whether labels are of entities, which are then scored whole
    classifier_dropout: float = 0.1  # on the encoder's output in training
    name: str = WORDS
    statistic_names = ("eval_accuracy", "eval_loss")

    @property
    def best_metric(self) -> str:
        return "eval_f1" if self.has_entities else "eval_accuracy"

    def feature_spec(self) -> FeatureSpec:
        return conll.feature_spec(self.max_seq_length)

    def build_model(
        self, config: AlbertConfig, encoder_options: EncoderOptions = EncoderOptions()
    ) -> keras.Model:
        return AlbertForTokenClassification(
            config, len(self.labels), self.classifier_dropout, encoder_options=encoder_options
        )

    def loss_weights(self, batch):
        return {"loss": tf.reduce_sum(_labelled(batch))}

    def loss_sums(self, batch, outputs):
        return {"loss": self._loss_sum(batch, outputs)}

    def statistics(self, batch, outputs):
        labelled = _labelled(batch)
        weight = tf.reduce_sum(labelled)
        hits = tf.cast(_guesses(outputs) == batch["label_ids"] - 1, tf.float32)
        return {
            "eval_loss": (self._loss_sum(batch, outputs), weight),
            "eval_accuracy": (tf.reduce_sum(hits * labelled), weight),
        }

    def predictions(self, batch, outputs):
        return {
            "predicted_ids": self._full(_guesses(outputs)),
            "label_ids": self._full(batch["label_ids"]),
            "continues": batch["continues"],
            "is_real_example": batch["is_real_example"],
        }

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        if not self.has_entities:
            return {}
        gold, guessed = [], []
        guesses = self.predicted_labels(predictions)
        for continues, ids in zip(
            predictions["continues"], predictions["label_ids"], strict=True
        ):
            if not continues:
                gold.append([])
            gold[-1] += [self.labels[i - 1] for i in ids[ids > 0]]
        for sentence in gold:
            guessed.append(guesses[: len(sentence)])
            guesses = guesses[len(sentence) :]
        return entities.score(gold, guessed)

    def predicted_labels(self, predictions: Mapping[str, np.ndarray]) -> list[str]:
        """Returns the label of every word, one sentence after another.

        Args:
          predictions: `predicted_ids` and `label_ids` [N, L].
        """
        ids = predictions["predicted_ids"][predictions["label_ids"] > 0]
        return [self.labels[i] for i in ids]

    def _loss_sum(self, batch, outputs) -> tf.Tensor:
        labels = tf.maximum(batch["label_ids"] - 1, 0)
        return tf.reduce_sum(cross_entropy(outputs["logits"], labels) * _labelled(batch))

    def _full(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, L] of rows that were cut to what a batch needs."""
        missing = self.max_seq_length - tf.shape(x)[1]
        return tf.ensure_shape(tf.pad(x, [[0, 0], [0, missing]]), [None, self.max_seq_length])


def _labelled(batch) -> tf.Tensor:
    real = tf.cast(batch["is_real_example"], tf.float32)[:, None]
    return tf.cast(batch["label_ids"] > 0, tf.float32) * real  # [B, L]


def _guesses(outputs) -> tf.Tensor:
    return tf.argmax(outputs["logits"], axis=-1, output_type=tf.int32)  # [B, L]
