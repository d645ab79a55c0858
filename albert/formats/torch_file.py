"""Converts PyTorch's `pytorch_model.bin` to safetensors, in a separate process.

  python -m albert.formats.torch_file pytorch_model.bin model.safetensors

`torch.load(weights_only=True)` builds tensors and nothing else, but lets a pickle resize them and ask
for memory that nothing was written to. So a tensor is accepted only if all of it lies in a part of
the file. A crash of PyTorch, or of a process that holds TensorFlow too, ends this process alone.
"""

import os
import pickle
import signal
import subprocess
import sys
import warnings
import zipfile
from typing import Any

from albert.errors import CheckpointError, first_line
from albert.formats import archives
from albert.storage import files

_OLDEST = (2, 10)  # weights_only of earlier versions can be made to corrupt memory (CVE-2026-24747)
_CONVERT = (
    "python -c \"import torch; from safetensors.torch import save_file; save_file({name: value.clone()"
    ".contiguous() for name, value in torch.load('pytorch_model.bin', weights_only=True).items()}, "
    "'model.safetensors')\""
)
# What torch.load raises for files that it refuses or that are damaged.
_ERRORS = (
    pickle.UnpicklingError, zipfile.BadZipFile, OSError, EOFError, ValueError, TypeError, LookupError,
    AttributeError, RuntimeError, MemoryError, ArithmeticError, AssertionError, ImportError,
)


def converted(path: str) -> str:
    """Returns the safetensors file of a `pytorch_model.bin`, made once, in the cache.

    Raises:
      CheckpointError: PyTorch is not installed; the file is damaged, or holds anything but tensors.
    """

    def fill(folder: str) -> None:
        target = os.path.join(folder, "model.safetensors")
        ran = subprocess.run(
            [sys.executable, "-m", "albert.formats.torch_file", path, target],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace",
        )
        if ran.returncode < 0:
            name = signal.Signals(-ran.returncode).name
            raise CheckpointError(f"cannot read {path}: PyTorch crashed ({name})")
        if ran.returncode:
            lines = ran.stderr.strip().splitlines() or [f"PyTorch ended with {ran.returncode}"]
            raise CheckpointError(f"cannot read {path}: {lines[-1]}")

    try:
        folder = archives.cached("pytorch", files.sha256(path), fill)
    except OSError as error:
        raise CheckpointError(f"cannot convert {path}: {error}") from error
    return os.path.join(folder, "model.safetensors")


def convert(path: str, target: str) -> str:
    """Writes the safetensors file `target`; returns why it cannot, or ""."""
    try:
        import torch
    except ImportError:
        return f"this needs PyTorch: pip install 'torch>=2.10', or convert it elsewhere: {_CONVERT}"
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version < _OLDEST:
        return f"PyTorch {torch.__version__} may run what is in it: pip install 'torch>=2.10'"
    if not zipfile.is_zipfile(path):
        return f"it is not a file of PyTorch 1.6 or later; if it is an older one: {_CONVERT}"
    from safetensors.torch import save_file

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensors = _tensors_of(path)
            save_file({name: value.clone().contiguous() for name, value in tensors.items()}, target)
    except _ERRORS as error:
        return _reason(error)
    return ""


def _tensors_of(path: str) -> dict[str, Any]:
    """Returns the named tensors of a file, each a view of it.

    Raises:
      ValueError: there are none, or one is not a plain tensor; many more, if the file is damaged.
    """
    import torch

    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it is compressed")
    parts: dict[int, int] = {}  # {address: bytes} of the storages that were mapped from the file

    def keep(storage, location):
        parts[storage.data_ptr()] = max(storage.nbytes(), parts.get(storage.data_ptr(), 0))
        return storage

    saved = torch.load(path, map_location=keep, weights_only=True, mmap=True)
    if not isinstance(saved, dict):
        raise ValueError("it holds no named tensors")
    tensors = {name: value for name, value in saved.items() if isinstance(value, torch.Tensor)}
    if not tensors or not all(isinstance(name, str) for name in tensors):
        raise ValueError("it holds no named tensors")
    for name, value in tensors.items():
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            raise ValueError(f"{name} is not a plain tensor")
        if not _is_inside(value, parts):
            raise ValueError(f"{name} is not inside the file")
    return {name: value.detach() for name, value in tensors.items()}


def _is_inside(value: Any, parts: dict[int, int]) -> bool:
    """Whether all elements of a tensor are in one of the parts, and no more than would fit there."""
    if 0 in value.shape:
        return True
    size = parts.get(value.untyped_storage().data_ptr(), 0)
    steps = [(n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True)]
    last = value.storage_offset() + sum(steps)
    return (
        min(value.storage_offset(), *steps, 0) >= 0
        and max(last + 1, value.numel()) * value.element_size() <= size
    )


def _reason(error: BaseException) -> str:
    """Returns an error's line without PyTorch's advice to run the file's code."""
    text = str(error).rpartition("WeightsUnpickler error:")[2].strip()
    return first_line(ValueError(text)).partition(" was not an allowed global")[0]


if __name__ == "__main__":
    if reason := convert(*sys.argv[1:]):
        sys.exit(reason)
