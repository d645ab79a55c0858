"""From text to pieces to ids: SentencePiece (English ALBERT) or WordPiece (Chinese).

Nothing here imports TensorFlow. `FullTokenizer` serves both kinds:

    tokenizer = FullTokenizer(vocab_file=None, spm_model_file="30k-clean.model")
    ids = tokenizer.encode_text("Some text.")        # clean, cut into pieces, look up

`tokenize` alone does not clean text for SentencePiece (it never did: callers
are expected to use `preprocess_text` first); `encode_text` does everything.
"""

import dataclasses
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from albert.data import files
from albert.errors import ConfigError, DataError

SPIECE_UNDERLINE = "\u2581"  # SentencePiece writes a leading space so

_SURROGATE = re.compile("[\ud800-\udfff]")
_ASCII_SPECIALS = frozenset("!\"#$%&()*+,-./:;?@[\\]^_`{|}~")
_NEITHER_LETTER_NOR_SPECIAL = re.compile(r"[^a-z!\"#$%&()*+,\-./:;?@\[\\\]^_`{|}~]")
# A text sees few distinct words; more than this many are looked up again.
_WORD_CACHE = 1 << 18

Key = TypeVar("Key")
Value = TypeVar("Value")


# === Text ===


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """What is done to a text before it is cut, by the names of Hugging Face's settings."""

    do_lower_case: bool = True
    keep_accents: bool = False  # of SentencePiece: no NFKD, and combining marks stay
    remove_space: bool = True  # of SentencePiece: white space collapses


def convert_to_unicode(text: str | bytes) -> str:
    """Returns `text` as str; bytes are UTF-8 and undecodable ones are dropped."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"Unsupported string type: {type(text)}")


def printable_text(text: str | bytes) -> str:
    """Returns `text` as a str that can be printed or logged."""
    return convert_to_unicode(text)


def scrub_surrogates(text: str) -> str:
    """Replaces lone surrogates, which no UTF-8 library accepts, by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def preprocess_text(
    inputs: str | bytes, remove_space: bool = True, lower: bool = False, keep_accents: bool = False
) -> str:
    """Returns the text as SentencePiece models were trained on it.

    White space collapses (unless `remove_space` is off), compatibility
    characters decompose (NFKD), and accents go, with `lower` off too, unless
    `keep_accents` leaves both alone. Quotes stay as they are: unlike XLNet,
    ALBERT never rewrote them.
    """
    text = convert_to_unicode(inputs)
    if remove_space:
        text = " ".join(text.split())
    if not (keep_accents or text.isascii()):
        text = unicodedata.normalize("NFKD", text)
        # Few distinct characters and fewer marks: cheaper than a test of each.
        for mark in [c for c in set(text) if unicodedata.combining(c)]:
            text = text.replace(mark, "")
    return text.lower() if lower else text


def whitespace_tokenize(text: str) -> list[str]:
    """Returns the parts between runs of white space."""
    return text.split()


