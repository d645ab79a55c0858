"""Reads Hugging Face's tensor files as data: safetensors and PyTorch's pickles."""

import os
from collections.abc import Callable

import ml_dtypes  # noqa: F401  (makes bfloat16 a NumPy type, which safetensors needs)
import numpy as np
import safetensors

from albert.errors import CheckpointError
from albert.formats import torch_file
from albert.storage import files

INDEX_FILE = "model.safetensors.index.json"  # of weights in several files, `SHARDS`
SHARDS = "model-*.safetensors"
Shapes = dict[str, tuple[int, ...]]
Read = Callable[[str], np.ndarray]


def open_tensors(path: str) -> tuple[Shapes, Read]:
    """Returns ({name: shape}, read) of a .safetensors or .bin file, or of the index of several.

    Raises:
      CheckpointError: it is damaged.
    """
    if path.endswith(".json"):
        return _open_shards(path)
    if path.endswith(".bin"):
        path = torch_file.converted(path)
    try:
        stream = safetensors.safe_open(path, framework="np")
        shapes = {n: tuple(stream.get_slice(n).get_shape()) for n in stream.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error

    def read(name: str) -> np.ndarray:
        try:
            return stream.get_tensor(name)
        except (TypeError, AttributeError, safetensors.SafetensorError) as error:  # as for float8
            raise CheckpointError(f"{path}: cannot read {name}: {error}") from error

    return shapes, read


def _open_shards(index: str) -> tuple[Shapes, Read]:
    shards = files.read_json_object(index).get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) else {None}
    if not all(isinstance(name, str) and os.path.basename(name) == name for name in names):
        raise CheckpointError(f"{index}: weight_map must name the file of each tensor")
    shapes: Shapes = {}
    read_of: dict[str, Read] = {}
    for name in sorted(names):
        found, read = open_tensors(os.path.join(os.path.dirname(index), name))
        shapes |= found
        read_of |= dict.fromkeys(found, read)
    return shapes, lambda name: read_of[name](name)
