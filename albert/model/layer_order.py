"""The layers of one forward pass, and the plain way to apply them.

A layer is a list of its blocks, and layers that share their weights are one object. An
engine takes (layers, hidden states [R, M, H], `EncoderOptions`) and returns the states
after the blocks: of each, or at least after the last. `unrolled` is one; the others are
`layer_loop.GraphLoop` for TensorFlow and `layer_scan.scan` for JAX.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from albert.model.attention import Kept
from albert.model.dropout import Dropout
from albert.model.encoder_options import EncoderOptions
from albert.model.row_layout import Mask, RowLayout


@dataclasses.dataclass(frozen=True, eq=False)
class BlockInPass:
    """A block as one forward pass applies it, to rows that are the same for all blocks."""

    # Of type `encoder.AlbertBlock`.
    attending: keras.layers.Layer  # whose attention it is
    transforming: keras.layers.Layer  # whose feed-forward layer; mostly the same block
    layout: RowLayout
    mask: Mask  # of all places of the rows
    dropout: Dropout
    places: Any = None  # [B, K] of each example; None: all
    kept: Kept | None = None  # takes the attention's probabilities

    @property
    def weights(self) -> list[keras.Variable]:
        return [w for block in (self.attending, self.transforming) for w in block.weights]

    def __call__(self, hidden, number, remat: bool = False, weights=(), values=()):
        """Returns the states after it, [R, M, H]; at `places`, [B, K, H].

        Args:
          hidden: [R, M, H].
          number: how many blocks come before it (may be a tensor).
          remat: whether the backward pass computes it again.
          weights, values: weights, and what they are taken to be.
        """

        def compute(hidden, *values):
            # Made here, so that a second computation in the backward pass draws the same.
            own = self.dropout.of_block(number)
            with _weights_as(weights, values):
                attended = self.attending.attend(
                    hidden, self.layout, self.mask, own, self.places, self.kept
                )
                return self.transforming.transform(attended, own)

        return (keras.remat(compute) if remat else compute)(hidden, *values)


Layer = Sequence[BlockInPass]
Engine = Callable[[Sequence[Layer], Any, EncoderOptions], list]


def _weights_as(weights, values):
    """Returns the context in which these weights have these values; without any, their own."""
    if not weights:
        return contextlib.nullcontext()
    return keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True)))


def unrolled(layers: Sequence[Layer], hidden, options: EncoderOptions, first: int = 0) -> list:
    """Returns the states after each block; `first` layers came before these."""
    states: list = []
    for layer in layers:
        for block in layer:
            hidden = block(hidden, first * len(layer) + len(states), options.remat)
            states.append(hidden)
    return states


def in_runs(
    layers: Sequence[Layer], hidden, options: EncoderOptions,
    run: Callable[[Layer, int, int, Any], Any],
) -> list:
    """Returns the states after each layer that differs from the next one.

    Args:
      run: returns the states after several equal layers, given the layer, how many layers come
        before them, how many they are, and the states before them.
    """
    states: list = []
    first = 0
    for _, equal in itertools.groupby(layers, key=id):
        layer, *others = equal
        count = 1 + len(others)
        if count == 1:
            states += unrolled([layer], hidden, options, first)
        else:
            states.append(run(layer, first, count, hidden))
        hidden, first = states[-1], first + count
    return states


def ending_at(places, layers: Sequence[Layer]) -> list[Layer]:
    """Returns layers whose last block is computed at these places [B, K] alone."""
    *before, last = layers
    *inner, end = last
    return [*before, [*inner, dataclasses.replace(end, places=places)]]
