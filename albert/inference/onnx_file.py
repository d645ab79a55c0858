"""Runs an exported model (`.onnx`) with onnxruntime, without TensorFlow and JAX.

Legend: B batch, C choices, L sequence.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert.errors import CheckpointError, FlagError, first_line
from albert.formats.model_classes import MODEL_CLASSES
from albert.formats.weights import Weights
from albert.storage import files

INPUTS = ("input_ids", "input_mask", "segment_ids")
# Keys of the file's metadata.
WEIGHTS_KEY, HEAD_KEY = "albert_weights", "albert_head"


def import_onnxruntime() -> Any:
    """Returns the module onnxruntime.

    Raises:
      FlagError: it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise missing(error) from error
    return onnxruntime


def missing(error: ImportError) -> FlagError:
    """Returns the error that says how to install the packages for ONNX."""
    return FlagError(f"ONNX needs more packages ({error}): pip install onnx tf2onnx onnxruntime")


class OnnxFile:
    """An opened file that `albert.export_model` wrote.

    Args:
      model: path or content of the file.
      threads: number of threads; by default one per core.

    Raises:
      UserError: the file does not exist or is not an ONNX model, or onnxruntime is not installed.
    """

    def __init__(self, model: str | bytes, threads: int = 0):
        if isinstance(model, str):
            files.require_file(model, "onnx_file")
        runtime, self._name = import_onnxruntime(), model if isinstance(model, str) else "the model"
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors only
        try:
            self._session = runtime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no common base class
            reason = first_line(error)
            raise CheckpointError(f"{self._name} is not an ONNX model: {reason}") from error
        self._outputs = [one.name for one in self._session.get_outputs()]
        self._metadata = dict(self._session.get_modelmeta().custom_metadata_map)

    def __call__(self, inputs: Mapping[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
        """Returns the outputs for int32 inputs [B, L], or [B, C, L] for multiple choice.

        Takes the options of a model's call and ignores them.
        """
        named = {name: inputs[name] for name in INPUTS}
        return dict(zip(self._outputs, self._session.run(self._outputs, named), strict=True))

    def check(self, class_name: str, weights: Weights) -> None:
        """Checks that the file is a model of this class with these weights.

        Raises:
          UserError: it is not.
        """
        head = MODEL_CLASSES[class_name].head
        if head in (None, "masked_lm"):  # the file computes all positions, a session needs a few
            raise FlagError(f"{self._name}: onnxruntime does not compute what {class_name} does")
        remedy = f"write it with albert.export_model --head={head}"
        if self._metadata.get(HEAD_KEY) != head:
            raise CheckpointError(f"{self._name} does not hold the head {head} of albert: {remedy}")
        if self._metadata.get(WEIGHTS_KEY) != digest(weights):
            raise CheckpointError(
                f"{self._name} was made of other weights than those of {weights.origin}: {remedy}"
            )


def digest(weights: Weights) -> str:
    """Returns a hash of the names and values of all weights."""
    sha256 = hashlib.sha256()
    for name in sorted(weights.shapes):
        sha256.update(name.encode() + np.ascontiguousarray(weights.read(name)).tobytes())
    return sha256.hexdigest()


def quantized(proto: Any) -> Any:
    """Returns an ONNX model with int8 matrices, see `model_conversion.to_onnx`."""
    import_onnxruntime()
    import onnx
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "int8.onnx")
        logging.disable(logging.WARNING)  # it recommends a step that makes no difference here
        try:
            quantization.quantize_dynamic(proto, path, weight_type=quantization.QuantType.QInt8)
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(path)
