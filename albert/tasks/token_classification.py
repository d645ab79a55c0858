"""Token classification (named entities, parts of speech), with the data of `conll`.

Legend: B batch, L sequence, C labels, N sequences.
"""

import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert.formats.known_tasks import WORDS
from albert.records.examples import FeatureSpec
from albert.runtime.lazy import LazyModule
from albert.tasks import conll
from albert.tasks import entity_metrics as entities
from albert.tasks.task import Task, chosen, mean, real

ops, modeling = map(LazyModule, ("keras.ops", "albert.modeling"))


@dataclasses.dataclass(frozen=True)
class TokenClassificationTask(Task):
    """Cross-entropy over C labels at the first token of each word."""

    max_seq_length: int  # L
    labels: tuple[str, ...]  # C, in the order of their ids
    has_entities: bool = True  # whether the labels mark entities, which are then scored as units
    classifier_dropout: float = 0.1  # on the encoder's output in training
    name: str = WORDS
    test_file: str = ""  # whose lines are written with their predicted labels
    layout: conll.Layout = conll.Layout()
    statistic_names = ("eval_accuracy", "eval_loss")

    @property
    def best_metric(self) -> str:
        return "eval_f1" if self.has_entities else "eval_accuracy"

    def feature_spec(self) -> FeatureSpec:
        return conll.feature_spec(self.max_seq_length)

    def build_model(self, config, **options):
        return modeling.AlbertForTokenClassification(
            config, len(self.labels), self.classifier_dropout, **options
        )

    def loss_weights(self, batch):
        return {"loss": ops.sum(_labelled(batch))}

    def loss_sums(self, batch, outputs):
        return {"loss": ops.sum(_losses(batch, outputs) * _labelled(batch))}

    def statistics(self, batch, outputs):
        labelled = _labelled(batch)
        hits = chosen(outputs["logits"]) == batch["label_ids"] - 1
        return {
            "eval_loss": mean(_losses(batch, outputs), labelled),
            "eval_accuracy": mean(hits, labelled),
        }

    def predictions(self, batch, outputs):
        return {
            "predicted_ids": self._full(chosen(outputs["logits"])),
            "label_ids": self._full(batch["label_ids"]),
            "continues": batch["continues"],
            "is_real_example": batch["is_real_example"],
        }

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        if not self.has_entities:
            return {}
        gold: list[list[str]] = []
        for continues, ids in zip(
            predictions["continues"], predictions["label_ids"], strict=True
        ):
            if not continues:
                gold.append([])
            gold[-1] += [self.labels[i - 1] for i in ids[ids > 0]]
        guesses = iter(self.predicted_labels(predictions))
        guessed = [list(itertools.islice(guesses, len(sentence))) for sentence in gold]
        return entities.score(gold, guessed)

    def predicted_labels(self, predictions: Mapping[str, np.ndarray]) -> list[str]:
        """Returns the label of every word, one sentence after another.

        Args:
          predictions: `predicted_ids` and `label_ids` [N, L].
        """
        ids = predictions["predicted_ids"][predictions["label_ids"] > 0]
        return [self.labels[i] for i in ids]

    def rows(self, examples, tokenizer, split):
        overflow, ids = conll.Overflow(), {label: i for i, label in enumerate(self.labels)}
        for sentence in examples:
            words = conll.encode_words(tokenizer, sentence.words)
            numbers = [ids[label] for label in sentence.labels or self.labels[:1] * len(words)]
            yield from conll.sentence_rows(words, numbers, tokenizer, self.max_seq_length, overflow)
        overflow.report(f"{split}.txt", self.max_seq_length)

    def write_predictions(self, examples, predictions, directory, origin=""):
        path = os.path.join(directory, "test_predictions.txt")
        labels = self.predicted_labels(predictions)
        return [conll.write_with_labels(self.test_file, labels, path, self.layout)]

    def _full(self, x: Any) -> Any:
        """Returns [B, L]: trimmed sequences, padded with zeros again."""
        return ops.pad(x, [[0, 0], [0, self.max_seq_length - ops.shape(x)[1]]])


def _losses(batch, outputs) -> Any:  # [B, L]
    return modeling.cross_entropy(outputs["logits"], ops.maximum(batch["label_ids"] - 1, 0))


def _labelled(batch) -> Any:  # [B, L]
    return ops.cast(batch["label_ids"] > 0, "float32") * real(batch)[:, None]
