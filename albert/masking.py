"""N-gram masking of a batch of sequences, vectorised over the batch.

The recipe is the original's: words are taken in random order, each as the
start of an n-gram whose length is drawn with p(n) ~ 1/n; an n-gram that does
not fit the rest of the budget is shortened, one that touches a chosen word is
passed over; of the chosen tokens 80 % become [MASK], 10 % stay, 10 % become a
random piece. Only the loop over sequences is gone: all of them take their
k-th word together.

Shapes: B batch, L sequence, W most words of a sequence, P predictions.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class MaskingSettings:
    """What is masked, and how much; the flags of the same names."""

    max_predictions_per_seq: int = 20  # P, tokens masked at most
    masked_lm_prob: float = 0.15  # share of the tokens, [CLS] and [SEP] counted
    ngram: int = 3  # most words masked together
    favor_shorter_ngram: bool = True  # p(n) ~ 1/n; otherwise in reverse
    do_whole_word_mask: bool = True  # continuation pieces go with their word
    do_permutation: bool = False  # as many tokens again swap places
    # Words and n-grams may reach from A over [SEP] into B, as in the original.
    mask_across_segments: bool = True

    @property
    def num_predictions(self) -> int:
        """Length of the prediction features."""
        return self.max_predictions_per_seq * (2 if self.do_permutation else 1)


class Pieces(NamedTuple):
    """What masking needs to know of a vocabulary."""

    is_start: np.ndarray  # bool [V], whether a piece begins a word
    cls_id: int
    sep_id: int
    mask_id: int


class Masked(NamedTuple):
    """A batch ready to be learned from."""

    input_ids: np.ndarray  # [B, L], masked
    positions: np.ndarray  # [B, P], ascending, then zeros
    labels: np.ndarray  # [B, P], original ids, then zeros
    counts: np.ndarray  # [B], predictions of each sequence


class _Words(NamedTuple):
    is_token: np.ndarray  # bool [B, L], neither special nor padding
    index: np.ndarray  # [B, L], word of each token; arbitrary elsewhere
    first: np.ndarray  # [B, W + 1], tokens before each word; all tokens from the last word on
    count: np.ndarray  # [B], words of each sequence
    count_a: np.ndarray  # [B], words that begin in segment A


def ngram_probabilities(settings: MaskingSettings) -> np.ndarray:
    """Returns p(n) of n = 1..ngram."""
    weights = 1.0 / np.arange(1, settings.ngram + 1)
    weights /= weights.sum()
    return weights if settings.favor_shorter_ngram else weights[::-1]


def num_to_predict(lengths: np.ndarray, settings: MaskingSettings) -> np.ndarray:
    """Returns how many tokens are masked at most in sequences of these lengths."""
    # rint rounds halves to even, as Python's round does.
    wanted = np.rint(np.asarray(lengths) * settings.masked_lm_prob).astype(np.int64)
    return np.minimum(settings.max_predictions_per_seq, np.maximum(1, wanted))


def mask_batch(
    ids: np.ndarray,
    lengths: np.ndarray,
    pieces: Pieces,
    settings: MaskingSettings,
    rng: np.random.Generator,
) -> Masked:
    """Returns the batch with its predictions.

    Args:
      ids: [B, L], [CLS] A [SEP] B [SEP] and padding.
      lengths: [B], tokens before the padding.
    """
    shape = (len(ids), settings.num_predictions)
    output = ids.copy()
    if settings.masked_lm_prob == 0:
        zeros = np.zeros(shape, ids.dtype)
        return Masked(output, zeros, zeros.copy(), np.zeros(len(ids), np.int64))
    words = _find_words(ids, lengths, pieces, settings)
    budget = num_to_predict(lengths, settings)
    masked = _choose(words, budget, np.zeros_like(words.first, bool), settings, rng)
    chosen = _tokens_of(words, masked)
    _replace(output, chosen, pieces, rng)
    if settings.do_permutation:
        permuted = _tokens_of(words, _choose(words, budget, masked, settings, rng))
        _permute(ids, output, permuted, rng)
        chosen |= permuted
    return _gather_predictions(ids, output, chosen, shape)


def create_masked_lm_predictions(
    ids: Sequence[int], pieces: Pieces, settings: MaskingSettings, rng: np.random.Generator
) -> tuple[list[int], list[int], list[int]]:
    """Returns (masked ids, positions, labels) of one sequence without padding."""
    batch = np.asarray(ids, np.int64)[None]
    masked = mask_batch(batch, np.array([batch.shape[1]]), pieces, settings, rng)
    count = int(masked.counts[0])
    return (
        masked.input_ids[0].tolist(),
        masked.positions[0, :count].tolist(),
        masked.labels[0, :count].tolist(),
    )


def token_boundaries(ids: np.ndarray, lengths: np.ndarray, pieces: Pieces) -> np.ndarray:
    """Returns 1 for [CLS], [SEP] and pieces that begin a word, else 0; [B, L]."""
    special = (ids == pieces.cls_id) | (ids == pieces.sep_id)
    inside = np.arange(ids.shape[1]) < lengths[:, None]
    return ((special | pieces.is_start[ids]) & inside).astype(np.int64)


def _find_words(
    ids: np.ndarray, lengths: np.ndarray, pieces: Pieces, settings: MaskingSettings
) -> _Words:
    special = (ids == pieces.cls_id) | (ids == pieces.sep_id)
    is_token = ~special & (np.arange(ids.shape[1]) < lengths[:, None])
    token_rank = np.cumsum(is_token, axis=1)  # from 1
    starts = is_token
    if settings.do_whole_word_mask:
        # The first token begins a word whatever it is. A continuation at the
        # start of B (its front was cut off) belongs to the last word of A.
        begins = pieces.is_start[ids] | (token_rank == 1)
        if not settings.mask_across_segments:
            begins[:, 1:] |= special[:, :-1]
        starts = is_token & begins
    index = np.cumsum(starts, axis=1) - 1
    count = index[:, -1] + 1
    row, column = np.nonzero(starts)
    first = np.repeat(token_rank[:, -1:], int(count.max(initial=0)) + 1, axis=1)
    first[row, index[row, column]] = token_rank[row, column] - 1
    sep = np.argmax(ids == pieces.sep_id, axis=1)
    count_a = index[np.arange(len(ids)), sep] + 1
    return _Words(is_token, np.maximum(index, 0), first, count, count_a)


def _choose(
    words: _Words,
    budget: np.ndarray,
    covered: np.ndarray,
    settings: MaskingSettings,
    rng: np.random.Generator,
) -> np.ndarray:
    """Returns which words are chosen, bool [B, W + 1], none of them `covered` before.

    Args:
      budget: [B], tokens to choose at most.
      covered: bool [B, W + 1].
    """
    batch, width = words.first.shape
    order = _random_order(words.count, width - 1, rng)
    limits = np.cumsum(ngram_probabilities(settings))[:-1]
    span = np.arange(settings.ngram)
    # Flat indices with room for n-grams that start at the last word.
    stride = width + settings.ngram
    taken = np.zeros((batch, stride), bool)
    taken[:, :width] = covered
    chosen, taken = np.zeros(batch * stride, bool), taken.ravel()
    left, active = budget.copy(), np.arange(batch)
    for step in range(width - 1):
        active = active[(left[active] > 0) & (step < words.count[active])]
        if not active.size:
            break
        word = order[active, step]
        length = np.searchsorted(limits, rng.random(len(active)), side="right") + 1
        inside, size = _fit_ngrams(words, active, word, length, left[active], settings)
        where = (active * stride + word)[:, None] + span
        free = inside[:, 0] & ~(taken[where] & inside).any(axis=1)
        winners = np.flatnonzero(free)
        marks = where[winners][inside[winners]]
        chosen[marks] = taken[marks] = True
        left[active[winners]] -= size[winners]
    return chosen.reshape(batch, stride)[:, :width]


def _fit_ngrams(
    words: _Words,
    row: np.ndarray,
    word: np.ndarray,
    length: np.ndarray,
    left: np.ndarray,
    settings: MaskingSettings,
) -> tuple[np.ndarray, np.ndarray]:
    """Shortens n-grams of `length` words from `word` of `row` to at most `left` tokens.

    Returns which of the next words belong to each, bool [M, ngram] (none if
    the first word alone is too long), and its tokens [M].
    """
    span = np.arange(settings.ngram)
    end = words.count[row]
    if not settings.mask_across_segments:
        end = np.where(word < words.count_a[row], words.count_a[row], end)
    ends = np.minimum(word[:, None] + 1 + span, end[:, None])
    sizes = words.first[row[:, None], ends] - words.first[row, word][:, None]
    # Sizes grow with n, so the longest that fits is the count of those that fit.
    length = np.minimum(length, (sizes <= left[:, None]).sum(axis=1))
    inside = (span < length[:, None]) & (word[:, None] + span < end[:, None])
    return inside, sizes[np.arange(len(row)), length - 1]


def _random_order(count: np.ndarray, width: int, rng: np.random.Generator) -> np.ndarray:
    """Returns a random order of each row's first `count` of `width` words; [B, W]."""
    # The word in the low bits of a random number: sorting the numbers
    # themselves is several times faster than sorting indices by them.
    bits = max(int(width - 1).bit_length(), 1)
    keys = rng.integers(0, 1 << (63 - bits), (len(count), width), np.int64) << bits
    keys[np.arange(width) >= count[:, None]] = ((1 << (63 - bits)) - 1) << bits
    keys |= np.arange(width)
    keys.sort(axis=1)
    return keys & ((1 << bits) - 1)


