"""Applies a layer several times in one loop of TensorFlow's graph.

Layers that share their weights (section 3.1) are the same computation. An unrolled graph contains
it and its gradient once for each layer, a loop only once, so that a step of 12 layers is traced and
optimized in a fraction of the time. A loop also accumulates a weight's gradient during the backward
pass, whereas an unrolled graph stores that of each layer until its end: 12 times the encoder's
weights, 9 GiB for xxlarge. A step takes the same time, except with XLA, which is faster with
unrolled layers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf


def repeat(
    layer: Callable[[Any, Any], Any], hidden, first: int, count: int,
    values: Sequence[Any], holding: Callable, remat: bool,
):
    """Returns layer(... layer(hidden, first) ..., first + count - 1).

    Args:
      values: values of the layer's weights, from outside of the loop.
      holding: returns a context in which the layer reads the given values instead.
      remat: whether the backward pass recomputes each layer.
    """
    shape = hidden.shape

    def body(number, hidden):
        def apply(hidden, *values):
            with holding(values):
                return layer(hidden, number)

        hidden = (keras.remat(apply) if remat else apply)(hidden, *values)
        # Static sizes, such as a batch of 1, must not change in a loop, but a layer loses them.
        hidden.set_shape(shape)
        return number + 1, hidden

    return tf.while_loop(
        lambda number, hidden: number < first + count, body, (tf.constant(first), hidden),
        # Several layers at a time would each store their activations.
        parallel_iterations=1, maximum_iterations=count,
    )[1]
