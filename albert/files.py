"""Files are published, not written: whole and synced, or not at all.

Every artefact goes through `atomic_write` or `atomic_dir`, which write beside
the destination under a `*.tmp-<pid>` name, sync, and rename. A crash leaves
the previous artefact as it was.
"""

import contextlib
import ctypes
import difflib
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
from typing import Any, TextIO

from albert.errors import DataError, RunDirBusyError, UserError

# Key of a JSON object that holds the digest of all the others.
_SEAL = "content_sha256"
MANIFEST_SUFFIX = ".manifest.json"
_OLD = ".old.tmp-"  # between the name of a directory that is being replaced and the process
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
        sweep_litter(_parent(path), f"{os.path.basename(path)}.tmp-")
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
    temporary, old = f"{path}.tmp-{os.getpid()}", f"{path}{_OLD}{os.getpid()}"
    sweep_litter(_parent(path), os.path.basename(path) + ".")
    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(temporary)
    try:
        yield temporary
        if os.path.isdir(path) and not _exchange(temporary, path):
            os.rename(path, old)
        if not os.path.isdir(path):
            os.rename(temporary, path)
        fsync_dir(_parent(path))
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error})") from error
    finally:
        if os.path.isdir(old) and not os.path.isdir(path):
            os.rename(old, path)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux


def _exchange(one: str, other: str) -> bool:
    """Lets two directories swap names at once; False where the system cannot."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    names = os.fsencode(one), os.fsencode(other)
    return call is not None and call(
        _AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE
    ) == 0


def sweep_litter(directory: str, prefix: str = "") -> None:
    """Removes the `<prefix>*.tmp-<pid>` leavings of processes that are no longer alive.

    What such a process had moved out of the way for its successor, and was not
    succeeded, is moved back.
    """
    for name in os.listdir(directory):
        match = _LITTER.match(name)
        if not match or not name.startswith(prefix) or _is_alive(int(match.group(1))):
            continue
        path = os.path.join(directory, name)
        original = path.rpartition(_OLD)[0]
        with contextlib.suppress(FileNotFoundError):  # another process sweeps, too
            if original and not os.path.exists(original):
                os.rename(path, original)
            elif os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)


def left_behind(path: str) -> list[str]:
    """Returns the `<path>.tmp-<pid>` of processes that are no longer alive, in order.

    One of this process's own number is of an earlier one: in a container, they repeat.
    """
    found = []
    for name in sorted(glob.glob(f"{glob.escape(path)}.tmp-*")):
        match = _LITTER.match(os.path.basename(name))
        if match and (int(match.group(1)) == os.getpid() or not _is_alive(int(match.group(1)))):
            found.append(name)
    return found


def write_json(path: str, value: Any) -> None:
    """Publishes `value` as JSON with sorted keys, indent 2 and a final newline."""
    with atomic_write(path) as stream:
        stream.write(_json_text(value))


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


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
    except ValueError as error:  # an integer of thousands of digits
        raise DataError(f"{path}: not usable JSON: {error}") from error


def read_json_object(path: str) -> dict[str, Any]:
    """Returns the parsed file, which holds an object.

    Raises:
      DataError: see `read_json`; it is no object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _seal_of(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_sealed_json(path: str, value: dict[str, Any]) -> None:
    """Publishes an object as JSON with a digest of itself, so that damage is noticed."""
    with atomic_write(path) as stream:
        stream.write(sealed_json_text(value))


def sealed_json_text(value: dict[str, Any]) -> str:
    """Returns what `write_sealed_json` writes."""
    return _json_text({**value, _SEAL: _seal_of(value)})


def read_sealed_json(path: str) -> dict[str, Any]:
    """Returns an object that `write_sealed_json` wrote; one without a digest is taken as it is.

    Raises:
      DataError: see `read_json`; it is no object, or is not what was written.
    """
    value = read_json_object(path)
    seal = value.pop(_SEAL, None)
    # The damage may be in the digest's own name.
    is_hidden = seal is None and difflib.get_close_matches(_SEAL, value, n=1, cutoff=0.8)
    if is_hidden or seal is not None and seal != _seal_of(value):
        raise DataError(
            f"{path}: damaged, or changed by hand: it is not what was written ({_SEAL} differs)"
        )
    return value


def open_to_append(path: str) -> TextIO:
    """Opens a text file of an output directory at its end; a symbolic link is refused.

    Raises:
      UserError: it cannot be opened, or a link would lead the output elsewhere.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(
                f"{path} is a symbolic link: output is not written through it"
            ) from error
        raise UserError(f"cannot write {path} ({error.strerror})") from error
    return open(descriptor, "a", encoding="utf-8")


def sha256(path: str) -> str:
    """Returns the hexadecimal SHA-256 of the file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def size_of(path: str) -> int:
    """Returns the bytes of a file."""
    return os.path.getsize(path)


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
    first: dict[str, str] = {}
    for path in paths:
        other = first.setdefault(os.path.realpath(path), path)
        if other is not path:
            raise DataError(f"--{flag}: {path} is given twice: its records would count double")
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
            raise RunDirBusyError(f"output_dir {directory} is in use by {holder}") from error
        stream.seek(0)
        stream.truncate()
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        stream.write(f"pid {os.getpid()} on host {socket.gethostname()} since {since}\n")
        stream.flush()
        sweep_litter(directory)
        yield
