"""Scaled dot-product attention, computed plainly or in blocks that need little memory.

Legend: B batch, N heads, Q queries, L keys, D width of a head.
"""

from typing import Any

import keras
from keras import ops

from albert.model.row_layout import Mask

# Queries of a block. The scores of a block, N x 128 x L, mostly fit a processor's cache.
QUERY_BLOCK = 128


def eager(query, key, value, mask: Mask, dropout, rate: float, most: int):
    """Returns softmax(query key^T + mask.adder) value, [B, N, Q, D].

    Args:
      query: [B, N, Q, D], scaled by 1 / sqrt(D).
      key, value: [B, N, L, D].
      mask: which keys a query sees.
      dropout: a `layers.Dropout`; falls at `rate` on the probabilities, drawn for
        each block of queries alone, so that `fused` draws the same. Where Q is
        unknown until run time they are one block, and `fused` draws other numbers.
      most: no less than Q.
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


def fused(query, key, value, mask: Mask, dropout, rate: float, most: int):
    """Returns what `eager` returns, without ever holding the scores of all queries.

    On JAX without dropout, by the device's own kernel. Elsewhere block after block
    of queries; the backward pass computes each block's probabilities again. Where Q
    is unknown until run time there are blocks for `most` queries, of which the last
    may be empty.
    """
    if keras.backend.backend() == "jax" and not (rate and dropout.is_live):
        from albert.model import jax_attention

        return jax_attention.attend(query, key, value, mask)
    count = ops.shape(query)[2]
    starts = _block_starts(count if isinstance(count, int) else most)
    parts = []
    for start, part in zip(starts, dropout.of_parts(len(starts)), strict=True):

        def block(query, key, value, adder, part=part):
            # The part is made again each time: a second computation draws the same.
            return ops.matmul(part.again()(probabilities(query, key, adder), rate), value)

        stop = start + QUERY_BLOCK
        adder = mask.adder if mask.adder.shape[2] == 1 else mask.adder[:, :, start:stop]
        if len(starts) == 1:
            return keras.remat(block)(query, key, value, adder)
        parts.append(keras.remat(block)(query[:, :, start:stop], key, value, adder))
    return ops.concatenate(parts, axis=2)


ATTENTION = {"eager": eager, "fused": fused}


def check_attentions(options: Any) -> None:
    """Raises a ValueError if a model of these options can't return its attention probabilities."""
    in_the_way = [
        name
        for name, is_set in (
            (f'engine="{options.engine}"', options.engine != "unrolled"),
            ("remat", options.remat),
            ("needed_outputs_only", options.needed_outputs_only),
        )
        if is_set
    ]
    if in_the_way:
        raise ValueError(f"output_attentions does not go with {', '.join(in_the_way)}")


def _block_starts(count: int) -> list[int]:
    """Returns each block's first query."""
    return list(range(0, count, QUERY_BLOCK))


def probabilities(query, key, adder):
    """Returns softmax(query key^T + adder), [B, N, Q, L]."""
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) + adder  # [B, N, Q, L]
    # Half precision is too coarse to sum hundreds of probabilities in.
    return ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), query.dtype)
