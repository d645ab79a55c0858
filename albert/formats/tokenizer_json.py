"""A `tokenizer.json` of Hugging Face's tokenizers library: a vocabulary in another format.

Their ALBERT class interprets SentencePiece models differently (version 5 splits "(hi)" into "(" and
"▁hi", but the model was trained with "▁", "(" and "hi"). So the file spells out each of our steps.
"""

import base64
import functools
import sys
import unicodedata
from typing import Any

from albert.errors import DataError, first_line
from albert.storage import files
from albert.tokenization import FullTokenizer, TextSettings, ends_in_digit_comma

# Normalizers that do the same as our preprocessing, or SentencePiece.
_SPACES = {" {2,}", "^ +| +$", r"\s+", r"[\s\x1C-\x1F]+"}
_QUOTES = {("``", '"'), ("''", '"')}
_NEVER = -1e4  # far below the score of any token of a trained model
# What parsing a malformed file raises.
_ERRORS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def read(path: str) -> tuple[bytes, bool, TextSettings, list[dict[str, Any]]]:
    """Returns the vocabulary of a `tokenizer.json`.

    Returns:
      the content of its file, whether that is a SentencePiece model (Unigram) or a list of tokens
      (WordPiece), how to preprocess texts, and added tokens.

    Raises:
      DataError: it is damaged, of another kind, or preprocesses texts differently.
    """
    values = files.read_json_object(path)
    model = values.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if kind not in ("Unigram", "WordPiece"):
        raise DataError(f"{path}: its model is {kind or 'missing'}; only Unigram and WordPiece are "
                        "supported")
    try:
        content, settings = (_read_unigram if kind == "Unigram" else _read_word_piece)(values, path)
        tokens, size = values.get("added_tokens") or [], len(model["vocab"])
        added = [token for token in tokens if token["id"] >= size]
    except _ERRORS as error:
        raise DataError(f"{path} is damaged: {type(error).__name__} {first_line(error)}") from error
    return content, kind == "Unigram", settings, added


def _read_word_piece(values: dict[str, Any], path: str) -> tuple[bytes, TextSettings]:
    normalizer, model = values["normalizer"], values["model"]
    steps = normalizer["type"], values["pre_tokenizer"]["type"], normalizer["clean_text"]
    rest = model["continuing_subword_prefix"], model["unk_token"], model["max_input_chars_per_word"]
    if (*steps, *rest) != ("BertNormalizer", "BertPreTokenizer", True, "##", "[UNK]", 100):
        raise DataError(f"{path}: a WordPiece tokenizer that differs from BERT's is not supported")
    ids = model["vocab"]
    tokens = sorted(ids, key=ids.get)
    is_listed = [ids[token] for token in tokens] == list(range(len(ids)))
    if not is_listed or any(len(token.split()) != 1 for token in tokens):
        raise DataError(f"{path}: its tokens are not words with the ids 0, 1, 2 ...")
    return "".join(f"{token}\n" for token in tokens).encode(), TextSettings(
        normalizer["lowercase"], strip_accents=normalizer["strip_accents"],
        tokenize_chinese_chars=normalizer["handle_chinese_chars"],
    )


def _read_unigram(values: dict[str, Any], path: str) -> tuple[bytes, TextSettings]:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    steps, unknown = _steps(values.get("normalizer")), int(values["model"]["unk_id"])
    settings, model = _settings(steps, path), sentencepiece_model_pb2.ModelProto()
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece.Type
    of_added = {  # which are never split
        token["content"]: kinds.CONTROL if token["special"] else kinds.USER_DEFINED
        for token in values.get("added_tokens") or []
    }
    for number, (piece, score) in enumerate(values["model"]["vocab"]):
        kind = kinds.UNKNOWN if number == unknown else of_added.get(piece, kinds.NORMAL)
        model.pieces.add(piece=piece, score=float(score), type=kind)
    _check_words(values.get("pre_tokenizer"), path)
    if values["model"].get("byte_fallback"):
        raise DataError(f"{path}: byte_fallback, tokens for single bytes, is not supported")
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    model.trainer_spec.vocab_size = len(model.pieces)
    model.trainer_spec.unk_id = unknown
    model.trainer_spec.unk_piece = model.pieces[unknown].piece
    for step in steps:
        if step["type"] == "Precompiled":
            model.normalizer_spec.precompiled_charsmap = base64.b64decode(step["precompiled_charsmap"])
    content = model.SerializeToString(deterministic=True)
    sentencepiece.SentencePieceProcessor(model_proto=content)  # or a RuntimeError
    return content, settings


def _steps(normalizer: Any) -> list[dict[str, Any]]:
    if normalizer is None:
        return []
    if normalizer["type"] == "Sequence":
        return [step for one in normalizer["normalizers"] for step in _steps(one)]
    return [normalizer]


def _check_words(pre_tokenizer: Any, path: str) -> None:
    """Refuses steps that differ from SentencePiece with "▁" before each word."""
    for step in (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {"type": None}]):
        usual = _METASPACE | {"add_prefix_space": True, "str_rep": "▁"}
        if step["type"] != "WhitespaceSplit" and any(
            value != usual.get(key) for key, value in step.items() if key != "split"
        ):
            raise DataError(f"{path}: its pre_tokenizer {step} is not supported")


