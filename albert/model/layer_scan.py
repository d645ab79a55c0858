"""A layer applied several times by JAX's `scan`: the shared layer (section 3.1) is compiled once.

A scan keeps everything that the backward pass needs from each layer. In unrolled layers XLA would
recompute some of it, but not in a scan. So this module chooses what to keep: with `remat` only the
states between layers, else `PRODUCTS` too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp

# Matrix products with weights are kept. The rest of a layer is cheap to recompute.
PRODUCTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def repeat(
    layer: Callable[[Any, Any], Any], hidden, first: int, count: int,
    values: Sequence[Any], holding: Callable, remat: bool,
):
    """Returns layer(... layer(hidden, first) ..., first + count - 1), as `layer_loop.repeat`."""

    def body(hidden, number):
        return layer(hidden, number), None

    numbers = jnp.arange(first, first + count, dtype=jnp.int32)
    body = jax.checkpoint(body, policy=None if remat else PRODUCTS)
    return jax.lax.scan(body, hidden, numbers)[0]
