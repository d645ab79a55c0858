"""`model.ckpt-<step>.json`, next to a checkpoint: a run's state, or a finished model's metadata.

A run writes its state and flags, `export_checkpoints` the model's metadata. The file may be edited by
hand or come from elsewhere, so the type of every value is checked. No TensorFlow.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from albert.config import AlbertConfig
from albert.errors import DataError
from albert.formats import model_metadata
from albert.formats.known_tasks import GLUE_LABELS, GLUE_OF_ONE_TEXT, TSV
from albert.formats.model_classes import CLASS_OF_RUN
from albert.formats.model_metadata import (
    MULTI_LABEL,
    BOOL,
    COUNT,
    FINITE,
    LABELS,
    OBJECT,
    POSITIVE,
    REGRESSION,
    SETTINGS,
    SINGLE_LABEL,
    TEXT,
    Kind,
    Metadata,
    is_number,
)
from albert.storage import files, filesystem
from albert.tokenization import TextSettings


_THRESHOLD = "null_score_diff_threshold"


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


_KINDS: dict[str, Kind] = {
    "step": COUNT, "task": TEXT, "architecture": TEXT, "version": TEXT, "config": OBJECT,
    "flags": OBJECT, "facts": OBJECT, "records_seen": COUNT,
    "loss_scale": (lambda v: _is_numbers(v) and len(v) == 2, "two numbers"),
}
# The flags of a run that other code reads.
_FLAGS: dict[str, Kind] = {
    **SETTINGS, "max_seq_length": POSITIVE, "labels": LABELS, "label_list": TEXT,
    "text_pair_column": TEXT, "regression": BOOL, "do_lower_case": BOOL, "spm_model_file": TEXT,
    "vocab_file": TEXT, "training_data": OBJECT,
}


def read_run_state(prefix: str) -> dict[str, Any]:
    """Returns the content of `<prefix>.json`; empty for a checkpoint of the original toolkit.

    Raises:
      DataError: it is damaged, or contains an invalid value.
    """
    path = prefix + ".json"
    if not filesystem.exists(path):
        return {}
    run_state = files.read_sealed_json(path)
    if not {"config", "records_seen"} & set(run_state):
        raise DataError(f"{path}: not the state of a run")
    model_metadata.check(run_state, _KINDS, path)
    # Null is valid for flags only.
    if absent := [key for key in _KINDS if key in run_state and run_state[key] is None]:
        raise DataError(f"{path}: {absent[0]} must be {_KINDS[absent[0]][1]}, got None")
    model_metadata.check(run_state.get("flags", {}), _FLAGS, f"{path}: flags")
    if "facts" in run_state:
        Metadata.from_dict(run_state["facts"], f"{path}: facts")
    return run_state


def results_beside(prefix: str, step: int | None) -> dict[str, Any]:
    """Returns the evaluation of a checkpoint: eval_results.json, or the step's line of metrics.jsonl."""
    directory = os.path.dirname(prefix)
    path = os.path.join(directory, "eval_results.json")
    results = files.read_json_object(path) if step is not None and os.path.isfile(path) else {}
    if results.get("global_step") == step:
        return results
    for line in evaluations(directory):
        if line["step"] == step:
            return {name: x for name, x in line.items() if name not in ("kind", "step")}
    return {}


def evaluations(directory: str) -> list[dict[str, Any]]:
    """Returns the evaluations in a run's metrics.jsonl, in order; a damaged line is left out."""
    path, lines = os.path.join(directory, "metrics.jsonl"), []
    if os.path.isfile(path):
        with open(path, encoding="utf-8", errors="replace") as stream:
            for text in stream:
                with contextlib.suppress(ValueError, RecursionError):
                    lines.append(json.loads(text))
    return [line for line in lines if isinstance(line, dict) and line.get("kind") == "eval"]


def null_threshold(prefix: str, run_state: Mapping[str, Any]) -> float | None:
    """Returns the odds above which a SQuAD 2.0 checkpoint leaves a question unanswered.

    That is --null_score_diff_threshold of its run, else the threshold with the best F1 in the
    checkpoint's evaluation, else None. Runs before version 0.4 have the latter in other files.
    """
    threshold = metadata_of(run_state).settings.get(_THRESHOLD)
    if threshold is None:
        threshold = results_beside(prefix, run_state.get("step")).get("best_f1_thresh")
    return threshold if threshold is not None and FINITE[0](threshold) else None


def complete(prefix: str, results: Mapping[str, Any]) -> None:
    """Stores what an evaluation determines of a model in the JSON next to its checkpoint.

    So whoever copies the checkpoint has it, too.
    """
    run_state, threshold = read_run_state(prefix), results.get("best_f1_thresh")
    if threshold is None or not run_state or run_state.get("flags", {}).get(_THRESHOLD) is not None:
        return
    metadata = metadata_of(run_state)
    settings = {**metadata.settings, _THRESHOLD: threshold}
    metadata = dataclasses.replace(metadata, settings=settings)
    files.write_sealed_json(prefix + ".json", {**run_state, "facts": metadata.to_dict()})


def of_metadata(metadata: Metadata, config: AlbertConfig) -> dict[str, Any]:
    """Returns the contents of the file for a checkpoint that no run wrote."""
    architecture = metadata.architecture or "AlbertModel"
    return {"architecture": architecture, "config": config.to_dict(), "facts": metadata.to_dict()}


def metadata_of(run_state: Mapping[str, Any]) -> Metadata:
    """Returns the metadata in a result of `read_run_state`."""
    if "facts" in run_state:
        return Metadata.from_dict(run_state["facts"], "facts")
    task, flags = run_state.get("task"), run_state.get("flags", {})
    labels, lower = flags.get("labels"), flags.get("do_lower_case")
    is_number, is_pair = flags.get("regression"), bool(flags.get("text_pair_column"))
    if task in GLUE_LABELS:
        labels, is_pair = GLUE_LABELS[task], task not in GLUE_OF_ONE_TEXT
        is_number = not labels
    is_of_texts = task == TSV or task in GLUE_LABELS
    return Metadata(
        CLASS_OF_RUN.get(TSV if task in GLUE_LABELS else task) or run_state.get("architecture"),
        task,
        label_names=tuple(labels) if labels else None,
        problem_type=(
            None if not is_of_texts else REGRESSION if is_number
            else MULTI_LABEL if "label_threshold" in flags else SINGLE_LABEL
        ),
        num_texts=1 + is_pair if is_of_texts else None,
        max_seq_length=flags.get("max_seq_length"),
        text=None if lower is None else TextSettings(lower),
        pooling=flags.get("pooling"),
        settings=model_metadata.pick(flags),
    )
