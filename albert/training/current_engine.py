"""The engine of this process: that of Keras's backend."""

import functools

import keras

from albert.training.engine import Engine


@functools.cache
def current() -> Engine:
    """Returns the engine; it is created once, because it knows which devices were chosen."""
    if keras.backend.backend() == "jax":
        from albert.training.jax_engine import JaxEngine

        return JaxEngine()
    from albert.training.tf_engine import TensorFlowEngine

    return TensorFlowEngine()
