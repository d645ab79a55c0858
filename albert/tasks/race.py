"""RACE: passages with multiple-choice questions from English exams. No TensorFlow.

`RACE/{train,dev,test}/{middle,high}/` in the data folder holds one file per passage, as in the
official archive, or `all.txt` with all of them. Or the data folder holds train.jsonl, dev.jsonl and
test.jsonl with passages of the same form, which have no levels. A
`classification.MultipleChoiceTask` is trained on them.

Legend: C choices (4 in RACE; 2 to 26 in files of its form), L sequence.
"""

import dataclasses
import functools
import glob
import itertools
import logging
import os
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.errors import DataError, FlagError
from albert.records import features
from albert.tasks import lines

if TYPE_CHECKING:
    from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

LEVELS = ("middle", "high")  # in the order in which they are read
ANSWERS = string.ascii_uppercase
NUM_CHOICES = 4  # of RACE itself
BLANK = "_"  # in a question: the option goes here


@dataclasses.dataclass(frozen=True)
class Question:
    """One question with its choices, preprocessed for the tokenizer."""

    guid: str  # the passage's id and the question's number, from 0
    level: str
    article: str
    endings: tuple[str, ...]  # C: the question with each option inserted or appended
    label: int | None  # None: the file has no answers


def read_questions(
    data_dir: str, split: str, tokenizer: "FullTokenizer", levels: Sequence[str] = LEVELS
) -> list[Question]:
    """Returns the questions of train, dev or test, level by level.

    Only the test passages may lack answers.

    Raises:
      FlagError: one level of questions that have none.
      DataError: no files, not JSON, not UTF-8, or not a passage of RACE (file:line).
    """
    questions: list[Question] = []
    path, folder = os.path.join(data_dir, f"{split}.jsonl"), os.path.join(data_dir, "RACE", split)
    if os.path.isfile(path):
        if len(levels) < len(LEVELS):
            raise FlagError(f"--{levels[0]}_only has no effect on {path}, whose questions have no level")
        sources = {"all": [path]}
    else:
        sources = {level: _level_files(os.path.join(folder, level)) for level in levels}
    for level, paths in sources.items():
        count = len(questions)
        for path in paths:
            for line, passage in lines.json_values(path, "data_dir"):
                questions += _questions_of(passage, f"{path}:{line}", level, split, tokenizer)
        if len(questions) == count:
            raise DataError(f"{paths[0]}: no passage with questions in it")
    labelled = sum(question.label is not None for question in questions)
    if labelled not in (0, len(questions)):
        raise DataError(f"{folder}: {labelled:,} of {len(questions):,} questions have answers")
    log.info("%s: %s questions", folder, f"{len(questions):,}")
    return questions


def question_rows(
    questions: Sequence[Question], tokenizer: "FullTokenizer", max_seq_length: int, max_qa_length: int,
    num_choices: int = NUM_CHOICES, name: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields each question's record: C sequences, concatenated, and the answer's number.

    If a question has fewer than `num_choices` options, the last sequences are empty.

    A sequence is the passage and the question with one option. A question of more than
    `max_qa_length` tokens is truncated at its start, since the option at its end must stay. The
    passage is truncated at its end. If they have a `name`, the share of truncated questions is logged.
    """
    cls_id, sep_id, num_cut = tokenizer.cls_id, tokenizer.sep_id, 0
    for article, group in itertools.groupby(questions, lambda question: question.article):
        same_passage = list(group)
        endings = [ending for question in same_passage for ending in question.endings]
        context, *rest = tokenizer.encode_batch([article, *endings], is_preprocessed=True)
        ids = iter(rest)
        for question in same_passage:
            rows, of_question = [], list(itertools.islice(ids, len(question.endings)))
            longest = max(map(len, of_question))
            num_cut += longest > min(max_qa_length, max_seq_length - 3 - len(context))
            for ending in of_question:
                ending = ending[-max_qa_length:]
                start = context[: max_seq_length - 3 - len(ending)]
                rows.append(features.join_texts(start, ending, max_seq_length, cls_id, sep_id))
            absent = np.zeros((num_choices - len(rows)) * max_seq_length, np.int64)
            packed = {name: np.concatenate([*(row[name] for row in rows), absent]) for name in rows[0]}
            yield {**packed, "label_ids": question.label or 0, "is_real_example": 1}
    if name:
        features.log_truncated(name, num_cut, len(questions), max_seq_length)


# --- Reading ---


def _level_files(folder: str) -> list[str]:
    """Returns the files of a level."""
    if not os.path.isdir(folder):
        raise DataError(
            f"no such directory: {folder}; --data_dir must hold the folder RACE of the archive, or "
            "train.jsonl and dev.jsonl"
        )
    of_all = os.path.join(folder, "all.txt")
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "*.txt")))
    if not paths:
        raise DataError(f"{folder}: no passage in it (*.txt, or all.txt)")
    return [of_all] if of_all in paths else paths


def _questions_of(
    passage: Any, place: str, level: str, split: str, tokenizer: "FullTokenizer"
) -> list[Question]:
    member = functools.partial(lines.member, passage, where=place, form="RACE")
    article, asked, options = member("article", str), member("questions", list), member("options", list)
    answers = [None] * len(asked)
    if split != "test" or "answers" in passage:
        answers = member("answers", list)
    if not len(asked) == len(options) == len(answers):
        raise DataError(f"{place}: the passage has {len(asked)} questions, {len(options)} options, "
                        f"{len(answers)} answers")
    name = passage.get("id", level + os.path.basename(place))
    article, questions = tokenizer.preprocess(article), []
    for number, (question, choices, answer) in enumerate(zip(asked, options, answers, strict=True)):
        where = f"{place}: question {number + 1}"
        endings = endings_of(question, choices, where, tokenizer)
        letters = ANSWERS[:len(endings)]
        if answer not in (None, *letters):
            raise DataError(f"{where}: answer {answer!r:.80} is not one of {', '.join(letters)}")
        label = None if answer is None else letters.index(answer)
        questions.append(Question(f"{name}-{number}", level, article, endings, label))
    return questions


def endings_of(question: Any, options: Any, place: str, tokenizer) -> tuple[str, ...]:
    """Returns the preprocessed question with each option in its blank, or appended if it has none.

    Raises:
      DataError: not texts, or not 2 to 26 options (at `place`).
    """
    if not isinstance(question, str):
        raise DataError(f"{place} is not a text: {question!r:.80}")
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise DataError(f"{place}: its options are not a list of texts: {options!r:.80}")
    if not 2 <= len(options) <= len(ANSWERS):
        raise DataError(f"{place} has {len(options)} options, expected 2 to {len(ANSWERS)}")
    question = tokenizer.preprocess(question)
    cleaned = map(tokenizer.preprocess, options)
    if BLANK in question:  # all blanks, as in the original
        return tuple(question.replace(BLANK, option) for option in cleaned)
    return tuple(f"{question} {option}" for option in cleaned)


def num_choices_of(questions: Iterable[Question]) -> int:
    """Returns the maximum number of options of a question; RACE's if there are no questions."""
    return max((len(question.endings) for question in questions), default=NUM_CHOICES)
