"""WordPiece: splits at white space and punctuation, then into the longest tokens from the left."""

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence

from albert.errors import DataError
from albert.storage import files
from albert.text.cleaning import convert_to_unicode


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Returns {token: id} of a vocabulary with one token per line.

    A second column is ignored. A blank line is the token " ". A repeated token keeps its first id
    and uses no other: the ids of released Chinese checkpoints depend on both.

    Raises:
      DataError: the file does not exist, is empty or not UTF-8.
    """
    files.require_file(vocab_file, "vocab_file")
    vocab: dict[str, int] = {}
    try:
        # Only "\n" ends a line: U+2028 is a token of Chinese vocabularies.
        with open(vocab_file, encoding="utf-8", newline="\n") as stream:
            for line in stream:
                fields = line.split()
                vocab.setdefault(fields[0] if fields else " ", len(vocab))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{vocab_file}: not UTF-8 text; is it a SentencePiece model? Then pass it "
            "as --spm_model_file"
        ) from error
    if not vocab:
        raise DataError(f"{vocab_file}: empty vocabulary")
    return vocab


# === Characters ===

# Ideographs are words; Hangul, Hiragana and Katakana are parts of words.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)


def _clean(char: str, splits_ideographs: bool, as_in_bert: bool) -> str:
    category = unicodedata.category(char)
    # Tab, newline and return are control characters, but count as white space.
    if char in " \t\n\r" or category == "Zs":
        return " "
    if char in "\0\ufffd" or category in ("Cc", "Cf") or as_in_bert and category == "Co":
        return ""
    is_ideograph = any(first <= ord(char) <= last for first, last in _IDEOGRAPHS)
    return f" {char} " if is_ideograph and splits_ideographs else char


def _without_mark(char: str) -> str:
    return "" if unicodedata.category(char) == "Mn" else char


def _separate(char: str) -> str:
    # All ASCII but letters, digits and space: also "^", "$" and "`", which Unicode calls symbols.
    is_ascii = 33 <= ord(char) <= 126 and not char.isalnum()
    return f" {char} " if is_ascii or unicodedata.category(char).startswith("P") else char


class _Translation(dict):
    """A `str.translate` table whose entries are computed on demand."""

    def __init__(self, replacement):
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code: int) -> str:
        self[code] = self._replacement(chr(code))
        return self[code]


# === Tokenizers ===


class BasicTokenizer:
    """Splits at white space and punctuation; optionally lower-cases and drops accents.

    Args:
      strip_accents: whether to drop accents; None means that of `do_lower_case`.
      tokenize_chinese_chars: whether each ideograph is a word.
      as_in_bert: whether to drop characters for private use, and to lower-case a final sigma as any
        other, as Hugging Face's tokenizers do.
    """

    never_split: Sequence[str] = ()  # words with brackets, such as [E1]

    def __init__(
        self, do_lower_case: bool = True, strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True, as_in_bert: bool = False,
    ):
        self.do_lower_case, self._as_in_bert = do_lower_case, as_in_bert
        self._strips = do_lower_case if strip_accents is None else strip_accents
        self._cleaned = _Translation(functools.partial(
            _clean, splits_ideographs=tokenize_chinese_chars, as_in_bert=as_in_bert
        ))
        self._unaccented = _Translation(_without_mark)
        self._separated = _Translation(_separate)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Returns words, single punctuation characters and single ideographs."""
        text = convert_to_unicode(text)
        if self.never_split:
            parts = re.split(f"({'|'.join(map(re.escape, self.never_split))})", text)
            words = ([part] if i % 2 else self._words(part) for i, part in enumerate(parts))
            return [word for part in words for word in part]
        return self._words(text)

    def _words(self, text: str) -> list[str]:
        text = self.clean(text)
        if self.do_lower_case:
            text = (text.replace("Σ", "σ") if self._as_in_bert else text).lower()
        if self._strips:
            text = self.strip_accents(text)
        return self.separate(text).split()

    def clean(self, text: str) -> str:
        """Returns the text without control characters, its ideographs between spaces."""
        return text.translate(self._cleaned)

    def strip_accents(self, text: str) -> str:
        """Returns the text decomposed (NFD), without non-spacing marks."""
        if text.isascii():
            return text
        return unicodedata.normalize("NFD", text).translate(self._unaccented)

    def separate(self, text: str) -> str:
        """Returns the text with each punctuation character between spaces."""
        return text.translate(self._separated)


class WordpieceTokenizer:
    """Splits words into the longest tokens of the vocabulary, from the left."""

    def __init__(
        self,
        vocab: Mapping[str, int],
        unk_token: str = "[UNK]",
        max_input_chars_per_word: int = 200,
    ):
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._longest = max(map(len, vocab), default=0)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Returns the tokens of words separated by white space; "##" marks continuations."""
        words = convert_to_unicode(text).split()
        return [token for word in words for token in self.tokenize_word(word)]

    def tokenize_word(self, word: str) -> list[str]:
        """Returns the tokens of one word, or the unknown token alone."""
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        tokens, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            end = min(len(word), start + self._longest)
            while end > start and prefix + word[start:end] not in self.vocab:
                end -= 1
            if end == start:
                return [self.unk_token]
            tokens.append(prefix + word[start:end])
            start = end
        return tokens
