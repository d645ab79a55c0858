"""Files are published, not written: whole and synced, or not at all.

Every artefact goes through `atomic_write` or `atomic_dir`, which write beside
the destination under a `*.tmp-<pid>` name, sync, and rename. A crash leaves
the previous artefact as it was.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from typing import Any

from albert.errors import DataError, RunDirBusyError, UserError

MANIFEST_SUFFIX = ".manifest.json"
_LITTER = re.compile(r".*\.tmp-(\d+)$")


def fsync_dir(directory: str) -> None:
    """Makes a rename in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parent(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def make_dirs(path: str) -> str:
    """Creates the directory if needed and returns it."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create directory {path}: {error.strerror}") from error
    return path


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w") -> Iterator[Any]:
    """Yields an open file (text is UTF-8) that becomes `path` when the block ends well."""
    make_dirs(_parent(path))
    temporary = f"{path}.tmp-{os.getpid()}"
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with open(temporary, mode, **text) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        fsync_dir(_parent(path))
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error})") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def atomic_dir(path: str) -> Iterator[str]:
    """Yields a temporary directory that replaces `path` when the block ends well."""
    path = os.path.abspath(path)
    make_dirs(_parent(path))
    temporary, old = f"{path}.tmp-{os.getpid()}", f"{path}.old.tmp-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(temporary)
    try:
        yield temporary
        if os.path.isdir(path):
            os.rename(path, old)
        os.rename(temporary, path)
        fsync_dir(_parent(path))
    finally:
        if os.path.isdir(old) and not os.path.isdir(path):
            os.rename(old, path)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def sweep_litter(directory: str) -> None:
    """Removes the `*.tmp-<pid>` leavings of processes that are no longer alive."""
    for name in os.listdir(directory):
        match = _LITTER.match(name)
        if match and not _is_alive(int(match.group(1))):
            path = os.path.join(directory, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def write_json(path: str, value: Any) -> None:
    """Publishes `value` as JSON with sorted keys, indent 2 and a final newline."""
    with atomic_write(path) as stream:
        stream.write(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: str) -> Any:
    """Returns the parsed file.

    Raises:
      DataError: it is absent, unreadable, not UTF-8 or not JSON (with line and column).
    """
    try:
        with open(path, encoding="utf-8-sig") as stream:
            return json.load(stream)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start:,})") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise DataError(f"{path}: not usable JSON: nested too deeply") from error


def sha256(path: str) -> str:
    """Returns the hexadecimal SHA-256 of the file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def require_file(path: str | None, flag: str) -> str:
    """Returns `path` if it is a readable file, else raises a DataError naming the flag."""
    if not path:
        raise DataError(f"--{flag} is needed")
    if not os.path.exists(path):
        raise DataError(f"--{flag}: no such file: {path}")
    if not os.path.isfile(path):
        raise DataError(f"--{flag}: not a file: {path}")
    if not os.access(path, os.R_OK):
        raise DataError(f"--{flag}: cannot read {path}: permission denied")
    return path


def expand_globs(patterns: str, flag: str) -> list[str]:
    """Returns the files that a comma-separated list of globs names, in that order.

    Manifests beside record files are left out, so that `data/train*` works.

    Raises:
      DataError: a pattern matches no file.
    """
    paths: list[str] = []
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        found = [p for p in sorted(glob.glob(pattern)) if not p.endswith(MANIFEST_SUFFIX)]
        if not found:
            raise DataError(f"--{flag}: no file matches {pattern}")
        paths += [require_file(p, flag) for p in found]
    if not paths:
        raise DataError(f"--{flag} is needed")
    return paths


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def lock_run_dir(directory: str) -> Iterator[None]:
    """Holds `directory` for this process alone; the lock dies with the process.

    Raises:
      RunDirBusyError: a live process holds it (message: pid, host, since when).
    """
    make_dirs(directory)
    path = os.path.join(directory, ".lock")
    try:
        stream = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (held for the block)
    except OSError as error:
        raise UserError(f"cannot write {directory}: {error.strerror}") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise UserError(f"cannot lock {path}: {error.strerror}") from error
            stream.seek(0)
            holder = stream.read().strip() or "another process"
            raise RunDirBusyError(f"output_dir {directory} is in use by {holder}") from error
        stream.seek(0)
        stream.truncate()
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        stream.write(f"pid {os.getpid()} on host {socket.gethostname()} since {since}\n")
        stream.flush()
        sweep_litter(directory)
        yield
