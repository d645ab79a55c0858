"""`AlbertTokenizer`: texts to the arrays that a model reads, as one call. No TensorFlow.

Legend: B texts, L places.
"""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert import tokenization
from albert.errors import DataError
from albert.formats import tokenizer_files
from albert.formats.tokenizer_files import Vocabulary
from albert.records import features
from albert.storage import copies, files, shipped, write_through
from albert.tokenization import FullTokenizer

Encoded = dict[str, Any]  # arrays, or lists where rows are not padded
MASK = "[MASK]"
Span = tuple[int, int]  # of a piece in the text it comes from: first character, one past the last


class AlbertTokenizer:
    """Pieces, ids and packed rows, of a SentencePiece or WordPiece vocabulary.

    `[MASK]` written in a text is the mask; every other special piece in a text
    is plain text, so that nobody's words end a sentence of the model.
    """

    def __init__(self, tokenizer: FullTokenizer, max_length: int = 512):
        tokenization.check_special_pieces(tokenizer)
        self.tokenizer = tokenizer
        self.model_max_length = max_length

    @classmethod
    @copies.in_errors()
    def from_pretrained(cls, path: str, do_lower_case: bool | None = None) -> "AlbertTokenizer":
        """Returns the tokenizer of a model's directory, of a *.model file or of a vocab.txt.

        A directory may be one of a tokenizer alone, as `save_pretrained` writes it.
        `do_lower_case` is by default what the directory says, else True.

        Raises:
          DataError: there is no vocabulary, or it has a setting that cannot be honoured.
        """
        length, path = 512, copies.local_model(shipped.path_of(path), "path")
        if not os.path.isdir(path):
            vocabulary = Vocabulary(path) if path.endswith(".model") else Vocabulary(None, path)
        elif _is_alone(path):
            vocabulary = tokenizer_files.find(path)
        else:
            from albert.formats import pretrained

            source = pretrained.open_path(path)
            vocabulary, length = source.vocabulary, source.config.max_position_embeddings
        if not vocabulary:
            raise DataError(f"{path} has no vocabulary: one *.model or one vocab*.txt file")
        length = min(length, vocabulary.max_length or length)
        return cls(vocabulary.override(None, None, do_lower_case).open(), length)

    def save_vocabulary(self, directory: str, filename_prefix: str | None = None) -> tuple[str]:
        """Copies the vocabulary file into a directory and returns its path."""
        name = os.path.basename(self.tokenizer.path)
        name = f"{filename_prefix}-{name}" if filename_prefix else name
        with write_through.written(directory) as local:
            files.publish_copy(self.tokenizer.path, os.path.join(local, name))
        return (os.path.join(directory, name),)

    def save_pretrained(self, directory: str) -> None:
        """Writes the vocabulary and its settings, beside a saved model or alone."""
        with write_through.written(directory) as local:
            os.makedirs(local, exist_ok=True)
            tokenizer_files.write(self.tokenizer, local, self.model_max_length)

    # --- Pieces and ids ---

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def cls_token_id(self) -> int:
        return self.tokenizer.cls_id

    @property
    def sep_token_id(self) -> int:
        return self.tokenizer.sep_id

    @property
    def mask_token_id(self) -> int:
        return self.tokenizer.mask_id

    @property
    def pad_token_id(self) -> int:
        return self.tokenizer.pad_id

    @property
    def unk_token_id(self) -> int:
        return self.tokenizer.unk_id

    @property
    def cls_token(self) -> str:
        return self._piece(self.cls_token_id)

    @property
    def sep_token(self) -> str:
        return self._piece(self.sep_token_id)

    @property
    def mask_token(self) -> str:
        return self._piece(self.mask_token_id)

    @property
    def pad_token(self) -> str:
        return self._piece(self.pad_token_id)

    @property
    def unk_token(self) -> str:
        return self._piece(self.unk_token_id)

    @property
    def all_special_ids(self) -> list[int]:
        return sorted({*self._special_ids(), self.unk_token_id})

    def get_vocab(self) -> dict[str, int]:
        """Returns {piece: id}."""
        return {piece: i for i, piece in enumerate(self.convert_ids_to_tokens(range(len(self))))}

    def _piece(self, id_: int) -> str:
        return self.convert_ids_to_tokens([id_])[0]

    def tokenize(self, text: str) -> list[str]:
        """Returns the pieces of a raw text."""
        return self.convert_ids_to_tokens(self._ids(text))

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Returns the ids of pieces, or the id of one piece."""
        if isinstance(tokens, str):
            return self.tokenizer.convert_tokens_to_ids([tokens])[0]
        return self.tokenizer.convert_tokens_to_ids(tokens)

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        """Returns the pieces of ids, or the piece of one id."""
        if isinstance(ids, int | np.integer):
            return self.tokenizer.convert_ids_to_tokens([int(ids)])[0]
        return self.tokenizer.convert_ids_to_tokens(map(int, ids))

    def encode(self, text: str, text_pair: str | None = None) -> list[int]:
        """Returns the ids of one row, with its special pieces and without padding."""
        second = None if text_pair is None else self._ids(text_pair)
        return self.build_inputs_with_special_tokens(self._ids(text), second)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of ids, as far as the vocabulary keeps it."""
        left_out = self._special_ids() if skip_special_tokens else ()
        tokens = self.convert_ids_to_tokens(i for i in map(int, ids) if i not in left_out)
        if self.tokenizer.is_spm:
            return "".join(tokens).replace(tokenization.SPIECE_UNDERLINE, " ").strip()
        return " ".join(tokens).replace(" ##", "")

    def batch_decode(
        self, sequences: Iterable[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        """Returns the text of each row of ids."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def _special_ids(self) -> set[int]:
        t = self.tokenizer
        return {t.pad_id, t.cls_id, t.sep_id, t.mask_id}

    # --- Rows ---

    def build_inputs_with_special_tokens(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None
    ) -> list[int]:
        """Returns [CLS] a [SEP], or [CLS] a [SEP] b [SEP]."""
        t = self.tokenizer
        first = [t.cls_id, *token_ids_0, t.sep_id]
        return first if token_ids_1 is None else [*first, *token_ids_1, t.sep_id]

    def get_special_tokens_mask(
        self,
        token_ids_0: Sequence[int],
        token_ids_1: Sequence[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """Returns 1 for each special piece of the row and 0 for each of the text."""
        if already_has_special_tokens:
            special = self._special_ids()
            return [int(i in special) for i in token_ids_0]
        first = [1, *[0] * len(token_ids_0), 1]
        return first if token_ids_1 is None else [*first, *[0] * len(token_ids_1), 1]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None
    ) -> list[int]:
        """Returns 0 for [CLS], a and its [SEP], 1 for b and its [SEP]."""
        second = 0 if token_ids_1 is None else len(token_ids_1) + 1
        return [0] * (len(token_ids_0) + 2) + [1] * second

    def __call__(
        self,
        text: str | Sequence[str] | Sequence[Sequence[str]],
        text_pair: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        padding: bool | str = "longest",
        truncation: bool | str = True,
        return_tensors: str | None = None,
        return_offsets_mapping: bool = False,
    ) -> Encoded:
        """Returns `input_ids`, `input_mask` and `segment_ids`, int32 [B, L], for a model's call.

        Args:
          text: one text (B = 1) or several; or pairs of texts.
          text_pair: the second text of each, or None.
          max_length: most places; by default the model's.
          padding: "longest" or True: to the longest of these texts; "max_length"; or False: not
            at all, and the values are lists.
          truncation: True or "longest_first": cut what is too long, from the end of the longer
            text; "only_first", "only_second": from that text; False: refuse it.
          return_tensors: "np" (the default), "tf" or "jax".
          return_offsets_mapping: adds `offset_mapping` [B, L, 2], each piece's first character
            and one past its last in the text it comes from; (0, 0) for special pieces.

        Raises:
          DataError: not strings, no pair for a text, too long without truncation, or an option
            that is none of these.
        """
        padding = _option("padding", _PADDING, padding)
        truncation = _option("truncation", _TRUNCATION, truncation)
        convert = _option("return_tensors", _TENSORS, return_tensors)
        limit = self.model_max_length if max_length is None else max_length
        encode = self._spans if return_offsets_mapping else self._many_ids
        texts = [encode(some) for some in _pairs(text, text_pair)]
        self._cut(texts, limit, truncation)
        spans = None
        if return_offsets_mapping:  # of pieces that are (id, span)
            spans = [[[span for _, span in row] for row in some] for some in texts]
            texts = [[[id_ for id_, _ in row] for row in some] for some in texts]
        if not padding:
            return self._ragged(texts, spans)
        lengths = [_lengths(some) for some in texts]
        used = sum(lengths) + len(texts) + 1
        width = limit if padding == "max_length" else int(used.max(initial=0))
        places, rows = np.arange(width, dtype=np.int32), np.arange(len(used))
        ids = np.full((len(used), width), self.pad_token_id, np.int32)
        offsets = np.zeros((len(used), width, 2), np.int32) if spans else None
        start = np.ones(len(used), np.int32)  # of each row's next text
        ids[:, :1] = self.cls_token_id
        for number, (some, length) in enumerate(zip(texts, lengths, strict=True)):
            stop = start + length
            inside = (start[:, None] <= places) & (places < stop[:, None])
            chained = itertools.chain.from_iterable(some)
            ids[inside] = np.fromiter(chained, np.int32, int(length.sum()))
            ids[rows, stop] = self.sep_token_id
            if spans:
                flat = list(itertools.chain.from_iterable(spans[number]))
                offsets[inside] = np.array(flat, np.int32).reshape(-1, 2)
            start = stop + 1
        mask = places < used[:, None]
        is_second = (places >= (lengths[0] + 2)[:, None]) & mask
        made = {"input_ids": ids, "input_mask": mask.astype(np.int32),
                "segment_ids": is_second.astype(np.int32)}
        if spans:
            made["offset_mapping"] = offsets
        return {name: convert(array) for name, array in made.items()}

    def _ragged(self, texts, spans) -> dict[str, list]:
        """Returns the values of rows that are not padded."""
        rows = list(zip(*texts, strict=True))
        ids = [self.build_inputs_with_special_tokens(*row) for row in rows]
        found: dict[str, list] = {
            "input_ids": ids,
            "input_mask": [[1] * len(row) for row in ids],
            "segment_ids": [self.create_token_type_ids_from_sequences(*row) for row in rows],
        }
        if spans:
            found["offset_mapping"] = [
                [(0, 0), *itertools.chain.from_iterable([*row, (0, 0)] for row in of_both)]
                for of_both in zip(*spans, strict=True)
            ]
        return found

    def _cut(self, texts: Sequence[list], limit: int, truncation: str) -> None:
        """Cuts the pieces of texts, or of pairs, whose rows have more than `limit` places."""
        used = sum(map(_lengths, texts)) + len(texts) + 1
        for i in np.flatnonzero(used > limit).tolist():
            row = [some[i] for some in texts]
            for some, kept in zip(texts, self._fitted(row, limit, truncation, i), strict=True):
                some[i] = kept

    def _fitted(self, row: Sequence[list], limit: int, truncation: str, index: int):
        """Returns the pieces of one text or two that fill a row of `limit` places."""
        special = len(row) + 1
        length = sum(map(len, row)) + special
        if not truncation:
            raise DataError(f"text {index} has {length} places, {limit} are the most")
        if limit < special:
            raise DataError(f"max_length {limit} leaves no place for a text")
        if len(row) == 1:
            return (row[0][: limit - special],)
        first, second = row
        if truncation == "longest_first":
            return features.truncate_pair(first, second, limit - special)
        cut, whole = (first, second) if truncation == "only_first" else (second, first)
        left = limit - special - len(whole)
        if left < 0:
            raise DataError(
                f"text {index}: truncation={truncation!r} leaves {length - len(cut)} places, "
                f"{limit} are the most"
            )
        return (first[:left], second) if truncation == "only_first" else (first, second[:left])

    def _spans(self, texts: Sequence[str]) -> list[list[tuple[int, Span]]]:
        """Returns the ids of raw texts, [MASK] among them, each with where its piece stands."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> list[tuple[int, Span]]:
        found: list[tuple[int, Span]] = []
        start = 0
        for i, part in enumerate(text.split(MASK)):
            if i:
                found.append((self.tokenizer.mask_id, (start - len(MASK), start)))
            for id_, (a, b) in zip(*encode_with_offsets(self.tokenizer, part), strict=True):
                found.append((id_, (a + start, b + start)))
            start += len(part) + len(MASK)
        return found

    def _many_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of raw texts, [MASK] among them."""
        if not any(MASK in text for text in texts):
            return self.tokenizer.encode_batch(texts)
        parts = [text.split(MASK) for text in texts]
        ids = iter(self.tokenizer.encode_batch(list(itertools.chain.from_iterable(parts))))
        found = []
        for of_text in parts:
            row = list(next(ids))
            for _ in of_text[1:]:
                row += [self.tokenizer.mask_id, *next(ids)]
            found.append(row)
        return found

    def _ids(self, text: str) -> list[int]:
        return self._many_ids([text])[0]


def _is_alone(directory: str) -> bool:
    """Whether a directory has a tokenizer's settings and no model."""
    beside = ("albert_config.json", "config.json", "variables")
    return os.path.isfile(os.path.join(directory, tokenizer_files.SETTINGS_FILE)) and not any(
        os.path.exists(os.path.join(directory, name)) for name in beside
    )


def _lengths(rows: Sequence[list]) -> np.ndarray:
    return np.fromiter(map(len, rows), np.int32, len(rows))


def _option(name: str, known: Mapping[Any, Any], value: Any) -> Any:
    """Returns what the value of an option means."""
    if not isinstance(value, bool | str | None) or value not in known:
        raise DataError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return known[value]


def _pairs(text: Any, text_pair: Any) -> list[list[str]]:
    """Returns the texts; or the first ones and the second ones."""
    if text_pair is None and not isinstance(text, str):
        text = list(text)
        if text and all(isinstance(one, list | tuple) and len(one) == 2 for one in text):
            text, text_pair = map(list, zip(*text, strict=True))
    firsts = _texts(text, "text")
    if text_pair is None:
        return [firsts]
    seconds = _texts(text_pair, "text_pair")
    if len(seconds) != len(firsts):
        raise DataError(f"{len(firsts)} texts and {len(seconds)} second texts")
    return [firsts, seconds]


def _as_tf(array: np.ndarray) -> Any:
    import tensorflow as tf

    return tf.constant(array)


def _as_jax(array: np.ndarray) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(array)


# What options mean, by their value.
_PADDING = {True: "longest", "longest": "longest", "max_length": "max_length", False: "",
            "do_not_pad": ""}
_TRUNCATION = {True: "longest_first", "longest_first": "longest_first", "only_first": "only_first",
               "only_second": "only_second", False: "", "do_not_truncate": ""}
_TENSORS = {None: np.asarray, "np": np.asarray, "tf": _as_tf, "jax": _as_jax}


def _texts(text: str | Sequence[str], name: str) -> list[str]:
    texts = [text] if isinstance(text, str) else list(text)
    for i, one in enumerate(texts):
        if not isinstance(one, str):
            raise DataError(f"{name} {i} is not a string but {type(one).__name__}: {one!r:.60}")
    return texts


# --- Where pieces stand ---


def encode_with_offsets(tokenizer: FullTokenizer, text: str) -> tuple[list[int], list[Span]]:
    """Returns the ids of `tokenizer.encode_text(text)` and each piece's span in `text`."""
    ids = tokenizer.encode_text(text)
    if tokenizer.is_spm:
        return ids, _spm_spans(tokenizer, text, ids)
    return ids, _wordpiece_spans(tokenizer, text)


def _spm_spans(tokenizer: FullTokenizer, text: str, ids: list[int]) -> list[Span]:
    from sentencepiece import sentencepiece_pb2

    clean = tokenization.scrub_surrogates(tokenizer.preprocess(text))
    origins = _origins(text, tokenizer, len(clean))
    proto = sentencepiece_pb2.SentencePieceText.FromString(
        tokenizer.sp_model.encode(clean, out_type="serialized_proto")
    )
    # The processor counts bytes.
    places = [i for i, char in enumerate(clean) for _ in char.encode("utf-8")] + [len(clean)]
    spans: list[Span] = []
    for piece in proto.pieces:
        begin, end = places[piece.begin], places[piece.end]
        if tokenization.ends_in_digit_comma(piece.piece):
            spans += _cut_spans(tokenizer, piece.piece, begin, end, clean)
        else:
            spans.append((begin, end))
    assert len(spans) == len(ids), (text, len(spans), len(ids))
    return [_to_original(span, clean, origins) for span in spans]


def _cut_spans(tokenizer, piece: str, begin: int, end: int, clean: str) -> list[Span]:
    """Returns the spans of the pieces of a number with its comma, which is cut again."""
    parts = tokenization.split_digit_comma(tokenizer.sp_model, piece)
    start = begin + (clean[begin] == " ")
    spans: list[Span] = []
    for part in parts:
        stop = min(start + len(part.lstrip(tokenization.SPIECE_UNDERLINE)), end)
        spans.append((start, stop))
        start = stop
    return spans


def _to_original(span: Span, clean: str, origins: list[int]) -> Span:
    """Returns the span in the original text, without the white space before a word."""
    begin, end = span
    while begin < end and clean[begin] == " ":
        begin += 1
    if begin >= end:
        place = origins[min(begin, len(origins) - 1)] if origins else 0
        return place, place
    return origins[begin], origins[end - 1] + 1


def _origins(text: str, tokenizer: FullTokenizer, length: int) -> list[int]:
    """Returns, for each character of the cleaned text, the index of the one it comes from.

    What a character becomes hardly depends on its neighbours; where it does
    (Greek's final sigma), its length stays the same.
    """
    origins: list[int] = []
    gap = False
    for i, char in enumerate(text):
        if char.isspace() and tokenizer.settings.remove_space:
            gap = bool(origins)
            continue
        made = tokenizer.preprocess_character(char)
        if made and gap:
            origins.append(i - 1)
        gap = gap and not made
        origins += [i] * len(made)
    return (origins + [len(text) - 1] * length)[:length]


def _wordpiece_spans(tokenizer: FullTokenizer, text: str) -> list[Span]:
    basic = tokenizer.basic_tokenizer
    # Where each character of the words comes from, the words put end to end.
    origins = [i for i, char in enumerate(text) for _ in "".join(basic.tokenize(char))]
    spans, start = [], 0
    for word in basic.tokenize(text):
        for piece in tokenizer.wordpiece_tokenizer.tokenize_word(word):
            is_unknown = piece == tokenizer.wordpiece_tokenizer.unk_token
            size = len(word) if is_unknown else len(piece.removeprefix("##"))
            last = min(start + size, len(origins)) - 1
            spans.append((origins[min(start, last)], origins[last] + 1) if last >= 0 else (0, 0))
            start += size
    return spans
