"""Scaled dot-product attention.

Legend: B batch, N heads, Q queries, L keys, D size of a head.
"""

import keras
from keras import ops


def eager(query, key, value, adder, dropout, rate: float):
    """Returns softmax(query key^T + adder) value, [B, N, Q, D].

    Args:
      query: [B, N, Q, D], scaled by 1 / sqrt(D).
      key, value: [B, N, L, D].
      adder: is added to the scores: [B, 1, 1 or Q, L]; see `row_layout.mask_of`.
      dropout: a `Dropout` of the probabilities.
      rate: the dropout rate.
    """
    return ops.matmul(dropout(probabilities(query, key, adder), rate), value)


def fused(query, key, value, adder, dropout, rate: float):
    """Like `eager`, by `jax.nn.dot_product_attention` on JAX, where probabilities aren't dropped."""
    if keras.backend.backend() != "jax" or (rate and dropout.is_live):
        return eager(query, key, value, adder, dropout, rate)
    import jax

    if jax.default_backend() == "cpu" and query.dtype == "float16":
        # JAX accumulates products in float32, which CPUs can't do for float16.
        return eager(query, key, value, adder, dropout, rate)
    shape = (query.shape[0], 1, query.shape[2], key.shape[2])
    query, key, value = (ops.swapaxes(x, 1, 2) for x in (query, key, value))  # [B, L, N, D]
    # Not cuDNN's kernel: a training step with it failed on an H100 (JAX 0.11.2).
    context = jax.nn.dot_product_attention(
        query, key, value, mask=ops.broadcast_to(adder > -1.0, shape), scale=1.0,
        implementation="xla",
    )
    return ops.swapaxes(context, 1, 2)


ATTENTION = {"eager": eager, "fused": fused}


def probabilities(query, key, adder):
    """Returns softmax(query key^T + adder), [B, N, Q, L]."""
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) + adder  # [B, N, Q, L]
    # Half precision is too coarse for a sum of hundreds of probabilities.
    return ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), query.dtype)
