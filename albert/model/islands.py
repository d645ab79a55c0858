"""Chains of elementwise operations that XLA compiles inside of TensorFlow's graph, on CPUs.

TensorFlow computes a chain operation by operation, each of which reads and writes all values; XLA
computes it in one pass. Matrix products stay outside, where oneDNN computes them. A chain is
defined by a formula in plain operations. Its gradient is compiled too, and stores only the chain's
inputs.

XLA compiles for one number of rows. So rows are padded to one of eight numbers in each octave, and
short chains aren't compiled.

Legend: T tokens, W width.
"""

import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from albert.model.dropout import dropped
from albert.model.layers import compiled_chains, normalized
from albert.runtime.workers import bfloat16_gain

MIN_ELEMENTS = 1 << 18  # of a chain: for fewer, compilation doesn't pay off


@contextlib.contextmanager
def islands(wanted: bool = True) -> Iterator[None]:
    """Compiles the chains of models that are traced inside the context, if there is no GPU."""
    is_live = wanted and not tf.config.list_logical_devices("GPU")
    chains = compiled_chains.set(sys.modules[__name__] if is_live else None)
    try:
        yield
    finally:
        compiled_chains.reset(chains)


class Island:
    """A chain: formula(*arrays [T, ...], *vectors [W]) -> array [T, ...].

    Args:
      num_rows: number of arguments with T rows.
      is_bias: whether the last vector is added to the first array, so that its gradient is the sum
        over the rows of that array's gradient.
    """

    def __init__(self, formula: Callable, num_rows: int, is_bias: bool = False):
        self._num_rows, self._is_bias, self._formula = num_rows, is_bias, formula
        self._forward, self._backward = _chain(formula), _chain(self._gradient)

    def __call__(self, *inputs):
        @tf.custom_gradient
        def chain(*inputs):
            rows, vectors = inputs[: self._num_rows], inputs[self._num_rows :]
            [output] = self._forward(rows, vectors, 1)

            def gradient(upstream):
                number = sum(x.dtype.is_floating for x in rows)
                gradients = list(self._backward((upstream, *rows), vectors, number))
                if self._is_bias:  # the sum over rows in float32, by a product, which is faster
                    ones = tf.ones((1, tf.shape(gradients[0])[0]), gradients[0].dtype)
                    gradients.append(tf.cast(tf.matmul(ones, gradients[0]), tf.float32)[0])
                return [gradients.pop(0) if x.dtype.is_floating else None for x in inputs]

            return output, gradient

        return chain(*map(tf.convert_to_tensor, inputs))

    def _gradient(self, upstream, *inputs):
        wanted = [x for x in inputs if x.dtype.is_floating][: -1 if self._is_bias else None]
        with tf.GradientTape() as tape:
            tape.watch(wanted)
            [output] = self._formula(*inputs)
        return tape.gradient(output, wanted, upstream)


def _chain(formula: Callable) -> Callable:
    """Returns a function (rows, vectors, num_rows) that computes formula(*rows, *vectors).

    The last of the rows is the largest. Of the results, the first `num_rows` have rows, too.
    """
    compiled = tf.function(formula, jit_compile=True, autograph=False)

    def run(rows: Sequence, vectors: Sequence, num_rows: int):
        shape = rows[-1].shape
        count = tf.shape(rows[0])[0] if shape[0] is None else shape[0]

        def by_xla():
            missing = padded_count(count) - count
            padded = [tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)]) for x in rows]
            results = compiled(*padded, *vectors)
            return [x[:count] for x in results[:num_rows]] + list(results[num_rows:])

        if shape.is_fully_defined():
            return by_xla() if shape.num_elements() >= MIN_ELEMENTS else formula(*rows, *vectors)
        return tf.cond(
            tf.size(rows[-1]) >= MIN_ELEMENTS, by_xla, lambda: list(formula(*rows, *vectors))
        )

    return run


def padded_count(count):
    """Returns the smallest of eight numbers in each octave that is at least `count`."""
    if isinstance(count, int):
        step = max((1 << (count - 1).bit_length()) // 16, 1)
    else:
        octave = tf.math.ceil(tf.math.log(tf.cast(count, tf.float64) - 0.25) / math.log(2.0))
        step = tf.maximum(tf.cast(2.0**octave, tf.int32) // 16, 1)
    return -(-count // step) * step


def _float32(*tensors):
    return [tf.cast(x, tf.float32) for x in tensors]


# --- The chains ---


def _by_rows(island: Island, arrays: Sequence, vectors: Sequence):
    """Returns island(*arrays [T, W], *vectors), for arrays [..., W]."""
    shape = tf.shape(arrays[0])
    rows = [tf.reshape(x, (-1, x.shape[-1])) for x in arrays]
    return tf.reshape(island(*rows, *map(tf.convert_to_tensor, vectors)), shape)


def activated(x, bias, activation: Callable):
    """Returns activation(x + bias), for x [..., W] and bias [W]."""
    return _by_rows(_activated(activation), [x], [bias])


@functools.cache
def _activated(activation: Callable) -> Island:
    def formula(x, bias):
        return [tf.cast(activation(tf.add(*_float32(x, bias))), x.dtype)]

    return Island(formula, 1, is_bias=True)


def added_and_normalized(x, bias, residual, gamma, beta, dropout, rate: float):
    """Returns LayerNorm(dropout(x + bias) + residual), for x and residual [..., W]."""
    rate = rate if dropout.is_live else 0.0
    bits = [dropout.bits(tf.shape(x))] if rate else []
    return _by_rows(_added_and_normalized(rate), [x, residual, *bits], [gamma, beta, bias])


@functools.cache
def _added_and_normalized(rate: float) -> Island:
    def formula(x, residual, *others):
        *bits, gamma, beta, bias = others
        total = tf.add(*_float32(x, bias))
        if rate:
            total = dropped(total, *bits, rate)
        total = total + tf.cast(residual, tf.float32)
        return [tf.cast(normalized(total, *_float32(gamma, beta)), x.dtype)]

    return Island(formula, 3 if rate else 2, is_bias=True)


def _loss(labels, logits):
    return [tf.nn.sparse_softmax_cross_entropy_with_logits(labels, *_float32(logits))]


cross_entropy = Island(_loss, 2)  # -log softmax(logits)[label], for labels [...] and logits [..., V]


@tf.custom_gradient
def softmax(scores):
    """Returns the softmax over the last axis, whose gradient needs the probabilities alone."""
    # In bfloat16, oneDNN computes in float32; other implementations are too coarse.
    is_exact = scores.dtype == tf.bfloat16 and os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "1"
    dtype = tf.bfloat16 if is_exact and bfloat16_gain() else tf.float32
    probabilities = tf.cast(tf.nn.softmax(tf.cast(scores, dtype)), scores.dtype)
    return probabilities, lambda upstream: _softmax_gradient((upstream, probabilities), (), 1)[0]


def _of_softmax(upstream, probabilities):
    upstream, x = _float32(upstream, probabilities)
    gradient = x * (upstream - tf.reduce_sum(x * upstream, axis=-1, keepdims=True))
    return [tf.cast(gradient, probabilities.dtype)]


_softmax_gradient = _chain(_of_softmax)
