"""Models for questions as SavedModels: a part of a passage, or one of several options.

Legend: B batch, C options, K candidates, L places of a row, (n) a ragged number.
"""

from typing import Any

import tensorflow as tf

from albert.export import text_graph, text_places
from albert.export.text_module import Answers, model_inputs, texts
from albert.inference import predictors
from albert.tasks import race

_IMPOSSIBLE = float("-inf")


# === Part of a passage ===


class Spans(Answers):
    """Questions and passages [B] to the passage's own characters that answer, as `Reader` does.

    Of a passage that is longer than a row only the beginning is read.
    """

    def __init__(self, predictor: predictors.Reader):
        super().__init__(predictor, text_places.placed_of)
        self._doubts = isinstance(predictor, predictors.DoubtingReader)
        self._longest_question = predictor.longest_question()
        self._num_best, self._longest_answer = (
            predictor.sizes[name] for name in ("n_best_size", "max_answer_length")
        )
        self._ends_of_start = predictor.model_options["end_n_top"] if self._doubts else None
        self._fallback = tf.constant(predictor.fallback["answer"])
        self._no_window = predictor.fallback.get("no_answer_score")
        self._threshold = predictor.threshold if self._doubts else None
        self._strip = text_graph.stripper()

    def signatures(self) -> dict[str, Any]:
        """Returns what takes `question` and `passage`."""
        @tf.function(input_signature=[texts("question"), texts("passage")])
        def answer(question, passage):
            passage = text_graph.without_bad_bytes(passage)
            query = self.ids(question)[:, : self._longest_question]
            ids, firsts, lasts = self.ids.placed(passage)
            ids = cut(ids, self.most - 3 - query.row_lengths())
            rows = self.pack([query, ids], self.length([query, ids]))
            offset, size = query.row_lengths() + 2, ids.row_lengths()
            outputs = self._scores(rows, offset, size)
            starts, ends, scores = self._candidates(outputs)
            scores = tf.where(self._are_plausible(starts, ends, offset, size), scores, _IMPOSSIBLE)
            spans = [
                tf.gather(tf.pad(at.to_tensor(), [[0, 0], [0, 1]]), place, batch_dims=1)
                for at, place in ((firsts, starts), (lasts, ends))
                for place in [tf.where(tf.math.is_finite(scores), place - offset[:, None], 0)]
            ]
            found = self._best(self._parts(passage, *spans), scores)
            if self._doubts:
                odds = tf.where(tf.equal(size, 0), self._no_window, outputs["cls_logits"])
                found |= {"no_answer_score": odds, "best_answer": found["answer"]}
                found["answer"] = tf.where(odds > self._threshold, "", found["answer"])
            return found

        return {"serving_default": answer}

    def _scores(self, rows, offset, size):
        """Returns the model's outputs; no candidate begins or ends in the padding."""
        if not self._doubts:
            outputs = self.computed(rows)
            used = tf.equal(rows["input_mask"], 1)
            return {name: tf.where(used, x, _IMPOSSIBLE) for name, x in outputs.items()}
        places = tf.range(tf.shape(rows["input_mask"], tf.int64)[1])[None]
        is_passage = (places >= offset[:, None]) & (places < (offset + size)[:, None])
        return self.computed(rows, allowed=tf.cast(is_passage | tf.equal(places, 0), tf.int32))

    def _candidates(self, outputs):
        """Returns first and last places in the row, and scores of each pair, [B, K]."""
        if self._doubts:
            starts, start_scores = (
                tf.repeat(outputs[name], self._ends_of_start, axis=1)
                for name in ("start_top_index", "start_top_log_probs")
            )
            ends, end_scores = outputs["end_top_index"], outputs["end_top_log_probs"]
        else:
            logits = [outputs[name] for name in ("start_logits", "end_logits")]
            most = tf.minimum(self._num_best, tf.shape(logits[0])[1])
            (start_scores, starts), (end_scores, ends) = (tf.math.top_k(x, most) for x in logits)
            starts, start_scores = (tf.repeat(x, most, axis=1) for x in (starts, start_scores))
            ends, end_scores = (tf.tile(x, [1, most]) for x in (ends, end_scores))
        scores = tf.cast(start_scores, tf.float64) + tf.cast(end_scores, tf.float64)
        return tf.cast(starts, tf.int64), tf.cast(ends, tf.int64), scores

    def _are_plausible(self, starts, ends, offset, size):
        offset, behind = offset[:, None], (offset + size)[:, None]
        is_short = ends - starts < self._longest_answer
        return (starts >= offset) & (ends < behind) & (ends >= starts) & is_short

    def _parts(self, passage, firsts, lasts):
        """Returns the text of each candidate [B, K]."""
        passages = tf.broadcast_to(passage[:, None], tf.shape(firsts))
        sizes = tf.maximum(lasts - firsts + 1, 0)
        return self._strip(tf.strings.substr(passages, firsts, sizes, unit="UTF8_CHAR"))

    def _best(self, parts, scores):
        """Returns the best candidate, and its probability among the best of other texts."""
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        parts, scores = (tf.gather(x, order, batch_dims=1) for x in (parts, scores))
        keys = tf.strings.to_hash_bucket_strong(parts, 2**63 - 1, key=[1, 2])
        count = tf.shape(keys)[1]
        is_before = tf.range(count)[None, :] < tf.range(count)[:, None]
        is_repeated = tf.reduce_any(tf.equal(keys[:, :, None], keys[:, None, :]) & is_before, -1)
        is_new = tf.math.is_finite(scores) & ~is_repeated
        number = tf.cumsum(tf.cast(is_new, tf.int32), axis=1)
        counts = is_new & (number <= self._num_best)
        weights = tf.where(counts, tf.exp(scores - scores[:, :1]), 0.0)
        exists = tf.math.is_finite(scores[:, 0])
        probability = tf.where(exists, 1.0 / tf.reduce_sum(weights, 1), 1.0)
        return {
            "answer": tf.where(exists, parts[:, 0], self._fallback),
            "probability": tf.cast(probability, tf.float32),
        }


