"""Classifiers and SQuAD 1.1 models as SavedModels, as --export_dir writes them.

Legend: B batch, L sequence, C outputs of the classifier (1 for regression).
"""

import math
from collections.abc import Callable

import keras
import tensorflow as tf

from albert.formats import saved_model
from albert.tasks.classification import ClassificationTask

_INPUTS = ("input_ids", "input_mask", "segment_ids")


class _Module(tf.Module):
    def __init__(self, model: keras.Model):
        super().__init__()
        # tf.Module does not find the variables of Keras 3.
        self.model_variables = [weight.value for weight in model.weights]


def export_classifier(
    model: keras.Model,
    directory: str,
    task: ClassificationTask,
    threshold: float,
    complete: Callable[[str], None],
) -> None:
    """Publishes a SavedModel that takes serialized tf.Example strings [B], like the original's.

    Outputs: `probabilities` [B, C], `predictions` [B] (label ids, or values of a regression; for
    multi-label models 0 or 1 for each label, [B, C]) and, unless it is NaN, `threshold` (a scalar
    constant).
    """
    spec = {name: tf.io.FixedLenFeature([task.max_seq_length], tf.int64) for name in _INPUTS}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(examples):
        parsed = tf.io.parse_example(examples, spec)
        batch = {name: tf.cast(value, tf.int32) for name, value in parsed.items()}
        logits = model(batch, training=False)["logits"]
        outputs = {"probabilities": task.probabilities(logits)}
        if task.is_regression:
            outputs["predictions"] = outputs["probabilities"][:, 0]
        elif task.threshold is not None:
            chosen = outputs["probabilities"] >= task.threshold
            outputs["predictions"] = tf.cast(chosen, tf.int32)
        else:
            outputs["predictions"] = tf.argmax(logits, -1, output_type=tf.int32)
        if not math.isnan(threshold):
            outputs["threshold"] = tf.constant(threshold, tf.float32)
        return outputs

    saved_model.publish(_Module(model), directory, {"serving_default": serve}, complete)


def export_answers(
    model: keras.Model, directory: str, max_seq_length: int, complete: Callable[[str], None]
) -> None:
    """Publishes a SavedModel that takes sequences [B, L] and returns start and end logits."""

    @tf.function
    def serve(input_ids, input_mask, segment_ids):
        outputs = model(
            {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        )
        return {name: outputs[name] for name in ("start_logits", "end_logits")}

    specs = {name: tf.TensorSpec([None, max_seq_length], tf.int32, name) for name in _INPUTS}
    signature = serve.get_concrete_function(**specs)
    saved_model.publish(_Module(model), directory, {"serving_default": signature}, complete)
