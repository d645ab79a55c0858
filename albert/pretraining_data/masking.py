"""N-gram masking of a batch of sequences, vectorised over the batch.

The recipe is the original's. Words are taken in random order. Each one starts an n-gram, whose
length is drawn with p(n) ~ 1/n. An n-gram that does not fit the rest of the budget is shortened.
One that touches a chosen word is passed over. Of the chosen tokens 80 % (`mask_token_share`) become
[MASK], 10 % stay, and 10 % become a random piece. There is no loop over sequences: all of them take their k-th word
together.

All that is random about a sequence follows from a key of its own, so that its masks
do not depend on the sequences beside it.

Shapes: B batch, L sequence, V vocabulary, W most words of a sequence, P predictions.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from albert.pretraining_data.draws import Draws

MOST_NGRAM = 32  # words masked together at most: see `_taken_words`


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
    mask_token_share: float = 0.8  # of the chosen tokens; half of the others stay

    def __post_init__(self):
        if not 1 <= self.ngram <= MOST_NGRAM:
            raise ValueError(f"ngram {self.ngram} must be from 1 to {MOST_NGRAM}")

    @property
    def num_predictions(self) -> int:
        """Length of the prediction features."""
        return self.max_predictions_per_seq * (2 if self.do_permutation else 1)


class Pieces(NamedTuple):
    """What masking needs to know about a vocabulary."""

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
    """A batch that a model can learn from."""

    input_ids: np.ndarray  # [B, L], masked
    positions: np.ndarray  # [B, P], ascending, then zeros
    labels: np.ndarray  # [B, P], original ids, then zeros
    counts: np.ndarray  # [B], predictions of each sequence


class _Words(NamedTuple):
    is_token: np.ndarray  # bool [B, L], neither special nor padding
    place: np.ndarray  # [B, L], of each token's word in the flat `first`; arbitrary elsewhere
    first: np.ndarray  # [B, W + 1], tokens before each word; all tokens from the last word on
    count: np.ndarray  # [B], words of each sequence
    count_a: np.ndarray  # [B], words that begin in segment A


class _Chosen(NamedTuple):
    is_chosen: np.ndarray  # bool [B, W + 1], words
    is_first: np.ndarray  # bool [B, W + 1], those that an n-gram begins with


def ngram_probabilities(settings: MaskingSettings) -> np.ndarray:
    """Returns p(n) of n = 1..ngram."""
    weights = 1.0 / np.arange(1, settings.ngram + 1)
    weights /= weights.sum()
    return weights if settings.favor_shorter_ngram else weights[::-1]


def num_to_predict(
    lengths: np.ndarray, settings: MaskingSettings, shares: np.ndarray | None = None
) -> np.ndarray:
    """Returns how many tokens are masked at most in sequences of these lengths.

    `shares` of the tokens that are masked, one of each sequence, go before `masked_lm_prob`.
    """
    share = settings.masked_lm_prob if shares is None else shares
    # rint rounds halves to even, as Python's round does.
    wanted = np.rint(np.asarray(lengths) * share).astype(np.int64)
    return np.minimum(settings.max_predictions_per_seq, np.maximum(1, wanted))


def mask_batch(
    ids: np.ndarray,
    lengths: np.ndarray,
    boundary: np.ndarray,
    specials: Specials,
    settings: MaskingSettings,
    keys: np.ndarray,
    shares: np.ndarray | None = None,
) -> Masked:
    """Returns the batch with its predictions.

    Args:
      ids: [B, L], [CLS] A [SEP] B [SEP] and padding.
      lengths: [B], tokens before the padding.
      boundary: [B, L], not 0 where a word begins; see `token_boundaries`.
      keys: uint64 [B], from which each sequence's masks follow.
      shares: [B], see `num_to_predict`.
    """
    shape = (len(ids), settings.num_predictions)
    output = ids.copy()
    if settings.masked_lm_prob == 0:
        zeros = np.zeros(shape, ids.dtype)
        return Masked(output, zeros, zeros.copy(), np.zeros(len(ids), np.int64))
    words = _find_words(ids, lengths, boundary, specials, settings)
    budget = num_to_predict(lengths, settings, shares)
    draws = Draws(keys)
    none = np.zeros(words.first.shape, bool)
    chosen = _choose(words, budget, none, settings, draws)
    places = _tokens_of(words, chosen)
    spans = _first_words(words, chosen, places) if settings.replace_by_span else None
    _replace(output, places, spans, specials, settings.mask_token_share, draws)
    if settings.do_permutation:
        others = _choose(words, budget, chosen.is_chosen, settings, draws.again())
        permuted = _tokens_of(words, others)
        _permute(ids, output, permuted, draws)
        places = np.sort(np.concatenate([places, permuted]))
    return _gather_predictions(ids, output, places, shape)


def token_boundaries(ids: np.ndarray, lengths: np.ndarray, pieces: Pieces) -> np.ndarray:
    """Returns 1 for [CLS], [SEP] and pieces that begin a word, else 0; [B, L]."""
    begins = pieces.is_start.astype(np.int64)
    begins[[pieces.cls_id, pieces.sep_id]] = 1
    begins = begins.take(ids)
    begins *= np.arange(ids.shape[1]) < lengths[:, None]
    return begins


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
    place = np.cumsum(starts, axis=1)
    count = place[:, -1].copy()
    width = int(count.max(initial=0)) + 1
    first = np.repeat(token_rank[:, -1:], width, axis=1)
    # Row after row, the words of each are the first of its places. Flat, which is faster.
    begins = np.flatnonzero(starts)
    is_word = np.flatnonzero(np.arange(width) < count[:, None])
    first.ravel()[is_word] = token_rank.ravel().take(begins) - 1
    sep = np.argmax(ids == specials.sep_id, axis=1)
    count_a = place[np.arange(len(ids)), sep]
    # Before the first word, 0 would be the last one of the row before.
    np.maximum(place, 1, out=place)
    place += np.arange(len(ids))[:, None] * width - 1
    return _Words(is_token, place, first, count, count_a)


def _choose(
    words: _Words,
    budget: np.ndarray,
    covered: np.ndarray,
    settings: MaskingSettings,
    draws: Draws,
) -> _Chosen:
    """Returns the words that n-grams are made of.

    Args:
      budget: [B], tokens to choose at most.
      covered: bool [B, W + 1], what an earlier call chose: none of these.
    """
    batch, width = words.first.shape
    order = _random_order(words.count, width - 1, draws)
    taken, is_first = _taken_words(covered), np.zeros(words.first.shape, bool)
    flat, stride, first = taken.ravel(), taken.shape[1], words.first.ravel()
    left, active = budget.astype(np.int32), np.arange(batch)
    for begin in range(0, width - 1, _STEPS_AT_ONCE):
        active = active[(left[active] > 0) & (begin < words.count[active])]
        if not active.size:
            break
        # By step and not by row, which the loop goes through.
        word = np.ascontiguousarray(order[active, begin : begin + _STEPS_AT_ONCE].T)
        lengths = _draw_lengths(active, np.arange(begin, begin + len(word)), settings, draws)
        lengths = _within(words, active, word, lengths, settings)
        starts = active * width + word
        before, sizes = first.take(starts), _ngram_sizes(words, active, word, settings.ngram)
        places, shifts = active * stride + 1 + (word >> 5), (word & 31).astype(np.uint64)
        left_here, won = left[active], np.empty(word.shape, bool)
        for step, place in enumerate(places):
            length = _take_longest(
                flat, place, shifts[step], lengths[step], sizes[:, step], left_here, won[step]
            )
            left_here -= (first.take(starts[step] + length) - before[step]) * won[step]
        left[active] = left_here
        is_first.ravel()[starts[won & (lengths > 0)]] = True
    return _Chosen(_words_taken(taken, width) & ~covered, is_first)


def _take_longest(
    taken: np.ndarray,
    place: np.ndarray,
    shift: np.ndarray,
    length: np.ndarray,
    sizes: np.ndarray,
    left: np.ndarray,
    won: np.ndarray,
) -> np.ndarray:
    """Takes an n-gram of each sequence, if none of its words is taken yet.

    Args:
      taken: flat, see `_taken_words`; changed.
      place, shift: [M], where in it, and at which of its bits, the n-grams begin.
      length: uint8 [M], words wanted; it becomes how many fit.
      sizes: [ngram, M], tokens of n-grams of 1, 2, ... words.
      left: [M], tokens that may be chosen.
      won: bool [M], becomes whether they were free.

    Returns:
      `length`.
    """
    # Sizes grow with n, so the longest that fits is the count of those that fit.
    fits = (sizes[0] <= left).view(np.uint8)
    for size in sizes[1:]:
        fits += size <= left
    np.minimum(length, fits, out=length)
    bits, there = _WORDS.take(length) << shift, taken.take(place)
    bits *= np.equal(there & bits, 0, out=won)
    taken[place] = there | bits
    taken[place - 1] |= bits << _HALF
    taken[place + 1] |= bits >> _HALF
    return length


_STEPS_AT_ONCE = 16  # most budgets of 20 are spent in so many
_HALF = np.uint64(32)
# The words of an n-gram as bits, by n.
_WORDS = (np.uint64(1) << np.arange(MOST_NGRAM + 1, dtype=np.uint64)) - np.uint64(1)


def _taken_words(is_taken: np.ndarray) -> np.ndarray:
    """Returns bits, 1 for words that are taken; uint64 [B, W // 32 + 3].

    Number k has the words from 32 (k - 1) on, half of them the next number's too: so an
    n-gram that begins in its first half lies within it.
    """
    batch, width = is_taken.shape
    padded = np.zeros((batch, 32 * (width // 32 + 4)), bool)
    padded[:, 32 : 32 + width] = is_taken
    halves = np.packbits(padded, axis=1, bitorder="little").view("<u4").astype(np.uint64)
    return halves[:, :-1] | halves[:, 1:] << _HALF


def _words_taken(taken: np.ndarray, width: int) -> np.ndarray:
    """Returns what `_taken_words` was given, bool [B, width], of its bits."""
    halves = taken[:, 1:].astype("<u4").view(np.uint8)
    return np.unpackbits(halves, axis=1, count=width, bitorder="little").view(bool)


def _draw_lengths(
    rows: np.ndarray, steps: np.ndarray, settings: MaskingSettings, draws: Draws
) -> np.ndarray:
    """Returns the words of the n-gram that begins at each step, uint8 [S, M]."""
    draw = draws.uniform(Draws.LENGTH, rows, steps[:, None])
    lengths = np.ones(draw.shape, np.uint8)
    for limit in np.cumsum(ngram_probabilities(settings))[:-1]:  # few: faster than a search
        lengths += draw >= limit
    return lengths


def _within(
    words: _Words, row: np.ndarray, word: np.ndarray, wanted: np.ndarray, settings: MaskingSettings
) -> np.ndarray:
    """Returns how many words n-grams can have where they begin, uint8 [S, M].

    Args:
      row: [M]; word: [S, M], of these rows; wanted: uint8 [S, M], words.

    Returns:
      `wanted` or what there is up to the end; 0 where there is no such word.
    """
    end = words.count[row]
    if not settings.mask_across_segments:
        end = np.where(word < words.count_a[row], words.count_a[row], end)
    return np.minimum(wanted, np.clip(end - word, 0, settings.ngram).astype(np.uint8))


def _ngram_sizes(words: _Words, row: np.ndarray, word: np.ndarray, ngram: int) -> np.ndarray:
    """Returns the tokens of n-grams of 1, 2, ... words (up to the last); [ngram, S, M].

    Args:
      row: [M]; word: [S, M], of these rows, which the n-grams begin with.
    """
    # Flat, which NumPy finds faster.
    first, width = words.first.ravel(), words.first.shape[1]
    begin = row * width
    before = first.take(begin + word)
    return np.stack([
        first.take(begin + np.minimum(word + n, width - 1)) - before for n in range(1, ngram + 1)
    ])


def _random_order(count: np.ndarray, width: int, draws: Draws) -> np.ndarray:
    """Returns a random order of each row's first `count` of `width` words; [B, W]."""
    # The word in the low bits of a random number: sorting the numbers
    # themselves is several times faster than sorting indices by them.
    bits = max(int(width - 1).bit_length(), 1)
    keys = draws.bits(Draws.ORDER, np.arange(len(count))[:, None], np.arange(width))
    keys >>= np.uint64(bits + 1)
    keys[np.arange(width) >= count[:, None]] = (1 << (63 - bits)) - 1
    keys <<= np.uint64(bits)
    keys |= np.arange(width, dtype=np.uint64)
    keys.sort(axis=1)
    keys &= np.uint64((1 << bits) - 1)
    return keys.view(np.int64)


def _tokens_of(words: _Words, chosen: _Chosen) -> np.ndarray:
    """Returns the places of the tokens of chosen words, ascending, in the flat [B, L]."""
    return np.flatnonzero(chosen.is_chosen.ravel().take(words.place) & words.is_token)


def _first_words(words: _Words, chosen: _Chosen, places: np.ndarray) -> np.ndarray:
    """Returns the first word of the n-gram of each of these tokens: its number in its row."""
    number = np.where(chosen.is_first, np.arange(chosen.is_first.shape[1]), 0)
    number = np.maximum.accumulate(number, axis=1).ravel()
    return number.take(words.place.ravel().take(places))


# === Replacing tokens ===


def _replace(
    output: np.ndarray,
    places: np.ndarray,
    spans: np.ndarray | None,
    specials: Specials,
    share: float,
    draws: Draws,
) -> None:
    """Masks tokens in place: a share of [MASK], 80 % by default, then 10 % kept, 10 % random.

    Args:
      places: of the chosen tokens in the flat [B, L].
      spans: for each of them, which of its row's draws it shares; None: one of its own.
    """
    row, column = np.divmod(places, output.shape[1])
    draw = draws.uniform(Draws.ACTION, row, column if spans is None else spans)
    # Any piece may come, specials and the original too: as it was trained.
    other = draws.uniform(Draws.PIECE, row, column) * specials.vocab_size
    flat = output.ravel()
    flat[places] = np.where(
        draw < share, specials.mask_id,
        np.where(draw < share + (1 - share) / 2, flat.take(places), other.astype(np.int64)),
    )


def _permute(ids: np.ndarray, output: np.ndarray, places: np.ndarray, draws: Draws) -> None:
    """Shuffles the tokens at these places of the flat [B, L] among their rows', in place."""
    row, column = np.divmod(places, ids.shape[1])
    shuffled = np.lexsort((draws.bits(Draws.SHUFFLE, row, column), row))
    output.ravel()[places] = ids.ravel().take(places[shuffled])


def _gather_predictions(
    ids: np.ndarray, output: np.ndarray, places: np.ndarray, shape: tuple[int, int]
) -> Masked:
    row, column = np.divmod(places, ids.shape[1])
    counts = np.bincount(row, minlength=len(ids))
    first = np.arange(len(ids)) * shape[1] - np.cumsum(counts) + counts
    at = first.take(row) + np.arange(len(row))
    positions, labels = np.zeros(shape, ids.dtype), np.zeros(shape, ids.dtype)
    positions.ravel()[at] = column
    labels.ravel()[at] = ids.ravel().take(places)
    return Masked(output, positions, labels, counts)
