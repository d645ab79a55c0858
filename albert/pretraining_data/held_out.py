"""Chooses the held-out part of a text by hashes of its documents.

A document's text and the seed alone decide: copies of a document are on one side, and a document
stays there whatever else is in the corpus. One that is a large part of the text is divided into
stretches, of which regular ones are held out, from a start that the hash gives.
"""

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np

from albert.text.documents import Document, sentences_of

_STRETCH = 1 / 20  # of the smaller side of the split: the longest undivided document, and a stretch
_MAX_FRACTION = 0.1  # a larger side counts as this, so that halves come from many positions
_MIN_STRETCH = 1000  # bytes: a few pairs
_BYTES_PER_CHARACTER = 4  # at most


def split_document(
    document: Document, fraction: float, seed: int, text_bytes: int, language: str | None = None
) -> Iterator[tuple[bool, Document]]:
    """Yields (is held out, document): the document, or parts of a long one.

    Args:
      text_bytes: size of the text.
      language: a long document is divided between the sentences of this language.
    """
    if not fraction:
        yield False, document
        return
    side = text_bytes * min(fraction, 1 - fraction, _MAX_FRACTION)
    limit, stretches = max(_STRETCH * side, _MIN_STRETCH), [document]
    if sum(map(len, document)) * _BYTES_PER_CHARACTER > limit:
        stretches = list(_stretches(sentences_of(document, language), limit))
    # Of every 1 / fraction stretches in a row, one is held out; which, depends on text and seed.
    text = "\n".join((str(seed), *document)).encode("utf-8", "surrogatepass")
    uniform = int.from_bytes(hashlib.sha256(text).digest()[:6], "little") / 2**48
    due = uniform + fraction * np.arange(len(stretches) + 1)
    sides = zip(np.diff(np.floor(due)) > 0, stretches, strict=True)
    for is_held_out, group in itertools.groupby(sides, key=lambda one: bool(one[0])):
        yield is_held_out, [line for _, stretch in group for line in stretch]


def _stretches(lines: Document, limit: float) -> Iterator[Document]:
    """Yields the stretches of a document, each of about `limit` bytes."""
    sizes = [len(line.encode("utf-8", "surrogatepass")) for line in lines]
    first, left, rest = 0, limit, sum(sizes)
    for number, size in enumerate(sizes if rest > limit else ()):
        if left <= 0 and rest >= limit / 2:  # no tiny stretch at the end
            yield lines[first:number]
            first, left = number, limit
        left -= size
        rest -= size
    yield lines[first:]
