"""Exclusive access to directories, and the work folders of jobs.

A directory is locked by a lock file (`filelock`). For one in cloud storage that is the local copy's; a
process of another machine is stopped by `cloud.own`.
"""

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator, Sequence

from albert.errors import RunDirBusyError, UserError
from albert.storage import cloud
from albert.storage.temporary import fsync, remove_dead, this_process

_LOCK_FILE = ".lock"


@contextlib.contextmanager
def hold(directory: str) -> Iterator[None]:
    """Creates a directory and locks it for this process; released when the process ends.

    Raises:
      RunDirBusyError: another process holds it (names pid, host and time).
    """
    import filelock

    path = os.path.join(directory, _LOCK_FILE)
    try:
        os.makedirs(directory, exist_ok=True)
        lock = filelock.FileLock(path, blocking=False)
        lock.acquire()
    except filelock.Timeout as error:
        user = _text_of(path)
        raise RunDirBusyError(f"{directory} is in use by {user}: wait for it, or stop it") from error
    except OSError as error:
        raise UserError(f"cannot lock {path}: {error.strerror}") from error
    try:
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(this_process())
        remove_dead(glob.glob(os.path.join(glob.escape(directory), ".*.tmp-????????")))
        cloud.own(directory)
        yield
    finally:
        lock.release()


def _text_of(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as stream:
        return stream.read() or "another process"
    return "another process"


# === Work folders ===


def work_folder_of(path: str) -> str:
    """Returns the work folder of an output, next to it."""
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(parent, f".{name}.work")


@contextlib.contextmanager
def work_folder(paths: Sequence[str], identity: str) -> Iterator[str]:
    """Yields the folder in which a job makes these files; it is removed on success only.

    It is that of the first file, and locked; those of the others are links to it, so that no other
    job makes one of these files at the same time. It keeps the work of earlier runs of the same job;
    that of a job with another identity is removed.

    Raises:
      RunDirBusyError: another process is making one of the files.
    """
    folder = work_folder_of(paths[0])
    if os.path.islink(folder):
        _remove_idle(folder)
    with hold(folder):
        _keep_work_of(folder, identity)
        links = [work_folder_of(path) for path in paths[1:]]
        is_done = False
        try:
            for link in links:
                if os.path.realpath(link) != os.path.realpath(folder):
                    _remove_idle(link)
                    os.makedirs(os.path.dirname(link), exist_ok=True)
                    os.symlink(os.path.relpath(folder, os.path.dirname(link)), link)
            yield folder
            is_done = True
        finally:
            if is_done or set(os.listdir(folder)) <= {_LOCK_FILE, "job", "parts.json"}:  # nothing to resume
                for link in links:
                    if os.path.realpath(link) == os.path.realpath(folder):
                        os.unlink(link)
                shutil.rmtree(folder, ignore_errors=True)


def _remove_idle(path: str) -> None:
    """Removes a work folder or a link to one; a RunDirBusyError if a process works there."""
    if os.path.isdir(path):
        with hold(os.path.realpath(path)):
            if not os.path.islink(path):
                shutil.rmtree(path)
    if os.path.islink(path):
        os.unlink(path)


def _keep_work_of(folder: str, identity: str) -> None:
    """Empties a work folder unless it is of a job with this identity."""
    identity_file = os.path.join(folder, "job")
    if os.path.exists(identity_file) and _text_of(identity_file) == identity:
        return
    for entry in os.scandir(folder):
        if entry.name != _LOCK_FILE:
            is_dir = entry.is_dir(follow_symlinks=False)
            (shutil.rmtree if is_dir else os.unlink)(entry.path)
    with open(identity_file, "w", encoding="utf-8") as stream:
        stream.write(identity)
    # The folder's name, too: a power cut would lose hours of work with it.
    for path in (os.path.dirname(folder), identity_file, folder):
        fsync(path)
