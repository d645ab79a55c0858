"""Splits texts into tokens, with SentencePiece (English ALBERT) or WordPiece (Chinese). No TensorFlow.

    tokenizer = FullTokenizer(vocab_file=None, spm_model_file="30k-clean.model")
    ids = tokenizer.encode_text("Some text.")  # preprocesses, tokenizes, looks up

As in the original, `tokenize` alone does not preprocess texts for SentencePiece.
"""

import collections
import functools
import hashlib
import itertools
import os
import unicodedata
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import ConfigError, DataError
from albert.storage import cloud, files
from albert.text import spm_model
from albert.text.added_tokens import AddedTokens
from albert.text.cleaning import (
    TextSettings, convert_to_unicode, preprocess_text, restore_symbols, scrub_surrogates,
)
from albert.text.spm_model import (
    SPIECE_UNDERLINE, encode_ids, encode_pieces, ends_in_digit_comma, is_start_piece,
    split_digit_comma,
)
from albert.text.wordpiece import BasicTokenizer, WordpieceTokenizer, load_vocab

__all__ = [
    "SPIECE_UNDERLINE", "BasicTokenizer", "FullTokenizer", "TextSettings", "WordpieceTokenizer",
    "check_special_pieces", "check_vocabulary", "convert_by_vocab", "convert_ids_to_tokens",
    "convert_to_unicode", "convert_tokens_to_ids", "encode_ids", "encode_pieces",
    "ends_in_digit_comma", "is_start_piece", "load_vocab", "preprocess_text", "printable_text",
    "scrub_surrogates", "split_digit_comma", "whitespace_tokenize",
]

SPECIAL = frozenset((
    "[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "<s>", "</s>", "<mask>", "<pad>", "<unk>",
))
MAX_UNKNOWN = 0.01  # fraction of the tokens, above which a warning is due
_WORD_CACHE = 1 << 18  # maximum number of words whose WordPiece ids are cached


# --- Functions of the original ---


def convert_by_vocab(vocab: Mapping[Hashable, Any], items: Iterable[Hashable]) -> list[Any]:
    """Returns `vocab[item]` for each item; unknown items raise a KeyError."""
    return [vocab[item] for item in items]


convert_tokens_to_ids = convert_ids_to_tokens = convert_by_vocab
printable_text = convert_to_unicode


def whitespace_tokenize(text: str) -> list[str]:
    """Splits a text at white space."""
    return text.split()


# --- The tokenizer ---


def _special_id(name: str) -> property:
    def get(self: "FullTokenizer") -> int:
        token = self.special_tokens[name]
        if token not in self.vocab:
            raise DataError(f"{self.path}: the vocabulary has no token {token}")
        return self.vocab[token]

    return property(get, doc=f"Id of the token {name!r}, or a DataError if the vocabulary lacks it.")


