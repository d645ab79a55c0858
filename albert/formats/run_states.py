"""`model.ckpt-<step>.json`, next to a checkpoint: a model's metadata and, of a run's, its state.

    metadata     see `model_metadata.Metadata`
    config       the architecture
    results      of the checkpoint's evaluation, if there was one
    flags        of the run
    step, records_seen, window, loss_scale, version    where the run was

The file may be edited by hand or come from elsewhere, so the type of every value is checked. No
TensorFlow.
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
    COUNT, FINITE, MULTI_LABEL, OBJECT, REGRESSION, SINGLE_LABEL, TEXT, BOOL, Kind, Metadata, is_number,
)
from albert.storage import files
from albert.tokenization import TextSettings

_THRESHOLD = "null_score_diff_threshold"


_KINDS: dict[str, Kind] = {
    "step": COUNT, "version": TEXT, "config": OBJECT, "flags": OBJECT, "metadata": OBJECT,
    "results": OBJECT, "records_seen": COUNT,
    "loss_scale": (lambda v: isinstance(v, list) and len(v) == 2 and all(map(is_number, v)), "two numbers"),
}
# The flags of a run that other code reads.
_FLAGS: dict[str, Kind] = {
    "do_lower_case": BOOL, "conditions": OBJECT, "label_mean": FINITE, "label_deviation": FINITE,
    "text_column": TEXT, "text_pair_column": TEXT,
}


def read_run_state(prefix: str) -> dict[str, Any]:
    """Returns the content of `<prefix>.json`; empty for a checkpoint of the original toolkit.

    Raises:
      DataError: it is damaged, or contains an invalid value.
    """
    path = prefix + ".json"
    if not os.path.exists(path):
        return {}
    run_state = files.read_sealed_json(path)
    if not {"config", "records_seen"} & set(run_state):
        raise DataError(f"{path}: not the state of a run")
    model_metadata.check(run_state, _KINDS, path)
    # Null is valid for flags only.
    if absent := [key for key in _KINDS if key in run_state and run_state[key] is None]:
        raise DataError(f"{path}: {absent[0]} must be {_KINDS[absent[0]][1]}, got None")
    model_metadata.check(run_state.get("flags", {}), _FLAGS, f"{path}: flags")
    Metadata.from_dict(run_state.get("metadata", {}), f"{path}: metadata")
    return run_state


def metrics(directory: str) -> list[dict[str, Any]]:
    """Returns the lines of a run's metrics.jsonl, in order; a damaged one is left out."""
    path, lines = os.path.join(directory, "metrics.jsonl"), []
    if os.path.isfile(path):
        with open(path, encoding="utf-8", errors="replace") as stream:
            for text in stream:
                with contextlib.suppress(ValueError, RecursionError):
                    lines.append(json.loads(text))
    return [line for line in lines if isinstance(line, dict)]


def evaluations(directory: str) -> list[dict[str, Any]]:
    """Returns the evaluations among `metrics`."""
    return [line for line in metrics(directory) if line.get("kind") == "eval"]


def complete(prefix: str, results: Mapping[str, Any]) -> None:
    """Stores the results of a checkpoint's evaluation, and what they determine of the model.

    That is the threshold of several labels, and the one with the best F1 of SQuAD 2.0, unless
    --null_score_diff_threshold set it.
    """
    run_state = read_run_state(prefix)
    if not run_state:  # of the original toolkit
        return
    metadata, found = metadata_of(run_state), {"label_threshold": results.get("label_threshold")}
    if run_state.get("flags", {}).get(_THRESHOLD) is None:
        found[_THRESHOLD] = results.get("best_f1_thresh")
    settings = {**metadata.settings, **model_metadata.pick(found)}
    metadata = dataclasses.replace(metadata, settings=settings)
    completed = {"metadata": metadata.to_dict(), "results": dict(results)}
    files.write_sealed_json(prefix + ".json", run_state | completed)


def of_metadata(metadata: Metadata, config: AlbertConfig) -> dict[str, Any]:
    """Returns the contents of the file for a checkpoint that no run wrote."""
    return {"config": config.to_dict(), "metadata": metadata.to_dict()}


def metadata_of(run_state: Mapping[str, Any]) -> Metadata:
    """Returns the metadata in a result of `read_run_state`."""
    return Metadata.from_dict(run_state.get("metadata", {}), "metadata")


def metadata_of_run(
    task: str, flags: Mapping[str, Any], architecture: str | None = None
) -> Metadata:
    """Returns the metadata of a model that a run with these flags trains.

    Args:
      architecture: by default the class of the task.
    """
    labels, lower = flags.get("labels"), flags.get("do_lower_case")
    is_regression, is_pair = flags.get("regression"), bool(flags.get("text_pair_column"))
    if task in GLUE_LABELS:
        labels, is_pair = GLUE_LABELS[task], task not in GLUE_OF_ONE_TEXT
        is_regression = not labels
    problem, is_of_texts = None, task == TSV or task in GLUE_LABELS
    if is_of_texts:
        several = MULTI_LABEL if "label_threshold" in flags else SINGLE_LABEL
        problem = REGRESSION if is_regression else several
    return Metadata(
        architecture or CLASS_OF_RUN[TSV if task in GLUE_LABELS else task],
        task,
        label_names=tuple(labels) if labels else None,
        problem_type=problem,
        num_texts=1 + is_pair if is_of_texts else None,
        max_seq_length=flags.get("max_seq_length"),
        text=None if lower is None else TextSettings(lower),
        pooling=flags.get("pooling"),
        settings=model_metadata.pick(flags),
    )
