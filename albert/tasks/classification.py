"""Classification and regression of texts and pairs of texts, and multiple choice.

Legend: B batch, L sequence, C outputs of the classifier (1 for regression) or choices.
"""

import collections
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.engines import LazyModule
from albert.formats.metadata import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from albert.formats.weights import LABEL_HEADS, UNITS
from albert.records import features
from albert.records.examples import FeatureSpec
from albert.storage import files
from albert.tasks import glue, lines, race
from albert.tasks.task import Task, chosen, mean, real

OWN_TABLE = "tsv"  # the name of the task of own texts

keras, ops, modeling = map(LazyModule, ("keras", "keras.ops", "albert.modeling"))


@dataclasses.dataclass(frozen=True)
class ClassificationTask(Task):
    """Cross-entropy over C labels, or the squared error of one number, in label deviations.

    For multi-label tasks, the mean of the labels' binary cross-entropies. The examples are those of
    `glue`.
    """

    name: str
    max_seq_length: int  # L
    labels: tuple[str, ...]  # C, in the order of their ids; none for a regression
    classifier_dropout: float = 0.1  # on the pooled output in training, as in the original
    class_weights: tuple[float, ...] = ()  # of the labels in the training loss; none: all 1
    threshold: float | None = None  # minimum probability of a label, for multi-label tasks
    # Of the labels of a regression, two weights of the model: its head learns standardized values, whose
    # size suits its initialization and learning rate.
    label_mean: float = 0.0
    label_deviation: float = 1.0

    @property
    def num_labels(self) -> int:
        return len(self.labels) or 1

    @property
    def metric(self) -> str:
        """A key of glue.BEST_RESULT."""
        if self.name in glue.TASKS:
            return glue.TASKS[self.name].metric
        return "accuracy" if self.labels else "regression"

    @property
    def best_metric(self) -> str:
        return "micro_f1" if self.threshold is not None else glue.BEST_RESULT[self.metric]

    @property
    def untrained_weights(self) -> tuple[str, ...]:
        # Another regression's head gives values in the units of its labels.
        return (*LABEL_HEADS, *UNITS) if (self.label_mean, self.label_deviation) != (0, 1) else ()

    @property
    def statistic_names(self) -> tuple[str, ...]:
        is_single_label = self.labels and self.threshold is None
        return ("eval_accuracy", "eval_loss") if is_single_label else ("eval_loss",)

    def metadata(self, flags):
        problem, has_pairs = SINGLE_LABEL if self.labels else REGRESSION, bool(flags.get("text_pair_column"))
        if self.name in glue.TASKS:
            has_pairs = glue.TASKS[self.name].test.text_b is not None
        return dataclasses.replace(
            super().metadata(flags), label_names=self.labels or None, num_texts=1 + has_pairs,
            problem_type=problem if self.threshold is None else MULTI_LABEL,
        )

    def feature_spec(self) -> FeatureSpec:
        num_flags = None if self.threshold is None else self.num_labels
        return features.classification_spec(self.max_seq_length, not self.labels, num_flags=num_flags)

    def build_model(self, config, **options):
        model = modeling.AlbertForSequenceClassification(
            config, self.num_labels, self.classifier_dropout, **options
        )
        if not self.labels:
            model.label_mean.assign(self.label_mean)
            model.label_deviation.assign(self.label_deviation)
        return model

    def loss_weights(self, batch):
        return {"loss": ops.sum(self._row_weights(batch))}

    def loss_sums(self, batch, outputs):
        return {"loss": ops.sum(self._example_loss(batch, outputs) * self._row_weights(batch))}

    def _row_weights(self, batch):  # [B]
        if not self.class_weights:
            return real(batch)
        weights = ops.convert_to_tensor(self.class_weights, "float32")
        return real(batch) * ops.take(weights, batch["label_ids"], axis=0)

    def statistics(self, batch, outputs):
        loss = {"eval_loss": mean(self._example_loss(batch, outputs), real(batch))}
        if "eval_accuracy" not in self.statistic_names:
            return loss
        hits = chosen(outputs["logits"]) == batch["label_ids"]
        return loss | {"eval_accuracy": mean(hits, real(batch))}

    def predictions(self, batch, outputs):
        probabilities = self.probabilities(outputs["logits"])
        return {
            "logits": ops.cast(outputs["logits"], "float32") if self.labels else probabilities,
            "probabilities": probabilities,
            "label_ids": batch["label_ids"],
            "is_real_example": batch["is_real_example"],
        }

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        ids, logits = predictions["label_ids"], predictions["logits"]
        if self.threshold is not None:
            predicted = predictions["probabilities"] >= self.threshold
            # The model answers by the threshold from now on.
            return {"label_threshold": self.threshold} | several_label_scores(ids > 0, predicted, self.labels)
        results = glue.score(self.metric, ids, logits)
        if self.labels and self.name == OWN_TABLE:
            one_hot = np.eye(len(self.labels), dtype=bool)
            results |= f1_by_label(one_hot[ids], one_hot[logits.argmax(axis=-1)], self.labels)
        return results

    def probabilities(self, logits: Any) -> Any:
        """Returns [B, C] in float32; for a regression the value."""
        logits = ops.cast(logits, "float32")
        if self.threshold is not None:
            return ops.sigmoid(logits)
        return ops.softmax(logits, axis=-1) if self.labels else logits

    def _example_loss(self, batch, outputs) -> Any:  # [B]
        if not self.labels:
            return ops.square((outputs["logits"][:, 0] - batch["label_ids"]) / self.label_deviation)
        if self.threshold is not None:
            return keras.losses.binary_crossentropy(
                ops.cast(batch["label_ids"], "float32"), ops.cast(outputs["logits"], "float32"),
                from_logits=True,
            )
        return modeling.cross_entropy(outputs["logits"], batch["label_ids"])

    def id_of(self, label: Any) -> Any:
        """Returns a label's id, whether an example has each label, or the value of a regression.

        It is 0 if the label is not known.
        """
        if self.threshold is not None:
            return np.array([name in (label or ()) for name in self.labels], np.int64)
        if label is None:
            return 0
        return self.labels.index(label) if self.labels else label

    def rows(self, examples, tokenizer, split):
        texts = [(example.text_a, example.text_b) for example in examples]
        rows = features.encode_texts(tokenizer, texts, self.max_seq_length, f"{split} texts")
        for example, row in zip(examples, rows, strict=True):
            yield {**row, "label_ids": self.id_of(example.label), "is_real_example": 1}

    def write_predictions(self, examples, predictions, directory, origin=""):
        """Publishes the original's `test_results.tsv` and `submit_results.tsv`.

        The first has a line of tab-separated probabilities [N, C] (the value, for a regression) per
        example, the second is a table of indices and answers. For tasks of the benchmark there is a
        third file in the format of its server (similarities within 0 ... 5).
        """
        probabilities = predictions["probabilities"]
        if self.threshold is not None:
            answers = [
                json.dumps([self.labels[i] for i in np.flatnonzero(row >= self.threshold)],
                           ensure_ascii=False) for row in probabilities
            ]
        elif self.labels:
            answers = [self.labels[i] for i in np.argmax(predictions["logits"], axis=-1)]
        else:
            answers = [str(row[0]) for row in probabilities]
        tables = {"submit_results.tsv": answers}
        if self.name in glue.TASKS:
            tables[glue.TASKS[self.name].submission] = answers if self.labels else [
                str(np.clip(row[0], 0, 5)) for row in probabilities
            ]
        written = [os.path.join(directory, name) for name in ("test_results.tsv", *tables)]
        with files.atomic_write(written[0]) as stream:
            stream.writelines("\t".join(map(str, row)) + "\n" for row in probabilities)
        for path, column in zip(written[1:], tables.values(), strict=True):
            with files.atomic_write(path) as stream:
                stream.write("index\tprediction\n")
                stream.writelines(
                    f"{lines.cell(example.guid)}\t{lines.cell(answer)}\n"
                    for example, answer in zip(examples, column, strict=True)
                )
        return written