class FullTokenizer:
    """Turns texts into token ids: with a SentencePiece model if given, else with WordPiece.

    Args:
      vocab_file: a WordPiece vocabulary; ignored if `spm_model_file` is given.
      do_lower_case: whether `encode_text` lower-cases; `tokenize` does so only with WordPiece.
      spm_model_file: a SentencePiece model.
      added_tokens: {token: id}, with ids that follow those of the file. They are matched before
        all others, ignoring case and accents if preprocessing removes these.
      settings: others of `TextSettings`.

    Raises:
      DataError: no file is given; it is missing, empty or in the wrong format; or ids of added
        tokens don't follow those of the file.
    """

    def __init__(
        self, vocab_file: str | None, do_lower_case: bool = True, spm_model_file: str | None = None,
        *, added_tokens: Mapping[str, int] | None = None, **settings: bool | None,
    ):
        self.settings = TextSettings(do_lower_case, **settings)
        as_in_bert = self.settings.as_in_bert
        self._unknown: collections.Counter[str] = collections.Counter()  # by character, and of tokens
        self.sp_model: Any = None
        self.comma_ids: dict[int, list[int]] = {}  # for tokens like "▁2010,", the ids of their parts
        if spm_model_file:
            self.path = cloud.local_copy(spm_model_file, "spm_model_file")
            self.sp_model = model = spm_model.load_model(self.path)
            pieces = model.IdToPiece(list(range(model.GetPieceSize())))
            self.vocab = {piece: i for i, piece in enumerate(pieces)}
            for token in filter(ends_in_digit_comma, () if as_in_bert else self.vocab):
                parts = split_digit_comma(model, token)
                self.comma_ids[self.vocab[token]] = list(map(model.PieceToId, parts))
        elif vocab_file:
            self.path = cloud.local_copy(vocab_file, "vocab_file")
            self.vocab = load_vocab(self.path)
            self.basic_tokenizer = BasicTokenizer(
                do_lower_case, self.settings.strip_accents, self.settings.tokenize_chinese_chars,
                as_in_bert,
            )
            self.wordpiece_tokenizer = WordpieceTokenizer(
                self.vocab, max_input_chars_per_word=100 if as_in_bert else 200
            )
            self._ids_of_word: dict[str, list[int]] = {}
        else:
            raise DataError("no vocabulary: pass --spm_model_file or --vocab_file")
        marks = ["[CLS]", "[SEP]", "[MASK]"]
        if self.is_spm and as_in_bert and "<s>" in self.vocab:
            marks = ["<s>", "</s>", "<mask>"]
        marks += ["<pad>", "<unk>"] if self.is_spm else ["[PAD]", "[UNK]"]
        self.special_tokens = dict(zip(("cls", "sep", "mask", "pad", "unk"), marks, strict=True))
        # Tokens with capitals that are never split, by their lower-case form.
        self.symbols = {token.lower(): token for token in self._symbols()}
        if not self.is_spm:
            self.basic_tokenizer.never_split = tuple(self.symbols.values())
        self.special = AddedTokens({
            token: i for token, i in self.vocab.items() if token in SPECIAL
        } if as_in_bert else {})
        self._file_size, added = len(self.vocab), added_tokens or {}
        self.add_tokens(sorted(added, key=added.get))
        for token, i in added.items():
            if self.vocab[token] != i:
                raise DataError(f"{self.path}: the added token {token!r} has id {i}, it would "
                                f"have to be {self.vocab[token]}")

    def add_tokens(self, tokens: Iterable[str]) -> int:
        """Adds tokens that are matched before all others and returns how many were new."""
        before = len(self.vocab)
        for token in tokens:
            self.vocab.setdefault(token, len(self.vocab))
        ids = itertools.islice(self.vocab.items(), self._file_size, None)
        self.added = AddedTokens(dict(ids), self._spelling)
        self.inv_vocab = {i: token for token, i in self.vocab.items()}
        return len(self.vocab) - before

    def _spelling(self, token: str) -> str:
        keeps_accents = self.settings.keep_accents or not (self.is_spm or self.do_lower_case)
        return preprocess_text(token, True, self.do_lower_case, keeps_accents)

    def _symbols(self) -> list[str]:
        tokens = [token for token in self.vocab if token != token.lower()]
        if self.settings.as_in_bert:
            return []
        if not self.is_spm:
            return [t for t in tokens if t[0] == "[" and t[-1] == "]" and t not in SPECIAL]
        is_needed = self.do_lower_case and len(tokens) > 3  # [CLS], [SEP] and [MASK]
        return spm_model.user_defined(self.sp_model, tokens) if is_needed else []

    @classmethod
    def from_scratch(
        cls, vocab_file: str | None, do_lower_case: bool, spm_model_file: str | None
    ) -> "FullTokenizer":
        """Returns a tokenizer; the original has this name for the constructor, too."""
        return cls(vocab_file, do_lower_case, spm_model_file)

    # --- Text to ids ---

    @property
    def do_lower_case(self) -> bool:
        """Whether texts are lower-cased."""
        return self.settings.do_lower_case

    def preprocess(self, text: str | bytes) -> str:
        """Returns the text that `tokenize` expects: normalized, or only stripped for WordPiece."""
        if not self.is_spm:
            return convert_to_unicode(text).strip()
        settings = self.settings
        return restore_symbols(preprocess_text(
            text, settings.remove_space, settings.do_lower_case, settings.keep_accents
        ), self.symbols)

    def preprocess_character(self, char: str) -> str:
        """Normalizes one character of a text, for SentencePiece."""
        return preprocess_text(char, False, self.do_lower_case, self.settings.keep_accents)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits a text into tokens; for SentencePiece, call `preprocess` first."""
        text, tokens = convert_to_unicode(text), []
        if not self.is_spm or self.settings.as_in_bert:
            return self.convert_ids_to_tokens(self.encode_batch([text], is_preprocessed=True)[0])
        for begin, end, added in self.added.split(text):  # unknown tokens are parts of the text
            part = text[begin:end]
            tokens += encode_pieces(self.sp_model, part) if added is None else [self.inv_vocab[added]]
        return tokens

    def encode_text(self, text: str | bytes) -> list[int]:
        """Returns the ids of a text: preprocesses, tokenizes and looks up."""
        return self.encode_batch([text])[0]

    def encode_batch(
        self, texts: Sequence[str | bytes], is_preprocessed: bool = False
    ) -> list[list[int]]:
        """Returns the ids of each text; faster than `encode_text`.

        Args:
          is_preprocessed: whether the texts are output of `preprocess`, which could change them again.
        """
        def encode(parts: Sequence[str | bytes]) -> list[list[int]]:
            if self.is_spm:
                return self._sentencepiece_ids(parts, is_preprocessed)
            return [self._wordpiece_ids(part) for part in parts]

        if self.added.ids or self.special.ids:
            ids = self.special.encode(
                [convert_to_unicode(text) for text in texts],
                lambda parts: self.added.encode(parts, encode),
            )
        else:
            ids = encode(texts)
        self.note_unknown(texts, ids)
        return ids

    def note_unknown(self, texts: Sequence[str | bytes], all_ids: Sequence[Sequence[int]]) -> None:
        """Counts the unknown tokens among the ids of texts, for `unknown_tokens`."""
        unknown = self.vocab.get(self.special_tokens["unk"])
        self._unknown["tokens"] += sum(map(len, all_ids))
        for text, ids in zip(texts, all_ids, strict=True):
            if count := ids.count(unknown):
                self._unknown["unknown"] += count
                words = [self.preprocess(text)] if self.is_spm else self.basic_tokenizer.tokenize(text)
                composed = unicodedata.normalize("NFC", "".join(words))
                self._unknown.update({*composed} - self._characters)

    def unknown_tokens(self) -> str:
        """Describes the unknown tokens since the last call, if they are more than 1 %; else ""."""
        counts, self._unknown = self._unknown, collections.Counter()
        total, unknown = counts.pop("tokens", 0), counts.pop("unknown", 0)
        if unknown <= MAX_UNKNOWN * total:
            return ""
        named = " ".join(sorted(char for char, _ in counts.most_common(10)))
        return (f"{100 * unknown / total:.1f} % of the tokens are unknown to the vocabulary"
                f"{f' (most often {named})' if named else ''}, so the model cannot distinguish them: use "
                "a model whose vocabulary has them, such as one of pretrain_from_text")

    @functools.cached_property
    def _characters(self) -> set[str]:
        return {" ", *"".join(self.vocab)}

    def _sentencepiece_ids(
        self, texts: Sequence[str | bytes], is_preprocessed: bool
    ) -> list[list[int]]:
        clean = convert_to_unicode if is_preprocessed else self.preprocess
        cleaned = [scrub_surrogates(clean(text)) for text in texts]
        if not ("," in self.vocab or self.settings.as_in_bert):  # unknown tokens may end in one, too
            return [encode_ids(self.sp_model, text) for text in cleaned]
        all_ids = self.sp_model.EncodeAsIds(cleaned, num_threads=1)
        split = self.comma_ids
        for index, ids in enumerate(all_ids if split else ()):
            if not split.keys().isdisjoint(ids):
                all_ids[index] = [new for old in ids for new in split.get(old, (old,))]
        return all_ids

    def encode_flat(self, texts: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated ids of texts, int32, and the number of tokens of each, int64."""
        ids = self.encode_batch(texts)
        sizes = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(sizes.sum())), sizes

    def _wordpiece_ids(self, text: str | bytes) -> list[int]:
        cache, ids = self._ids_of_word, []
        for word in self.basic_tokenizer.tokenize(text):
            word_ids = cache.get(word)
            if word_ids is None:  # another thread may clear the cache at any time
                if len(cache) >= _WORD_CACHE:
                    cache.clear()
                tokens = self.wordpiece_tokenizer.tokenize_word(word)
                word_ids = cache[word] = self.convert_tokens_to_ids(tokens)
            ids += word_ids
        return ids

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of tokens. An unknown token is `<unk>`, or a KeyError with WordPiece."""
        if not self.is_spm:
            return convert_by_vocab(self.vocab, tokens)
        tokens = map(scrub_surrogates, map(printable_text, tokens))
        return [self.added.ids.get(t) or self.sp_model.PieceToId(t) for t in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of ids."""
        return convert_by_vocab(self.inv_vocab, map(int, ids))

    # --- The vocabulary ---

    cls_id, sep_id, mask_id = map(_special_id, ("cls", "sep", "mask"))
    pad_id, unk_id = map(_special_id, ("pad", "unk"))

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of these five."""
        return self.cls_id, self.sep_id, self.mask_id, self.pad_id, self.unk_id

    @property
    def is_spm(self) -> bool:
        """Whether the vocabulary is a SentencePiece model."""
        return self.sp_model is not None

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.vocab)

    def start_pieces(self) -> list[bool]:
        """Returns, for each id, whether its token begins a word (length `vocab_size`)."""
        return [
            token in self.added.ids or is_start_piece(token, self.is_spm)
            for _, token in sorted(self.inv_vocab.items())
        ]

    def starts_word(self, token: str) -> bool:
        """Whether a token is marked as the first one of a word, or was added."""
        is_first = token.startswith(SPIECE_UNDERLINE) if self.is_spm else token[:2] != "##"
        return is_first or token in self.added.ids

    @property
    def sha256(self) -> str:
        """Identity of the tokenizer, see `tokenizer_digest`."""
        return tokenizer_digest(files.sha256(self.path), self.is_spm, self.settings, self.added.ids)


def tokenizer_digest(
    vocabulary_sha256: str, is_spm: bool, settings: TextSettings, added: Iterable[str] = ()
) -> str:
    """Returns a hash of vocabulary and settings, given the SHA-256 of the vocabulary file."""
    kind = "spm" if is_spm else "wordpiece"
    text = f"{kind} {settings} {vocabulary_sha256}"
    text += "".join(f" {token!r}" for token in added)
    return hashlib.sha256(text.encode()).hexdigest()


def check_special_pieces(tokenizer: FullTokenizer) -> None:
    """Raises a DataError that lists the special tokens missing from the vocabulary."""
    special = tokenizer.special_tokens
    if missing := [token for token in special.values() if token not in tokenizer.vocab]:
        raise DataError(f"{tokenizer.path}: the vocabulary has no {', '.join(missing)}; train it with "
                        "these as control symbols")
    if tokenizer.pad_id != 0 and not tokenizer.settings.as_in_bert:
        raise DataError(f"{tokenizer.path}: {special['pad']} has id {tokenizer.pad_id}, it must have id 0")


def check_vocabulary(tokenizer: FullTokenizer, config: Any) -> None:
    """Checks that a vocabulary fits a model with this `AlbertConfig`.

    Raises:
      ConfigError: the vocabulary's size is not `vocab_size`.
      DataError: special tokens are missing.
    """
    check_special_pieces(tokenizer)
    # Tables of BERT are often rounded up.
    may_be_smaller = tokenizer.settings.as_in_bert and tokenizer.vocab_size < config.vocab_size
    if tokenizer.vocab_size != config.vocab_size and not may_be_smaller:
        kind = "spm model" if tokenizer.is_spm else "vocab file"
        raise ConfigError(
            f"{kind} has {tokenizer.vocab_size:,} tokens, config vocab_size is "
            f"{config.vocab_size:,}: {os.path.basename(tokenizer.path)} and the config "
            "must be of the same model"
        )
