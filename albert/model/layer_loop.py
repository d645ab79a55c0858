"""Applies a layer several times in one loop of the compiled graph.

Layers that share their weights (section 3.1) are the same computation. An unrolled graph contains
it and its gradient once for each layer, a loop only once, so that a step of 12 layers is traced and
optimized in a fraction of the time. A loop also accumulates a weight's gradient during the backward
pass, whereas an unrolled graph stores that of each layer until its end: 12 times the encoder's
weights, 9 GiB for xxlarge. A step takes the same time, except with XLA on some devices, which is
faster with unrolled layers; see `training.run.build_model`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops


def repeat(
    layer: Callable[[Any, Any], Any], hidden, first: int, count: int, weights: Sequence[Any],
    remat: bool,
):
    """Returns layer(... layer(hidden, first) ..., first + count - 1).

    Args:
      weights: the layer's Keras variables.
      remat: whether the backward pass recomputes each layer.
    """
    if keras.backend.backend() == "jax":
        layer = _recomputed_on_jax(layer, remat)
    else:
        layer = _with_cast_weights(layer, weights, hidden.dtype, remat)
    numbers = ops.arange(first, first + count, dtype="int32")
    return ops.scan(lambda hidden, number: (layer(hidden, number), None), hidden, numbers)[0]


def _recomputed_on_jax(layer: Callable, remat: bool) -> Callable:
    """A scan stores all values that the backward pass needs, of which XLA would recompute some in
    unrolled layers. This one stores the states between layers and, without `remat`, the matrix
    products with weights: the rest of a layer is cheap to recompute.
    """
    import jax

    products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return jax.checkpoint(layer, policy=None if remat else products)


def _with_cast_weights(layer: Callable, weights: Sequence[Any], dtype: str, remat: bool) -> Callable:
    """Casts weights once for all layers, but gradients in each, so that they are added in float32.

    `keras.remat` on TensorFlow takes gradients for arguments only, not for variables; so weights are
    arguments.
    """
    # `weight.value` would be cast in mixed precision.
    values = [ops.convert_to_tensor(weight._value) for weight in weights]
    halves = [ops.cast(x, dtype) for x in values]

    @ops.custom_gradient
    def cast_before(value, half):
        return half, lambda upstream: (ops.cast(upstream, value.dtype), None)

    def with_weights(hidden, number):
        def apply(hidden, *values):
            with keras.StatelessScope(list(zip(weights, values, strict=True))):
                return layer(hidden, number)

        return (keras.remat(apply) if remat else apply)(hidden, *map(cast_before, values, halves))

    return with_weights
