"""N-gram masking of a batch of sequences, vectorised over the batch.

The recipe is the original's: words are taken in random order, each as the
start of an n-gram whose length is drawn with p(n) ~ 1/n; an n-gram that does
not fit the rest of the budget is shortened, one that touches a chosen word is
passed over; of the chosen tokens 80 % become [MASK], 10 % stay, 10 % become a
random piece. Only the loop over sequences is gone: all of them take their
k-th word together.

All that is random about a sequence follows from a key of its own, so that its masks
do not depend on the sequences beside it.

Shapes: B batch, L sequence, V vocabulary, W most words of a sequence, P predictions.
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
    # 80/10/10 is drawn for each n-gram, not for each of its tokens.
    replace_by_span: bool = False

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

    @property
    def specials(self) -> "Specials":
        """The ids that masking itself needs."""
        return Specials(self.cls_id, self.sep_id, self.mask_id, len(self.is_start))


class Specials(NamedTuple):
    """The ids that are no words, and of how many pieces a random one is drawn."""

    cls_id: int
    sep_id: int
    mask_id: int
    vocab_size: int  # V


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


def row_keys(seed: int, positions: np.ndarray) -> np.ndarray:
    """Returns a key for each place in an endless series of sequences; uint64 [B].

    Args:
      positions: int64 [B].
    """
    begin = _hash(np.array([seed % (1 << 64)], np.uint64) + _STEP)
    return _hash(begin + _STEP * positions.astype(np.uint64))


def mask_batch(
    ids: np.ndarray,
    lengths: np.ndarray,
    boundary: np.ndarray,
    specials: Specials,
    settings: MaskingSettings,
    keys: np.ndarray,
) -> Masked:
    """Returns the batch with its predictions.

    Args:
      ids: [B, L], [CLS] A [SEP] B [SEP] and padding.
      lengths: [B], tokens before the padding.
      boundary: [B, L], not 0 where a word begins; see `token_boundaries`.
      keys: uint64 [B], from which each sequence's masks follow.
    """
    shape = (len(ids), settings.num_predictions)
    output = ids.copy()
    if settings.masked_lm_prob == 0:
        zeros = np.zeros(shape, ids.dtype)
        return Masked(output, zeros, zeros.copy(), np.zeros(len(ids), np.int64))
    words = _find_words(ids, lengths, boundary, specials, settings)
    budget = num_to_predict(lengths, settings)
    draws = Draws(keys)
    none = np.full_like(words.first, -1)
    heads = _choose(words, budget, none, settings, draws)
    chosen, token_heads = _tokens_of(words, heads)
    _replace(output, chosen, token_heads, specials, settings, draws)
    if settings.do_permutation:
        permuted, _ = _tokens_of(words, _choose(words, budget, heads, settings, draws.again()))
        _permute(ids, output, permuted, draws)
        chosen |= permuted
    return _gather_predictions(ids, output, chosen, shape)


def create_masked_lm_predictions(
    ids: Sequence[int], pieces: Pieces, settings: MaskingSettings, rng: np.random.Generator
) -> tuple[list[int], list[int], list[int]]:
    """Returns (masked ids, positions, labels) of one sequence without padding."""
    batch = np.asarray(ids, np.int64)[None]
    lengths = np.array([batch.shape[1]])
    boundary = token_boundaries(batch, lengths, pieces)
    masked = mask_batch(batch, lengths, boundary, pieces.specials, settings, draw_keys(1, rng))
    count = int(masked.counts[0])
    return (
        masked.input_ids[0].tolist(),
        masked.positions[0, :count].tolist(),
        masked.labels[0, :count].tolist(),
    )


def draw_keys(count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns keys of sequences, uint64 [count]."""
    return rng.integers(0, 1 << 64, count, np.uint64)


def token_boundaries(ids: np.ndarray, lengths: np.ndarray, pieces: Pieces) -> np.ndarray:
    """Returns 1 for [CLS], [SEP] and pieces that begin a word, else 0; [B, L]."""
    special = (ids == pieces.cls_id) | (ids == pieces.sep_id)
    inside = np.arange(ids.shape[1]) < lengths[:, None]
    return ((special | pieces.is_start[ids]) & inside).astype(np.int64)


# === Random numbers ===

_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64, whose numbers these are


def _hash(state: np.ndarray) -> np.ndarray:
    """Returns SplitMix64's number for each state, in place; uint64, any shape."""
    part = np.empty_like(state)  # twice as fast as new arrays for each operation
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.right_shift(state, np.uint64(shift), out=part)
        np.bitwise_xor(state, part, out=state)
        if factor:
            np.multiply(state, np.uint64(factor), out=state)
    return state


