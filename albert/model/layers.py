"""Activations, layer normalization and dense layers of the released models."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator

import keras
from keras import ops

from albert.config import LAYER_NORM_EPSILON, AlbertConfig

_has_gradients = contextvars.ContextVar("albert_gradients", default=True)


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Leaves out gradients of our own, which TensorFlow keeps with their graph until the process ends."""
    token = _has_gradients.set(False)
    try:
        yield
    finally:
        _has_gradients.reset(token)


def has_gradients() -> bool:
    """Whether gradients of our own are wanted here."""
    return _has_gradients.get()


def custom_gradient(function: Callable) -> Callable:
    """Returns the function as `keras.ops.custom_gradient` does, but see `without_gradients`."""
    differentiable = ops.custom_gradient(function)

    @functools.wraps(function)
    def call(*inputs):
        return differentiable(*inputs) if has_gradients() else function(*inputs)[0]

    return call


@custom_gradient
def gelu(x):
    """Returns the Gaussian error linear unit in the released models' form, with tanh.

    x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3). Its gradient stores only x and the
    tanh; automatic differentiation would store each of its values, the model's largest.
    """
    scale, cubic = math.sqrt(2.0 / math.pi), 0.044715
    tanh = ops.tanh(scale * (x + cubic * ops.power(x, 3)))

    def gradient(*args, upstream=None):  # Keras's signature; TensorFlow passes one positionally
        if upstream is None:
            (upstream,) = args
        # Far beyond +-10, 1 - tanh^2 is 0; its factor must not become infinite, as x^2 does in half
        # precision.
        near = ops.clip(x, -100.0, 100.0)
        slope_of_u = scale + (3.0 * scale * cubic * near) * near
        slope = (1.0 + tanh) + near * (1.0 - ops.square(tanh)) * slope_of_u
        return upstream * (0.5 * slope)

    return 0.5 * x * (1.0 + tanh), gradient


def gelu_erf(x):
    """Returns the exact Gaussian error linear unit, PyTorch's "gelu"; no released model uses it."""
    return ops.gelu(x, approximate=False)


def times(x, factor: float):
    """Returns x times a constant. In a loop, the gradient of a plain product would store x."""

    @custom_gradient
    def scaled(x):
        def gradient(*args, upstream=None):  # see `gelu`
            return (args[0] if upstream is None else upstream) * factor

        return x * factor, gradient

    return scaled(x)


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


@custom_gradient
def normalized(x, gamma, beta):
    """Returns gamma (x - mean) / sqrt(variance + epsilon) + beta, over the last axis.

    Its gradient stores only the normalized x and one number per position.
    """
    centered = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    inverse = ops.rsqrt(variance + LAYER_NORM_EPSILON)
    normal = centered * inverse

    def gradient(*args, upstream=None):  # see `gelu`
        if upstream is None:
            (upstream,) = args
        slope = upstream * gamma
        along = ops.mean(slope * normal, axis=-1, keepdims=True)
        of_x = inverse * (slope - ops.mean(slope, axis=-1, keepdims=True) - normal * along)
        axes = tuple(range(len(upstream.shape) - 1))
        return of_x, ops.sum(upstream * normal, axis=axes), ops.sum(upstream, axis=axes)

    return normal * gamma + beta, gradient


class LayerNorm(keras.layers.LayerNormalization):
    """Keras's layer normalization of the last axis, in float32, which needs less memory."""

    def call(self, x):
        x, gamma, beta = (ops.cast(value, "float32") for value in (x, self.gamma, self.beta))
        return ops.cast(normalized(x, gamma, beta), self.compute_dtype)


def layer_norm(name: str) -> LayerNorm:
    return LayerNorm(epsilon=LAYER_NORM_EPSILON, name=name)


def product(x, dense: keras.layers.Dense):
    """Returns x [..., A] times the layer's kernel [A, B]."""
    # Keras casts variables only inside a layer's call, which a recomputed block isn't.
    return ops.matmul(x, ops.cast(dense.kernel, x.dtype))


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
        return chains.added_and_normalized(
            x, bias, residual, norm.gamma, norm.beta, dropout, rate
        )
    return norm(dropout(x + ops.cast(bias, x.dtype), rate) + residual)


def dense_layer(units: int, config: AlbertConfig, name: str, activation=None) -> keras.layers.Dense:
    return keras.layers.Dense(
        units, activation=activation, name=name,
        kernel_initializer=truncated_normal(config.initializer_range),
    )
