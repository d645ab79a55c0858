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

MAX_NGRAM = 32
_STEPS_AT_ONCE = 16  # most sequences are done after that many n-grams


@dataclasses.dataclass(frozen=True)
class MaskingSettings:
    """Settings of masking; fields are named after their flags."""

    max_predictions_per_seq: int = 20  # P
    masked_lm_prob: float = 0.15  # fraction of tokens, [CLS] and [SEP] included
    ngram: int = 3  # maximum words masked together
    favor_shorter_ngram: bool = True  # p(n) ~ 1/n, else reversed
    do_whole_word_mask: bool = True  # mask continuation tokens with their word
    mask_token_share: float = 0.8  # of the chosen tokens; half of the others stay

    def __post_init__(self):
        if not 1 <= self.ngram <= MAX_NGRAM:
            raise ValueError(f"ngram {self.ngram} must be from 1 to {MAX_NGRAM}")


class SpecialIds(NamedTuple):
    """Ids of special tokens, and the vocabulary size from which random tokens are drawn."""

    cls_id: int
    sep_id: int
    mask_id: int
    vocab_size: int  # V


def ngram_probabilities(settings: MaskingSettings) -> np.ndarray:
    """Returns p(n) for n = 1, ..., ngram."""
    weights = 1.0 / np.arange(1, settings.ngram + 1)
    weights /= weights.sum()
    return weights if settings.favor_shorter_ngram else weights[::-1]


def num_to_predict(lengths: np.ndarray, settings: MaskingSettings) -> np.ndarray:
    """Returns the maximum number of masked tokens of sequences of these lengths."""
    # rint rounds half to even, like Python's round.
    wanted = np.rint(np.asarray(lengths) * settings.masked_lm_prob).astype(np.int64)
    return np.minimum(settings.max_predictions_per_seq, np.maximum(1, wanted))