class Draws:
    """Random numbers of sequences: of each, one for every purpose and place."""

    ORDER, LENGTH, ACTION, PIECE, SHUFFLE, SWAP, _PURPOSES = range(7)

    def __init__(self, keys: np.ndarray, turn: int = 0):
        self._keys, self._turn = keys, turn

    def again(self) -> "Draws":
        """Returns other numbers for the same purposes."""
        return Draws(self._keys, self._turn + 1)

    def bits(self, purpose: int, row: np.ndarray | slice, place: np.ndarray | int) -> np.ndarray:
        """Returns uint64 numbers of the shape of `keys[row]` and `place` together."""
        purpose += self._turn * self._PURPOSES
        # At least one dimension: NumPy warns where single numbers wrap around.
        number = np.atleast_1d(np.asarray(place, np.uint64)) + np.uint64(purpose << 40)
        return _hash(self._keys[row] + _STEP * number)

    def uniform(self, purpose: int, row: np.ndarray, place: np.ndarray | int) -> np.ndarray:
        """Returns the numbers in [0, 1)."""
        return (self.bits(purpose, row, place) >> np.uint64(11)) * 2.0**-53


# === Choosing words ===


def _find_words(
    ids: np.ndarray,
    lengths: np.ndarray,
    boundary: np.ndarray,
    specials: Specials,
    settings: MaskingSettings,
) -> _Words:
    special = (ids == specials.cls_id) | (ids == specials.sep_id)
    is_token = ~special & (np.arange(ids.shape[1]) < lengths[:, None])
    token_rank = np.cumsum(is_token, axis=1, dtype=np.int32)  # from 1
    starts = is_token
    if settings.do_whole_word_mask:
        # The first token begins a word whatever it is. A continuation at the
        # start of B (its front was cut off) belongs to the last word of A.
        begins = (boundary != 0) | (token_rank == 1)
        if not settings.mask_across_segments:
            begins[:, 1:] |= special[:, :-1]
        starts = is_token & begins
    index = np.cumsum(starts, axis=1, dtype=np.int32) - 1
    count = index[:, -1].astype(np.int64) + 1
    first = np.repeat(token_rank[:, -1:], int(count.max(initial=0)) + 1, axis=1)
    # Row after row, the words of each are the first of its places. Flat, which is faster.
    places = np.arange(first.shape[1]) < count[:, None]
    first[places] = token_rank[starts] - 1
    sep = np.argmax(ids == specials.sep_id, axis=1)
    count_a = index[np.arange(len(ids)), sep] + 1
    return _Words(is_token, np.maximum(index, 0), first, count, count_a)


def _choose(
    words: _Words,
    budget: np.ndarray,
    covered: np.ndarray,
    settings: MaskingSettings,
    draws: Draws,
) -> np.ndarray:
    """Returns the first word of the n-gram that each chosen word is of, else -1; [B, W + 1].

    Args:
      budget: [B], tokens to choose at most.
      covered: [B, W + 1], what an earlier call chose: none of these.
    """
    batch, width = words.first.shape
    order = _random_order(words.count, width - 1, draws)
    ngram, heads = settings.ngram, np.full(words.first.shape, -1, np.int32)
    free, near, free_near = _free_words(covered < 0, ngram), *_free_beside(ngram)
    stride, free = free.shape[1], free.ravel()
    left, active = budget.astype(np.int32), np.arange(batch)
    for begin in range(0, width - 1, _STEPS_AT_ONCE):
        active = active[(left[active] > 0) & (begin < words.count[active])]
        if not active.size:
            break
        # By step and not by row, which the loop goes through.
        word = np.ascontiguousarray(order[active, begin : begin + _STEPS_AT_ONCE].T)
        lengths = _draw_lengths(active, np.arange(begin, begin + len(word)), settings, draws)
        lengths, sizes = _ngrams(words, active, word, lengths, settings)
        # Flat indices with room for what comes before the first word and after the last.
        places, column = active * stride + ngram - 1 + word, np.arange(len(active))
        left_here, won = left[active], np.empty(word.shape, bool)
        for step in range(len(word)):
            # Sizes grow with n, so the longest that fits is the count of those that fit.
            length, size = lengths[step], sizes[step]
            np.minimum(length, (size <= left_here).sum(axis=0, dtype=length.dtype), out=length)
            # Of no words: one less wraps around, and is more than are free.
            longer = length - _ONE
            won[step] = longer < free.take(places[step])
            # Clipped: lengths of 0, which have not won. (To wrap such indices takes long.)
            at = longer.astype(np.intp) * len(active) + column
            left_here -= size.ravel().take(at, mode="clip") * won[step]
            here = np.flatnonzero(won[step])
            around = places[step, here, None] + near
            free[around] = np.minimum(free.take(around), free_near.take(longer[here], axis=0))
        left[active] = left_here
        _mark_heads(heads, np.broadcast_to(active, won.shape)[won], word[won], lengths[won])
    return heads


_STEPS_AT_ONCE = 16  # most budgets of 20 are spent in so many
_ONE = np.uint16(1)


