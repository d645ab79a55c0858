"""The names of weights in released checkpoints."""

from collections.abc import Sequence

import keras


def named_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns {name in a released checkpoint: weight}; those of the encoder start with `bert/`."""
    scope = getattr(model, "weight_scope", "")
    return {scope + weight.path.removeprefix(model.path + "/"): weight for weight in model.weights}


def parameter_shapes(model: keras.Model) -> dict[str, Sequence[int]]:
    """Returns {checkpoint name: shape}."""
    return {name: tuple(weight.shape) for name, weight in named_weights(model).items()}
