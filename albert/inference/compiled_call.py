"""Compiles a model's call with TensorFlow or JAX, which are imported only then."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Function = Callable[[Any], Any]  # from tensors, by name or a single one, to tensors by name


def compiled(model: Any, **options: Any) -> Function:
    """Compiles `model(inputs, training=False, **options)` as a function of the inputs.

    TensorFlow compiles once for all batch sizes and lengths, JAX once for each shape: pad its
    inputs to a few lengths. The function reads the weights at each call. All else is fixed at the
    first one: compile again after a change of the model's attributes.

    Args:
      model: a model of albert.
      options: further arguments of the call, such as `output_hidden_states=True`.

    Example:
      >>> tokenizer = albert.AlbertTokenizer.from_pretrained("small_en")
      >>> model = albert.AlbertModel.from_pretrained("small_en")
      >>> call = albert.compiled(model)
      >>> inputs = tokenizer(["A text.", "Another, longer one."], padding=True, return_tensors="np")
      >>> tuple(call(inputs)["pooled_output"].shape)
      (2, 384)
    """
    call = compiled_function(
        lambda inputs: model(inputs, training=False, **options), model.variables
    )

    return lambda inputs: call(model.inputs_of(inputs))


def compiled_function(function: Function, variables: Sequence[Any]) -> Function:
    """Compiles a function of a batch.

    Args:
      variables: the Keras variables that the function reads.
    """
    import keras

    if keras.backend.backend() == "tensorflow":
        return _graph(function)
    import jax

    # Weights are arguments: constants would be part of each compiled program.
    @jax.jit
    def compute(values, batch):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return function(batch)

    def call(inputs: Any):
        # JAX accepts neither lists of numbers nor the tokenizer's mappings.
        as_array = jax.numpy.asarray
        is_named = isinstance(inputs, Mapping)
        batch = {n: as_array(x) for n, x in inputs.items()} if is_named else as_array(inputs)
        return compute([variable.value for variable in variables], batch)

    return call


def _graph(function: Function) -> Function:
    """Compiles a TensorFlow graph for any batch size and length.

    Without a signature, tf.function would trace up to four graphs before it generalizes the shape.
    """
    import tensorflow as tf

    from albert.model.islands import islands

    def compute(batch):
        with islands(gradients=False):
            return function(batch[""] if "" in batch else batch)

    graphs: dict[Any, Function] = {}
    lock = threading.Lock()  # concurrent threads wait for the same graph

    def call(inputs: Any):
        named = inputs if isinstance(inputs, Mapping) else {"": inputs}
        tensors = {name: tf.convert_to_tensor(value) for name, value in named.items()}
        key = tuple((name, _any_size(x.shape), x.dtype) for name, x in sorted(tensors.items()))
        with lock:
            if key not in graphs:
                # Traced immediately: TensorFlow warns if one line of code makes several functions
                # that are traced when they are first called.
                graphs[key] = tf.function(
                    compute,
                    input_signature=[{n: tf.TensorSpec(shape, dtype) for n, shape, dtype in key}],
                    autograph=False,
                ).get_concrete_function()
        return graphs[key](tensors)

    return call


def _any_size(shape: Sequence[int]) -> tuple[int | None, ...]:
    """Replaces the batch size and the length in a shape, its first and last dimension, by None."""
    return (None, *shape[1:-1], None) if len(shape) > 1 else (None,) * len(shape)
