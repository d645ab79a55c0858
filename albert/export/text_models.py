"""Exports a fine-tuned model with its tokenizer as a SavedModel from texts to answers.

Legend: B batch, C labels or options, K candidates, L sequence, W words, (n) a ragged number.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from albert.export import text_graph, text_offsets
from albert.formats import saved_model
from albert.inference import predictors
from albert.inference.question_answering import BeamQuestionAnswerer, QuestionAnswerer
from albert.modeling import named_weights
from albert.tasks import conll, race

_IMPOSSIBLE = float("-inf")


def export(
    predictor: predictors.TaskPredictor, path: str, complete: Callable[[str], None]
) -> list[str]:
    """Publishes a SavedModel whose signatures take strings, and returns their names.

    Args:
      predictor: the model's predictor, see `fine_tuned.predictor_of`.
      complete: a function that adds files to the directory, see `saved_model.publish`.

    Raises:
      FlagError: tensorflow-text is not installed.
    """
    kinds = {
        predictors.TokenClassifier.task: _WordLabels, QuestionAnswerer.task: _Spans,
        predictors.ChoicePredictor.task: _Choices,
    }
    module = kinds.get(predictor.task, _TextLabels)(predictor)
    signatures = module.signatures()
    saved_model.publish(module, path, signatures, complete)
    return list(signatures)


def _texts(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name=name)


class _TextModel(tf.__internal__.tracking.AutoTrackable):
    """The base class of the modules: the model's weights, its tokenizer and its labels."""

    def __init__(
        self, predictor: predictors.TaskPredictor,
        ids_of: Callable[..., Any] = text_graph.ids_of,
    ):
        session, model = predictor.session, predictor.load_model()
        self.weights = {n: v.value for n, v in named_weights(model).items()}
        self.ids = ids_of(session.tokenizer)
        self.max_seq_length = session.max_seq_length
        self.names = tf.constant(list(predictor.labels), tf.string)
        # As functions, since a SavedModel would store other attributes.
        self.compute = lambda batch: predictor.compute(model, batch)
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


def _float_logits(outputs):
    return tf.cast(outputs["logits"], tf.float32)


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
        logits = _float_logits(self.compute(inputs))
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
            logits = _float_logits(self.compute(inputs))
            logits = tf.gather(logits, firsts, batch_dims=1)  # [B, W, C]
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


# === Part of a passage ===


class _Spans(_TextModel):
    """From questions and passages [B] to the answer in the passage.

    Passages that don't fit in a sequence are truncated.
    """

    def __init__(self, predictor: QuestionAnswerer):
        super().__init__(predictor, text_offsets.ids_of)
        self._is_beam = isinstance(predictor, BeamQuestionAnswerer)
        self._max_query_length = predictor.max_query_length()
        self._n_best_size, self._max_answer_length = (
            predictor.sizes[name] for name in ("n_best_size", "max_answer_length")
        )
        self._ends_of_start = predictor.model_options["end_n_top"] if self._is_beam else None
        self._fallback = tf.constant(predictor.fallback["answer"])
        self._no_window = predictor.fallback.get("no_answer_score")
        self._threshold = predictor.threshold if self._is_beam else None
        self._strip = text_graph.stripper()

    def signatures(self) -> dict[str, Any]:
        """Returns the function of `question` and `passage`."""
        @tf.function(input_signature=[_texts("question"), _texts("passage")])
        def answer(question, passage):
            passage = text_graph.without_bad_bytes(passage)
            query = self.ids(question)[:, : self._max_query_length]
            ids, firsts, lasts = self.ids.with_offsets(passage)
            ids = _cut(ids, self.max_seq_length - 3 - query.row_lengths())
            offset, size = query.row_lengths() + 2, ids.row_lengths()
            outputs = self._scores(self.packed([query, ids]), offset, size)
            starts, ends, scores = self._candidates(outputs)
            scores = tf.where(self._are_plausible(starts, ends, offset, size), scores, _IMPOSSIBLE)
            is_possible = tf.math.is_finite(scores)
            # First and last characters of each candidate; those of token 0 if it is impossible.
            first, last = (
                tf.gather(
                    tf.pad(characters.to_tensor(), [[0, 0], [0, 1]]),
                    tf.where(is_possible, positions - offset[:, None], 0), batch_dims=1,
                )
                for characters, positions in ((firsts, starts), (lasts, ends))
            )
            answers = self._best(self._parts(passage, first, last), scores)
            if self._is_beam:
                odds = tf.where(tf.equal(size, 0), self._no_window, outputs["cls_logits"])
                answers |= {"no_answer_score": odds, "best_answer": answers["answer"]}
                answers["answer"] = tf.where(odds > self._threshold, "", answers["answer"])
            return answers

        return {"serving_default": answer}

    def _scores(self, inputs, offset, size):
        """Returns the model's outputs, in which no candidate begins or ends in padding."""
        if not self._is_beam:
            used = tf.equal(inputs["input_mask"], 1)
            return {n: tf.where(used, x, _IMPOSSIBLE) for n, x in self.compute(inputs).items()}
        positions = tf.range(tf.shape(inputs["input_mask"], tf.int64)[1])[None]
        is_passage = (positions >= offset[:, None]) & (positions < (offset + size)[:, None])
        allowed = tf.cast(is_passage | tf.equal(positions, 0), tf.int32)
        return self.compute({**inputs, "allowed": allowed})

    def _candidates(self, outputs):
        """Returns the first and last position and the score of each candidate, [B, K] each."""
        if self._is_beam:
            starts, start_scores = (
                tf.repeat(outputs[name], self._ends_of_start, axis=1)
                for name in ("start_top_index", "start_top_log_probs")
            )
            ends, end_scores = outputs["end_top_index"], outputs["end_top_log_probs"]
        else:
            logits = [outputs[name] for name in ("start_logits", "end_logits")]
            count = tf.minimum(self._n_best_size, tf.shape(logits[0])[1])
            (start_scores, starts), (end_scores, ends) = (tf.math.top_k(x, count) for x in logits)
            starts, start_scores = (tf.repeat(x, count, axis=1) for x in (starts, start_scores))
            ends, end_scores = (tf.tile(x, [1, count]) for x in (ends, end_scores))
        scores = tf.cast(start_scores, tf.float64) + tf.cast(end_scores, tf.float64)
        return tf.cast(starts, tf.int64), tf.cast(ends, tf.int64), scores

    def _are_plausible(self, starts, ends, offset, size):
        offset, limit = offset[:, None], (offset + size)[:, None]
        is_short = ends - starts < self._max_answer_length
        return (starts >= offset) & (ends < limit) & (ends >= starts) & is_short

    def _parts(self, passage, firsts, lasts):
        """Returns the text of each candidate [B, K]."""
        passages = tf.broadcast_to(passage[:, None], tf.shape(firsts))
        sizes = tf.maximum(lasts - firsts + 1, 0)
        return self._strip(tf.strings.substr(passages, firsts, sizes, unit="UTF8_CHAR"))

    def _best(self, parts, scores):
        """Returns the best candidate and its probability among the best different texts."""
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        parts, scores = (tf.gather(x, order, batch_dims=1) for x in (parts, scores))
        keys = tf.strings.to_hash_bucket_strong(parts, 2**63 - 1, key=[1, 2])
        count = tf.shape(keys)[1]
        is_before = tf.range(count)[None, :] < tf.range(count)[:, None]
        is_repeated = tf.reduce_any(tf.equal(keys[:, :, None], keys[:, None, :]) & is_before, -1)
        is_new = tf.math.is_finite(scores) & ~is_repeated
        number = tf.cumsum(tf.cast(is_new, tf.int32), axis=1)
        counts = is_new & (number <= self._n_best_size)
        weights = tf.where(counts, tf.exp(scores - scores[:, :1]), 0.0)
        exists = tf.math.is_finite(scores[:, 0])
        probability = tf.where(exists, 1.0 / tf.reduce_sum(weights, 1), 1.0)
        return {
            "answer": tf.where(exists, parts[:, 0], self._fallback),
            "probability": tf.cast(probability, tf.float32),
        }


