"""Calls of fsspec: remote files listed, read, written.

Transient errors are retried for a few seconds; lasting ones are reported in one line. fsspec is
imported when the first address is used.
"""

import contextlib
import dataclasses
import datetime
import errno
import importlib.util
import os
import posixpath
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from albert.errors import DataError, UserError, first_line

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_WEB = ("http", "https")  # addresses of TF-Hub modules
# Stores in which a file appears with its last byte. Elsewhere it is renamed when complete.
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory")
_EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure",
    "az": "azure", "hdfs": "hdfs",
}
_ATTEMPTS = 7
_THREADS = 8  # files transferred at once
_LASTING = (
    FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError,
    ImportError, ValueError, TypeError, AttributeError, NotImplementedError, UserError,
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # of this machine's disk: retrying is in vain
_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
_TAGS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "VersionId")

Result = TypeVar("Result")


def is_remote(path: str | None) -> bool:
    """Whether a path is the address of a file system other than this machine's."""
    match = _SCHEME.match(path or "")
    return bool(match) and match[1].lower() not in (*_WEB, "file")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A remote file."""

    url: str
    size: int
    # Time of modification in nanoseconds. Below a second, a checksum of what identifies the content.
    stamp: int


# === Listing ===


def scheme_of(url: str) -> str:
    return url.split("://", 1)[0].lower()


def bucket_of(url: str) -> str:
    """Returns the address of the bucket, container or host of a file."""
    scheme, rest = url.split("://", 1)
    return f"{scheme}://{rest.lstrip('/').split('/', 1)[0]}"


def entry_of(url: str) -> Entry | None:
    """Returns a remote file; None if there is none of this name, or it is a directory."""
    found = info_of(url)
    return _entry(url, found) if found and found["type"] == "file" else None


def is_directory(url: str) -> bool:
    """Whether there is a remote directory of this name."""
    found = info_of(url)
    return bool(found) and found["type"] == "directory"


def info_of(url: str) -> dict[str, Any] | None:
    try:
        return call(url, "read", lambda fs, path: fs.info(path))
    except AbsentError:
        require_bucket(url)
        return None


def list_tree(url: str) -> dict[str, Entry]:
    """Returns {relative name: file} of all files below a remote directory; may be empty."""
    return _listed(url, lambda fs, path: fs.find(path, detail=True))


def list_directory(url: str) -> dict[str, Entry]:
    """Returns {name: file} of the files in a remote directory; may be empty."""
    return _listed(url, lambda fs, path: {one["name"]: one for one in fs.ls(path, detail=True)})


def _listed(url: str, list_files: Callable) -> dict[str, Entry]:
    url = url.rstrip("/")
    try:
        found = call(url, "list", list_files)
    except AbsentError:
        found = {}
    if not found:
        require_bucket(url)
    base = file_system(url)[1].strip("/")
    entries = {}
    for name, info in found.items():
        relative = name.strip("/").removeprefix(base).strip("/")
        if info["type"] == "file" and relative and not name.endswith("/"):
            if {"", ".", ".."} & set(relative.split("/")) or "\\" in relative or "\0" in relative:
                raise DataError(f"{url}: {relative!r} cannot be a file name here: move it away")
            entries[relative] = _entry(f"{url}/{relative}", info)
    return entries


def match(pattern: str) -> list[Entry]:
    """Returns the remote file of this name, or the files that match it as a glob, sorted."""
    if (named := entry_of(pattern)) or not set("*?[") & set(pattern):
        return [named] if named else []
    try:
        found = call(pattern, "list", lambda fs, path: fs.glob(path, detail=True))
    except AbsentError:
        found = {}
    if not found:
        require_bucket(pattern)
    # What a file system calls its files may lack the host, as in HDFS.
    fs, path = file_system(pattern)
    start = pattern[: len(pattern) - len(path.lstrip("/"))]
    entries = [
        _entry(f"{start}{name.lstrip('/')}", info)
        for name, info in found.items() if info["type"] == "file"
    ]
    return sorted(entries, key=lambda entry: entry.url)


def _entry(url: str, info: dict[str, Any]) -> Entry:
    when = next((info[key] for key in _TIMES if info.get(key) is not None), 0)
    if isinstance(when, str):
        when = datetime.datetime.fromisoformat(when.replace("Z", "+00:00"))
    if isinstance(when, datetime.datetime):
        when = when.timestamp()
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), repr(when))
    stamp = int(float(when)) * 10**9 + zlib.crc32(tag.encode()) % 10**9
    return Entry(url, int(info["size"] or 0), stamp)


def require_bucket(url: str) -> None:
    """Raises a DataError if the bucket of an address does not exist."""
    bucket = bucket_of(url)
    if scheme_of(url) not in _OBJECT_STORES or scheme_of(url) == "memory":
        return
    try:
        call(bucket, "list", lambda fs, path: fs.ls(path, detail=False))
    except AbsentError as error:
        raise DataError(f"there is no bucket {bucket}") from error
    except UserError:  # one may read files of buckets that one may not list
        return


# === Remote files, read and written completely ===


def read(url: str) -> bytes:
    """Returns the bytes of a remote file.

    Raises:
      DataError: it does not exist, or cannot be read.
    """
    try:
        return call(url, "read", lambda fs, path: fs.cat_file(path))
    except AbsentError as error:
        raise DataError(f"no such file: {url}") from error


def download(entry: Entry, path: str) -> None:
    """Copies a remote file to `path`, with its stamp as the time of modification.

    Raises:
      UserError: it cannot be read, or the copy cannot be written.
    """
    temporary = f"{path}.{uuid.uuid4().hex}.part"

    def get(fs, name: str) -> None:
        fs.get_file(name, temporary)
        if (size := os.path.getsize(temporary)) != entry.size:  # it may have been replaced
            raise ConnectionError(f"got {size:,} of {entry.size:,} bytes")

    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        call(entry.url, "read", get)
        os.utime(temporary, ns=(entry.stamp, entry.stamp))
        os.replace(temporary, path)
    except AbsentError as error:
        raise DataError(f"{entry.url}: gone while it was being read") from error
    except OSError as error:
        raise UserError(f"cannot keep a copy of {entry.url}: {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def upload(path: str, url: str) -> None:
    """Copies a local file to `url`, where it appears complete.

    Raises:
      UserError: it cannot be written.
    """
    def put(fs, name: str) -> None:
        if scheme_of(url) in _OBJECT_STORES:
            fs.put_file(path, name)
            return
        temporary = f"{name}.tmp-{uuid.uuid4().hex}"
        try:
            fs.makedirs(posixpath.dirname(name), exist_ok=True)
            fs.put_file(path, temporary)
            if fs.exists(name):
                fs.rm_file(name)
            fs.mv(temporary, name)
        except BaseException:
            with contextlib.suppress(Exception):
                fs.rm_file(temporary)
            raise

    _write(url, put)


def write(url: str, content: bytes) -> None:
    """Writes a small remote file."""
    _write(url, lambda fs, path: fs.pipe_file(path, content))


def create(url: str, content: bytes) -> bool:
    """Writes a small remote file if there is none of this name; returns whether it did.

    Of several processes that call it at once, one gets True.
    """
    def make(fs, path: str) -> bool:
        if scheme_of(url) in _OBJECT_STORES:
            try:
                fs.pipe_file(path, content, mode="create")
            except FileExistsError:
                # A retried call may have written it at its first attempt.
                return fs.cat_file(path) == content
            return True
        if fs.exists(path):
            return False
        # No conditional creation here: the one whose content is read after a while has won.
        fs.makedirs(posixpath.dirname(path), exist_ok=True)
        fs.pipe_file(path, content)
        time.sleep(2)
        return fs.cat_file(path) == content

    return _write(url, make)


def _write(url: str, do: Callable[[Any, str], Result]) -> Result:
    try:
        return call(url, "write", do)
    except AbsentError as error:
        require_bucket(url)
        raise UserError(f"cannot write {url}: {first_line(error)}") from error


def remove(url: str) -> None:
    """Removes a remote file, if it exists."""
    with contextlib.suppress(AbsentError):
        call(url, "remove", lambda fs, path: fs.rm_file(path))


def together(do: Callable[..., None], tasks: Iterable[tuple]) -> None:
    """Calls `do(*task)` for several tasks at once; raises the first error at the end."""
    tasks = list(tasks)
    if len(tasks) < 2:
        for task in tasks:
            do(*task)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(do, *task) for task in tasks]:
            done.result()


# === One call ===


class AbsentError(Exception):
    """There is no such file, directory or bucket."""


def file_system(url: str):
    scheme = scheme_of(url)
    install = f"pip install 'albert[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else ""
    if importlib.util.find_spec("fsspec") is None:
        raise DataError(f"{url}: {scheme}:// needs fsspec: {install or 'pip install fsspec'}")
    import fsspec

    try:
        # Others write there too: listings are not cached.
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


def call(url: str, verb: str, do: Callable[[Any, str], Result]) -> Result:
    """Calls `do(file system, path)`; retries transient errors.

    Raises:
      AbsentError: there is no such file; UserError: any other failure.
    """
    fs, path = file_system(url)
    for attempt in range(_ATTEMPTS):
        try:
            return do(fs, path)
        except FileNotFoundError as error:
            raise AbsentError(first_line(error)) from error
        except UserError:
            raise
        except Exception as error:
            is_lasting = isinstance(error, _LASTING) or getattr(error, "errno", None) in _FULL
            if is_lasting or _is_of_credentials(error) or attempt == _ATTEMPTS - 1:
                raise DataError(f"cannot {verb} {url}: {_reason(error)}") from error
            time.sleep(0.1 * 2**attempt)
    raise AssertionError


def _is_of_credentials(error: BaseException) -> bool:
    return "Credential" in type(error).__name__ or "credentials" in str(error).lower()


def _reason(error: BaseException) -> str:
    if _is_of_credentials(error):
        return f"no credentials ({first_line(error)})"
    if isinstance(error, PermissionError):
        return f"permission denied ({first_line(error)})"
    return first_line(error)
