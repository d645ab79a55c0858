"""A tokenizer's files in Hugging Face's layout, for their `AutoTokenizer`.

Their own ALBERT class reads the SentencePiece model in its own way (version 5
cuts "(hi)" into "(" and "▁hi", where the model was trained with "▁", "(" and
"hi"). `tokenizer.json` here therefore spells out every step of ours.
"""

import base64
import os
import shutil
from typing import Any

from albert.formats import tokenizer_files
from albert.formats.tokenizer_json import combining_characters
from albert.storage import files
from albert.tokenization import FullTokenizer, TextSettings, ends_in_digit_comma

# Far below the score of any token of a trained model.
_NEVER = -1e4
_USER_DEFINED = 4


def write(tokenizer: FullTokenizer, directory: str, max_length: int) -> None:
    """Writes spiece.model (or vocab.txt) and its JSON files."""
    is_spm = tokenizer.is_spm
    special = {
        "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
        "pad_token": "<pad>" if is_spm else "[PAD]", "unk_token": "<unk>" if is_spm else "[UNK]",
    }
    settings: dict[str, Any] = special | tokenizer_files.settings_of(tokenizer, max_length) | {
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    if is_spm:
        shutil.copyfile(tokenizer.path, os.path.join(directory, "spiece.model"))
        # The class that takes tokenizer.json as it stands.
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        files.write_json(os.path.join(directory, "tokenizer.json"), _unigram(tokenizer, special))
    else:
        settings |= {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": True}
        with files.atomic_write(os.path.join(directory, "vocab.txt")) as stream:
            words = sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__)
            stream.writelines(word + "\n" for word in words)
    files.write_json(os.path.join(directory, tokenizer_files.SETTINGS_FILE), settings)
    files.write_json(os.path.join(directory, "special_tokens_map.json"), special)


def _unigram(tokenizer: FullTokenizer, special: dict[str, str]) -> dict[str, Any]:
    """Returns `tokenizer.json`: our preprocessing, then the model's normalisation and vocabulary."""
    from sentencepiece import sentencepiece_model_pb2

    with open(tokenizer.path, "rb") as stream:
        model = sentencepiece_model_pb2.ModelProto.FromString(stream.read())
    vocab = [[piece.piece, _score(piece)] for piece in model.pieces]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": tokenizer.vocab[token], "content": token, "single_word": False,
                "lstrip": False, "rstrip": False, "normalized": False, "special": True,
            }
            for token in sorted(special.values(), key=tokenizer.vocab.__getitem__)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": _normalizers(model.normalizer_spec, tokenizer.settings),
        },
        "pre_tokenizer": _metaspace(),
        "post_processor": _template(tokenizer),
        "decoder": _metaspace(),
        "model": {"type": "Unigram", "unk_id": tokenizer.vocab["<unk>"], "vocab": vocab,
                  "byte_fallback": False},
    }


def _score(piece) -> float:
    if piece.type == _USER_DEFINED:
        return 0.0
    # "▁1999," is cut again into "▁1999" and ","; a token that is never chosen has the same effect.
    return _NEVER if ends_in_digit_comma(piece.piece) else piece.score


def _normalizers(spec, settings: TextSettings) -> list[dict[str, Any]]:
    def replace(pattern: str, content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

    steps = [replace(r"\s+", " ")] if settings.remove_space else []
    if not settings.keep_accents:
        steps += [{"type": "NFKD"}, replace(combining_characters(), "")]
    if settings.do_lower_case:
        steps.append({"type": "Lowercase"})
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    steps.append(replace(" {2,}", " "))
    if settings.remove_space:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    return steps


def _metaspace() -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def _template(tokenizer: FullTokenizer) -> dict[str, Any]:
    """[CLS] A [SEP] with segment 0, B [SEP] with segment 1."""

    def token(name: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def text(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)]
    ids = {"[CLS]": tokenizer.cls_id, "[SEP]": tokenizer.sep_id}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), token("[SEP]", 1)],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ids.items()
        },
    }
