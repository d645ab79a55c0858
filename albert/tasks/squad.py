"""Answers as spans of a passage: SQuAD 1.1, and 2.0 with unanswerable questions.

Files become questions, questions windows of fixed length, and windows records. From scores to
answers: `squad_answers`.

Legend: B batch, L sequence, K and K2 beam sizes for first and last tokens, T tokens.
"""

import dataclasses
import functools
import json
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.engines import LazyModule
from albert.errors import DataError, some
from albert.formats.metadata import metadata_at
from albert.records.examples import FeatureSpec
from albert.records.features import join_texts
from albert.records.windows import spans
from albert.storage import files
from albert.tasks import lines, squad_answers
from albert.tasks.squad_answers import Question, Window
from albert.tasks.task import Task, chosen, mean, real
from albert.text.offsets import encode_with_offsets

if TYPE_CHECKING:
    from albert.tokenization import FullTokenizer

keras, ops, modeling = map(LazyModule, ("keras", "keras.ops", "albert.modeling"))
log = logging.getLogger("albert")

# The original's. Questions are shuffled once, before they are split into windows.
_SHUFFLE_SEED = 12345
_FIRST_UNIQUE_ID = 1_000_000_000  # of the first window
_member = functools.partial(lines.member, form="SQuAD")


# === Files ===


def read_questions(path: str, is_training: bool) -> list[Question]:
    """Returns the questions of a SQuAD file, of version 1.1 or 2.0, in order.

    In training, a question whose first answer is not where the file says is skipped, with a warning;
    otherwise the answers of all are unknown if no question has any and none is marked impossible, as
    in some test sets.

    Raises:
      DataError: not a SQuAD file, or a duplicate id.
    """
    questions: dict[str, Question] = {}
    any_impossible = False
    for number, (passage, qa) in enumerate(_passages(path, is_training), 1):
        where = f"{path}: question {number}"
        qas_id, question = _member(qa, "id", str, where), _member(qa, "question", str, where)
        if qas_id in questions:
            raise DataError(f"{where}: duplicate id {qas_id!r}")
        is_impossible, answers, start = qa.get("is_impossible", False), None, -1
        if not isinstance(is_impossible, bool):
            raise DataError(f"{where}: 'is_impossible' must be true or false, got {is_impossible!r:.60}")
        any_impossible |= is_impossible
        if is_impossible and (is_training or qa.get("answers") is None):
            answers = ()
        elif is_training or qa.get("answers") is not None:
            found = _member(qa, "answers", list, where)
            answers = tuple(_member(answer, "text", str, where) for answer in found)
            if is_training and found:
                start = _member(found[0], "answer_start", int, where)
        questions[qas_id] = Question(qas_id, question, passage, answers, start)
    if not questions:
        raise DataError(f"{path}: no questions")
    if not is_training:
        if any_impossible or any(one.answers for one in questions.values()):
            return list(questions.values())
        return [dataclasses.replace(one, answers=None) for one in questions.values()]
    if num_several := sum(len(one.answers) > 1 for one in questions.values()):
        log.warning("%s: %s of %s questions have several answers; training uses the first",
                    path, f"{num_several:,}", f"{len(questions):,}")
    skipped = [
        one.qas_id for one in questions.values() if one.answers and not (
            one.answers[0] and one.start >= 0 and one.passage.startswith(one.answers[0], one.start))
    ]
    if skipped:
        log.warning(
            "%s: skipped %s of %s questions, whose answer is not in the passage at answer_start: %s",
            path, f"{len(skipped):,}", f"{len(questions):,}", some(skipped),
        )
    if len(skipped) == len(questions):
        raise DataError(f"{path}: no question has its answer where answer_start says")
    return [one for one in questions.values() if one.qas_id not in {*skipped}]


