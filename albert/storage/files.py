"""Files are published, not written: whole and synced, or not at all.

Every artefact goes through `atomic_write` or `publish_dir`, which write beside
the destination under a temporary name, sync, and rename. A crash leaves the
previous artefact as it was.
"""

import contextlib
import ctypes
import difflib
import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from albert.errors import DataError, UserError
from albert.storage import filesystem, opening, work, write_through

# Key of a JSON object that holds the digest of all the others.
_SEAL = "content_sha256"
MANIFEST_SUFFIX = ".manifest.json"


def fsync(path: str) -> None:
    """Makes a file's content, or a rename in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
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
    """Yields an open file (text is UTF-8) that becomes `path` when the block ends well.

    It may be closed in the block.
    """
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    if filesystem.is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "file")
            with open(local, mode, **text) as stream:
                yield stream
            filesystem.upload(local, path)
        return
    with _told_as_unwritable(path), work.temporary_file(path) as temporary:
        with open(temporary, mode, **text) as stream:
            yield stream
        fsync(temporary)
        move(temporary, path)
        fsync(_parent(path))


def move(source: str, path: str) -> None:
    """Gives a complete file its name, in place of another one."""
    os.replace(source, path)
    write_through.note("put", path)


def remove(path: str) -> None:
    """Removes a file that this toolkit has made, if it exists."""
    if filesystem.is_remote(path):
        filesystem.remove(path)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    write_through.note("remove", path)


def publish_copy(source: str, path: str) -> None:
    """Publishes a file's content as `path`, which may be the file itself."""
    if os.path.realpath(path) == os.path.realpath(source):
        return
    with _told_as_unwritable(path), work.temporary_file(path) as temporary:
        try:
            os.unlink(temporary)
            os.link(source, temporary)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(source, temporary)
        fsync(temporary)
        move(temporary, path)
        fsync(_parent(path))


@contextlib.contextmanager
def _told_as_unwritable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error})") from error


@contextlib.contextmanager
def publish_dir(path: str, last: str, *others: str) -> Iterator[str]:
    """Yields a temporary directory; what is in it comes into `path` when the block ends well.

    An absent directory is made. One that holds a model of the same files and nothing else is
    replaced. Both happen at once. Any other directory is the user's: there each file is added or
    replaced whole, and every other file stays. After a crash it has the model that it had, the new
    one, or none, but never a mixture.

    Args:
      last: the file without which the others are no model: it goes first and comes last.
      others: what that file is called where the model is of another kind: it goes with it.

    Raises:
      UserError: it cannot be written, or a file or directory of the user's is in the way.
    """
    path = os.path.realpath(path)
    with _told_as_unwritable(path), work.temporary_dir(path) as temporary:
        work.sweep(_parent(path), f"{os.path.basename(path)}{work.OLD}")
        yield temporary
        names = _content(temporary)
        for name in names:
            fsync(os.path.join(temporary, name))
        if not _replace_dir(temporary, path, last):
            _add_to_dir(temporary, path, last, others)
        fsync(_parent(path))
        for name in (last, *others):
            write_through.note("remove", os.path.join(path, name))
        for name in [*sorted(names - {last}), last]:
            if not name.endswith("/"):
                write_through.note("put", os.path.join(path, name))


def _replace_dir(new: str, path: str, last: str) -> bool:
    """Gives a new directory its name, if nothing but an earlier one of its kind has it."""
    if not os.path.lexists(path):
        os.rename(new, path)
        return True
    theirs = _content(path)
    if last not in theirs or theirs - _content(new):
        return False
    shutil.copymode(path, new)
    if _exchange(new, path):
        return True
    old = work.temporary_name(path, work.OLD)
    try:
        os.rename(path, old)
    except OSError:  # another file system is mounted there, for example
        return False
    try:
        os.rename(new, path)
    except OSError:
        os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return True


def _add_to_dir(new: str, path: str, last: str, others: Sequence[str]) -> None:
    ours, theirs = _content(new), _content(path)
    for name in sorted(ours):
        other = name[:-1] if name.endswith("/") else name + "/"
        if other in theirs:
            raise UserError(f"cannot write {path}: {os.path.join(path, other)} is in the way")
    for name in sorted({last, *others} & theirs):
        os.unlink(os.path.join(path, name))
        fsync(path)
    for name in [*sorted(ours - {last}), last]:
        target = os.path.join(path, name)
        if name.endswith("/"):
            os.makedirs(target, exist_ok=True)
        else:
            os.replace(os.path.join(new, name), target)
            fsync(os.path.dirname(target))


