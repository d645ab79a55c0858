"""Predictors for fine-tuned models, and which one a model needs. No TensorFlow.

Modules for one task are imported when it is asked for, so that others start sooner.

Legend: B batch, L sequence, C labels or choices.
"""

import dataclasses
import functools
import re
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert.errors import CheckpointError, DataError, FlagError, some
from albert.formats.metadata import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from albert.formats.model_classes import (
    CHOICE, CLASSIFICATION, LABEL_HEAD, MODEL_CLASSES, QUESTIONS, TOKENS, class_of_weights,
)
from albert.formats.pretrained import Pretrained
from albert.formats.tokenizer_json import combining_characters
from albert.inference.onnx_model import INPUTS
from albert.inference.predictors import Encoded, Predictor, numbers, sigmoid, softmax, without_padding
from albert.records.features import encode_pairs
from albert.text.offsets import with_marks


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """Returns the pattern of words, from which punctuation is separated at both ends, not inside.

    Each ideograph is a word, as in labelled Chinese texts, which have no blanks.
    """
    han = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    return re.compile(rf"[{han}]|\w(?:[^\s{han}]*[^\W{han}])?{combining_characters()}*|\S")  # U.S, don't, 3.5


@dataclasses.dataclass
class TaskPredictor(Predictor):
    """The base class of predictors for fine-tuned models. An input is the texts of a line."""

    session: Any
    labels: Sequence[str] = ()  # C
    min_texts: int = 1  # of an input
    max_texts: int = 2
    top_k: int | None = None  # answers per input, as a list

    task = ""  # value of --task of `predict`
    separator = "\t"  # of the texts of a line

    def read(self, value, origin):
        """Returns the texts of an input, which is one text or several."""
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{origin} is neither a text nor several: {value!r:.80}")
        few, many = self.min_texts, self.max_texts
        if not few <= len(texts) <= many:
            wanted = few if few == many else f"{few} or {many}" if few + 1 == many else f"{few} to {many}"
            raise DataError(f"{origin}: {len(texts)} text{'s' * (len(texts) != 1)}, expected {wanted}")
        return texts

    def setting(self, name: str, default: Any) -> Any:
        """Returns the value of a flag in training, or a default."""
        return self.session.source.metadata.settings.get(name, default)


class TextClassifier(TaskPredictor):
    """One label for a text or a pair of texts."""

    task = CLASSIFICATION
    class_name = "AlbertForSequenceClassification"
    activation = staticmethod(softmax)

    def encode(self, inputs):
        from albert.tasks.classification import OWN_TABLE

        if self.session.source.metadata.task == OWN_TABLE:  # as its rows were read; form feeds matter
            inputs = [[" ".join(text.split()) for text in texts] for texts in inputs]
        # As in training, a second text that is empty after preprocessing doesn't count.
        pairs = [(first, *second, None)[:2] for first, *second in inputs]
        return [self.sequence(*ids) for ids in encode_pairs(self.session.tokenizer, pairs)]

    def compute(self, model, batch):
        logits = model(batch)["logits"]  # [B, C]
        return {"logits": logits, "probabilities": self.activation(logits)}

    def decode(self, context, outputs):
        [one] = outputs
        probabilities = dict(zip(self.labels, numbers(one["probabilities"]), strict=False))
        if self.top_k:
            best = sorted(probabilities, key=probabilities.get, reverse=True)[: self.top_k]
            return [{"label": label, "probability": probabilities[label]} for label in best]
        return self.answer(one["logits"], probabilities)

    def answer(self, logits: np.ndarray, probabilities: dict[str, float]) -> dict[str, Any]:
        label = self.labels[np.argmax(logits)]  # probabilities may be equal
        return {"label": label, "probability": probabilities[label], "probabilities": probabilities}


class MultiLabelClassifier(TextClassifier):
    """Labels of a text or a pair of texts: all whose probability reaches that of training, else 0.5."""

    task = "multi_label_classification"
    activation = staticmethod(sigmoid)

    def answer(self, logits, probabilities):
        threshold = self.setting("label_threshold", 0.5)
        labels = [label for label, value in probabilities.items() if value >= threshold]
        return {"labels": labels, "probabilities": probabilities}


class Regressor(TextClassifier):
    """A number for a text or a pair of texts, or several numbers by name."""

    task = "regression"

    def decode(self, context, outputs):
        values = numbers(outputs[0]["logits"])
        if len(values) == 1:
            return {"value": values[0]}
        return {"values": dict(zip(self.labels, values, strict=True))}