def cut(ids: tf.RaggedTensor, most) -> tf.RaggedTensor:
    """Returns the first `most` [B] ids of each text [B, (n)]."""
    places = tf.ragged.range(ids.row_lengths())
    return tf.ragged.boolean_mask(ids, places < most[:, None])


# === One of several options ===


class Choices(Answers):
    """Passages, questions [B] and options [B, C] to the number of an option, as `Chooser` does."""

    def __init__(self, predictor: predictors.Chooser):
        super().__init__(predictor)
        self._longest_ending = predictor.longest_ending

    def signatures(self) -> dict[str, Any]:
        """Returns what takes `passage`, `question` and `options`, and what tells their names."""
        options_of = tf.TensorSpec([None, race.NUM_CHOICES], tf.string, name="options")

        @tf.function(input_signature=[texts("passage"), texts("question"), options_of])
        def choose(passage, question, options):
            count = race.NUM_CHOICES
            options = self.ids.clean(tf.reshape(options, [-1]))
            endings = _filled_in(tf.repeat(self.ids.clean(question), count), options)
            endings = self.ids.encode(endings)[:, -self._longest_ending :]
            context = self.ids.encode(self.ids.clean(passage))
            context = tf.gather(context, tf.repeat(tf.range(tf.shape(passage)[0]), count))
            context = cut(context, self.most - 3 - endings.row_lengths())
            rows = self.pack([context, endings], self.length([context, endings]))
            outputs = self._outputs({
                name: tf.reshape(value, [-1, count, tf.shape(value)[1]])
                for name, value in model_inputs(rows).items()
            })
            best = tf.argmax(outputs["logits"], -1, output_type=tf.int32)
            return {"choice": best, "probabilities": outputs["probabilities"]}

        return {"serving_default": choose, "label_names": self.labels()}


def _filled_in(questions, options):
    """Returns `race.endings_of`: each question [B * C] with its option in its blanks, or behind."""
    parts = tf.strings.split(questions, race.BLANK).with_row_splits_dtype(tf.int64)
    places = tf.ragged.range(parts.row_lengths()).values
    is_last = tf.equal(places + 1, tf.repeat(parts.row_lengths(), parts.row_lengths()))
    follows = tf.where(is_last, "", tf.repeat(options, parts.row_lengths()))
    filled = tf.strings.reduce_join(
        parts.with_values(tf.strings.join([parts.values, follows])), axis=1
    )
    has_blank = parts.row_lengths() > 1
    return tf.where(has_blank, filled, tf.strings.join([questions, options], separator=" "))
