"""Writes a run's checkpoints, deletes old ones, keeps the best, and renames damaged ones."""

import logging
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError, UserError
from albert.formats import checkpoints
from albert.formats.metadata import read_run_state
from albert.storage import cloud, files

log = logging.getLogger("albert")

_ORPHAN = re.compile(r"model\.ckpt-(\d+)\.(?:json|data-\d{5}-of-\d{5})$")


def check_is_there(directory: str) -> None:
    """Raises a UserError if a run's directory was removed or emptied: a save would restore only a part."""
    if not os.path.isfile(os.path.join(directory, "albert_config.json")):
        raise UserError(f"{directory} was removed or emptied during the run, which ends here: nothing was "
                        "written into it again")


def check_space(directory: str, size: int, keep: int, saves: int, has_best: bool) -> None:
    """Raises a UserError if the disk of a run's directory is too small for its checkpoints.

    Args:
      size: bytes of a checkpoint.
      keep: number of newest checkpoints to keep; 0: all.
      saves: checkpoints that the run still writes.
      has_best: whether the best one is copied.
    """
    here = len(checkpoints.list_steps(directory))
    # While one is written, the oldest is still there.
    count = min(saves, keep + 1 - here) if keep else saves
    count += has_best and not checkpoints.exists(os.path.join(directory, checkpoints.BEST))
    free, needed = shutil.disk_usage(directory).free, max(count, 1) * size
    if saves and free < needed:
        raise UserError(f"cannot write to {directory}: the next {max(count, 1)} checkpoints need "
                        f"{needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free: use a larger disk, or a "
                        "smaller --keep_checkpoint_max")


def save(
    directory: str, step: int, tensors: Mapping[str, Any], run_state: Mapping[str, Any], keep: int
) -> str:
    """Writes `model.ckpt-<step>`, also to cloud storage, and returns its prefix.

    Args:
      keep: number of newest checkpoints to keep; 0: all.

    Raises:
      CheckpointError: it could not be written. The earlier ones are unchanged.
    """
    prefix = os.path.join(directory, f"model.ckpt-{step}")
    try:
        files.write_sealed_json(prefix + ".json", {"step": step, **run_state})
        checkpoints.write(prefix, tensors)
    except UserError as error:
        files.remove(prefix + ".json")
        raise CheckpointError(str(error)) from error
    if keep > 0:
        for old in list(checkpoints.list_steps(directory).values())[:-keep]:
            files.remove(*checkpoints.files_of(old))
        complete = checkpoints.list_steps(directory)
        for match in filter(None, map(_ORPHAN.match, os.listdir(directory))):  # what a crash left
            if int(match[1]) < step and int(match[1]) not in complete:
                files.remove(os.path.join(directory, match[0]))
    names = [os.path.basename(path) for path in checkpoints.list_steps(directory).values()]
    with files.atomic_write(os.path.join(directory, "checkpoint")) as stream:  # for other tools
        stream.write(f'model_checkpoint_path: "{names[-1]}"\n')
        stream.writelines(f'all_model_checkpoint_paths: "{name}"\n' for name in names)
    log.info("saved %s", prefix)
    cloud.push()
    return prefix


def publish_best(prefix: str) -> str:
    """Writes the weights of a checkpoint as `model.ckpt-best`. The log line is the original's.

    Raises:
      CheckpointError: it could not be written.
    """
    best, weights = os.path.join(os.path.dirname(prefix), checkpoints.BEST), checkpoints.open_weights(prefix)
    kept = [name for name in weights.shapes if name == "global_step" or not checkpoints.is_slot(name)]

    def replace() -> None:
        files.remove(best + checkpoints.INDEX)  # while its files are replaced, there is no best checkpoint
        files.publish_copy(prefix + ".json", best + ".json")

    checkpoints.write(best, {name: weights.read(name) for name in kept}, before=replace)
    log.info("saved %s to %s", prefix, best)
    return best


def read_newest(
    directory: str,
    shapes: Mapping[str, tuple[int, ...]],
    config: AlbertConfig,
    task: str,
    may_rename: bool = True,
) -> tuple[str, dict[str, np.ndarray], dict[str, Any]] | None:
    """Returns (prefix, tensors, run_state) of the newest undamaged checkpoint, or None.

    Warns of each damaged one and, with `may_rename`, renames it to `*.corrupt`.

    Raises:
      CheckpointError: it is of another architecture, or all are damaged.
    """
    damaged: list[tuple[str, Exception]] = []
    for prefix in reversed(checkpoints.list_steps(directory).values()):
        try:
            run_state = read_run_state(prefix)
            checkpoints.check_architecture(run_state, config, prefix, task)
            tensors = checkpoints.read_all(prefix, shapes)
        except checkpoints.MismatchError:
            raise
        except (CheckpointError, DataError) as error:
            damaged.append((prefix, error))
            continue
        for bad, reason in damaged:
            log.warning("%s unreadable (%s), using %s", bad, reason, prefix)
            if may_rename:
                for path in checkpoints.files_of(bad):
                    files.publish((path, path + ".corrupt"))
                    files.remove(path)
        return prefix, tensors, run_state
    if damaged:
        raise CheckpointError(
            f"no checkpoint in {directory} is readable (newest: {damaged[0][1]}); "
            "move them away to start over"
        )
    return None
