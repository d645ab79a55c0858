"""Reads and writes a vocabulary and its settings in a model's directory. No TensorFlow.

A directory in our layout or Hugging Face's holds one `*.model` or `*vocab*.txt`, and
`tokenizer_config.json`. A setting there that changes the ids of a text is either respected or refused by
name; others are ignored.
"""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from albert.errors import DataError, FlagError
from albert.formats import tokenizer_json
from albert.records.manifests import Manifest
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.text import spm_model
from albert.tokenization import SPECIAL, FullTokenizer, TextSettings

SETTINGS_FILE = "tokenizer_config.json"
ADDED_FILE = "added_tokens.json"
FAST_FILE = "tokenizer.json"  # of Hugging Face's tokenizers library
# The tokenizer files that a model on Hugging Face's hub may have.
NAMES = ("spiece.model", "vocab.txt", FAST_FILE, SETTINGS_FILE, ADDED_FILE)
# Our key for the vocabulary's file, if there are several.
_FILE_KEY = "vocabulary_file"
# Hugging Face writes a number of 31 digits for "no limit".
_NO_LIMIT = 1 << 30
_TEXT_KEYS = tuple(field.name for field in dataclasses.fields(TextSettings))
# The supported values of the settings that change the ids of a text.
_FIXED: dict[str, tuple[Any, ...]] = {
    "tokenizer_class": (
        "AlbertTokenizer", "AlbertTokenizerFast", "BertTokenizer", "BertTokenizerFast",
        "PreTrainedTokenizerFast", "TokenizersBackend", "XLMRobertaTokenizer", "XLMRobertaTokenizerFast",
    ),
    "sp_model_kwargs": ({},), "add_prefix_space": (True,), "do_basic_tokenize": (True,),
    "never_split": ([],), "additional_special_tokens": ([],),
}
# Of XLM-R, whose models number tokens differently from their tokenizer.json.
_OTHER_NUMBERS = "sentencepiece.bpe.model"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Where a model's vocabulary is, and how texts are preprocessed for it."""

    spm_model_file: str | None = None  # SentencePiece model, if there is one
    vocab_file: str | None = None  # WordPiece vocabulary otherwise
    text: TextSettings = TextSettings()
    max_length: int | None = None  # in tokens, if known
    problem: str = ""  # why the existing vocabulary cannot be opened
    added: Mapping[str, int] = dataclasses.field(default_factory=dict)  # ids of added tokens

    def __bool__(self) -> bool:
        return bool(self.spm_model_file or self.vocab_file or self.problem)

    def open(self) -> FullTokenizer:
        """Returns the tokenizer.

        Raises:
          DataError: there is no vocabulary, or it is damaged or not supported.
        """
        if self.problem:
            raise DataError(self.problem)
        if self.vocab_file and not self.spm_model_file and _lists_scores(self.vocab_file):
            raise DataError(f"{self.vocab_file} only lists the tokens of a SentencePiece model: pass the "
                            "model itself, *.model, as --spm_model_file")
        return FullTokenizer(
            self.vocab_file, spm_model_file=self.spm_model_file, added_tokens=self.added,
            **dataclasses.asdict(self.text),
        )

    def override(
        self, spm_model_file: str | None, vocab_file: str | None,
        given: Mapping[str, bool | None] = {},
    ) -> "Vocabulary":
        """Returns the vocabulary with the user's values; None means not given.

        Args:
          given: some of `TextSettings`; the others are those stored in the given file.

        Raises:
          FlagError: a vocabulary was trained with another setting.
        """
        chosen, given = self, {name: v for name, v in given.items() if v is not None}
        if file := spm_model_file or vocab_file:
            chosen = dataclasses.replace(
                self, spm_model_file=spm_model_file, problem="", added={},
                vocab_file=None if spm_model_file else vocab_file,
                text=_text_of_file(file, self.text),
            )
        if given.get("keep_accents") and chosen.vocab_file:
            raise FlagError("--keep_accents is for SentencePiece: a WordPiece vocabulary keeps "
                            "accents with --nodo_lower_case")
        stored = spm_model.trained_with(chosen.spm_model_file)
        for name, value in given.items():
            if stored.get(name, value) != value:
                raise FlagError(f"--{'no' * (not value)}{name}: {chosen.spm_model_file} was trained "
                                "differently, and has no tokens for such text")
        return dataclasses.replace(chosen, text=dataclasses.replace(chosen.text, **given))