def _free_words(is_free: np.ndarray, ngram: int) -> np.ndarray:
    """Returns how many words from each on are free, `ngram` at most; uint16 [B, W + 2 ngram - 1].

    The first ngram - 1 places of a row, and the last ones, are no words.
    """
    free = np.full((len(is_free), is_free.shape[1] + 2 * (ngram - 1)), ngram, np.uint16)
    row, word = np.nonzero(~is_free)
    for more in range(ngram - 1, -1, -1):
        free[row, ngram - 1 + word - more] = more
    return free


def _free_beside(ngram: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns places [2 ngram - 1] from an n-gram's first word, and how many words are free there.

    The latter at most, uint16 [ngram, 2 ngram - 1], beside n-grams of 1, 2, ... words.
    """
    near, length = np.arange(1 - ngram, ngram), np.arange(1, ngram + 1)[:, None]
    free = np.where(near < 0, -near, np.where(near < length, 0, ngram))
    return near, free.astype(np.uint16)


def _draw_lengths(
    rows: np.ndarray, steps: np.ndarray, settings: MaskingSettings, draws: Draws
) -> np.ndarray:
    """Returns the words of the n-gram that begins at each step, uint16 [S, M]."""
    draw = draws.uniform(Draws.LENGTH, rows, steps[:, None])
    lengths = np.ones(draw.shape, np.uint16)
    for limit in np.cumsum(ngram_probabilities(settings))[:-1]:  # few: faster than a search
        lengths += draw >= limit
    return lengths


def _ngrams(
    words: _Words, row: np.ndarray, word: np.ndarray, wanted: np.ndarray, settings: MaskingSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Returns how many words an n-gram can have where it begins, and the tokens of each length.

    Args:
      row: [M]; word: [S, M], of these rows; wanted: uint16 [S, M], words.

    Returns:
      uint16 [S, M], `wanted` or what there is up to the end (0 where there is no such word),
      and [S, ngram, M], tokens of n-grams of 1, 2, ... words, at least 1.
    """
    end = words.count[row]
    if not settings.mask_across_segments:
        end = np.where(word < words.count_a[row], words.count_a[row], end)
    # Flat, which NumPy finds faster.
    first, begin = words.first.ravel(), row * words.first.shape[1]
    last = words.first.shape[1] - 1
    start = first.take(begin + word)
    sizes = np.stack(
        [first.take(begin + np.minimum(word + n, last)) - start
         for n in range(1, settings.ngram + 1)], axis=1,
    )
    there = np.clip(end - word, 0, settings.ngram).astype(np.uint16)
    return np.minimum(wanted, there), sizes


def _mark_heads(
    heads: np.ndarray, row: np.ndarray, word: np.ndarray, length: np.ndarray
) -> None:
    """Writes the first word of n-grams (row, word, length) to the place of each of their words."""
    place, flat = row * heads.shape[1] + word, heads.reshape(-1)
    for more in range(int(length.max(initial=0))):
        long = length > more
        flat[place[long] + more] = word[long]


def _random_order(count: np.ndarray, width: int, draws: Draws) -> np.ndarray:
    """Returns a random order of each row's first `count` of `width` words; [B, W]."""
    # The word in the low bits of a random number: sorting the numbers
    # themselves is several times faster than sorting indices by them.
    bits = max(int(width - 1).bit_length(), 1)
    keys = draws.bits(Draws.ORDER, np.arange(len(count))[:, None], np.arange(width))
    keys = (keys >> np.uint64(bits + 1)).astype(np.int64) << bits
    keys[np.arange(width) >= count[:, None]] = ((1 << (63 - bits)) - 1) << bits
    keys |= np.arange(width)
    keys.sort(axis=1)
    return keys & ((1 << bits) - 1)


def _tokens_of(words: _Words, heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which tokens belong to chosen words, bool [B, L], and the `heads` of all [B, L]."""
    rows = np.arange(len(heads), dtype=np.int32)[:, None] * heads.shape[1]
    token_heads = heads.ravel().take(words.index + rows)
    return (token_heads >= 0) & words.is_token, token_heads


# === Replacing tokens ===


def _replace(
    output: np.ndarray,
    chosen: np.ndarray,
    token_heads: np.ndarray,
    specials: Specials,
    settings: MaskingSettings,
    draws: Draws,
) -> None:
    """Masks the chosen tokens in place: 80 % [MASK], 10 % kept, 10 % random."""
    row, column = np.nonzero(chosen)
    place = token_heads[row, column] if settings.replace_by_span else column
    draw = draws.uniform(Draws.ACTION, row, place)
    # Any piece may come, specials and the original too: as it was trained.
    other = draws.uniform(Draws.PIECE, row, column) * specials.vocab_size
    kept = output[row, column]
    output[row, column] = np.where(
        draw < 0.8, specials.mask_id, np.where(draw < 0.9, kept, other.astype(np.int64))
    )


def _permute(ids: np.ndarray, output: np.ndarray, permuted: np.ndarray, draws: Draws) -> None:
    """Shuffles the tokens at the permuted places of each row among themselves, in place."""
    row, column = np.nonzero(permuted)
    shuffled = np.lexsort((draws.bits(Draws.SHUFFLE, row, column), row))
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
