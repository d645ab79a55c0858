"""From scores of windows to answers, n-best lists and odds of no answer. No TensorFlow."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert.tasks.squad import metrics
from albert.tasks.squad.features import SquadExample, Window

# {unique id: a window's scores}
Results = Mapping[int, Any]
# A candidate's first and last token in its window, and their scores.
Pair = tuple[int, int, float, float]


class Entry(dict[str, Any]):
    """An entry of an n-best list, as in files; `start` is where its text begins in the passage."""

    start = 0


# For a question without candidates: the answer of SQuAD 1.1, and the odds of no answer.
NO_ANSWER = "empty"
NO_WINDOW = 1000000.0


@dataclasses.dataclass(frozen=True)
class _Candidate:
    text: str
    start_log_prob: float
    end_log_prob: float
    start: int = 0  # of the text in the passage

    @property
    def score(self) -> float:
        return self.start_log_prob + self.end_log_prob


def decode_v1(
    examples: Sequence[SquadExample],
    windows: Sequence[Window],
    results: Results,
    *,
    n_best_size: int,
    max_answer_length: int,
) -> tuple[dict[str, str], dict[str, list[Entry]]]:
    """Returns ({question id: answer}, {question id: n-best list}) of SQuAD 1.1.

    Args:
      results: {unique id of a window: mapping with start_logits and end_logits [L]}.
    """

    def pairs(window: Window, result) -> Iterator[Pair]:
        starts, ends = (np.asarray(result[f"{part}_logits"]) for part in ("start", "end"))
        first, last = _largest(starts, n_best_size), _largest(ends, n_best_size)
        grid = np.stack(np.meshgrid(first, last, indexing="ij"), -1).reshape(-1, 2)
        for start, end in grid[_plausible(window, grid, max_answer_length)].tolist():
            yield start, end, float(starts[start]), float(ends[end])

    fallback = _Candidate(NO_ANSWER, 0.0, 0.0)
    return _n_best(examples, windows, results, pairs, n_best_size, fallback)


def decode_v2(
    examples: Sequence[SquadExample],
    windows: Sequence[Window],
    results: Results,
    *,
    n_best_size: int,
    max_answer_length: int,
) -> tuple[dict[str, str], dict[str, list[Entry]], dict[str, float]]:
    """Returns (answers, n-best lists, odds of no answer) of SQuAD 2.0, each by question id.

    Every question gets its likeliest answer; `with_threshold` then withholds some.

    Args:
      results: {unique id: mapping with start_top_log_probs and start_top_index [K],
        end_top_log_probs and end_top_index [K * K2], cls_logits}; K and K2 are the beam sizes for
        first tokens, and for last tokens per first token.
    """

    def pairs(window: Window, result) -> Iterator[Pair]:
        ends, end_scores = result["end_top_index"], result["end_top_log_probs"]
        count = len(ends) // len(result["start_top_index"])  # of the ends of each start
        starts = np.repeat(result["start_top_index"], count)
        start_scores = np.repeat(result["start_top_log_probs"], count)
        grid = np.stack([starts, ends], -1)
        for k in np.flatnonzero(_plausible(window, grid, max_answer_length)):
            yield int(starts[k]), int(ends[k]), float(start_scores[k]), float(end_scores[k])

    fallback = _Candidate("", -1e6, -1e6)
    answers, nbest = _n_best(examples, windows, results, pairs, n_best_size, fallback)
    return answers, nbest, _null_odds(examples, windows, results)


def with_threshold(
    answers: Mapping[str, str], null_odds: Mapping[str, float], threshold: float
) -> dict[str, str]:
    """Returns each answer, or "" if its odds of no answer are above the threshold."""
    return {qid: text if null_odds[qid] <= threshold else "" for qid, text in answers.items()}


def evaluate_with_threshold(
    known: metrics.Answers,
    answers: Mapping[str, str],
    null_odds: Mapping[str, float],
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
    withheld = metrics.raw_scores(known, dict.fromkeys(answers, ""))
    best = {}
    for name, given in metrics.raw_scores(known, answers).items():
        without = withheld[name]
        limit = best[f"best_{name}_thresh"] = _best_threshold(given, without, null_odds)
        scores = {qid: x if null_odds[qid] <= limit else without[qid] for qid, x in given.items()}
        best[f"best_{name}"] = metrics.averages({name: scores}, list(known))[name]
    if threshold is None:
        threshold = best["null_score_diff_threshold"] = best["best_f1_thresh"]
    chosen = with_threshold(answers, null_odds, threshold)
    return metrics.evaluate_v2(known, chosen) | best, chosen


def _best_threshold(
    given: metrics.Scores, withheld: metrics.Scores, null_odds: Mapping[str, float]
) -> float:
    """Returns the lowest threshold with the highest sum of scores.

    A question scores `given` if it is answered, else `withheld`. If it is best to answer no
    question, the threshold is the lowest odds minus 1.
    """
    if not given:
        return 0.0
    by_odds = sorted(given, key=null_odds.__getitem__)
    gain, best, best_threshold = 0.0, 0.0, null_odds[by_odds[0]] - 1.0
    for threshold, qids in itertools.groupby(by_odds, key=null_odds.__getitem__):
        for qid in qids:
            gain += given[qid] - withheld[qid]
        if gain > best:
            best, best_threshold = gain, threshold
    return best_threshold


def _largest(scores: np.ndarray, count: int) -> np.ndarray:
    """Returns the positions of the largest scores in descending order; ties in ascending position."""
    return np.argsort(-scores, kind="stable")[:count]


def _plausible(window: Window, grid: np.ndarray, max_answer_length: int) -> np.ndarray:
    """Returns which (first, last) positions [.., 2] can be an answer of the window."""
    offset = _offset(window)
    size = len(window.tok_start_to_orig_index)
    has_most_context = np.zeros(len(window.tokens), bool)
    for position, is_max in window.token_is_max_context.items():
        has_most_context[position] = is_max
    start, end = grid[:, 0], grid[:, 1]
    return (
        (start >= offset) & (start < offset + size) & (end < offset + size)
        & has_most_context[start] & (end >= start) & (end - start + 1 <= max_answer_length)
    )


def _offset(window: Window) -> int:
    """Returns the position of the passage's first token."""
    return min(window.token_is_max_context)


