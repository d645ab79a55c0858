"""SentencePiece, with the comma after a number as a piece of its own."""

import re
from typing import Any

from albert.errors import DataError
from albert.storage import files
from albert.text.cleaning import scrub_surrogates

SPIECE_UNDERLINE = "\u2581"  # SentencePiece writes a leading space so
_ASCII_SPECIALS = "!\"#$%&()*+,-./:;?@[\\]^_`{|}~"
_NEITHER_LETTER_NOR_SPECIAL = re.compile(f"[^a-z{re.escape(_ASCII_SPECIALS)}]")


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
    return [
        part for piece in cut
        for part in (split_digit_comma(sp_model, piece) if ends_in_digit_comma(piece) else [piece])
    ]


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
    if piece.startswith((SPIECE_UNDERLINE, "<")) or (len(piece) == 1 and piece in _ASCII_SPECIALS):
        return True
    return _NEITHER_LETTER_NOR_SPECIAL.search(piece.lower()) is not None


def load_model(path: str) -> Any:
    """Returns the `sentencepiece.SentencePieceProcessor` of a file.

    Raises:
      DataError: it is absent, or no SentencePiece model.
    """
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
