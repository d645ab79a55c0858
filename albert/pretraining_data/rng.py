"""Random numbers that depend on a sequence's key alone, whatever else is in the batch."""

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64, which makes these numbers


def keys_at(seed: int, positions: np.ndarray) -> np.ndarray:
    """Returns the keys of the sequences at these positions of a run; uint64 [B]."""
    start = _mix(np.array([seed % (1 << 64)], np.uint64) + _STEP)
    return _mix(start + _STEP * positions.astype(np.uint64))


def _mix(state: np.ndarray) -> np.ndarray:
    """Applies SplitMix64's output function to `state`, and returns it; uint64."""
    part = np.empty_like(state)  # twice as fast as a new array for each operation
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.right_shift(state, np.uint64(shift), out=part)
        np.bitwise_xor(state, part, out=state)
        if factor:
            np.multiply(state, np.uint64(factor), out=state)
    return state


class SequenceRng:
    """Random numbers of a batch of sequences, addressed by purpose and index."""

    ORDER, LENGTH, ACTION, TOKEN, _, SWAP, WHOLE = range(7)  # values that change the records if they change

    def __init__(self, keys: np.ndarray):
        self._keys = keys

    def bits(self, purpose: int, row: np.ndarray | slice, index: np.ndarray | int) -> np.ndarray:
        """Returns uint64 numbers; `keys[row]` and `index` broadcast."""
        # At least 1-D: NumPy warns when a scalar overflows.
        number = np.atleast_1d(np.asarray(index, np.uint64)) + np.uint64(purpose << 40)
        return _mix(self._keys[row] + _STEP * number)

    def uniform(self, purpose: int, row: np.ndarray, index: np.ndarray | int) -> np.ndarray:
        """Returns the numbers as floats in [0, 1)."""
        return (self.bits(purpose, row, index) >> np.uint64(11)) * 2.0**-53
