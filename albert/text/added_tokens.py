"""Tokens that are matched in a text before it is tokenized, and never split."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

Span = tuple[int, int]  # first character of a token, one past the last


class AddedTokens:
    """Splits texts at tokens.

    Args:
      ids: the id of each token.
      normalize: maps equivalent spellings of a token to one.
    """

    def __init__(self, ids: Mapping[str, int], normalize: Callable[[str], str] = str):
        self.ids = dict(ids)
        self._normalize, self._normalized = normalize, {normalize(t): i for t, i in ids.items()}
        spellings = sorted({*ids, *self._normalized}, key=len, reverse=True)  # the longest wins
        flags = 0 if normalize is str else re.IGNORECASE
        self._pattern = re.compile("|".join(map(re.escape, spellings)), flags) if ids else None

    def split(self, text: str) -> Iterator[tuple[int, int, int | None]]:
        """Yields (begin, end, id) of each part of a text; the id is None for text between tokens."""
        end = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if (token_id := self._normalized.get(self._normalize(match[0]))) is not None:
                yield end, match.start(), None
                yield *match.span(), token_id
                end = match.end()
        yield end, len(text), None

    def encode(
        self, texts: Sequence[str], encode: Callable[[list[str]], list[list[int]]]
    ) -> list[list[int]]:
        """Returns the ids of texts; `encode` returns those of the parts between tokens."""
        if not self._pattern or not any(map(self._pattern.search, texts)):
            return encode(list(texts))
        parts = [list(self.split(text)) for text in texts]
        between = iter(encode([
            text[begin:end] for text, of_text in zip(texts, parts, strict=True)
            for begin, end, token in of_text if token is None
        ]))
        return [
            list(itertools.chain.from_iterable(
                next(between) if token is None else [token] for _, _, token in of_text
            )) for of_text in parts
        ]

    def encode_with_offsets(
        self, text: str, encode: Callable[[str], tuple[list[int], list[Span]]]
    ) -> tuple[list[int], list[Span]]:
        """Returns the ids of a text and their spans; `encode` returns those of parts between tokens."""
        ids: list[int] = []
        spans: list[Span] = []
        for begin, end, token in self.split(text):
            part = ([token], [(0, end - begin)]) if token is not None else encode(text[begin:end])
            ids += part[0]
            spans += [(first + begin, last + begin) for first, last in part[1]]
        return ids, spans
