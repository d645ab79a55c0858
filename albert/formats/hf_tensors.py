"""Reads Hugging Face's tensor files as data: safetensors and PyTorch's pickles."""

from collections.abc import Callable

import ml_dtypes  # noqa: F401  (makes bfloat16 a NumPy type, which safetensors needs)
import numpy as np
import safetensors

from albert.errors import CheckpointError
from albert.formats import torch_file

Shapes = dict[str, tuple[int, ...]]
Read = Callable[[str], np.ndarray]


def open_tensors(path: str) -> tuple[Shapes, Read]:
    """Returns ({name: shape}, read) of a .safetensors, .h5 or .bin file.

    Raises:
      CheckpointError: it is damaged.
    """
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
