"""Runs ONNX files with onnxruntime, without TensorFlow and JAX."""

from collections.abc import Callable, Mapping

import numpy as np

# In order of preference. Others that onnxruntime may offer compile a program for each shape.
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


def opened(content: bytes) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Returns a function that computes the outputs of an ONNX file from inputs by name.

    On a GPU if the package `onnxruntime-gpu` is installed, else on the CPU.

    Args:
      content: of a file by `onnx_model`.
    """
    import onnxruntime  # only here: every command would take longer to start

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    available = onnxruntime.get_available_providers()
    session = onnxruntime.InferenceSession(
        content, options, providers=[name for name in _PROVIDERS if name in available]
    )
    inputs = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]

    def compute(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = session.run(outputs, {name: batch[name] for name in inputs})
        return dict(zip(outputs, values, strict=True))

    return compute
