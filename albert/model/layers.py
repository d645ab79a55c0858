"""Activations, layer normalization and dense layers of the released models."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import keras
from keras import ops

from albert.config import LAYER_NORM_EPSILON, AlbertConfig


def gelu(x):
    """Returns the Gaussian error linear unit (arXiv 1606.08415) in the released models' form.

    x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
    """
    if keras.backend.standardize_dtype(x.dtype) != "float16":
        return ops.gelu(x, approximate=True)
    # Beyond 40, x^3 is infinite in float16, and the gradient NaN.
    return ops.cast(ops.gelu(ops.cast(x, "float32"), approximate=True), "float16")


def gelu_erf(x):
    """Returns the exact Gaussian error linear unit, PyTorch's "gelu"; no released model uses it."""
    return ops.gelu(x, approximate=False)


@contextlib.contextmanager
def precision(policy: keras.DTypePolicy) -> Iterator[None]:
    """Sets the default precision of layers that are created inside the context."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def get_activation(name):
    """Returns an activation function by name; None, "" and "linear" are the identity.

    "gelu" is the form with tanh, as in the original; "gelu_erf" is the exact one, for models that
    other toolkits trained with it.
    """
    if not isinstance(name, str) and name is not None:
        return name
    table = {
        "gelu": gelu, "gelu_erf": gelu_erf, "relu": ops.relu, "tanh": ops.tanh,
        "linear": None, "": None,
    }
    key = (name or "").lower()
    if key not in table:
        raise ValueError(f"Unsupported activation: {name}")
    return table[key]


def truncated_normal(stddev: float) -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=stddev)


def normalized(x, gamma, beta):
    """Returns gamma (x - mean) / sqrt(variance + epsilon) + beta, over the last axis of [..., W].

    This is layer normalization (arXiv 1607.06450).
    """
    centered = x - ops.mean(x, axis=-1, keepdims=True)  # [..., W]
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    return centered * ops.rsqrt(variance + LAYER_NORM_EPSILON) * gamma + beta


class LayerNorm(keras.layers.LayerNormalization):
    """Keras's layer normalization of the last axis, in float32, which needs less memory."""

    def call(self, x):
        x, gamma, beta = (ops.cast(value, "float32") for value in (x, self.gamma, self.beta))
        return ops.cast(normalized(x, gamma, beta), self.compute_dtype)


def layer_norm(name: str) -> LayerNorm:
    return LayerNorm(epsilon=LAYER_NORM_EPSILON, name=name)


# The module `islands`, inside its context.
compiled_chains = contextvars.ContextVar("albert_compiled_chains", default=None)


def activated(x, bias, activation: Callable):
    """Returns activation(x + bias), for x [..., W] and bias [W]."""
    if chains := compiled_chains.get():
        return chains.activated(x, bias, activation)
    return activation(x + ops.cast(bias, x.dtype))


def added_and_normalized(x, bias, residual, norm: LayerNorm, dropout, rate: float):
    """Returns norm(dropout(x + bias) + residual), for x and residual [..., W]."""
    if chains := compiled_chains.get():
        return chains.added_and_normalized(x, bias, residual, norm.gamma, norm.beta, dropout, rate)
    return norm(dropout(x + ops.cast(bias, x.dtype), rate) + residual)


def softmax(scores):
    """Returns the softmax over the last axis."""
    if chains := compiled_chains.get():
        return chains.softmax(scores)
    # Half precision is too coarse for a sum of hundreds of probabilities.
    return ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), scores.dtype)


def dense_layer(units: int, config: AlbertConfig, name: str, activation=None) -> keras.layers.Dense:
    return keras.layers.Dense(
        units, activation=activation, name=name,
        kernel_initializer=truncated_normal(config.initializer_range),
    )
