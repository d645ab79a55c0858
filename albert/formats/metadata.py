"""What is known of a model besides its architecture and weights, and the state of the run that saved it.

Every layout stores the metadata: without label names a classifier answers with numbers, and without its
problem type it applies the wrong function. Next to a checkpoint, `model.ckpt-<step>.json` has

    metadata     see `Metadata`
    config       the architecture
    results      of the checkpoint's evaluation, if there was one
    flags        of the run
    step, records_seen, loss_scale, version    where the run was

Such files may be edited by hand or come from elsewhere, so the type of every value is checked. No
TensorFlow.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from albert.config import AlbertConfig
from albert.errors import DataError
from albert.formats import tokenizer_files
from albert.storage import files
from albert.tokenization import TextSettings

SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"
REGRESSION = "regression"
PROBLEM_TYPES = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)  # Hugging Face's names
_THRESHOLD = "null_score_diff_threshold"


# === The kinds of parsed values: whether one is valid, and what it must be ===

Kind = tuple[Callable[[Any], bool], str]


def _is_count(value: Any, minimum: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _is_number(value: Any) -> bool:  # which may be infinite
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: Any, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_valid, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_COUNT: Kind = (_is_count, "an integer from 0")
_POSITIVE: Kind = (lambda value: _is_count(value, 1), "an integer from 1")
_TEXT: Kind = (_is_text, "a text")
_OBJECT: Kind = (lambda value: isinstance(value, dict), "an object")
RATE: Kind = (lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 to 1, 1 excluded")

# Settings for building a model and truncating its inputs that aren't in its config, by the names of
# flags and constructor arguments.
SETTINGS: dict[str, Kind] = {
    "classifier_dropout": RATE,
    **dict.fromkeys(
        ("num_choices", "start_n_top", "end_n_top", "doc_stride", "max_query_length",
         "max_qa_length", "n_best_size", "max_answer_length"), _POSITIVE,
    ),
    _THRESHOLD: (lambda value: _is_number(value) and math.isfinite(value), "a number"),
    "label_threshold": RATE,  # minimum probability of a label, where a text may have several
}
_METADATA: dict[str, Kind] = {
    "architecture": _TEXT,
    "task": _TEXT,
    "label_names": (lambda value: _is_list(value, _is_text), "a list of texts"),
    "problem_type": (lambda value: value in PROBLEM_TYPES, f"one of {', '.join(PROBLEM_TYPES)}"),
    "num_texts": (lambda value: _is_count(value) and value in (1, 2), "1 or 2"),
    "max_seq_length": _POSITIVE,
    "pooling": _TEXT,
    "text": _OBJECT,
    "settings": _OBJECT,
}
_RUN_STATE: dict[str, Kind] = {
    "step": _COUNT, "version": _TEXT, "config": _OBJECT, "flags": _OBJECT, "metadata": _OBJECT,
    "results": _OBJECT, "records_seen": _COUNT,
    "loss_scale": (lambda value: _is_list(value, _is_number) and len(value) == 2, "two numbers"),
}
# The flags of a run that other code reads.
_FLAGS: dict[str, Kind] = {
    "do_lower_case": (lambda value: isinstance(value, bool), "true or false"),
    "conditions": _OBJECT, "text_column": _TEXT, "text_pair_column": _TEXT,
}


def check(
    values: Mapping[str, Any], kinds: Mapping[str, Kind], origin: str, allows_null: bool = True
) -> None:
    """Refuses parsed values of the wrong kind; missing values are valid.

    Raises:
      DataError: names the file, the key, and what the value must be.
    """
    for key, (is_valid, expected) in kinds.items():
        value = values.get(key)
        is_absent = value is None if allows_null else key not in values
        if not (is_absent or is_valid(value)):
            raise DataError(f"{origin}: {key} must be {expected}, got {value!r:.80}")


# === Metadata ===


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
        check(values, _METADATA, origin)
        known = {key: values[key] for key in _METADATA if values.get(key) is not None}
        if "label_names" in known:
            known["label_names"] = tuple(known["label_names"])
        if "text" in known:
            known["text"] = tokenizer_files.text_settings(known["text"], f"{origin}.text")
        if "settings" in known:
            check(known["settings"], SETTINGS, f"{origin}.settings")
            known["settings"] = settings_among(known["settings"])
        return cls(**known)


def settings_among(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those values that are SETTINGS."""
    return {key: values[key] for key in SETTINGS if values.get(key) is not None}


# === The file next to a checkpoint ===


def read_run_state(prefix: str) -> dict[str, Any]:
    """Returns the content of `<prefix>.json`; empty for a checkpoint of the original toolkit.

    Raises:
      DataError: it is damaged, or contains an invalid value.
    """
    path = prefix + ".json"
    if not os.path.lexists(path):  # a link to nowhere is an error
        return {}
    run_state = files.read_sealed_json(path)
    if not {"config", "records_seen"} & set(run_state):
        raise DataError(f"{path}: not the state of a run")
    check(run_state, _RUN_STATE, path, allows_null=False)
    check(run_state.get("flags", {}), _FLAGS, f"{path}: flags")
    Metadata.from_dict(run_state.get("metadata", {}), f"{path}: metadata")
    return run_state


def metadata_at(prefix: str) -> Metadata:
    """Returns the metadata next to a checkpoint; see `read_run_state`."""
    return Metadata.from_dict(read_run_state(prefix).get("metadata", {}), f"{prefix}.json: metadata")


def write_metadata(prefix: str, metadata: Metadata, config: AlbertConfig) -> None:
    """Writes the file for a checkpoint that no run saved."""
    content = {"config": config.to_dict(), "metadata": metadata.to_dict()}
    files.write_sealed_json(prefix + ".json", content)


def record_results(prefix: str, results: Mapping[str, Any]) -> None:
    """Stores the results of a checkpoint's evaluation, and the thresholds that they determine.

    That is the threshold of several labels, and the one with the best F1 of SQuAD 2.0, unless
    --null_score_diff_threshold set it.
    """
    run_state, found = read_run_state(prefix), {"label_threshold": results.get("label_threshold")}
    if not run_state:  # of the original toolkit
        return
    if run_state.get("flags", {}).get(_THRESHOLD) is None:
        found[_THRESHOLD] = results.get("best_f1_thresh")
    run_state.setdefault("metadata", {}).setdefault("settings", {}).update(settings_among(found))
    files.write_sealed_json(prefix + ".json", run_state | {"results": dict(results)})
