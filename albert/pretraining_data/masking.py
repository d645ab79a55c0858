"""N-gram masking, vectorized over a batch of sequences.

Words are visited in random order. Each one starts an n-gram whose length is drawn with p(n) ~ 1/n
(paper, section 4.1). An n-gram that exceeds the rest of the budget is shortened; one that overlaps a
chosen word is skipped. Of the chosen tokens 80 % (`mask_token_share`) become [MASK], 10 % stay, and
10 % become a random token. The k-th words of all sequences are processed together, without a loop
over sequences.

All random numbers of a sequence depend on its key alone, so masks do not depend on the batch.

Shapes: B batch, L sequence, V vocabulary, W maximum number of words of a sequence, P predictions.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from albert.pretraining_data.rng import SequenceRng

MAX_NGRAM = 32  # limited by `_pack_taken`


@dataclasses.dataclass(frozen=True)
class MaskingSettings:
    """Settings of masking; fields are named after their flags."""

    max_predictions_per_seq: int = 20  # P
    masked_lm_prob: float = 0.15  # fraction of tokens, [CLS] and [SEP] included
    ngram: int = 3  # maximum words masked together
    favor_shorter_ngram: bool = True  # p(n) ~ 1/n, else reversed
    do_whole_word_mask: bool = True  # mask continuation tokens with their word
    do_permutation: bool = False  # also shuffle as many tokens again
    mask_across_segments: bool = True  # words and n-grams may span [SEP], as in the original
    replace_by_span: bool = False  # draw 80/10/10 for each n-gram instead of each token
    mask_token_share: float = 0.8  # of the chosen tokens; half of the others stay

    def __post_init__(self):
        if not 1 <= self.ngram <= MAX_NGRAM:
            raise ValueError(f"ngram {self.ngram} must be from 1 to {MAX_NGRAM}")

    @property
    def num_predictions(self) -> int:
        """Length of the prediction features."""
        return self.max_predictions_per_seq * (2 if self.do_permutation else 1)


class SpecialIds(NamedTuple):
    """Ids of special tokens, and the vocabulary size from which random tokens are drawn."""

    cls_id: int
    sep_id: int
    mask_id: int
    vocab_size: int  # V


class Masked(NamedTuple):
    """A masked batch with its predictions."""

    input_ids: np.ndarray  # [B, L]
    positions: np.ndarray  # [B, P], ascending, then zeros
    labels: np.ndarray  # [B, P], original ids, then zeros
    counts: np.ndarray  # [B], number of predictions


class _Words(NamedTuple):
    is_token: np.ndarray  # bool [B, L], neither special nor padding
    index: np.ndarray  # [B, L], each token's word as an index into the flat `first`
    first: np.ndarray  # [B, W + 1], number of tokens before each word; from the last word on, all
    count: np.ndarray  # [B], words of each sequence
    count_a: np.ndarray  # [B], words that start in segment A


def ngram_probabilities(settings: MaskingSettings) -> np.ndarray:
    """Returns p(n) for n = 1, ..., ngram."""
    weights = 1.0 / np.arange(1, settings.ngram + 1)
    weights /= weights.sum()
    return weights if settings.favor_shorter_ngram else weights[::-1]


def num_to_predict(
    lengths: np.ndarray, settings: MaskingSettings, probs: np.ndarray | None = None
) -> np.ndarray:
    """Returns the maximum number of masked tokens of sequences of these lengths.

    `probs`, one for each sequence, overrides `masked_lm_prob`.
    """
    prob = settings.masked_lm_prob if probs is None else probs
    # rint rounds half to even, like Python's round.
    wanted = np.rint(np.asarray(lengths) * prob).astype(np.int64)
    return np.minimum(settings.max_predictions_per_seq, np.maximum(1, wanted))


def mask_batch(
    ids: np.ndarray,
    lengths: np.ndarray,
    boundary: np.ndarray,
    special_ids: SpecialIds,
    settings: MaskingSettings,
    keys: np.ndarray,
    probs: np.ndarray | None = None,
) -> Masked:
    """Masks a batch.

    Args:
      ids: [B, L], [CLS] A [SEP] B [SEP] and padding.
      lengths: [B], tokens before the padding.
      boundary: [B, L], nonzero where a word starts; see `token_boundaries`.
      keys: uint64 [B]; each sequence's masks follow from its key.
      probs: [B], see `num_to_predict`.
    """
    shape = (len(ids), settings.num_predictions)
    output = ids.copy()
    if settings.masked_lm_prob == 0:
        zeros = np.zeros(shape, ids.dtype)
        return Masked(output, zeros, zeros.copy(), np.zeros(len(ids), np.int64))
    words = _find_words(ids, lengths, boundary, special_ids, settings)
    budget = num_to_predict(lengths, settings, probs)
    rng = SequenceRng(keys)
    none = np.zeros(words.first.shape, bool)
    is_chosen, is_first = _choose(words, budget, none, settings, rng)
    positions = _tokens_of(words, is_chosen)
    spans = _first_words(words, is_first, positions) if settings.replace_by_span else None
    _replace(output, positions, spans, special_ids, settings.mask_token_share, rng)
    if settings.do_permutation:
        others, _ = _choose(words, budget, is_chosen, settings, rng.next_round())
        permuted = _tokens_of(words, others)
        _permute(ids, output, permuted, rng)
        positions = np.sort(np.concatenate([positions, permuted]))
    return _gather_predictions(ids, output, positions, shape)


def token_boundaries(
    ids: np.ndarray, lengths: np.ndarray, is_start: np.ndarray, special_ids: SpecialIds
) -> np.ndarray:
    """Returns 1 for [CLS], [SEP] and tokens that start a word (bool [V] `is_start`), else 0."""
    starts = is_start.astype(np.int64)
    starts[[special_ids.cls_id, special_ids.sep_id]] = 1
    starts = starts.take(ids)
    starts *= np.arange(ids.shape[1]) < lengths[:, None]
    return starts  # [B, L]


# === Choosing words ===


def _find_words(
    ids: np.ndarray,
    lengths: np.ndarray,
    boundary: np.ndarray,
    special_ids: SpecialIds,
    settings: MaskingSettings,
) -> _Words:
    special = (ids == special_ids.cls_id) | (ids == special_ids.sep_id)
    is_token = ~special & (np.arange(ids.shape[1]) < lengths[:, None])
    token_rank = np.cumsum(is_token, axis=1, dtype=np.int32)  # from 1
    starts = is_token
    if settings.do_whole_word_mask:
        # The first token starts a word whatever it is. A continuation at the start of B, whose
        # front was truncated, belongs to the last word of A.
        starts_word = (boundary != 0) | (token_rank == 1)
        if not settings.mask_across_segments:
            starts_word[:, 1:] |= special[:, :-1]
        starts = is_token & starts_word
    index = np.cumsum(starts, axis=1)
    count = index[:, -1].copy()
    width = int(count.max(initial=0)) + 1
    first = np.repeat(token_rank[:, -1:], width, axis=1)
    is_word = np.flatnonzero(np.arange(width) < count[:, None])  # flat indices are faster
    first.ravel()[is_word] = token_rank.ravel().take(np.flatnonzero(starts)) - 1
    sep = np.argmax(ids == special_ids.sep_id, axis=1)
    count_a = index[np.arange(len(ids)), sep]
    # Before the first word, 0 would be the last word of the previous row.
    np.maximum(index, 1, out=index)
    index += np.arange(len(ids))[:, None] * width - 1
    return _Words(is_token, index, first, count, count_a)


def _choose(
    words: _Words,
    budget: np.ndarray,
    covered: np.ndarray,
    settings: MaskingSettings,
    rng: SequenceRng,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses n-grams; returns their words and their first words, bool [B, W + 1] each.

    Args:
      budget: [B], maximum number of tokens.
      covered: bool [B, W + 1], words that are already taken.
    """
    batch, width = words.first.shape
    order = _random_order(words.count, width - 1, rng)
    taken, is_first = _pack_taken(covered), np.zeros(words.first.shape, bool)
    flat, stride, first = taken.ravel(), taken.shape[1], words.first.ravel()
    left, active = budget.astype(np.int32), np.arange(batch)
    for begin in range(0, width - 1, _STEPS_AT_ONCE):
        active = active[(left[active] > 0) & (begin < words.count[active])]
        if not active.size:
            break
        word = np.ascontiguousarray(order[active, begin : begin + _STEPS_AT_ONCE].T)  # [S, M]
        lengths = _draw_lengths(active, np.arange(begin, begin + len(word)), settings, rng)
        lengths = _limit_to_words(words, active, word, lengths, settings)
        starts = active * width + word
        before, sizes = first.take(starts), _ngram_sizes(words, active, word, settings.ngram)
        offsets, shifts = active * stride + 1 + (word >> 5), (word & 31).astype(np.uint64)
        left_here, is_taken = left[active], np.empty(word.shape, bool)
        for step, offset in enumerate(offsets):
            length = _take_longest(
                flat, offset, shifts[step], lengths[step], sizes[:, step], left_here,
                is_taken[step],
            )
            left_here -= (first.take(starts[step] + length) - before[step]) * is_taken[step]
        left[active] = left_here
        is_first.ravel()[starts[is_taken & (lengths > 0)]] = True
    return _unpack_taken(taken, width) & ~covered, is_first


