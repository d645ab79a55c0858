"""Converts multiple-choice questions of well-known data sets to RACE's format.

SWAG and HellaSwag have `ending0`, `ending1`, ...; COPA `premise`, `choice1`, `choice2`; ARC,
OpenBookQA and CommonsenseQA `choices` with labels and texts, and `answerKey`. Your own rows have
`question`, `options` (or `choices`), `answer` (or `label`) and optionally `article`.
"""

import itertools
import string
from collections.abc import Mapping, Sequence
from typing import Any

from albert.errors import DataError

_COPA = {"cause": "What was the cause?", "effect": "What happened as a result?"}
_ARTICLES = ("article", "context", "passage", "premise", "ctx", "startphrase", "sent1")
_ANSWERS = ("answer", "answerKey", "label", "gold")
_NO_ANSWER = (None, "", -1, "-1")  # of test sets


def as_passage(row: Any, place: str) -> Any:
    """Returns a row as a passage of RACE with one question, and passages of RACE unchanged.

    Raises:
      DataError: there are no options, or the answer is none of them.
    """
    if not isinstance(row, Mapping) or "questions" in row:
        return row
    question, article = row.get("question", row.get("sent2", "")), _first(row, _ARTICLES) or ""
    if isinstance(question, Mapping):  # CommonsenseQA's own files
        row = {**question, **row}
        question = question.get("stem", "")
    options, labels = _options(row)
    if not options:
        raise DataError(
            f"{place}: no options: expected a list `options` or `choices`, or ending0, ending1 ... or "
            f"choice1, choice2 ..., got {', '.join(map(str, row)) or 'nothing'}"
        )
    if "premise" in row:
        question = _COPA.get(question, question)
    passage = {"article": article, "questions": [question], "options": [options]}
    answer = _first(row, _ANSWERS)
    if answer not in _NO_ANSWER:
        passage["answers"] = [_letter(answer, labels, options, place)]
    return passage | ({"id": str(row["id"])} if "id" in row else {})


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if name in row), None)


def _options(row: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Returns the options, and their labels if the row has any."""
    for stem, first in (("ending", 0), ("choice", 1)):
        numbers = itertools.takewhile(lambda i: f"{stem}{i}" in row, itertools.count(first))
        if options := [row[f"{stem}{i}"] for i in numbers]:
            return options, []
    options = _first(row, ("options", "choices", "endings"))
    if isinstance(options, Mapping):  # lists of labels and texts
        return list(options.get("text", ())), list(map(str, options.get("label", ())))
    if not isinstance(options, list):
        return [], []
    if options and all(isinstance(x, Mapping) for x in options):
        return [x.get("text") for x in options], [str(x.get("label")) for x in options]
    return options, []


def _letter(answer: Any, labels: Sequence[str], options: Sequence[Any], place: str) -> str:
    """Returns RACE's letter for an answer that is a label, a number from 0, a letter or an option."""
    text, letters = str(answer), string.ascii_uppercase[: len(options)]
    for names in (labels, list(map(str, range(len(options)))), letters, options):
        if text in names:
            return letters[list(names).index(text)]
    raise DataError(f"{place}: the answer {answer!r:.80} is none of its {len(options)} options")
