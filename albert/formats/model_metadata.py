"""A model's metadata, except for architecture and weights, checked when read.

Every layout stores them: without label names a classifier answers with numbers, and without its
problem type it applies the wrong function.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from albert.errors import DataError
from albert.formats import tokenizer_files
from albert.tokenization import TextSettings

SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"
REGRESSION = "regression"
PROBLEM_TYPES = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)  # Hugging Face's names

Kind = tuple[Callable[[Any], bool], str]  # whether a parsed value is valid, and what it must be


def is_count(value: Any, minimum: int = 0) -> bool:
    """Whether a parsed value is an integer of at least `minimum`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def is_number(value: Any) -> bool:
    """Whether a parsed value is a number, which may be infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_labels(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


COUNT: Kind = (is_count, "an integer from 0")
POSITIVE: Kind = (lambda value: is_count(value, 1), "an integer from 1")
RATE: Kind = (lambda v: is_number(v) and 0 <= v < 1, "a number from 0 to 1, 1 excluded")
FINITE: Kind = (lambda value: is_number(value) and math.isfinite(value), "a number")
TEXT: Kind = (lambda value: isinstance(value, str), "a text")
LABELS: Kind = (_is_labels, "a list of texts")
BOOL: Kind = (lambda value: isinstance(value, bool), "true or false")
OBJECT: Kind = (lambda value: isinstance(value, dict), "an object")

# Settings for building a model and truncating its inputs that aren't in its config, by the names of
# flags and constructor arguments.
SETTINGS: dict[str, Kind] = {
    "classifier_dropout": RATE,
    **dict.fromkeys(
        ("num_choices", "start_n_top", "end_n_top", "doc_stride", "max_query_length",
         "max_qa_length", "n_best_size", "max_answer_length"), POSITIVE,
    ),
    "null_score_diff_threshold": FINITE,
    "label_threshold": RATE,  # minimum probability of a label, where a text may have several
}
_KINDS: dict[str, Kind] = {
    "architecture": TEXT,
    "task": TEXT,
    "label_names": LABELS,
    "problem_type": (lambda value: value in PROBLEM_TYPES, f"one of {', '.join(PROBLEM_TYPES)}"),
    "num_texts": (lambda value: is_count(value) and value in (1, 2), "1 or 2"),
    "max_seq_length": POSITIVE,
    "pooling": TEXT,
    "text": OBJECT,
    "settings": OBJECT,
}


@dataclasses.dataclass(frozen=True)
class Metadata:
    """Metadata of a model; None if unknown."""

    architecture: str | None = None  # its class in `albert`
    task: str | None = None  # for which it was trained, by a run's name
    label_names: tuple[str, ...] | None = None  # in the order of their ids
    problem_type: str | None = None  # of a classifier
    num_texts: int | None = None  # per input: a text or a pair
    max_seq_length: int | None = None  # of its training
    pooling: str | None = None  # of embeddings, see `sentence_files`
    text: TextSettings | None = None  # how texts were preprocessed for it
    settings: Mapping[str, float] = dataclasses.field(default_factory=dict)  # see SETTINGS

    def to_dict(self) -> dict[str, Any]:
        """Returns the known values as JSON."""
        values = dataclasses.asdict(self)
        if self.label_names:
            values["label_names"] = list(self.label_names)
        return {key: value for key, value in values.items() if value not in (None, {})}

    @classmethod
    def from_dict(cls, values: Any, origin: str) -> "Metadata":
        """Returns the metadata of `to_dict`'s JSON; `origin` names file and key in errors.

        Raises:
          DataError: a value is of the wrong kind.
        """
        if not isinstance(values, dict):
            raise DataError(f"{origin} must be an object, got {values!r}")
        check(values, _KINDS, origin)
        known = {key: values[key] for key in _KINDS if values.get(key) is not None}
        if "label_names" in known:
            known["label_names"] = tuple(known["label_names"])
        if "text" in known:
            known["text"] = tokenizer_files.text_settings(known["text"], f"{origin}.text")
        if "settings" in known:
            check(known["settings"], SETTINGS, f"{origin}.settings")
            known["settings"] = pick(known["settings"])
        return cls(**known)


def of_model(model: Any) -> Metadata:
    """Returns a model's metadata, with the settings that its constructor has."""
    settings = dict(model.metadata.settings) | pick(model.get_config())
    return dataclasses.replace(model.metadata, settings=settings)


def pick(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those values that are SETTINGS."""
    return {key: values[key] for key in SETTINGS if values.get(key) is not None}


def check(values: Mapping[str, Any], kinds: Mapping[str, Kind], origin: str) -> None:
    """Refuses parsed values of the wrong kind; missing values and null are valid.

    Raises:
      DataError: names the file, the key, and what the value must be.
    """
    for key, (is_valid, expected) in kinds.items():
        value = values.get(key)
        if value is not None and not is_valid(value):
            raise DataError(f"{origin}: {key} must be {expected}, got {value!r:.80}")
