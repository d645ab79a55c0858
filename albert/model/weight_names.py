"""The names of weights in released checkpoints."""

import re
from collections.abc import Sequence

import keras


def named_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns {name in a released checkpoint: weight}; those of the encoder start with `bert/`."""
    scope, prefix = getattr(model, "weight_scope", ""), re.compile(f"^{re.escape(model.path)}/(classifier/)?")
    return {scope + prefix.sub("", weight.path, count=1): weight for weight in model.weights}


def parameter_shapes(model: keras.Model) -> dict[str, Sequence[int]]:
    """Returns {checkpoint name: shape}."""
    return {name: tuple(weight.shape) for name, weight in named_weights(model).items()}
