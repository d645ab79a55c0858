"""Reads TF-Hub modules that tf-models-official exported (`albert_en_*/2` and `/3`) as data.

Variables have the layers' names, the architecture is in Keras's metadata, the vocabulary in the
assets. The graph is never run.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import CheckpointError, some
from albert.formats import hub, tensor_bundle
from albert.formats.tokenizer_files import Vocabulary
from albert.formats.weights import Weights
from albert.records.protobuf import fields
from albert.tokenization import TextSettings

# Keras's metadata; in a separate file since TensorFlow 2.5.
_METADATA_FILES = ("keras_metadata.pb", "saved_model.pb")
_ENCODER = re.compile(rb'"class_name": "(?:\w+>)?Albert\w*Encoder", "config": ')
_WORDS = "word_embeddings/embeddings"
_LOWER = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"
# Their name for each of our settings.
_SETTINGS = {
    "vocab_size": "vocab_size", "embedding_size": "embedding_width", "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers", "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size", "max_position_embeddings": "max_sequence_length",
    "type_vocab_size": "type_vocab_size", "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
}
_BLOCK = "bert/encoder/transformer/group_0/inner_group_0/"
# Their layers: ours, and their variables.
_TABLES = {
    _WORDS: "bert/embeddings/word_embeddings",
    "type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
    "position_embedding/embeddings": "bert/embeddings/position_embeddings",
    "bert/cls/predictions/output_bias/bias": "cls/predictions/output_bias",
}
_DENSE, _NORM = ("kernel", "bias"), ("gamma", "beta")
_LAYERS = {
    "embeddings/layer_norm": ("bert/embeddings/LayerNorm", _NORM),
    "embedding_projection": ("bert/encoder/embedding_hidden_mapping_in", _DENSE),
    "transformer/self_attention/query": (_BLOCK + "attention_1/self/query", _DENSE),
    "transformer/self_attention/key": (_BLOCK + "attention_1/self/key", _DENSE),
    "transformer/self_attention/value": (_BLOCK + "attention_1/self/value", _DENSE),
    "transformer/self_attention/attention_output": (_BLOCK + "attention_1/output/dense", _DENSE),
    "transformer/self_attention_layer_norm": (_BLOCK + "LayerNorm", _NORM),
    "transformer/intermediate": (_BLOCK + "ffn_1/intermediate/dense", _DENSE),
    "transformer/output": (_BLOCK + "ffn_1/intermediate/output/dense", _DENSE),
    "transformer/output_layer_norm": (_BLOCK + "LayerNorm_1", _NORM),
    "pooler_transform": ("bert/pooler/dense", _DENSE),
    # Of the part `mlm`, which not every module has.
    "bert/cls/predictions/transform/dense": ("cls/predictions/transform/dense", _DENSE),
    "bert/cls/predictions/transform/LayerNorm": ("cls/predictions/transform/LayerNorm", _NORM),
}
_OURS = _TABLES | {
    f"{theirs}/{leaf}": f"{ours}/{leaf}"
    for theirs, (ours, leaves) in _LAYERS.items() for leaf in leaves
}
_OF_HEADS = "transformer/self_attention/"


def is_directory(path: str) -> bool:
    """Whether a directory with a SavedModel is one of these modules."""
    prefix = os.path.join(path, "variables", "variables")
    return os.path.isfile(prefix + ".index") and _WORDS in _named(tensor_bundle.BundleReader(prefix))


def read_config(directory: str) -> AlbertConfig:
    """Returns the architecture from Keras's metadata.

    Raises:
      CheckpointError: it is missing; ConfigError: it is malformed.
    """
    for name in _METADATA_FILES:
        path = os.path.join(directory, name)
        if not os.path.isfile(path):
            continue
        with open(path, "rb") as stream:
            content = stream.read()
        if match := _ENCODER.search(content):
            text = content[match.end() :].decode("utf-8", "replace")
            try:
                theirs, _ = json.JSONDecoder().raw_decode(text)
            except (ValueError, RecursionError) as error:
                raise CheckpointError(f"{path}: the encoder's settings are damaged") from error
            values = {ours: theirs[name] for ours, name in _SETTINGS.items() if name in theirs}
            return AlbertConfig.from_dict(values | {"hidden_act": "gelu"}, path)
    raise CheckpointError(f"{directory} does not say its architecture: give --albert_config_file")


def vocabulary(directory: str) -> Vocabulary:
    """Returns the module's vocabulary, an empty one if it has none."""
    reader = tensor_bundle.BundleReader(os.path.join(directory, "variables", "variables"))
    is_lower = bool(reader.read(_LOWER)) if _LOWER in reader.shapes else True
    return hub.vocabulary_of(directory, TextSettings(is_lower))


def open_weights(directory: str) -> Weights:
    """Returns the tensors of the encoder, and of the masked-LM head if any, by released name.

    Raises:
      CheckpointError: they are damaged, or belong to another model.
    """
    reader = _Reader(os.path.join(directory, "variables", "variables"))
    keys = {_OURS[name]: name for name in reader.shapes if name in _OURS}
    needed = {ours for ours in _OURS.values() if not ours.startswith("cls/")}
    if absent := sorted(needed - set(keys)):
        raise CheckpointError(f"{directory} is not a module of an ALBERT: it has no {some(absent)}")
    return Weights(directory, reader, keys)


class _Reader:
    """Their variables by the layers' names; those of attention have an axis for the heads."""

    def __init__(self, prefix: str):
        self._bundle = tensor_bundle.BundleReader(prefix)
        self._bundle.check_complete()
        self._keys = _named(self._bundle)
        self.shapes = {
            name: _without_heads(name, self._bundle.shapes[key]) for name, key in self._keys.items()
        }

    def read(self, name: str) -> np.ndarray:
        return self._bundle.read(self._keys[name]).reshape(self.shapes[name])


def _named(reader: Any) -> Mapping[str, str]:
    """Returns {name of a variable: key in the bundle}, according to the object graph."""
    if tensor_bundle.OBJECT_GRAPH not in reader.shapes:
        return {}
    try:
        attributes = [
            dict(fields(attribute))
            for number, node in fields(reader.read(tensor_bundle.OBJECT_GRAPH).item()) if number == 1
            for number, attribute in fields(node) if number == 2
        ]
        named = {one[2].decode(): one[3].decode() for one in attributes if 2 in one}
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError("a module's object graph is damaged") from error
    return {name: key for name, key in named.items() if key in reader.shapes}


def _without_heads(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not name.startswith(_OF_HEADS):
        return shape
    if name.endswith("attention_output/kernel"):
        return shape[0] * shape[1], shape[2]
    if name.endswith("kernel"):
        return shape[0], shape[1] * shape[2]
    return (int(np.prod(shape)),)
