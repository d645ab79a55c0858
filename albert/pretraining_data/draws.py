"""Random numbers of sequences, each of which has a key: the same wherever they are drawn."""

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64, whose numbers these are


def row_keys(seed: int, positions: np.ndarray) -> np.ndarray:
    """Returns a key for each place in an endless series of sequences; uint64 [B].

    Args:
      positions: int64 [B].
    """
    begin = _hash(np.array([seed % (1 << 64)], np.uint64) + _STEP)
    return _hash(begin + _STEP * positions.astype(np.uint64))


def draw_keys(count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns keys of sequences, uint64 [count]."""
    return rng.integers(0, 1 << 64, count, np.uint64)


def _hash(state: np.ndarray) -> np.ndarray:
    """Returns SplitMix64's number for each state, in place; uint64, any shape."""
    part = np.empty_like(state)  # twice as fast as new arrays for each operation
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.right_shift(state, np.uint64(shift), out=part)
        np.bitwise_xor(state, part, out=state)
        if factor:
            np.multiply(state, np.uint64(factor), out=state)
    return state


class Draws:
    """Random numbers of sequences: of each, one for every purpose and place."""

    ORDER, LENGTH, ACTION, PIECE, SHUFFLE, SWAP, _PURPOSES = range(7)

    def __init__(self, keys: np.ndarray, turn: int = 0):
        self._keys, self._turn = keys, turn

    def again(self) -> "Draws":
        """Returns other numbers for the same purposes."""
        return Draws(self._keys, self._turn + 1)

    def bits(self, purpose: int, row: np.ndarray | slice, place: np.ndarray | int) -> np.ndarray:
        """Returns uint64 numbers of the shape of `keys[row]` and `place` together."""
        purpose += self._turn * self._PURPOSES
        # At least one dimension: NumPy warns where single numbers wrap around.
        number = np.atleast_1d(np.asarray(place, np.uint64)) + np.uint64(purpose << 40)
        return _hash(self._keys[row] + _STEP * number)

    def uniform(self, purpose: int, row: np.ndarray, place: np.ndarray | int) -> np.ndarray:
        """Returns the numbers in [0, 1)."""
        return (self.bits(purpose, row, place) >> np.uint64(11)) * 2.0**-53
