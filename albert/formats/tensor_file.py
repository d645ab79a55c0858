"""A checkpoint in one file, `<prefix>.safetensors`: what is written where TensorFlow is absent.

The library checks where tensors lie, and notices a cut. What it does not notice, bytes that have
changed, the checksums tell that the file's metadata hold: one of each tensor, and one of all that
is said about them.
"""

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np
import safetensors
import safetensors.numpy

from albert.errors import CheckpointError
from albert.storage import filesystem

SUFFIXES = (".safetensors",)
_TENSORS, _HEADER = "crc32c", "crc32c_of_header"


class TensorFileReader:
    """The tensors of one file that `write` wrote.

    Raises:
      CheckpointError: it is damaged, or somebody else's.
    """

    def __init__(self, prefix: str):
        self._path = prefix + SUFFIXES[0]
        try:
            self._stream = safetensors.safe_open(filesystem.local_copy(self._path), framework="np")
            names = self._stream.keys()
            slices = {name: self._stream.get_slice(name) for name in names}
            metadata = self._stream.metadata() or {}
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{self._path} is not a readable checkpoint: {error}") from error
        if not {_TENSORS, _HEADER} <= set(metadata):
            raise CheckpointError(
                f"{self._path} is damaged, or no checkpoint that a run wrote: it has no checksums; "
                "of a model in Hugging Face's layout, give the directory"
            )
        self.shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        kinds = {name: part.get_dtype() for name, part in slices.items()}
        if metadata[_HEADER] != _checksum(_header(self.shapes, kinds, metadata[_TENSORS])):
            raise CheckpointError(f"{self._path} is damaged: its checksum does not match")
        self._checksums = json.loads(metadata[_TENSORS])

    def check_whole(self) -> None:
        """Nothing to do: the library has refused a file that is shorter than its tensors."""

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor; a CheckpointError if it is damaged."""
        try:
            value = self._stream.get_tensor(name)
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{self._path}: cannot read {name}: {error}") from error
        if _checksum(value.tobytes()) != self._checksums[name]:
            raise CheckpointError(
                f"{self._path}: cannot read {name}: its checksum does not match: "
                "the file is damaged"
            )
        return value


def write(prefix: str, tensors: Mapping[str, Any]) -> None:
    """Writes all tensors into one file. Raises an OSError where it cannot."""
    arrays = {name: np.array(value, order="C") for name, value in tensors.items()}
    checksums = json.dumps({n: _checksum(value.tobytes()) for n, value in sorted(arrays.items())})
    shapes = {name: value.shape for name, value in arrays.items()}
    path = prefix + SUFFIXES[0]
    kinds = {name: _KINDS[value.dtype] for name, value in arrays.items()}
    metadata = {_TENSORS: checksums, _HEADER: _checksum(_header(shapes, kinds, checksums))}
    try:
        safetensors.numpy.save_file(arrays, path, metadata=metadata)
    except safetensors.SafetensorError as error:  # which is how it tells of a full disk
        raise OSError(str(error)) from error


# What the library calls the types of a run's tensors.
_KINDS = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64"}


def _header(
    shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str], checksums: str
) -> bytes:
    """Returns all that a file says about its tensors, the same for the same."""
    rows = [[name, kinds[name], list(shapes[name])] for name in sorted(shapes)]
    return json.dumps([rows, checksums]).encode()


def _checksum(content: bytes) -> str:
    return f"{google_crc32c.value(content):08x}"
