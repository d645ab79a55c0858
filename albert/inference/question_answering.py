"""Answers questions with parts of passages. No TensorFlow at import.

Passages longer than a sequence are split into overlapping windows, see `tasks.squad`.
"""

import dataclasses
from typing import Any

import numpy as np

from albert.errors import FlagError
from albert.inference.predictors import TaskPredictor, without_padding
from albert.inference.predictor import Batch, model_inputs, numbers
from albert.tasks import squad, squad_answers
from albert.text.offsets import with_marks


@dataclasses.dataclass
class QuestionAnswerer(TaskPredictor):
    """The part of a passage that answers a question. A line has a question and a passage."""

    min_texts: int = 2

    task = "question_answering"
    class_name = "AlbertForQuestionAnswering"
    with_negative = False  # whether a passage may have no answer

    def __post_init__(self):
        self.max_query_length()

    def max_query_length(self) -> int:
        """Returns the maximum length of a question: that of training, else 64 or half a sequence.

        Raises:
          FlagError: a question of this length leaves no tokens for a passage.
        """
        length = self.session.max_seq_length
        trained = self.session.source.metadata.settings.get("max_query_length")
        if trained is None:
            return min(64, (length - 3) // 2)
        if length <= trained + 3:
            raise FlagError(
                f"max_seq_length={length} is too short for passages: the model was trained with "
                f"questions of up to {trained} tokens, so it must be at least {trained + 4}"
            )
        return trained

    def encode(self, inputs):
        questions = [
            squad_answers.Question(str(i), question, passage)
            for i, (question, passage) in enumerate(inputs)
        ]
        windows = list(squad.make_windows(
            questions, self.session.tokenizer, max_seq_length=self.session.max_seq_length,
            doc_stride=self.setting("doc_stride", 128), max_query_length=self.max_query_length(),
        ))
        rows: list[list[Any]] = [[] for _ in inputs]
        for window in windows:
            rows[window.question].append(without_padding(model_inputs(window.row)))
        return Batch(rows, (questions, windows))

    def decode(self, context, outputs):
        questions, windows = context
        rows = [row for of_question in outputs for row in of_question]
        if not self.with_negative:  # padding, which depends on the other texts of a batch, is no candidate
            rows = [
                {name: logits[: int(window.row["input_mask"].sum())] for name, logits in row.items()}
                for window, row in zip(windows, rows, strict=True)
            ]
        nbest, null_odds = squad_answers.decode(
            questions, windows, rows,
            with_negative=self.with_negative,
            n_best_size=max(self.setting("n_best_size", 20), self.top_k or 1),
            max_answer_length=self.setting("max_answer_length", 30),
        )
        # The odds of no answer above which a question is left unanswered. At 0, both are equally likely.
        threshold = np.float32(self.setting("null_score_diff_threshold", 0.0))
        for question in questions:
            parts = []
            for entry in nbest[question.qas_id][: self.top_k or 1]:
                text, start, end = entry.text, entry.start, entry.start
                if question.passage.startswith(text, start):  # unlike "empty"
                    [(start, end)] = with_marks(question.passage, [(start, start + len(text))])
                    text = question.passage[start:end]
                part = {
                    "answer": text, "probability": numbers([entry.probability])[0], "start": start, "end": end,
                }
                if self.with_negative:
                    part["no_answer_score"] = numbers([null_odds[question.qas_id]])[0]
                parts.append(part)
            if self.with_negative and not self.top_k:
                part["best_answer"] = part["answer"]
                # Scores are the shortest decimals of a float32.
                if np.float32(part["no_answer_score"]) > threshold:
                    part |= {"answer": "", "start": 0, "end": 0}
            yield parts if self.top_k else part

    def setting(self, name: str, default: Any) -> Any:
        """Returns the value of a flag in training, or a default."""
        return self.session.source.metadata.settings.get(name, default)


class BeamQuestionAnswerer(QuestionAnswerer):
    """Like QuestionAnswerer, but passages may have no answer (SQuAD 2.0)."""

    class_name = "AlbertForBeamQuestionAnswering"
    with_negative = True
