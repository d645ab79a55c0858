"""Sums over a batch, of which the tasks make their losses and accuracies.

A batch may end with rows that only fill it up. They count as nothing.

Legend: B batch.
"""

from typing import Any

from keras import ops


def real(batch) -> Any:
    """Returns [B]: 1.0 for an example, 0.0 for a row that only fills up the batch."""
    return ops.cast(batch["is_real_example"], "float32")


def mean(values: Any, weights: Any) -> tuple[Any, Any]:
    """Returns the weighted sum of values and the sum of the weights, as `Task.statistics` does.

    Args:
      values: numbers or truths, of the shape of the weights.
    """
    values = ops.cast(values, "float32")
    return ops.sum(values * weights), ops.sum(weights)


def chosen(scores: Any) -> Any:
    """Returns the class [...] with the highest of the scores [..., C]."""
    return ops.cast(ops.argmax(scores, axis=-1), "int32")
