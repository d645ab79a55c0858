"""A preset of keras-hub's ALBERT, read as data: `config.json` and `model.weights.h5`.

Keras, which could run what such files say, never opens them. A preset holds the encoder alone.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import CheckpointError, ConfigError, some
from albert.formats import hf_tensors
from albert.formats.tokenizer_files import Vocabulary
from albert.formats.weights import Weights
from albert.storage import files

WEIGHTS_FILE = "model.weights.h5"
_CONFIG_FILE = "config.json"
_SPM_FILE = os.path.join("assets", "tokenizer", "vocabulary.spm")
# Their name of each of our settings.
_SETTINGS = {
    "vocab_size": "vocabulary_size", "embedding_size": "embedding_dim",
    "hidden_size": "hidden_dim", "num_hidden_layers": "num_layers",
    "num_hidden_groups": "num_groups", "inner_group_num": "num_inner_repetitions",
    "num_attention_heads": "num_heads", "intermediate_size": "intermediate_dim",
    "max_position_embeddings": "max_sequence_length", "type_vocab_size": "num_segments",
    "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "dropout",
}
_DENSE, _NORM = ("kernel", "bias"), ("gamma", "beta")
# Their layers outside of the blocks, and in a block from there on: ours, and its variables.
_OUTSIDE = {
    "layer_normalization": ("bert/embeddings/LayerNorm/", _NORM),
    "dense": ("bert/encoder/embedding_hidden_mapping_in/", _DENSE),
    "dense_1": ("bert/pooler/dense/", _DENSE),
}
_TABLES = {
    "reversible_embedding": "word_embeddings", "embedding": "token_type_embeddings",
    "position_embedding": "position_embeddings",
}
_INSIDE = {
    "_self_attention_layer/query_dense": ("attention_1/self/query/", _DENSE),
    "_self_attention_layer/key_dense": ("attention_1/self/key/", _DENSE),
    "_self_attention_layer/value_dense": ("attention_1/self/value/", _DENSE),
    "_self_attention_layer/output_dense": ("attention_1/output/dense/", _DENSE),
    "_self_attention_layer_norm": ("LayerNorm/", _NORM),
    "_feedforward_intermediate_dense": ("ffn_1/intermediate/dense/", _DENSE),
    "_feedforward_output_dense": ("ffn_1/intermediate/output/dense/", _DENSE),
    "_feedforward_layer_norm": ("LayerNorm_1/", _NORM),
}


def is_directory(path: str) -> bool:
    """Whether a directory is a preset of keras-hub."""
    return all(os.path.isfile(os.path.join(path, n)) for n in (_CONFIG_FILE, WEIGHTS_FILE))


def read_config(directory: str) -> AlbertConfig:
    """Returns the preset's architecture.

    Raises:
      ConfigError: it is of another model, or malformed.
    """
    path = os.path.join(directory, _CONFIG_FILE)
    values = files.read_json_object(path)
    if values.get("class_name") != "AlbertBackbone":
        raise ConfigError(f"{path}: class_name is {values.get('class_name')!r}, not AlbertBackbone")
    theirs = values.get("config")
    if not isinstance(theirs, Mapping):
        raise ConfigError(f"{path}: config must be an object")
    found = {ours: theirs[name] for ours, name in _SETTINGS.items() if name in theirs}
    return AlbertConfig.from_dict(found | {"hidden_act": "gelu"}, path)


def vocabulary(directory: str) -> Vocabulary:
    """Returns the preset's vocabulary, an empty one if it has none."""
    path = os.path.join(directory, _SPM_FILE)
    return Vocabulary(path) if os.path.isfile(path) else Vocabulary()


def open_weights(directory: str, config: AlbertConfig) -> Weights:
    """Returns the encoder's tensors by released name.

    Raises:
      CheckpointError: they are damaged, or not of such an encoder.
    """
    path = os.path.join(directory, WEIGHTS_FILE)
    reader, keys = _Reader(path), _keys(config)
    if absent := [name for name in keys.values() if name not in reader.shapes]:
        raise CheckpointError(f"{path} is not of such an encoder: it has no {some(absent)}")
    return Weights(path, reader, keys)


def _keys(config: AlbertConfig) -> dict[str, str]:
    """Returns {our name: name in the file}."""
    keys = {f"bert/embeddings/{ours}": f"layers/{n}/vars/0" for n, ours in _TABLES.items()}
    layers = {f"layers/{name}": scope for name, scope in _OUTSIDE.items()}
    count = config.inner_group_num
    for number in range(config.num_hidden_groups * count):
        theirs = "layers/transformer_encoder" + (f"_{number}" if number else "")
        scope = f"bert/encoder/transformer/group_{number // count}/inner_group_{number % count}/"
        layers |= {
            f"{theirs}/{name}": (scope + inner, leaves) for name, (inner, leaves) in _INSIDE.items()
        }
    for theirs, (scope, leaves) in layers.items():
        keys |= {scope + leaf: f"{theirs}/vars/{i}" for i, leaf in enumerate(leaves)}
    return keys


class _Reader:
    """Their variables. Those of attention have an axis for the heads, ours have none."""

    def __init__(self, path: str):
        found, self._read = hf_tensors.open_h5(path, _variables)
        self.shapes = {name: _without_heads(name, shape) for name, shape in found.items()}

    def read(self, name: str) -> np.ndarray:
        return np.asarray(self._read(name), np.float32).reshape(self.shapes[name])


def _variables(stream: Any) -> dict[str, Any]:
    found = {}
    stream.visititems(
        lambda name, value: found.update({name: value}) if hasattr(value, "shape") else None
    )
    return found


def _without_heads(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if "/_self_attention_layer/" not in name:
        return shape
    if len(shape) == 3 and "/output_dense/" in name:
        return shape[0] * shape[1], shape[2]
    if len(shape) == 3:
        return shape[0], shape[1] * shape[2]
    return (int(np.prod(shape)),)