def _lists_scores(path: str) -> bool:
    """Whether a file is the `.vocab` beside a SentencePiece model: a token and its score on a line."""
    if not path.endswith(".vocab") or not os.path.isfile(path):
        return False
    with open(path, encoding="utf-8", errors="replace") as stream:
        return "\t" in stream.readline(1000)


def find(directory: str, default: TextSettings | None = None) -> Vocabulary:
    """Returns the vocabulary of a directory, an empty one if it has none.

    Args:
      default: how texts are preprocessed if `tokenizer_config.json` does not say it; by default as
        `tokenizer.json` says, if it contains the vocabulary.

    Raises:
      DataError: a setting is malformed or not supported.
    """
    if not os.path.isdir(directory):
        return Vocabulary()
    path, values = _settings_in(directory)
    for key, supported in _FIXED.items():
        if values.get(key) not in (None, *supported):
            raise DataError(f"{path}: {key} is {values[key]!r}; supported: "
                            f"{' and '.join(map(repr, supported))}")
    spm, vocab = _files(directory, values.get(_FILE_KEY), path)
    problem, fast, added = "", os.path.join(directory, FAST_FILE), {}
    if not (spm or vocab) and os.path.isfile(fast):
        try:
            content, is_spm, of_file, tokens = tokenizer_json.read(fast)
            added = _added(tokens, fast)
            default = default or of_file
            file = files.cached(
                hashlib.sha256(content).hexdigest(), NAMES[not is_spm],
                lambda file: pathlib.Path(file).write_bytes(content),
            )
            spm, vocab = (file, None) if is_spm else (None, file)
        except DataError as error:  # irrelevant to callers that have a vocabulary or need none
            problem = str(error)
    file = os.path.join(directory, ADDED_FILE)
    if os.path.isfile(file):
        tokens = files.read_json_object(file).items()
        added |= _added([{"content": token, "id": i} for token, i in tokens], file)
    decoder = values.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict) or not all(isinstance(token, dict) for token in decoder.values()):
        raise DataError(f"{path}: added_tokens_decoder must be an object of tokens")
    added |= _added([token | {"id": i} for i, token in decoder.items()], path)
    text = text_settings(values, path, default or TextSettings(**spm_model.trained_with(spm)))
    length = values.get("model_max_length")
    length = _NO_LIMIT if length is None else length
    if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 1:
        raise DataError(f"{path}: model_max_length must be a number above 0, got {length!r}")
    return Vocabulary(spm, vocab, text, int(length) if length < _NO_LIMIT else None, problem, added)


def _settings_in(directory: str) -> tuple[str, dict[str, Any]]:
    """Returns the path of a directory's settings, and their values, completed by the kind of its model."""
    path, config = (os.path.join(directory, name) for name in (SETTINGS_FILE, "config.json"))
    values = files.read_json_object(path) if os.path.isfile(path) else {}
    if os.path.isfile(config) and files.read_json_object(config).get("model_type") == "bert":
        values = {"as_in_bert": True} | values
    return path, values


def _text_of_file(path: str, default: TextSettings) -> TextSettings:
    """Returns how texts are preprocessed for a vocabulary, from its file or the settings next to it."""
    directory = os.path.dirname(os.path.abspath(path))
    default = dataclasses.replace(default, **spm_model.trained_with(path))
    settings_path, values = _settings_in(directory)
    if not values:
        return default
    is_of_file = os.path.abspath(path) in _files(directory, values.get(_FILE_KEY), settings_path)
    return text_settings(values, settings_path, default) if is_of_file else default


def text_settings(
    values: Mapping[str, Any], origin: str, default: TextSettings = TextSettings()
) -> TextSettings:
    """Returns the settings among parsed values; missing ones are those of `default`.

    Raises:
      DataError: one is neither true nor false.
    """
    settings = {key: values[key] for key in _TEXT_KEYS if values.get(key) is not None}
    for key, value in settings.items():
        if not isinstance(value, bool):
            raise DataError(f"{origin}: {key} must be true or false, got {value!r}")
    return dataclasses.replace(default, **settings)


def settings_of(tokenizer: FullTokenizer, max_length: int | None) -> dict[str, Any]:
    """Returns the settings for `tokenizer_config.json`, ours and Hugging Face's."""
    values = {
        key: value for key, value in dataclasses.asdict(tokenizer.settings).items()
        if key == "do_lower_case" or value != getattr(TextSettings, key)
    }
    return values | ({} if max_length is None else {"model_max_length": max_length})


