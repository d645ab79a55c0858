"""The tensors of a model's files by the released names, read on demand."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import ml_dtypes
import numpy as np

from albert.errors import CheckpointError

_FLOATS = frozenset(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)))
_COUNTS = ("global_step",)
REGRESSION_HEAD = ("output_weights", "output_bias")


class Reader(Protocol):
    """Reads the tensors of one kind of file."""

    shapes: Mapping[str, tuple[int, ...]]  # by the names in the file

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor; raises a CheckpointError if the file is damaged."""


class Weights:
    """The named tensors of a checkpoint or of another model's files."""

    def __init__(self, origin: str, reader: Reader, keys: Mapping[str, str] | Iterable[str]):
        """Takes a reader, and {name: name in the file} or the names to leave unchanged."""
        self.origin = origin
        self._reader = reader
        self._keys = dict(keys) if isinstance(keys, Mapping) else {name: name for name in keys}
        shapes = reader.shapes
        self.shapes = {name: tuple(shapes[key]) for name, key in self._keys.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor.

        Raises:
          CheckpointError: the file is damaged (checksums are verified where it has them), or the
            tensor doesn't hold finite floating-point numbers.
        """
        value = self._reader.read(self._keys[name])
        if name not in _COUNTS:
            as_floats(value, f"{self.origin}: {name}")
        return value

    def without(self, *names: str) -> "Weights":
        """Returns the other tensors."""
        kept = {name: key for name, key in self._keys.items() if name not in names}
        return Weights(self.origin, self._reader, kept)

    def in_units(self, label_mean: float, label_deviation: float) -> "Weights":
        """Returns the weights of a regression that was trained on standardized labels.

        Their head gives values in the labels' units, label_mean + label_deviation * standardized value.
        """
        return _InUnits(self.origin, self._reader, self._keys, label_mean, label_deviation)


class _InUnits(Weights):
    def __init__(self, origin, reader, keys, mean, deviation):
        super().__init__(origin, reader, keys)
        self._mean, self._deviation = mean, deviation

    def read(self, name):
        value = super().read(name)
        if name not in REGRESSION_HEAD:
            return value
        scaled = value.astype(np.float64) * self._deviation
        return (scaled + self._mean * (name == REGRESSION_HEAD[1])).astype(value.dtype)


def as_floats(value: np.ndarray, origin: str) -> np.ndarray:
    """Returns a float32 copy of a tensor, or the tensor itself if it is one.

    Raises:
      CheckpointError: it has another kind of numbers, NaN or infinity.
    """
    if value.dtype not in _FLOATS:
        raise CheckpointError(f"{origin} holds {value.dtype}, not floating-point numbers")
    with np.errstate(over="ignore"):
        value = value.astype(np.float32, copy=False)
    if not np.isfinite(value).all():
        raise CheckpointError(f"{origin} holds NaN or infinity: the training diverged, or the file is "
                              "damaged")
    return value
