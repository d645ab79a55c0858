"""Temporaries that die with their process, and the directory that one run holds for itself.

A temporary is locked as long as its process lives. So it is dead if and only if its lock can
be taken, wherever its process ran: in another container, or on another machine that shares
the disk. Where a file system has no locks, the name tells whose it is.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import itertools
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator

from albert.errors import RunDirBusyError, UserError
from albert.storage import places

OLD = ".old.tmp-"  # between the name of a directory that is being replaced and its owner
_LITTER = re.compile(r".*\.tmp-([0-9a-f]{8})-(\d+)-(\d+)", re.DOTALL)
_count = itertools.count()
_locks: dict[str, int | None] = {}  # descriptors of this process's own temporaries


def _forget_the_locks_of_the_parent() -> None:
    """A fork that outlives its parent must not keep the parent's temporaries alive."""
    for descriptor in _locks.values():
        if descriptor is not None:
            os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_forget_the_locks_of_the_parent)


def _place() -> str:
    """Returns a short name of this machine and of the namespace that its process numbers are of."""
    namespace = ""
    with contextlib.suppress(OSError):  # Linux has them
        namespace = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def temporary_name(path: str, infix: str = ".tmp-") -> str:
    """Returns a new name of a temporary beside `path`, for what is to be locked at once."""
    return f"{path}{infix}{_place()}-{os.getpid()}-{next(_count)}"


def temporaries_of(path: str) -> list[str]:
    """Returns the temporaries for `path`, of processes dead and alive, in order."""
    found = sorted(glob.glob(f"{glob.escape(path)}.tmp-*"))
    return [name for name in found if _LITTER.fullmatch(os.path.basename(name))]


@contextlib.contextmanager
def temporary_file(path: str) -> Iterator[str]:
    """Yields the name of a new, empty file beside `path`; if it is still there, it goes then."""
    with _temporary(path, lambda name: os.close(os.open(name, _NEW_FILE, 0o666))) as name:
        try:
            yield name
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@contextlib.contextmanager
def temporary_dir(path: str) -> Iterator[str]:
    """Yields the name of a new, empty directory beside `path`; if it is still there, it goes then."""
    with _temporary(path, os.mkdir) as name:
        try:
            yield name
        finally:
            shutil.rmtree(name, ignore_errors=True)


@contextlib.contextmanager
def _temporary(path: str, make: Callable[[str], None]) -> Iterator[str]:
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    name = temporary_name(path)
    key = os.path.basename(name)
    while key not in _locks:
        make(name)
        with contextlib.suppress(FileNotFoundError):  # swept away before it was locked
            _locks[key] = _lock(name, fcntl.LOCK_EX)
    try:
        sweep_litter(parent, f"{os.path.basename(path)}.tmp-")
        yield name
    finally:
        _unlock(_locks.pop(key, None))


def _lock(path: str, how: int) -> int | None:
    """Returns a descriptor that holds a file or directory locked, or None if there are no locks.

    Raises:
      FileNotFoundError: it is gone; BlockingIOError: another holds it, and `how` does not wait.
    """
    kind = os.O_RDONLY if os.path.isdir(path) else os.O_RDWR  # as NFS wants it
    descriptor = None
    try:
        descriptor = os.open(path, kind | os.O_NOFOLLOW | os.O_NONBLOCK)
        fcntl.flock(descriptor, how)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return descriptor
        raise FileNotFoundError(path)
    except OSError as error:
        _unlock(descriptor)
        if isinstance(error, FileNotFoundError | BlockingIOError):
            raise
        return None


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Holds a directory locked, if there are locks and nobody else does."""
    descriptor = None
    with contextlib.suppress(BlockingIOError):
        descriptor = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        _unlock(descriptor)


@contextlib.contextmanager
def _taken(path: str) -> Iterator[bool]:
    """Tells whether a path is a dead temporary; none else takes it inside the block."""
    match = _LITTER.fullmatch(os.path.basename(path))
    if not match or os.path.basename(path) in _locks:
        yield False
        return
    try:
        descriptor = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        yield False
        return
    try:
        place, pid = match[1], int(match[2])
        # One of this process's own number, and not its own, is of an earlier process: in a
        # container, numbers repeat.
        yield descriptor is not None or (
            place == _place() and (pid == os.getpid() or not _is_alive(pid))
        )
    finally:
        _unlock(descriptor)


def sweep_litter(directory: str, prefix: str = "") -> None:
    """Removes the temporaries `<prefix>*` of processes that are dead.

    What such a process had moved out of the way for its successor, and was not
    succeeded, is moved back.
    """
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if not name.startswith(prefix):
            continue
        # Another process may sweep too, and another user's litter is not ours to remove.
        with _taken(path) as is_dead, contextlib.suppress(FileNotFoundError, PermissionError):
            if is_dead:
                _sweep(path)


def _sweep(path: str) -> None:
    original = path.rpartition(OLD)[0]
    if original and not os.path.exists(original):
        os.rename(path, original)
    else:
        _remove(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def work_folder_of(path: str) -> str:
    """Returns the work folder of an output."""
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(parent, f".{name}.work")


@contextlib.contextmanager
def work_folder(path: str, identity: str) -> Iterator[str]:
    """Yields the folder in which a job makes `path`; only success removes it.

    It is `.<name>.work` beside `path`, held by one process at a time, and keeps what earlier runs
    of the same job have done. What a job of another identity left there is removed.

    Raises:
      RunDirBusyError: a live process is making `path`.
    """
    folder = work_folder_of(path)
    identity_file = os.path.join(folder, "job")
    with lock_dir(folder):
        if _content(identity_file) != identity:
            for entry in os.scandir(folder):
                if entry.name != LOCK_FILE:
                    _remove(entry.path)
            with open(identity_file, "w", encoding="utf-8") as stream:
                stream.write(identity)
        try:
            yield folder
        except BaseException:
            if set(os.listdir(folder)) <= {LOCK_FILE, "job"}:  # nothing is worth keeping
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _content(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


LOCK_FILE = ".lock"


@contextlib.contextmanager
def lock_run_dir(directory: str) -> Iterator[None]:
    """Holds `directory` for this process alone; the lock dies with the process.

    If it is the mirror of a remote directory, that is held by a lease, and brought up to date.

    Raises:
      RunDirBusyError: a live process holds it (message: pid, host, since when).
    """
    tree = places.tree_of(directory)
    with tree.holding(directory) if tree else contextlib.nullcontext(), lock_dir(directory):
        sweep_litter(directory)
        yield


@contextlib.contextmanager
def lock_dir(directory: str) -> Iterator[None]:
    """Makes a directory and holds it for this process alone; the lock dies with the process.

    Raises:
      RunDirBusyError: a live process holds it (message: pid, host, since when).
    """
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create directory {directory}: {error.strerror}") from error
    path = os.path.join(directory, LOCK_FILE)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise UserError(f"cannot write {directory}: {path}: {error.strerror}") from error
    stream = open(descriptor, "r+", encoding="utf-8")  # noqa: SIM115 (held for the block)
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise UserError(f"cannot lock {path}: {error.strerror}") from error
            stream.seek(0)
            holder = stream.read().strip() or "another process"
            raise RunDirBusyError(f"{directory} is in use by {holder}") from error
        stream.seek(0)
        stream.truncate()
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        stream.write(f"pid {os.getpid()} on host {socket.gethostname()} since {since}\n")
        stream.flush()
        yield
