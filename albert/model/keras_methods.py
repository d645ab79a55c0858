"""Keras's methods for models that take inputs by name, with or without labels.

Legend: B batch, L sequence.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from albert.model import call_arguments
from albert.model.losses import IGNORED


def _checked(name: str) -> Callable:
    """Returns a method of `keras.Model` that first checks its inputs, where they are arrays."""
    method = getattr(keras.Model, name)

    @functools.wraps(method)
    def checked(self, x: Any = None, *args: Any, **options: Any) -> Any:
        has_y = name not in ("predict", "predict_on_batch")
        y = (args[0] if args else options.get("y")) if has_y else None
        if call_arguments.is_batch(x):
            self.check_inputs(call_arguments.inputs_of(x, {}, self.input_rank))
        if y is None and isinstance(x, Mapping):
            if options.get("class_weight") is not None:
                raise ValueError("class_weight needs the labels as `y` and a loss in `compile`; "
                                 "with labels among the inputs, give sample_weight")
            if options.get("sample_weight") is not None:  # which Keras drops without a `y`
                x = {**x, "sample_weight": options.pop("sample_weight")}
        self.check_targets(y)
        return method(self, x, *args, **options)

    return checked


class KerasMethods(keras.Model):
    """A Keras model that takes inputs by name and computes the loss itself if they have labels."""

    input_rank = 2  # [B, L]
    # For each output with a loss, the input that has its labels.
    labels_of: Mapping[str, str] = {}

    fit, evaluate, predict = map(_checked, ("fit", "evaluate", "predict"))
    train_on_batch, test_on_batch, predict_on_batch = map(
        _checked, ("train_on_batch", "test_on_batch", "predict_on_batch")
    )

    def stateless_call(self, trainable, non_trainable, inputs=None, *args: Any, **options: Any) -> Any:
        """Calls the model with these weights, as JAX's `fit` does; takes inputs as `__call__` does."""
        inputs = call_arguments.inputs_of(inputs, {}, self.input_rank)
        return super().stateless_call(trainable, non_trainable, inputs, *args, **options)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Returns the loss that the model computed from the labels in `x`, if `y` is None."""
        if self._has_own_loss(y, y_pred):
            return y_pred["loss"]
        return super().compute_loss(x, y, _plain(y_pred), sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Updates the metrics with `y`, else with the labels in `x`.

        Only `weighted_metrics` leave out labels of -100, since Keras gives no others a weight.
        """
        if self._has_own_loss(y, y_pred):
            inputs = call_arguments.inputs_of(x, {}, self.input_rank)
            y_pred = {name: y_pred[name] for name in self.labels_of}
            y = {name: ops.convert_to_tensor(inputs[self.labels_of[name]]) for name in y_pred}
            sample_weight = {name: _weights(y[name], inputs.get("sample_weight")) for name in y}
            # Keras takes neither a dict nor a weight for a single output.
            if len(y) == 1:
                y_pred, y, sample_weight = (
                    next(iter(value.values())) for value in (y_pred, y, sample_weight)
                )
        return super().compute_metrics(x, y, _plain(y_pred), sample_weight)

    def _has_own_loss(self, y: Any, y_pred: Any) -> bool:
        return y is None and isinstance(y_pred, Mapping) and "loss" in y_pred

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Raises a ValueError for values that are out of range, as far as they are known."""
        raise NotImplementedError

    def check_targets(self, y: Any) -> None:
        """Raises a ValueError if labels that are given to Keras are out of range."""

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs' shapes and types, in the model's precision."""
        return _Call(self).compute_output_spec(*args, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> dict[str, Any]:
        """Returns the outputs' shapes, given the shape of the ids or {input: shape}."""
        shapes = input_shape if isinstance(input_shape, Mapping) else {"input_ids": input_shape}
        inputs = {name: keras.KerasTensor(shape, "int32") for name, shape in shapes.items()}
        return keras.tree.map_structure(lambda x: x.shape, self.compute_output_spec(inputs))

    def export(self, filepath: Any, format: str = "tf_saved_model", *, input_signature: Any = None,
               **options: Any) -> None:
        """Exports the model as Keras does; by default with ids, mask and segments of any shape.

        On JAX, which compiles one length, sequences have the model's maximum length.

        Raises:
          ValueError: the format is "litert": Keras's file would not run without TensorFlow.
        """
        if format == "litert":
            raise ValueError("a LiteRT file of Keras would need TensorFlow's own operations: call "
                             "save_pretrained, then python -m albert.export_model --model_dir=MODEL "
                             "--export_path=model.tflite")
        if input_signature is None:
            names = ("input_ids", "input_mask", "segment_ids")
            is_jax = keras.backend.backend() == "jax"
            length = self.config.max_position_embeddings if is_jax else None
            shape = (*(None, getattr(self, "num_choices", None))[: self.input_rank - 1], length)
            input_signature = [{n: keras.InputSpec(shape=shape, dtype="int32", name=n) for n in names}]
        super().export(os.fspath(filepath), format, input_signature=input_signature, **options)

    def quantize(self, *args: Any, **options: Any) -> None:
        """Raises a ValueError: exports are quantized, models aren't."""
        raise ValueError(
            "a model in Keras isn't quantized: save_pretrained, then "
            "python -m albert.export_model --quantize"
        )


def arguments_of(kind: type) -> list[str]:
    """Returns the arguments of a class, and those that it passes on, but the ones of all models."""
    names: set[str] = set()
    for parent in kind.__mro__:
        if "__init__" in vars(parent):
            parameters = inspect.signature(parent.__init__).parameters.values()
            kinds = {p.kind for p in parameters}
            names |= {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
            if not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
                break
    return sorted(names - {"self", "config", "name", "encoder_options", "dtype"})


class _Call(keras.Operation):
    """A model's call as an operation that computes its outputs' shapes and types."""

    def __init__(self, model: keras.Model):
        super().__init__()
        self.model = model

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def _weights(labels: Any, sample_weight: Any) -> Any:
    """Returns the weight of each label, 0 for -100."""
    weights = ops.cast(labels != IGNORED, "float32")
    if sample_weight is None:
        return weights
    rank = len(labels.shape)
    return weights * ops.reshape(ops.cast(sample_weight, "float32"), (-1, *[1] * (rank - 1)))


def _plain(y_pred: Any) -> Any:
    """Returns outputs as a plain dict, the only one in which Keras's losses find them."""
    return dict(y_pred) if isinstance(y_pred, Mapping) else y_pred
