"""Questions, and from the scores of their windows to answers and official scores. No TensorFlow.

The scores are those of the papers of SQuAD 1.1 and 2.0 (arXiv 1606.05250, 1806.03822): answers are
compared without case, punctuation, articles and surplus blanks; F1 is that of the shared tokens.

Legend: L sequence, T tokens of a passage, K and K2 beam sizes for first and last tokens, P pairs.
"""

import collections
import dataclasses
import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

KnownAnswers = Mapping[str, Sequence[str]]  # the gold ones of each question


@dataclasses.dataclass(frozen=True)
class Question:
    """One question with its passage."""

    qas_id: str
    question: str
    passage: str
    answers: tuple[str, ...] | None = None  # the known ones; none: it has no answer; None: unknown
    start: int = -1  # first character of the first answer; only in training


@dataclasses.dataclass(frozen=True)
class Window:
    """One sequence: [CLS] question [SEP] part of the passage [SEP]. The part has T tokens."""

    question: int  # its index
    row: Mapping[str, Any]  # input_ids, input_mask, segment_ids and p_mask (1: no answer here), [L]
    offset: int  # position of the part's first token
    spans: np.ndarray  # first and last character of the part's tokens in the passage, [T, 2]
    has_most_context: np.ndarray  # whether a token has more context here than in other windows, [T]
    answer: tuple[int, int] | None  # positions of its first and last token, if it is in the window


class Answer(NamedTuple):
    """An entry of an n-best list."""

    text: str
    probability: float  # among the entries of the list
    start_log_prob: float
    end_log_prob: float
    start: int = 0  # of the text in the passage; no part of the files


# A question without candidates gets one of these, for SQuAD 1.1 and 2.0, and these odds of no answer.
NO_CANDIDATE = (Answer("empty", 1.0, 0.0, 0.0), Answer("", 1.0, -1e6, -1e6))
NO_WINDOW = 1000000.0

# === From scores to answers ===


def decode(
    questions: Sequence[Question], windows: Sequence[Window], outputs: Iterable[Mapping[str, Any]], *,
    with_negative: bool, n_best_size: int, max_answer_length: int,
) -> tuple[dict[str, list[Answer]], dict[str, float]]:
    """Returns n-best lists and, for SQuAD 2.0, the odds of no answer; each by question id.

    The first answer of a list is the likeliest one, whatever the odds; see `with_threshold`.

    Args:
      outputs: for each window `start_logits` and `end_logits` [L]; `with_negative`
        `start_top_log_probs` and `start_top_index` [K], `end_top_log_probs` and `end_top_index`
        [K * K2], `cls_logits`.
    """
    candidates: list[list[Answer]] = [[] for _ in questions]
    null_odds = {question.qas_id: NO_WINDOW for question in questions} if with_negative else {}
    for window, output in zip(windows, outputs, strict=True):
        question = questions[window.question]
        if with_negative:
            null_odds[question.qas_id] = min(null_odds[question.qas_id], float(output["cls_logits"]))
            last, end_scores = output["end_top_index"], output["end_top_log_probs"]
            count = len(last) // len(output["start_top_index"])
            first = np.repeat(output["start_top_index"], count)
            start_scores = np.repeat(output["start_top_log_probs"], count)
        else:  # all pairs of the largest logits; of equal logits the first positions
            starts, ends = (np.asarray(output[name]) for name in ("start_logits", "end_logits"))
            first, last = (np.argsort(-x, kind="stable")[:n_best_size] for x in (starts, ends))
            first, last = np.repeat(first, len(last)), np.tile(last, len(first))
            start_scores, end_scores = starts[first], ends[last]
        pairs = tuple(map(np.asarray, (first, last, start_scores, end_scores)))
        candidates[window.question] += _candidates(question, window, pairs, max_answer_length)
    return {
        question.qas_id: _n_best(found, n_best_size) or [NO_CANDIDATE[with_negative]]
        for question, found in zip(questions, candidates, strict=True)
    }, null_odds


def _candidates(
    question: Question, window: Window, pairs: tuple[np.ndarray, ...], max_answer_length: int
) -> list[Answer]:
    """Returns a window's candidates. A pair that occurs twice in a beam gets the mean scores.

    Args:
      pairs: first and last positions, and their scores, [P].
    """
    first, last, *scores = pairs
    first, last, count = first - window.offset, last - window.offset, len(window.spans)
    plausible = (first >= 0) & (first <= last) & (last < count) & (last - first < max_answer_length)
    plausible[plausible] = window.has_most_context[first[plausible]]
    scores_of = collections.defaultdict(list)
    for start, end, *of_pair in zip(*(x[plausible].tolist() for x in (first, last, *scores))):
        scores_of[start, end].append(of_pair)
    found = []
    for (start, end), of_pair in scores_of.items():
        begin, stop = window.spans[start, 0], window.spans[end, 1] + 1
        text = question.passage[begin:stop]
        means = (sum(part) / len(of_pair) for part in zip(*of_pair, strict=True))
        begin += len(text) - len(text.lstrip())
        found.append(Answer(text.strip(), 0.0, *means, int(begin)))
    return found


