"""`HubLayer`: a TF-Hub module as a trainable Keras 3 layer.

`hub.KerasLayer` requires Keras 2, and Keras 3's `TFSMLayer` copies a module's variables, so that
training doesn't change its results.
"""

import inspect
import os
from collections.abc import Mapping
from typing import Any

import albert.model.backend  # noqa: F401, I001  (before Keras)
import keras
import tensorflow as tf

from albert.errors import CheckpointError, first_line
from albert.export import text_graph
from albert.storage import filesystem


class _ModuleVariable(keras.Variable):
    """A Keras variable that is stored in a variable of the module, not in a copy."""

    def _convert_to_tensor(self, value, dtype=None):
        return value if isinstance(value, tf.Variable) else super()._convert_to_tensor(value, dtype)

    def _initialize(self, value):
        self._value = value


@keras.saving.register_keras_serializable("albert")
class HubLayer(keras.layers.Layer):
    """A TF-Hub module, a reusable SavedModel, as a trainable layer.

        encoder = albert.HubLayer("module", output_key="pooled_output")
        inputs = {name: keras.Input([None], dtype="int32", name=name)
                  for name in ("input_word_ids", "input_mask", "input_type_ids")}
        model = keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs)))

    Modules for texts take a list, an array or a tensor of strings [B]. `save_weights` includes the
    module's weights. A `.keras` file holds the handle, not the graph: it is loaded with the module.

    Args:
      handle: directory of the module, or a URL that TF-Hub can download.
      trainable: whether the weights are trained; if not, there is no dropout either, as with
        `hub.KerasLayer`.
      output_key: the output to return; by default all, in a dict.
      part: name of a callable part of the module, such as "mlm".

    Raises:
      CheckpointError: there is no reusable SavedModel, or it has no such part.
      FlagError: the module takes texts, and tensorflow-text is not installed.
    """

    def __init__(
        self, handle: str, trainable: bool = True, output_key: str | None = None,
        part: str | None = None, name: str | None = None, dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self.handle, self.output_key, self.part = handle, output_key, part
        target = _callable_part(_load(handle), part, handle)
        self._module = _Untracked(target)
        self._takes_training = _takes_training(target)
        trainable_ids = {id(variable) for variable in getattr(target, "trainable_variables", [])}
        # Keras tracks the variables of a layer's lists.
        self.module_weights = [
            _ModuleVariable(
                variable, dtype=variable.dtype.name, trainable=id(variable) in trainable_ids,
                name=variable.name.split(":")[0].replace("/", "_"),
            )
            for variable in getattr(target, "variables", [])
        ]
        # For tf.train.Checkpoint, which ignores Keras's lists.
        self.checkpointed = tf.Module()
        self.checkpointed.variables_of_module = [v.value for v in self.module_weights]
        self.trainable = trainable  # also sets it on the variables, which must exist
        self.built = True

    def __call__(self, inputs, *others, **options):
        # Keras would treat a list as several arguments.
        if isinstance(inputs, list | tuple) and all(isinstance(one, str) for one in inputs):
            inputs = tf.constant(inputs, tf.string)
        return super().__call__(inputs, *others, **options)

    def call(self, inputs, training=False):
        if isinstance(inputs, Mapping):
            inputs = {name: _as_int32(value) for name, value in inputs.items()}
        else:
            inputs = _as_int32(inputs)
        # Modules were traced with a Python True and False.
        options = {"training": bool(training) and self.trainable} if self._takes_training else {}
        outputs = self._module.target(inputs, **options)
        if self.output_key is None:
            return outputs
        if not isinstance(outputs, Mapping) or self.output_key not in outputs:
            keys = ", ".join(outputs) if isinstance(outputs, Mapping) else "a single tensor"
            raise ValueError(f"{self.handle} has no output {self.output_key!r}; it gives {keys}")
        return outputs[self.output_key]

    def get_config(self) -> dict[str, Any]:
        names = ("handle", "trainable", "output_key", "part")
        return super().get_config() | {name: getattr(self, name) for name in names}


def _takes_training(target) -> bool:
    """Whether a loaded module, or one of its functions, has an argument `training`."""
    is_function = isinstance(target, tf.types.experimental.PolymorphicFunction)
    function = target if is_function else target.__call__
    # Of **kwargs, the names are known only from the traces.
    traced = [one.structured_input_signature[1] for one in function.concrete_functions]
    named = inspect.signature(function).parameters
    return "training" in named or any("training" in options for options in traced)


class _Untracked:
    """Hides the module's graph from checkpoints, which need only its variables."""

    def __init__(self, target):
        self.target = target


def _as_int32(tensor):
    tensor = tf.convert_to_tensor(tensor)
    return tf.cast(tensor, tf.int32) if tensor.dtype.is_integer else tensor


def _load(handle: str):
    import tensorflow_hub as hub

    handle = filesystem.local_copy(handle, "handle")
    if "://" not in handle and not os.path.isfile(os.path.join(handle, "saved_model.pb")):
        raise CheckpointError(f"{handle} is not a module: no saved_model.pb in it")
    try:
        try:
            return hub.load(handle)
        except (FileNotFoundError, RuntimeError, tf.errors.OpError) as error:
            if "not registered" not in str(error):
                raise
            text_graph.import_tensorflow_text()  # the module takes texts
            return hub.load(handle)
    except (OSError, RuntimeError, ValueError, KeyError, tf.errors.OpError) as error:
        raise CheckpointError(f"cannot load the module {handle}: {first_line(error)}") from error


def _callable_part(module, part: str | None, handle: str):
    target = module if part is None else getattr(module, part, None)
    if target is None:
        raise CheckpointError(f"{handle} has no part {part!r}")
    if not callable(target):
        what = "it" if part is None else f"its part {part!r}"
        raise CheckpointError(
            f"{handle}: {what} cannot be called, so it is no reusable SavedModel; fine-tune one in "
            "the TF1 format with --albert_hub_module_handle of the run commands"
        )
    return target
