"""Runs ONNX files with onnxruntime, without TensorFlow and JAX."""

import contextlib
import glob
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from albert import engines
from albert.errors import FlagError


def is_preferred() -> bool:
    """Whether onnxruntime answers: no engine was chosen, there is no GPU, and it can be imported."""
    if not engines.CHOSEN and not glob.glob("/dev/nvidia[0-9]*"):
        with contextlib.suppress(FlagError):
            return bool(_onnxruntime())
    return False


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise FlagError(f"this needs onnxruntime ({error}): pip install onnxruntime") from error
    return onnxruntime


def opened(content: bytes) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Returns a function that computes the outputs of an ONNX file from inputs by name.

    Args:
      content: of a file by `onnx_model`.

    Raises:
      FlagError: onnxruntime is not installed.
    """
    onnxruntime = _onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    inputs = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]

    def compute(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = session.run(outputs, {name: batch[name] for name in inputs})
        return dict(zip(outputs, values, strict=True))

    return compute
