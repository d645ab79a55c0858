"""Exports a fine-tuned model with its tokenizer as a SavedModel from texts to answers.

Legend: B batch, C labels, W words, (n) a ragged number.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from albert.export import text_graph
from albert.formats import model_card, saved_model
from albert.inference import predictors
from albert.modeling import named_weights
from albert.tasks import conll


def export(predictor: predictors.TaskPredictor, path: str) -> list[str]:
    """Publishes a SavedModel whose signatures take strings, with its card; returns their names.

    Args:
      predictor: the model's predictor, see `fine_tuned.predictor_of`.

    Raises:
      FlagError: tensorflow-text is not installed.
    """
    is_of_words = predictor.task == predictors.TokenClassifier.task
    module = (_WordLabels if is_of_words else _TextLabels)(predictor)
    source, name = predictor.session.source, os.path.basename(os.path.abspath(path))
    inputs = ["text", "text_pair"][: predictor.min_texts]
    given = ", ".join(f'{one}=tf.constant(["A text."])' for one in inputs)
    signatures = module.signatures()
    with model_card.publish_model(path, saved_model.MAIN_FILE) as scratch:
        saved_model.save(module, scratch, signatures)
        model_card.of_weights(
            scratch, source.weights(), source.config, tokenizer=predictor.session.tokenizer, name=name,
            metadata=source.metadata, usage=model_card.filled("texts.txt", name=name, inputs=given),
            note="A SavedModel with the tokenizer inside. It needs tensorflow and tensorflow-text.",
        )
    return list(signatures)


def _texts(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name=name)


class _TextModel(tf.__internal__.tracking.AutoTrackable):
    """The base class of the modules: the model's weights, its tokenizer and its labels."""

    def __init__(self, predictor: predictors.TaskPredictor):
        session, model = predictor.session, predictor.session.keras_model(predictor.class_name)
        self.weights = {n: v.value for n, v in named_weights(model).items()}
        self.ids = text_graph.ids_of(session.tokenizer)
        self.max_seq_length = session.max_seq_length
        self.names = tf.constant(list(predictor.labels), tf.string)
        # As functions, since a SavedModel would store other attributes.
        self.logits = lambda batch: tf.cast(model(batch, training=False)["logits"], tf.float32)
        self.pack = lambda segments, length: text_graph.pack(segments, length, session.tokenizer)

    def label_names(self) -> Any:
        """Returns a signature without inputs that returns the labels [C]."""
        return tf.function(lambda: {"labels": self.names}, input_signature=[])

    def packed(self, segments: Sequence[tf.RaggedTensor]) -> dict[str, Any]:
        """Packs one or two ragged texts [B, (n)] as the model's inputs."""
        return _model_inputs(self.pack(segments, self.length(segments)))

    def length(self, segments: Sequence[tf.RaggedTensor]):
        """Returns the length of the longest sequence of these texts, at most the maximum."""
        needed = sum(segment.row_lengths() for segment in segments)
        longest = tf.cast(tf.reduce_max(tf.concat([[0], needed], 0)), tf.int32)
        return tf.minimum(longest + len(segments) + 1, self.max_seq_length)


def _model_inputs(packed) -> dict[str, Any]:
    """Returns the outputs of `text_graph.pack` under the model's names."""
    return {
        "input_ids": packed["input_word_ids"], "input_mask": packed["input_mask"],
        "segment_ids": packed["input_type_ids"],
    }


# === Labels ===


