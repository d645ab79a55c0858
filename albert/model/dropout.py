"""Dropout that is a function of a seed and of where in a forward pass it falls."""

import keras
from keras import ops

# More than a block makes, or embeddings and head together.
_DRAWS_PER_BLOCK = 8


class Dropout(keras.random.SeedGenerator):
    """The dropout of one forward pass; without a seed (two integers) it is the identity.

    Its n-th draw is a function of the seed and n. Keras draws only from a SeedGenerator;
    the ordinary one keeps its state in a variable, which a checkpoint would have to carry
    and which may not change inside a compiled loop.
    """

    def __init__(self, seed=None, first=0, part: int = 0):  # the parent's creates the variable
        self._seed = seed
        self._start = first, part
        self._count = first

    @property
    def is_live(self) -> bool:
        """Whether it is more than the identity."""
        return self._seed is not None

    def __call__(self, x, rate: float):
        if not (self.is_live and rate):
            return x
        if keras.backend.backend() != "tensorflow":
            return keras.random.dropout(x, rate, seed=self)
        return dropped(x, self.bits(ops.shape(x)), rate)

    def bits(self, shape):
        """Returns the random uint16 of the next draw, on TensorFlow.

        They take half of the time of as many floating-point numbers, of which Keras draws one for
        each element: dropout on the probabilities of attention is half of a small model's step.
        """
        import tensorflow as tf

        size = tf.reduce_prod(shape)
        drawn = tf.random.stateless_uniform([(size + 1) // 2], self.next(), None, None, tf.int32)
        return tf.reshape(tf.reshape(tf.bitcast(drawn, tf.uint16), [-1])[:size], shape)

    def next(self, ordered=True):
        """Returns the seed of the next draw, as Keras asks for it."""
        self._count += 1
        # Far from the numbers of steps, which may be the second integer.
        part = self._start[1] << 24
        count, part = (ops.cast(number, self._seed.dtype) for number in (self._count, part))
        return self._seed + ops.stack([count * 1000003, part])

    def again(self) -> "Dropout":
        """Returns the dropout that draws the same once more."""
        return Dropout(self._seed, *self._start)

    def of_parts(self, count: int) -> list["Dropout"]:
        """Returns the dropout of each part of the next value; together they count as one draw."""
        if not self.is_live:
            return [self] * count
        first = self._count
        self._count += 1
        return [Dropout(self._seed, first, part) for part in range(count)]

    def of_block(self, index) -> "Dropout":
        """Returns the dropout of one block (its number may be a tensor), whatever was drawn."""
        return Dropout(self._seed, _DRAWS_PER_BLOCK * (index + 1))


NO_DROPOUT = Dropout()


def dropped(x, bits, rate: float):
    """Returns x / (1 - rate) where `bits` (random uint16) are not among the least, elsewhere 0.

    The rate is rounded to a multiple of 2^-16.
    """
    least = min(round(rate * 65536), 65535)
    scaled = x * ops.cast(65536 / (65536 - least), x.dtype)
    return ops.where(bits >= ops.cast(least, "uint16"), scaled, ops.zeros_like(scaled))