@dataclasses.dataclass(frozen=True)
class MultipleChoiceTask(ClassificationTask):
    """Cross-entropy over C choices. A record holds a sequence of length L for each choice.

    The examples are those of `race`.
    """

    max_qa_length: int = 128  # of a question with an option, in tokens
    # (name, number of examples) of each part of the evaluated file, in order.
    parts: tuple[tuple[str, int], ...] = ()
    metadata = Task.metadata

    def feature_spec(self) -> FeatureSpec:
        return features.classification_spec(self.max_seq_length, False, self.num_labels)

    def build_model(self, config, **options):
        return modeling.AlbertForMultipleChoice(config, self.num_labels, self.classifier_dropout, **options)

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Adds `eval_accuracy_<part>` if the parts' sizes sum up to the number of examples."""
        results, start = super().score(predictions), 0
        if len(predictions["label_ids"]) != sum(count for _, count in self.parts):
            return results
        for part, count in self.parts:
            rows = {n: values[start : start + count] for n, values in predictions.items()}
            results[f"eval_accuracy_{part}"] = super().score(rows)["eval_accuracy"]
            start += count
        return results

    def scoring(self, examples):
        parts = collections.Counter(example.level for example in examples)
        return dataclasses.replace(self, parts=tuple(parts.items()))

    def rows(self, examples, tokenizer, split):
        return race.question_rows(
            examples, tokenizer, self.max_seq_length, self.max_qa_length, self.num_labels,
            f"{split} questions",
        )


def several_label_scores(
    actual: np.ndarray, predicted: np.ndarray, names: Sequence[str]
) -> dict[str, float]:
    """Returns multi-label scores of booleans [N, C].

    `eval_accuracy` is the fraction of texts with all labels right. `micro_f1` counts each label of
    each text.
    """
    from sklearn.metrics import f1_score

    return {
        "eval_accuracy": float((actual == predicted).all(1).mean()),
        "micro_f1": float(f1_score(actual.ravel(), predicted.ravel(), zero_division=0.0)),
    } | f1_by_label(actual, predicted, names)


def f1_by_label(
    actual: np.ndarray, predicted: np.ndarray, names: Sequence[str]
) -> dict[str, float]:
    """Returns `macro_f1`, and `f1_<label>` of each label that occurs, given booleans [N, C].

    `macro_f1` leaves out labels that neither occur nor are predicted.
    """
    from sklearn.metrics import f1_score

    scores = f1_score(actual, predicted, average=None, zero_division=0.0)  # [C]
    occurs = actual.any(0)
    is_counted = occurs | predicted.any(0)
    return {"macro_f1": float(scores[is_counted].mean()) if is_counted.any() else 0.0} | {
        f"f1_{names[i]}": float(scores[i]) for i in np.flatnonzero(occurs)
    }
