"""Masked language modelling and sentence-order prediction (paper, sections 3.1 and 3.2).

Legend: B batch, L sequence, P predictions, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from albert.config import AlbertConfig
from albert.model.encoder import EncoderOptions
from albert.model.row_layout import layout_of, segments_of, weighted
from albert.modeling import AlbertForPreTraining, cross_entropy
from albert.pretraining_data.dynamic_masking import DynamicMasking
from albert.pretraining_data.features import masked_features
from albert.records.examples import FeatureSpec
from albert.tasks.task import Task, chosen, mean, real
from albert.tasks.teacher import Student, Teacher

# Factors of the losses with a teacher (docs/evidence/results.md).
SENTENCE, MASKED = 3.0, 0.2


@dataclasses.dataclass(frozen=True)
class PretrainingTask(Task):
    """The loss is the masked-LM loss plus the sentence-order loss.

    If `sentence_objective` is "none", it is the masked-LM loss alone (the first line of table 5 in
    the paper). Single sentences do not contribute to the sentence-order loss.

    With a teacher, the loss is the mean error of all hidden states, plus SENTENCE times (1 - cosine)
    of the sentence embeddings of sequences without masks, plus MASKED times the loss above.
    """

    max_seq_length: int  # L
    max_predictions_per_seq: int  # P
    masks: DynamicMasking | None = None  # None: they are in the records
    eval_masks: DynamicMasking | None = None  # for evaluation records
    eval_predictions_per_seq: int | None = None  # P of evaluation records; None: the same
    sentence_objective: str = "sop"  # key of `pairs.SENTENCE_OBJECTIVES`
    some_have_no_pair: bool = False  # some sequences are single sentences
    teacher: Teacher | None = None
    name: str = "pretraining"
    best_metric: str = "masked_lm_accuracy"

    @property
    def constants(self) -> Sequence[keras.Variable]:
        return self.teacher.model.variables if self.teacher else ()

    @property
    def statistic_names(self) -> tuple[str, ...]:
        names = ["masked_lm_accuracy", "masked_lm_loss"]
        if self.sentence_objective != "none":
            names += ["sentence_order_accuracy", "sentence_order_loss"]
        return (*names, *(["teacher_similarity", "state_error"] if self.teacher else ()))

    def feature_spec(self) -> FeatureSpec:
        if self.masks:
            return self.masks.feature_spec()
        length = self.max_seq_length
        return FeatureSpec(masked_features(length, self.max_predictions_per_seq), row_length=length)

    def for_evaluation(self) -> "PretrainingTask":
        predictions = self.eval_predictions_per_seq or self.max_predictions_per_seq
        return dataclasses.replace(self, masks=self.eval_masks, max_predictions_per_seq=predictions)

    def build_model(
        self, config: AlbertConfig, encoder_options: EncoderOptions = EncoderOptions()
    ) -> keras.Model:
        if self.teacher:  # All its states are compared; dropout is for fine-tuning: they are exact.
            options = dataclasses.replace(encoder_options, needed_outputs_only=False)
            return Student(config.with_dropout(0.0), self.teacher.width, encoder_options=options)
        return AlbertForPreTraining(config, encoder_options=encoder_options)

    def outputs(self, model, batch, **options):
        outputs = model.of_batch(batch, **options)
        ids, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]  # [B, P]
        if len(outputs["prediction_logits"].shape) == 2:  # the model predicts K of them
            ids, weights = weighted(ids, weights), weighted(weights, weights)
        outputs |= {
            "ids": ids, "weights": weights,
            "masked_lm": cross_entropy(outputs["prediction_logits"], ids),
            "sentence_order": cross_entropy(outputs["sop_logits"], batch["next_sentence_labels"][:, 0]),
        }
        if self.teacher:
            outputs |= self.teacher.compare(batch, outputs["states"])
        return outputs

    def loss_weights(self, batch):
        # The original adds 1e-5, so that the loss of a batch without masks is 0.
        pairs = ops.sum(self._ordered(batch))
        terms = self._of_terms(
            ops.sum(batch["masked_lm_weights"]) + 1e-5,
            pairs + 1e-5 if self.some_have_no_pair else pairs,
        )
        if not self.teacher:
            return terms
        return {name: value / MASKED for name, value in terms.items()} | {
            "states": ops.sum(_tokens(batch)),
            "sentence": (ops.sum(_without_masks(batch)) + 1e-5) / SENTENCE,
        }

    def loss_sums(self, batch, outputs):
        terms = self._of_terms(
            ops.sum(outputs["masked_lm"] * outputs["weights"]),
            ops.sum(outputs["sentence_order"] * self._ordered(batch)),
        )
        if not self.teacher:
            return terms
        return terms | {
            "states": ops.sum(outputs["state_errors"] * _tokens(batch)),
            "sentence": ops.sum((1.0 - outputs["similarity"]) * _without_masks(batch)),
        }

    def _ordered(self, batch):
        """Returns [B]: 1.0 for an example with a sentence order."""
        if not self.some_have_no_pair:
            return real(batch)
        layout = layout_of(batch)
        segments = layout.every(segments_of(batch)[..., None])[..., 0] * layout.mask
        return real(batch) * ops.cast(ops.max(segments, axis=1) > 0, "float32")

    def _of_terms(self, masked_lm, sentence_order):
        """Returns the values of this task's loss terms."""
        if self.sentence_objective == "none":
            return {"masked_lm": masked_lm}
        return {"masked_lm": masked_lm, "sentence_order": sentence_order}

    def statistics(self, batch, outputs):
        weights, sentences = outputs["weights"], self._ordered(batch)
        word_hits = chosen(outputs["prediction_logits"]) == outputs["ids"]
        order_hits = chosen(outputs["sop_logits"]) == batch["next_sentence_labels"][:, 0]
        statistics = {
            "masked_lm_accuracy": mean(word_hits, weights),
            "masked_lm_loss": mean(outputs["masked_lm"], weights),
            "sentence_order_accuracy": mean(order_hits, sentences),
            "sentence_order_loss": mean(outputs["sentence_order"], sentences),
        }
        if self.teacher:
            statistics |= {
                "teacher_similarity": mean(outputs["similarity"], _without_masks(batch)),
                "state_error": mean(outputs["state_errors"], _tokens(batch)),
            }
        return {name: pair for name, pair in statistics.items() if name in self.statistic_names}

    def predictions(self, batch, outputs):
        """Returns the correct answers, for the baselines in `score`; -1 where there is none."""
        def known(answers, weights):
            return ops.where(ops.cast(weights, "float32") > 0, ops.cast(answers, "int32"), -1)

        ids, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
        labels = batch["next_sentence_labels"][:, 0]
        terms = self._of_terms(known(ids, weights), known(labels, self._ordered(batch)))
        return terms | {"is_real_example": real(batch)}

    def score(self, predictions):
        """Returns the accuracies of always giving the most frequent answer."""
        return {
            f"{name}_accuracy_baseline": commonest(answers)
            for name, answers in predictions.items()
        }


def commonest(answers: np.ndarray) -> float:
    """Returns the fraction of the most frequent of the answers that aren't negative; 0 if none."""
    counts = np.bincount(answers[answers >= 0])
    return float(counts.max() / counts.sum()) if len(counts) else 0.0


def _tokens(batch):
    """Returns [B, L]: 1.0 for each token of an example."""
    return ops.cast(layout_of(batch).mask, "float32") * real(batch)[:, None]


def _without_masks(batch):
    """Returns [B]: 1.0 for an example without masked tokens."""
    return real(batch) * ops.cast(ops.sum(batch["masked_lm_weights"], axis=1) == 0, "float32")
