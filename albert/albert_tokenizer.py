"""`AlbertTokenizer`: texts to the arrays that a model reads, as one call. No TensorFlow.

Legend: B texts, L places.
"""

import os
from collections.abc import Sequence

import numpy as np

from albert import tokenization
from albert.data import features, files
from albert.errors import DataError
from albert.formats import tokenizer_files
from albert.formats.tokenizer_files import Vocabulary
from albert.tokenization import FullTokenizer

Encoded = dict[str, np.ndarray]
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
    def from_pretrained(cls, path: str, do_lower_case: bool | None = None) -> "AlbertTokenizer":
        """Returns the tokenizer of a model's directory, of a *.model file or of a vocab.txt.

        A directory may be one of a tokenizer alone, as `save_pretrained` writes it.
        `do_lower_case` is by default what the directory says, else True.

        Raises:
          DataError: there is no vocabulary, or it has a setting that cannot be honoured.
        """
        length = 512
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
        path = os.path.join(directory, f"{filename_prefix}-{name}" if filename_prefix else name)
        files.publish_copy(self.tokenizer.path, path)
        return (path,)

    def save_pretrained(self, directory: str) -> None:
        """Writes the vocabulary and its settings, beside a saved model or alone."""
        os.makedirs(directory, exist_ok=True)
        tokenizer_files.write(self.tokenizer, directory, self.model_max_length)

    # --- Pieces and ids ---

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def tokenize(self, text: str) -> list[str]:
        """Returns the pieces of a raw text."""
        return self.convert_ids_to_tokens(self._ids(text))

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        return self.tokenizer.convert_tokens_to_ids(tokens)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return self.tokenizer.convert_ids_to_tokens(ids)

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
        text: str | Sequence[str],
        text_pair: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        padding: str = "longest",
        truncation: bool = True,
        return_offsets_mapping: bool = False,
    ) -> Encoded:
        """Returns `input_ids`, `input_mask` and `segment_ids`, int32 [B, L], for a model's call.

        Args:
          text: one text (B = 1) or several.
          text_pair: the second text of each, or None.
          max_length: most places; by default the model's.
          padding: "longest" (of these texts) or "max_length".
          truncation: cut what is too long, from the end of the longer text; else refuse it.
          return_offsets_mapping: adds `offset_mapping` [B, L, 2], each piece's first character
            and one past its last in the text it comes from; (0, 0) for special pieces.

        Raises:
          DataError: not strings, no pair for a text, or too long without truncation.
        """
        firsts = _texts(text, "text")
        seconds = [None] * len(firsts) if text_pair is None else _texts(text_pair, "text_pair")
        if len(seconds) != len(firsts):
            raise DataError(f"{len(firsts)} texts and {len(seconds)} second texts")
        if padding not in ("longest", "max_length"):
            raise DataError(f"padding must be 'longest' or 'max_length', got {padding!r}")
        limit = max_length or self.model_max_length
        rows = [
            self._row(a, b, limit, truncation, i)
            for i, (a, b) in enumerate(zip(firsts, seconds, strict=True))
        ]
        length = limit if padding == "max_length" else max((len(r[0]) for r in rows), default=0)
        batch = np.zeros((3, len(rows), length), np.int32)
        batch[0] = self.tokenizer.pad_id
        offsets = np.zeros((len(rows), length, 2), np.int32)
        for i, (ids, segments, spans) in enumerate(rows):
            batch[0, i, : len(ids)] = ids
            batch[1, i, : len(ids)] = 1
            batch[2, i, : len(ids)] = segments
            offsets[i, : len(ids)] = spans
        encoded = dict(zip(("input_ids", "input_mask", "segment_ids"), batch, strict=True))
        return encoded | ({"offset_mapping": offsets} if return_offsets_mapping else {})

    def _row(self, a: str, b: str | None, limit: int, truncation: bool, index: int):
        """Returns (ids, segments, spans) of one row."""
        first, second = self._encode(a), [] if b is None else self._encode(b)
        special = 2 if b is None else 3
        length = len(first) + len(second) + special
        if length > limit:
            if not truncation:
                raise DataError(f"text {index} has {length} places, {limit} are the most")
            if limit < special:
                raise DataError(f"max_length {limit} leaves no place for a text")
            first, second = features.truncate_pair(first, second, limit - special)
        cls, sep = ((i, (0, 0)) for i in (self.tokenizer.cls_id, self.tokenizer.sep_id))
        row = [cls, *first, sep] + ([] if b is None else [*second, sep])
        ids, spans = zip(*row, strict=True)
        segments = [int(i >= len(first) + 2) for i in range(len(row))]
        return ids, segments, spans

    def _encode(self, text: str) -> list[tuple[int, Span]]:
        """Returns the ids of a raw text, [MASK] among them, each with where its piece stands."""
        found: list[tuple[int, Span]] = []
        start = 0
        for i, part in enumerate(text.split("[MASK]")):
            if i:
                found.append((self.tokenizer.mask_id, (start - len("[MASK]"), start)))
            for id_, (a, b) in zip(*encode_with_offsets(self.tokenizer, part), strict=True):
                found.append((id_, (a + start, b + start)))
            start += len(part) + len("[MASK]")
        return found

    def _ids(self, text: str) -> list[int]:
        return [i for i, _ in self._encode(text)]


def _is_alone(directory: str) -> bool:
    """Whether a directory has a tokenizer's settings and no model."""
    beside = ("albert_config.json", "config.json", "variables")
    return os.path.isfile(os.path.join(directory, tokenizer_files.SETTINGS_FILE)) and not any(
        os.path.exists(os.path.join(directory, name)) for name in beside
    )


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
