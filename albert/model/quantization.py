"""Saves and restores the layers that Keras's `model.quantize` changed."""

from collections.abc import Mapping
from typing import Any

import keras


def quantized_layers(model: keras.Model) -> dict[str, dict[str, Any]]:
    """Returns {path below the model: mode and configuration} of its quantized layers, for JSON."""
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
    """Quantizes the layers that `quantized_layers` returned, so that saved weights fit."""
    by_path = _layers(model)
    for path, settings in layers.items():
        layer = by_path[path]
        if layer.quantization_mode is None:
            layer.quantize(settings["mode"], **_options(settings["config"]))


def _options(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the arguments of `quantize` except the mode."""
    if config is None:
        return {}
    # Keras deserializes it only with a layer.
    layer = keras.layers.Dense.from_config({"units": 1, "quantization_config": config})
    return {"config": layer.quantization_config}


def _layers(model: keras.Model) -> dict[str, keras.Layer]:
    """Returns {path below the model: layer} for layers without sublayers."""
    return {
        layer.path.removeprefix(model.path + "/"): layer
        for layer in model._flatten_layers(include_self=False)
        if layer.path and len(list(layer._flatten_layers())) == 1
    }
