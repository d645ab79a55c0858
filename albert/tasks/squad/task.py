"""Answers as spans of a passage: SQuAD 1.1, and 2.0 with unanswerable questions.

Legend: B batch, L sequence, K and K2 beam sizes for first and last tokens.
"""

import dataclasses
import json
import logging
import os
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.errors import DataError
from albert.formats import run_states
from albert.records.examples import FeatureSpec
from albert.runtime.lazy import LazyModule
from albert.storage import files
from albert.tasks.squad import decode, metrics
from albert.tasks.squad.features import Window, make_windows
from albert.tasks.squad.questions import SquadExample
from albert.tasks.task import Task, chosen, mean, real

if TYPE_CHECKING:
    from albert.tokenization import FullTokenizer

keras, ops, modeling = map(LazyModule, ("keras", "keras.ops", "albert.modeling"))
log = logging.getLogger("albert")

# The original's. Questions are shuffled once, before they are split into windows.
_SHUFFLE_SEED = 12345
_ROWS = ("input_ids", "input_mask", "segment_ids", "p_mask")


@dataclasses.dataclass(frozen=True, eq=False)
class SquadV1Task(Task):
    """Two logits per token; the loss is the mean of their cross-entropies over L positions."""

    max_seq_length: int  # L
    doc_stride: int = 128  # tokens between the beginnings of two windows
    max_query_length: int = 64  # longest question, in tokens
    n_best_size: int = 20
    max_answer_length: int = 30
    has_labels: bool = True
    # The predicted examples: see `predicting`.
    questions: Sequence[SquadExample] = ()
    windows: Sequence[Window] = ()
    answers: metrics.Answers | None = None  # to the questions; None if they are unknown
    name: str = "squad_v1"
    best_metric: str = "f1"
    statistic_names = ("end_accuracy", "start_accuracy")
    loss_terms = ("start", "end")
    scores = "logits"  # ending of the outputs for start and end
    predicted = ("start_logits", "end_logits")
    decoder = staticmethod(decode.decode_v1)

    def predicting(
        self, questions: Sequence[SquadExample], answers: metrics.Answers | None,
        tokenizer: "FullTokenizer",
    ) -> "SquadV1Task":
        """Returns the task that answers these questions.

        Raises:
          DataError: no passage has any token.
        """
        windows = self._windows(questions, tokenizer, is_training=False)
        if not windows:
            raise DataError(f"{questions[0].place}: neither this passage nor any other can be aligned "
                            "with its tokens: --predict_file has no text to search")
        return dataclasses.replace(self, questions=questions, windows=windows, answers=answers)

    def for_evaluation(self) -> "SquadV1Task":
        """Returns the task for windows without labels, as in prediction."""
        return dataclasses.replace(self, has_labels=False)

    def feature_spec(self) -> FeatureSpec:
        labels = ("start_positions", "end_positions", "is_impossible") if self.has_labels else ()
        return FeatureSpec(
            {"unique_ids": ("int64", None)}
            | {name: ("int64", self.max_seq_length) for name in _ROWS}
            | {name: ("int64", None) for name in labels}
        )

    def record_settings(self):
        return {"doc_stride": self.doc_stride, "max_query_length": self.max_query_length}

    def rows(self, examples, tokenizer, split):
        windows = self.windows
        if split == "train":
            examples = list(examples)
            random.Random(_SHUFFLE_SEED).shuffle(examples)
            windows = self._windows(examples, tokenizer, is_training=True)
        for window in windows:
            yield row_of(window, has_labels=split == "train")

    def _windows(self, examples, tokenizer, is_training: bool) -> list[Window]:
        return list(make_windows(
            examples, tokenizer, is_training=is_training, max_seq_length=self.max_seq_length,
            **self.record_settings(),
        ))

    def build_model(self, config, **options):
        return modeling.AlbertForQuestionAnswering(config, **options)

    def loss_weights(self, batch):
        weight = 2.0 * ops.sum(real(batch))
        return dict.fromkeys(self.loss_terms, weight) if self.has_labels else {}

    def loss_sums(self, batch, outputs):
        if not self.has_labels:
            return {}
        losses = self.losses(batch, outputs)
        return {term: ops.sum(losses[term] * real(batch)) for term in self.loss_terms}

    def statistics(self, batch, outputs):
        if not self.has_labels:
            return {}
        return {
            f"{part}_accuracy": mean(hits, real(batch))
            for part, hits in self.hits(batch, outputs).items()
        }

    def losses(self, batch, outputs) -> dict[str, Any]:
        """Returns each term of the loss, [B]."""
        return {
            part: modeling.cross_entropy(outputs[f"{part}_logits"], batch[f"{part}_positions"])
            for part in ("start", "end")
        }

    def hits(self, batch, outputs) -> dict[str, Any]:
        """Returns for start and end (and answerability) whether the prediction is correct, [B]."""
        return {
            part: chosen(outputs[f"{part}_{self.scores}"]) == batch[f"{part}_positions"]
            for part in ("start", "end")
        }

    def predictions(self, batch, outputs):
        answers = {name: batch[name] for name in ("unique_ids", "is_real_example")}
        for name in self.predicted:
            is_index = name.endswith("_index")
            answers[name] = outputs[name] if is_index else ops.cast(outputs[name], "float32")
        return answers

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return self._scored(self._decoded(predictions))[0] if self.answers else {}

    def _decoded(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the content of each prediction file by its name."""
        outputs = zip(*(predictions[name] for name in self.predicted), strict=True)
        results = {
            int(unique_id): dict(zip(self.predicted, one, strict=True))
            for unique_id, one in zip(predictions["unique_ids"], outputs, strict=True)
        }
        contents = self.decoder(
            self.questions, self.windows, results, n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
        )
        return dict(zip(("predictions.json", "nbest_predictions.json", "null_odds.json"), contents))

    def _scored(
        self, decoded: dict[str, Any], origin: str = ""
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the results, if the answers are known, and the content of the files to write.

        Args:
          origin: where the weights come from.
        """
        known = self.answers
        return metrics.evaluate_v1(known, decoded["predictions.json"]) if known else {}, decoded

    def write_predictions(self, examples, predictions, directory, origin=""):
        written = []
        for name, value in self._scored(self._decoded(predictions), origin)[1].items():
            written.append(os.path.join(directory, name))
            with files.atomic_write(written[-1]) as stream:
                stream.write(json.dumps(value, indent=4) + "\n")  # as the original writes it
        return written


@dataclasses.dataclass(frozen=True, eq=False)
class SquadV2Task(SquadV1Task):
    """First token, last token given the first, and answerability.

    loss = (CE(start) + CE(end)) / 2 + sigmoid CE(has no answer) / 2. The end is trained with the
    correct start. In windows without an answer, both are at [CLS].
    """

    name: str = "squad_v2"
    statistic_names = ("answerability_accuracy", *SquadV1Task.statistic_names)
    loss_terms = (*SquadV1Task.loss_terms, "answerability")
    scores = "log_probs"
    predicted = ("start_top_log_probs", "end_top_log_probs", "cls_logits", "start_top_index",
                 "end_top_index")
    decoder = staticmethod(decode.decode_v2)
    start_n_top: int = 5  # K
    end_n_top: int = 5  # K2
    dropout_prob: float = 0.1  # on the hidden layer of the answerability
    # Odds of no answer above which a question is left unanswered. None: those with the best F1; if the
    # answers are unknown, of the checkpoint's evaluation, else 0, where both are equally likely.
    null_score_diff_threshold: float | None = None

    def feature_spec(self) -> FeatureSpec:
        # Padding cannot be an answer, so batches can be trimmed. In 1.1, it counts in the softmax.
        return dataclasses.replace(super().feature_spec(), row_length=self.max_seq_length)

    def build_model(self, config, **options):
        return modeling.AlbertForBeamQuestionAnswering(
            config, self.start_n_top, self.end_n_top, self.dropout_prob, **options
        )

    def losses(self, batch, outputs):
        labels = ops.cast(batch["is_impossible"], "float32")
        logits = ops.cast(outputs["cls_logits"], "float32")
        missing = keras.losses.binary_crossentropy(
            labels[:, None], logits[:, None], from_logits=True
        )
        spans = {
            part: -_at(outputs[f"{part}_log_probs"], batch[f"{part}_positions"])
            for part in ("start", "end")
        }
        return spans | {"answerability": missing}

    def hits(self, batch, outputs):
        none = ops.cast(outputs["cls_logits"] > 0, "int32") == batch["is_impossible"]
        return super().hits(batch, outputs) | {"answerability": none}

    def _scored(self, decoded, origin=""):
        answers, null_odds = decoded["predictions.json"], decoded["null_odds.json"]
        threshold = self.null_score_diff_threshold
        if self.answers:
            results, answers = decode.evaluate_with_threshold(
                self.answers, answers, null_odds, threshold=threshold
            )
            return results, decoded | {"predictions.json": answers}
        if threshold is None:
            known = run_states.null_threshold(origin, run_states.read_run_state(origin))
            threshold = known or 0.0
            log.info("null threshold %s: %s", threshold,
                     f"there is no evaluation of {origin}" if known is None else f"of {origin}")
        answers = decode.with_threshold(answers, null_odds, threshold)
        return {}, decoded | {"predictions.json": answers}


def row_of(window: Window, has_labels: bool) -> dict[str, Any]:
    """Returns the record of a window."""
    row = {name: getattr(window, name) for name in _ROWS} | {"unique_ids": window.unique_id}
    return row if not has_labels else row | {
        "start_positions": window.start_position, "end_positions": window.end_position,
        "is_impossible": int(window.is_impossible),
    }


def _at(values, positions):
    """Returns the value [B] at each row's position, of values [B, L]."""
    return ops.take_along_axis(values, positions[:, None], axis=1)[:, 0]
