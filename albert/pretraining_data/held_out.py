"""Chooses the held-out part of a text by hashes of its documents.

A document's text and the seed alone decide: copies of a document are on one side, and a document
stays there whatever else is in the corpus. One that is a large part of the text is divided into
stretches, of which regular ones are held out, from a start that the hash gives.
"""

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np

from albert.text.documents import Document, split_documents

_STRETCH = 1 / 20  # of the smaller side of the split: the longest undivided document, and a stretch
_MAX_FRACTION = 0.1  # a larger side counts as this, so that halves come from many positions
_MIN_STRETCH = 1000  # bytes: a few pairs
_BYTES_PER_CHARACTER = 4  # at most


class HeldOut:
    """Divides documents between training text and held-out text."""

    def __init__(
        self, fraction: float, seed: int, text_bytes: int, language: str | None = None
    ):
        """`language`: divide long documents between the sentences of this language."""
        self._fraction, self._seed, self._language = fraction, seed, language
        side = text_bytes * min(fraction, 1 - fraction, _MAX_FRACTION)
        self._stretch = max(_STRETCH * side, _MIN_STRETCH)

    def split(self, document: Document) -> Iterator[tuple[bool, Document]]:
        """Yields (is held out, document): the document, or parts of a long one."""
        if not self._fraction:
            yield False, document
            return
        stretches = [document]
        if sum(map(len, document)) * _BYTES_PER_CHARACTER > self._stretch:
            [sentences] = split_documents([document], self._language)
            stretches = list(self._stretches(sentences))
        # Of every 1 / fraction stretches in a row, one is held out.
        due = self._uniform(document) + self._fraction * np.arange(len(stretches) + 1)
        sides = zip(np.diff(np.floor(due)) > 0, stretches, strict=True)
        for is_held_out, group in itertools.groupby(sides, key=lambda one: bool(one[0])):
            yield is_held_out, [line for _, stretch in group for line in stretch]

    def _uniform(self, document: Document) -> float:
        """Returns a number of [0, 1) that depends on the document's text and the seed."""
        text = "\n".join((str(self._seed), *document)).encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.sha256(text).digest()[:6], "little") / 2**48

    def _stretches(self, lines: Document) -> Iterator[Document]:
        """Yields the stretches of a document."""
        sizes = [len(line.encode("utf-8", "surrogatepass")) for line in lines]
        first, left, rest = 0, self._stretch, sum(sizes)
        for number, size in enumerate(sizes if rest > self._stretch else ()):
            if left <= 0 and rest >= self._stretch / 2:  # no tiny stretch at the end
                yield lines[first:number]
                first, left = number, self._stretch
            left -= size
            rest -= size
        yield lines[first:]
