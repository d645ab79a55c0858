"""A grid: what its runs share, and how each setting differs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from albert.config import AlbertConfig
from albert.errors import DataError, FlagError
from albert.formats import huggingface
from albert.storage import files

_PARTS = ("config", "data", "train")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of the comparison."""

    name: str
    config: Mapping[str, Any]  # keys of albert_config.json; `like` names an architecture to modify
    data: Mapping[str, Any]  # flags of create_pretraining_data
    train: Mapping[str, Any]  # flags of run_pretraining
    start: str | None  # setting whose weights (same seed) training starts from
    paper: float | None  # the paper's result
    tokens: int  # to train on
    # Pretrained model that training starts from, with the grid's vocabulary.
    model: str | None = None

    def architecture(self, vocab_size: int) -> AlbertConfig:
        """Returns its configuration for a vocabulary of `vocab_size` tokens.

        Raises:
          UserError: it is not a valid architecture.
        """
        own = dict(self.config)
        like = own.pop("like", None)
        whole = huggingface.read_config(like).to_dict() if like else {}
        return AlbertConfig.from_dict(
            whole | {"vocab_size": vocab_size} | own, f"setting {self.name}"
        )


@dataclasses.dataclass(frozen=True)
class Grid:
    """The settings to compare, and the metrics to compare them by."""

    title: str
    about: str  # the paper's finding, and how this grid differs
    paper_measure: str  # name of the metric of `Setting.paper`
    primary: str  # metric of eval_results.json that ranks the settings
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    tokens: int  # to train a run on, unless its setting overrides it
    settings: tuple[Setting, ...]
    # Flags of the data whose held-out records evaluate all runs; None: each run uses its own.
    held_out: Mapping[str, Any] | None = None
    # Additional held-out records that evaluate each run: {name: flags of the data}.
    evaluations: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> "Grid":
        """Reads a grid from a JSON file.

        Raises:
          DataError: a key is missing, unknown or unusable; the message names it and the file.
        """
        values = dict(files.read_json_object(path))
        common = {part: _mapping(path, part, values.pop(part, {})) for part in _PARTS}
        settings = []
        for name, own in _mapping(path, "settings", values.pop("settings", None)).items():
            own = dict(_mapping(path, f"settings.{name}", own))
            parts = {
                part: common[part] | _mapping(path, f"{name}.{part}", own.pop(part, {}))
                for part in _PARTS
            }
            start, paper, model = (own.pop(key, None) for key in ("start", "paper", "model"))
            tokens = own.pop("tokens", values.get("tokens"))
            if not isinstance(tokens, int) or tokens < 1:
                raise DataError(f"{path}: tokens must be an integer from 1")
            if own:
                raise DataError(f"{path}: setting {name}: unknown {', '.join(own)}")
            if start is not None and start not in [s.name for s in settings]:
                raise DataError(f"{path}: setting {name} starts from {start}: put that before it")
            if start and model:
                raise DataError(f"{path}: setting {name}: give one of start and model")
            settings.append(Setting(name, **parts, start=start, paper=paper, tokens=tokens, model=model))
        known = {field.name for field in dataclasses.fields(cls)} - {"settings"}
        optional = {"held_out", "evaluations"}
        if wrong := (set(values) - known) | (known - optional - set(values)):
            raise DataError(f"{path}: missing or unknown: {', '.join(sorted(wrong))}")
        if not (settings and values["seeds"] and values["metrics"]):
            raise DataError(f"{path}: settings, seeds and metrics must not be empty")
        for key in ("seeds", "metrics"):
            values[key] = tuple(values[key])
        return cls(**values, settings=tuple(settings))

    def narrowed(
        self, names: Sequence[str] | None, seeds: Sequence[int] | None, tokens: int | None
    ) -> "Grid":
        """Returns the grid restricted to these settings, seeds and tokens; None keeps the grid's."""
        known = {setting.name: setting for setting in self.settings}
        if unknown := [name for name in names or () if name not in known]:
            raise FlagError(f"--settings: no {', '.join(unknown)}; there are {', '.join(known)}")
        chosen = [known[name] for name in names] if names else list(self.settings)
        if alone := [s.name for s in chosen if s.start and s.start not in [c.name for c in chosen]]:
            raise FlagError(f"--settings: {', '.join(alone)} starts from another, which is missing")
        if tokens:  # a setting with twice the grid's tokens still gets twice as many
            chosen = [
                dataclasses.replace(s, tokens=round(s.tokens * tokens / self.tokens))
                for s in chosen
            ]
        return dataclasses.replace(
            self, settings=tuple(chosen), seeds=tuple(seeds or self.seeds),
            tokens=tokens or self.tokens,
        )


def tokens_per_step(data: Mapping[str, Any], train: Mapping[str, Any]) -> int:
    """Returns the number of tokens in a step, padding included."""
    return data["max_seq_length"] * train["train_batch_size"]


def _mapping(path: str, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{path}: {name} must be an object of names and values")
    return value
