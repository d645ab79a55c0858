"""What stands on the encoder: heads of pretraining and of tasks, as Keras 3 layers.

Legend: B batch, L sequence, H hidden, E embedding, V vocabulary, P predictions,
C labels. As in `layers`, weights carry the names of a released checkpoint, and
only Keras is imported.
"""

import keras
from keras import ops

from albert.config import AlbertConfig
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.layers import dense_layer, get_activation, layer_norm, truncated_normal


class MaskedLmHead(keras.layers.Layer):
    """Vocabulary logits through the transposed word table (`cls/predictions`)."""

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


def label_weights(layer: keras.layers.Layer, labels: int, width: int, stddev: float):
    """Adds the released heads' `output_weights` [C, H] and `output_bias` [C]."""
    weights = layer.add_weight(
        shape=(labels, width), initializer=truncated_normal(stddev), name="output_weights"
    )
    return weights, layer.add_weight(shape=(labels,), initializer="zeros", name="output_bias")


def label_logits(x, output_weights, output_bias):
    """Returns x [..., H] times the transposed `output_weights` [C, H], plus bias: [..., C]."""
    return ops.matmul(x, ops.transpose(output_weights)) + output_bias


class LabelHead(keras.layers.Layer):
    """C logits of each vector: sentence order (`cls/seq_relationship`), spans (`cls/squad`)."""

    def __init__(self, config: AlbertConfig, num_labels: int, stddev: float, name: str):
        super().__init__(name=name)
        self.config = config
        self.num_labels = num_labels
        self.stddev = stddev

    def build(self, input_shape=None):
        self.output_weights, self.output_bias = label_weights(
            self, self.num_labels, self.config.hidden_size, self.stddev
        )

    def call(self, x):
        return label_logits(x, self.output_weights, self.output_bias)


class SpanStartHead(keras.layers.Layer):
    """One logit of each token for being the answer's first (`start_logits`, spec 4.4)."""

    def __init__(self, config: AlbertConfig, name: str = "start_logits"):
        super().__init__(name=name)
        self.config = config
        self.dense = dense_layer(1, config, "dense")

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))

    def call(self, sequence):
        return self.dense(sequence)[..., 0]  # [B, L]


class SpanEndHead(keras.layers.Layer):
    """Logits of each token for being the last, given first tokens (`end_logits`)."""

    def __init__(self, config: AlbertConfig, name: str = "end_logits"):
        super().__init__(name=name)
        self.config = config
        self.dense_0 = dense_layer(config.hidden_size, config, "dense_0")
        self.layer_norm = layer_norm("LayerNorm")
        self.dense_1 = dense_layer(1, config, "dense_1")

    def build(self, input_shape=None):
        width = self.config.hidden_size
        self.dense_0.build((None, 2 * width))
        self.layer_norm.build((None, width))
        self.dense_1.build((None, width))

    def call(self, sequence, starts):
        """Maps tokens [B, L, H] and K first tokens [B, K, H] to [B, K, L]."""
        width = self.config.hidden_size
        # dense_0 of each pair [token; start]: its halves apart, so that the
        # product over tokens is made once and not once per start.
        of_token = ops.matmul(sequence, self.dense_0.kernel[:width])[:, None]
        of_start = ops.matmul(starts, self.dense_0.kernel[width:])[:, :, None]
        x = ops.tanh(of_token + of_start + self.dense_0.bias)  # [B, K, L, H]
        return self.dense_1(self.layer_norm(x))[..., 0]


class AnswerClassHead(keras.layers.Layer):
    """One logit for having no answer (`answer_class`); its last layer has no bias."""

    def __init__(self, config: AlbertConfig, name: str = "answer_class"):
        super().__init__(name=name)
        self.config = config
        self.dense_0 = dense_layer(config.hidden_size, config, "dense_0", ops.tanh)
        self.dense_1 = keras.layers.Dense(
            1,
            use_bias=False,
            kernel_initializer=truncated_normal(config.initializer_range),
            name="dense_1",
        )

    def build(self, input_shape=None):
        width = self.config.hidden_size
        self.dense_0.build((None, 2 * width))
        self.dense_1.build((None, width))

    def call(self, start_feature, first_token, dropout: Dropout = NO_DROPOUT, rate: float = 0.0):
        x = self.dense_0(ops.concatenate([start_feature, first_token], axis=-1))  # [B, H]
        return self.dense_1(dropout(x, rate))[:, 0]
