"""The official scores of SQuAD 1.1 and 2.0, from their papers (arXiv 1606.05250, 1806.03822).

Answers are compared without case, punctuation, articles and surplus blanks. F1 is that of the
shared tokens. No TensorFlow.
"""

import collections
import re
import string
from collections.abc import Iterable, Mapping, Sequence

Scores = dict[str, float]  # by question
Answers = Mapping[str, Sequence[str]]  # the gold ones of each question

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Returns the text in lower case, without ASCII punctuation, articles and surplus blanks."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(gold: str, prediction: str) -> bool:
    """Whether two answers are the same after normalisation."""
    return normalize_answer(gold) == normalize_answer(prediction)


def f1_score(gold: str, prediction: str, no_answer_is_one: bool = False) -> float:
    """Returns the F1 of the shared tokens.

    If an answer has no tokens, the score is 0, as in version 1.1. With `no_answer_is_one` (2.0), it
    is 1 if both have none.
    """
    theirs, ours = normalize_answer(gold).split(), normalize_answer(prediction).split()
    if no_answer_is_one and not (theirs and ours):
        return float(theirs == ours)
    shared = sum((collections.Counter(theirs) & collections.Counter(ours)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


# === 1.1 ===


def evaluate_v1(answers: Answers, predictions: Mapping[str, str]) -> dict[str, float]:
    """Returns `exact_match` and `f1` in per cent; a question without prediction scores 0."""
    exact = f1 = 0.0
    for qid, golds in answers.items():
        if (guess := predictions.get(qid)) is not None:
            exact += max((exact_match(gold, guess) for gold in golds), default=False)
            f1 += max((f1_score(gold, guess) for gold in golds), default=0.0)
    total = max(len(answers), 1)
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}


# === 2.0 ===


def raw_scores(answers: Answers, predictions: Mapping[str, str]) -> dict[str, Scores]:
    """Returns `exact` and `f1` of each question that has a prediction, before any threshold.

    Gold answers that are empty after normalisation do not count. A question without gold
    answers has the empty answer.
    """
    exact, f1 = {}, {}
    for qid, texts in answers.items():
        if (guess := predictions.get(qid)) is None:
            continue
        golds = [text for text in texts if normalize_answer(text)] or [""]
        exact[qid] = max(int(exact_match(gold, guess)) for gold in golds)
        f1[qid] = max(f1_score(gold, guess, no_answer_is_one=True) for gold in golds)
    return {"exact": exact, "f1": f1}


def evaluate_v2(answers: Answers, predictions: Mapping[str, str]) -> dict[str, float]:
    """Returns the official script's keys: exact, f1, total, HasAns_* and NoAns_*.

    A question without prediction scores 0. The official script stops with an error there.

    Args:
      predictions: {question id: answer}, "" for no answer.
    """
    raw = raw_scores(answers, predictions)
    results = averages(raw, list(answers))
    for prefix, has_one in (("HasAns", True), ("NoAns", False)):
        if qids := [qid for qid, golds in answers.items() if bool(golds) is has_one]:
            results |= {f"{prefix}_{k}": v for k, v in averages(raw, qids).items()}
    return results


def averages(scores: Mapping[str, Scores], qids: Sequence[str]) -> dict[str, float]:
    """Returns each score's mean over the questions in per cent, and their number as `total`.

    Missing scores count as 0.
    """
    total = len(qids)
    means: dict[str, float] = {
        name: 100.0 * _sum(each.get(qid, 0.0) for qid in qids) / total if total else 0.0
        for name, each in scores.items()
    }
    return means | {"total": total}


def _sum(numbers: Iterable[float]) -> float:
    """Adds from left to right; since Python 3.12, the last digit of `sum` can differ."""
    total = 0.0
    for number in numbers:
        total += number
    return total
