"""Exports a classifier as a SavedModel.

Legend: B batch, C outputs of the classifier (1 for regression).
"""

import math
from collections.abc import Callable

import keras
import tensorflow as tf

from albert.formats import saved_model
from albert.tasks.classification import ClassificationTask


class ServingModule(tf.Module):
    """A classifier that takes serialized tf.Example strings [B], as the original exported it.

    Outputs: `probabilities` [B, C], `predictions` [B] (label ids, or values of a
    regression) and, if a threshold is given, `threshold` (a scalar constant).
    """

    def __init__(self, task: ClassificationTask, model: keras.Model, threshold: float = math.nan):
        super().__init__()
        self._task = task
        self._model = model
        self._threshold = threshold
        # Keras 3 variables are not found by tf.Module by themselves.
        self.model_variables = [weight.value for weight in model.weights]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(self, examples):
        spec = {
            name: tf.io.FixedLenFeature([self._task.max_seq_length], tf.int64)
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        parsed = tf.io.parse_example(examples, spec)
        batch = {name: tf.cast(value, tf.int32) for name, value in parsed.items()}
        logits = self._model(batch, training=False)["logits"]
        is_value = self._task.is_regression
        guesses = logits[:, 0] if is_value else tf.argmax(logits, -1, output_type=tf.int32)
        outputs = {"probabilities": self._task.probabilities(logits), "predictions": guesses}
        if not math.isnan(self._threshold):
            outputs["threshold"] = tf.constant(self._threshold, tf.float32)
        return outputs


def export(
    model: keras.Model,
    directory: str,
    task: ClassificationTask,
    threshold: float = math.nan,
    complete: Callable[[str], None] = lambda scratch: None,
) -> None:
    """Publishes `model` as a SavedModel whose default signature is `ServingModule.serve`.

    `complete` adds what is published with it; see `saved_model.publish`.
    """
    module = ServingModule(task, model, threshold)
    saved_model.publish(module, directory, {"serving_default": module.serve}, complete)
