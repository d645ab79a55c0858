"""Predictors for fine-tuned models other than question answering. No TensorFlow at import.

Legend: B batch, L sequence, C labels or choices.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.formats.tokenizer_json import combining_characters
from albert.inference.predictor import (
    Batch, Predictor, model_inputs, numbers, sigmoid, softmax,
)
from albert.records.features import encode_pairs
from albert.tasks import race, words

Texts = Sequence[str]  # the columns of a line


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """Returns the pattern of words, from which punctuation is separated at both ends, not inside."""
    return re.compile(rf"\w(?:\S*\w)?{combining_characters()}*|\S")  # U.S, don't, 3.5


@dataclasses.dataclass
class TaskPredictor(Predictor):
    """The base class of predictors for fine-tuned models. An input is the texts of a line."""

    session: Any
    labels: Sequence[str] = ()  # C
    min_texts: int = 1  # of an input
    max_texts: int = 2
    top_k: int | None = None  # answers per input, as a list

    task = ""  # value of --task of `predict`

    def columns(self, line: str) -> Texts:
        """Returns the texts of a line."""
        return line.split("\t")

    def check(self, columns: Texts, origin: str, what: str = "texts") -> None:
        """Raises a DataError if an input has the wrong number of columns, called `what`."""
        if not self.min_texts <= len(columns) <= self.max_texts:
            few, many = self.min_texts, self.max_texts
            wanted = f"{few}{f' to {many}' if many > few + 1 else f' or {many}' if many > few else ''}"
            raise DataError(f"{origin}: {len(columns)} {what}, expected {wanted}")


class TextClassifier(TaskPredictor):
    """One label for a text or a pair of texts."""

    task = "classification"
    class_name = "AlbertForSequenceClassification"

    def encode(self, inputs):
        texts = [(columns[0], columns[1] if len(columns) > 1 else None) for columns in inputs]
        # As in training, a second text that is empty after preprocessing doesn't count.
        rows = [self.session.row(*ids) for ids in encode_pairs(self.session.tokenizer, texts)]
        return Batch([[row] for row, _ in rows], num_cut=sum(is_cut for _, is_cut in rows))

    def decode(self, context, outputs):
        answers = self.answers(outputs)
        return map(self._likeliest, answers) if self.top_k else answers

    def answers(self, outputs):
        """Yields the answer to each input."""
        return _likeliest_labels(self.labels, outputs)

    def _likeliest(self, answer):
        by_label = answer["probabilities"]
        best = sorted(by_label, key=by_label.get, reverse=True)[: self.top_k]
        return [{"label": label, "probability": by_label[label]} for label in best]


class MultiLabelClassifier(TextClassifier):
    """Labels of a text or a pair of texts: all whose probability reaches a threshold."""

    task = "multi_label_classification"

    @property
    def threshold(self) -> float:
        """The threshold that was set for the training, else 0.5."""
        settings = self.session.source.metadata.settings if self.session else {}
        return settings.get("label_threshold", 0.5)

    def answers(self, outputs):
        threshold = self.threshold
        for _, values in _with_probabilities(outputs, sigmoid):
            pairs = list(zip(self.labels, values, strict=True))
            yield {
                "labels": [label for label, value in pairs if value >= threshold],
                "probabilities": dict(pairs),
            }


class Regressor(TextClassifier):
    """A number for a text or a pair of texts, or several numbers by name."""

    task = "regression"

    def answers(self, outputs):
        for (one,) in outputs:
            values = numbers(one["logits"])
            if len(values) == 1:
                yield {"value": values[0]}
            else:
                yield {"values": dict(zip(self.labels, values, strict=True))}


def _likeliest_labels(labels, outputs):
    """Yields the most likely label or option of each input."""
    for logits, values in _with_probabilities(outputs, softmax):
        best = np.argmax(logits, axis=-1)
        yield {
            "label": labels[best],
            "probability": values[best],
            "probabilities": dict(zip(labels, values, strict=True)),
        }


def _with_probabilities(outputs, activation):
    """Yields the logits [C] of each input, and its probabilities as a list."""
    if outputs:
        logits = np.stack([one["logits"] for (one,) in outputs]).astype(np.float32)
        for of_one, values in zip(logits, activation(logits), strict=True):
            yield of_one, numbers(values)


@dataclasses.dataclass
class TokenClassifier(TaskPredictor):
    """A label for each word of a text, and the entities that the labels mark."""

    max_texts: int = 1
    is_tokenized: bool = False  # whether texts are split into words only at blanks

    task = "token_classification"
    class_name = "AlbertForTokenClassification"
    counted = "words"

    def columns(self, line):
        return [line]  # tabs separate words, as blanks do

    def encode(self, inputs):
        pattern = re.compile(r"[^ \t]+") if self.is_tokenized else word_pattern()
        all_rows, context, num_cut = [], [], 0
        tokenizer, length = self.session.tokenizer, self.session.max_seq_length
        for (text,) in inputs:
            spans = [match.span() for match in pattern.finditer(text)]
            ids = words.encode_words(tokenizer, [text[a:b] for a, b in spans])
            num_cut += sum(len(word) > length - 2 for word in ids)
            rows = words.sentence_rows(ids, [0] * len(ids), tokenizer, length)
            rows = list(map(without_padding, rows))
            context.append((text, spans, [np.flatnonzero(row["label_ids"]) for row in rows]))
            all_rows.append([model_inputs(row) for row in rows])
        num_words = sum(len(spans) for _, spans, _ in context)
        return Batch(all_rows, context, num_cut, num_words)

    def decode(self, context, outputs):
        for (text, spans, positions), rows in zip(context, outputs, strict=True):
            logits = np.concatenate(  # [words, C]
                [row["logits"][at] for row, at in zip(rows, positions, strict=True)]
                or [np.zeros((0, len(self.labels)), np.float32)]
            )
            labels = [self.labels[i] for i in np.argmax(logits, axis=-1)]
            yield {
                "words": [text[a:b] for a, b in spans],
                "labels": labels,
                "probabilities": numbers(softmax(logits).max(axis=-1, initial=0.0)),
                "entities": [
                    {
                        "type": kind, "text": text[spans[first][0] : spans[last][1]],
                        "start": spans[first][0], "end": spans[last][1],
                    }
                    for kind, first, last in words.find_entities(labels)
                ],
            }


@dataclasses.dataclass
class ChoicePredictor(TaskPredictor):
    """The right one of 2 to 26 options. A line has a passage, a question and the options."""

    labels: Sequence[str] = race.ANSWERS
    min_texts: int = 4
    max_texts: int = 2 + len(race.ANSWERS)

    task = "multiple_choice"
    class_name = "AlbertForMultipleChoice"

    @property
    def max_ending_length(self) -> int:
        """The maximum length of a question with an option, in tokens."""
        trained = self.session.source.metadata.settings.get("max_qa_length", 128)
        return min(trained, self.session.max_seq_length - 3)

    def encode(self, inputs):
        tokenizer, length = self.session.tokenizer, self.session.max_seq_length
        questions = [
            race.Question(
                "", "", tokenizer.preprocess(passage),
                race.endings_of(question, options, "input", tokenizer), None,
            )
            for passage, question, *options in inputs
        ]
        # With the same shape, they can be computed together.
        count = race.num_choices_of(questions)
        rows = race.question_rows(questions, tokenizer, length, self.max_ending_length, count)
        return Batch([
            [without_padding({n: x.reshape(count, length) for n, x in model_inputs(row).items()})]
            for row in rows
        ], [len(question.endings) for question in questions])

    def decode(self, context, outputs):
        for count, (one,) in zip(context or [None] * len(outputs), outputs, strict=True):
            yield from _likeliest_labels(
                self.labels[:count], [[{"logits": one["logits"][:count]}]]
            )


def without_padding(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays [..., L] of a sequence without padding, and no other values."""
    used = int(np.asarray(row["input_mask"]).sum(axis=-1).max())
    return {name: value[..., :used] for name, value in row.items() if np.ndim(value)}
