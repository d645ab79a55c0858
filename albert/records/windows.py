"""The parts of texts that sequences hold: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

Legend: L sequence.
"""

from collections.abc import Sequence
from typing import Any

from albert.errors import DataError
from albert.records.features import truncate_pair

# (number of the text or pair, tokens of a, and of b) of each sequence.
Windows = Sequence[tuple[int, Sequence[range]]]


def spans(count: int, size: int, step: int) -> list[range]:
    """Returns windows of at most `size` out of `count` tokens, which begin `step` tokens apart."""
    starts = [0]
    while starts[-1] + size < count:
        starts.append(starts[-1] + min(size, step))
    return [range(start, min(start + size, count)) for start in starts]


def cut(
    columns: Sequence[Sequence[Sequence[int]]], limit: int, truncation: str, overlap: int | None
) -> Windows:
    """Returns sequences of at most `limit` tokens.

    Args:
      columns: the tokens of each text, and of each second text if there are pairs.
      truncation: a value of `encodings.TRUNCATION`.
      overlap: number of tokens that two sequences of a long text share; None: one of each.

    Raises:
      DataError: a text is too long for the arguments.
    """
    return [
        (number, parts) for number, texts in enumerate(zip(*columns, strict=True))
        for parts in _windows(list(map(len, texts)), limit, truncation, overlap, f"text {number}")
    ]


def _windows(
    sizes: list[int], limit: int, truncation: str, overlap: int | None, name: str
) -> list[Sequence[range]]:
    parts, excess = [range(size) for size in sizes], sum(sizes) + len(sizes) + 1 - limit
    if excess <= 0:
        return [parts]
    if not truncation:
        raise DataError(f"{name} has {limit + excess} tokens, {limit} is the maximum")
    is_pair, both = len(sizes) == 2, truncation == "longest_first"
    if is_pair and both and overlap is not None:
        raise DataError('return_overflowing_tokens of pairs needs truncation="only_first" or '
                        '"only_second"')
    which = 1 if is_pair and truncation == "only_second" else 0
    size = (sum(sizes) if both else sizes[which]) - excess
    if size < 0 or overlap is not None and size <= overlap:
        raise DataError(f"{name}: max_length {limit} leaves no space with truncation={truncation!r} and "
                        f"stride={overlap or 0}")
    if is_pair and both:
        return [truncate_pair(*parts, size)]
    shown = [range(size)] if overlap is None else spans(sizes[which], size, size - overlap)
    return [[*parts[:which], one, *parts[which + 1 :]] for one in shown]


def laid_out(windows: Windows, columns: Sequence[Any], special: Any, first: Any = None) -> list[list[Any]]:
    """Returns the values of the tokens of each sequence [L].

    Args:
      columns: the values of the tokens of each text, and of each second text if there are pairs.
      special: the value of [SEP], and of [CLS] if it is not `first`.
    """
    rows = []
    for sample, parts in windows:
        rows.append([special if first is None else first])
        for column, part in zip(columns, parts, strict=True):
            rows[-1] += [*column[sample][part.start : part.stop], special]
    return rows
