"""Losses of a call with labels, the same as those of Hugging Face's models.

Legend: B batch, L sequence, C labels, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from albert.model.heads import cross_entropy

IGNORED = -100  # label of positions that don't count


def of_classes(logits: Any, labels: Any, weights: Any = None):
    """Returns the mean cross-entropy of logits [..., C] over the labels [...] that aren't IGNORED.

    Labels beyond C give NaN on all engines.

    Args:
      weights: factor of each example's part of the sum [B], here and below; None: 1.
    """
    labels = ops.cast(ops.convert_to_tensor(labels), "int32")
    factors = _factors(weights, labels)
    logits = ops.reshape(logits, (-1, logits.shape[-1] or ops.shape(logits)[-1]))
    labels = ops.reshape(labels, (-1,))
    counts = ops.cast(labels != IGNORED, "float32")
    losses = cross_entropy(logits, ops.maximum(labels, 0))
    if keras.backend.backend() == "jax":  # which takes them for labels without any class
        losses = ops.where(labels < ops.shape(logits)[-1], losses, float("nan"))
    return ops.sum(losses * counts * factors) / ops.maximum(ops.sum(counts), 1.0)


def of_numbers(logits: Any, labels: Any, weights: Any = None):
    """Returns the mean squared error of logits [B, C]."""
    labels = ops.reshape(ops.cast(ops.convert_to_tensor(labels), "float32"), ops.shape(logits))
    errors = ops.square(ops.cast(logits, "float32") - labels)
    return ops.mean(ops.mean(errors, axis=-1) * _factors(weights, labels[:, 0]))


def of_several_labels(logits: Any, labels: Any, weights: Any = None):
    """Returns the mean binary cross-entropy of logits [B, C] for labels [B, C] of 0 and 1."""
    errors = keras.losses.binary_crossentropy(
        ops.cast(ops.convert_to_tensor(labels), "float32"), ops.cast(logits, "float32"),
        from_logits=True,
    )
    return ops.mean(errors * _factors(weights, errors))


def of_positions(logits: Any, positions: Any, weights: Any = None):
    """Returns the mean cross-entropy of logits [B, L] over positions [B] inside of the sequence."""
    positions = ops.cast(ops.reshape(ops.convert_to_tensor(positions), (-1,)), "int32")
    is_inside = ops.logical_and(positions >= 0, positions < ops.shape(logits)[-1])
    return of_classes(logits, ops.where(is_inside, positions, IGNORED), weights)


def _factors(weights: Any, labels: Any):
    """Returns the weights [B] of examples as one of each label [B, ...], flat; None: 1."""
    if weights is None:
        return 1.0
    rank = len(labels.shape)
    weights = ops.reshape(ops.cast(weights, "float32"), (-1, *[1] * (rank - 1)))
    return ops.reshape(ops.broadcast_to(weights, ops.shape(labels)), (-1,))