class _TextLabels(_TextModel):
    """From texts [B], or pairs of texts, to one label, several, or numbers."""

    def __init__(self, predictor: predictors.TextClassifier):
        super().__init__(predictor)
        self._task, self._threshold = predictor.task, getattr(predictor, "threshold", None)
        self._min_texts, self._max_texts = predictor.min_texts, predictor.max_texts

    def signatures(self) -> dict[str, Any]:
        """Returns functions of `text`, of `text` and `text_pair`, or both, as in training."""
        @tf.function(input_signature=[_texts("text")])
        def single(text):
            return self._answers(self.packed([self.ids(text)]))

        @tf.function(input_signature=[_texts("text"), _texts("text_pair")])
        def pair(text, text_pair):
            return self._answers(self._pairs(self.ids(text), self.ids(text_pair)))

        signatures = {"serving_default": single if self._min_texts == 1 else pair}
        if self._min_texts < self._max_texts:
            signatures["pairs"] = pair
        if self._task != predictors.Regressor.task:
            signatures["label_names"] = self.label_names()
        return signatures

    def _pairs(self, first: tf.RaggedTensor, second: tf.RaggedTensor):
        length = self.length([first, second])
        singles, pairs = self.pack([first], length), self.pack([first, second], length)
        # A second text without tokens does not count.
        is_single = tf.equal(second.row_lengths(), 0)[:, None]
        return _model_inputs({n: tf.where(is_single, singles[n], pairs[n]) for n in pairs})

    def _answers(self, inputs):
        logits = self.logits(inputs)
        if self._task == predictors.Regressor.task:
            return {"value": logits[:, 0] if logits.shape[-1] == 1 else logits}
        if self._task == predictors.MultiLabelClassifier.task:
            probabilities = tf.sigmoid(logits)
            return {"probabilities": probabilities, "is_label": probabilities >= self._threshold}
        best, probabilities = tf.argmax(logits, -1), tf.nn.softmax(logits)
        return {
            "label": tf.gather(self.names, best),
            "probability": tf.gather(probabilities, best, batch_dims=1),
            "probabilities": probabilities,
        }


class _WordLabels(_TextModel):
    """From texts [B] to their words [B, W] with labels; texts of fewer words end in "".

    Words beyond the maximum sequence length have the label "" and the probability 0.
    """

    def __init__(self, predictor: predictors.TokenClassifier):
        super().__init__(predictor)
        self._unknown = conll.unknown_id(predictor.session.tokenizer)
        self._split = _splitter(predictors.WORD.pattern)

    def signatures(self) -> dict[str, Any]:
        """Returns the function that takes `text`."""
        @tf.function(input_signature=[_texts("text")])
        def label(text):
            words = self._split(text)  # [B, (W)]
            ids = self._ids_of_words(words)  # [B, (W), (n)]
            rows = ids.merge_dims(1, 2)
            inputs = self.packed([rows])
            length = tf.shape(inputs["input_ids"], tf.int64)[1]
            sizes = ids.values.row_lengths()
            ends = tf.cumsum(sizes) - tf.gather(rows.row_splits, words.value_rowids())
            # [CLS] is before the first token, [SEP] after the last.
            is_there = words.with_values(ends <= length - 2).to_tensor()
            firsts = words.with_values(ends - sizes + 1).to_tensor() * tf.cast(is_there, tf.int64)
            logits = tf.gather(self.logits(inputs), firsts, batch_dims=1)  # [B, W, C]
            labels = tf.gather(self.names, tf.argmax(logits, -1))
            probabilities = tf.reduce_max(tf.nn.softmax(logits), -1)
            return {
                "words": words.to_tensor(""),
                "labels": tf.where(is_there, labels, ""),
                "probabilities": tf.where(is_there, probabilities, 0.0),
            }

        return {"serving_default": label, "label_names": self.label_names()}

    def _ids_of_words(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns `conll.encode_words` of words [B, (W)], cut to the maximum sequence length."""
        ids = self.ids(words.values)
        is_empty = tf.equal(ids.row_lengths(), 0)
        unknown = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(tf.cast(is_empty, tf.int32))], self._unknown),
            tf.cast(is_empty, tf.int64),
        )
        return words.with_values(tf.concat([ids, unknown], 1)[:, : self.max_seq_length - 2])


def _splitter(word: str) -> Callable:
    r"""Returns a function from texts [B] to all their words [B, (W)] that match a pattern.

    As in Python, `\w` and `\S` match all of Unicode.
    """
    text = text_graph.import_tensorflow_text()
    letters, blanks = (
        text_graph.character_class(lambda c, kind=kind: bool(re.match(kind, c)))
        for kind in (r"\w", r"\s")
    )
    pattern = word.replace(r"\w", letters).replace(r"\S", "[^" + blanks[1:])

    def split(texts):
        texts = text_graph.without_bad_bytes(texts)
        parts = text.regex_split(texts, pattern, pattern)  # words and separators
        is_word = tf.strings.regex_full_match(parts.values, pattern)
        return tf.ragged.boolean_mask(parts, parts.with_values(is_word))

    return split
