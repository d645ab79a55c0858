"""`AlbertConfig`: the architecture, exactly as `albert_config.json` states it.

It is not part of `modeling`, so that commands reject a bad config before they import Keras and
TensorFlow.
"""

import dataclasses
import glob
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from albert.errors import ConfigError, DataError, FlagError
from albert.storage import cloud, files, shipped

log = logging.getLogger("albert")

LAYER_NORM_EPSILON = 1e-12  # that of tf.contrib, with which the released models were trained
# Added to the scores of masked keys. It isn't -inf: the softmax of a sequence whose keys are all
# masked must ignore the mask, as in the released models.
MASK_ADDER = -10000.0
NO_OPTION = -1e4  # the logit of a choice that does not exist; finite in float16
ACTIVATIONS = ("gelu", "relu", "tanh", "linear", "gelu_erf")
_TANH_FORMS = ("gelu_new", "gelu_pytorch_tanh")  # Hugging Face's names for our "gelu"
PARAMETER_SHARING = ("all", "attention", "ffn", "none")
# Keys that a file must have.
_REQUIRED = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "intermediate_size")
# Each layer is a step of every computation; no weight's shape limits their number.
_MAX = {"num_hidden_layers": 1000, "inner_group_num": 1000}
# Leftovers of the authors' experiments in the released files.
_RELEASED_BUT_UNUSED = ("net_structure_type", "gap_size", "num_memory_blocks")


@dataclasses.dataclass(frozen=True)
class AlbertConfig:
    """Architecture of an ALBERT encoder. The defaults are those of xxlarge, as in the original.

    The arguments are the keys of `albert_config.json` (docs/reference/configuration.md).

    Raises:
      ConfigError: every problem found, in one message.

    Example:
      >>> config = albert.AlbertConfig.released("base_v2")
      >>> config.hidden_size, config.num_hidden_layers
      (768, 12)
      >>> small = albert.AlbertConfig(vocab_size=8000, hidden_size=64, num_attention_heads=4,
      ...                             num_hidden_layers=3, intermediate_size=256)
      >>> albert.AlbertModel(small).count_params()  # with random weights
      1152448
    """

    vocab_size: int  # V, number of tokens
    embedding_size: int = 128  # E, width of token, segment and position embeddings
    hidden_size: int = 4096  # H, width of the encoder
    num_hidden_layers: int = 12  # how often a layer is applied; layers may share their weights
    num_hidden_groups: int = 1  # sets of weights; consecutive layers share one
    num_attention_heads: int = 64  # N; H must be a multiple of it
    intermediate_size: int = 16384  # I, inner width of the feed-forward network
    inner_group_num: int = 1  # transformer blocks in a layer, each with its own weights
    down_scale_factor: int = 1  # has no effect, as in the original
    hidden_act: str = "gelu"  # activation of feed-forward network and masked-LM head; tanh form of gelu
    hidden_dropout_prob: float = 0.0  # dropout of embeddings, attention output, feed-forward output
    attention_probs_dropout_prob: float = 0.0  # dropout of the attention probabilities
    max_position_embeddings: int = 512  # maximum sequence length in tokens
    type_vocab_size: int = 2  # number of segments
    initializer_range: float = 0.02  # standard deviation of the initial weights (truncated normal)
    # What the layers of a group share: all, attention, ffn or none (paper, table 4).
    parameter_sharing: str = "all"
    # Unknown keys of the file: written back unchanged, but not used.
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    classifier_dropout_prob: dataclasses.InitVar[float | None] = None  # Hugging Face's; see below

    def __post_init__(self, classifier_dropout_prob):
        if classifier_dropout_prob is not None:
            log.warning("classifier_dropout_prob=%s: no effect, pass classifier_dropout to the model's class",
                        classifier_dropout_prob)
        if problems := [*_problems(self)] or [*_contradictions(self)]:  # which need numbers
            raise ConfigError("bad ALBERT config: " + "; ".join(problems))

    @property
    def head_size(self) -> int:
        """D = H / N."""
        return self.hidden_size // self.num_attention_heads

    @property
    def has_embedding_projection(self) -> bool:
        """Whether E and H differ, so that embeddings are projected to width H."""
        return self.embedding_size != self.hidden_size

    def group_of_layer(self, layer: int) -> int:
        """Returns the parameter group of a layer.

        Divides and truncates as the original does, with which released checkpoints were trained:
        floating-point rounding makes it differ from layer * groups // layers in a few cases.
        """
        return int(layer / self.num_hidden_layers * self.num_hidden_groups)

    def attention_group(self, layer: int) -> int:
        """Returns the group of a layer's attention weights and of their LayerNorm."""
        is_shared = self.parameter_sharing in ("all", "attention")
        return self.group_of_layer(layer) if is_shared else layer

    def feed_forward_group(self, layer: int) -> int:
        """Returns the group of a layer's feed-forward weights and of their LayerNorm."""
        is_shared = self.parameter_sharing in ("all", "ffn")
        return self.group_of_layer(layer) if is_shared else layer

    def groups_in_use(self) -> tuple[set[int], set[int]]:
        """Returns the groups whose attention weights are used, and whose feed-forward weights are.

        Rounding skips a group in a few cases (see `group_of_layer`).
        """
        layers = range(self.num_hidden_layers)
        return set(map(self.attention_group, layers)), set(map(self.feed_forward_group, layers))

    def with_dropout(self, rate: float) -> "AlbertConfig":
        """Returns the same architecture with both dropout rates set to `rate`, which is below 1."""
        return dataclasses.replace(self, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = "config") -> "AlbertConfig":
        """Returns the config in a parsed `albert_config.json`. Unknown keys cause a warning.

        Args:
          origin: name of the file in errors.

        Raises:
          ConfigError: sizes are missing or do not fit, or types are wrong.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"{origin}: expected a JSON object, got {type(values).__name__}")
        names = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        known = {key: value for key, value in values.items() if key in names}
        extra = {key: value for key, value in values.items() if key not in names}
        unused = [key for key in extra if key not in _RELEASED_BUT_UNUSED]
        if missing := [key for key in _REQUIRED if key not in known]:
            unknown = f"; unknown keys: {', '.join(unused)}" if unused else ""
            raise ConfigError(f"{origin}: missing keys: {', '.join(missing)}{unknown}")
        if known.get("hidden_act") in _TANH_FORMS:
            known["hidden_act"] = "gelu"
        try:
            config = cls(**known, extra=extra)
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from None
        if "num_attention_heads" not in known:
            log.warning(
                "%s: no num_attention_heads: using the original's default, %d. A wrong number gives "
                "wrong results without an error, since no weight's shape depends on it (released "
                "models: base 12, large 16, xlarge 16, xxlarge 64)",
                origin, config.num_attention_heads,
            )
        if unused:
            log.warning("%s: unknown keys kept but not used: %s", origin, ", ".join(unused))
        return config

    @classmethod
    def from_json_file(cls, path: str) -> "AlbertConfig":
        """Reads `albert_config.json`.

        Raises:
          ConfigError: see `from_dict`; DataError: no such file, or not JSON.
        """
        values = files.read_json(cloud.local_copy(path, "albert_config_file"))
        if is_theirs(values):  # whose "gelu" is another function, and whose defaults differ
            raise ConfigError(f"{path} is a configuration of Hugging Face: open its directory with "
                              "albert.from_pretrained, or pass it as --albert_config_file")
        return cls.from_dict(values, origin=path)

    @classmethod
    def released(cls, name: str) -> "AlbertConfig":
        """Returns the architecture of a released model, "base_v1" to "xxlarge_v2", or of a small one.

        Raises:
          DataError: no architecture has this name.
        """
        return cls.from_json_file(architectures().get(name) or config_file(name))

    def check_length(self, max_seq_length: int | None, origin: str) -> None:
        """Raises a FlagError if `max_seq_length` exceeds the maximum of `origin`'s model."""
        if max_seq_length and max_seq_length > self.max_position_embeddings:
            raise FlagError(f"max_seq_length={max_seq_length} exceeds max_position_embeddings "
                            f"{self.max_position_embeddings} of {origin}")

    def to_dict(self) -> dict[str, Any]:
        """Returns all keys, including unknown ones; `parameter_sharing` only if it isn't "all"."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "extra"}
        if self.parameter_sharing == "all":
            del values["parameter_sharing"]
        return values | dict(self.extra)

    def to_json_string(self) -> str:
        """Returns the text of `albert_config.json`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