def _is_whitespace(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    # Tab, newline and return are control characters, but count as white space.
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    # All ASCII but letters, digits and space: "^", "$" and "`" too, which
    # Unicode calls symbols.
    if 33 <= ord(char) <= 126 and not char.isalnum():
        return True
    return unicodedata.category(char).startswith("P")


# === SentencePiece ===


def encode_pieces(
    sp_model: Any, text: str, return_unicode: bool = True, sample: bool = False
) -> list[str]:
    """Returns the pieces of `text`, with the comma of "2010," as a piece of its own.

    Args:
      sp_model: a `sentencepiece.SentencePieceProcessor`.
      text: cleaned text (`preprocess_text`).
      return_unicode: kept for callers of the original; pieces are always str.
      sample: draws one of the 64 best segmentations (alpha 0.1).
    """
    del return_unicode
    text = scrub_surrogates(text)
    cut = sp_model.SampleEncodeAsPieces(text, 64, 0.1) if sample else sp_model.EncodeAsPieces(text)
    result: list[str] = []
    for piece in cut:
        if ends_in_digit_comma(piece):
            result += split_digit_comma(sp_model, piece)
        else:
            result.append(piece)
    return result


def ends_in_digit_comma(piece: str) -> bool:
    """Whether a piece is a number with its comma, which is cut again."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def split_digit_comma(sp_model: Any, piece: str) -> list[str]:
    """Returns the pieces of the number, then ","."""
    parts = sp_model.EncodeAsPieces(piece[:-1].replace(SPIECE_UNDERLINE, ""))
    # SentencePiece starts every text with an underline. Inside a word it is
    # wrong, and goes (the original meant to, but compared str with bytes).
    if piece[0] != SPIECE_UNDERLINE and parts and parts[0][0] == SPIECE_UNDERLINE:
        parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
    return [*parts, ","]


def encode_ids(sp_model: Any, text: str, sample: bool = False) -> list[int]:
    """Returns the ids of `encode_pieces`."""
    return [sp_model.PieceToId(piece) for piece in encode_pieces(sp_model, text, sample=sample)]


def is_start_piece(piece: str, is_spm: bool) -> bool:
    """Whether a piece begins a word, for whole-word masking.

    A SentencePiece continuation consists only of ASCII letters and special
    characters, and is not one special character alone: "ing", ".com".
    """
    if not is_spm:
        return not piece.startswith("##")
    if piece.startswith((SPIECE_UNDERLINE, "<")) or piece in _ASCII_SPECIALS:
        return True
    return _NEITHER_LETTER_NOR_SPECIAL.search(piece.lower()) is not None


def _load_spm(path: str) -> Any:
    import sentencepiece

    files.require_file(path, "spm_model_file")
    with open(path, "rb") as stream:
        proto = stream.read()
    model = sentencepiece.SentencePieceProcessor()
    try:
        loaded = bool(proto) and model.LoadFromSerializedProto(proto)
    except RuntimeError as error:
        raise DataError(f"{path}: not a SentencePiece model (or a truncated one)") from error
    # An empty file loads without complaint, with no pieces.
    if not loaded or model.GetPieceSize() == 0:
        raise DataError(f"{path}: not a SentencePiece model ({len(proto):,} bytes)")
    return model


# === WordPiece ===


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Returns {token: id} of a vocabulary with one token a line.

    A second column is ignored. A line of white space alone is the token " ".
    A repeated token keeps its first id and uses up none: the ids of released
    Chinese checkpoints depend on both.

    Raises:
      DataError: the file is absent, empty or not UTF-8.
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


def convert_by_vocab(vocab: Mapping[Key, Value], items: Iterable[Key]) -> list[Value]:
    """Returns `vocab[item]` of every item; an unknown one is a KeyError."""
    return [vocab[item] for item in items]


def convert_tokens_to_ids(vocab: Mapping[str, int], tokens: Iterable[str]) -> list[int]:
    """Returns the id of every token."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab: Mapping[int, str], ids: Iterable[int]) -> list[str]:
    """Returns the token of every id."""
    return convert_by_vocab(inv_vocab, ids)


class _CharTable(dict):
    """A `str.translate` table whose entries are worked out when first met."""

    def __init__(self, replacement):
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code: int) -> str:
        self[code] = self._replacement(chr(code))
        return self[code]


def _clean_char(char: str) -> str:
    if char in "\0\ufffd" or _is_control(char):
        return ""
    if _is_whitespace(char):
        return " "
    return f" {char} " if _is_cjk(ord(char)) else char


# Ideographs are words of their own; Hangul, Hiragana and Katakana are not.
_CJK_BLOCKS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)


def _is_cjk(code: int) -> bool:
    return any(first <= code <= last for first, last in _CJK_BLOCKS)


