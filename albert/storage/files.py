"""Publishes files completely and synced to the disk, or not at all.

Outputs are made in a temporary directory and then renamed, last the one that makes the others valid.
A crash leaves the previous files. Paths to write may be addresses; see `cloud`.
"""

import contextlib
import difflib
import errno
import glob
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Any, TextIO

from albert.errors import DataError, FlagError, UserError
from albert.storage import cloud
from albert.storage.temporary import fsync, leftovers, remove_dead, temporary_dir

# Key of a JSON object for the digest of all other keys.
_SEAL = "content_sha256"
MANIFEST_SUFFIX = ".manifest.json"
# Files next to record files, which a glob like `data/train*` doesn't mean.
BESIDE_RECORDS = (MANIFEST_SUFFIX, ".vocabulary.model", ".vocabulary.txt")


# === Publishing ===


def make_dirs(path: str) -> str:
    """Creates a directory if needed and returns it."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create directory {path}: {error.strerror}") from error
    return path


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w") -> Iterator[Any]:
    """Yields an open file (text is UTF-8) that becomes `path` when the block succeeds.

    It may be closed in the block.
    """
    options = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with writing(path), cloud.output(path) as path, temporary_dir(path) as folder:
        temporary = os.path.join(folder, "file")
        with open(temporary, mode, **options) as stream:
            yield stream
        publish((temporary, path))


def cached(digest: str, name: str, make: Callable[[str], None]) -> str:
    """Returns the file of a name that `make` writes, once for each digest, in the user's cache."""
    path = os.path.join(cloud.cache_directory(), "converted", digest[:16], name)
    if not os.path.isfile(path):
        with writing(path), temporary_dir(path) as folder:
            make(scratch := os.path.join(folder, name))
            publish((scratch, path))
    return path


def publish(*moves: tuple[str, str]) -> None:
    """Renames files, (from, to); the last one makes the others valid. Raises OSError."""
    for source, _ in moves:
        fsync(source)
    for group in (moves[:-1], moves[-1:]):
        for source, path in group:
            os.replace(source, path)
        _fsync_names(path for _, path in group)


def remove(*paths: str) -> None:
    """Removes files that this process or its run made, if they exist.

    After the next publication, a power cut cannot restore them.
    """
    removed = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            removed.append(path)
    _fsync_names(removed)


def _fsync_names(paths: Iterable[str]) -> None:
    for directory in {os.path.dirname(os.path.abspath(path)) for path in paths}:
        fsync(directory)


def publish_copy(source: str, path: str) -> None:
    """Publishes the content of a file as `path`, which may be the file itself."""
    if os.path.realpath(path) != os.path.realpath(source):
        with open(source, "rb") as content, atomic_write(path, "wb") as stream:
            shutil.copyfileobj(content, stream, 1 << 20)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turns an OSError in the block into a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error})") from error


@contextlib.contextmanager
def publish_dir(path: str, last: str, *others: str) -> Iterator[str]:
    """Yields a temporary directory, whose files are published in `path` when the block succeeds.

    Other files in `path` stay. After a crash the directory has its previous model, the new one, or
    none, but never a mixture.

    Args:
      last: the file that makes the others a model: removed first, and published last.
      others: names of this file in models of other kinds, which are removed, too.

    Raises:
      UserError: it cannot be written, or files and directories have conflicting names.
    """
    with writing(path), cloud.output(path) as path:
        path = os.path.realpath(path)
        with temporary_dir(path) as folder:
            yield folder
            paths = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
            names = (os.path.relpath(path, folder) for path in paths)
            names = sorted(names, key=lambda name: (name == last, name))
            for name in names:
                _refuse_obstacle(path, name)
            directories = {str(parent) for name in names for parent in PurePath(name).parents}
            if os.path.lexists(path):
                remove(*(os.path.join(path, name) for name in (last, *others)))
                for name in sorted(directories):
                    os.makedirs(os.path.join(path, name), exist_ok=True)
                    fsync(os.path.join(path, name))
                publish(*((os.path.join(folder, n), os.path.join(path, n)) for n in names))
            else:
                for name in (*names, *directories):
                    fsync(os.path.join(folder, name))
                os.rename(folder, path)
                fsync(os.path.dirname(path))


def _refuse_obstacle(directory: str, name: str) -> None:
    """Raises a UserError if a directory has the name of a file, or a file the name of a directory."""
    target = os.path.join(directory, name)
    parents = [os.path.join(directory, *name.split("/")[:n]) for n in range(1, name.count("/") + 1)]
    obstacles = [target] if os.path.isdir(target) else []
    obstacles += [p for p in parents if os.path.lexists(p) and (
        not os.path.isdir(p) or os.path.islink(p)
    )]
    if obstacles:
        raise UserError(f"cannot write {directory}: {obstacles[0]} is in the way")


