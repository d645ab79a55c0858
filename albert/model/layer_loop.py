"""A layer applied several times in one loop of TensorFlow's graph.

Layers that share their weights (section 3.1) are the same computation. Unrolled,
a graph contains it once for each of them, with its gradient; a loop contains it
once, so that a step of 12 layers is traced and optimized in a fraction of the
time. A loop also adds up a weight's gradient during the backward pass, where the
unrolled graph keeps every layer's gradient to the end: 12 times the encoder's
weights, 9 GiB for xxlarge. A step takes the same time either way, except under
XLA, which is faster with layers unrolled.
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
      values: of the weights that the layer reads, from outside of the loop, which adds up their
        gradients.
      holding: returns a context in which the layer reads the given values instead.
      remat: whether the backward pass computes each layer again.
    """
    shape = hidden.shape

    def body(number, hidden):
        def apply(hidden, *values):
            with holding(values):
                return layer(hidden, number)

        hidden = (keras.remat(apply) if remat else apply)(hidden, *values)
        # A layer loses static sizes, such as a batch of 1, which a loop may not.
        hidden.set_shape(shape)
        return number + 1, hidden

    return tf.while_loop(
        lambda number, hidden: number < first + count, body, (tf.constant(first), hidden),
        # Not several layers at a time, each holding its activations.
        parallel_iterations=1, maximum_iterations=count,
    )[1]
