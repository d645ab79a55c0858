"""From documents to pairs of segments: ranges of one flat array of ids.

A block of documents is tokenised at once; segments gather until a pair is long enough, and are
divided at a random border. Whether B follows A, `SENTENCE_OBJECTIVES` says.
"""

import dataclasses
import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert.text.documents import Document
from albert.tokenization import FullTokenizer


class Block(NamedTuple):
    """Tokenised documents: document d has the segments documents[d]:documents[d + 1]."""

    ids: np.ndarray  # int32, all tokens
    segments: list[int]  # where each segment begins in `ids`, and the end
    documents: list[int]  # where each document begins in `segments`, and the end


_ENCODE_LINES = 4096  # lines given to the tokenizer at once


def tokenize_block(documents: Sequence[Document], tokenizer: FullTokenizer) -> Block:
    """Returns the documents as ids; segments and documents without any token go."""
    lines = [line for document in documents for line in document]
    flat: list[np.ndarray] = [np.zeros(0, np.int32)]
    sizes: list[int] = []
    for start in range(0, len(lines), _ENCODE_LINES):
        ids, counts = tokenizer.encode_flat(lines[start : start + _ENCODE_LINES])
        sizes += counts.tolist()
        flat.append(ids)
    segments, borders, line, at = [0], [0], 0, 0
    for document in documents:
        for size in sizes[line : line + len(document)]:
            at += size
            if size:
                segments.append(at)
        line += len(document)
        if len(segments) - 1 > borders[-1]:
            borders.append(len(segments) - 1)
    return Block(np.concatenate(flat), segments, borders)


# === Pairs ===


# What the label of a pair is about, and the chance that label 1 comes by a random B, and
# by A and B swapped: sentence order (the paper's), next sentence (BERT's), either, neither.
SENTENCE_OBJECTIVES = {
    "sop": (0.0, 0.5), "nsp": (0.5, 0.0), "both": (0.25, 0.25), "none": (0.0, 0.0),
}


@dataclasses.dataclass(frozen=True)
class PairSettings:
    """How segments become pairs; the flags of the same names."""

    max_seq_length: int = 512  # [CLS] A [SEP] B [SEP] together
    short_seq_prob: float = 0.1  # share of documents cut into shorter pairs
    sentence_objective: str = "sop"  # key of `SENTENCE_OBJECTIVES`
    strict_sentence_order: bool = False  # a lone segment has no B of another document
    fit_sentences: bool = False  # a pair ends where a segment does, nearest to the length
    single_sentences: bool = False  # each segment is a row by itself: B is empty
    # A and B are always in order here: whoever reads the pairs swaps them.
    is_swapped_later: bool = False

    @property
    def max_tokens(self) -> int:
        """Tokens of A and B together."""
        return self.max_seq_length - (2 if self.single_sentences else 3)

    @property
    def swaps_of_ordered(self) -> float:
        """Chance that A and B are swapped where B is not of a random document."""
        is_random, is_swapped = SENTENCE_OBJECTIVES[self.sentence_objective]
        return is_swapped / (1 - is_random)


# Ranges of ids: (begin of A, its end, begin of B, its end, label).
PairRange = tuple[int, int, int, int, int]


def create_pairs(block: Block, settings: PairSettings, rng: random.Random) -> list[PairRange]:
    """Returns the pairs of one pass over a block, not truncated yet."""
    pairs: list[PairRange] = []
    for index in range(len(block.documents) - 1):
        pairs += create_instances_from_document(block, index, settings, rng)
    return pairs


def create_instances_from_document(
    block: Block, index: int, settings: PairSettings, rng: random.Random
) -> list[PairRange]:
    """Returns the pairs of document `index`, not truncated yet.

    Segments gather until they reach the target length (with `fit_sentences`, until the next one
    would take the pair further from it), and are divided at a random border. Label 1: A and B are swapped, or B is of a random document
    (always so for a single segment, unless `strict_sentence_order`). With
    `single_sentences` each segment is an A whose B is empty.
    """
    segments, at, end = block.segments, block.documents[index], block.documents[index + 1]
    if settings.single_sentences:
        borders = segments[at : end + 1]
        return [(a, b, b, b, 0) for a, b in zip(borders, borders[1:], strict=False)]
    target = settings.max_tokens
    if rng.random() < settings.short_seq_prob:
        target = rng.randint(2, target)
    pairs: list[PairRange] = []
    is_random = SENTENCE_OBJECTIVES[settings.sentence_objective][0]
    is_swapped = 0.0 if settings.is_swapped_later else settings.swaps_of_ordered
    while at < end:
        last = min(bisect_left(segments, segments[at] + target, at + 1, end), end)
        if settings.fit_sentences and at + 2 < last < end:
            last -= 2 * (segments[at] + target) < segments[last - 1] + segments[last]
        if settings.strict_sentence_order:
            last = min(max(last, at + 2), end)
            if last - at < 2:  # a document's lone last segment has nothing to follow it
                break
        count = last - at
        border = at + (1 + below(count - 1, rng) if count > 1 else 1)
        a = (segments[at], segments[border])
        b = (segments[border], segments[last])
        at = last
        if count == 1 or (is_random and rng.random() < is_random):
            b = _random_segments(block, index, target - (a[1] - a[0]), rng)
            pairs.append((*a, *b, 1))
            at = border  # what B did not use comes again
        elif is_swapped and rng.random() < is_swapped:
            pairs.append((*b, *a, 1))
        else:
            pairs.append((*a, *b, 0))
    return pairs


def below(count: int, rng: random.Random) -> int:
    """Returns the number that `rng.randrange(count)` would, in half its time."""
    bits = count.bit_length()
    while (number := rng.getrandbits(bits)) >= count:
        pass
    return number


def _random_segments(
    block: Block, index: int, length: int, rng: random.Random
) -> tuple[int, int]:
    """Returns a range of at least `length` tokens, where the document has them."""
    for _ in range(10):
        other = below(len(block.documents) - 1, rng)
        if other != index:
            break
    start, end = block.documents[other], block.documents[other + 1]
    start += below(end - start, rng)
    wanted = block.segments[start] + length
    last = min(bisect_left(block.segments, wanted, start + 1, end), end)
    return block.segments[start], block.segments[last]


def truncate_pairs(
    pairs: np.ndarray, max_tokens: int, rng: np.random.Generator, is_swapped_later: bool = False
) -> np.ndarray:
    """Returns the pairs cut to `max_tokens`; [N, 5] in and out.

    The original drops one token at a time, of the longer segment (of B when
    equal), at the front or the end with equal chance. So the lengths that
    remain are determined, and how much goes at the front is binomial.

    Args:
      is_swapped_later: A and B may still change places, where the original had swapped them
        before. Then chance decides which of two equal ones loses a token: else A would keep
        the odd one, and whoever is longer after the swap would tell that there was one.
    """
    cut = pairs.copy()
    of_a = rng.integers(0, 2, len(pairs)) if is_swapped_later else 0
    a, b = pairs[:, 1] - pairs[:, 0], pairs[:, 3] - pairs[:, 2]
    excess = np.maximum(a + b - max_tokens, 0)
    unequal = np.minimum(excess, np.abs(a - b))
    both = excess - unequal
    from_a = np.where(a > b, unequal, 0) + (both + of_a) // 2
    from_b = np.where(a > b, 0, unequal) + (both + 1 - of_a) // 2
    for column, dropped in ((0, from_a), (2, from_b)):
        front = rng.binomial(dropped, 0.5)
        cut[:, column] += front
        cut[:, column + 1] -= dropped - front
    return cut
