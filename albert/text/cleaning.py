"""Preprocessing of text before it is tokenized."""

import dataclasses
import re
import unicodedata

_SURROGATE = re.compile("[\ud800-\udfff]")
_ASCII = re.compile(r"[\x00-\x7f]+")


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """How text is preprocessed, by the names of Hugging Face's settings."""

    do_lower_case: bool = True
    keep_accents: bool = False  # SentencePiece: no NFKD, and keep combining marks
    remove_space: bool = True  # SentencePiece: collapse white space


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

    White space collapses (unless `remove_space` is off), compatibility characters decompose (NFKD),
    and accents are dropped, even without `lower`, unless `keep_accents` keeps both. Quotation marks
    stay: unlike XLNet, ALBERT never rewrote them.
    """
    text = convert_to_unicode(inputs)
    if remove_space and not _is_collapsed(text):
        text = " ".join(text.split())
    if not (keep_accents or text.isascii()):
        text = unicodedata.normalize("NFKD", text)
        # There are few distinct characters: cheaper than testing each one in the text.
        for mark in {c for c in _ASCII.sub("", text) if unicodedata.combining(c)}:
            text = text.replace(mark, "")
    return text.lower() if lower else text


def _is_collapsed(text: str) -> bool:
    """Whether white space is single spaces between words; takes half the time of splitting."""
    # The space is the only white space that is printable.
    return text.isprintable() and "  " not in text and text[:1] != " " != text[-1:]