def open_to_append(path: str) -> TextIO:
    """Opens a text file of an output directory at its end; a symbolic link is refused.

    Raises:
      UserError: it cannot be opened, or it is a link, which could lead anywhere.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a symbolic link, through which no output is written") from error
        raise UserError(f"cannot write {path} ({error.strerror})") from error
    return open(descriptor, "a", encoding="utf-8")


# === JSON ===


def finite(value: Any) -> Any:
    """Returns a JSON value with None for NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str, value: Any) -> None:
    """Publishes `finite(value)` as JSON with sorted keys, indent 2 and a final newline."""
    text = json.dumps(finite(value), indent=2, sort_keys=True, ensure_ascii=False)
    with atomic_write(path) as stream:
        stream.write(text + "\n")


def read_json(path: str) -> Any:
    """Returns the parsed file.

    Raises:
      DataError: it is missing, unreadable, not UTF-8 or not JSON (with line and column).
    """
    try:
        with open(path, "rb") as stream:
            return json.loads(stream.read().decode("utf-8-sig"))
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
    """Returns the parsed file, which must hold an object.

    Raises:
      DataError: see `read_json`; it is not an object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def parse_json_object(text: str, place: str) -> dict[str, Any]:
    """Returns the JSON object on a line.

    Raises:
      DataError: it is not an object (at `place`).
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not a JSON object on one line: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected a JSON object, got {text.strip()[:40]}")
    return value


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON, where NaN equals NaN and tuples are lists."""
    texts = [json.dumps(value, sort_keys=True, default=str) for value in (one, other)]
    return one == other or texts[0] == texts[1]


def _seal_of(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_sealed_json(path: str, value: dict[str, Any]) -> None:
    """Publishes `finite(value)` as JSON with a digest, which reveals damage."""
    value = finite(value)
    write_json(path, {**value, _SEAL: _seal_of(value)})


def read_sealed_json(path: str) -> dict[str, Any]:
    """Returns an object that `write_sealed_json` wrote; one without a digest is not checked.

    Raises:
      DataError: see `read_json`; it is not an object, or has changed.
    """
    value = read_json_object(path)
    seal = value.pop(_SEAL, None)
    # The damage may be in the digest's own name.
    is_hidden = seal is None and difflib.get_close_matches(_SEAL, value, n=1, cutoff=0.8)
    if is_hidden or seal is not None and seal != _seal_of(value):
        raise DataError(f"{path}: damaged, or changed by hand ({_SEAL} differs)")
    return value


# === Inputs ===


def sha256(path: str) -> str:
    """Returns the hexadecimal SHA-256 of the file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def require_file(path: str | None, flag: str) -> str:
    """Returns `path` if it is a readable file, else raises a DataError that names the flag."""
    if not path:
        raise DataError(f"--{flag} is required")
    if not os.path.exists(path):
        raise DataError(f"{flag}: no such file: {path}")
    if os.path.isdir(path):
        raise DataError(f"{flag}: a directory, not a file: {path}")
    if not os.path.isfile(path):
        raise DataError(f"{flag}: {path} is a pipe or a device, which can be read only once: write it "
                        "to a file first")
    if not os.access(path, os.R_OK):
        raise DataError(f"{flag}: cannot read {path}: permission denied")
    return path


def refuse_existing(path: str, flag: str) -> None:
    """Raises a FlagError if an output exists."""
    remove_dead(leftovers(path))  # of a process that was killed after publishing
    if os.path.lexists(path):
        raise FlagError(f"{flag}: {path} exists: remove it or name another")


def refuse_overwriting(path: str | None, *inputs: str | None) -> None:
    """Raises a DataError if a file to write is one of those to read, under any name."""
    for other in filter(None, inputs if path else ()):
        output, source = (cloud.as_given(os.path.realpath(path)) for path in (path, other))
        is_same_file = os.path.exists(output) and os.path.exists(source) and os.path.samefile(
            output, source
        )
        if is_same_file or output == source and cloud.is_remote(source):
            raise DataError(f"{path} is an input and would be overwritten: name another file")


def expand_globs(
    patterns: str, flag: str, find: Callable[[str, str], list[str]] | None = None
) -> list[str]:
    """Returns the files that match a comma-separated list of globs, in that order.

    Args:
      find: returns the files of one pattern; by default `find_files`.

    Raises:
      DataError: a pattern matches no file, or several match the same one.
    """
    paths: list[str] = []
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        paths += (find or find_files)(pattern, flag)
    if not paths:
        raise DataError(f"--{flag} is required")
    seen: set[str] = set()
    for path in paths:
        if (real := os.path.realpath(path)) in seen:
            raise DataError(f"{flag}: {path} is given twice, and would count double")
        seen.add(real)
    return paths


def find_files(pattern: str, flag: str) -> list[str]:
    """Returns the file with this name, else the files that match it as a glob, sorted.

    Manifests and vocabularies of record files are ignored, so that `data/train*` works.

    Raises:
      DataError: there is none, or one cannot be read.
    """
    paths = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
    paths = [path for path in paths if not path.endswith(BESIDE_RECORDS)]
    if not paths:
        raise DataError(f"{flag}: no file matches {pattern}")
    return [require_file(path, flag) for path in paths]
