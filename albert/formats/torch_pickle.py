"""Reads PyTorch's `pytorch_model.bin` as data: the pickles can only call tensor constructors.

There are two formats: a ZIP archive with a file per storage (`data.pkl`, `data/0`), and the one
before PyTorch 1.6, several pickles followed by the storages. No PyTorch.
"""

import collections
import dataclasses
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from albert.errors import CheckpointError, first_line

_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of the older format
_DTYPES = {
    "FloatStorage": np.float32, "DoubleStorage": np.float64, "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16, "LongStorage": np.int64, "IntStorage": np.int32,
    "ShortStorage": np.int16, "CharStorage": np.int8, "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
_ERRORS = (
    pickle.UnpicklingError, zipfile.BadZipFile, OSError, EOFError, ValueError, TypeError, KeyError,
    IndexError, AttributeError, RecursionError, MemoryError, OverflowError, NotImplementedError,
    struct.error,
)


@dataclasses.dataclass(frozen=True)
class _Storage:
    key: str
    dtype: np.dtype
    count: int


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A view of a storage: its first element, and the shape and strides in elements."""

    storage: _Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self):
        numbers = (self.start, *self.shape, *self.strides)
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("a tensor has an invalid shape")
        if len(self.shape) != len(self.strides):
            raise ValueError("a tensor has unequal numbers of strides and dimensions")
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        if 0 not in self.shape and self.start + last >= self.storage.count:
            raise ValueError("a tensor exceeds its storage")

    def of(self, content: bytes) -> np.ndarray:
        """Returns the tensor, given the bytes of its storage."""
        dtype = self.storage.dtype
        if len(content) != self.storage.count * dtype.itemsize:
            raise ValueError(f"storage {self.storage.key} has {len(content):,} bytes")
        elements = np.frombuffer(content, dtype)[self.start :]
        strides = tuple(stride * dtype.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(elements, self.shape, strides).copy()


class _Unpickler(pickle.Unpickler):
    """Makes tensors and dictionaries of them; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return np.dtype(_DTYPES[name])
        known = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): lambda *given: _Tensor(*given[:4]),
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not a tensor")
        return known[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, count, *view = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or any(view):
            raise pickle.UnpicklingError("a storage of an unknown kind")
        return _Storage(str(key), dtype, count)


def open_tensors(path: str) -> tuple[dict[str, tuple[int, ...]], Callable[[str], np.ndarray]]:
    """Returns ({name: shape}, read) of a file.

    Raises:
      CheckpointError: it is damaged, or holds anything but tensors.
    """
    try:
        with open(path, "rb") as stream:
            saved, content = (_open_zip if zipfile.is_zipfile(stream) else _open_older)(path, stream)
        tensors = {name: value for name, value in saved.items() if isinstance(value, _Tensor)}
        if not tensors or not all(isinstance(name, str) for name in tensors):
            raise ValueError("it holds no named weights")
    except _ERRORS as error:
        raise CheckpointError(f"cannot read {path}: {first_line(error)}") from error

    def read(name: str) -> np.ndarray:
        try:
            return tensors[name].of(content(tensors[name].storage.key))
        except _ERRORS as error:
            raise CheckpointError(f"{path}: cannot read {name}: {first_line(error)}") from error

    return {name: value.shape for name, value in tensors.items()}, read


def _open_zip(path: str, stream: BinaryIO) -> tuple[dict, Callable[[str], bytes]]:
    with zipfile.ZipFile(stream) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it is compressed")
        [name] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        folder = name.removesuffix("data.pkl")
        if f"{folder}byteorder" in archive.namelist():
            if archive.read(f"{folder}byteorder") != b"little":
                raise ValueError("its numbers are big-endian")
        with archive.open(name) as pickled:
            saved = _Unpickler(pickled).load()

    def content(key: str) -> bytes:
        with zipfile.ZipFile(path) as archive:
            return archive.read(f"{folder}data/{key}")

    return saved, content


def _open_older(path: str, stream: BinaryIO) -> tuple[dict, Callable[[str], bytes]]:
    stream.seek(0)
    if _Unpickler(stream).load() != _MAGIC:
        raise ValueError("it is not a PyTorch file")
    for _ in range(2):  # the protocol's version, and the kind of machine
        _Unpickler(stream).load()
    saved = _Unpickler(stream).load()
    sizes = {
        value.storage.key: value.storage.dtype.itemsize
        for value in saved.values() if isinstance(value, _Tensor)
    }
    spans, end = {}, os.fstat(stream.fileno()).st_size
    for key in _Unpickler(stream).load():
        [count] = struct.unpack("<q", stream.read(8))
        spans[key] = stream.tell(), count * sizes[key]
        if count < 0 or sum(spans[key]) > end:
            raise EOFError("it is truncated")
        stream.seek(sum(spans[key]))

    def content(key: str) -> bytes:
        start, size = spans[key]
        with open(path, "rb") as stream:
            stream.seek(start)
            return stream.read(size)

    return saved, content
