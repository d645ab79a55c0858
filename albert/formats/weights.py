"""The tensors of a model's files by the released names, read on demand."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np


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
          CheckpointError: the file is damaged (checksums are verified where it has them).
        """
        return self._reader.read(self._keys[name])
