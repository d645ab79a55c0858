"""A fine-tuned model as a SavedModel: text in, answers out, with the tokenizer inside.

Legend: B batch, C labels, L places of a row, W words of a text, (n) a ragged number.
"""

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from albert.export import text_graph, text_questions
from albert.export.text_module import Answers, texts
from albert.formats import saved_model
from albert.inference import heads, predictors
from albert.tasks import conll


def export(
    predictor: predictors.Predictor, path: str, complete: Callable[[str], None]
) -> list[str]:
    """Publishes a SavedModel whose signatures take strings, and returns their names.

    Args:
      predictor: what answers for the model; see `heads.predictor_of`.
      complete: adds what is published with it; see `saved_model.publish`.

    Raises:
      FlagError: tensorflow-text is not installed.
    """
    kinds = {
        heads.TOKENS: _WordLabels, heads.QUESTIONS: text_questions.Spans,
        heads.CHOICE: text_questions.Choices,
    }
    module = kinds.get(predictor.task, _TextLabels)(predictor)
    signatures = module.signatures()
    saved_model.publish(module, path, signatures, complete)
    return list(signatures)


class _TextLabels(Answers):
    """Texts [B], or pairs of texts, to a label, several, or numbers."""

    def __init__(self, predictor: predictors.Predictor):
        super().__init__(predictor)
        self._task, self._least, self._most_texts = predictor.task, predictor.least, predictor.most

    def signatures(self) -> dict[str, Any]:
        """Returns what takes `text`, `text` and `text_pair`, or either, as the model was trained."""
        @tf.function(input_signature=[texts("text")])
        def single(text):
            rows = [self.ids(text)]
            return self._named(self.computed(self.pack(rows, self.length(rows))))

        @tf.function(input_signature=[texts("text"), texts("text_pair")])
        def pair(text, text_pair):
            return self._named(self.computed(self._pairs(self.ids(text), self.ids(text_pair))))

        found = {"serving_default": single if self._least == 1 else pair}
        if self._least < self._most_texts:
            found["pairs"] = pair
        if self._task != heads.REGRESSION:
            found["label_names"] = self.labels()
        return found

    def _pairs(self, first: tf.RaggedTensor, second: tf.RaggedTensor):
        length = self.length([first, second])
        singles, pairs = self.pack([first], length), self.pack([first, second], length)
        # A second text of no pieces is no text.
        is_single = tf.equal(second.row_lengths(), 0)[:, None]
        return {name: tf.where(is_single, singles[name], pairs[name]) for name in pairs}

    def _named(self, outputs):
        if self._task == heads.REGRESSION:
            value = outputs["value"]
            return {"value": value[:, 0] if value.shape[-1] == 1 else value}
        probabilities = outputs["probabilities"]
        if self._task == heads.MULTI_LABEL:
            return {"probabilities": probabilities, "is_label": probabilities >= 0.5}
        best = tf.argmax(outputs["logits"], -1)
        return {
            "label": tf.gather(self.names, best),
            "probability": tf.gather(probabilities, best, batch_dims=1),
            "probabilities": probabilities,
        }


class _WordLabels(Answers):
    """Texts [B] to their words [B, W], each with a label; texts of fewer words end in "".

    A word that lies beyond the places of a row has the label "" and the probability 0.
    """

    def __init__(self, predictor: predictors.Predictor):
        super().__init__(predictor)
        self._unknown = conll.unknown_id(predictor.session.tokenizer)
        self._split = _splitter(predictors.WORD.pattern)

    def signatures(self) -> dict[str, Any]:
        """Returns what takes `text`."""
        @tf.function(input_signature=[texts("text")])
        def label(text):
            words = self._split(text)  # [B, (W)]
            ids = self._ids_of_words(words)  # [B, (W), (n)]
            rows = ids.merge_dims(1, 2)
            length = self.length([rows])
            answers = self.computed(self.pack([rows], length))
            sizes = ids.values.row_lengths()
            ends = tf.cumsum(sizes) - tf.gather(rows.row_splits, words.value_rowids())
            # [CLS] stands before the first piece, [SEP] behind the last.
            is_there = words.with_values(ends <= tf.cast(length, tf.int64) - 2).to_tensor()
            places = words.with_values(ends - sizes + 1).to_tensor() * tf.cast(is_there, tf.int64)
            logits, probabilities = (
                tf.gather(answers[name], places, batch_dims=1)  # [B, W, C]
                for name in ("logits", "probabilities")
            )
            labels = tf.gather(self.names, tf.argmax(logits, -1))
            most = tf.reduce_max(probabilities, -1)
            return {
                "words": words.to_tensor(""),
                "labels": tf.where(is_there, labels, ""),
                "probabilities": tf.where(is_there, most, 0.0),
            }

        return {"serving_default": label, "label_names": self.labels()}

    def _ids_of_words(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns `conll.encode_words` of words [B, (W)], cut to the places of a row."""
        ids = self.ids(words.values)
        is_empty = tf.equal(ids.row_lengths(), 0)
        unknown = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(tf.cast(is_empty, tf.int32))], self._unknown),
            tf.cast(is_empty, tf.int64),
        )
        return words.with_values(tf.concat([ids, unknown], 1)[:, : self.most - 2])


def _splitter(word: str) -> Callable:
    r"""Returns a function from texts [B] to their words [B, (W)]: all that match a pattern.

    The pattern is Python's: `\w` and `\S` are of all of Unicode.
    """
    text = text_graph.import_tensorflow_text()
    letters, blanks = (
        text_graph.character_class(lambda c, kind=kind: bool(re.match(kind, c)))
        for kind in (r"\w", r"\s")
    )
    pattern = word.replace(r"\w", letters).replace(r"\S", "[^" + blanks[1:])

    def split(texts):
        texts = text_graph.without_bad_bytes(texts)
        found = text.regex_split(texts, pattern, pattern)  # and what is between words
        is_word = tf.strings.regex_full_match(found.values, pattern)
        return tf.ragged.boolean_mask(found, found.with_values(is_word))

    return split
