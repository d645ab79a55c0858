"""Attention by the device's own kernel, on JAX: cuDNN on GPUs, a Pallas kernel on TPUs.

Legend: B batch, N heads, Q queries, L keys, D width of a head.
"""

import jax
from jax import numpy as jnp
from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

from albert.model.row_layout import Mask

# The kernel for TPUs computes blocks of this many queries and keys.
_BLOCK = 128
_HALF = (jnp.bfloat16, jnp.float16)  # all that cuDNN's kernel takes


def attend(query, key, value, mask: Mask):
    """Returns softmax(query key^T + mask.adder) value, [B, N, Q, D].

    Where no key is seen, a kernel may return another mean of the values.

    Args:
      query: [B, N, Q, D], scaled by 1 / sqrt(D).
      key, value: [B, N, L, D].
      mask: which keys a query sees.
    """
    if jax.default_backend() == "gpu" and query.dtype in _HALF:
        return _by_jax(query, key, value, mask, "cudnn")
    if jax.default_backend() == "cpu" and query.dtype == jnp.float16:
        # JAX's attention takes products that add up in float32, which a CPU has not for float16.
        full = (x.astype(jnp.float32) for x in (query, key, value))
        return _by_jax(*full, mask).astype(query.dtype)
    is_in_blocks = query.shape[2] % _BLOCK == 0 and key.shape[2] % _BLOCK == 0
    if mask.groups is None or not is_in_blocks:
        return _by_jax(query, key, value, mask)
    # The program may be compiled for TPUs on a machine that has none.
    return jax.lax.platform_dependent(query, key, value, mask, default=_by_jax, tpu=_by_pallas)


def _by_pallas(query, key, value, mask: Mask):
    groups = SegmentIds(*(ids.astype(jnp.int32) for ids in mask.groups))
    return flash_attention(query, key, value, segment_ids=groups)


def _by_jax(query, key, value, mask: Mask, implementation: str = "xla"):
    def places_first(x):
        return jnp.swapaxes(x, 1, 2)  # [B, L, N, D]

    seen = jnp.broadcast_to(
        mask.adder > -1.0, (query.shape[0], 1, query.shape[2], key.shape[2])
    )
    context = jax.nn.dot_product_attention(
        places_first(query), places_first(key), places_first(value), mask=seen, scale=1.0,
        implementation=implementation,
    )
    return places_first(context)
