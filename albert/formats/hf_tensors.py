"""Reads Hugging Face's tensor files as data: safetensors, HDF5, PyTorch's pickles.

Their TensorFlow classes wrote HDF5 (`tf_model.h5`): a group for each layer, whose attribute
`weight_names` lists the data sets. Keras, which could execute code from a file, never opens it.
"""

import os
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401  (makes bfloat16 a NumPy type, which safetensors needs)
import numpy as np
import safetensors

from albert.errors import CheckpointError, first_line
from albert.formats import torch_file

Shapes = dict[str, tuple[int, ...]]
Read = Callable[[str], np.ndarray]


def open_tensors(path: str) -> tuple[Shapes, Read]:
    """Returns ({name: shape}, read) of a .safetensors, .h5 or .bin file.

    Raises:
      CheckpointError: it is damaged.
    """
    if path.endswith(".h5"):
        return _open_h5(path)
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


def _open_h5(path: str) -> tuple[Shapes, Read]:
    """Returns ({name: shape}, read) of an HDF5 file.

    Raises:
      CheckpointError: it is damaged, or has weights that aren't plain arrays of numbers stored in
        the file itself.
    """
    import h5py  # which Keras needs too

    try:
        datasets, size = _datasets_of(h5py.File(path, "r")), os.path.getsize(path)
        for name, value in datasets.items():
            if not isinstance(value, h5py.Dataset) or value.is_virtual or value.external:
                raise ValueError(f"{name} is not an array in this file")
            if value.shape is None or value.dtype.kind not in "fiu":
                raise ValueError(f"{name} is not an array of numbers")
            # A filter is code, and can unpack to any size.
            if value.id.get_create_plist().get_nfilters():
                raise ValueError(f"{name} is compressed")
            if value.nbytes > min(size, value.id.get_storage_size()):
                raise ValueError(f"{name} claims {value.nbytes:,} bytes, which are not there")
        if not datasets:
            raise ValueError("it has no weights")
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is not a readable HDF5 file of weights: {first_line(error)}"
        ) from error

    def read(name: str) -> np.ndarray:
        try:
            return datasets[name][()]
        except (OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path}: cannot read {name}: {first_line(error)}") from error

    return {name: tuple(value.shape) for name, value in datasets.items()}, read


def _datasets_of(file: Any) -> dict[str, Any]:
    datasets = {}
    for layer in file:
        group = _item_at(file, layer)
        for name in group.attrs["weight_names"]:
            name = name.decode() if isinstance(name, bytes) else name
            datasets[name] = _item_at(group, name)
    return datasets


def _item_at(group: Any, path: str) -> Any:
    """Returns the item at a path below an HDF5 group.

    Raises:
      ValueError: a link in the path may lead elsewhere, even to another file.
    """
    import h5py

    for name in path.split("/"):
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{path} is not in this file")
        group = group[name]
    return group
