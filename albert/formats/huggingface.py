"""Converts configurations between Hugging Face's layout and ours.

A directory there holds `config.json`, weights (`hf_weights`) and a tokenizer.
"""

import dataclasses
import logging
import re
from collections.abc import Mapping
from typing import Any

from albert.config import AlbertConfig, config_file, is_theirs
from albert.errors import ConfigError, DataError
from albert.formats.hf_weights import groups_there, their_group
from albert.formats.metadata import RATE, REGRESSION, Metadata, check
from albert.formats.model_classes import MODEL_CLASSES, is_labelled
from albert.storage import cloud, files

log = logging.getLogger("albert")

CONFIG_FILE = "config.json"
METADATA_KEY = "albert"  # in their config.json; their library preserves and ignores it
_ACTIVATIONS = {
    "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu", "tanh": "tanh",
    "linear": "linear", "gelu_python": "gelu_erf",
}
# Missing keys have the defaults of their class.
_ALBERT = {
    "vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "num_hidden_layers": 12,
    "intermediate_size": 16384,
}
_BERT = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
# V, E, H, L, N of the released models, whose first conversions say "gelu" for the tanh form.
_RELEASED = {
    (30000, 128, 768, 12, 12), (30000, 128, 1024, 24, 16),
    (30000, 128, 2048, 24, 16), (30000, 128, 4096, 12, 64),
}


def read_config(value: str) -> AlbertConfig:
    """Returns the architecture that --albert_config_file names: a file of ours or theirs, or a name.

    Raises:
      ConfigError: it is malformed; DataError: there is no such file or name.
    """
    path = files.require_file(config_file(value), "albert_config_file")
    values = files.read_json(cloud.local_copy(path, "albert_config_file"))
    if is_theirs(values):
        return config_from_theirs(values, value)
    return AlbertConfig.from_dict(values, path)


