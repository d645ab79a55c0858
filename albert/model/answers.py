"""Heads for SQuAD 2.0: the first token of an answer, the last one given the first, or no answer.

Legend: B batch, L sequence, H hidden, K and K2 candidates for the first and the last token.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from albert.config import AlbertConfig
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.layers import dense_layer, layer_norm, truncated_normal
from albert.model.row_layout import RowLayout, gather_positions, segments_of


class SpanStartHead(keras.layers.Layer):
    """A logit for each token to be the first one of the answer (`start_logits`)."""

    def __init__(self, config: AlbertConfig, name: str = "start_logits"):
        super().__init__(name=name)
        self.config = config
        self.dense = dense_layer(1, config, "dense")

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))

    def call(self, sequence):
        return self.dense(sequence)[..., 0]  # [B, L]


class SpanEndHead(keras.layers.Layer):
    """Logits for each token to be the last one, given first tokens (`end_logits`)."""

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
        """Returns logits [B, K, L], given the states of tokens [B, L, H] and of starts [B, K, H]."""
        # dense_0 of each pair [token; start], in two halves, since the product with the tokens is
        # the same for each start.
        width, kernel = self.config.hidden_size, self.dense_0.kernel
        of_token, of_start = ops.matmul(sequence, kernel[:width]), ops.matmul(starts, kernel[width:])
        x = ops.tanh(of_token[:, None] + of_start[:, :, None] + self.dense_0.bias)  # [B, K, L, H]
        return self.dense_1(self.layer_norm(x))[..., 0]


class AnswerClassHead(keras.layers.Layer):
    """A logit for having no answer (`answer_class`); its last layer has no bias."""

    def __init__(self, config: AlbertConfig, name: str = "answer_class"):
        super().__init__(name=name)
        self.config = config
        self.dense_0 = dense_layer(config.hidden_size, config, "dense_0", ops.tanh)
        self.dense_1 = keras.layers.Dense(
            1, use_bias=False, kernel_initializer=truncated_normal(config.initializer_range),
            name="dense_1",
        )

    def build(self, input_shape=None):
        width = self.config.hidden_size
        self.dense_0.build((None, 2 * width))
        self.dense_1.build((None, width))

    def call(self, start_feature, first_token, dropout: Dropout = NO_DROPOUT, rate: float = 0.0):
        x = self.dense_0(ops.concatenate([start_feature, first_token], axis=-1))  # [B, H]
        return self.dense_1(dropout(x, rate))[:, 0]


def beam(end_head: SpanEndHead, sequence, start_log_probs, impossible, widths: tuple[int, int]):
    """Returns the K most likely first tokens [B, K], and for each of them K2 last ones [B, K * K2]."""
    start_top, starts = _top(start_log_probs, widths[0])
    end_top, ends = _top(end_log_probs(end_head, sequence, starts, impossible), widths[1])
    return {
        "start_top_log_probs": start_top,
        "start_top_index": starts,
        "end_top_log_probs": ops.reshape(end_top, (-1, widths[0] * widths[1])),
        "end_top_index": ops.reshape(ends, (-1, widths[0] * widths[1])),
    }


def end_log_probs(end_head: SpanEndHead, sequence, starts, impossible):
    """Returns log-probabilities of last tokens [B, K, L], given first tokens at `starts` [B, K]."""
    logits = end_head(sequence, gather_positions(sequence, starts))
    return ops.log_softmax(without(logits, impossible[:, None]))


def without(logits, impossible):
    """Returns float32 logits that are -1e30 at impossible positions, as in the original."""
    return ops.cast(logits, "float32") * (1.0 - impossible) - 1e30 * impossible


def p_mask(inputs: Mapping[str, Any], layout: RowLayout):
    """Returns `p_mask` [B, L] in float32; the default is that of SQuAD's windows."""
    if inputs.get("p_mask") is not None:
        return ops.cast(inputs["p_mask"], "float32")
    second = layout.every(ops.expand_dims(segments_of(inputs), -1))[..., 0]
    second = ops.cast(second, "float32") * ops.cast(layout.mask, "float32")
    following = ops.concatenate([second[:, 1:], ops.zeros_like(second[:, :1])], axis=1)
    is_first = ops.cast(ops.equal(ops.arange(ops.shape(second)[1]), 0), "float32")
    return 1.0 - ops.maximum(second * following, is_first)


def _top(scores, count: int):
    """Returns the highest scores [..., count] and their positions, 0 if there are too few."""
    length = ops.shape(scores)[-1]
    if scores.shape[-1] is None or scores.shape[-1] < count:
        padding = ops.repeat(ops.zeros_like(scores[..., :1]), count, axis=-1) - 2e30
        scores = ops.concatenate([scores, padding], axis=-1)
    best, positions = ops.top_k(scores, count)
    return best, ops.where(positions < length, positions, ops.zeros_like(positions))