def _tokens_of(words: _Words, chosen: np.ndarray) -> np.ndarray:
    """Returns which tokens belong to the chosen words, bool [B, L]."""
    return np.take_along_axis(chosen, words.index, axis=1) & words.is_token


def _replace(
    output: np.ndarray, chosen: np.ndarray, pieces: Pieces, rng: np.random.Generator
) -> None:
    """Masks the chosen tokens in place: 80 % [MASK], 10 % kept, 10 % random."""
    row, column = np.nonzero(chosen)
    draw = rng.random(len(row))
    # Any piece may come, specials and the original too: as it was trained.
    other = rng.integers(0, len(pieces.is_start), len(row))
    kept = output[row, column]
    output[row, column] = np.where(draw < 0.8, pieces.mask_id, np.where(draw < 0.9, kept, other))


def _permute(
    ids: np.ndarray, output: np.ndarray, permuted: np.ndarray, rng: np.random.Generator
) -> None:
    """Shuffles the tokens at the permuted places of each row among themselves, in place."""
    row, column = np.nonzero(permuted)
    shuffled = np.lexsort((rng.random(len(row)), row))
    output[row, column] = ids[row, column[shuffled]]


def _gather_predictions(
    ids: np.ndarray, output: np.ndarray, chosen: np.ndarray, shape: tuple[int, int]
) -> Masked:
    row, column = np.nonzero(chosen)
    counts = chosen.sum(axis=1)
    rank = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions, labels = np.zeros(shape, ids.dtype), np.zeros(shape, ids.dtype)
    positions[row, rank] = column
    labels[row, rank] = ids[row, column]
    return Masked(output, positions, labels, counts)