class BasicTokenizer:
    """Splits at white space and punctuation; optionally lower-cases and drops accents."""

    def __init__(self, do_lower_case: bool = True):
        self.do_lower_case = do_lower_case
        self._clean = _CharTable(_clean_char)
        self._split = _CharTable(lambda c: f" {c} " if _is_punctuation(c) else c)
        self._accents = _CharTable(lambda c: "" if unicodedata.category(c) == "Mn" else c)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Returns words, single punctuation characters and single ideographs."""
        text = self.clean(convert_to_unicode(text))
        if self.do_lower_case:
            text = self.strip_accents(text.lower())
        return self.separate(text).split()

    def clean(self, text: str) -> str:
        """Returns the text without control characters, its ideographs between spaces."""
        return text.translate(self._clean)

    def strip_accents(self, text: str) -> str:
        """Returns the text decomposed (NFD), without non-spacing marks."""
        if text.isascii():
            return text
        return unicodedata.normalize("NFD", text).translate(self._accents)

    def separate(self, text: str) -> str:
        """Returns the text with each punctuation character between spaces."""
        return text.translate(self._split)


class WordpieceTokenizer:
    """Cuts words into the longest pieces the vocabulary has, from the left."""

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
        """Returns the pieces of words separated by white space; "##" marks continuations."""
        pieces: list[str] = []
        for word in convert_to_unicode(text).split():
            pieces += self.tokenize_word(word)
        return pieces

    def tokenize_word(self, word: str) -> list[str]:
        """Returns the pieces of one word, or the unknown token alone."""
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            end = min(len(word), start + self._longest)
            while end > start and prefix + word[start:end] not in self.vocab:
                end -= 1
            if end == start:
                return [self.unk_token]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces


# === Both kinds ===


class FullTokenizer:
    """Text to pieces to ids, by a SentencePiece model if given, else by WordPiece.

    Args:
      vocab_file: WordPiece vocabulary; not read when `spm_model_file` is given.
      do_lower_case: lower-case in `encode_text`; in `tokenize` only for WordPiece.
      spm_model_file: SentencePiece model.
      keep_accents, remove_space: see `TextSettings`; of SentencePiece alone.

    Raises:
      DataError: neither file is given, or it is missing, empty or of another format.
    """

    def __init__(
        self,
        vocab_file: str | None,
        do_lower_case: bool = True,
        spm_model_file: str | None = None,
        *,
        keep_accents: bool = False,
        remove_space: bool = True,
    ):
        self.settings = TextSettings(do_lower_case, keep_accents, remove_space)
        self.sp_model: Any = None
        self.path = spm_model_file or vocab_file or ""
        self._ids_of_word: dict[str, list[int]] = {}
        if spm_model_file:
            self.sp_model = _load_spm(spm_model_file)
            count = self.sp_model.GetPieceSize()
            self.vocab = {self.sp_model.IdToPiece(i): i for i in range(count)}
            # What "▁2010," is cut into depends on nothing around it.
            self.comma_ids = {
                i: [self.sp_model.PieceToId(p) for p in split_digit_comma(self.sp_model, piece)]
                for piece, i in self.vocab.items() if ends_in_digit_comma(piece)
            }
        elif vocab_file:
            self.vocab = load_vocab(vocab_file)
            self.basic_tokenizer = BasicTokenizer(do_lower_case)
            self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab)
        else:
            raise DataError("no vocabulary: give --spm_model_file or --vocab_file")
        self.inv_vocab = {i: piece for piece, i in self.vocab.items()}

    @classmethod
    def from_scratch(
        cls, vocab_file: str | None, do_lower_case: bool, spm_model_file: str | None
    ) -> "FullTokenizer":
        """The original's name for the plain constructor."""
        return cls(vocab_file, do_lower_case, spm_model_file)

    @property
    def do_lower_case(self) -> bool:
        """Whether texts are lower-cased."""
        return self.settings.do_lower_case

    # --- Text to ids ---

    def preprocess(self, text: str | bytes) -> str:
        """Returns the text as `tokenize` wants it: cleaned, or only stripped for WordPiece."""
        if self.sp_model is None:
            return convert_to_unicode(text).strip()
        return self._preprocess(text, self.settings.remove_space)

    def preprocess_character(self, char: str) -> str:
        """Returns what `preprocess` makes of one character of a text for SentencePiece."""
        return self._preprocess(char, remove_space=False)

    def _preprocess(self, text: str | bytes, remove_space: bool) -> str:
        settings = self.settings
        return preprocess_text(text, remove_space, settings.do_lower_case, settings.keep_accents)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Returns the pieces; for SentencePiece `text` must have been preprocessed."""
        if self.sp_model is not None:
            return encode_pieces(self.sp_model, convert_to_unicode(text))
        pieces: list[str] = []
        for word in self.basic_tokenizer.tokenize(text):
            pieces += self.wordpiece_tokenizer.tokenize_word(word)
        return pieces

    def encode_text(self, text: str | bytes) -> list[int]:
        """Returns the ids of raw text: preprocessing, pieces and look-up in one call."""
        return self.encode_batch([text])[0]

    def encode_batch(
        self, texts: Sequence[str | bytes], num_threads: int = 1, is_preprocessed: bool = False
    ) -> list[list[int]]:
        """Returns the ids of every text, as `encode_text` would, faster.

        Texts are raw, or with `is_preprocessed` what `preprocess` returned: in rare
        cases, cleaning once more would change them.
        """
        if self.sp_model is None:
            return [self._wordpiece_ids(text) for text in texts]
        clean = convert_to_unicode if is_preprocessed else self.preprocess
        cleaned = [scrub_surrogates(clean(text)) for text in texts]
        if "," not in self.vocab:  # then unknown pieces may end in a comma too
            return [encode_ids(self.sp_model, text) for text in cleaned]
        rows = self.sp_model.EncodeAsIds(cleaned, num_threads=num_threads)
        cut = self.comma_ids
        for index, ids in enumerate(rows):
            if not cut.keys().isdisjoint(ids):
                rows[index] = [new for old in ids for new in cut.get(old, (old,))]
        return rows

    def _wordpiece_ids(self, text: str | bytes) -> list[int]:
        known, ids = self._ids_of_word, []
        for word in self.basic_tokenizer.tokenize(text):
            found = known.get(word)
            if found is None:
                if len(known) >= _WORD_CACHE:
                    known.clear()
                pieces = self.wordpiece_tokenizer.tokenize_word(word)
                found = known[word] = self.convert_tokens_to_ids(pieces)
            ids += found
        return ids

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids; unknown pieces are <unk> (SentencePiece) or a KeyError."""
        if self.sp_model is None:
            return convert_by_vocab(self.vocab, tokens)
        return [self.sp_model.PieceToId(scrub_surrogates(printable_text(t))) for t in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces."""
        return convert_by_vocab(self.inv_vocab, (int(i) for i in ids))

    # --- The vocabulary ---

    @property
    def is_spm(self) -> bool:
        """Whether a SentencePiece model is in use."""
        return self.sp_model is not None

    @property
    def vocab_size(self) -> int:
        """Number of pieces."""
        return len(self.vocab)

    @property
    def cls_id(self) -> int:
        """Id of [CLS]; DataError when the vocabulary lacks it, as for the next three."""
        return self._special("[CLS]")

    @property
    def sep_id(self) -> int:
        """Id of [SEP]."""
        return self._special("[SEP]")

    @property
    def mask_id(self) -> int:
        """Id of [MASK]."""
        return self._special("[MASK]")

    @property
    def pad_id(self) -> int:
        """Id of <pad> (SentencePiece) or [PAD] (WordPiece)."""
        return self._special("<pad>" if self.is_spm else "[PAD]")

    def _special(self, piece: str) -> int:
        if piece not in self.vocab:
            raise DataError(f"{self.path}: the vocabulary has no piece {piece}")
        return self.vocab[piece]

    def start_pieces(self) -> list[bool]:
        """Returns, for every id, whether the piece begins a word (length `vocab_size`)."""
        return [is_start_piece(self.inv_vocab[i], self.is_spm) for i in range(self.vocab_size)]

    @property
    def sha256(self) -> str:
        """Identity of the tokenizer: of the vocabulary's bytes, its kind and its settings."""
        kind = "spm" if self.is_spm else "wordpiece"
        case = "lower" if self.do_lower_case else "cased"
        text = f"{kind} {case} {files.sha256(self.path)}"
        # Only what is not the rule: records of before these settings keep their names.
        text += " keep_accents" * self.settings.keep_accents
        text += " keep_space" * (not self.settings.remove_space)
        return hashlib.sha256(text.encode()).hexdigest()


def check_special_pieces(tokenizer: FullTokenizer) -> None:
    """Raises one DataError that names every special piece missing from the vocabulary."""
    pad, unknown = ("<pad>", "<unk>") if tokenizer.is_spm else ("[PAD]", "[UNK]")
    needed = ("[CLS]", "[SEP]", "[MASK]", pad, unknown)
    missing = [p for p in needed if p not in tokenizer.vocab]
    if missing:
        raise DataError(
            f"{tokenizer.path}: the vocabulary has no {', '.join(missing)}; train it with "
            "these as control symbols"
        )
    if tokenizer.pad_id != 0:
        raise DataError(f"{tokenizer.path}: {pad} has id {tokenizer.pad_id}, it must have id 0")


def check_vocabulary(tokenizer: FullTokenizer, config: Any) -> None:
    """Refuses a vocabulary that does not belong to the model.

    Args:
      config: an `AlbertConfig` (its `vocab_size` is looked at).

    Raises:
      ConfigError: the sizes differ; DataError: special pieces are missing.
    """
    check_special_pieces(tokenizer)
    if tokenizer.vocab_size != config.vocab_size:
        kind = "spm model" if tokenizer.is_spm else "vocab file"
        raise ConfigError(
            f"{kind} has {tokenizer.vocab_size:,} pieces, config vocab_size is "
            f"{config.vocab_size:,}: {os.path.basename(tokenizer.path)} and the config "
            "must be of the same model"
        )
