"""Scaled dot-product attention, at once or in blocks that need little memory.

Legend: B batch, N heads, Q queries, L keys, D size of a head.
"""

import keras
from keras import ops

from albert.model.row_layout import Mask

# Queries in a block. Its scores, N x 128 x L, usually fit in a processor's cache.
QUERY_BLOCK = 128


def eager(query, key, value, mask: Mask, dropout, rate: float, max_queries: int):
    """Returns softmax(query key^T + mask.adder) value, [B, N, Q, D].

    Args:
      query: [B, N, Q, D], scaled by 1 / sqrt(D).
      key, value: [B, N, L, D].
      mask: the keys that a query attends to.
      dropout: a `Dropout` of the probabilities. It is drawn separately for each block of queries,
        so that `fused` draws the same. If Q is unknown until run time, all queries are one block,
        and `fused` draws other numbers.
      rate: the dropout rate.
      max_queries: upper bound of Q.
    """
    probs = probabilities(query, key, mask.adder)
    if rate and dropout.is_live:
        count = ops.shape(query)[2]
        starts = _block_starts(count if isinstance(count, int) else 1)
        parts = [
            part(probs[:, :, start : start + QUERY_BLOCK] if len(starts) > 1 else probs, rate)
            for start, part in zip(starts, dropout.of_parts(len(starts)), strict=True)
        ]
        probs = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=2)
    return ops.matmul(probs, value)


def fused(query, key, value, mask: Mask, dropout, rate: float, max_queries: int):
    """Like `eager`, but never stores the scores of all queries.

    JAX without dropout uses the device's kernel. Otherwise, blocks of queries are computed one by
    one, and the backward pass recomputes their probabilities. If Q is unknown until run time, there
    are blocks for `max_queries`, the last of which may be empty.
    """
    if keras.backend.backend() == "jax" and not (rate and dropout.is_live):
        from albert.model import jax_attention

        return jax_attention.attend(query, key, value, mask)
    count = ops.shape(query)[2]
    starts = _block_starts(count if isinstance(count, int) else max_queries)
    parts = []
    for start, part in zip(starts, dropout.of_parts(len(starts)), strict=True):

        def block(query, key, value, adder, part=part):
            # A new Dropout each time, so that a second computation draws the same.
            return ops.matmul(part.again()(probabilities(query, key, adder), rate), value)

        stop = start + QUERY_BLOCK
        adder = mask.adder if mask.adder.shape[2] == 1 else mask.adder[:, :, start:stop]
        if len(starts) == 1:
            return keras.remat(block)(query, key, value, adder)
        parts.append(keras.remat(block)(query[:, :, start:stop], key, value, adder))
    return ops.concatenate(parts, axis=2)


ATTENTION = {"eager": eager, "fused": fused}


def _block_starts(count: int) -> list[int]:
    """Returns the first query of each block."""
    return list(range(0, count, QUERY_BLOCK))


def probabilities(query, key, adder):
    """Returns softmax(query key^T + adder), [B, N, Q, L]."""
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) + adder  # [B, N, Q, L]
    # Half precision is too coarse for a sum of hundreds of probabilities.
    return ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), query.dtype)
