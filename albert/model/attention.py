"""Scaled dot-product attention (arXiv 1706.03762, section 3.2.1).

Legend: B batch, N heads, Q queries, L keys, D size of a head.
"""

import keras
from keras import ops

from albert.model.layers import softmax


def attend(query, key, value, adder, dropout, rate: float):
    """Returns softmax(query key^T + adder) value, [B, N, Q, D].

    Args:
      query: [B, N, Q, D], scaled by 1 / sqrt(D).
      key, value: [B, N, L, D].
      adder: is added to the scores: [B, 1, 1 or Q, L]; see `row_layout.mask_of`.
      dropout: a `Dropout` of the probabilities.
      rate: the dropout rate.
    """
    if not (rate and dropout.is_live) and _suits_cudnn(query, key):
        return _by_cudnn(query, key, value, adder)
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) + adder  # [B, N, Q, L]
    return ops.matmul(dropout(softmax(scores), rate), value)


def _suits_cudnn(query, key) -> bool:
    """Returns whether cuDNN has a kernel for these: on JAX, in half precision, of even lengths."""
    if keras.backend.backend() != "jax" or query.dtype not in ("float16", "bfloat16"):
        return False
    import jax

    device = jax.devices()[0]
    is_able = device.device_kind.startswith("NVIDIA") and float(device.compute_capability) >= 8.0
    return is_able and not (query.shape[2] % 2 or key.shape[2] % 2 or query.shape[3] % 8)


def _by_cudnn(query, key, value, adder):
    """Like `attend`; a step on an H100 takes a tenth less time (docs/evidence/gpu.json)."""
    import jax

    shape = (query.shape[0], 1, query.shape[2], key.shape[2])
    query, key, value = (ops.swapaxes(x, 1, 2) for x in (query, key, value))  # [B, L, N, D]
    context = jax.nn.dot_product_attention(
        query, key, value, mask=ops.broadcast_to(adder > -1.0, shape), scale=1.0,
        implementation="cudnn",
    )
    return ops.swapaxes(context, 1, 2)
