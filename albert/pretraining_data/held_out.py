"""Chooses the held-out part of a text: a fraction of its size, in complete documents if they are small.

The text is read once, in order. Documents compete with those of similar size (within a factor of two),
so that neither short nor long ones are preferred. A document that is a large part of the text is
divided into stretches, which are chosen like documents.
"""

import collections
import itertools
import random
from collections.abc import Iterator

from albert.text.documents import Document, split_documents

# Fractions of the smaller side of the split: the longest undivided document, and a stretch.
_DOCUMENT, _STRETCH = 1 / 6, 1 / 10
_MAX_FRACTION = 0.1  # a larger side counts as this, so that halves come from many positions
_MIN_STRETCH = 1000  # bytes: a few pairs
_BYTES_PER_CHARACTER = 4  # at most


class HeldOut:
    """Divides documents, given in order, between training text and held-out text."""

    def __init__(
        self, fraction: float, seed: int, text_bytes: int, language: str | None = None
    ):
        """`language`: divide long documents between the sentences of this language."""
        self._language = language
        self._fraction, self._rng = fraction, random.Random(seed)
        side = text_bytes * min(fraction, 1 - fraction, _MAX_FRACTION)
        self._longest = max(_DOCUMENT * side, _MIN_STRETCH)
        self._stretch = max(_STRETCH * side, _MIN_STRETCH)
        # For each class of sizes: characters due to be held out, and the level at which the next
        # document is chosen, drawn again each time: one at random of every 1 / fraction.
        self._due: dict[int, float] = collections.defaultdict(float)
        self._level: dict[int, float] = collections.defaultdict(self._rng.random)

    def split(self, document: Document, characters: int) -> Iterator[tuple[bool, Document, int]]:
        """Yields (is held out, document, characters): the document, or parts of a long one."""
        if not self._fraction:
            yield False, document, characters
            return
        stretches = [(document, characters)]
        if characters * _BYTES_PER_CHARACTER > self._longest:
            [sentences] = split_documents([document], self._language)
            stretches = list(self._stretches(sentences, sum(map(len, sentences))))
        chosen = ((self._choose(size), *stretch) for stretch in stretches for size in stretch[1:])
        for is_held_out, group in itertools.groupby(chosen, key=lambda one: one[0]):
            _, parts, sizes = zip(*group, strict=True)
            yield is_held_out, list(itertools.chain(*parts)), sum(sizes)

    def _choose(self, characters: int) -> bool:
        size = characters.bit_length()
        self._due[size] += characters * self._fraction
        if self._due[size] < self._level[size] * (1 << max(size - 1, 0)):
            return False
        self._due[size] -= characters
        del self._level[size]
        return True

    def _stretches(self, lines: Document, characters: int) -> Iterator[tuple[Document, int]]:
        """Yields (lines, characters) of the stretches of a document."""
        sizes = [len(line.encode("utf-8", "surrogatepass")) for line in lines]
        left, rest = self._stretch, sum(sizes)
        if rest <= self._longest:
            yield lines, characters
            return
        first = 0
        for number, size in enumerate(sizes):
            if left <= 0 and rest >= self._stretch / 2:  # no tiny stretch at the end
                yield lines[first:number], sum(map(len, lines[first:number]))
                first, left = number, self._stretch
            left -= size
            rest -= size
        yield lines[first:], sum(map(len, lines[first:]))