def _n_best(
    examples: Sequence[SquadExample],
    windows: Sequence[Window],
    results: Results,
    pairs: Callable[[Window, Any], Iterable[Pair]],
    n_best_size: int,
    fallback: _Candidate,
) -> tuple[dict[str, str], dict[str, list[Entry]]]:
    """Returns ({question id: answer}, {question id: n-best list})."""
    candidates = collections.defaultdict(list)
    for window in windows:
        index = window.example_index
        candidates[index] += _candidates(
            examples[index], window, pairs(window, results[window.unique_id])
        )
    nbest = {
        example.qas_id: _entries(_best(candidates[i], n_best_size) or [fallback])
        for i, example in enumerate(examples)
    }
    return {qid: entries[0]["text"] for qid, entries in nbest.items()}, nbest


def _candidates(
    example: SquadExample, window: Window, pairs: Iterable[Pair]
) -> list[_Candidate]:
    """Returns a window's candidates. A pair that occurs twice in the beam gets the mean scores."""
    scores = collections.defaultdict(list)
    for start, end, *of_pair in pairs:
        scores[start, end].append(of_pair)
    offset, text = _offset(window), example.paragraph_text
    candidates = []
    for (start, end), of_pair in scores.items():
        first = window.tok_start_to_orig_index[start - offset]
        last = window.tok_end_to_orig_index[end - offset]
        means = (sum(part) / len(of_pair) for part in zip(*of_pair, strict=True))
        part = text[first : last + 1]
        first += len(part) - len(part.lstrip())
        candidates.append(_Candidate(part.strip(), *means, first))
    return candidates


def _best(candidates: list[_Candidate], count: int) -> list[_Candidate]:
    """Returns the best candidates, with each text only once."""
    best: dict[str, _Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.score, reverse=True):
        best.setdefault(candidate.text, candidate)
    return list(best.values())[:count]


def _entries(candidates: list[_Candidate]) -> list[Entry]:
    highest = max(c.score for c in candidates)
    weights = [math.exp(c.score - highest) for c in candidates]
    entries = []
    for candidate, weight in zip(candidates, weights, strict=True):
        entries.append(Entry(
            text=candidate.text, probability=weight / sum(weights),
            start_log_prob=candidate.start_log_prob, end_log_prob=candidate.end_log_prob,
        ))
        entries[-1].start = candidate.start
    return entries


def _null_odds(
    examples: Sequence[SquadExample], windows: Sequence[Window], results: Results
) -> dict[str, float]:
    """Returns each question's lowest odds of no answer over its windows."""
    odds = {example.qas_id: NO_WINDOW for example in examples}
    for window in windows:
        qas_id = examples[window.example_index].qas_id
        odds[qas_id] = min(odds[qas_id], float(results[window.unique_id]["cls_logits"]))
    return odds
