"""The tensors of a model's files by the released names, read on demand."""

import logging
import re
import types
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from albert.errors import CheckpointError, some

log = logging.getLogger("albert")

_FLOATS = {"float32", "float16", "bfloat16", "float64"}
_COUNTS = ("global_step",)
LABEL_HEADS = ("output_weights", "output_bias")
# Of a regression: its head times the second plus the first is in the labels' units. Without them, it is.
UNITS = ("label_mean", "label_deviation")
_NO_NAME = re.compile(r"LABEL_\d+")  # of a label that only has a number, at Hugging Face


class Reader(Protocol):
    """Reads the tensors of one kind of file."""

    shapes: Mapping[str, tuple[int, ...]]  # by the names in the file

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor; raises a CheckpointError if the file is damaged."""


class Weights:
    """The named tensors of a checkpoint or of another model's files."""

    def __init__(
        self, origin: str, reader: Reader, names: Mapping[str, str] | None = None,
        order: Sequence[int] | None = None,
    ):
        """Takes a reader, {name: name in the file} if some differ, and the order of the head's labels."""
        self.origin, self._reader, self._order = origin, reader, order
        self._names = {name: name for name in reader.shapes} if names is None else names
        self.shapes = {name: tuple(reader.shapes[key]) for name, key in self._names.items()}

    @classmethod
    def of(cls, origin: str, tensors: Mapping[str, np.ndarray]) -> "Weights":
        """Returns the weights that are these tensors."""
        shapes = {name: value.shape for name, value in tensors.items()}
        return cls(origin, types.SimpleNamespace(shapes=shapes, read=tensors.__getitem__))

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor.

        Raises:
          CheckpointError: the file is damaged (checksums are verified where it has them), or the
            tensor doesn't hold finite floating-point numbers.
        """
        value = self._reader.read(self._names[name])
        if name not in _COUNTS:
            as_floats(value, f"{self.origin}: {name}")
        return value[self._order] if self._order and name in LABEL_HEADS else value

    def without(self, *names: str) -> "Weights":
        """Returns the other tensors."""
        others = {name: key for name, key in self._names.items() if name not in names}
        return Weights(self.origin, self._reader, others, self._order)

    def for_labels(
        self, trained: Sequence[str] | None, wanted: Sequence[str] | None, is_required: bool = False
    ) -> "Weights":
        """Returns the weights whose head answers for the `wanted` labels, in their order.

        A head that was `trained` for other labels, or for nothing with names and another number of
        outputs, is left out, which is logged. Without names on both sides nothing else changes.

        Raises:
          CheckpointError: the head `is_required`, and was trained for other labels.
        """
        if wanted is None or LABEL_HEADS[0] not in self.shapes:
            return self
        trained, wanted = tuple(trained or ()), tuple(wanted)
        is_unnamed = len(trained) == len(wanted) and all(map(_NO_NAME.fullmatch, trained))
        has_size = self.shapes[LABEL_HEADS[0]][0] == max(len(wanted), 1)
        if trained == wanted or is_unnamed or not trained and (has_size or is_required):
            return self
        if sorted(trained) == sorted(wanted):
            return Weights(self.origin, self._reader, self._names, list(map(trained.index, wanted)))
        if is_required:
            raise CheckpointError(
                f"{self.origin} was trained for the labels {some(trained)}, not {some(wanted)}"
            )
        log.warning("%s: its head was trained for %s, so this one is new", self.origin,
                    some(trained) or "something else")
        return self.without(*LABEL_HEADS)


def in_units(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a model's tensors with a regression's mean and deviation in its head, as others expect."""
    tensors = dict(tensors)
    if UNITS[0] in tensors:
        mean, deviation = (tensors.pop(name).astype(np.float64) for name in UNITS)
        for name, shift in zip(LABEL_HEADS, (0.0, mean)):
            tensors[name] = (tensors[name] * deviation + shift).astype(np.float32)
    return tensors


def as_floats(value: np.ndarray, origin: str) -> np.ndarray:
    """Returns a float32 copy of a tensor, or the tensor itself if it is one.

    Raises:
      CheckpointError: it has another kind of numbers, NaN or infinity.
    """
    if value.dtype.name not in _FLOATS:
        raise CheckpointError(f"{origin} holds {value.dtype}, not floating-point numbers")
    with np.errstate(over="ignore"):
        value = value.astype(np.float32, copy=False)
    if not np.isfinite(value).all():
        raise CheckpointError(f"{origin} holds NaN or infinity: the training diverged, or the file is "
                              "damaged")
    return value
