"""Writes a run's checkpoints, deletes old ones, keeps the best, and sets damaged ones aside."""

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError, UserError
from albert.formats import checkpoint_files, checkpoints, sidecars
from albert.storage import files, work, write_through

log = logging.getLogger("albert")

_BESIDE = re.compile(r"model\.ckpt-(\d+)\.(?:json|data-\d{5}-of-\d{5})$")


def save(
    directory: str, step: int, tensors: Mapping[str, Any], sidecar: Mapping[str, Any], keep: int
) -> str:
    """Writes `model.ckpt-<step>` and returns its prefix.

    Args:
      keep: how many checkpoints stay, the newest ones; 0: all.

    Raises:
      CheckpointError: it could not be written. The earlier ones are as they were.
    """
    prefix = os.path.join(directory, f"model.ckpt-{step}")
    try:
        files.write_sealed_json(prefix + ".json", {"step": step, **sidecar})
        checkpoint_files.write(prefix, tensors)
    except UserError as error:
        with contextlib.suppress(FileNotFoundError):
            files.remove(prefix + ".json")
        raise CheckpointError(str(error)) from error
    if keep > 0:
        for old in list(checkpoints.list_steps(directory).values())[:-keep]:
            delete(old)
        _sweep_orphans(directory, step)
    _write_state_file(directory)
    return prefix


def delete_after(directory: str, step: int) -> str | None:
    """Deletes the checkpoints of later steps; returns the prefix of the newest that is left."""
    for late, prefix in checkpoints.list_steps(directory).items():
        if late > step:
            delete(prefix)
    _write_state_file(directory)
    return next(reversed(checkpoints.list_steps(directory).values()), None)


def delete(prefix: str) -> None:
    """Removes a checkpoint."""
    for path in checkpoint_files.files_of(prefix):
        files.remove(path)


def _sweep_orphans(directory: str, newest: int) -> None:
    """Removes the remains of earlier checkpoints that a crash in `save` or `delete` left."""
    whole = checkpoints.list_steps(directory)
    for name in os.listdir(directory):
        match = _BESIDE.match(name)
        if match and int(match[1]) < newest and int(match[1]) not in whole:
            files.remove(os.path.join(directory, name))


def _write_state_file(directory: str) -> None:
    """Writes TensorFlow's `checkpoint` file, for other tools."""
    names = [os.path.basename(p) for p in checkpoints.list_steps(directory).values()]
    if not names:
        with contextlib.suppress(FileNotFoundError):
            files.remove(os.path.join(directory, "checkpoint"))
        return
    with files.atomic_write(os.path.join(directory, "checkpoint")) as stream:
        stream.write(f'model_checkpoint_path: "{names[-1]}"\n')
        for name in names:
            stream.write(f'all_model_checkpoint_paths: "{name}"\n')


def publish_best(prefix: str, tensors: Mapping[str, Any] | None = None) -> str:
    """Makes a checkpoint `model.ckpt-best`: copies it, or writes these tensors with what lies beside.

    The log lines of a copy are those of the original.

    Raises:
      CheckpointError: it could not be written.
    """
    best = os.path.join(os.path.dirname(prefix), checkpoints.BEST)
    try:
        if tensors is None:
            _copy_best(prefix, best)
        else:
            _write_best(prefix, best, tensors)
    except OSError as error:
        raise CheckpointError(f"cannot write {best} ({error.strerror or error})") from error
    return best


def _copy_best(prefix: str, best: str) -> None:
    # What makes it a checkpoint comes last here, so that a part never looks like a whole one.
    sources = checkpoint_files.files_of(prefix)[::-1]
    targets = {source: best + source.removeprefix(prefix) for source in sources}
    with contextlib.ExitStack() as stack:
        copies = {
            target: stack.enter_context(work.temporary_file(target))
            for target in targets.values()
        }
        for source, target in targets.items():
            _copy_synced(source, copies[target])
        _take_away(best)
        for source, target in targets.items():
            files.move(copies[target], target)
            log.info("saved %s to %s", source, target)
        files.fsync(os.path.dirname(os.path.abspath(best)))


def _write_best(prefix: str, best: str, tensors: Mapping[str, Any]) -> None:
    source, target = prefix + ".json", best + ".json"
    with work.temporary_file(target) as copy:
        if has_sidecar := os.path.exists(source):
            _copy_synced(source, copy)

        def before() -> None:
            _take_away(best)
            if has_sidecar:
                files.move(copy, target)
            elif os.path.exists(target):
                files.remove(target)

        checkpoint_files.write(best, tensors, before)
    log.info("saved the weights of %s that were evaluated to %s", prefix, best)


def _take_away(best: str) -> None:
    """Unmakes the best checkpoint: there is none while its files are replaced."""
    while old := checkpoint_files.main_file(best):
        files.remove(old)


def _copy_synced(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    with open(target, "rb") as stream:
        os.fsync(stream.fileno())


def read_newest(
    directory: str,
    shapes: Mapping[str, tuple[int, ...]],
    config: AlbertConfig,
    task: str,
    may_set_aside: bool = True,
    may_lack: Container[str] = (),
) -> tuple[str, dict[str, np.ndarray], dict[str, Any]] | None:
    """Returns (prefix, tensors, sidecar) of the newest undamaged checkpoint; None: there is none.

    For each damaged one there is a warning. With `may_set_aside`, it is renamed to `*.corrupt`.
    Tensors that it `may_lack` are there if it has them.

    Raises:
      CheckpointError: it is of another architecture, or all are damaged.
    """
    damaged: list[tuple[str, Exception]] = []
    for prefix in reversed(checkpoints.list_steps(directory).values()):
        try:
            sidecar = sidecars.read_sidecar(prefix)
            checkpoints.check_architecture(sidecar, config, prefix, task)
            found = prefix, checkpoints.read_all(prefix, shapes, may_lack), sidecar
        except checkpoints.MismatchError:
            raise
        except (CheckpointError, DataError) as error:
            damaged.append((prefix, error))
            continue
        for bad, reason in damaged:
            log.warning("%s unreadable (%s), using %s", bad, reason, prefix)
            if may_set_aside:
                for path in checkpoint_files.files_of(bad):
                    files.move(path, path + ".corrupt")
                    write_through.note("remove", path)
        return found
    if damaged:
        raise CheckpointError(
            f"no checkpoint in {directory} is readable (newest: {damaged[0][1]}); "
            "move them away to start over"
        )
    return None
