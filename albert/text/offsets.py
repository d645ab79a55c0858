"""Positions of tokens in the original text."""

import functools
import unicodedata
from collections.abc import Sequence

from albert.text.added_tokens import Span
from albert.text.cleaning import scrub_surrogates
from albert.text.spm_model import SPIECE_UNDERLINE, ends_in_digit_comma, split_digit_comma
from albert.tokenization import FullTokenizer


def encode_with_offsets(tokenizer: FullTokenizer, text: str) -> tuple[list[int], list[Span]]:
    """Returns the ids of `tokenizer.encode_text(text)`, and the span of each token in `text`.

    The span of a SentencePiece token that begins with "▁" begins with the space before it, if there
    is one.
    """
    encode = _sentencepiece if tokenizer.is_spm else _wordpiece
    ids, spans = tokenizer.special.encode_with_offsets(text, functools.partial(
        tokenizer.added.encode_with_offsets, encode=functools.partial(encode, tokenizer)
    ))
    tokenizer.note_unknown([text], [ids])
    return ids, spans


def with_marks(text: str, spans: Sequence[Span]) -> list[Span]:
    """Returns spans that end after the combining marks of their last letter.

    SQuAD's windows leave them out, as the original's do.
    """
    longer, limits = [], [*(begin for begin, _ in spans[1:]), len(text)]
    for (begin, end), limit in zip(spans, limits, strict=False):
        while begin < end < limit and unicodedata.combining(text[end]):
            end += 1
        longer.append((begin, end))
    return longer


def without_space(text: str, span: Span) -> Span:
    """Returns a span without the white space that it begins with."""
    begin, end = span
    while begin < end and text[begin].isspace():
        begin += 1
    return begin, end


def _sentencepiece(tokenizer: FullTokenizer, text: str) -> tuple[list[int], list[Span]]:
    from sentencepiece import sentencepiece_pb2

    clean = scrub_surrogates(tokenizer.preprocess(text))
    proto = sentencepiece_pb2.SentencePieceText.FromString(
        tokenizer.sp_model.encode(clean, out_type="serialized_proto")
    )
    # The library's positions are in bytes.
    characters = [i for i, char in enumerate(clean) for _ in char.encode("utf-8")] + [len(clean)]
    tokens: list[str] = []
    spans: list[Span] = []
    for piece in proto.pieces:
        begin, end = characters[piece.begin], characters[piece.end]
        if tokenizer.settings.as_in_bert or not ends_in_digit_comma(piece.piece):
            tokens.append(piece.piece)
            spans.append((begin, end))
            continue
        for part in split_digit_comma(tokenizer.sp_model, piece.piece):
            has_space = part[0] == SPIECE_UNDERLINE and clean[begin] == " "
            stop = min(begin + len(part.lstrip(SPIECE_UNDERLINE)) + has_space, end)
            tokens.append(part)
            spans.append((begin, stop))
            begin = stop
    origins = origins_of(text, tokenizer)
    spans = [_in_original(span, clean, origins) for span in spans]
    return tokenizer.convert_tokens_to_ids(tokens), spans


def _in_original(span: Span, clean: str, origins: list[int]) -> Span:
    begin, end = span
    # SentencePiece reads characters such as the zero-width space as spaces.
    while begin + 1 < end and not clean[begin].isprintable():
        begin += 1
    if begin < end:
        return origins[begin], origins[end - 1] + 1
    position = origins[min(begin, len(origins) - 1)] if origins else 0
    return position, position


def origins_of(text: str, tokenizer: FullTokenizer) -> list[int]:
    """Returns, for each character of `tokenizer.preprocess(text)`, the index of its original.

    A character's preprocessing hardly depends on its neighbours; where it does (the Greek final
    sigma), the length stays the same.
    """
    origins: list[int] = []
    is_after_word = is_after_space = False
    for i, char in enumerate(text):
        if char.isspace() and tokenizer.settings.remove_space:
            is_after_space = is_after_word
            continue
        if is_after_space:  # before a word that preprocessing may leave empty, as a lone accent
            origins.append(i - 1)
        origins += [i] * len(tokenizer.preprocess_character(char))
        is_after_word, is_after_space = True, False
    return origins


def _wordpiece(tokenizer: FullTokenizer, text: str) -> tuple[list[int], list[Span]]:
    basic, wordpiece = tokenizer.basic_tokenizer, tokenizer.wordpiece_tokenizer
    # The index of each character of the words, concatenated.
    origins = [i for i, char in enumerate(text) for _ in "".join(basic.tokenize(char))]
    tokens: list[str] = []
    spans: list[Span] = []
    start = 0
    for word in basic.tokenize(text):
        for token in wordpiece.tokenize_word(word):
            is_unknown = token == wordpiece.unk_token
            size = len(word) if is_unknown else len(token.removeprefix("##"))
            last = min(start + size, len(origins)) - 1
            tokens.append(token)
            spans.append((origins[min(start, last)], origins[last] + 1) if last >= 0 else (0, 0))
            start += size
    return tokenizer.convert_tokens_to_ids(tokens), spans
