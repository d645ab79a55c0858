"""`AlbertTokenizer` turns texts into a model's inputs. No TensorFlow.

Legend: B texts or pairs, L sequence.
"""

import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert import tokenization
from albert.errors import DataError
from albert.formats import model_hub, pretrained, tokenizer_files
from albert.formats.tokenizer_files import Vocabulary
from albert.records import windows
from albert.storage import cloud, files, shipped
from albert.text import encodings
from albert.text.added_tokens import AddedTokens, Span
from albert.text.encodings import Encoding
from albert.text.offsets import encode_with_offsets, with_marks, without_space
from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

MASK = "[MASK]"


class AlbertTokenizer:
    """Turns texts into a model's inputs, with a SentencePiece or WordPiece vocabulary.

    `[MASK]` in a text is the mask token. Other special tokens in a text are plain text, so that
    user input cannot end a segment; except with the tokenizer of a BERT, as in transformers.

    Example:
      >>> tokenizer = albert.AlbertTokenizer.from_pretrained("small_en")
      >>> tokenizer.tokenize("The boys were playing.")
      ['the', 'boys', 'were', 'playing', '.']
      >>> batch = tokenizer(["One text.", "Another, longer one."], padding=True, return_tensors="np")
      >>> batch["input_ids"]
      array([[   2,  581, 2345,   18,    3,    0,    0],
             [   2,  730,   16, 1488,  581,   18,    3]], dtype=int32)
      >>> tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True)
      'one text .'
    """

    padding_side = "right"  # or "left"; of calls that don't name it
    _has_warned = False  # in this process, of the truncation that no argument asks for

    def __init__(self, tokenizer: FullTokenizer, max_length: int = 512):
        tokenization.check_special_pieces(tokenizer)
        self.tokenizer = tokenizer
        self._mask = AddedTokens({MASK: tokenizer.mask_id})
        self.model_max_length = max_length

    @classmethod
    @cloud.addresses_in_errors()
    def from_pretrained(
        cls, path: str | os.PathLike[str], do_lower_case: bool | None = None,
        keep_accents: bool | None = None, remove_space: bool | None = None,
        revision: str | None = None,
    ) -> "AlbertTokenizer":
        """Loads the tokenizer of a model, or one from a vocabulary file.

        Args:
          path: a model, as in `albert.from_pretrained`; a directory with a tokenizer alone; a
            SentencePiece `*.model` or a WordPiece `vocab.txt`.
          do_lower_case: whether to lower-case texts. The defaults of this and of the next two are
            the settings that were saved with the model.
          keep_accents: whether to keep accents; only with SentencePiece.
          remove_space: whether to collapse white space; only with SentencePiece.
          revision: as in `albert.from_pretrained`.

        Raises:
          UserError: there is no vocabulary, it has an unsupported setting, or was trained with
            another one.
        """
        path = model_hub.with_revision(os.fspath(path), revision)
        path = model_hub.local_path(shipped.path_of(path), with_weights=False)
        max_length, path = 512, cloud.local_copy(path)
        if os.path.isfile(path):
            names = (path, None) if path.endswith(".model") else (None, path)
            vocabulary = Vocabulary().override(*names)
        elif pretrained.layout_of(path) is None and any(  # a tokenizer without weights
            os.path.isfile(os.path.join(path, name)) for name in tokenizer_files.NAMES
        ):
            vocabulary = tokenizer_files.find(path)
        else:
            source = pretrained.open_path(path)
            vocabulary, max_length = source.vocabulary, source.config.max_position_embeddings
        if not vocabulary:
            raise DataError(f"{path} has no vocabulary: one *.model or one vocab*.txt file")
        settings = dict(do_lower_case=do_lower_case, keep_accents=keep_accents, remove_space=remove_space)
        tokenizer = vocabulary.override(None, None, settings).open()
        return cls(tokenizer, min(max_length, vocabulary.max_length or max_length))

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Saves the vocabulary and its settings to a directory, which may hold a model."""
        with cloud.output(os.fspath(directory)) as local:
            os.makedirs(local, exist_ok=True)
            tokenizer_files.write(self.tokenizer, local, self.model_max_length)

    # --- The vocabulary ---

    cls_token_id = property(lambda self: self.tokenizer.cls_id)
    sep_token_id = property(lambda self: self.tokenizer.sep_id)
    mask_token_id = property(lambda self: self.tokenizer.mask_id)
    pad_token_id = property(lambda self: self.tokenizer.pad_id)
    unk_token_id = property(lambda self: self.tokenizer.unk_id)
    cls_token = property(lambda self: self.tokenizer.special_tokens["cls"])
    sep_token = property(lambda self: self.tokenizer.special_tokens["sep"])
    mask_token = property(lambda self: self.tokenizer.special_tokens["mask"])
    pad_token = property(lambda self: self.tokenizer.special_tokens["pad"])
    unk_token = property(lambda self: self.tokenizer.special_tokens["unk"])
    vocab_size = property(lambda self: len(self) - len(self.tokenizer.added.ids))

    def __len__(self) -> int:
        return self.tokenizer.vocab_size

    def add_tokens(self, new_tokens: str | Sequence[str]) -> int:
        """Adds tokens to the end of the vocabulary and returns how many were new.

        They are matched before all others and never split; case is ignored if texts are
        lower-cased. A new model's `vocab_size` is `len(tokenizer)`; a trained one gets another
        vocabulary by `scripts/extend_vocabulary.py`.

        Raises:
          DataError: a token is not a string, or only white space.
        """
        tokens = [new_tokens] if isinstance(new_tokens, str) else list(new_tokens)
        for token in tokens:
            if not isinstance(token, str) or not token.strip():
                raise DataError(f"not a token: {token!r}")
        return self.tokenizer.add_tokens(tokens)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens by their names in transformers."""
        return {f"{name}_token": token for name, token in self.tokenizer.special_tokens.items()}

    def get_vocab(self) -> dict[str, int]:
        """Returns {token: id}."""
        return {token: i for i, token in enumerate(self.convert_ids_to_tokens(range(len(self))))}

    # --- Tokens and ids ---

    def tokenize(self, text: str) -> list[str]:
        """Splits a text into tokens."""
        return self.convert_ids_to_tokens(self._ids([text])[0])

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Returns the id of a token, or those of several."""
        if isinstance(tokens, str):
            return self.tokenizer.convert_tokens_to_ids([tokens])[0]
        return self.tokenizer.convert_tokens_to_ids(tokens)

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        """Returns the token of an id, or those of several."""
        if isinstance(ids, int) or getattr(ids, "ndim", None) == 0:
            return self.tokenizer.convert_ids_to_tokens([ids])[0]
        return self.tokenizer.convert_ids_to_tokens(ids)

    def encode(
        self, text: str, text_pair: str | None = None, add_special_tokens: bool = True
    ) -> list[int]:
        """Returns the ids of a text or a pair of texts."""
        ids = self._ids([text, text_pair] if text_pair else [text])
        return self.build_inputs_with_special_tokens(*ids) if add_special_tokens else _joined(ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of ids, without the case and accents that tokenization removed."""
        special = self.pad_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id
        skipped = special if skip_special_tokens else ()
        tokens = self.convert_ids_to_tokens(i for i in map(int, ids) if i not in skipped)
        if self.tokenizer.is_spm:
            return "".join(tokens).replace(tokenization.SPIECE_UNDERLINE, " ").strip()
        return " ".join(tokens).replace(" ##", "")

    def batch_decode(
        self, sequences: Iterable[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        """Returns the text of each sequence of ids."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def build_inputs_with_special_tokens(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None
    ) -> list[int]:
        """Returns the ids of `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, given those of a and b."""
        first = [self.tokenizer.cls_id, *token_ids_0, self.tokenizer.sep_id]
        return first if token_ids_1 is None else [*first, *token_ids_1, self.tokenizer.sep_id]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None
    ) -> list[int]:
        """Returns the segment, 0 or 1, of each token of `build_inputs_with_special_tokens`."""
        first = [0] * len(self.build_inputs_with_special_tokens(token_ids_0))
        return first if token_ids_1 is None else [*first, *[1] * (len(token_ids_1) + 1)]

    def get_special_tokens_mask(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """Returns 1 for each special token, else 0, of `build_inputs_with_special_tokens`.

        With `already_has_special_tokens`, `token_ids_0` is its result.
        """
        if already_has_special_tokens:
            special = set(self.tokenizer.special_ids)
            return [int(i in special) for i in token_ids_0]
        first = [1, *[0] * len(token_ids_0), 1]
        return first if token_ids_1 is None else [*first, *[0] * len(token_ids_1), 1]

    def save_vocabulary(
        self, save_directory: str | os.PathLike[str], filename_prefix: str | None = None
    ) -> tuple[str]:
        """Copies the vocabulary's file, without settings, to a directory; returns its path."""
        name = "spiece.model" if self.tokenizer.is_spm else "vocab.txt"
        path = os.path.join(save_directory, f"{filename_prefix}-{name}" if filename_prefix else name)
        files.publish_copy(self.tokenizer.path, path)
        return (path,)

    # --- Batches ---

    def __call__(
        self, text: str | Sequence[str] | Sequence[Sequence[str]],
        text_pair: str | Sequence[str] | Sequence[Sequence[str]] | None = None, *,
        max_length: int | None = None, padding: bool | str = False,
        truncation: bool | str | None = None, stride: int = 0, is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None, padding_side: str | None = None,
        return_tensors: str | None = None, return_offsets_mapping: bool = False,
        return_overflowing_tokens: bool = False, return_special_tokens_mask: bool = False,
    ) -> Encoding:
        """Encodes texts as a model's inputs: `input_ids`, `input_mask` and `segment_ids`.

        Args:
          text: a text, a list of texts, or a list of pairs.
          text_pair: the second text of each.
          max_length: maximum sequence length in tokens; by default the model's.
          padding: True or "longest" pads to the longest of these texts, "max_length" to that length.
          truncation: True or "longest_first" truncates the longer text of a pair, "only_first" and
            "only_second" that text; with False, long texts are an error. By default as with True; if
            max_length isn't given either, the first truncation in a process logs a warning.
          stride: number of tokens that two windows of a text share, with return_overflowing_tokens.
          is_split_into_words: whether each text is a list of words. No token belongs to two words,
            `word_ids` are the words' numbers, and offsets count from the start of the word.
          pad_to_multiple_of: the padded length is a multiple of it.
          padding_side: "right" or "left"; by default the tokenizer's attribute of this name.
          return_tensors: "np", "tf" or "jax" for int32 arrays [B, L]; by default, a text gives
            lists, several texts give lists of lists.
          return_offsets_mapping: whether to add `offset_mapping` [B, L, 2], the first character of
            each token in its text and one past its last; (0, 0) for special tokens.
          return_overflowing_tokens: whether a text that is too long gives several sequences (of a
            pair, the text that `truncation` names). `overflow_to_sample_mapping` [B] has the number
            of the text of each sequence.
          return_special_tokens_mask: whether to add `special_tokens_mask` [B, L]: 1 for special
            tokens and padding.

        Raises:
          DataError: texts are not strings or too long, second texts are missing, an option is
            unknown, or arrays need padding.
        """
        padding = encodings.option("padding", encodings.PADDING, padding)
        cuts = encodings.option("truncation", encodings.TRUNCATION, truncation)
        convert = encodings.option("return_tensors", encodings.TENSORS, return_tensors)
        limit = self.model_max_length if max_length is None else max_length
        columns, is_single = encodings.columns(text, text_pair, is_split_into_words)
        tokens = [self._tokens(column) for column in columns]
        ids = _each(tokens, _joined)
        parts = windows.cut(ids, limit, cuts, stride if return_overflowing_tokens else None)
        longest = max((sum(map(len, one)) + len(one) + 1 for one in zip(*ids, strict=True)), default=0)
        is_asked = truncation is not None or max_length is not None or return_overflowing_tokens
        if longest > limit and not (is_asked or self._has_warned):
            AlbertTokenizer._has_warned = True
            log.warning("truncated a text of %s tokens to the model's maximum, %d; pass truncation=True if "
                        "that is what you want, which logs nothing", f"{longest:,}", limit)
        laid_out = functools.partial(windows.laid_out, parts)
        rows = laid_out(ids, self.sep_token_id, self.cls_token_id)
        frame = encodings.Frame(
            [len(row) for row in rows], limit if padding == "max_length" else 0,
            pad_to_multiple_of or 1, bool(padding), self._pads_left(padding_side),
        )
        seconds = [len(first) + 2 for _, (first, *_) in parts]
        arrays = frame.inputs(rows, seconds, self.pad_token_id)
        if return_offsets_mapping:
            spans = _each(columns, lambda strings: _joined(map(self._spans, strings)))
            arrays["offset_mapping"] = frame.filled(laid_out(spans, (0, 0)), (0, 0))
        if return_special_tokens_mask:
            zeros = _each(ids, lambda one: [0] * len(one))
            arrays["special_tokens_mask"] = frame.filled(laid_out(zeros, 1), 1)
        values = frame.converted(arrays, convert)
        if return_overflowing_tokens:
            samples = [sample for sample, _ in parts]
            values["overflow_to_sample_mapping"] = convert(np.int32(samples)) if convert else samples
        elif is_single and convert is None:
            values = {name: array[0] for name, array in values.items()}
        encoding = Encoding(values)
        encoding._words = functools.cache(lambda: frame.listed(laid_out(_each(
            tokens, _numbered if is_split_into_words else lambda one: self._word_numbers(one[0])
        ), None)))
        encoding._sequences = functools.cache(lambda: frame.listed(laid_out(
            [[[number] * len(one) for one in column] for number, column in enumerate(ids)], None
        )))
        return encoding

    def _pads_left(self, padding_side: str | None) -> bool:
        known = {"left": True, "right": False}
        return encodings.option("padding_side", known, padding_side or self.padding_side)

    def pad(
        self, encoded_inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        padding: bool | str = True, max_length: int | None = None,
        return_tensors: str | None = None, pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
    ) -> Encoding:
        """Pads sequences to the same length, and keeps what else the encodings have.

        Args:
          encoded_inputs: a list of encodings, or an encoding of several texts, which may be padded
            already. `labels` of tokens are padded with -100.
          padding, max_length, return_tensors, pad_to_multiple_of, padding_side: as in a call.

        Raises:
          DataError: a sequence is longer than `max_length`, an unknown option, or the encodings
            have different keys.
        """
        convert = encodings.option("return_tensors", encodings.TENSORS, return_tensors)
        batch = encodings.batch_of(encoded_inputs)
        lengths = list(map(len, batch["input_ids"]))
        is_fixed = encodings.option("padding", encodings.PADDING, padding) == "max_length"
        width = (max_length or self.model_max_length) if is_fixed else max(lengths, default=0)
        if max(lengths, default=0) > width:
            raise DataError(f"a sequence has {max(lengths)} tokens, {width} is the maximum")
        frame = encodings.Frame(
            lengths, width, pad_to_multiple_of or 1, True, self._pads_left(padding_side)
        )
        return Encoding(frame.converted(frame.repadded(batch, self.pad_token_id), convert))

    def _word_numbers(self, ids: Sequence[int]) -> list[int]:
        """Returns the number of each token's word in a text."""
        words, word = [], -1
        for i, token in zip(ids, self.convert_ids_to_tokens(ids), strict=True):
            word += self.tokenizer.starts_word(token) or i == self.mask_token_id or word < 0
            words.append(word)
        return words

    def _tokens(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Returns the ids of each string of each text."""
        ids = iter(self._ids(_joined(texts)))
        return [[next(ids) for _ in strings] for strings in texts]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of texts, in which [MASK] is the mask token."""
        return self._mask.encode(texts, self.tokenizer.encode_batch)

    def _spans(self, text: str) -> list[Span]:
        """Returns the characters of each token of a text."""
        encode = functools.partial(encode_with_offsets, self.tokenizer)
        _, spans = self._mask.encode_with_offsets(text, encode)
        return [without_space(text, span) for span in with_marks(text, spans)]


def _joined(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def _numbered(lists: Sequence[Sequence[Any]]) -> list[int]:
    """Returns the number of the list for each item of it."""
    return [number for number, one in enumerate(lists) for _ in one]


def _each(columns: Sequence[Sequence[Any]], function: Callable[[Any], Any]) -> list[list[Any]]:
    """Returns the function's value for each text of each column."""
    return [[function(text) for text in column] for column in columns]


AlbertTokenizerFast = AlbertTokenizer  # transformers has two
