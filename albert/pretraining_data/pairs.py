"""From documents to segment pairs: ranges of one flat array of token ids.

Segments (lines of a document) accumulate until a pair is long enough, and are split into A and B at
a random boundary. `SENTENCE_OBJECTIVES` determines whether B follows A.
"""

import dataclasses
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert.text.documents import Document
from albert.tokenization import FullTokenizer

# A pair: A is ids[a_start : a_start + a_length], and B accordingly. `lost` counts the tokens that were
# truncated, or left out before the pair.
PAIR = np.dtype([
    (name, "<i4") for name in ("a_start", "a_length", "b_start", "b_length", "label", "lost")
])

# (probability of a random B, probability of swapping A and B); both give label 1. "sop" is the
# paper's sentence order, "nsp" BERT's next sentence.
SENTENCE_OBJECTIVES = {"sop": (0.0, 0.5), "nsp": (0.5, 0.0), "none": (0.0, 0.0)}
_TOKENIZED_LINES = 4096  # lines passed to the tokenizer at once


class Block(NamedTuple):
    """Tokenized documents; document d consists of segments documents[d] to documents[d + 1]."""

    ids: np.ndarray  # int32, the tokens of all documents
    segments: list[int]  # start of each segment in `ids`, then the end
    documents: list[int]  # start of each document in `segments`, then the end


