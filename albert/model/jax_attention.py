"""Attention on JAX that `fused` asks for: a Pallas kernel on TPUs, elsewhere JAX's own.

Legend: B batch, N heads, Q queries, L keys, D size of a head.
"""

import jax
from jax import numpy as jnp
from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

from albert.model.row_layout import Mask

_BLOCK = 128  # the TPU kernel computes blocks of as many queries and keys


def attend(query, key, value, mask: Mask):
    """Returns softmax(query key^T + mask.adder) value, [B, N, Q, D].

    For a query without any key, a kernel may return another mean of the values.

    Args:
      query: [B, N, Q, D], scaled by 1 / sqrt(D).
      key, value: [B, N, L, D].
      mask: the keys that a query attends to.
    """
    if jax.default_backend() == "cpu" and query.dtype == jnp.float16:
        # JAX's attention accumulates products in float32, which CPUs can't do for float16.
        full = (x.astype(jnp.float32) for x in (query, key, value))
        return _by_jax(*full, mask).astype(query.dtype)
    is_in_blocks = query.shape[2] % _BLOCK == 0 and key.shape[2] % _BLOCK == 0
    if mask.groups is None or not is_in_blocks:
        return _by_jax(query, key, value, mask)
    # The program may be compiled for TPUs on a machine without any.
    return jax.lax.platform_dependent(query, key, value, mask, default=_by_jax, tpu=_by_pallas)


def _by_pallas(query, key, value, mask: Mask):
    groups = SegmentIds(*(ids.astype(jnp.int32) for ids in mask.groups))
    return flash_attention(query, key, value, segment_ids=groups)


def _by_jax(query, key, value, mask: Mask):
    # Not cuDNN's kernel: a training step with it failed on an H100 (JAX 0.11.2).
    shape = (query.shape[0], 1, query.shape[2], key.shape[2])
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))  # [B, L, N, D]
    context = jax.nn.dot_product_attention(
        query, key, value, mask=jnp.broadcast_to(mask.adder > -1.0, shape), scale=1.0,
        implementation="xla",
    )
    return jnp.swapaxes(context, 1, 2)
