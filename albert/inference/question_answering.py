"""Answers questions with parts of passages. No TensorFlow at import.

Passages longer than a sequence are split into overlapping windows, see `tasks.squad`.
"""

import dataclasses
from typing import Any

import numpy as np

from albert.errors import FlagError
from albert.inference.predictors import TaskPredictor, without_padding
from albert.inference.session import Batch, Outputs, model_inputs, numbers
from albert.tasks.squad import decode as squad_decode
from albert.tasks.squad import features as squad_features


@dataclasses.dataclass
class QuestionAnswerer(TaskPredictor):
    """The part of a passage that answers a question. A line has a question and a passage."""

    min_texts: int = 2

    task = "question_answering"
    class_name = "AlbertForQuestionAnswering"
    decoder = staticmethod(squad_decode.decode_v1)

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
        examples = [
            squad_features.SquadExample(str(i), question, passage, None, None, False, f"input {i}")
            for i, (question, passage) in enumerate(inputs)
        ]
        windows: list[list[squad_features.Window]] = [[] for _ in inputs]
        for window in squad_features.make_windows(
            examples, self.session.tokenizer, max_seq_length=self.session.max_seq_length,
            doc_stride=self.setting("doc_stride", 128),
            max_query_length=self.max_query_length(), is_training=False,
        ):
            windows[window.example_index].append(window)
        rows = [
            [without_padding({n: np.asarray(x) for n, x in model_inputs(vars(window)).items()})
             for window in of_one]
            for of_one in windows
        ]
        return Batch(rows, (examples, [window for of_one in windows for window in of_one]))

    def decode(self, context, outputs):
        examples, windows = context
        rows = [row for of_one in outputs for row in of_one]
        _, nbest, *odds = self.decoder(
            examples, windows,
            {w.unique_id: self._result(w, row) for w, row in zip(windows, rows, strict=True)},
            **self.sizes,
        )
        for example in examples:
            qid, parts = example.qas_id, []
            for entry in nbest[qid][: self.top_k or 1]:
                text, start = entry["text"], entry.start
                is_part = example.paragraph_text.startswith(text, start)  # unlike "empty"
                parts.append({
                    "answer": text, "probability": numbers([entry["probability"]])[0], "start": start,
                    "end": start + len(text) * is_part,
                } | {"no_answer_score": numbers([by_id[qid]])[0] for by_id in odds})
            yield parts if self.top_k else parts[0]

    def _result(self, window: squad_features.Window, row: Outputs) -> Any:
        """Returns the outputs of a window that `decoder` reads, without those of padding."""
        return {name: row[name][: window.paragraph_len] for name in ("start_logits", "end_logits")}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of candidates for an answer, and the maximum length of one in tokens."""
        return {
            "n_best_size": max(self.setting("n_best_size", 20), self.top_k or 1),
            "max_answer_length": self.setting("max_answer_length", 30),
        }

    def setting(self, name: str, default: Any) -> Any:
        """Returns the value of a flag in training, or a default."""
        return self.session.source.metadata.settings.get(name, default)


class BeamQuestionAnswerer(QuestionAnswerer):
    """Like QuestionAnswerer, but passages may have no answer (SQuAD 2.0)."""

    class_name = "AlbertForBeamQuestionAnswering"
    decoder = staticmethod(squad_decode.decode_v2)

    @property
    def threshold(self) -> float:
        """The `no_answer_score` above which a question is left unanswered.

        The default is 0, where an answer and none are equally likely.
        """
        return self.setting("null_score_diff_threshold", 0.0)

    def decode(self, context, outputs):
        answers = super().decode(context, outputs)
        return answers if self.top_k else map(self._with_threshold, answers)

    def _with_threshold(self, answer):
        # Scores are the shortest decimals of a float32.
        has_none = np.float32(answer["no_answer_score"]) > np.float32(self.threshold)
        answer["best_answer"] = answer["answer"]
        return answer | ({"answer": "", "start": 0, "end": 0} if has_none else {})

    def _result(self, window, row):
        return row