def _n_best(candidates: list[Answer], count: int) -> list[Answer]:
    """Returns the best candidates, with each text only once, and with their probabilities."""
    best: dict[str, Answer] = {}
    for one in sorted(candidates, key=lambda c: c.start_log_prob + c.end_log_prob, reverse=True):
        best.setdefault(one.text, one)
    answers = list(best.values())[:count]
    scores = [one.start_log_prob + one.end_log_prob for one in answers]
    weights = [math.exp(score - scores[0]) for score in scores]
    return [
        one._replace(probability=weight / sum(weights))
        for one, weight in zip(answers, weights, strict=True)
    ]


# === The threshold of SQuAD 2.0 ===


def with_threshold(
    answers: Mapping[str, str], null_odds: Mapping[str, float], threshold: float
) -> dict[str, str]:
    """Returns each answer, or "" if its odds of no answer are above the threshold."""
    return {qid: text if null_odds[qid] <= threshold else "" for qid, text in answers.items()}


def evaluate_with_threshold(
    known: KnownAnswers, answers: Mapping[str, str], null_odds: Mapping[str, float],
    threshold: float | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns (results, answers with the threshold).

    By default it is the threshold with the best F1 on this data, which the results have as
    `null_score_diff_threshold`.

    Unlike the original, this does not compare the odds with 1.0 afterwards, as if they were
    probabilities, which removes answers. Unlike the official search, it treats questions of equal
    odds together, and represents no answers at all by a threshold below all odds instead of 0, which
    is correct only for probabilities.
    """
    withheld = question_scores(known, dict.fromkeys(answers, ""), with_negative=True)
    odds, best = np.array([null_odds.get(qid, math.inf) for qid in known]), {}
    for name, answered in question_scores(known, answers, with_negative=True).items():
        limit = best[f"best_{name}_thresh"] = _best_threshold(answered - withheld[name], odds)
        best[f"best_{name}"] = _per_cent(np.where(odds <= limit, answered, withheld[name]))
    if threshold is None:
        threshold = best["null_score_diff_threshold"] = best["best_f1_thresh"]
    answers = with_threshold(answers, null_odds, threshold)
    return evaluate(known, answers, with_negative=True) | best, answers


def _best_threshold(gains: np.ndarray, odds: np.ndarray) -> float:
    """Returns the lowest threshold with the highest sum of gains by answers, [N].

    If it is best to answer no question, the threshold is the lowest odds minus 1.
    """
    order = np.argsort(odds, kind="stable")
    sums, odds = np.cumsum(gains[order]), odds[order]
    is_last = np.append(odds[1:] > odds[:-1], True)  # of equal odds
    best = np.argmax(sums[is_last])
    return float(odds[is_last][best]) if sums[is_last][best] > 0 else float(odds[0]) - 1.0


# === Official scores ===

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Returns the text in lower case, without ASCII punctuation, articles and surplus blanks."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def f1_score(gold: str, prediction: str, with_negative: bool) -> float:
    """Returns the F1 of the shared tokens.

    If an answer has no tokens, the score is 0; `with_negative`, it is 1 if both have none.
    """
    theirs, ours = normalize_answer(gold).split(), normalize_answer(prediction).split()
    if with_negative and not (theirs and ours):
        return float(theirs == ours)
    shared = sum((collections.Counter(theirs) & collections.Counter(ours)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def question_scores(
    known: KnownAnswers, predictions: Mapping[str, str], with_negative: bool
) -> dict[str, np.ndarray]:
    """Returns `exact_match` (`exact` of SQuAD 2.0) and `f1` of each question [N]; 0 without prediction.

    `with_negative`, gold answers that are empty after normalisation do not count, and a question
    without gold answers has the empty answer.
    """
    exact, f1 = np.zeros((2, len(known)))
    for i, (qid, golds) in enumerate(known.items()):
        if (guess := predictions.get(qid)) is None:
            continue
        if with_negative:
            golds = [text for text in golds if normalize_answer(text)] or [""]
        exact[i] = normalize_answer(guess) in map(normalize_answer, golds)
        f1[i] = max((f1_score(gold, guess, with_negative) for gold in golds), default=0.0)
    return {"exact" if with_negative else "exact_match": exact, "f1": f1}


def evaluate(
    known: KnownAnswers, predictions: Mapping[str, str], with_negative: bool
) -> dict[str, float]:
    """Returns the official script's results in per cent; a question without prediction scores 0.

    They are `exact_match` and `f1`; of SQuAD 2.0 exact, f1, total, HasAns_* and NoAns_*.

    Args:
      predictions: {question id: answer}, "" for no answer.
    """
    scores = question_scores(known, predictions, with_negative)
    results = {name: _per_cent(values) for name, values in scores.items()}
    if with_negative:
        results["total"] = len(known)
        has_answer = np.array([bool(golds) for golds in known.values()])
        for prefix, part in (("HasAns", has_answer), ("NoAns", ~has_answer)):
            if part.any():
                results |= {f"{prefix}_{name}": _per_cent(values[part]) for name, values in scores.items()}
                results[f"{prefix}_total"] = int(part.sum())
    return results


def _per_cent(scores: np.ndarray) -> float:
    """Returns the mean in per cent, added from left to right, as the official scripts do."""
    return 100.0 * float(np.cumsum(scores)[-1]) / len(scores)
