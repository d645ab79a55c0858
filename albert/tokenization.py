"""From text to pieces to ids: SentencePiece (English ALBERT) or WordPiece (Chinese).

Nothing here imports TensorFlow. `FullTokenizer` serves both kinds:

    tokenizer = FullTokenizer(vocab_file=None, spm_model_file="30k-clean.model")
    ids = tokenizer.encode_text("Some text.")        # clean, cut into pieces, look up

`tokenize` alone does not clean text for SentencePiece (it never did: callers
are expected to use `preprocess_text` first); `encode_text` does everything.
"""

import hashlib
import itertools
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import ConfigError, DataError
from albert.storage import copies, files
from albert.text import sentencepiece
from albert.text.cleaning import (
    TextSettings,
    convert_to_unicode,
    preprocess_text,
    scrub_surrogates,
)
from albert.text.sentencepiece import (
    SPIECE_UNDERLINE,
    encode_ids,
    encode_pieces,
    ends_in_digit_comma,
    is_start_piece,
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

# A text sees few distinct words; more than this many are looked up again.
_WORD_CACHE = 1 << 18


# --- Functions that callers of the original know ---


def convert_by_vocab(vocab: Mapping[Hashable, Any], items: Iterable[Hashable]) -> list[Any]:
    """Returns `vocab[item]` of every item; an unknown one is a KeyError."""
    return [vocab[item] for item in items]


convert_tokens_to_ids = convert_ids_to_tokens = convert_by_vocab
printable_text = convert_to_unicode


def whitespace_tokenize(text: str) -> list[str]:
    """Returns the parts between runs of white space."""
    return text.split()


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
        if spm_model_file:
            spm_model_file = copies.local_copy(spm_model_file, "spm_model_file")
        elif vocab_file:
            vocab_file = copies.local_copy(vocab_file, "vocab_file")
        self.path = spm_model_file or vocab_file or ""
        self._ids_of_word: dict[str, list[int]] = {}
        if spm_model_file:
            self.sp_model = sentencepiece.load_model(spm_model_file)
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
        settings = self.settings
        return preprocess_text(
            text, settings.remove_space, settings.do_lower_case, settings.keep_accents
        )

    def preprocess_character(self, char: str) -> str:
        """Returns what `preprocess` makes of one character of a text for SentencePiece."""
        return preprocess_text(char, False, self.do_lower_case, self.settings.keep_accents)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Returns the pieces; for SentencePiece `text` must have been preprocessed."""
        if self.sp_model is not None:
            return encode_pieces(self.sp_model, convert_to_unicode(text))
        words = self.basic_tokenizer.tokenize(text)
        return [piece for w in words for piece in self.wordpiece_tokenizer.tokenize_word(w)]

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
        rows, may_have_commas = self._encode(texts, num_threads, is_preprocessed)
        cut = self.comma_ids if may_have_commas else {}
        for index, ids in enumerate(rows if cut else ()):
            if not cut.keys().isdisjoint(ids):
                rows[index] = self._with_commas_cut(ids)
        return rows

    def encode_flat(self, texts: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of raw texts one after the other, int32, and the count of each, int64."""
        rows, may_have_commas = self._encode(texts)
        ids, sizes = _flat(rows)
        if may_have_commas and self.comma_ids:
            is_cut = np.zeros(self.vocab_size, bool)
            is_cut[list(self.comma_ids)] = True
            places = np.flatnonzero(is_cut.take(ids))
            if places.size:
                for index in np.unique(np.searchsorted(np.cumsum(sizes), places, "right")):
                    rows[index] = self._with_commas_cut(rows[index])
                ids, sizes = _flat(rows)
        return ids, sizes

    def _encode(
        self, texts: Sequence[str | bytes], num_threads: int = 1, is_preprocessed: bool = False
    ) -> tuple[list[list[int]], bool]:
        """Returns (ids of texts, whether `comma_ids` that are among them are yet to be cut)."""
        if self.sp_model is None:
            return [self._wordpiece_ids(text) for text in texts], False
        clean = convert_to_unicode if is_preprocessed else self.preprocess
        cleaned = [scrub_surrogates(clean(text)) for text in texts]
        if "," not in self.vocab:  # then unknown pieces may end in a comma too
            return [encode_ids(self.sp_model, text) for text in cleaned], False
        return self.sp_model.EncodeAsIds(cleaned, num_threads=num_threads), True

    def _with_commas_cut(self, ids: Iterable[int]) -> list[int]:
        return [new for old in ids for new in self.comma_ids.get(old, (old,))]

    def _wordpiece_ids(self, text: str | bytes) -> list[int]:
        known, ids = self._ids_of_word, []
        for word in self.basic_tokenizer.tokenize(text):
            found = known.get(word)
            if found is None:  # another thread may clear the cache at any time
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
        """Id of [CLS]; DataError when the vocabulary lacks it, as for the next four."""
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

    @property
    def unk_id(self) -> int:
        """Id of <unk> (SentencePiece) or [UNK] (WordPiece)."""
        return self._special("<unk>" if self.is_spm else "[UNK]")

    def _special(self, piece: str) -> int:
        if piece not in self.vocab:
            raise DataError(f"{self.path}: the vocabulary has no piece {piece}")
        return self.vocab[piece]

    def start_pieces(self) -> list[bool]:
        """Returns, for every id, whether the piece begins a word (length `vocab_size`)."""
        return [is_start_piece(self.inv_vocab[i], self.is_spm) for i in range(self.vocab_size)]

    @property
    def sha256(self) -> str:
        """Identity of the tokenizer, see `identity`."""
        return identity(files.sha256(self.path), self.is_spm, self.settings)


def identity(vocabulary_sha256: str, is_spm: bool, settings: TextSettings) -> str:
    """Returns what `FullTokenizer.sha256` is of a file of this SHA-256, which need not be opened."""
    kind = "spm" if is_spm else "wordpiece"
    case = "lower" if settings.do_lower_case else "cased"
    text = f"{kind} {case} {vocabulary_sha256}"
    # Only what is not the rule: records of before these settings keep their names.
    text += " keep_accents" * settings.keep_accents
    text += " keep_space" * (not settings.remove_space)
    return hashlib.sha256(text.encode()).hexdigest()


def _flat(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(sizes.sum())), sizes


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
