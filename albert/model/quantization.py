"""Layers that Keras's `model.quantize` changed: what a saved model needs to have them again."""

from collections.abc import Mapping
from typing import Any

import keras


def quantized_layers(model: keras.Model) -> dict[str, dict[str, Any]]:
    """Returns {path below the model: mode and configuration} of its quantized layers, as JSON."""
    return {
        path: {
            "mode": layer.quantization_mode,
            "config": keras.saving.serialize_keras_object(
                getattr(layer, "quantization_config", None)
            ),
        }
        for path, layer in _layers(model).items() if layer.quantization_mode
    }


def quantize_layers(model: keras.Model, layers: Mapping[str, Mapping[str, Any]]) -> None:
    """Quantizes the layers of `quantized_layers`, so that their saved weights fit."""
    by_path = _layers(model)
    for path, how in layers.items():
        layer = by_path[path]
        if layer.quantization_mode is None:
            layer.quantize(how["mode"], **_options(how["config"]))


def _options(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the arguments of `quantize` but for the mode. Keras's own layer reads it, as it loads."""
    if config is None:
        return {}
    like = keras.layers.Dense.from_config({"units": 1, "quantization_config": config})
    return {"config": like.quantization_config}


def _layers(model: keras.Model) -> dict[str, keras.Layer]:
    """Returns the layers that have no layers inside, by their path below the model."""
    return {
        layer.path.removeprefix(model.path + "/"): layer
        for layer in model._flatten_layers(include_self=False)
        if layer.path and len(list(layer._flatten_layers())) == 1
    }
