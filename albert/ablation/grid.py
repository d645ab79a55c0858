"""A grid: what all runs have in common, and in what each setting differs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from albert.data import files
from albert.errors import DataError, FlagError

_PARTS = ("config", "data", "train")


@dataclasses.dataclass(frozen=True)
class Stage:
    """The first part of a training, on other rows than the rest of it."""

    until: float  # share of the steps
    data: Mapping[str, Any]
    train: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of the comparison."""

    name: str
    config: Mapping[str, Any]  # keys of albert_config.json
    data: Mapping[str, Any]  # flags of create_pretraining_data
    train: Mapping[str, Any]  # flags of run_pretraining
    start: str | None  # setting whose weights, of the same seed, the training starts from
    paper: float | None  # the paper's figure for it
    tokens: int  # that it is trained on
    # What comes before `data` and `train` hold, in order; each with as many tokens a step.
    stages: tuple[Stage, ...] = ()


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is compared, and by what."""

    title: str
    about: str  # what the paper found, and what is otherwise here
    paper_measure: str  # what `Setting.paper` is
    primary: str  # metric of eval_results.json by which the order is judged
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    tokens: int  # that a run is trained on, where its setting says nothing else
    settings: tuple[Setting, ...]
    # What the curves run over, tokens or minutes. With minutes, the time is told in which each
    # setting reaches what the first one ends with.
    over: str
    # Flags of the data whose held-out records evaluate every run on its way; None: its own data's.
    held_out: Mapping[str, Any] | None
    # Fine-tuning of each run's model: {name: flags of run_classifier}.
    probes: Mapping[str, Mapping[str, Any]]
    # Other held-out records that each run is evaluated on: {name: flags of the data}.
    evaluations: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: str) -> "Grid":
        """Returns the grid of a JSON file.

        Raises:
          DataError: names the file and the key that is missing, unknown or unusable.
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
            start, paper = own.pop("start", None), own.pop("paper", None)
            tokens = own.pop("tokens", values.get("tokens"))
            stages = _stages(f"{path}: {name}", own.pop("stages", []), parts)
            if not isinstance(tokens, int) or tokens < 1:
                raise DataError(f"{path}: tokens must be a whole number from 1")
            if own:
                raise DataError(f"{path}: setting {name}: unknown {', '.join(own)}")
            if start is not None and start not in [s.name for s in settings]:
                raise DataError(f"{path}: setting {name} starts from {start}: put that before it")
            settings.append(
                Setting(name, **parts, start=start, paper=paper, tokens=tokens, stages=stages)
            )
        values.setdefault("evaluations", {})
        values.setdefault("held_out", None)
        values.setdefault("probes", {})
        values.setdefault("over", "tokens")
        if values["over"] not in ("tokens", "minutes"):
            raise DataError(f"{path}: over must be tokens or minutes")
        wanted = {field.name for field in dataclasses.fields(cls)} - {"settings"}
        if wrong := wanted ^ set(values):
            raise DataError(f"{path}: missing or unknown: {', '.join(sorted(wrong))}")
        if not (settings and values["seeds"] and values["metrics"]):
            raise DataError(f"{path}: settings, seeds and metrics must not be empty")
        for key in ("seeds", "metrics"):
            values[key] = tuple(values[key])
        return cls(**values, settings=tuple(settings))

    def narrowed(
        self, names: Sequence[str] | None, seeds: Sequence[int] | None, tokens: int | None
    ) -> "Grid":
        """Returns the grid with these settings, seeds and tokens alone; None leaves what is."""
        known = {setting.name: setting for setting in self.settings}
        if unknown := [name for name in names or () if name not in known]:
            raise FlagError(f"--settings: no {', '.join(unknown)}; there are {', '.join(known)}")
        chosen = [known[name] for name in names] if names else list(self.settings)
        if alone := [s.name for s in chosen if s.start and s.start not in [c.name for c in chosen]]:
            raise FlagError(f"--settings: {', '.join(alone)} starts from another, which is missing")
        if tokens:  # each setting's share of them stays
            chosen = [
                dataclasses.replace(s, tokens=round(s.tokens * tokens / self.tokens))
                for s in chosen
            ]
        return dataclasses.replace(
            self, settings=tuple(chosen), seeds=tuple(seeds or self.seeds),
            tokens=tokens or self.tokens,
        )


def _stages(
    where: str, values: Any, parts: Mapping[str, Mapping[str, Any]]
) -> tuple[Stage, ...]:
    """Returns the stages before what `parts` hold, each made whole from them."""
    if not isinstance(values, list):
        raise DataError(f"{where}.stages must be a list")
    stages = []
    for number, own in enumerate(values):
        place = f"{where}.stages[{number}]"
        own = dict(_mapping(place, "it", own))
        until = own.pop("until", None)
        before = stages[-1].until if stages else 0
        if not isinstance(until, int | float) or not before < until < 1:
            raise DataError(f"{place}: until must be a share of the steps that rises to below 1")
        whole = {p: parts[p] | _mapping(place, p, own.pop(p, {})) for p in ("data", "train")}
        if own:
            raise DataError(f"{place}: unknown {', '.join(own)}")
        if tokens_per_step(**whole) != tokens_per_step(parts["data"], parts["train"]):
            raise DataError(f"{place}: max_seq_length x train_batch_size must be as afterwards")
        stages.append(Stage(until, **whole))
    return tuple(stages)


def tokens_per_step(data: Mapping[str, Any], train: Mapping[str, Any]) -> int:
    """Returns how many places, padding included, the rows of a step have."""
    return data["max_seq_length"] * train["train_batch_size"]


def _mapping(path: str, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{path}: {name} must be an object of names and values")
    return value