def check_kind(values: Any, origin: str) -> None:
    """Raises a ConfigError if a configuration is neither of an ALBERT nor of a BERT encoder."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{origin}: expected a JSON object, got {type(values).__name__}")
    kind = values.get("model_type", "albert")
    if kind not in ("albert", "bert"):
        raise ConfigError(f"{origin}: model_type is {kind!r}; only 'albert' and 'bert' can be read")
    if lacking := [key for key in ("is_decoder", "add_cross_attention") if values.get(key)]:
        raise ConfigError(f"{origin}: {lacking[0]} is true; only encoders can be read")
    positions = values.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise ConfigError(f"{origin}: position_embedding_type {positions!r} is not supported")
    architectures = values.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        raise ConfigError(f"{origin}: architectures must be a list of names")


def as_albert(values: Any, origin: str) -> Mapping[str, Any]:
    """Returns the `config.json` of an ALBERT unchanged, and a BERT's as that of an equal ALBERT.

    A BERT is an ALBERT with a group for each layer, and embeddings as wide as the layers.

    Raises:
      ConfigError: it is of another kind of model, or something this toolkit does not compute.
    """
    check_kind(values, origin)
    if values.get("model_type") != "bert":
        return values
    values = _BERT | values
    dropout, act = values.get("classifier_dropout"), values["hidden_act"]
    return values | {
        "architectures": [re.sub("^Bert", "Albert", name) for name in values.get("architectures") or []],
        "classifier_dropout_prob": values["hidden_dropout_prob"] if dropout is None else dropout,
        "embedding_size": values["hidden_size"],
        "hidden_act": "gelu_python" if act == "gelu" else act,  # which they compute exactly
        "inner_group_num": 1,
        "model_type": "albert",
        "num_hidden_groups": values["num_hidden_layers"],
    }


def config_from_theirs(values: Mapping[str, Any], origin: str) -> AlbertConfig:
    """Returns the architecture of a Hugging Face `config.json`.

    Their "gelu" is the exact function (erf), as their library computes it, except at the released
    sizes without a fine-tuned head: those models were trained with the tanh form, although the
    conversions of version 1 say "gelu".

    Raises:
      ConfigError: see `as_albert`.
    """
    values = as_albert(values, origin)
    epsilon = values.get("layer_norm_eps", 1e-12)
    if epsilon != 1e-12:
        raise ConfigError(f"{origin}: layer_norm_eps is {epsilon}; only 1e-12 is supported")
    metadata = values.get(METADATA_KEY)
    if isinstance(metadata, dict) and (ours := metadata.get("config")) is not None:  # of this toolkit
        config = AlbertConfig.from_dict(ours, f"{origin}: {METADATA_KEY}")
        if all(values.get(key) == value for key, value in _their_sizes(config).items()):
            return config  # else theirs was changed
    names = {f.name for f in dataclasses.fields(AlbertConfig)} - {"extra", "hidden_act"}
    known = _ALBERT | {k: v for k, v in values.items() if k in names}
    known["hidden_act"] = _activation(values, origin)
    config = AlbertConfig.from_dict(known, origin)
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    if any(config.group_of_layer(i) != their_group(i, layers, groups) for i in range(layers)):
        config = dataclasses.replace(config, parameter_sharing="none")
    return config


def _activation(values: Mapping[str, Any], origin: str) -> str:
    name = values.get("hidden_act", "gelu_new")
    if not isinstance(name, str):
        raise ConfigError(f"{origin}: hidden_act {name!r} is not a name")
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name]
    if name != "gelu":
        raise ConfigError(f"{origin}: hidden_act {name!r} is not supported")
    sizes = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    is_released = tuple(values.get(key) for key in sizes) in _RELEASED
    names = set(values.get("architectures") or ()) & set(MODEL_CLASSES)
    is_fine_tuned = any(MODEL_CLASSES[name].task for name in names)
    is_tanh = is_released and not is_fine_tuned
    log.warning(
        '%s says hidden_act "gelu", which PyTorch computes exactly (erf), while the released models '
        "were trained with the tanh form: using %s. To decide yourself, change it to gelu_python (erf) "
        "or gelu_new (tanh)", origin, "tanh" if is_tanh else "erf",
    )
    return "gelu" if is_tanh else "gelu_erf"


def metadata_from_theirs(values: Mapping[str, Any], origin: str) -> Metadata:
    """Returns a model's metadata, besides the architecture, from a Hugging Face `config.json`.

    Raises:
      DataError: names the key whose value is of the wrong kind.
    """
    values = as_albert(values, origin)
    metadata = Metadata.from_dict(values.get(METADATA_KEY) or {}, f"{origin}: {METADATA_KEY}")
    settings = dict(metadata.settings)
    check(values, {"classifier_dropout_prob": RATE}, origin)
    if (dropout := values.get("classifier_dropout_prob")) is not None:
        settings["classifier_dropout"] = dropout
    architecture = (values.get("architectures") or [None])[0]
    metadata = dataclasses.replace(metadata, architecture=architecture, settings=settings)
    if not (architecture is None or is_labelled(architecture)):
        return metadata
    problem = Metadata.from_dict({"problem_type": values.get("problem_type")}, origin).problem_type
    names = values.get("id2label")
    if names is not None:
        ids = [str(i) for i in range(len(names))] if isinstance(names, dict) else []
        if not ids or set(names) != set(ids):
            raise DataError(f"{origin}: id2label must name the labels 0, 1, 2 ..., got {names!r:.80}")
        names = tuple(str(names[i]) for i in ids)
        if METADATA_KEY in values and names == _default_names(len(names)):
            names = None  # they need names, and the model has none
    return dataclasses.replace(metadata, label_names=names, problem_type=problem)


def _default_names(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))


def config_to_theirs(
    config: AlbertConfig, metadata: Metadata, token_ids: Mapping[str, int],
    num_labels: int | None = None, dtype: str = "float32",
) -> dict[str, Any]:
    """Returns the `config.json` of the metadata's architecture.

    `token_ids` has `pad`, `cls` and `sep`; `num_labels` is the head's number of outputs, if these
    are labels. METADATA_KEY holds everything for which their format has no key.
    """
    values = _their_sizes(config) | {
        "architectures": [metadata.architecture],
        "bos_token_id": token_ids["cls"],
        "classifier_dropout_prob": metadata.settings.get("classifier_dropout", 0.1),
        "dtype": dtype,
        "eos_token_id": token_ids["sep"],
        "layer_norm_eps": 1e-12,
        "model_type": "albert",
        "pad_token_id": token_ids["pad"],
    }
    if num_labels is not None:
        labels = metadata.label_names or _default_names(num_labels)
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
        is_text_model = metadata.architecture == "AlbertForSequenceClassification"
        default = REGRESSION if num_labels == 1 and is_text_model else None
        if problem := metadata.problem_type or default:
            values["problem_type"] = problem
    rest = metadata.to_dict()
    for of_theirs in ("architecture", "label_names", "problem_type"):
        rest.pop(of_theirs, None)
    return values | {METADATA_KEY: rest | {"config": config.to_dict()}}


def _their_sizes(config: AlbertConfig) -> dict[str, Any]:
    """Returns the keys of their `config.json` for the architecture."""
    acts = {"gelu": "gelu_new", "gelu_erf": "gelu", "": "linear"}
    act = (config.hidden_act or "").lower()
    copied = (
        "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "inner_group_num", "hidden_dropout_prob",
        "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
        "initializer_range",
    )
    return {key: getattr(config, key) for key in copied} | {
        "hidden_act": acts.get(act, act), "num_hidden_groups": groups_there(config),
    }
