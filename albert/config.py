"""`AlbertConfig`: the architecture, exactly as `albert_config.json` states it.

Separate from `modeling`, so that a bad config is refused before Keras and
TensorFlow are imported.
"""

import dataclasses
import difflib
import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from albert.errors import ConfigError, DataError, FlagError
from albert.storage import files, filesystem, shipped

log = logging.getLogger("albert")

ACTIVATIONS = ("gelu", "relu", "tanh", "linear", "gelu_erf")
_TANH_FORMS = ("gelu_new", "gelu_pytorch_tanh")  # Hugging Face's names for our "gelu"
PARAMETER_SHARING = ("all", "attention", "ffn", "none")
RELEASED = tuple(
    f"{size}_{version}" for size in ("base", "large", "xlarge", "xxlarge")
    for version in ("v1", "v2")
)
BUILT_IN = ("quickstart", "tiny", "mini", "small")  # of configs/; docs/guides/pretrain.md compares them
# Without these no released file is complete; the rest has one value everywhere.
_REQUIRED = (
    "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "intermediate_size",
)
# Leftovers of the authors' internal experiments that released files contain.
_RELEASED_BUT_UNUSED = ("net_structure_type", "gap_size", "num_memory_blocks")


@dataclasses.dataclass(frozen=True)
class AlbertConfig:
    """Architecture of an ALBERT encoder; defaults are those of xxlarge, as in the original.

    Raises:
      ConfigError: every problem found, in one message.
    """

    vocab_size: int  # V, rows of the word-embedding table
    embedding_size: int = 128  # E, width of word, segment and position embeddings
    hidden_size: int = 4096  # H, width of the encoder
    num_hidden_layers: int = 12  # applications of a layer, not sets of weights
    num_hidden_groups: int = 1  # distinct sets of weights over the depth
    num_attention_heads: int = 64  # N; H must be a multiple of it
    intermediate_size: int = 16384  # I, inner width of the feed-forward block
    inner_group_num: int = 1  # blocks with distinct weights inside one layer
    down_scale_factor: int = 1  # read and kept, never used (as in the original)
    hidden_act: str = "gelu"  # feed-forward and masked-LM transform; tanh form of gelu
    hidden_dropout_prob: float = 0.0  # after embeddings, attention output, feed-forward
    attention_probs_dropout_prob: float = 0.0  # on the attention probabilities
    max_position_embeddings: int = 512  # longest sequence
    type_vocab_size: int = 2  # segments
    initializer_range: float = 0.02  # standard deviation of the truncated normal
    # What the layers of a group share (paper, Table 4); released configs have no such key.
    parameter_sharing: str = "all"
    # Keys of the file that this toolkit does not know: written back unchanged, but not used.
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        problems = _problems(self)
        if problems:
            raise ConfigError("bad ALBERT config: " + "; ".join(problems))

    @property
    def head_size(self) -> int:
        """D = H / N."""
        return self.hidden_size // self.num_attention_heads

    @property
    def has_embedding_projection(self) -> bool:
        """Whether `embedding_hidden_mapping_in` exists: only when E and H differ."""
        return self.embedding_size != self.hidden_size

    def group_of_layer(self, layer: int) -> int:
        """Returns the parameter group of a layer.

        True division and truncation as in the original: it differs from
        floor(layer * groups / layers) in a few odd cases, and released
        checkpoints were trained with it.
        """
        return int(layer / self.num_hidden_layers * self.num_hidden_groups)

    def attention_group(self, layer: int) -> int:
        """Returns the group that owns a layer's attention weights, its LayerNorm included."""
        is_shared = self.parameter_sharing in ("all", "attention")
        return self.group_of_layer(layer) if is_shared else layer

    def feed_forward_group(self, layer: int) -> int:
        """Returns the group that owns a layer's feed-forward weights, its LayerNorm included."""
        is_shared = self.parameter_sharing in ("all", "ffn")
        return self.group_of_layer(layer) if is_shared else layer

    def groups_in_use(self) -> tuple[set[int], set[int]]:
        """Returns the groups whose attention, and whose feed-forward weights, some layer uses.

        Rounding leaves a group out in a few odd cases (see `group_of_layer`).
        """
        layers = range(self.num_hidden_layers)
        return set(map(self.attention_group, layers)), set(map(self.feed_forward_group, layers))

    def with_dropout(self, rate: float) -> "AlbertConfig":
        """Returns the same architecture with both dropout rates `rate`, a ConfigError if not < 1."""
        return dataclasses.replace(
            self, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate
        )

    def without_dropout(self) -> "AlbertConfig":
        """Returns the same architecture with both dropout rates zero."""
        return self.with_dropout(0.0)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = "config") -> "AlbertConfig":
        """Returns the config of a parsed `albert_config.json`; `origin` names it in errors.

        Unknown keys are kept in `extra` with a warning.

        Raises:
          ConfigError: missing sizes, misspelt keys, wrong types, sizes that do not fit.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"{origin}: expected a JSON object, got {type(values).__name__}")
        names = [f.name for f in dataclasses.fields(cls) if f.name != "extra"]
        known = {k: v for k, v in values.items() if k in names}
        if known.get("hidden_act") in _TANH_FORMS:
            known["hidden_act"] = "gelu"
        extra = {k: v for k, v in values.items() if k not in names}
        absent = [name for name in names if name not in values]
        problems, misspelt = [], set()
        for key in extra:
            near = difflib.get_close_matches(key, absent, n=1, cutoff=0.8)
            if near and key not in _RELEASED_BUT_UNUSED:
                misspelt.add(near[0])
                problems.append(f"unknown key {key!r}, did you mean {near[0]!r}?")
        problems += [f"missing key {k!r}" for k in _REQUIRED if k in absent and k not in misspelt]
        probe = dict.fromkeys(_REQUIRED, 64) | known
        try:
            config = cls(**probe, extra=extra)
        except ConfigError as error:
            problems.append(str(error).removeprefix("bad ALBERT config: "))
        if problems:
            raise ConfigError(f"{origin}: " + "; ".join(problems))
        if "num_attention_heads" in absent:
            log.warning(
                "%s: no num_attention_heads, so the original's default of %d is taken; no weight's "
                "shape depends on it, so a wrong number gives wrong results without any error "
                "(released: base 12, large 16, xlarge 16, xxlarge 64)",
                origin, config.num_attention_heads,
            )
        unused = [k for k in extra if k not in _RELEASED_BUT_UNUSED]
        if unused:
            log.warning("%s: unknown keys kept but not used: %s", origin, ", ".join(unused))
        return config

    @classmethod
    def from_json_file(cls, path: str) -> "AlbertConfig":
        """Reads `albert_config.json`.

        Raises:
          ConfigError: see `from_dict`; DataError: no such file, or not JSON.
        """
        found = filesystem.local_copy(path, "albert_config_file")
        return cls.from_dict(files.read_json(found), origin=path)

    @classmethod
    def released(cls, name: str) -> "AlbertConfig":
        """Returns a released architecture, "base_v1" to "xxlarge_v2", or one of `BUILT_IN`.

        Raises:
          DataError: there is none of this name.
        """
        if name not in RELEASED + BUILT_IN:
            raise DataError(f"no architecture {name!r}: there are {', '.join(RELEASED + BUILT_IN)}")
        return cls.from_json_file(_released_file(name))

    @classmethod
    def from_flag(cls, value: str) -> "AlbertConfig":
        """Reads the value of --albert_config_file: a file, or the name of an architecture.

        Raises:
          ConfigError: see `from_dict`; DataError: it is neither.
        """
        return cls.from_json_file(files.require_file(config_file(value), "albert_config_file"))

    def check_length(self, max_seq_length: int | None, origin: str) -> None:
        """Raises a FlagError if --max_seq_length is more than the positions of `origin`'s model."""
        if max_seq_length and max_seq_length > self.max_position_embeddings:
            raise FlagError(
                f"--max_seq_length={max_seq_length} exceeds max_position_embeddings "
                f"{self.max_position_embeddings} of {origin}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns every key, including unknown ones; `parameter_sharing` only if it isn't "all"."""
        values = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "extra"
        }
        if self.parameter_sharing == "all":
            del values["parameter_sharing"]
        return values | dict(self.extra)

    def to_json_string(self) -> str:
        """Returns the file's text: indent 2, sorted keys, one final newline."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


def config_file(value: str) -> str:
    """Returns the file of a released or built-in architecture, and any other value unchanged.

    A file of that name takes precedence.

    Raises:
      DataError: it looks like a name, and is neither one of those nor a file.
    """
    if os.path.exists(value) or not re.fullmatch(r"[\w-]+", value):
        return value
    if value in shipped.names():
        return os.path.join(shipped.path_of(value), "albert_config.json")
    if value not in RELEASED + BUILT_IN:
        raise DataError(
            f"--albert_config_file: no such file: {value}; nor is it an architecture with a name: "
            + ", ".join((*RELEASED, *BUILT_IN, *shipped.names()))
        )
    return _released_file(value)


def _released_file(name: str) -> str:
    # In the package if it is installed, otherwise in the repository.
    here = os.path.dirname(os.path.abspath(__file__))
    folders = (os.path.join(here, "configs"), os.path.join(os.path.dirname(here), "configs"))
    folder = next(filter(os.path.isdir, folders), folders[0])
    return os.path.join(folder, f"{name}.json" if name in BUILT_IN else f"albert_{name}.json")


def _problems(config: AlbertConfig) -> list[str]:
    problems = []

    def check(is_good: bool, problem: str) -> None:
        if not is_good:
            problems.append(problem)

    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if field.type is int:
            check(is_whole, f"{name} must be an integer, got {value!r}")
            check(not is_whole or value >= 1, f"{name} must be at least 1, got {value}")
        elif field.type is float:
            is_number = is_whole or isinstance(value, float)
            check(is_number, f"{name} must be a number, got {value!r}")
            if is_number and "dropout" in name:
                check(0 <= value < 1, f"{name} must be in [0, 1), got {value}")
            elif is_number:
                check(0 < value < float("inf"), f"{name} must be above 0, got {value}")
    act, sharing = config.hidden_act, config.parameter_sharing
    is_known = isinstance(act, str) and (act.lower() or "linear") in ACTIVATIONS
    check(act is None or is_known,
          f"hidden_act must be one of {', '.join(ACTIVATIONS)}, got {act!r}")
    check(sharing in PARAMETER_SHARING,
          f"parameter_sharing must be one of {', '.join(PARAMETER_SHARING)}, got {sharing!r}")
    if not problems:  # these comparisons need numbers
        check(config.hidden_size % config.num_attention_heads == 0,
              f"hidden_size {config.hidden_size} is not a multiple of "
              f"num_attention_heads {config.num_attention_heads}")
        check(config.num_hidden_groups <= config.num_hidden_layers,
              f"num_hidden_groups {config.num_hidden_groups} exceeds "
              f"num_hidden_layers {config.num_hidden_layers}")
    return problems
