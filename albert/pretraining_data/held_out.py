"""Which part of a text is held out: a fraction of its size, in whole documents where they are small.

The text is seen once, in order. Documents of about the same size (within a factor of two) are
drawn among themselves, so neither short nor long ones are preferred. A document that is a
noticeable part of the text is cut into stretches, which are drawn like documents.
"""

import collections
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")  # a document, or what stands for it

# Of the smaller side of the split: the longest document that is held out whole, and a stretch.
_DOCUMENT, _STRETCH = 1 / 6, 1 / 10
_FRACTION = 0.1  # a larger side counts as this one, so that halves are drawn from many places
_LEAST = 1000  # bytes of a stretch: a few pairs
_BYTES = 4  # of a character, at most


class Parts(NamedTuple, Generic[Item]):
    """How a document is cut."""

    read: Callable[[Item], Sequence[str]]  # its lines
    take: Callable[[Item, int, int], Item]  # the part of it from one line to before another


LINES = Parts(lambda lines: lines, lambda lines, first, end: lines[first:end])


class HeldOut(Generic[Item]):
    """Divides documents, given in order, between training and held-out text."""

    def __init__(
        self, fraction: float, seed: int, text_bytes: int, parts: Parts[Item] = LINES
    ):
        self._fraction, self._rng, self._parts = fraction, random.Random(seed), parts
        side = text_bytes * min(fraction, 1 - fraction, _FRACTION)
        self._longest, self._stretch = max(_DOCUMENT * side, _LEAST), max(_STRETCH * side, _LEAST)
        # Of each class of sizes: characters that are due to be held out, and at how many of them
        # the next document is. Drawn anew for each, it is one at random of every 1 / fraction.
        self._due: dict[int, float] = collections.defaultdict(float)
        self._next: dict[int, float] = collections.defaultdict(self._rng.random)

    def split(self, document: Item, characters: int) -> Iterator[tuple[bool, Item, int]]:
        """Yields (whether held out, part, its characters): the document, or parts of a long one."""
        if not self._fraction:
            yield False, document, characters
            return
        stretches = None
        if characters * _BYTES > self._longest:
            stretches = self._stretches(self._parts.read(document))
        if stretches is None:
            yield self._draw(characters), document, characters
            return
        # Neighbours of the same side stay together.
        first, size, before = 0, 0, None
        for begin, more in stretches:
            is_held_out = self._draw(more)
            if before is not None and is_held_out != before:
                yield before, self._parts.take(document, first, begin), size
                first, size = begin, 0
            before, size = is_held_out, size + more
        yield before, self._parts.take(document, first, stretches.end), size

    def _draw(self, characters: int) -> bool:
        size = characters.bit_length()
        self._due[size] += characters * self._fraction
        if self._due[size] < self._next[size] * (1 << max(size - 1, 0)):
            return False
        self._due[size] -= characters
        del self._next[size]
        return True

    def _stretches(self, lines: Sequence[str]) -> "_Stretches | None":
        """Returns the stretches of a long document, None for one that stays whole."""
        sizes = [len(line.encode("utf-8", "surrogatepass")) for line in lines]
        if sum(sizes) <= self._longest:
            return None
        begins, left, total = [0], self._stretch, sum(sizes)
        for number, size in enumerate(sizes):
            if left <= 0 and total >= self._stretch / 2:  # no tiny one at the end
                begins.append(number)
                left = self._stretch
            left -= size
            total -= size
        characters = [sum(map(len, lines[a:b]))
                      for a, b in zip(begins, [*begins[1:], len(lines)], strict=True)]
        return _Stretches(list(zip(begins, characters, strict=True)), len(lines))


class _Stretches(NamedTuple):
    parts: list[tuple[int, int]]  # (first line, characters)
    end: int  # lines of the document

    def __iter__(self):
        return iter(self.parts)
