"""`model.ckpt-<step>.json`, next to a checkpoint: a run's state, or a finished model's metadata.

A run writes its state and its flags, `save_pretrained` the model's metadata. The file may have been
changed by hand, or be a stranger's: the type of every value is checked. No TensorFlow.
"""

import os
from collections.abc import Mapping
from typing import Any

from albert.config import AlbertConfig
from albert.errors import DataError
from albert.formats import model_facts
from albert.formats.known_tasks import facts_of_task
from albert.formats.model_facts import (
    BOOL,
    COUNT,
    FINITE,
    LABELS,
    POSITIVE,
    SETTINGS,
    TEXT,
    Facts,
)
from albert.storage import files, filesystem
from albert.tokenization import TextSettings


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_window(value: Any) -> bool:
    return (
        isinstance(value, dict) and model_facts.is_count(value.get("steps"))
        and _is_numbers(value.get("sums"))
    )


def _is_skipped(value: Any) -> bool:
    return (
        isinstance(value, dict) and model_facts.is_count(value.get("recent"))
        and model_facts.is_count(value.get("consecutive")) and isinstance(value.get("bad"), list)
        and value["recent"] <= 100_000 and all(map(model_facts.is_count, value["bad"]))
    )


_OBJECT = (lambda value: isinstance(value, dict), "an object")
_KINDS: dict[str, model_facts.Kind] = {
    "step": COUNT, "task": TEXT, "architecture": TEXT, "version": TEXT, "config": _OBJECT,
    "flags": _OBJECT, "facts": _OBJECT, "records_seen": COUNT,
    "window": (_is_window, "a count of steps and a list of sums"),
    "loss_scale": (lambda v: _is_numbers(v) and len(v) == 2, "two numbers"),
    "recent_losses": (_is_numbers, "a list of numbers"),
    "skipped": (_is_skipped, "counts of recent and consecutive steps and a list of bad ones"),
}
# Of a run's flags those that anything but the run itself looks at.
_FLAGS: dict[str, model_facts.Kind] = {
    **SETTINGS, "max_seq_length": POSITIVE, "labels": LABELS, "label_list": TEXT, "text_pair_column": TEXT,
    "regression": BOOL, "do_lower_case": BOOL, "spm_model_file": TEXT, "vocab_file": TEXT,
}


def read_sidecar(prefix: str) -> dict[str, Any]:
    """Returns `<prefix>.json`; empty for a checkpoint of the original toolkit.

    Raises:
      DataError: it is damaged, or a value in it is none that a run writes.
    """
    path = prefix + ".json"
    if not filesystem.exists(path):
        return {}
    sidecar = files.read_sealed_json(path)
    if not {"config", "records_seen"} & set(sidecar):
        raise DataError(f"{path}: not what a run writes beside a checkpoint")
    model_facts.check(sidecar, _KINDS, path)
    # A null there is no value; of a flag it is a flag that was not given.
    if absent := [key for key in _KINDS if key in sidecar and sidecar[key] is None]:
        raise DataError(f"{path}: {absent[0]} must be {_KINDS[absent[0]][1]}, got None")
    model_facts.check(sidecar.get("flags", {}), _FLAGS, f"{path}: flags")
    if "facts" in sidecar:
        Facts.from_dict(sidecar["facts"], f"{path}: facts")
    return sidecar


def read_facts(prefix: str) -> Facts:
    """Returns the metadata of a checkpoint; one of the original toolkit has none.

    Raises:
      DataError: see `read_sidecar`.
    """
    return facts_of(read_sidecar(prefix))


def results_beside(prefix: str, step: int | None) -> dict[str, Any]:
    """Returns the eval_results.json of a checkpoint's directory if it is of this very step."""
    path = os.path.join(os.path.dirname(prefix), "eval_results.json")
    results = files.read_json_object(path) if step is not None and os.path.isfile(path) else {}
    return results if results.get("global_step") == step else {}


def null_threshold(prefix: str, sidecar: Mapping[str, Any]) -> float | None:
    """Returns the odds above which a SQuAD 2.0 checkpoint leaves a question unanswered.

    That is --null_score_diff_threshold of its run, else the threshold with the best F1 in the
    checkpoint's own evaluation, else None.
    """
    given = sidecar.get("flags", {}).get("null_score_diff_threshold")
    best = results_beside(prefix, sidecar.get("step")).get("best_f1_thresh")
    found = best if given is None else given
    return found if found is not None and FINITE[0](found) else None


def of_facts(facts: Facts, config: AlbertConfig) -> dict[str, Any]:
    """Returns the contents of the file for a checkpoint that no run wrote."""
    architecture = facts.architecture or "AlbertModel"
    return {"architecture": architecture, "config": config.to_dict(), "facts": facts.to_dict()}


def facts_of(sidecar: Mapping[str, Any]) -> Facts:
    """Returns the facts in what `read_sidecar` returned."""
    if "facts" in sidecar:
        return Facts.from_dict(sidecar["facts"], "facts")
    task, flags = sidecar.get("task"), sidecar.get("flags", {})
    lower = flags.get("do_lower_case")
    known = facts_of_task(task, flags)
    known["architecture"] = known["architecture"] or sidecar.get("architecture")
    return Facts(
        **known,
        task=task,
        max_seq_length=flags.get("max_seq_length"),
        text=None if lower is None else TextSettings(lower),
        settings=model_facts.pick(flags),
    )
