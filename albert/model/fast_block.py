"""A faster `encoder.AlbertBlock` for TensorFlow on CPUs.

Query, key and value are one product. Weights are cast and concatenated once in a call of the model,
not in each layer that uses them. Elementwise operations after a product are compiled by `islands`.

Legend: B batch, L sequence, T = B L, H hidden, I intermediate, N heads, D = H / N.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from albert.model import islands
from albert.model.attention import ATTENTION
from albert.model.dropout import Dropout
from albert.model.layers import has_gradients
from albert.model.row_layout import Mask

Tensors = Mapping[str, Any]


def fast_blocks(encoder) -> "FastBlocks | None":
    """Returns the fast blocks of an encoder, or None outside of `islands`."""
    return FastBlocks(encoder) if islands.are_live() else None


class FastBlocks:
    """The weights of an encoder's blocks as tensors, and the blocks' computation."""

    def __init__(self, encoder):
        self._config, self._attention = encoder.config, encoder.options.attn_implementation
        self._tensors = {
            block.path: tensors_of(block, encoder.compute_dtype)
            for blocks in encoder.groups for block in blocks
        }

    @property
    def values(self) -> list[Any]:
        """All tensors, for `holding`."""
        return tf.nest.flatten(self._tensors)

    @contextlib.contextmanager
    def holding(self, values: Sequence[Any]) -> Iterator[None]:
        """Uses `values` instead of these tensors inside the context, as in the body of a loop."""
        before = self._tensors
        self._tensors = tf.nest.pack_sequence_as(before, values)
        try:
            yield
        finally:
            self._tensors = before

    def remat(self, function: Callable) -> Callable:
        """Returns a function of hidden states that the backward pass recomputes."""
        def apply(hidden, *values):
            with self.holding(values):
                return function(hidden)

        return lambda hidden: keras.remat(apply)(hidden, *self.values)

    def apply(self, hidden, halves, mask: Mask, dropout: Dropout):
        """Applies the halves of two blocks to hidden states [B, L, H]."""
        attending, transforming = (self._tensors[block.path] for block in halves)
        hidden = attend(hidden, attending, self._config, self._attention, mask, dropout)
        return transform(hidden, transforming, self._config, dropout)


def tensors_of(block, dtype: str) -> Tensors:
    """Returns the weights of a block's halves: kernels in `dtype` and in float32, and vectors."""
    tensors: dict[str, Any] = {}

    def add(name: str, kernel, bias):
        # Gradients are taken for the second one, so that those of all layers are added in float32.
        tensors[name] = (kernel,) if kernel.dtype == dtype else (tf.cast(kernel, dtype), kernel)
        tensors[name + "_bias"] = bias

    def add_norm(name: str, norm):
        tensors[name] = tuple(tf.convert_to_tensor(w._value) for w in (norm.gamma, norm.beta))

    def dense(name: str, layer):
        add(name, *(tf.convert_to_tensor(w._value) for w in (layer._kernel, layer.bias)))

    if hasattr(block, "attention"):
        scale = 1.0 / math.sqrt(block.config.head_size)
        parts = [
            (tf.convert_to_tensor(layer._kernel._value), tf.convert_to_tensor(layer.bias._value))
            for layer in (block.attention.query, block.attention.key, block.attention.value)
        ]
        parts[0] = (parts[0][0] * scale, parts[0][1] * scale)
        add("qkv", *(tf.concat(same, -1) for same in zip(*parts, strict=True)))
        dense("projection", block.attention.projection)
        add_norm("attention_norm", block.attention_norm)
    if hasattr(block, "feed_forward"):
        dense("inner", block.feed_forward.inner)
        dense("outer", block.feed_forward.outer)
        add_norm("feed_forward_norm", block.feed_forward_norm)
    return tensors


def attend(hidden, weights: Tensors, config, attention: str, mask: Mask, dropout: Dropout):
    """Returns LayerNorm(hidden + attention(hidden)), [B, L, H]."""
    shape, heads = tf.shape(hidden), config.num_attention_heads
    tokens = tf.reshape(hidden, [-1, config.hidden_size])  # [T, H]
    joined = product(tokens, *weights["qkv"])  # [T, 3H]
    joined = add_bias(joined, weights["qkv_bias"])
    joined = tf.reshape(joined, [shape[0], shape[1], 3, heads, config.head_size])
    # The gradient of slices would be slow.
    query, key, value = tf.unstack(tf.transpose(joined, [2, 0, 3, 1, 4]))  # [B, N, L, D]
    context = ATTENTION[attention](
        query, key, value, mask, dropout, config.attention_probs_dropout_prob,
        config.max_position_embeddings,
    )
    context = tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, config.hidden_size])
    attended = islands.added_and_normalized(
        product(context, *weights["projection"]), weights["projection_bias"], tokens,
        *weights["attention_norm"], dropout, config.hidden_dropout_prob,
    )
    return tf.reshape(attended, shape)


def transform(hidden, weights: Tensors, config, dropout: Dropout):
    """Returns LayerNorm(hidden + feed_forward(hidden)), [B, L, H]."""
    tokens = tf.reshape(hidden, [-1, config.hidden_size])
    inner = islands.activated(
        product(tokens, *weights["inner"]), weights["inner_bias"], config.hidden_act
    )
    outer = islands.added_and_normalized(
        product(inner, *weights["outer"]), weights["outer_bias"], tokens,
        *weights["feed_forward_norm"], dropout, config.hidden_dropout_prob,
    )
    return tf.reshape(outer, tf.shape(hidden))


def product(x, kernel, float32_kernel=None):
    """Returns x [T, A] times the kernel [A, B]; the float32 kernel, if given, gets the gradient."""
    if float32_kernel is None or not has_gradients():
        return tf.matmul(x, kernel)

    @tf.custom_gradient
    def times(x, float32_kernel):
        def gradient(upstream):
            of_kernel = tf.matmul(x, upstream, transpose_a=True)
            return (
                tf.matmul(upstream, kernel, transpose_b=True), tf.cast(of_kernel, tf.float32)
            )

        return tf.matmul(x, kernel), gradient

    return times(x, float32_kernel)


def add_bias(x, bias):
    """Returns x [T, W] plus the bias [W], whose gradient is a product with ones."""

    def add(x, bias):
        total = tf.nn.bias_add(x, tf.cast(bias, x.dtype))
        return total, lambda upstream: (upstream, islands.sum_of_rows(upstream))

    return tf.custom_gradient(add)(x, bias) if has_gradients() else add(x, bias)[0]
