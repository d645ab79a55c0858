"""A SQuAD 1.1 model for serving, as `run_squad_v1 --export_dir` writes it."""

from collections.abc import Callable

import keras
import tensorflow as tf

from albert.formats import saved_model

_INPUTS = ("input_ids", "input_mask", "segment_ids")


class SquadModule(tf.Module):
    """Takes rows of `max_seq_length` places; returns `start_logits` and `end_logits` [B, L]."""

    def __init__(self, model: keras.Model, max_seq_length: int):
        super().__init__()
        self._model = model
        # Keras 3 variables are not found by tf.Module by themselves.
        self.model_variables = [weight.value for weight in model.weights]
        specs = {n: tf.TensorSpec([None, max_seq_length], tf.int32, n) for n in _INPUTS}
        self.serve = tf.function(self._serve).get_concrete_function(**specs)

    def _serve(self, input_ids, input_mask, segment_ids):
        outputs = self._model(
            {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        )
        return {name: outputs[name] for name in ("start_logits", "end_logits")}


def export(
    model: keras.Model,
    directory: str,
    max_seq_length: int,
    complete: Callable[[str], None] = lambda scratch: None,
) -> None:
    """Publishes `model` as a SavedModel with the signature of `SquadModule`.

    `complete` adds what is published with it; see `saved_model.publish`.
    """
    module = SquadModule(model, max_seq_length)
    saved_model.publish(module, directory, {"serving_default": module.serve}, complete)
