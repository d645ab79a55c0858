"""Temporary directories next to outputs; the next job removes those of killed processes."""

import contextlib
import fcntl
import glob
import os
import shutil
import time
from collections.abc import Iterator


def leftovers(path: str) -> list[str]:
    """Returns the temporary directories for `path`, of running and ended processes."""
    parent, name = os.path.split(os.path.abspath(path))
    return glob.glob(os.path.join(glob.escape(parent), f".{glob.escape(name)}.tmp-????????"))


def remove_dead(directories: list[str]) -> None:
    """Removes temporary directories whose processes have ended."""
    for directory in directories:
        with contextlib.suppress(OSError):
            lock = lock_directory(directory)
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


@contextlib.contextmanager
def temporary_dir(path: str) -> Iterator[str]:
    """Yields a new hidden directory next to `path`, in which to make `path`.

    It is locked, and removed at the end. If a process was killed, the next one that makes `path`
    removes its directory, even if it ran on another machine. If the file system has no locks, that
    directory stays.
    """
    parent, name = os.path.split(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    remove_dead(leftovers(path))
    lock = None
    while lock is None:
        directory = os.path.join(parent, f".{name}.tmp-{os.urandom(4).hex()}")
        os.mkdir(directory)
        try:
            lock = lock_directory(directory)
        except (BlockingIOError, FileNotFoundError):
            continue  # removed by another process before it was locked
        except OSError:
            lock = -1  # the file system has no locks
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def lock_directory(directory: str) -> int:
    """Returns a descriptor that holds a directory locked; OSError if another process does.

    It is the directory itself that is locked, so that no lock file is left, and none can be replaced
    while the directory is removed. Some network file systems cannot do this.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(directory)  # raises an error if it was removed in the meantime
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def this_process() -> str:
    """Describes this process for the message of another one."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"pid {os.getpid()} on host {os.uname().nodename} since {since}"


def fsync(path: str) -> None:
    """Makes the content of a file, or the names in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