def _take_longest(
    taken: np.ndarray,
    offset: np.ndarray,
    shift: np.ndarray,
    length: np.ndarray,
    sizes: np.ndarray,
    left: np.ndarray,
    is_taken: np.ndarray,
) -> np.ndarray:
    """Takes one n-gram of each sequence if all of its words are free.

    Args:
      taken: flat, see `_pack_taken`; updated.
      offset, shift: [M], element of `taken` and its bit at which the n-grams start.
      length: uint8 [M], words drawn; reduced to what fits `left`.
      sizes: [ngram, M], tokens of n-grams of 1, 2, ... words.
      left: [M], remaining budget in tokens.
      is_taken: bool [M], output: whether the n-gram was free and is taken now.

    Returns:
      `length`.
    """
    # Sizes increase with n, so the number of sizes that fit is the longest that fits.
    fits = (sizes[0] <= left).view(np.uint8)
    for size in sizes[1:]:
        fits += size <= left
    np.minimum(length, fits, out=length)
    bits, before = _NGRAM_BITS.take(length) << shift, taken.take(offset)
    bits *= np.equal(before & bits, 0, out=is_taken)
    taken[offset] = before | bits
    taken[offset - 1] |= bits << _HALF
    taken[offset + 1] |= bits >> _HALF
    return length


