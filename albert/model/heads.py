"""Heads for pretraining and for labels, and their loss.

Legend: B batch, H hidden, E embedding, V vocabulary, P predictions, C labels. As in `encoder`,
weights have the names of released checkpoints.
"""

from typing import Any

import keras
from keras import ops

from albert.config import AlbertConfig
from albert.model.layers import compiled_chains, dense_layer, get_activation, layer_norm, truncated_normal


class MaskedLmHead(keras.layers.Layer):
    """Logits of the vocabulary, by the transposed embedding table (`cls/predictions`)."""

    def __init__(self, config: AlbertConfig, name: str = "predictions"):
        super().__init__(name=name)
        self.config = config
        self.dense = dense_layer(
            config.embedding_size, config, "dense", get_activation(config.hidden_act)
        )
        self.layer_norm = layer_norm("LayerNorm")

    def build(self, input_shape=None):
        with keras.name_scope("transform"):
            self.dense.build((None, None, self.config.hidden_size))
            self.layer_norm.build((None, None, self.config.embedding_size))
        self.output_bias = self.add_weight(
            shape=(self.config.vocab_size,), initializer="zeros", name="output_bias"
        )

    def call(self, hidden, word_embeddings):
        x = self.layer_norm(self.dense(hidden))  # [B, P, E]
        table = ops.cast(word_embeddings, self.compute_dtype)
        return ops.matmul(x, ops.transpose(table)) + self.output_bias  # [B, P, V]


class LabelHead(keras.layers.Layer):
    """C logits of a vector: labels, sentence order (`cls/seq_relationship`), spans (`cls/squad`)."""

    def __init__(self, config: AlbertConfig, num_labels: int, stddev: float, name: str):
        super().__init__(name=name)
        self.config = config
        self.num_labels = num_labels
        self.stddev = stddev

    def build(self, input_shape=None):
        self.output_weights = self.add_weight(
            shape=(self.num_labels, self.config.hidden_size), initializer=truncated_normal(self.stddev),
            name="output_weights",
        )
        self.output_bias = self.add_weight(
            shape=(self.num_labels,), initializer="zeros", name="output_bias"
        )

    def call(self, x):
        """Returns x [..., H] times the transposed `output_weights` [C, H] plus the bias: [..., C]."""
        return ops.matmul(x, ops.transpose(self.output_weights)) + self.output_bias


def cross_entropy(logits: Any, labels: Any):
    """Returns -log softmax(logits)[label] for each of the `labels`, in float32."""
    if chains := compiled_chains.get():
        return chains.cross_entropy(labels, logits)
    return keras.losses.sparse_categorical_crossentropy(
        labels, ops.cast(logits, "float32"), from_logits=True
    )