@dataclasses.dataclass
class ChoicePredictor(TextClassifier):
    """The right one of 2 to 26 options. A line has a passage, a question and the options."""

    labels: Sequence[str] = string.ascii_uppercase
    min_texts: int = 4
    max_texts: int = 2 + len(string.ascii_uppercase)

    task = CHOICE
    class_name = "AlbertForMultipleChoice"

    def encode(self, inputs):
        from albert.tasks import race

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
        longest = min(self.setting("max_qa_length", 128), length - 3)
        rows = race.question_rows(questions, tokenizer, length, longest, count)
        for question, row in zip(questions, rows, strict=True):
            inputs_of_one = {name: row[name].reshape(count, length) for name in INPUTS}
            yield Encoded([without_padding(inputs_of_one)], len(question.endings))

    def decode(self, count, outputs):
        logits = outputs[0]["logits"][:count]
        return super().decode(None, [{"logits": logits, "probabilities": softmax(logits)}])


@dataclasses.dataclass
class TokenClassifier(TaskPredictor):
    """A label for each word of a text, and the entities that the labels mark."""

    max_texts: int = 1
    is_tokenized: bool = False  # whether texts are split into words only at blanks

    task = TOKENS
    class_name = "AlbertForTokenClassification"
    separator = "\n"  # tabs separate words, as blanks do

    def encode(self, inputs):
        from albert.tasks import words

        pattern = re.compile(r"[^ \t]+") if self.is_tokenized else word_pattern()
        tokenizer, length = self.session.tokenizer, self.session.max_seq_length
        for (text,) in inputs:
            spans = [match.span() for match in pattern.finditer(text)]
            ids = words.encode_words(tokenizer, [text[a:b] for a, b in spans])
            rows = words.sentence_rows(ids, [0] * len(ids), tokenizer, length)
            positions = [np.flatnonzero(row["label_ids"]) for row in rows]
            is_cut = any(len(word) > length - 2 for word in ids)
            yield Encoded(list(map(without_padding, rows)), (text, spans, positions), is_cut)

    def decode(self, context, outputs):
        from albert.tasks import words

        text, spans, positions = context
        logits = np.concatenate([  # [words, C]
            np.zeros((0, len(self.labels)), np.float32),
            *(one["logits"][at] for one, at in zip(outputs, positions, strict=True)),
        ])
        labels = [self.labels[i] for i in np.argmax(logits, axis=-1)]
        entities = []
        for kind, first, last in words.find_entities(labels):
            start, end = spans[first][0], spans[last][1]
            entities.append({"type": kind, "text": text[start:end], "start": start, "end": end})
        return {
            "words": [text[a:b] for a, b in spans], "labels": labels,
            "probabilities": numbers(softmax(logits).max(axis=-1, initial=0.0)), "entities": entities,
        }


