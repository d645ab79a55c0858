"""A `tokenizer.json` of Hugging Face's tokenizers library, read as a SentencePiece model."""

import base64
import sys
import unicodedata
from typing import Any

from albert.errors import DataError
from albert.storage import files
from albert.tokenization import TextSettings

# Our own preprocessing, or SentencePiece, does the same as these normalizers.
_SPACES = {" {2,}", r"\s+"}
_QUOTES = {("``", '"'), ("''", '"')}


def sentencepiece_model(path: str) -> tuple[bytes, TextSettings]:
    """Returns a SentencePiece model of the vocabulary in a `tokenizer.json`, and how to prepare texts.

    Raises:
      DataError: it is damaged, of another kind than Unigram, or prepares texts in another way.
    """
    values = files.read_json_object(path)
    model = values.get("model")
    if not isinstance(model, dict) or model.get("type") != "Unigram":
        kind = model.get("type") if isinstance(model, dict) else None
        raise DataError(f"{path}: its model is {kind or 'none'}; only Unigram is read from this file")
    try:
        added = {t["content"]: bool(t["special"]) for t in values.get("added_tokens") or []}
        steps = _steps(values.get("normalizer"))
        charsmap = [s["precompiled_charsmap"] for s in steps if s["type"] == "Precompiled"]
        pieces = [(str(piece), float(score)) for piece, score in model["vocab"]]
        made = _model_of(pieces, int(model["unk_id"]), added, charsmap)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{path} is damaged: {type(error).__name__} {error}") from error
    return made, _settings(steps, path)


def _steps(normalizer: Any) -> list[dict[str, Any]]:
    if normalizer is None:
        return []
    if normalizer["type"] == "Sequence":
        return [step for one in normalizer["normalizers"] for step in _steps(one)]
    return [normalizer]


def _settings(steps: list[dict[str, Any]], path: str) -> TextSettings:
    """Returns how texts are prepared, as far as these steps say it."""
    kinds = {step["type"] for step in steps}
    strips = "StripAccents" in kinds
    for step in steps:
        pattern = step.get("pattern") or {}
        regex, text = pattern.get("Regex"), pattern.get("String")
        if step["type"] != "Replace" or regex in _SPACES or (text, step.get("content")) in _QUOTES:
            continue
        if regex != combining_characters() or step.get("content"):
            raise DataError(f"{path}: a normalizer replaces {regex or text!r}, which is not done here")
        strips = True
    if unknown := kinds - {"Replace", "NFKD", "StripAccents", "Lowercase", "Precompiled", "Strip"}:
        raise DataError(f"{path}: the normalizer {sorted(unknown)[0]} is not known here")
    return TextSettings(do_lower_case="Lowercase" in kinds, keep_accents=not strips)


def _model_of(
    pieces: list[tuple[str, float]], unknown: int, added: dict[str, bool], charsmap: list[str]
) -> bytes:
    """Returns the model; `added` tokens are never split, whether they are special or not."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece.Type
    for number, (piece, score) in enumerate(pieces):
        kind = kinds.NORMAL
        if piece in added:
            kind = kinds.CONTROL if added[piece] else kinds.USER_DEFINED
        model.pieces.add(
            piece=piece, score=score, type=kinds.UNKNOWN if number == unknown else kind
        )
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    model.trainer_spec.vocab_size = len(pieces)
    model.trainer_spec.unk_id = unknown
    model.trainer_spec.unk_piece = pieces[unknown][0]
    if charsmap:
        model.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmap[0])
    return model.SerializeToString(deterministic=True)


def combining_characters() -> str:
    """Returns a character class of what `preprocess_text` drops.

    Not the same as the marks of Unicode's category M, which their StripAccents
    drops: the vowel signs of Thai, for one, are marks but do not combine.
    """
    codes = [c for c in range(sys.maxunicode + 1) if unicodedata.combining(chr(c))]
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(f"{chr(a)}-{chr(b)}" if b > a else chr(a) for a, b in ranges) + "]"
