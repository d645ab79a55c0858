"""Converts texts to the fixed-length arrays that the encoder reads. No TensorFlow.

The layout of a sequence of length L = 12:

    position     0    1   2    3     4   5   6    7    8 ... 11
    two texts    CLS  a1  a2   SEP   b1  b2  b3   SEP  padding
      input_ids  2    .   .    3     .   .   .    3    0
      input_mask 1    1   1    1     1   1   1    1    0
      segment_ids 0   0   0    0     1   1   1    1    0
    one text     CLS  a1  a2   SEP   padding
      segment_ids 0   0   0    0     0

Classifiers read position 0. A separator belongs to the text before it, so the second text's
separator is in segment 1. Padding is zero in all three arrays; only input_mask distinguishes it
from a real id 0.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from albert.records.examples import FeatureSpec

if TYPE_CHECKING:
    from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")


def classification_spec(
    max_seq_length: int, is_regression: bool, num_choices: int = 1, num_flags: int | None = None
) -> FeatureSpec:
    """Returns the record of one sequence with its label, as the original writes it.

    Several choices are concatenated: [num_choices * max_seq_length]. In multi-label tasks, the label
    is `num_flags` numbers, 0 or 1.
    """
    length = num_choices * max_seq_length
    return FeatureSpec(
        {
            "input_ids": ("int64", length),
            "input_mask": ("int64", length),
            "segment_ids": ("int64", length),
            "label_ids": ("float32" if is_regression else "int64", num_flags),
            "is_real_example": ("int64", None),
        },
        row_length=max_seq_length,
    )


def truncate_pair(
    a: Sequence[int], b: Sequence[int], max_length: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Returns a and b truncated to `max_length` tokens in total, one by one at the end of the longer.

    If they are equally long, b loses the token.
    """
    length_a, length_b = len(a), len(b)
    while length_a + length_b > max_length:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return a[:length_a], b[:length_b]


def join_texts(
    a: Sequence[int], b: Sequence[int] | None, max_seq_length: int, cls_id: int, sep_id: int
) -> dict[str, np.ndarray]:
    """Returns the sequence of one text or of two, as shown at the top of this module; int64 [L] each.

    It is truncated to `max_seq_length`. `b` may be None; an empty list is a second text without
    tokens, which still has a separator.
    """
    if b is None:
        a, second = a[: max_seq_length - 2], []
    else:
        a, b = truncate_pair(a, b, max_seq_length - 3)
        second = [*b, sep_id]
    first = [cls_id, *a, sep_id]
    rows = np.zeros((3, max_seq_length), np.int64)
    used = len(first) + len(second)
    rows[0, :used] = first + second
    rows[1, :used] = 1
    rows[2, len(first) : used] = 1
    return dict(zip(("input_ids", "input_mask", "segment_ids"), rows, strict=True))


def encode_texts(
    tokenizer: "FullTokenizer", texts: Iterable[tuple[str, str | None]], max_seq_length: int,
    name: str = "texts",
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the sequence of each (text, second text); an empty second text counts as None.

    At the end, logs the share of truncated ones as those of `name`.
    """
    iterator, num_all, num_cut = iter(texts), 0, 0
    while chunk := list(itertools.islice(iterator, 1024)):
        num_all += len(chunk)
        for a, b in encode_pairs(tokenizer, chunk):
            num_cut += len(a) + len(b or ()) + (2 if b is None else 3) > max_seq_length
            yield join_texts(a, b, max_seq_length, tokenizer.cls_id, tokenizer.sep_id)
    log_truncated(name, num_cut, num_all, max_seq_length)


def encode_pairs(
    tokenizer: "FullTokenizer", texts: Sequence[tuple[str, str | None]]
) -> Iterator[tuple[list[int], list[int] | None]]:
    """Yields the ids of each (text, second text); None of a second text that is None or empty."""
    has_second = [bool(b and tokenizer.preprocess(b)) for _, b in texts]
    firsts = tokenizer.encode_batch([a for a, _ in texts])
    seconds = iter(tokenizer.encode_batch(
        [b for (_, b), has in zip(texts, has_second, strict=True) if has]
    ))
    for first, has in zip(firsts, has_second, strict=True):
        yield first, next(seconds) if has else None


def log_truncated(name: str, num_cut: int, num_all: int, max_seq_length: int) -> None:
    """Warns of truncated inputs with their share."""
    if num_cut:
        log.warning("%s: truncated %s of %s (%.1f %%) to --max_seq_length=%d",
                    name, f"{num_cut:,}", f"{num_all:,}", 100 * num_cut / num_all, max_seq_length)