def of_records(sources: Sequence[RecordFiles]) -> tuple[Vocabulary, str | None, str]:
    """Returns the vocabulary of record files, its digest, and a file that was made with it.

    It is the copy next to the records. If there is none, there are only the settings of the text; and
    without manifests no digest.

    Raises:
      DataError: they were made with different vocabularies.
    """
    made: dict[str, tuple[str, Manifest]] = {}
    for path, manifest in (each for source in sources for each in source.manifests()):
        if manifest.tokenizer_sha256:
            made.setdefault(manifest.tokenizer_sha256, (path, manifest))
    if len(made) > 1:
        (one, _), (two, _), *_ = made.values()
        raise DataError(f"{one} and {two} were made with different vocabularies or case flags")
    digest, (path, manifest) = next(iter(made.items()), (None, (sources[0].paths[0], Manifest())))
    recorded = manifest.info.get("vocabulary") or {}
    text = text_settings(recorded, f"{path}: manifest") if recorded else TextSettings()
    if isinstance(name := recorded.get("beside"), str):
        copy, is_spm = os.path.join(os.path.dirname(path), name), bool(recorded.get("spm_model_file"))
        if os.path.exists(copy):
            return Vocabulary(copy if is_spm else None, None if is_spm else copy, text), digest, path
    return Vocabulary(text=text), digest, path


def write(tokenizer: FullTokenizer, directory: str, max_length: int | None = None) -> None:
    """Writes the vocabulary, its settings, and the files that Hugging Face's `AutoTokenizer` reads."""
    is_spm = tokenizer.is_spm
    name = "spiece.model" if is_spm else "vocab.txt"
    path = os.path.join(directory, name)
    if not os.path.isfile(path) or files.sha256(path) != files.sha256(tokenizer.path):
        files.publish_copy(tokenizer.path, path)
    names = ("cls_token", "sep_token", "mask_token", "pad_token", "unk_token")
    special = dict(zip(names, tokenizer.convert_ids_to_tokens(tokenizer.special_ids), strict=True))
    values = special | settings_of(tokenizer, max_length) | {
        _FILE_KEY: name, "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    if added := tokenizer_json.added_tokens(tokenizer):
        values["added_tokens_decoder"] = {str(token.pop("id")): token for token in added}
    if not is_spm:
        values = {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": True} | values
    elif fast := tokenizer_json.contents(tokenizer):
        files.write_json(os.path.join(directory, FAST_FILE), fast)
        values["tokenizer_class"] = "PreTrainedTokenizerFast"  # uses that file unchanged
    files.write_json(os.path.join(directory, "special_tokens_map.json"), special)
    files.write_json(os.path.join(directory, SETTINGS_FILE), values)


def _files(directory: str, named: Any, origin: str) -> tuple[str | None, str | None]:
    """Returns (SentencePiece model, WordPiece vocabulary); one `named` in settings has priority."""
    if named is not None:
        if not isinstance(named, str) or os.path.basename(named) != named:
            raise DataError(f"{origin}: {_FILE_KEY} {named!r} is not a plain file name")
        path = os.path.join(directory, named)
        if os.path.isfile(path):
            return (path, None) if named.endswith(".model") else (None, path)
    names = os.listdir(directory)
    models = [name for name in names if name.endswith(".model")]
    lists = [name for name in names if name.endswith(".txt") and "vocab" in name]
    if len(models) == 1 and models[0] != _OTHER_NUMBERS:
        return os.path.join(directory, models[0]), None
    return None, os.path.join(directory, lists[0]) if len(lists) == 1 else None


def _added(tokens: Sequence[Mapping[str, Any]], origin: str) -> dict[str, int]:
    """Returns the ids of added tokens, except the vocabulary's special tokens."""
    added = {}
    for token in tokens:
        content, i = token.get("content"), str(token.get("id"))
        if not isinstance(content, str) or not i.isdecimal() or not content.strip():
            raise DataError(f"{origin}: not an added token: {token}")
        if content in SPECIAL:
            continue
        if unsupported := [key for key in ("special", "single_word") if token.get(key)]:
            raise DataError(f"{origin}: the added token {content!r} is {unsupported[0]}, which is "
                            "not supported")
        added[content] = int(i)
    return added
