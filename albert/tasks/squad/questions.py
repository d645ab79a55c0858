"""Reads SQuAD files. No TensorFlow."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from albert.errors import DataError, some
from albert.tasks import lines

log = logging.getLogger("albert")


@dataclasses.dataclass(frozen=True)
class SquadExample:
    """One question with its passage and, in training, its answer."""

    qas_id: str
    question_text: str
    paragraph_text: str
    orig_answer_text: str | None  # None at prediction, "" without answer
    start_position: int | None  # of the answer's first character; -1 without answer
    is_impossible: bool
    place: str  # in the file, for messages: "dev.json: data[3].paragraphs[0].qas[1]"


def read_examples(path: str, is_training: bool) -> list[SquadExample]:
    """Returns the questions of a SQuAD file, of version 1.1 or 2.0, in order.

    For training they have their first answer. Questions whose answer is not where the file says are
    skipped in training, with a warning.

    Raises:
      DataError: not a SQuAD file, or a duplicate id (with locations in the file).
    """
    examples: dict[str, SquadExample] = {}
    num_several = 0
    for place, context, qa in _located_questions(path, "train_file" if is_training else "predict_file"):
        answers = qa.get("answers")
        num_several += is_training and isinstance(answers, list) and len(answers) > 1
        example = _example_of_question(place, context, qa, is_training)
        if earlier := examples.get(example.qas_id):
            at = earlier.place.removeprefix(f"{path}: ")
            raise DataError(f"{place}: duplicate id {example.qas_id!r}, also at {at}")
        examples[example.qas_id] = example
    if num_several:
        log.warning("%s: %s of %s questions have several answers; training uses the first",
                    path, f"{num_several:,}", f"{len(examples):,}")
    if displaced := [example for example in examples.values() if _is_displaced(example)]:
        log.warning(
            "%s: skipped %s of %s questions, whose answer is not in the passage at answer_start: %s",
            path, f"{len(displaced):,}", f"{len(examples):,}",
            some([f"{e.qas_id} ({e.place.removeprefix(f'{path}: ')})" for e in displaced]),
        )
        for example in displaced:
            del examples[example.qas_id]
        if not examples:
            raise DataError(f"{path}: no question has its answer where answer_start says")
    return list(examples.values())


def read_answers(path: str) -> dict[str, list[str] | None]:
    """Returns the known answers of each question of a SQuAD file, by its id.

    The list is empty if there is no answer, and None if the answers are unknown, which is also
    assumed if all lists are empty and no question is marked impossible, as in some test sets.

    Raises:
      DataError: not a SQuAD file.
    """
    answers: dict[str, list[str] | None] = {}
    any_impossible = False
    for place, _, qa in _located_questions(path, "predict_file"):
        texts, is_impossible = None, qa["is_impossible"]
        any_impossible |= is_impossible
        if qa.get("answers") is not None:
            texts = [
                _member(answer, "text", str, f"{place}.answers[{i}]")
                for i, answer in enumerate(_member(qa, "answers", list, place))
            ]
        answers[qa["id"]] = [] if is_impossible and not texts else texts
    if not (any_impossible or any(answers.values())):
        return dict.fromkeys(answers)
    return answers


def _located_questions(path: str, flag: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields (location, passage, question), at least one; `is_impossible` is always there."""
    number = 0
    for _, value in lines.json_values(path, flag):
        for i, article in enumerate(_member(value, "data", list, path)):
            place = f"{path}: data[{i}]"
            for p, paragraph in enumerate(_member(article, "paragraphs", list, place)):
                where = f"{place}.paragraphs[{p}]"
                context = _member(paragraph, "context", str, where)
                for q, qa in enumerate(_member(paragraph, "qas", list, where)):
                    yield f"{where}.qas[{q}]", context, _checked(qa, f"{where}.qas[{q}]")
                    number += 1
    if not number:
        raise DataError(f"{path}: no questions")


def _checked(qa: Any, place: str) -> dict[str, Any]:
    _member(qa, "question", str, place)
    _member(qa, "id", str, place)
    is_impossible = qa.get("is_impossible", False)
    if not isinstance(is_impossible, bool):
        raise DataError(f"{place}: 'is_impossible' must be true or false, got {is_impossible!r:.60}")
    return {**qa, "is_impossible": is_impossible}


_KINDS = {list: "a list", str: "a string", int: "a whole number"}


def _member(value: Any, name: str, kind: type, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: expected an object, got {type(value).__name__}")
    if name not in value:
        raise DataError(f"{place}: no {name!r}; is it a SQuAD file?")
    member = value[name]
    if not isinstance(member, kind) or isinstance(member, bool):
        raise DataError(f"{place}: {name!r} must be {_KINDS[kind]}, got {member!r:.60}")
    return member


def _example_of_question(place: str, context: str, qa: Any, is_training: bool) -> SquadExample:
    qas_id, question = qa["id"], _member(qa, "question", str, place)
    if not is_training:
        return SquadExample(qas_id, question, context, None, None, False, place)
    if qa["is_impossible"] or qa.get("answers") == []:
        return SquadExample(qas_id, question, context, "", -1, True, place)
    answer, at = _member(qa, "answers", list, place)[0], f"{place}.answers[0]"
    text, start = _member(answer, "text", str, at), _member(answer, "answer_start", int, at)
    return SquadExample(qas_id, question, context, text, start, False, place)


def _is_displaced(example: SquadExample) -> bool:
    """Whether a training answer is not where the file says."""
    text, start = example.orig_answer_text, example.start_position
    if text is None or example.is_impossible:
        return False
    return start < 0 or not text or not example.paragraph_text.startswith(text, start)