def mask_batch(
    ids: np.ndarray,
    lengths: np.ndarray,
    boundary: np.ndarray,
    special_ids: SpecialIds,
    settings: MaskingSettings,
    keys: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Masks a batch.

    Args:
      ids: [B, L], [CLS] A [SEP] B [SEP] and padding.
      lengths: [B], tokens before the padding.
      boundary: [B, L], nonzero where a word starts; see `token_boundaries`.
      keys: uint64 [B]; each sequence's masks follow from its key.

    Returns:
      the masked ids [B, L]; the masked positions and their ids before [B, P], in ascending order of
      positions, then zeros; and their numbers [B].
    """
    output, shape, chosen = ids.copy(), (len(ids), settings.max_predictions_per_seq), np.zeros(0, np.int64)
    if settings.masked_lm_prob:
        is_token, word, first, count = _find_words(ids, lengths, boundary, special_ids, settings)
        rng = SequenceRng(keys)
        is_chosen = _choose(first, count, num_to_predict(lengths, settings), settings, rng)
        chosen = np.flatnonzero(is_chosen.ravel().take(word) & is_token)  # in [B * L]
        _replace(output, chosen, special_ids, settings.mask_token_share, rng)
    row, column = np.divmod(chosen, ids.shape[1])
    counts = np.bincount(row, minlength=len(ids))
    at = (np.arange(len(ids)) * shape[1] - np.cumsum(counts) + counts).take(row) + np.arange(len(row))
    positions, labels = np.zeros(shape, ids.dtype), np.zeros(shape, ids.dtype)
    positions.ravel()[at] = column
    labels.ravel()[at] = ids.ravel().take(chosen)
    return output, positions, labels, counts


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
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the words of sequences.

    These are: whether a position holds a token, neither special nor padding, bool [B, L]; its word as an
    index into the next one, flat, [B, L]; the number of tokens before each word, from the last word on
    that of all, [B, W + 1]; and the number of words of each sequence, [B].
    """
    special = (ids == special_ids.cls_id) | (ids == special_ids.sep_id)
    is_token = ~special & (np.arange(ids.shape[1]) < lengths[:, None])
    token_rank = np.cumsum(is_token, axis=1, dtype=np.int32)  # from 1
    starts = is_token
    if settings.do_whole_word_mask:
        # The first token starts a word whatever it is. A continuation at the start of B, whose
        # front was truncated, belongs to the last word of A.
        starts = is_token & ((boundary != 0) | (token_rank == 1))
    index = np.cumsum(starts, axis=1)
    count = index[:, -1].copy()
    width = int(count.max(initial=0)) + 1
    first = np.repeat(token_rank[:, -1:], width, axis=1)
    is_word = np.flatnonzero(np.arange(width) < count[:, None])  # flat indices are faster
    first.ravel()[is_word] = token_rank.ravel().take(np.flatnonzero(starts)) - 1
    # Before the first word, 0 would be the last word of the previous row.
    np.maximum(index, 1, out=index)
    index += np.arange(len(ids))[:, None] * width - 1
    return is_token, index, first, count


def _choose(
    first: np.ndarray, counts: np.ndarray, budget: np.ndarray, settings: MaskingSettings, rng: SequenceRng
) -> np.ndarray:
    """Returns which words are chosen, bool [B, W + 1].

    Args:
      first, counts: of `_find_words`.
      budget: the maximum of tokens, [B].
    """
    batch, width = first.shape
    order = _random_order(counts, width - 1, rng)
    is_chosen, left, rows = np.zeros((batch, width), bool), budget.copy(), np.arange(batch)
    flat, first, offsets = is_chosen.ravel(), first.ravel(), np.arange(settings.ngram)[:, None]
    for begin in range(0, width - 1, _STEPS_AT_ONCE):
        rows = rows[(left[rows] > 0) & (begin < counts[rows])]
        if not rows.size:
            break
        word = np.ascontiguousarray(order[rows, begin : begin + _STEPS_AT_ONCE].T)  # [S, M]
        steps, count, room = np.arange(begin, begin + len(word)), counts[rows], left[rows]
        drawn = np.minimum(_draw_lengths(rows, steps, settings, rng), np.maximum(count - word, 0))
        starts = rows * width + word
        before = first.take(starts)
        ends = np.minimum(word + 1 + offsets[:, None], count)  # of 1, 2, ... words; [ngram, S, M]
        sizes = first.take(rows * width + ends) - before
        for step, start in enumerate(starts):
            # Sizes increase with n, so the number of sizes that fit is the longest that fits.
            length = np.minimum(drawn[step], (sizes[:, step] <= room).sum(axis=0))
            span = start + offsets * (offsets < length)  # [ngram, M], with its first word repeated
            is_taken = flat.take(span)
            is_free = (length > 0) & ~is_taken.any(axis=0)
            flat[span] = is_taken | is_free
            room -= (first.take(start + length) - before[step]) * is_free
        left[rows] = room
    return is_chosen


def _draw_lengths(
    rows: np.ndarray, steps: np.ndarray, settings: MaskingSettings, rng: SequenceRng
) -> np.ndarray:
    """Returns the number of words of each step's n-gram; uint8 [S, M]."""
    number = rng.uniform(SequenceRng.LENGTH, rows, steps[:, None])
    lengths = np.ones(number.shape, np.uint8)
    for limit in np.cumsum(ngram_probabilities(settings))[:-1]:  # few: faster than a search
        lengths += number >= limit
    return lengths


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


# === Replacing tokens ===


def _replace(
    output: np.ndarray,
    positions: np.ndarray,
    special_ids: SpecialIds,
    share: float,
    rng: SequenceRng,
) -> None:
    """Replaces tokens of `output`: `share` by [MASK], half of the others by random tokens.

    Args:
      positions: flat positions of the chosen tokens.
    """
    row, column = np.divmod(positions, output.shape[1])
    number = rng.uniform(SequenceRng.ACTION, row, column)
    # Any token may be drawn, including special ones and the same one, as in the original.
    other = rng.uniform(SequenceRng.TOKEN, row, column) * special_ids.vocab_size
    flat = output.ravel()
    is_kept = number < share + (1 - share) / 2
    flat[positions] = np.where(
        number < share, special_ids.mask_id,
        np.where(is_kept, flat.take(positions), other.astype(np.int64)),
    )
