"""Work in progress: temporaries beside their outputs, work folders, and directories held by a process.

A temporary is named after its process. If that has died, the next one that writes the same output
removes it, or the next holder of the run's directory.
"""

import contextlib
import glob
import hashlib
import itertools
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator

import filelock

from albert.errors import RunDirBusyError, UserError

LOCK_FILE, _HOLDER = ".lock", ".lock.holder"
_TEMPORARY = re.compile(r".*\.tmp-([0-9a-f]{8})-(\d+)-(\d+)", re.DOTALL)
OLD = ".old.tmp-"  # infix of a directory that is being replaced
_count = itertools.count()
_own: set[str] = set()  # temporaries of this process


def boot_id() -> str:
    """Returns what distinguishes this start of this machine, or of this container, from others."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", "rb") as stream:
        parts.append(stream.read().decode().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# === Temporaries ===


def temporary_name(path: str, infix: str = ".tmp-") -> str:
    """Returns a new name for a temporary of this process beside `path`."""
    machine = hashlib.sha256(boot_id().encode()).hexdigest()[:8]
    name = f"{path}{infix}{machine}-{os.getpid()}-{next(_count)}"
    _own.add(os.path.basename(name))
    return name


@contextlib.contextmanager
def temporary_file(path: str) -> Iterator[str]:
    """Yields the name of a new, empty file beside `path`; if it is still there in the end, it goes."""
    name = _prepare(path)
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


@contextlib.contextmanager
def temporary_dir(path: str) -> Iterator[str]:
    """Yields a new directory beside `path`; if it is still there at the end, it is removed."""
    name = _prepare(path)
    os.mkdir(name)
    try:
        yield name
    finally:
        shutil.rmtree(name, ignore_errors=True)


def temporaries_of(path: str) -> list[str]:
    """Returns the temporaries for `path`, of processes dead and alive."""
    found = glob.glob(f"{glob.escape(path)}.tmp-*")
    return [name for name in found if _TEMPORARY.fullmatch(os.path.basename(name))]


def _prepare(path: str) -> str:
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    sweep(parent, f"{os.path.basename(path)}.")
    return temporary_name(path)


def sweep(directory: str, prefix: str = "", is_held: bool = False) -> None:
    """Removes the temporaries `<prefix>*` of dead processes.

    A directory that had been moved away for its successor, and was not succeeded, is moved back.

    Args:
      is_held: this process alone writes to the directory, so all other temporaries are of dead ones.
    """
    machine = hashlib.sha256(boot_id().encode()).hexdigest()[:8]
    for name in os.listdir(directory):
        match = _TEMPORARY.fullmatch(name)
        if not match or not name.startswith(prefix) or name in _own:
            continue
        pid = int(match[2])
        is_dead = match[1] == machine and (pid == os.getpid() or not is_alive(pid))
        if is_dead or is_held:
            # Others may sweep, too, and other users' files cannot be removed.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                path = os.path.join(directory, name)
                original = path.rpartition(OLD)[0]
                if original and not os.path.exists(original):
                    os.rename(path, original)
                else:
                    _remove(path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


# === Work folders ===


def work_folder_of(path: str) -> str:
    """Returns the work folder of an output."""
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(parent, f".{name}.work")


@contextlib.contextmanager
def work_folder(path: str, identity: str) -> Iterator[str]:
    """Yields the folder in which a job makes `path`; only success removes it.

    It is held by one process at a time, and keeps what earlier runs of the same job have done. What
    a job of another identity left there is removed.

    Raises:
      RunDirBusyError: a live process is making `path`.
    """
    folder = work_folder_of(path)
    identity_file = os.path.join(folder, "job")
    with lock_dir(folder):
        if _content(identity_file) != identity:
            for entry in os.scandir(folder):
                if entry.name not in (LOCK_FILE, _HOLDER):
                    _remove(entry.path)
            with open(identity_file, "w", encoding="utf-8") as stream:
                stream.write(identity)
        try:
            yield folder
        except BaseException:
            if set(os.listdir(folder)) <= {LOCK_FILE, _HOLDER, "job"}:  # nothing is worth keeping
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _content(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


# === Held directories ===


@contextlib.contextmanager
def lock_dir(directory: str) -> Iterator[None]:
    """Makes a directory and holds it for this process; the lock ends with the process.

    Raises:
      RunDirBusyError: a live process holds it (message: pid, host, since when).
    """
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create directory {directory}: {error.strerror}") from error
    path, holder = os.path.join(directory, LOCK_FILE), os.path.join(directory, _HOLDER)
    lock = filelock.FileLock(path, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        who = (_content(holder) or "another process").strip()
        raise RunDirBusyError(f"{directory} is in use by {who}") from error
    except OSError as error:
        raise UserError(f"cannot lock {path}: {error.strerror}") from error
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        descriptor = os.open(holder, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(f"pid {os.getpid()} on host {socket.gethostname()} since {since}\n")
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(holder)
        lock.release()