def _content(directory: str) -> set[str]:
    """Returns the relative names of all that is in a directory; those of directories end in /."""
    found, waiting = set(), [""]
    while waiting:
        place = waiting.pop()
        for entry in os.scandir(os.path.join(directory, place)):
            name = place + entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(name := name + "/")
            found.add(name)
    return found


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux


def _exchange(one: str, other: str) -> bool:
    """Lets two directories swap names at once; False where the system cannot."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    names = os.fsencode(one), os.fsencode(other)
    return call is not None and call(
        _AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE
    ) == 0


def finite(value: Any) -> Any:
    """Returns a JSON value in which NaN and infinities, which JSON lacks, are None."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str, value: Any) -> None:
    """Publishes `finite(value)` as JSON with sorted keys, indent 2 and a final newline."""
    with atomic_write(path) as stream:
        stream.write(_json_text(finite(value)))


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read_json(path: str) -> Any:
    """Returns the parsed file.

    Raises:
      DataError: it is absent, unreadable, not UTF-8 or not JSON (with line and column).
    """
    try:
        with opening.open_read(path) as stream:
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
    """Returns the parsed file, which holds an object.

    Raises:
      DataError: see `read_json`; it is no object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def parse_json_object(text: str, place: str) -> dict[str, Any]:
    """Returns the JSON object of one line.

    Raises:
      DataError: it is none; names its place.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not a JSON object in one line: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected a JSON object, got {text.strip()[:40]}")
    return value


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two values are one as JSON: what is no number is itself, and a tuple is a list."""
    texts = [json.dumps(value, sort_keys=True, default=str) for value in (one, other)]
    return one == other or texts[0] == texts[1]


def _seal_of(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_sealed_json(path: str, value: dict[str, Any]) -> None:
    """Publishes `finite(value)` as JSON with a digest of itself, so that damage is noticed."""
    with atomic_write(path) as stream:
        stream.write(sealed_json_text(value))


def sealed_json_text(value: dict[str, Any]) -> str:
    """Returns what `write_sealed_json` writes."""
    value = finite(value)
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


def require_file(path: str | None, flag: str) -> str:
    """Returns `path` if it is a readable file, else raises a DataError naming the flag."""
    if not path:
        raise DataError(f"--{flag} is needed")
    if not opening.exists(path):
        raise DataError(f"--{flag}: no such file: {path}")
    if filesystem.is_remote(path):
        return path
    if os.path.isdir(path):
        raise DataError(f"--{flag}: a directory, not a file: {path}")
    if not os.path.isfile(path):
        raise DataError(
            f"--{flag}: {path} is a pipe or a device, which can be read only once: write it to a "
            "file first"
        )
    if not os.access(path, os.R_OK):
        raise DataError(f"--{flag}: cannot read {path}: permission denied")
    return path


def refuse_overwriting(path: str | None, *inputs: str | None) -> None:
    """Raises a DataError if a file to write is one of those to read, by whatever name."""
    for other in filter(None, inputs):
        both_exist = path and os.path.exists(path) and os.path.exists(other)
        if both_exist and os.path.samefile(path, other):
            raise DataError(f"{path} is an input: it is not overwritten; name another file")


def expand_globs(
    patterns: str, flag: str, find: Callable[[str, str], list[str]] | None = None
) -> list[str]:
    """Returns the files that a comma-separated list of globs names, in that order.

    Manifests beside record files are left out, so that `data/train*` works.

    Args:
      find: returns the files of one pattern, for file systems of other kinds; see `find_files`.

    Raises:
      DataError: a pattern matches no file.
    """
    paths: list[str] = []
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        paths += (find or find_files)(pattern, flag)
    if not paths:
        raise DataError(f"--{flag} is needed")
    seen: set[str] = set()
    for path in paths:
        real = path if filesystem.is_remote(path) else os.path.realpath(path)
        if real in seen:
            raise DataError(f"--{flag}: {path} is given twice: its records would count double")
        seen.add(real)
    return paths


def find_files(pattern: str, flag: str) -> list[str]:
    """Returns the file of this name, or else the files that match it as a glob, sorted.

    Raises:
      DataError: there is none, or one cannot be read.
    """
    found = [path for path in opening.find(pattern) if not path.endswith(MANIFEST_SUFFIX)]
    if not found:
        raise DataError(f"--{flag}: no file matches {pattern}")
    return found if filesystem.is_remote(pattern) else [require_file(p, flag) for p in found]
