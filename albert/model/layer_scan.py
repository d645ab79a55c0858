"""Equal layers applied by JAX's `scan`: the shared layer (section 3.1) is compiled once.

A scan keeps what the backward pass needs of every layer. XLA would compute some of it again if
the layers were unrolled, but not in a scan. So here it is said what is kept: with `remat` the
states between layers alone, else `PRODUCTS` too.
"""

from collections.abc import Sequence

import jax
from jax import numpy as jnp

from albert.model.encoder_options import EncoderOptions
from albert.model.layer_order import Layer, in_runs

# Matrix products with weights are kept. The rest of a layer costs little to compute again.
PRODUCTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def scan(layers: Sequence[Layer], hidden, options: EncoderOptions) -> list:
    """An engine that returns the states after each layer that differs from the next one."""

    def run(layer: Layer, first: int, count: int, hidden):
        def body(hidden, number):
            for i, block in enumerate(layer):
                hidden = block(hidden, number * len(layer) + i)
            return hidden, None

        numbers = jnp.arange(first, first + count, dtype=jnp.int32)
        body = jax.checkpoint(body, policy=None if options.remat else PRODUCTS)
        return jax.lax.scan(body, hidden, numbers)[0]

    return in_runs(layers, hidden, options, run)
