"""Losses of a call with labels, the same as those of Hugging Face's models.

Legend: B batch, L sequence, C labels, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from albert.model.heads import cross_entropy

IGNORED = -100  # label of positions that don't count


def of_classes(logits: Any, labels: Any):
    """Returns the mean cross-entropy of logits [..., C] over the labels [...] that aren't IGNORED."""
    labels = ops.cast(ops.convert_to_tensor(labels), "int32")
    logits = ops.reshape(logits, (-1, logits.shape[-1] or ops.shape(logits)[-1]))
    labels = ops.reshape(labels, (-1,))
    counts = ops.cast(labels != IGNORED, "float32")
    losses = cross_entropy(logits, ops.maximum(labels, 0))
    return ops.sum(losses * counts) / ops.maximum(ops.sum(counts), 1.0)


def of_numbers(logits: Any, labels: Any):
    """Returns the mean squared error of logits [B, C]."""
    labels = ops.reshape(ops.cast(ops.convert_to_tensor(labels), "float32"), ops.shape(logits))
    return ops.mean(ops.square(ops.cast(logits, "float32") - labels))


def of_several_labels(logits: Any, labels: Any):
    """Returns the mean binary cross-entropy of logits [B, C] for labels [B, C] of 0 and 1."""
    return ops.mean(keras.losses.binary_crossentropy(
        ops.cast(ops.convert_to_tensor(labels), "float32"), ops.cast(logits, "float32"),
        from_logits=True,
    ))


def of_spans(starts: Any, ends: Any, start_positions: Any, end_positions: Any):
    """Returns the mean loss of first and last positions [B], given logits [B, L].

    Positions outside of a sequence don't count.
    """
    length = ops.shape(starts)[-1]

    def loss(logits, positions):
        positions = ops.cast(ops.reshape(ops.convert_to_tensor(positions), (-1,)), "int32")
        is_inside = ops.logical_and(positions >= 0, positions < length)
        return of_classes(logits, ops.where(is_inside, positions, IGNORED))

    return (loss(starts, start_positions) + loss(ends, end_positions)) / 2
