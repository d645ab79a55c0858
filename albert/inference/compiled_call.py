"""Compiles the calls of a model, with TensorFlow or JAX. Neither is imported before."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Function = Callable[[Any], Any]  # from tensors, by name or a single one, to tensors by name


def compiled(model: Any, **options: Any) -> Function:
    """Returns `model(inputs, training=False, **options)` as a compiled function of the inputs.

    The weights are read at each call, so training and `set_weights` show in the next one.
    Everything else is fixed when the function is first called: call `compiled` again after
    `quantize` or a change of the model's attributes.

    TensorFlow compiles once for all batch sizes and lengths. JAX compiles once for each shape: pad
    your inputs to a few lengths.

    Args:
      model: a model of `albert`.
      options: further arguments of the call, such as `output_hidden_states=True`.

    Example:
      call = albert.compiled(model)
      logits = call(tokenizer(["A text.", "Another one."], padding=True))["logits"]
    """
    return compiled_function(
        lambda inputs: model(inputs, training=False, **options), model.variables
    )


def compiled_function(function: Function, variables: Sequence[Any]) -> Function:
    """Returns a function of a batch as a graph of TensorFlow or a program of JAX.

    Args:
      variables: the Keras variables that it reads.
    """
    import keras

    if keras.backend.backend() == "tensorflow":
        return _graph(function)
    import jax

    # Weights are arguments: as constants they would be part of each compiled program.
    @jax.jit
    def compute(values, batch):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return function(batch)

    return lambda batch: compute([variable.value for variable in variables], batch)


def _graph(function: Function) -> Function:
    """Returns a TensorFlow graph of the function that takes any batch size and length.

    Without a signature, tf.function traces a graph for the first shape and up to three others
    before it has generalized all of them.
    """
    import tensorflow as tf

    from albert.model.islands import islands

    def compute(batch):
        with islands():
            return function(batch[""] if "" in batch else batch)

    graphs: dict[Any, Function] = {}
    lock = threading.Lock()  # concurrent threads wait for one graph

    def call(inputs: Any):
        named = inputs if isinstance(inputs, Mapping) else {"": inputs}
        tensors = {name: tf.convert_to_tensor(value) for name, value in named.items()}
        key = tuple((name, _any_size(x.shape), x.dtype) for name, x in sorted(tensors.items()))
        with lock:
            if key not in graphs:
                # Traced at once: TensorFlow warns of several functions from one line of code
                # that are traced by their first call.
                graphs[key] = tf.function(
                    compute,
                    input_signature=[{n: tf.TensorSpec(shape, dtype) for n, shape, dtype in key}],
                    autograph=False,
                ).get_concrete_function()
        return graphs[key](tensors)

    return call


def _any_size(shape: Sequence[int]) -> tuple[int | None, ...]:
    """Returns a shape without the batch size and the length: the first and the last dimension."""
    return (None, *shape[1:-1], None) if len(shape) > 1 else (None,) * len(shape)