@dataclasses.dataclass
class QuestionAnswerer(TaskPredictor):
    """The part of a passage that answers a question. A line has a question and a passage.

    Passages longer than a sequence are split into overlapping windows, see `tasks.squad`.

    Raises:
      FlagError: a question of the length that was possible in training leaves no tokens for a passage.
    """

    min_texts: int = 2

    task = QUESTIONS
    class_name = "AlbertForQuestionAnswering"
    with_negative = False  # whether a passage may have no answer

    def __post_init__(self):
        length = self.session.max_seq_length
        longest = self.setting("max_query_length", min(64, (length - 3) // 2))
        if length <= longest + 3:
            raise FlagError(
                f"max_seq_length={length} is too short for passages: the model was trained with "
                f"questions of up to {longest} tokens, so it must be at least {longest + 4}"
            )
        self._max_query_length = longest

    def encode(self, inputs):
        from albert.tasks import squad, squad_answers

        questions = [squad_answers.Question(str(i), *texts) for i, texts in enumerate(inputs)]
        windows: list[list[Any]] = [[] for _ in questions]
        for window in squad.make_windows(
            questions, self.session.tokenizer, max_seq_length=self.session.max_seq_length,
            doc_stride=self.setting("doc_stride", 128), max_query_length=self._max_query_length,
        ):
            windows[window.question].append(dataclasses.replace(window, question=0))
        for question, of_one in zip(questions, windows, strict=True):
            yield Encoded([without_padding(window.row) for window in of_one], (question, of_one))

    def decode(self, context, outputs):
        from albert.tasks import squad_answers

        question, windows = context
        if not self.with_negative:  # padding, which depends on the other texts of a batch, is no candidate
            outputs = [
                {name: logits[: window.row["input_mask"].sum()] for name, logits in one.items()}
                for window, one in zip(windows, outputs, strict=True)
            ]
        nbest, null_odds = squad_answers.decode(
            [question], windows, outputs, with_negative=self.with_negative,
            n_best_size=max(self.setting("n_best_size", 20), self.top_k or 1),
            max_answer_length=self.setting("max_answer_length", 30),
        )
        parts = []
        for entry in nbest[question.qas_id][: self.top_k or 1]:
            # "empty", the original's answer from a passage without tokens, is not in it.
            size = len(entry.text) if question.passage.startswith(entry.text, entry.start) else 0
            [(start, end)] = with_marks(question.passage, [(entry.start, entry.start + size)])
            text, [probability] = question.passage[start:end], numbers([entry.probability])
            parts.append({"answer": text, "probability": probability, "start": start, "end": end})
        if self.with_negative:
            [odds] = numbers([null_odds[question.qas_id]])
            parts = [{**part, "no_answer_score": odds} for part in parts]
        if self.top_k:
            return parts
        [part] = parts
        if self.with_negative:
            part["best_answer"] = part["answer"]
            # The odds of no answer above which a question is left unanswered; at 0, both are equally
            # likely. They are the shortest decimals of a float32.
            if np.float32(odds) > np.float32(self.setting("null_score_diff_threshold", 0.0)):
                part |= {"answer": "", "start": 0, "end": 0}
        return part


class BeamQuestionAnswerer(QuestionAnswerer):
    """Like QuestionAnswerer, but passages may have no answer (SQuAD 2.0)."""

    class_name = "AlbertForBeamQuestionAnswering"
    with_negative = True


# === Which one a model needs ===

# Of those for one task, the first whose head the model has.
_PREDICTORS = (
    TextClassifier, MultiLabelClassifier, Regressor, TokenClassifier, BeamQuestionAnswerer,
    QuestionAnswerer, ChoicePredictor,
)
TASKS = tuple(dict.fromkeys(kind.task for kind in _PREDICTORS))
_TASK_OF_PROBLEM = {
    SINGLE_LABEL: CLASSIFICATION, REGRESSION: Regressor.task, MULTI_LABEL: MultiLabelClassifier.task,
}


def predictor_of(
    session: Any, task: str | None = None, labels: Sequence[str] = (), is_tokenized: bool = False
) -> TaskPredictor:
    """Returns the predictor for a task, by default for the one that the model was saved with.

    Args:
      labels: their names, by default those saved with the model.
      is_tokenized: whether texts are split into words only at blanks.

    Raises:
      UserError: the model is only pretrained, the task is unknown or not the model's, or the
        labels do not fit the model.
    """
    source = session.source
    task, shapes = task_of(source, task), source.weights().shapes
    kind = next((
        kind for kind in _PREDICTORS
        if kind.task == task and MODEL_CLASSES[kind.class_name].weight in shapes
    ), None)
    if not kind:
        raise CheckpointError(f"{source.path} has no head for {task}: it was not fine-tuned")
    if is_tokenized and task != TOKENS:
        raise FlagError(f"--is_tokenized has no effect on {task}")
    if task in (QUESTIONS, CHOICE):
        if labels:
            raise FlagError(f"--label_list has no effect on {task}")
        return kind(session)
    labels = _label_names(source, labels)
    if task == TOKENS:
        return kind(session, labels, is_tokenized=is_tokenized)
    count = source.metadata.num_texts
    return kind(session, labels, count or 1, count or 2)


def task_of(source: Pretrained, task: str | None) -> str:
    """Returns the given task if it is possibly the model's, by default the one it was saved with."""
    metadata, shapes = source.metadata, source.weights().shapes
    known = MODEL_CLASSES[metadata.architecture].task if metadata.architecture in MODEL_CLASSES else None
    if known == CLASSIFICATION:
        is_one_number = shapes.get(LABEL_HEAD, [0])[0] == 1
        known = _TASK_OF_PROBLEM.get(metadata.problem_type, Regressor.task if is_one_number else known)
    # Not every directory says which kind of classifier it holds.
    is_free = known == CLASSIFICATION and not metadata.problem_type
    if task and known not in (None, task) and not (is_free and task == MultiLabelClassifier.task):
        raise FlagError(f"task={task}: {source.path} was fine-tuned for {known}")
    if task or known:
        return task or known
    if not class_of_weights(shapes).task:
        raise FlagError(
            f"{source.path} is pretrained, not fine-tuned: fine-tune it, or try albert.fill_mask"
        )
    raise FlagError(f"{source.path} does not say what it was fine-tuned for: pass --task="
                    f"{'|'.join(TASKS)}, or save it again with save_pretrained of its class")


def _label_names(source: Pretrained, given: Sequence[str]) -> Sequence[str]:
    path, count = source.path, source.weights().shapes[LABEL_HEAD][0]
    known = source.metadata.label_names or tuple(map(str, range(count)))
    # Labels that are their own ids may get names.
    are_ids = known in (tuple(map(str, range(count))), tuple(f"LABEL_{i}" for i in range(count)))
    labels = given or known
    if len(labels) != count:
        raise FlagError(f"{path} has {count} labels, not {len(labels)} ({some(labels)}): pass --label_list")
    if len(set(labels)) < count:
        raise FlagError(f"{path} names a label twice ({some(labels)}): pass --label_list")
    if not are_ids and {*labels} != {*known}:
        raise FlagError(f"{path} was trained for the labels {some(known)}, not {some(labels)}: leave "
                        "--label_list out")
    return labels if are_ids else known
