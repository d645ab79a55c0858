"""Compiles what is computed of a batch, with TensorFlow or JAX. Neither is imported before."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# Of each model, its calls as graphs. Here and not in the model, which would save them.
_calls: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


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


def call_of(model: Any, inputs: Any, options: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    """Returns `model.__call__` of such inputs as a graph; None where it is to run as it stands.

    That is so within another graph, for Keras's own tensors, in a distribution, with dropout, for
    longer rows than the model takes, and with JAX, which would compile each length anew. Step by
    step, TensorFlow takes some four times as long for a single text.

    Args:
      model: one of `albert.modeling`. It may change: each set of variables has graphs of its own.
      options: further arguments of the call.
    """
    import keras

    if options.get("training") or not all(
        value is None or isinstance(value, bool | int) for value in options.values()
    ):
        return None
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    if not tf.executing_eagerly() or tf.distribute.has_strategy() or _is_stateless(model):
        return None
    named = inputs if isinstance(inputs, Mapping) else {"": inputs}
    longest = model.config.max_position_embeddings
    for value in named.values():
        if not isinstance(value, np.ndarray | tf.Tensor) or longest < max(value.shape[-1:], default=0):
            return None
    calls, of_model = _calls.setdefault(model, {}), weakref.ref(model)
    ranks = [(name, len(value.shape)) for name, value in named.items()]
    key = (*map(id, model.variables), *sorted(options.items()), *sorted(ranks))
    if key not in calls:
        arguments = dict(options)

        def call(inputs):
            # As sizes are, which only a graph does not know: it does not mix them with others.
            inputs = tf.nest.map_structure(
                lambda x: tf.cast(x, tf.int32) if x.dtype == tf.int64 else x, inputs
            )
            return of_model()(inputs, **arguments)

        calls[key] = tf.function(call, reduce_retracing=True, autograph=False)
    return calls[key]


def _is_stateless(model: Any) -> bool:
    """Whether a `keras.StatelessScope` gives the variables other values."""
    variable = model.variables[0]
    return variable.value is not variable._value
