"""Applies a layer several times with JAX's `scan`, which compiles shared layers (section 3.1) once.

A scan stores all values that the backward pass needs from each layer, of which XLA would recompute
some if layers were unrolled. This module stores only states between layers and, without `remat`,
`PRODUCTS`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp

# Matrix products with weights. The rest of a layer is cheap to recompute.
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