def _cut(ids: tf.RaggedTensor, limits) -> tf.RaggedTensor:
    """Returns the first `limits` [B] ids of each text [B, (n)]."""
    positions = tf.ragged.range(ids.row_lengths())
    return tf.ragged.boolean_mask(ids, positions < limits[:, None])


# === One of several options ===


class _Choices(_TextModel):
    """From passages, questions [B] and options [B, C] to the number of an option."""

    def __init__(self, predictor: predictors.ChoicePredictor):
        super().__init__(predictor)
        self._max_ending_length = predictor.max_ending_length
        self._num_choices = predictor.num_choices

    def signatures(self) -> dict[str, Any]:
        """Returns the function of `passage`, `question` and `options`."""
        count = self._num_choices
        options_spec = tf.TensorSpec([None, count], tf.string, name="options")

        @tf.function(input_signature=[_texts("passage"), _texts("question"), options_spec])
        def choose(passage, question, options):
            options = self.ids.clean(tf.reshape(options, [-1]))
            endings = _filled_in(tf.repeat(self.ids.clean(question), count), options)
            endings = self.ids.encode(endings)[:, -self._max_ending_length :]
            context = self.ids.encode(self.ids.clean(passage))
            context = tf.gather(context, tf.repeat(tf.range(tf.shape(passage)[0]), count))
            context = _cut(context, self.max_seq_length - 3 - endings.row_lengths())
            logits = _float_logits(self.compute({
                name: tf.reshape(value, [-1, count, tf.shape(value)[1]])
                for name, value in self.packed([context, endings]).items()
            }))
            best = tf.argmax(logits, -1, output_type=tf.int32)
            return {"choice": best, "probabilities": tf.nn.softmax(logits)}

        return {"serving_default": choose, "label_names": self.label_names()}


def _filled_in(questions, options):
    """Returns `race.endings_of`: questions [B * C] with their options in the blanks, or at the end."""
    parts = tf.strings.split(questions, race.BLANK).with_row_splits_dtype(tf.int64)
    positions = tf.ragged.range(parts.row_lengths()).values
    is_last = tf.equal(positions + 1, tf.repeat(parts.row_lengths(), parts.row_lengths()))
    fillings = tf.where(is_last, "", tf.repeat(options, parts.row_lengths()))
    filled = tf.strings.reduce_join(
        parts.with_values(tf.strings.join([parts.values, fillings])), axis=1
    )
    has_blank = parts.row_lengths() > 1
    return tf.where(has_blank, filled, tf.strings.join([questions, options], separator=" "))
