"""Dropout that is a function of a seed and of where in a forward pass it falls."""

import keras
from keras import ops


class StepSeeds(keras.random.SeedGenerator):
    """A generator without state: the n-th seed is a function of the given one and n.

    Keras draws seeds only from a SeedGenerator; the ordinary one keeps its
    state in a variable, which a checkpoint would have to carry and which may
    not change inside a compiled loop.
    """

    def __init__(self, seed, first: int = 0, part: int = 0):  # the parent's creates the variable
        self._seed = seed
        self.count = first
        self._part = part << 24  # far from the numbers of steps, which may be the second integer

    def next(self, ordered=True):
        self.count += 1
        count, part = (ops.cast(number, self._seed.dtype) for number in (self.count, self._part))
        return self._seed + ops.stack([count * 1000003, part])


class Dropout:
    """The dropout of one forward pass; without a seed (two integers) it is the identity."""

    def __init__(self, seed=None, first: int = 0, part: int = 0):
        self._seed = seed
        self._start = first, part
        self._seeds = None if seed is None else StepSeeds(seed, first, part)

    @property
    def is_live(self) -> bool:
        """Whether it is more than the identity."""
        return self._seeds is not None

    def again(self) -> "Dropout":
        """Returns the dropout that draws the same once more."""
        return Dropout(self._seed, *self._start)

    def __call__(self, x, rate: float):
        if self._seeds is None or not rate:
            return x
        return keras.random.dropout(x, rate, seed=self._seeds)

    def of_parts(self, count: int) -> list["Dropout"]:
        """Returns the dropout of each part of the next value; together they count as one draw."""
        if self._seeds is None:
            return [self] * count
        first = self._seeds.count
        self._seeds.count += 1
        return [Dropout(self._seed, first, part) for part in range(count)]

    def of_block(self, index) -> "Dropout":
        """Returns the dropout of one block (its number may be a tensor), whatever was drawn."""
        return Dropout(self._seed, _DRAWS_PER_BLOCK * (index + 1))


# More than a block makes, or embeddings and head together.
_DRAWS_PER_BLOCK = 8
NO_DROPOUT = Dropout()