def is_theirs(values: Any) -> bool:
    """Whether parsed values are Hugging Face's `config.json`, which `formats.huggingface` reads."""
    return isinstance(values, Mapping) and "model_type" in values


def config_file(value: str) -> str:
    """Returns the path of a named architecture's file, and any other value unchanged.

    An existing file, or the directory of a model, takes precedence over an architecture of that name.

    Raises:
      DataError: it is not a path, and no architecture has this name.
    """
    names = ("albert_config.json", "config.json")
    is_model = os.path.isdir(value) and any(os.path.exists(os.path.join(value, name)) for name in names)
    if os.path.isfile(value) or is_model or not re.fullmatch(r"[\w-]+", value):
        return value
    if value not in (named := architectures()):
        raise DataError(f"albert_config_file: no such file: {value}. Architectures with a name: "
                        + ", ".join(named))
    return named[value]


def architectures() -> dict[str, str]:
    """Returns {name: file} of the architectures in configs/ and of the built-in models."""
    package = os.path.dirname(os.path.abspath(__file__))
    # In an installed package, or in the repository.
    files_of = (glob.glob(os.path.join(folder, "configs", "*.json"))
                for folder in (package, os.path.dirname(package)))
    paths = sorted(next(filter(None, files_of), ()))
    named = {os.path.basename(path)[:-5].removeprefix("albert_"): path for path in paths}
    return named | {
        name: os.path.join(shipped.path_of(name), "albert_config.json") for name in shipped.names()
    }


def _problems(config: AlbertConfig) -> Iterator[str]:
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if field.type is int:
            most = _MAX.get(name, math.inf)
            if not (is_number and isinstance(value, int) and 1 <= value <= most):
                end = f"1 to {most:,}" if name in _MAX else "1"
                yield f"{name} must be an integer from {end}, got {value!r}"
        elif field.type is float and "dropout" in name:
            if not (is_number and 0 <= value < 1):
                yield f"{name} must be a number in [0, 1), got {value!r}"
        elif field.type is float and not (is_number and 0 < value < math.inf):
            yield f"{name} must be a number above 0, got {value!r}"
    act, sharing = config.hidden_act, config.parameter_sharing
    if act is not None and not (isinstance(act, str) and (act.lower() or "linear") in ACTIVATIONS):
        yield f"hidden_act must be one of {', '.join(ACTIVATIONS)}, got {act!r}"
    if sharing not in PARAMETER_SHARING:
        yield f"parameter_sharing must be one of {', '.join(PARAMETER_SHARING)}, got {sharing!r}"


def _contradictions(config: AlbertConfig) -> Iterator[str]:
    if config.hidden_size % config.num_attention_heads:
        yield (f"hidden_size {config.hidden_size} is not a multiple of "
               f"num_attention_heads {config.num_attention_heads}")
    if config.num_hidden_groups > config.num_hidden_layers:
        yield (f"num_hidden_groups {config.num_hidden_groups} exceeds "
               f"num_hidden_layers {config.num_hidden_layers}")
