"""Masked language modelling and sentence order (paper, sections 3.1 and 3.2).

Legend: B batch, L sequence, P predictions, V vocabulary.
"""

import dataclasses

import keras
import tensorflow as tf

from albert.config import AlbertConfig
from albert.modeling import AlbertForPreTraining, cross_entropy
from albert.records import FeatureSpec


@dataclasses.dataclass(frozen=True)
class PretrainingTask:
    """Loss = masked-LM loss + sentence-order loss, one to one."""

    max_seq_length: int  # L
    max_predictions_per_seq: int  # P
    name: str = "pretraining"
    best_metric: str = "masked_lm_accuracy"

    def feature_spec(self) -> FeatureSpec:
        length, predictions = self.max_seq_length, self.max_predictions_per_seq
        return FeatureSpec(
            {
                "input_ids": ("int64", length),
                "input_mask": ("int64", length),
                "segment_ids": ("int64", length),
                "masked_lm_positions": ("int64", predictions),
                "masked_lm_ids": ("int64", predictions),
                "masked_lm_weights": ("float32", predictions),
                # The name is BERT's; the label is the sentence order (1 = swapped).
                "next_sentence_labels": ("int64", 1),
            },
            row_length=length,
        )

    def build_model(self, config: AlbertConfig) -> keras.Model:
        return AlbertForPreTraining(config)

    def loss_weights(self, batch):
        # 1e-5 as in the original: a batch without any mask has loss 0.
        return {
            "masked_lm": tf.reduce_sum(batch["masked_lm_weights"]) + 1e-5,
            "sentence_order": tf.reduce_sum(tf.cast(batch["is_real_example"], tf.float32)),
        }

    def loss_sums(self, batch, outputs):
        masked_lm, sentence_order = _losses(batch, outputs)
        real = tf.cast(batch["is_real_example"], tf.float32)
        return {
            "masked_lm": tf.reduce_sum(masked_lm * batch["masked_lm_weights"]),
            "sentence_order": tf.reduce_sum(sentence_order * real),
        }

    def statistics(self, batch, outputs):
        masked_lm, sentence_order = _losses(batch, outputs)
        weights = batch["masked_lm_weights"]
        real = tf.cast(batch["is_real_example"], tf.float32)
        labels = batch["next_sentence_labels"][:, 0]

        def mean(values, weights):
            values = tf.cast(values, tf.float32)
            return tf.reduce_sum(values * weights), tf.reduce_sum(weights)

        def hits(logits, labels):
            return tf.argmax(logits, axis=-1, output_type=tf.int32) == labels

        return {
            "masked_lm_accuracy": mean(
                hits(outputs["prediction_logits"], batch["masked_lm_ids"]), weights
            ),
            "masked_lm_loss": mean(masked_lm, weights),
            "sentence_order_accuracy": mean(hits(outputs["sop_logits"], labels), real),
            "sentence_order_loss": mean(sentence_order, real),
        }

    def predictions(self, batch, outputs):
        return {}

    def score(self, predictions):
        return {}


def _losses(batch, outputs):
    """Returns the losses per masked position [B, P] and per sequence [B]."""
    return (
        cross_entropy(outputs["prediction_logits"], batch["masked_lm_ids"]),
        cross_entropy(outputs["sop_logits"], batch["next_sentence_labels"][:, 0]),
    )