def _settings(steps: list[dict[str, Any]], path: str) -> TextSettings:
    """Returns how texts are preprocessed, according to these steps."""
    kinds = {step["type"] for step in steps}
    strips = "StripAccents" in kinds
    for step in steps:
        pattern = step.get("pattern") or {}
        regex, text = pattern.get("Regex"), pattern.get("String")
        if step["type"] != "Replace" or regex in _SPACES or (text, step.get("content")) in _QUOTES:
            continue
        if regex != combining_characters() or step.get("content"):
            raise DataError(f"{path}: a normalizer that replaces {regex or text!r} is not supported")
        strips = True
    if unknown := kinds - {"Replace", "NFKD", "StripAccents", "Lowercase", "Precompiled", "Strip"}:
        raise DataError(f"{path}: the normalizer {sorted(unknown)[0]} is not supported")
    return TextSettings(do_lower_case="Lowercase" in kinds, keep_accents=not strips)


@functools.cache
def combining_characters() -> str:
    """Returns a character class of what `preprocess_text` drops.

    This differs from Unicode's category M, which their StripAccents drops: Thai vowel signs, for
    example, are marks but do not combine.
    """
    return f"[{''.join(filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1))))}]"


def contents(tokenizer: FullTokenizer, max_length: int | None = None) -> dict[str, Any] | None:
    """Returns the file: our preprocessing, then the model's normalization and vocabulary.

    None for SentencePiece models of other kinds than Unigram.

    Args:
      max_length: in tokens, to which texts are truncated; then those of a batch are padded, too.
    """
    parts = _unigram(tokenizer) if tokenizer.is_spm else _word_piece(tokenizer)
    special = tokenizer.convert_ids_to_tokens(tokenizer.special_ids)
    limits = {"truncation": None, "padding": None} if max_length is None else {
        "truncation": {
            "direction": "Right", "max_length": max_length, "strategy": "LongestFirst", "stride": 0,
        },
        "padding": {
            "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": tokenizer.pad_id, "pad_type_id": 0, "pad_token": special[3],
        },
    }
    return parts and {
        "version": "1.0",
        **limits,
        "added_tokens": [
            _token(tokenizer.vocab[token], token, is_special=True)
            for token in sorted(special, key=tokenizer.vocab.__getitem__)
        ] + added_tokens(tokenizer),
        "post_processor": _template(tokenizer),
        **parts,
    }


def _word_piece(tokenizer: FullTokenizer) -> dict[str, Any]:
    settings = tokenizer.settings
    return {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "lowercase": settings.do_lower_case,
            "handle_chinese_chars": settings.tokenize_chinese_chars,
            "strip_accents": settings.strip_accents,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100 if settings.as_in_bert else 200,
            "vocab": {t: i for t, i in tokenizer.vocab.items() if t not in tokenizer.added.ids},
        },
    }


def _unigram(tokenizer: FullTokenizer) -> dict[str, Any] | None:
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.sp_model.serialized_model_proto())
    if model.trainer_spec.model_type != model.trainer_spec.UNIGRAM:
        return None
    settings, vocabulary = tokenizer.settings, []
    for piece in model.pieces:
        # "▁1999," is split again into "▁1999" and ","; never choosing it has the same effect.
        is_split = not settings.as_in_bert and ends_in_digit_comma(piece.piece)
        score = 0.0 if piece.type == piece.USER_DEFINED else _NEVER if is_split else piece.score
        vocabulary.append([piece.piece, score])
    # White space before tokens that are added with their library is dropped.
    words = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, _METASPACE]}
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": _normalizers(model.normalizer_spec, tokenizer),
        },
        "pre_tokenizer": words if settings.remove_space else _METASPACE,
        "decoder": _METASPACE,
        "model": {
            "type": "Unigram", "unk_id": tokenizer.vocab["<unk>"], "byte_fallback": False,
            "vocab": vocabulary,
        },
    }


def added_tokens(tokenizer: FullTokenizer) -> list[dict[str, Any]]:
    """Returns the tokens that were added to a vocabulary, in the format of this file."""
    return [_token(i, token, is_special=False) for token, i in tokenizer.added.ids.items()]


def _token(number: int, content: str, is_special: bool) -> dict[str, Any]:
    # Others are matched in normalized text, with adjacent white space, which begins no other token.
    others = dict.fromkeys(("lstrip", "rstrip", "normalized"), not is_special)
    return {"id": number, "content": content, "single_word": False, **others, "special": is_special}


def _normalizers(spec, tokenizer: FullTokenizer) -> list[dict[str, Any]]:
    settings = tokenizer.settings

    def replace(pattern: str, content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

    # Python's white space, to which these control characters belong.
    steps = [replace(r"[\s\x1C-\x1F]+", " ")] if settings.remove_space else []
    if not settings.keep_accents:
        steps += [{"type": "NFKD"}, replace(combining_characters(), "")]
    if settings.do_lower_case:
        steps.append({"type": "Lowercase"})
    steps += [
        {"type": "Replace", "pattern": {"String": lower}, "content": symbol}
        for lower, symbol in tokenizer.symbols.items()
    ]
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:  # SentencePiece knows no white space but the space
        steps += [replace(" {2,}", " "), replace("^ +| +$", "")]
    return steps


def _template(tokenizer: FullTokenizer) -> dict[str, Any]:
    """[CLS] A [SEP] with segment 0, B [SEP] with segment 1."""
    begin, end = tokenizer.convert_ids_to_tokens(tokenizer.special_ids[:2])
    pair = [
        {kind: {"id": name, "type_id": segment}} for kind, name, segment in (
            ("SpecialToken", begin, 0), ("Sequence", "A", 0), ("SpecialToken", end, 0),
            ("Sequence", "B", 1), ("SpecialToken", end, 1),
        )
    ]
    special = {
        name: {"id": name, "ids": [tokenizer.vocab[name]], "tokens": [name]} for name in (begin, end)
    }
    return {
        "type": "TemplateProcessing", "single": pair[:3], "pair": pair, "special_tokens": special,
    }
