"""Compiles what is computed of a batch, with TensorFlow or JAX. Neither is imported before."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def compiled(
    function: Callable[[Mapping[str, Any]], dict[str, Any]], variables: Sequence[Any]
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns the function as a graph of TensorFlow or a program of JAX.

    Args:
      variables: those of Keras that it reads.
    """
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, reduce_retracing=True, autograph=False)
    import jax

    # Weights are arguments: as constants they would be part of each compiled program.
    @jax.jit
    def compute(values, batch):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return function(batch)

    return lambda batch: compute([variable.value for variable in variables], batch)
