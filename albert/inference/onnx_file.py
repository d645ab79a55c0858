"""An exported model (`.onnx`) and onnxruntime, which computes it. No engine.

Legend: B batch, C choices, L sequence.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import CheckpointError, FlagError, first_line
from albert.formats.model_classes import MODEL_CLASSES
from albert.formats.weights import Weights
from albert.storage import files

INPUTS = ("input_ids", "input_mask", "segment_ids")
# Keys of the file's metadata.
_WEIGHTS, _HEAD, _LABELS = "albert_weights", "albert_head", "albert_label_names"


def import_onnxruntime() -> Any:
    """Returns the module.

    Raises:
      FlagError: it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise missing(error) from error
    return onnxruntime


def missing(error: ImportError) -> FlagError:
    """Returns the error that tells how to install what ONNX needs."""
    return FlagError(f"ONNX needs more packages ({error}): pip install onnx tf2onnx onnxruntime")


class OnnxFile:
    """A file that `albert.export_model` wrote, opened.

    Args:
      model: path of the file, or its content.
      threads: of the computation; by default one for each core.

    Raises:
      UserError: no such file, not of ONNX, or onnxruntime is not installed.
    """

    def __init__(self, model: str | bytes, threads: int = 0):
        if isinstance(model, str):
            files.require_file(model, "onnx_file")
        runtime, self._name = import_onnxruntime(), model if isinstance(model, str) else "the model"
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # its errors are raised
        try:
            self._session = runtime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no class in common
            raise CheckpointError(f"{self._name} is no model of ONNX: {first_line(error)}") from error
        self._outputs = [one.name for one in self._session.get_outputs()]
        self._told = dict(self._session.get_modelmeta().custom_metadata_map)

    def __call__(self, inputs: Mapping[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
        """Returns the outputs of int32 inputs [B, L], or [B, C, L] of multiple choice.

        The options are those of a model's call and have no effect.
        """
        named = {name: inputs[name] for name in INPUTS}
        return dict(zip(self._outputs, self._session.run(self._outputs, named), strict=True))

    def check(self, class_name: str, weights: Weights) -> None:
        """Raises a CheckpointError if it is not such a model with these weights."""
        head = MODEL_CLASSES[class_name].head
        if head in (None, "masked_lm"):  # that file gives all positions, a session needs a few
            raise FlagError(f"{self._name}: what {class_name} does is not computed by onnxruntime")
        again = f"write it with albert.export_model --head={head}"
        if self._told.get(_HEAD) != head:
            raise CheckpointError(f"{self._name} does not hold the head {head} of albert: {again}")
        if self._told.get(_WEIGHTS) != digest(weights):
            raise CheckpointError(
                f"{self._name} was made of other weights than those of {weights.origin}: {again}"
            )


def digest(weights: Weights) -> str:
    """Returns what tells weights from others."""
    found = hashlib.sha256()
    for name in sorted(weights.shapes):
        found.update(name.encode() + np.ascontiguousarray(weights.read(name)).tobytes())
    return found.hexdigest()


def described(
    content: bytes, head: str, weights: Weights, label_names: Sequence[str] | None = None
) -> bytes:
    """Returns the model with the metadata that `OnnxFile.check` reads, and the labels' names."""
    import onnx

    metadata = {_HEAD: head, _WEIGHTS: digest(weights)}
    if label_names:
        metadata[_LABELS] = json.dumps(list(label_names), ensure_ascii=False)
    model = onnx.load_from_string(content)
    onnx.helper.set_model_props(model, metadata)
    return model.SerializeToString()


def quantized(content: bytes) -> bytes:
    """Returns the model with its large matrices as int8, each with one scale.

    What they are multiplied with is made int8 as it is computed (dynamic quantization).
    """
    import_onnxruntime()
    import onnx
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "int8.onnx")
        logging.disable(logging.WARNING)  # it recommends what changes nothing here
        try:
            quantization.quantize_dynamic(
                onnx.load_from_string(content), path, weight_type=quantization.QuantType.QInt8
            )
        finally:
            logging.disable(logging.NOTSET)
        with open(path, "rb") as stream:
            return stream.read()