_STEPS_AT_ONCE = 16  # enough for most budgets of 20
_HALF = np.uint64(32)
# The n lowest bits, by n.
_NGRAM_BITS = (np.uint64(1) << np.arange(MAX_NGRAM + 1, dtype=np.uint64)) - np.uint64(1)


def _pack_taken(is_taken: np.ndarray) -> np.ndarray:
    """Returns the words as bits; uint64 [B, W // 32 + 3].

    Element k holds the 64 words from 32 (k - 1) on; its upper half repeats the next element's lower
    half. So an n-gram that starts in the lower half lies within one element.
    """
    batch, width = is_taken.shape
    padded = np.zeros((batch, 32 * (width // 32 + 4)), bool)
    padded[:, 32 : 32 + width] = is_taken
    halves = np.packbits(padded, axis=1, bitorder="little").view("<u4").astype(np.uint64)
    return halves[:, :-1] | halves[:, 1:] << _HALF


def _unpack_taken(taken: np.ndarray, width: int) -> np.ndarray:
    """Inverts `_pack_taken`; bool [B, width]."""
    halves = taken[:, 1:].astype("<u4").view(np.uint8)
    return np.unpackbits(halves, axis=1, count=width, bitorder="little").view(bool)


def _draw_lengths(
    rows: np.ndarray, steps: np.ndarray, settings: MaskingSettings, rng: SequenceRng
) -> np.ndarray:
    """Returns the number of words in each step's n-gram; uint8 [S, M]."""
    number = rng.uniform(SequenceRng.LENGTH, rows, steps[:, None])
    lengths = np.ones(number.shape, np.uint8)
    for limit in np.cumsum(ngram_probabilities(settings))[:-1]:  # few: faster than a search
        lengths += number >= limit
    return lengths


def _limit_to_words(
    words: _Words, row: np.ndarray, word: np.ndarray, wanted: np.ndarray, settings: MaskingSettings
) -> np.ndarray:
    """Limits n-grams to the words up to the end of their sequence or segment.

    Args:
      row: [M].
      word: [S, M], first words of the n-grams in these rows.
      wanted: uint8 [S, M], numbers of words.

    Returns:
      uint8 [S, M]; 0 where there is no such word.
    """
    end = words.count[row]
    if not settings.mask_across_segments:
        end = np.where(word < words.count_a[row], words.count_a[row], end)
    return np.minimum(wanted, np.clip(end - word, 0, settings.ngram).astype(np.uint8))


def _ngram_sizes(words: _Words, row: np.ndarray, word: np.ndarray, ngram: int) -> np.ndarray:
    """Returns the tokens of the n-grams of 1, 2, ... words that start at `word`; [ngram, S, M].

    Args:
      row: [M].
      word: [S, M], words of these rows.
    """
    first, width = words.first.ravel(), words.first.shape[1]
    begin = row * width
    before = first.take(begin + word)
    return np.stack([
        first.take(begin + np.minimum(word + n, width - 1)) - before for n in range(1, ngram + 1)
    ])


def _random_order(count: np.ndarray, width: int, rng: SequenceRng) -> np.ndarray:
    """Returns a random order of each row's first `count` of `width` words; [B, W]."""
    # Sorts random numbers that hold the word in their low bits: several times faster than argsort.
    bits = max(int(width - 1).bit_length(), 1)
    keys = rng.bits(SequenceRng.ORDER, np.arange(len(count))[:, None], np.arange(width))
    keys >>= np.uint64(bits + 1)
    keys[np.arange(width) >= count[:, None]] = (1 << (63 - bits)) - 1
    keys <<= np.uint64(bits)
    keys |= np.arange(width, dtype=np.uint64)
    keys.sort(axis=1)
    keys &= np.uint64((1 << bits) - 1)
    return keys.view(np.int64)


def _tokens_of(words: _Words, is_chosen: np.ndarray) -> np.ndarray:
    """Returns the flat positions of chosen tokens in [B, L], ascending."""
    return np.flatnonzero(is_chosen.ravel().take(words.index) & words.is_token)


def _first_words(words: _Words, is_first: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Returns the first word of each token's n-gram, counted within its row."""
    number = np.where(is_first, np.arange(is_first.shape[1]), 0)
    number = np.maximum.accumulate(number, axis=1).ravel()
    return number.take(words.index.ravel().take(positions))


# === Replacing tokens ===


def _replace(
    output: np.ndarray,
    positions: np.ndarray,
    spans: np.ndarray | None,
    special_ids: SpecialIds,
    share: float,
    rng: SequenceRng,
) -> None:
    """Replaces tokens of `output`: `share` by [MASK], half of the others by random tokens.

    Args:
      positions: flat positions of the chosen tokens.
      spans: index of the random number for each of them; None: one per token.
    """
    row, column = np.divmod(positions, output.shape[1])
    number = rng.uniform(SequenceRng.ACTION, row, column if spans is None else spans)
    # Any token may be drawn, including special ones and the same one, as in the original.
    other = rng.uniform(SequenceRng.TOKEN, row, column) * special_ids.vocab_size
    flat = output.ravel()
    is_kept = number < share + (1 - share) / 2
    flat[positions] = np.where(
        number < share, special_ids.mask_id,
        np.where(is_kept, flat.take(positions), other.astype(np.int64)),
    )


def _permute(ids: np.ndarray, output: np.ndarray, positions: np.ndarray, rng: SequenceRng) -> None:
    """Shuffles the tokens at these flat positions of `output` within their rows."""
    row, column = np.divmod(positions, ids.shape[1])
    shuffled = np.lexsort((rng.bits(SequenceRng.SHUFFLE, row, column), row))
    output.ravel()[positions] = ids.ravel().take(positions[shuffled])


def _gather_predictions(
    ids: np.ndarray, output: np.ndarray, flat_positions: np.ndarray, shape: tuple[int, int]
) -> Masked:
    row, column = np.divmod(flat_positions, ids.shape[1])
    counts = np.bincount(row, minlength=len(ids))
    first = np.arange(len(ids)) * shape[1] - np.cumsum(counts) + counts
    at = first.take(row) + np.arange(len(row))
    positions, labels = np.zeros(shape, ids.dtype), np.zeros(shape, ids.dtype)
    positions.ravel()[at] = column
    labels.ravel()[at] = ids.ravel().take(flat_positions)
    return Masked(output, positions, labels, counts)
