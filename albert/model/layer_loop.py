"""Equal layers applied in one loop of TensorFlow's graph.

Layers that share their weights (section 3.1) are the same computation. Unrolled,
a graph holds it once for each of them, with its gradient; in a loop it is there
once, so that a step of 12 layers is traced and optimized in a fraction of the
time. And a loop adds up a weight's gradient as it goes back, where the unrolled
graph keeps every layer's until all are there: 12 times the encoder's weights, 9
GiB for xxlarge. Each step takes as long either way, but not under XLA, which is
the faster with layers unrolled.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from albert.model.encoder_options import EncoderOptions
from albert.model.layer_order import Layer, in_runs


class GraphLoop:
    """An engine whose loop goes by once for each of several equal layers in a row.

    Of the states after these, only the last are returned.
    """

    def __init__(self, weights: Sequence[keras.Variable]):
        # Read here: within a call, mixed precision would read them cast, and sum what is rounded.
        self._values = {id(weight): weight.value for weight in weights}

    def __call__(self, layers: Sequence[Layer], hidden, options: EncoderOptions) -> list:
        def run(layer: Layer, first: int, count: int, hidden):
            return self._looped(layer, first, count, hidden, options)

        return in_runs(layers, hidden, options, run)

    def _looped(self, layer: Layer, first: int, count: int, hidden, options: EncoderOptions):
        """Returns the states after `count` such layers, the first of number `first`."""
        weights = list({id(w): w for block in layer for w in block.weights}.values())
        values = [tf.convert_to_tensor(self._values[id(weight)]) for weight in weights]

        def body(index, hidden):
            for i, block in enumerate(layer):
                hidden = block(hidden, index * len(layer) + i, options.remat, weights, values)
            # A block loses static sizes, such as a batch of 1, which a loop may not.
            hidden.set_shape(shape)
            return index + 1, hidden

        shape = hidden.shape

        return tf.while_loop(
            lambda index, hidden: index < first + count, body, (tf.constant(first), hidden),
            # Not several layers at a time, each with what it keeps.
            parallel_iterations=1, maximum_iterations=count,
        )[1]
