"""Which character of a cleaned text comes from which character of the original text.

This is the longest common subsequence of both texts, found by dynamic programming in a band
around the diagonal. If there are several, it is the one that the original program finds. Each
row of the table is kept as one integer, so that one subtraction computes all its cells
(Crochemore et al., "A fast and practical bit-vector algorithm for the longest common
subsequence problem", 2001; their bits are the complements of ours). The way back through the
table computes only the pointers that it needs. Most texts need no table at all.

Legend: n and m characters of original (index i) and cleaned text (index j).
"""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from albert.errors import DataError

# If a smaller share of the original text can be aligned, the texts do not match.
_LEAST_SHARE = 0.8
_SLACK = 5  # by how much the band is wider than the texts' lengths differ
_BLOCK = 512  # rows that share the masks of equal characters
_MOST_BITS = 1 << 33  # of a table: 1 GB; an ordinary text of a million characters has a tenth


@dataclasses.dataclass(frozen=True)
class Alignment:
    """For each character the index of its counterpart, -1 where it has none."""

    to_cleaned: np.ndarray  # [n]
    to_original: np.ndarray  # [m]


def align(original: Sequence[int], cleaned: Sequence[int]) -> Alignment | None:
    """Returns the alignment of two texts, None for a mismatch.

    Args:
      original: code points of each character as it is cleaned alone, -1
        where that is not one character.
      cleaned: code points.

    Raises:
      DataError: the table would not fit into memory.
    """
    original, cleaned = list(original), list(cleaned)
    n, m = len(original), len(cleaned)
    aligned = _shifted(original, cleaned)
    if aligned is not None or not n:
        return aligned
    band = abs(n - m) + _SLACK
    # This is quick, and may make so wide a table unnecessary.
    if band > _BLOCK and _most_links(original, cleaned) < _LEAST_SHARE * n:
        return None
    for distance in (band, 2 * band):
        if n * min(2 * distance + _BLOCK, m) > _MOST_BITS:
            raise DataError(
                f"a passage of {n:,} characters is too long to be aligned with its tokens: "
                "cut it into paragraphs"
            )
        table = _Table(original, cleaned, distance)
        if table.length > _LEAST_SHARE * n:
            break
    return table.alignment() if table.length and table.length >= _LEAST_SHARE * n else None


def _most_links(original: Sequence[int], cleaned: Sequence[int]) -> int:
    """Returns how many characters could be linked if their order did not matter."""
    return (collections.Counter(original) & collections.Counter(cleaned)).total()


def _shifted(original: list[int], cleaned: list[int]) -> Alignment | None:
    """Returns the alignment if the cleaned text is the original with one character in front.

    Most passages are like this, because SentencePiece puts a space before the first word.
    Returns None for other texts, and if the original begins with that same character: then
    the table might lead elsewhere.
    """
    n = len(original)
    if not n or len(cleaned) != n + 1 or original[0] == cleaned[0]:
        return None
    if original != cleaned[1:]:
        return None
    places = np.arange(n, dtype=np.int32)
    return Alignment(places + 1, np.concatenate([[-1], places]).astype(np.int32))


@dataclasses.dataclass(frozen=True)
class _Block:
    """Consecutive rows of a table. Bit k of a row is of column `first` + k."""

    start: int  # first row
    first: int
    base: int  # f of the row above, just before column `first`
    rows: list[int]  # the row above, then those of the block


class _Table:
    """Lengths f[i, j] of the common subsequences of both beginnings, within a band of columns.

    In a row, f grows by 0 or 1 from one column to the next. The bits of an integer show where
    it grows. Columns left of the band keep the value they had. It is never above the values in
    the band, so it changes nothing. Row i knows columns i - distance ... i + distance - 1.
    """

    def __init__(self, original: list[int], cleaned: list[int], distance: int):
        self._original, self._cleaned, self._distance = original, cleaned, distance
        self._blocks: list[_Block] = []
        first = base = row = 0
        for start in range(0, len(original), _BLOCK):
            end = min(start + _BLOCK, len(original))
            shift = max(0, start - distance) - first
            base += (row & ((1 << shift) - 1)).bit_count()
            row >>= shift
            first += shift
            rows = [row]
            self._blocks.append(_Block(start, first, base, rows))
            masks: dict[int, int] = {}
            for bit, code in enumerate(cleaned[first : end + distance]):
                masks[code] = masks.get(code, 0) | 1 << bit
            for i in range(start, end):
                low = max(0, i - distance)
                band = (1 << (i + distance - low)) - 1 << (low - first)
                # In each stretch up to a growth, the growth moves to the first match.
                row_or_equal = row | masks.get(original[i], 0) & band
                row = ((row << 1) - row_or_equal) & row_or_equal
                rows.append(row)
        self.length = base + row.bit_count()

    def alignment(self) -> Alignment:
        """Follows the pointers back from the last cell, and returns the links along it.

        As the original, it goes up if that keeps f, else left if that does. Only if neither
        does, it takes a link.
        """
        original, cleaned, edge = self._original, self._cleaned, self._distance - 1
        to_cleaned, to_original = [-1] * len(original), [-1] * len(cleaned)
        i, j, left = len(original) - 1, len(cleaned) - 1, self.length
        for block in reversed(self._blocks):
            first, rows = block.first, block.rows
            k = i - block.start + 1
            while k and left:
                bit = j - first
                if rows[k] >> bit & 1:
                    if original[i] == cleaned[j] and not rows[k - 1] >> bit & 1:
                        to_cleaned[i], to_original[j] = j, i
                        left -= 1
                        j -= 1
                elif (
                    j == i + edge  # nothing is above the band's last column
                    or block.base + (rows[k - 1] & ((2 << bit) - 1)).bit_count() < left
                ):
                    j -= 1
                    continue
                i -= 1
                k -= 1
        return Alignment(np.array(to_cleaned, np.int32), np.array(to_original, np.int32))


def convert_indices(
    index: np.ndarray, positions: np.ndarray, length: int | None = None, is_start: bool = True
) -> np.ndarray:
    """Returns the counterparts of positions, or nearby positions where there are none.

    If a position has no counterpart, the result lies after the nearest linked character
    before it (`is_start`), or before the nearest linked character after it. `length` is that
    of the other text. It is needed for positions after the last linked character.
    """
    known = np.flatnonzero(index >= 0)
    pos = np.asarray(positions)
    after = np.searchsorted(known, pos)  # the first known at or behind
    has_rear, has_front = after < len(known), after > 0
    rear = index[known[np.minimum(after, len(known) - 1)]]
    front = index[known[np.maximum(after - 1, 0)]]
    between = rear > front + 1
    if is_start:
        both = np.where(between, front + 1, rear)
        no_front = np.zeros_like(rear)
    else:
        both = np.where(between, rear - 1, front)
        no_front = np.maximum(rear - 1, 0)
    no_rear = front
    if length is not None:
        beyond = front + 1 if is_start else np.full_like(front, length - 1)
        no_rear = np.where(front < length - 1, beyond, front)
    result = np.where(has_rear & has_front, both, np.where(has_rear, no_front, no_rear))
    return np.where(index[pos] >= 0, index[pos], result)