def _passages(path: str, is_training: bool) -> Iterator[tuple[str, Any]]:
    """Yields each (passage, question) of a file."""
    for _, value in lines.json_values(path, "train_file" if is_training else "predict_file"):
        for article in _member(value, "data", list, path):
            for paragraph in _member(article, "paragraphs", list, path):
                passage = _member(paragraph, "context", str, path)
                for qa in _member(paragraph, "qas", list, path):
                    yield passage, qa


def known_answers(
    questions: Sequence[Question], with_negative: bool
) -> dict[str, tuple[str, ...]] | None:
    """Returns the answers by question id; None if those of any question are unknown.

    A question of SQuAD 1.1 always has an answer: without one, it is unknown.
    """
    known = {question.qas_id: question.answers for question in questions}
    is_known = all(x is not None if with_negative else x for x in known.values())
    return known if is_known else None


# === Windows ===


def make_windows(
    questions: Sequence[Question], tokenizer: "FullTokenizer", *, max_seq_length: int, doc_stride: int,
    max_query_length: int,
) -> Iterator[Window]:
    """Yields the windows of every question, in order.

    A passage that does not fit becomes several windows, which begin `doc_stride` tokens apart.
    Questions whose passage has no tokens are skipped, with a warning.
    """
    passages: dict[str, tuple[list[int], np.ndarray]] = {}  # several questions share one
    skipped = []
    for index, question in enumerate(questions):
        if question.passage not in passages:
            ids, positions = encode_with_offsets(tokenizer, question.passage)
            bounds = [(begin, max(begin, end - 1)) for begin, end in positions]
            passages[question.passage] = ids, np.array(bounds).reshape(-1, 2)
        ids, bounds = passages[question.passage]
        if not ids:
            skipped.append(question.qas_id)
            continue
        query = tokenizer.encode_text(question.question)[:max_query_length]
        offset = len(query) + 2
        parts = spans(len(ids), max_seq_length - offset - 1, doc_stride)
        best, answer = _windows_of_most_context(parts, len(ids)), _answer_tokens(question, bounds)
        for number, part in enumerate(parts):
            shown = slice(part.start, part.stop)
            row = join_texts(query, ids[shown], max_seq_length, tokenizer.cls_id, tokenizer.sep_id)
            row["p_mask"] = np.ones(max_seq_length, np.int64)
            row["p_mask"][[0, *range(offset, offset + len(part))]] = 0
            here = None
            if answer and answer[0] in part and answer[1] in part:
                here = answer[0] - part.start + offset, answer[1] - part.start + offset
            yield Window(index, row, offset, bounds[shown], best[shown] == number, here)
    if skipped:
        log.warning("skipped %s of %s questions, whose passage has no tokens: %s",
                    f"{len(skipped):,}", f"{len(questions):,}", some(skipped))


def _answer_tokens(question: Question, bounds: np.ndarray) -> tuple[int, int] | None:
    """Returns the first and the last token of the answer to train on, given all tokens [T, 2].

    At a character between two tokens, an answer starts with the next or ends with the previous one.
    """
    if question.start < 0 or not question.answers:
        return None
    last_character = question.start + len(question.answers[0]) - 1
    first = min(int(np.searchsorted(bounds[:, 1], question.start)), len(bounds) - 1)
    last = int(np.searchsorted(bounds[:, 0], last_character, side="right")) - 1
    return first, max(first, last)


def _windows_of_most_context(parts: Sequence[range], count: int) -> np.ndarray:
    """Returns for each token the window in which it has the most context on both sides.

    The score is the number of neighbours on the shorter side, plus 0.01 times the length of the
    window; among equal scores the first counts.
    """
    best, scores = np.zeros(count, int), np.full(count, -1.0)
    for number, part in enumerate(parts):
        positions, shown = np.arange(len(part)), slice(part.start, part.stop)
        score = np.minimum(positions, positions[::-1]) + 0.01 * len(part)
        better = score > scores[shown]
        best[shown][better] = number
        scores[shown][better] = score[better]
    return best


# === Task ===


