"""Equal layers applied in one loop of TensorFlow's graph.

Layers that share their weights (section 3.1) are the same computation. Unrolled,
a graph holds it once for each of them, with its gradient; in a loop it is there
once, so that a step of 12 layers is traced and optimized in a fraction of the
time. And a loop adds up a weight's gradient as it goes back, where the unrolled
graph keeps every layer's until all are there: 12 times the encoder's weights, 9
GiB for xxlarge. Each step takes as long either way, but not under XLA, which is
the faster with layers unrolled.
"""

from collections.abc import Callable

import tensorflow as tf

from albert.model.encoder import AlbertEncoder


class LayerLoop:
    """Applies an encoder's equal layers; it goes by once for each of them, in their order.

    An `AlbertEncoder` whose `layer_loop` this is computes the same, to the order of sums.
    """

    def __init__(self, encoder: AlbertEncoder):
        # Read here: within a call, mixed precision would read them cast, and sum what is rounded.
        self._values = {id(weight): weight.value for weight in encoder.weights}

    def __call__(self, apply: Callable[..., list], layer: tuple, first: int, count: int, hidden):
        """Returns the states [R, M, H] after `count` such layers, the first of number `first`.

        `apply` takes a layer, its number, the states before it, and weights with their values.
        """
        blocks = {id(block): block for pair in layer for block in pair}
        weights = {id(w): w for block in blocks.values() for w in block.weights}
        values = [tf.convert_to_tensor(self._values[key]) for key in weights]

        def body(index, hidden):
            states = apply(layer, index, hidden, weights=list(weights.values()), values=values)
            return index + 1, states[-1]

        return tf.while_loop(
            lambda index, hidden: index < first + count, body, (tf.constant(first), hidden),
            # Not several layers at a time, each with what it keeps.
            parallel_iterations=1, maximum_iterations=count,
        )[1]
