"""Sums over a batch, of which the tasks make their losses and accuracies.

A batch may end with rows that only fill it up. They count as nothing.

Legend: B batch.
"""

import tensorflow as tf


def real(batch) -> tf.Tensor:
    """Returns [B]: 1.0 for an example, 0.0 for a row that only fills up the batch."""
    return tf.cast(batch["is_real_example"], tf.float32)


def mean(values: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the weighted sum of values and the sum of the weights, as `Task.statistics` does.

    Args:
      values: numbers or truths, of the shape of the weights.
    """
    values = tf.cast(values, tf.float32)
    return tf.reduce_sum(values * weights), tf.reduce_sum(weights)


def chosen(scores: tf.Tensor) -> tf.Tensor:
    """Returns the class [...] with the highest of the scores [..., C]."""
    return tf.argmax(scores, axis=-1, output_type=tf.int32)
