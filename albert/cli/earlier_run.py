"""What a run must share with the checkpoints that it resumes or evaluates. No TensorFlow."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from albert.config import AlbertConfig
from albert.errors import DataError, FlagError
from albert.formats import checkpoints
from albert.formats.metadata import read_run_state
from albert.formats.pretrained import Layout, layout_of
from albert.storage import files

log = logging.getLogger("albert")

PLAN = "plan.json"  # of a run of pretrain_from_text, in its output directory
# Conditions that runs must share to be resumed; the others decide what ids and answers mean.
_OF_TRAINING = ("task", "number of options", "seed")


def check(
    origin: str, conditions: Mapping[str, Any], is_resumed: bool = False, is_split: bool = False,
    may_continue_to: int = 0,
) -> None:
    """Refuses a checkpoint that was trained on other data, or with ids that mean something else.

    What isn't recorded with the checkpoint, or is None, is not compared. Another task with the same
    labels may evaluate it, but not resume its training. New data may be evaluated, except where
    evaluated rows might have been trained on.

    Args:
      conditions: {name: value} of this run, which records them as its flag `conditions`. "training data"
        has the digest `sha256` of the examples or record files, the number of `examples`, and the `flags`
        that select them.
      is_split: whether the rest of the training data is evaluated on.
      may_continue_to: before this step, other files may follow (as with longer sequences).
    """
    run_state = read_run_state(origin)
    recorded = run_state.get("flags", {}).get("conditions", {})
    shared = {name: (recorded.get(name), now) for name, now in conditions.items()}
    shared = {name: pair for name, pair in shared.items() if None not in pair}
    then, now = shared.pop("training data", (None, None))
    for name, (before, value) in shared.items():
        is_compared = is_resumed or name not in _OF_TRAINING
        if is_compared and not files.is_same_json(before, value):
            what = f"another {name} ({str(before)[:80]}, not {str(value)[:80]})"
            raise FlagError(f"{origin} was trained with {what}: use another --output_dir")
    if not then or then["sha256"] == now["sha256"] or recorded["task"] != conditions["task"]:
        return
    changed = [
        f"--{name} was {then['flags'][name]}, is {value}" for name, value in now["flags"].items()
        if name in then["flags"] and then["flags"][name] != value
    ]
    may_continue = bool(changed) and run_state.get("step", 0) < may_continue_to
    if then["examples"] != now["examples"]:
        changed.append(f"{then['examples']} examples then, {now['examples']} now")
    what = ", ".join(changed) or f"as many examples, {now['examples']}, but other texts, labels or order"
    if is_resumed and may_continue:
        log.warning("%s: training continues on other data (%s)", origin, what)
    elif is_resumed or is_split:
        raise DataError(f"{origin} was trained on other data ({what}): use another --output_dir")
    else:
        log.warning("%s was trained on other data (%s), which may have the evaluated rows", origin, what)


def check_directory(
    directory: str, config: AlbertConfig, conditions: Mapping[str, Any], may_continue_to: int = 0
) -> None:
    """Refuses to train in a directory with another model, or with a run whose ids mean other things.

    Call it before writing anything, so that the directory stays unchanged.
    """
    if not os.path.isdir(directory):
        return
    if os.path.lexists(os.path.join(directory, PLAN)):
        raise FlagError(f"--output_dir={directory} holds a run of pretrain_from_text: use another directory")
    steps = checkpoints.list_steps(directory)
    best = os.path.join(directory, checkpoints.BEST)
    is_run = steps or os.path.lexists(os.path.join(directory, "best.json"))
    if layout_of(directory) in (Layout.HUGGING_FACE, Layout.HUB_MODULE) or (
        checkpoints.exists(best) and not is_run
    ):
        raise FlagError(f"--output_dir={directory} holds a model that is not a run's checkpoint: use another "
                        "directory, or that model would be overwritten, or opened instead of the new one")
    for group in ([best], reversed(steps.values())):
        for prefix in group:
            try:
                run_state = read_run_state(prefix)
            except DataError:
                continue  # resuming renames it
            if run_state:
                check(prefix, conditions, is_resumed=True, may_continue_to=may_continue_to)
                checkpoints.check_architecture(run_state, config, prefix)
                break
