"""Preprocessing of text before it is tokenized."""

import collections
import dataclasses
import functools
import logging
import re
import unicodedata
from collections.abc import Mapping

log = logging.getLogger("albert")

_SURROGATE = re.compile("[\ud800-\udfff]")
_ASCII = re.compile(r"[\x00-\x7f]+")


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """How text is preprocessed, by the names of Hugging Face's settings."""

    do_lower_case: bool = True
    keep_accents: bool = False  # SentencePiece: no NFKD, and keep combining marks
    remove_space: bool = True  # SentencePiece: collapse white space
    strip_accents: bool | None = None  # WordPiece: None means that of do_lower_case
    tokenize_chinese_chars: bool = True  # WordPiece: each ideograph is a word
    # As the tokenizers of BERT there: [MASK] and other special tokens are read in a text, a word of
    # more than 100 characters is unknown, and "2010," may be a token.
    as_in_bert: bool = False


def convert_to_unicode(text: str | bytes) -> str:
    """Returns `text` as str; bytes are decoded as UTF-8, without invalid ones."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"Unsupported string type: {type(text)}")


def scrub_surrogates(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def preprocess_text(
    inputs: str | bytes, remove_space: bool = True, lower: bool = False, keep_accents: bool = False
) -> str:
    """Returns the text as SentencePiece models were trained on it.

    Collapses white space (with `remove_space`), decomposes compatibility characters (NFKD) and drops
    accents, even without `lower` (unless `keep_accents`). Unlike XLNet, ALBERT does not replace
    quotation marks.
    """
    text = convert_to_unicode(inputs)
    # Faster than splitting: the space is the only printable white space.
    if remove_space and not (text.isprintable() and "  " not in text and text[:1] != " " != text[-1:]):
        text = " ".join(text.split())
    if not (keep_accents or text.isascii()):
        text = unicodedata.normalize("NFKD", text)
        # Cheaper than testing each character of the text, since few are distinct.
        for mark in {c for c in _ASCII.sub("", text) if unicodedata.combining(c)}:
            text = text.replace(mark, "")
    return text.lower() if lower else text


def restore_symbols(text: str, symbols: Mapping[str, str]) -> str:
    """Restores the case of tokens such as [E1] in lower-cased text."""
    for lower, symbol in symbols.items():
        text = text.replace(lower, symbol)
    return text


class LostMarks:
    """Counts the letters of a text that lose accents or marks, among the first million."""

    def __init__(self) -> None:
        self._letters, self._lost = 0, collections.Counter[str]()

    def add(self, text: str) -> bool:
        """Counts a part of the text; returns whether more of it is needed."""
        self._letters += sum(map(str.isalpha, text))
        self._lost.update(filter(_has_mark, "" if text.isascii() else text))
        return self._letters < 1_000_000

    @property
    def fraction(self) -> float:
        """The fraction of the letters that lose them."""
        return self._lost.total() / max(self._letters, 1)

    def __str__(self) -> str:
        examples = " ".join(char for char, _ in self._lost.most_common(8))
        return f"{100 * self.fraction:.2g} % of the letters have accents or marks ({examples})"

    def warn(self, origin: str) -> None:
        """Warns if more than 0.5 % of the letters lose them."""
        if self.fraction > 0.005:
            log.warning("%s: %s, which are dropped; to keep them, train the vocabulary with "
                        "--keep_accents", origin, self)


@functools.cache
def _has_mark(char: str) -> bool:
    return any(map(unicodedata.combining, unicodedata.normalize("NFKD", char)))
