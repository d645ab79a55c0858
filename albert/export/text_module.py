"""What the SavedModels share that take texts.

Legend: B batch, C labels, L places of a row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from albert.export import text_graph
from albert.inference import predictors
from albert.modeling import named_weights


def texts(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name=name)


class Answers(tf.__internal__.tracking.AutoTrackable):
    """What the modules share: the model's weights, its tokenizer and its labels."""

    def __init__(
        self, predictor: predictors.Predictor, ids_of: Callable[..., Any] = text_graph.ids_of
    ):
        session = predictor.session
        self.weights = {n: v.value for n, v in named_weights(predictor.model).items()}
        self.ids = ids_of(session.tokenizer)
        self.most = session.max_seq_length
        self.names = tf.constant(list(predictor.labels), tf.string)
        # Not as attributes, which a SavedModel would hold too.
        self._outputs = lambda batch: predictor.compute(predictor.model, batch)
        self.pack = lambda segments, length: text_graph.pack(segments, length, session.tokenizer)

    def labels(self) -> Any:
        """Returns the signature without inputs that tells the labels [C]."""
        return tf.function(lambda: {"labels": self.names}, input_signature=[])

    def length(self, segments: Sequence[tf.RaggedTensor]):
        """Returns the places that the longest row of these texts asks for, as far as they are."""
        needed = sum(segment.row_lengths() for segment in segments)
        longest = tf.cast(tf.reduce_max(tf.concat([[0], needed], 0)), tf.int32)
        return tf.minimum(longest + len(segments) + 1, self.most)

    def computed(self, packed, **more):
        """Returns what the predictor computes of packed rows [B, L]."""
        return self._outputs({**model_inputs(packed), **more})


def model_inputs(packed):
    """Returns the rows that `text_graph.pack` makes, by the model's names."""
    return {
        "input_ids": packed["input_word_ids"], "input_mask": packed["input_mask"],
        "segment_ids": packed["input_type_ids"],
    }