@dataclasses.dataclass(frozen=True)
class PairSettings:
    """How segments become pairs; fields are named after their flags."""

    max_seq_length: int = 512  # [CLS] A [SEP] B [SEP]
    short_seq_prob: float = 0.1  # fraction of documents with a shorter target length
    sentence_objective: str = "sop"  # key of `SENTENCE_OBJECTIVES`
    strict_sentence_order: bool = False  # never take B from another document for lack of text
    full_sequences: bool = False  # cut documents at the target length, wherever a segment ends
    single_sentences: bool = False  # every segment is a separate sequence, with an empty B
    is_swapped_later: bool = False  # don't swap A and B: the reader of the records does

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of A and B together."""
        return self.max_seq_length - (2 if self.single_sentences else 3)

    @property
    def swap_prob(self) -> float:
        """Probability that A and B are swapped if B is not random."""
        random_prob, swap_prob = SENTENCE_OBJECTIVES[self.sentence_objective]
        return swap_prob / (1 - random_prob)


def tokenize_block(documents: Sequence[Document], tokenizer: FullTokenizer) -> Block:
    """Tokenizes documents; drops segments and documents without tokens."""
    lines = [line for document in documents for line in document]
    ids, sizes = [np.zeros(0, np.int32)], []
    for start in range(0, len(lines), _TOKENIZED_LINES):
        flat, counts = tokenizer.encode_flat(lines[start : start + _TOKENIZED_LINES])
        ids.append(flat)
        sizes += counts.tolist()
    segments, borders, line, end = [0], [0], 0, 0
    for document in documents:
        for size in sizes[line : line + len(document)]:
            end += size
            if size:
                segments.append(end)
        line += len(document)
        if len(segments) - 1 > borders[-1]:
            borders.append(len(segments) - 1)
    return Block(np.concatenate(ids), segments, borders)


def pairs_of_block(block: Block, settings: PairSettings, seed: int) -> np.ndarray:
    """Returns the pairs of one pass over a block, `PAIR` [N]."""
    ranges = create_pairs(block, settings, random.Random(seed))
    rng = np.random.default_rng(seed)
    pairs = np.zeros(len(ranges), PAIR)
    bounds = np.array(ranges, np.int64).reshape(-1, 5)
    pairs["a_start"], pairs["b_start"], pairs["label"] = bounds[:, 0], bounds[:, 2], bounds[:, 4]
    pairs["a_length"] = bounds[:, 1] - bounds[:, 0]
    pairs["b_length"] = bounds[:, 3] - bounds[:, 2]
    truncate_pairs(pairs, settings.max_tokens, rng, settings.is_swapped_later)
    if (settings.strict_sentence_order or settings.full_sequences) and len(pairs):
        # The first pair of the pass accounts for text in no pair.
        pairs["lost"][0] += _count_unpaired(len(block.ids), bounds)
    return pairs


# (start of A, its end, start of B, its end, label)
Range = tuple[int, int, int, int, int]


def create_pairs(block: Block, settings: PairSettings, rng: random.Random) -> list[Range]:
    """Returns the pairs of one pass over a block, not truncated yet."""
    pairs: list[Range] = []
    for index in range(len(block.documents) - 1):
        pairs += create_instances_from_document(block, index, settings, rng)
    return pairs


def create_instances_from_document(
    block: Block, index: int, settings: PairSettings, rng: random.Random
) -> list[Range]:
    """Returns the pairs of document `index`, not truncated yet.

    A lone segment gets a B from another document (and label 1), unless
    `strict_sentence_order`. Segments that a random B replaces are used again.
    """
    segments, at, end = block.segments, block.documents[index], block.documents[index + 1]
    if settings.single_sentences:
        borders = segments[at : end + 1]
        return [(a, b, b, b, 0) for a, b in zip(borders, borders[1:], strict=False)]
    target = settings.max_tokens
    if rng.random() < settings.short_seq_prob:
        target = rng.randint(2, target)
    if settings.full_sequences:
        return _full_pairs(segments[at : end + 1], target, settings, rng)
    pairs: list[Range] = []
    random_prob = SENTENCE_OBJECTIVES[settings.sentence_objective][0]
    swap_prob = 0.0 if settings.is_swapped_later else settings.swap_prob
    while at < end:
        last = min(bisect_left(segments, segments[at] + target, at + 1, end), end)
        if settings.strict_sentence_order:
            last = min(max(last, at + 2), end)
            if last - at < 2:  # nothing follows the document's last segment
                break
        count = last - at
        border = at + (1 + randbelow(count - 1, rng) if count > 1 else 1)
        a = (segments[at], segments[border])
        b = (segments[border], segments[last])
        at = last
        if count == 1 or (random_prob and rng.random() < random_prob):
            b = _random_segments(block, index, target - (a[1] - a[0]), rng)
            pairs.append((*a, *b, 1))
            at = border
        elif swap_prob and rng.random() < swap_prob:
            pairs.append((*b, *a, 1))
        else:
            pairs.append((*a, *b, 0))
    return pairs


def _full_pairs(
    borders: list[int], target: int, settings: PairSettings, rng: random.Random
) -> list[Range]:
    """Returns the pairs of a document without a gap, each `target` tokens long except the last.

    A pair is divided where a segment ends, or in the middle of a segment that fills it.

    Args:
      borders: start of each segment of the document, then the end.
    """
    pairs: list[Range] = []
    swap_prob = 0.0 if settings.is_swapped_later else settings.swap_prob
    at, end = borders[0], borders[-1]
    while end - at > 1:  # a token alone is no pair
        last = min(at + target, end)
        inside = borders[bisect_right(borders, at) : bisect_left(borders, last)]
        border = inside[randbelow(len(inside), rng)] if inside else (at + last) // 2
        is_swapped = swap_prob > 0 and rng.random() < swap_prob
        pairs.append((border, last, at, border, 1) if is_swapped else (at, border, border, last, 0))
        at = last
    return pairs


def randbelow(count: int, rng: random.Random) -> int:
    """Returns what `rng.randrange(count)` returns, in half the time."""
    bits = count.bit_length()
    while (number := rng.getrandbits(bits)) >= count:
        pass
    return number


def _random_segments(
    block: Block, index: int, length: int, rng: random.Random
) -> tuple[int, int]:
    """Returns a range of another document, of at least `length` tokens if it has them."""
    for _ in range(10):
        other = randbelow(len(block.documents) - 1, rng)
        if other != index:
            break
    start, end = block.documents[other], block.documents[other + 1]
    start += randbelow(end - start, rng)
    wanted = block.segments[start] + length
    last = min(bisect_left(block.segments, wanted, start + 1, end), end)
    return block.segments[start], block.segments[last]


def truncate_pairs(
    pairs: np.ndarray, max_tokens: int, rng: np.random.Generator, is_swapped_later: bool = False
) -> None:
    """Truncates pairs (`PAIR` [N]) to `max_tokens` and sets `lost`.

    The original drops one token at a time, from the longer segment (from B if both are equal), at
    the front or the end with equal probability. So the remaining lengths are determined, and the
    number of tokens dropped at the front is binomial.

    Args:
      is_swapped_later: whether A and B may be swapped later. Then a random one of two equal segments
        loses the odd token; otherwise the lengths would reveal whether they were swapped.
    """
    a, b = (pairs[name].astype(np.int64) for name in ("a_length", "b_length"))
    odd = rng.integers(0, 2, len(pairs)) if is_swapped_later else 0
    excess = np.maximum(a + b - max_tokens, 0)
    unequal = np.minimum(excess, np.abs(a - b))
    both = excess - unequal
    from_a = np.where(a > b, unequal, 0) + (both + odd) // 2
    from_b = np.where(a > b, 0, unequal) + (both + 1 - odd) // 2
    for segment, dropped in (("a", from_a), ("b", from_b)):
        pairs[f"{segment}_start"] += rng.binomial(dropped, 0.5)
        pairs[f"{segment}_length"] -= dropped
    pairs["lost"] = excess


def _count_unpaired(size: int, bounds: np.ndarray) -> int:
    """Returns how many of a block's `size` tokens are in none of the ranges [N, 5]."""
    starts = np.bincount(bounds[:, [0, 2]].ravel(), minlength=size + 1)
    ends = np.bincount(bounds[:, [1, 3]].ravel(), minlength=size + 1)
    return np.count_nonzero(np.cumsum(starts - ends)[:size] == 0)
