"""SentencePiece tokens, with the comma after a number as a separate token."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from albert.errors import DataError
from albert.storage import files
from albert.text.cleaning import scrub_surrogates

SPIECE_UNDERLINE = "\u2581"  # how SentencePiece writes a leading space
_ASCII_SPECIALS = "!\"#$%&()*+,-./:;?@[\\]^_`{|}~"
_NEITHER_LETTER_NOR_SPECIAL = re.compile(f"[^a-z{re.escape(_ASCII_SPECIALS)}]")


def encode_pieces(
    sp_model: Any, text: str, return_unicode: bool = True, sample: bool = False
) -> list[str]:
    """Returns the tokens of `text`, with the comma of "2010," as a separate token.

    Args:
      sp_model: a `sentencepiece.SentencePieceProcessor`.
      text: preprocessed text (`preprocess_text`).
      return_unicode: kept for callers of the original; tokens are always str.
      sample: draw one of the 64 best segmentations (alpha 0.1).
    """
    del return_unicode
    text, tokens = scrub_surrogates(text), []
    pieces = sp_model.SampleEncodeAsPieces(text, 64, 0.1) if sample else sp_model.EncodeAsPieces(text)
    for token in pieces:
        tokens += split_digit_comma(sp_model, token) if ends_in_digit_comma(token) else [token]
    return tokens


def ends_in_digit_comma(token: str) -> bool:
    """Whether a token is a number with its comma, which is split further."""
    return len(token) > 1 and token[-1] == "," and token[-2].isdigit()


def split_digit_comma(sp_model: Any, token: str) -> list[str]:
    """Returns the tokens of the number, then ","."""
    parts = sp_model.EncodeAsPieces(token[:-1].replace(SPIECE_UNDERLINE, ""))
    # SentencePiece begins every text with an underline, which is dropped within a word (as the
    # original intended, but it compared str with bytes).
    if token[0] != SPIECE_UNDERLINE and parts and parts[0][0] == SPIECE_UNDERLINE:
        parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
    return [*parts, ","]


def encode_ids(sp_model: Any, text: str, sample: bool = False) -> list[int]:
    """Returns the ids of `encode_pieces`."""
    return [sp_model.PieceToId(token) for token in encode_pieces(sp_model, text, sample=sample)]


def is_start_piece(token: str, is_spm: bool) -> bool:
    """Whether a token begins a word.

    A SentencePiece continuation, such as "ing" or ".com", consists of ASCII letters and special
    characters, and is not a single special character.
    """
    if not is_spm:
        return not token.startswith("##")
    if token.startswith((SPIECE_UNDERLINE, "<")) or (len(token) == 1 and token in _ASCII_SPECIALS):
        return True
    return _NEITHER_LETTER_NOR_SPECIAL.search(token.lower()) is not None


# A trained vocabulary stores how its text was preprocessed after the normalizer's name, which nothing
# else reads.
_TRAINED_WITH = re.compile(rb"nmt_nfkc((?:;(?:do_lower_case|keep_accents)=[01])+)")


def mark_model(proto: bytes, settings: Mapping[str, bool]) -> bytes:
    """Returns the model with a record of how its training text was preprocessed."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(proto)
    model.normalizer_spec.name += "".join(f";{name}={value:d}" for name, value in settings.items())
    return model.SerializeToString(deterministic=True)


def trained_with(path: str | None) -> dict[str, bool]:
    """Returns the settings, by name, with which a model file was trained."""
    if not path or not path.endswith(".model") or not os.path.isfile(path):
        return {}
    with open(path, "rb") as stream:
        match = _TRAINED_WITH.search(stream.read())
    pairs = [part.split("=") for part in match[1].decode()[1:].split(";")] if match else []
    return {name: value == "1" for name, value in pairs}


def user_defined(model: Any, tokens: Sequence[str]) -> list[str]:
    """Returns the tokens that are never split."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model.serialized_model_proto())
    wanted, kind = set(tokens), sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
    return [p.piece for p in proto.pieces if p.piece in wanted and p.type == kind]


def load_model(path: str) -> Any:
    """Returns the `sentencepiece.SentencePieceProcessor` of a file.

    Raises:
      DataError: it does not exist, or is not a SentencePiece model.
    """
    import sentencepiece

    files.require_file(path, "spm_model_file")
    with open(path, "rb") as stream:
        proto = stream.read()
    model = sentencepiece.SentencePieceProcessor()
    try:
        is_loaded = bool(proto) and model.LoadFromSerializedProto(proto)
        model.IdToPiece(list(range(model.GetPieceSize())))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: a token is not UTF-8 text: the file is damaged; copy it again") from error
    except RuntimeError as error:
        raise DataError(f"{path}: not a SentencePiece model (or a truncated one)") from error
    # An empty file loads without an error, with no tokens.
    if not is_loaded or model.GetPieceSize() == 0:
        raise DataError(f"{path}: not a SentencePiece model ({len(proto):,} bytes)")
    return model
