"""The calls of fsspec: a passing fault is tried again, a lasting one is told in one line.

Nothing here is imported before a command is given the address of a remote file.
"""

import contextlib
import dataclasses
import datetime
import importlib.util
import os
import posixpath
import time
import uuid
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from albert.errors import DataError, UserError, first_line
from albert.storage import temporaries

# Where a file appears at its last byte. Elsewhere it is written aside and renamed.
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory")
_EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure",
    "az": "azure", "hdfs": "hdfs",
}
_ATTEMPTS = 7
_AT_ONCE = 8  # files fetched or sent
_LASTING = (
    FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError,
    ImportError, ValueError, TypeError, AttributeError, NotImplementedError, UserError,
)
_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
_TOKENS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "VersionId")

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A remote file."""

    url: str
    size: int
    # Nanoseconds of its time of change. Below a second, they tell one content from another.
    stamp: int


# === Listing ===


def scheme_of(url: str) -> str:
    return url.split("://", 1)[0].lower()


def bucket_of(url: str) -> str:
    """Returns the address of the bucket, container or host that a file lies in."""
    scheme, rest = url.split("://", 1)
    return f"{scheme}://{rest.lstrip('/').split('/', 1)[0]}"


def entry_of(url: str) -> Entry | None:
    """Returns a file; None if there is none of this name, or it is a directory."""
    found = _info(url)
    return _entry(url, found) if found and found["type"] == "file" else None


def is_directory(url: str) -> bool:
    found = _info(url)
    return bool(found) and found["type"] == "directory"


def _info(url: str) -> dict[str, Any] | None:
    try:
        return _call(url, "read", lambda fs, path: fs.info(path))
    except _AbsentError:
        require_bucket(url)
        return None


def list_tree(url: str) -> dict[str, Entry]:
    """Returns {name relative to it: file} of all that is below a directory; may be empty."""
    return _listed(url, lambda fs, path: fs.find(path, detail=True))


def list_directory(url: str) -> dict[str, Entry]:
    """Returns {name: file} of the files that lie in a directory itself; may be empty."""
    return _listed(url, lambda fs, path: {one["name"]: one for one in fs.ls(path, detail=True)})


def _listed(url: str, find: Callable) -> dict[str, Entry]:
    url = url.rstrip("/")
    try:
        found = _call(url, "list", find)
    except _AbsentError:
        found = {}
    if not found:
        require_bucket(url)
    base = _path(url).strip("/")
    entries = {}
    for name, info in found.items():
        relative = name.strip("/").removeprefix(base).strip("/")
        if info["type"] == "file" and relative and not name.endswith("/"):
            _refuse_odd_name(url, relative)
            entries[relative] = _entry(f"{url}/{relative}", info)
    return entries


def match(pattern: str) -> list[Entry]:
    """Returns the file of this name, or else the files that match it as a glob, sorted."""
    if (named := entry_of(pattern)) or not set("*?[") & set(pattern):
        return [named] if named else []
    try:
        found = _call(pattern, "list", lambda fs, path: fs.glob(path, detail=True))
    except _AbsentError:
        found = {}
    if not found:
        require_bucket(pattern)
    scheme = pattern.split("://", 1)[0]
    entries = [
        _entry(f"{scheme}://{name.lstrip('/')}", info)
        for name, info in found.items() if info["type"] == "file"
    ]
    return sorted(entries, key=lambda entry: entry.url)


def _refuse_odd_name(url: str, name: str) -> None:
    if {"", ".", ".."} & set(name.split("/")) or "\\" in name or "\0" in name:
        raise DataError(f"{url}: {name!r} is no name of a file here: move it away")


def _entry(url: str, info: dict[str, Any]) -> Entry:
    when = next((info[key] for key in _TIMES if info.get(key) is not None), 0)
    if isinstance(when, str):
        when = datetime.datetime.fromisoformat(when.replace("Z", "+00:00"))
    if isinstance(when, datetime.datetime):
        when = when.timestamp()
    seconds = max(int(float(when)), 1)  # 0 is of stand-ins
    told = next((str(info[key]) for key in _TOKENS if info.get(key)), repr(when))
    return Entry(url, int(info["size"] or 0), seconds * 10**9 + zlib.crc32(told.encode()) % 10**9)


def require_bucket(url: str) -> None:
    """Refuses an address whose bucket is not there.

    Raises:
      DataError: names it.
    """
    bucket = bucket_of(url)
    if scheme_of(url) not in _OBJECT_STORES or scheme_of(url) == "memory":
        return
    try:
        _call(bucket, "list", lambda fs, path: fs.ls(path, detail=False))
    except _AbsentError as error:
        raise DataError(f"there is no bucket {bucket}") from error
    except UserError:  # one may read files of buckets that one may not list
        return


# === Reading and writing ===


def fetch(entry: Entry, target: str) -> None:
    """Makes `target` a copy of a remote file, whole, with its stamp as the time of change."""
    try:
        with temporaries.temporary_file(target) as own:
            _call(entry.url, "read", lambda fs, path: _fetch_whole(fs, path, own, entry.size))
            os.utime(own, ns=(entry.stamp, entry.stamp))
            os.replace(own, target)
    except _AbsentError as error:
        raise DataError(f"{entry.url}: gone while it was being read") from error
    except OSError as error:
        raise UserError(f"cannot keep a copy of {entry.url}: {target}: {error.strerror}") from error


def _fetch_whole(fs, path: str, target: str, size: int) -> None:
    fs.get_file(path, target)
    if os.path.getsize(target) != size:
        # The name's file may have been replaced meanwhile.
        raise ConnectionError(f"got {os.path.getsize(target):,} of {size:,} bytes")


def read(url: str, start: int | None = None, end: int | None = None) -> bytes:
    """Returns the bytes of a file, or of a part of it.

    Raises:
      DataError: it is not there, or cannot be read.
    """
    def cat(fs, path: str) -> bytes:
        content = fs.cat_file(path, start=start, end=end)
        if end is not None and len(content) != end - start:
            raise ConnectionError(f"got {len(content):,} of {end - start:,} bytes")
        return content

    try:
        return _call(url, "read", cat)
    except _AbsentError as error:
        raise DataError(f"no such file: {url}") from error


def send(source: str, url: str) -> None:
    """Makes a remote file a copy of a local one. It appears whole.

    Raises:
      UserError: it cannot be written.
    """
    def put(fs, path: str) -> None:
        if scheme_of(url) in _OBJECT_STORES:
            fs.put_file(source, path)
            return
        own = f"{path}.tmp-{uuid.uuid4().hex}"
        try:
            fs.makedirs(posixpath.dirname(path), exist_ok=True)
            fs.put_file(source, own)
            if fs.exists(path):
                fs.rm_file(path)
            fs.mv(own, path)
        except BaseException:
            with contextlib.suppress(Exception):
                fs.rm_file(own)
            raise

    _write(url, put)


def write(url: str, content: bytes) -> None:
    """Writes a small file."""
    _write(url, lambda fs, path: fs.pipe_file(path, content))


def create(url: str, content: bytes) -> bool:
    """Writes a small file if there is none of this name. Returns whether this call has made it.

    Of several processes that call it at once, one gets True.
    """
    def make(fs, path: str) -> bool:
        if scheme_of(url) in _OBJECT_STORES:
            try:
                fs.pipe_file(path, content, mode="create")
            except FileExistsError:
                # What was tried again may have been written at the first attempt.
                return fs.cat_file(path) == content
            return True
        if fs.exists(path):
            return False
        # There is no creation under a condition here: who is read after a while has won.
        fs.makedirs(posixpath.dirname(path), exist_ok=True)
        fs.pipe_file(path, content)
        time.sleep(2)
        return fs.cat_file(path) == content

    return _write(url, make)


def _write(url: str, do: Callable[[Any, str], Result]) -> Result:
    try:
        return _call(url, "write", do)
    except _AbsentError as error:
        require_bucket(url)
        raise UserError(f"cannot write {url}: {first_line(error)}") from error


def remove(url: str) -> None:
    """Removes a file, if it is there."""
    with contextlib.suppress(_AbsentError):
        _call(url, "remove", lambda fs, path: fs.rm_file(path))


def together(do: Callable[..., None], tasks: Iterable[tuple]) -> None:
    """Calls `do(*task)` for several tasks at a time. The first error is raised at the end."""
    tasks = list(tasks)
    if len(tasks) < 2:
        for task in tasks:
            do(*task)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in [pool.submit(do, *task) for task in tasks]:
            done.result()


# === One call ===


class _AbsentError(Exception):
    """There is no such file, directory or bucket."""


def _path(url: str) -> str:
    return _file_system(url)[1]


def _file_system(url: str):
    scheme = scheme_of(url)
    install = f"pip install 'albert[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else ""
    if importlib.util.find_spec("fsspec") is None:
        raise DataError(f"{url}: {scheme}:// needs fsspec: {install or 'pip install fsspec'}")
    import fsspec

    try:
        # Others write there too: what was listed before is not believed.
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise DataError(
            f"{url}: {scheme}:// needs a package that is not installed: "
            f"{install or first_line(error)}"
        ) from error
    except ValueError as error:
        raise DataError(f"{url}: {first_line(error)}") from error
    except Exception as error:  # whatever a file system's library raises
        raise DataError(f"{bucket_of(url)}: {_reason(error)}") from error


def _call(url: str, verb: str, do: Callable[[Any, str], Result]) -> Result:
    """Calls `do(file system, path)`, several times if need be.

    Raises:
      _AbsentError: there is no such thing; UserError: all else.
    """
    fs, path = _file_system(url)
    for attempt in range(_ATTEMPTS):
        try:
            return do(fs, path)
        except FileNotFoundError as error:
            raise _AbsentError(first_line(error)) from error
        except UserError:
            raise
        except Exception as error:
            if not _is_passing(error) or attempt == _ATTEMPTS - 1:
                raise DataError(f"cannot {verb} {url}: {_reason(error)}") from error
            time.sleep(0.1 * 2**attempt)
    raise AssertionError


def _is_passing(error: Exception) -> bool:
    return not (isinstance(error, _LASTING) or _is_of_credentials(error))


def _is_of_credentials(error: BaseException) -> bool:
    return "Credential" in type(error).__name__ or "credentials" in str(error).lower()


def _reason(error: BaseException) -> str:
    if _is_of_credentials(error):
        return f"no credentials ({first_line(error)})"
    if isinstance(error, PermissionError):
        return f"permission denied ({first_line(error)})"
    return first_line(error)


def require_room(entries: Iterable[Entry], folder: str) -> None:
    """Refuses to fetch what the disk has no room for.

    Raises:
      UserError: names both sizes.
    """
    needed = sum(entry.size for entry in entries)
    there = os.statvfs(folder)
    free = there.f_bavail * there.f_frsize
    if needed > free:
        raise UserError(
            f"{folder} has room for {free / 1e9:.1f} GB, {needed / 1e9:.1f} GB are to be fetched: "
            "set ALBERT_CACHE to a folder of a larger disk"
        )
