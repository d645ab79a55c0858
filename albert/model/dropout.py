"""Dropout that is a function of a seed and of the position in a forward pass."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

# An upper bound for a block, and for embeddings and head together.
_DRAWS_PER_BLOCK = 8


class Dropout(keras.random.SeedGenerator):
    """The dropout of one forward pass; without a seed, two integers, the identity.

    The n-th draw is a function of the seed and n. It is a SeedGenerator because Keras draws from
    nothing else, but without the state variable of Keras's own, which checkpoints would have to
    include, and which a compiled loop can't change.
    """

    def __init__(self, seed=None, first=0):  # the parent's would create a variable
        self._seed = seed
        self._count = first

    @property
    def is_live(self) -> bool:
        """Whether there is a seed."""
        return self._seed is not None

    def __call__(self, x, rate: float):
        if not (self.is_live and rate):
            return x
        if keras.backend.backend() != "tensorflow":
            return keras.random.dropout(x, rate, seed=self)
        return dropped(x, self.bits(ops.shape(x)), rate)

    def bits(self, shape):
        """Returns random uint16 numbers for the next draw, on TensorFlow.

        Keras draws floating-point numbers, which takes twice as long: half of a small model's step
        is dropout of attention probabilities.
        """
        import tensorflow as tf

        size = tf.reduce_prod(tf.cast(shape, tf.int64))  # of 128 x 64 x 512 x 512, int32 is negative
        drawn = tf.random.stateless_uniform([(size + 1) // 2], self.next(), None, None, tf.int32)
        return tf.reshape(tf.reshape(tf.bitcast(drawn, tf.uint16), [-1])[:size], shape)

    def next(self, ordered=True):
        """Returns the seed of the next draw, for Keras."""
        self._count += 1
        count = ops.cast(self._count, self._seed.dtype)
        return self._seed + ops.stack([count * 1000003, 0 * count])

    def of_block(self, index) -> "Dropout":
        """Returns the dropout of a block, given its number, an integer or a tensor."""
        return Dropout(self._seed, _DRAWS_PER_BLOCK * (index + 1))


NO_DROPOUT = Dropout()


def fold_in(key: np.ndarray, numbers: Sequence[Any]):
    """Returns a seed for `Dropout`, derived from a key of two integers, and numbers or tensors."""
    if keras.backend.backend() == "jax":
        import jax

        key = jax.numpy.asarray(key.view(np.uint32))
        for number in numbers:
            key = jax.random.fold_in(key, number)
        return key
    import tensorflow as tf

    for number in numbers:  # 32 bits: XLA supports no other seeds
        key = tf.random.experimental.stateless_fold_in(key, number)
    return tf.cast(tf.random.stateless_uniform([2], key, None, None, tf.int32), tf.int64)


def dropped(x, bits, rate: float):
    """Returns 0 for the fraction `rate` of x with the smallest random uint16 `bits`, else x / (1 - rate).

    The rate is rounded to a multiple of 2^-16.
    """
    threshold = min(round(rate * 65536), 65535)
    scaled = x * ops.cast(65536 / (65536 - threshold), x.dtype)
    return ops.where(bits >= ops.cast(threshold, "uint16"), scaled, ops.zeros_like(scaled))
