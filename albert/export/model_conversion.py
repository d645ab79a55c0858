"""Converts models to LiteRT (`.tflite`), and compares files with the models.

Their inputs are `input_ids`, `input_mask` and `segment_ids`, all int32 [B, L], or [B, C, L] for
multiple choice with C choices.
"""

import io
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from albert.export.hub_export import writing
from albert.inference.onnx_model import INPUTS

# The heads of question answering add -1e30 to the logits of impossible positions, or -2e30.
_MASKED = -1e29

Runner = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def to_tflite(model: keras.Model, outputs: Sequence[str], length: int, quantize: bool) -> bytes:
    """Returns a LiteRT model for one example, whose sequences have `length` tokens.

    Args:
      quantize: whether large matrices are int8 (dynamic-range quantization).
    """
    shape = input_shape(model, 1, length)

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.int32, name=name) for name in INPUTS])
    def graph(*inputs):
        computed = model(dict(zip(INPUTS, inputs, strict=True)), training=False)
        return {name: computed[name] for name in outputs}

    root = tf.Module()
    root.weights, root.graph = [weight.value for weight in model.weights], graph
    with tempfile.TemporaryDirectory() as folder:
        with writing():
            tf.saved_model.save(root, folder, signatures=graph)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if quantize:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return converter.convert()


def with_labels(content: bytes, names: Sequence[str]) -> bytes:
    """Adds the names of the labels to a LiteRT model as `labels.txt`, one per line.

    LiteRT's tools read such files from a ZIP archive at the end of the model, as does `unzip`.
    """
    stream = io.BytesIO(content)
    with zipfile.ZipFile(stream, "a") as archive:
        # A fixed time stamp makes the file reproducible.
        archive.writestr(zipfile.ZipInfo("labels.txt"), "".join(f"{name}\n" for name in names))
    return stream.getvalue()


def run_tflite(content: bytes, threads: int | None = None) -> Runner:
    """Returns a function that computes the outputs of a LiteRT model, by default on one thread."""
    with warnings.catch_warnings():  # recommends another package with the same interpreter
        warnings.simplefilter("ignore", UserWarning)
        interpreter = tf.lite.Interpreter(model_content=content, num_threads=threads)
    signature = interpreter.get_signature_runner()
    return lambda inputs: signature(**inputs)


def largest_difference(model: keras.Model, outputs: Sequence[str], run: Runner, length: int):
    """Compares `run` with the model on four examples; masked values match only masked values.

    Returns:
      {output: (largest difference, largest value)}.
    """
    rng, shape = np.random.default_rng(0), input_shape(model, 1, length)
    result = {name: (0.0, 0.0) for name in outputs}
    for num_tokens in (length, max(length // 2, 1), max(length // 3, 1), 1):
        mask = np.broadcast_to(np.arange(length) < num_tokens, shape).astype(np.int32)
        second = np.broadcast_to(np.arange(length) >= num_tokens // 2, shape).astype(np.int32)
        inputs = {
            "input_ids": rng.integers(0, model.config.vocab_size, shape, np.int32) * mask,
            "input_mask": mask,
            "segment_ids": second * mask,
        }
        expected, converted = model(inputs, training=False), run(inputs)
        for name, (difference, largest) in result.items():
            value, other = (np.maximum(x[name], _MASKED) for x in (expected, converted))
            result[name] = (
                float(np.maximum(difference, np.abs(other - value).max())),  # NaN stays NaN
                max(largest, float(np.abs(value[value > _MASKED]).max(initial=0.0))),
            )
    return result


def input_shape(model: keras.Model, batch: int, length: int) -> list[int]:
    """Returns the shape of each input of a model."""
    choices = getattr(model, "num_choices", None)
    return [batch, length] if choices is None else [batch, choices, length]
