"""A model's weights by their names in released checkpoints."""

import re
from collections.abc import Sequence

import keras
import numpy as np


def named_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns {name in a released checkpoint: weight}; those of the encoder start with `bert/`."""
    scope, prefix = getattr(model, "weight_scope", ""), re.compile(f"^{re.escape(model.path)}/(classifier/)?")
    return {
        scope + prefix.sub("", weight.path, count=1): weight
        for weight in model.weights if not weight.name.startswith("lora_kernel")
    }


def parameter_shapes(model: keras.Model) -> dict[str, Sequence[int]]:
    """Returns {checkpoint name: shape}."""
    return {name: tuple(weight.shape) for name, weight in named_weights(model).items()}


def weight_values(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns {checkpoint name: value}, LoRA merged."""
    merged = {id(layer._kernel): layer.kernel for layer in lora_layers(model)}
    return {
        name: np.array(merged.get(id(weight), weight))
        for name, weight in named_weights(model).items()
    }


def lora_layers(model: keras.Model) -> list[keras.layers.Dense]:
    """Returns the layers with LoRA; the `kernel` of each is the merged one."""
    return [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]