@dataclasses.dataclass(frozen=True, eq=False)
class SquadTask(Task):
    """First and last token of an answer and, `with_negative` (SQuAD 2.0), whether there is one.

    SQuAD 1.1 has two logits per token; its loss is the mean of their cross-entropies over L
    positions. In SQuAD 2.0 the last token is predicted given the first, in training the correct one;
    the loss is (CE(start) + CE(end)) / 2 + sigmoid CE(has no answer) / 2. In windows without an
    answer, both tokens are [CLS].
    """

    max_seq_length: int  # L
    with_negative: bool = False
    doc_stride: int = 128  # tokens between the beginnings of two windows
    max_query_length: int = 64  # longest question, in tokens
    n_best_size: int = 20
    max_answer_length: int = 30
    start_n_top: int = 5  # K
    end_n_top: int = 5  # K2
    dropout_prob: float = 0.1  # on the hidden layer of the answerability
    # Odds of no answer above which a question is left unanswered. None: those with the best F1; if the
    # answers are unknown, of the checkpoint's evaluation, else 0, where both are equally likely.
    null_score_diff_threshold: float | None = None
    has_labels: bool = True
    # The predicted ones: see `predicting`.
    questions: Sequence[Question] = ()
    windows: Sequence[Window] = ()
    best_metric: str = "f1"

    @property
    def name(self) -> str:
        return "squad_v2" if self.with_negative else "squad_v1"

    @property
    def _parts(self) -> tuple[str, ...]:
        return ("start", "end", *["answerability"] * self.with_negative)

    @property
    def statistic_names(self) -> list[str]:
        return sorted(f"{part}_accuracy" for part in self._parts)

    def predicting(
        self, questions: Sequence[Question], tokenizer: "FullTokenizer"
    ) -> "SquadTask":
        """Returns the task that answers these questions.

        Raises:
          DataError: no passage has any token.
        """
        windows = list(self._windows(questions, tokenizer))
        if not windows:
            raise DataError("--predict_file has no text to search: none of its passages has any token")
        return dataclasses.replace(self, questions=questions, windows=windows)

    def for_evaluation(self) -> "SquadTask":
        """Returns the task for windows without labels, as in prediction."""
        return dataclasses.replace(self, has_labels=False)

    def feature_spec(self) -> FeatureSpec:
        labels = ("start_positions", "end_positions", "is_impossible") if self.has_labels else ()
        rows = ("input_ids", "input_mask", "segment_ids", "p_mask")
        return FeatureSpec(
            {"unique_ids": ("int64", None)}
            | {name: ("int64", self.max_seq_length) for name in rows}
            | {name: ("int64", None) for name in labels},
            # Padding cannot be an answer, so batches can be trimmed. In 1.1, it counts in the softmax.
            row_length=self.max_seq_length if self.with_negative else None,
        )

    def rows(self, examples, tokenizer, split):
        windows = self.windows
        if split == "train":
            examples = list(examples)
            random.Random(_SHUFFLE_SEED).shuffle(examples)
            windows = self._windows(examples, tokenizer)
        for unique_id, window in enumerate(windows, _FIRST_UNIQUE_ID):
            row = {**window.row, "unique_ids": unique_id}
            if split == "train":
                # A window without the answer stays, even in 1.1; its answer is [CLS].
                row["start_positions"], row["end_positions"] = window.answer or (0, 0)
                row["is_impossible"] = int(window.answer is None)
            yield row

    def _windows(self, questions, tokenizer) -> Iterator[Window]:
        return make_windows(
            questions, tokenizer, max_seq_length=self.max_seq_length, doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
        )

    def build_model(self, config, **options):
        if not self.with_negative:
            return modeling.AlbertForQuestionAnswering(config, **options)
        return modeling.AlbertForBeamQuestionAnswering(
            config, self.start_n_top, self.end_n_top, self.dropout_prob, **options
        )

    def loss_weights(self, batch):
        return dict.fromkeys(self._parts, 2.0 * ops.sum(real(batch))) if self.has_labels else {}

    def loss_sums(self, batch, outputs):
        if not self.has_labels:
            return {}
        losses = {}
        for part in ("start", "end"):
            positions = batch[f"{part}_positions"]
            if self.with_negative:
                losses[part] = -ops.take_along_axis(
                    outputs[f"{part}_log_probs"], positions[:, None], axis=1)[:, 0]
            else:
                losses[part] = modeling.cross_entropy(outputs[f"{part}_logits"], positions)
        if self.with_negative:
            losses["answerability"] = keras.losses.binary_crossentropy(
                ops.cast(batch["is_impossible"], "float32")[:, None],
                ops.cast(outputs["cls_logits"], "float32")[:, None], from_logits=True,
            )
        return {part: ops.sum(loss * real(batch)) for part, loss in losses.items()}

    def statistics(self, batch, outputs):
        if not self.has_labels:
            return {}
        scores = "log_probs" if self.with_negative else "logits"
        hits = {
            part: chosen(outputs[f"{part}_{scores}"]) == batch[f"{part}_positions"]
            for part in ("start", "end")
        }
        if self.with_negative:
            has_none = ops.cast(outputs["cls_logits"] > 0, "int32")
            hits["answerability"] = has_none == batch["is_impossible"]
        return {f"{part}_accuracy": mean(is_hit, real(batch)) for part, is_hit in hits.items()}

    def predictions(self, batch, outputs):
        answers = {name: batch[name] for name in ("unique_ids", "is_real_example")}
        return answers | {
            name: outputs[name] if name.endswith("_index") else ops.cast(outputs[name], "float32")
            for name in self._output_names
        }

    @property
    def _output_names(self) -> tuple[str, ...]:
        """The outputs that `squad_answers.decode` reads."""
        if not self.with_negative:
            return ("start_logits", "end_logits")
        return ("start_top_log_probs", "end_top_log_probs", "cls_logits", "start_top_index",
                "end_top_index")

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        has_answers = known_answers(self.questions, self.with_negative) is not None
        return self._decode(predictions)[0] if has_answers else {}

    def write_predictions(self, examples, predictions, directory, origin=""):
        written = []
        for name, value in self._decode(predictions, origin)[1].items():
            written.append(os.path.join(directory, name))
            with files.atomic_write(written[-1]) as stream:
                stream.write(json.dumps(value, indent=4) + "\n")  # as the original writes it
        return written

    def _decode(
        self, predictions: Mapping[str, np.ndarray], origin: str = ""
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the results, if the answers are known, and the content of each file by its name.

        Args:
          origin: where the weights come from, which may have a threshold for unknown answers.
        """
        known = known_answers(self.questions, self.with_negative)
        order = np.argsort(predictions["unique_ids"])
        columns = [predictions[name][order] for name in self._output_names]
        nbest, null_odds = squad_answers.decode(
            self.questions, self.windows,
            (dict(zip(self._output_names, row, strict=True)) for row in zip(*columns, strict=True)),
            with_negative=self.with_negative, n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
        )
        answers, results = {qid: entries[0].text for qid, entries in nbest.items()}, {}
        if known and self.with_negative:
            results, answers = squad_answers.evaluate_with_threshold(
                known, answers, null_odds, self.null_score_diff_threshold
            )
        elif known:
            results = squad_answers.evaluate(known, answers, with_negative=False)
        elif self.with_negative:
            threshold = self.null_score_diff_threshold
            if threshold is None:
                found = metadata_at(origin).settings.get("null_score_diff_threshold")
                threshold = found or 0.0
                log.info("null threshold %s: %s", threshold,
                         f"there is no evaluation of {origin}" if found is None else f"of {origin}")
            answers = squad_answers.with_threshold(answers, null_odds, threshold)
        contents = {"predictions.json": answers, "nbest_predictions.json": {
            qid: [dict(zip(entry._fields[:-1], entry)) for entry in entries]
            for qid, entries in nbest.items()
        }}
        return results, contents | ({"null_odds.json": null_odds} if self.with_negative else {})
