"""Opens, lists and copies files by path or address (`s3://`, `gs://`, `abfs://`, `hdfs://`).

Addresses go through fsspec, which is imported only when one is used. Transient errors are retried
for a few seconds; all others are raised as a `DataError` of one line that names the address.
"""

import concurrent.futures
import errno
import glob as local_glob
import importlib.util
import io
import os
import posixpath
import re
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, TypeVar

from albert.errors import DataError, UserError, first_line

Identity = tuple[int, int]  # (size in bytes, modification time in ns); differs if a file changed
Result = TypeVar("Result")

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_LOCAL_OR_WEB = ("file", "http", "https")  # http addresses are those of TF-Hub modules
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure",
           "az": "azure", "hdfs": "hdfs"}
_OBJECT_STORES = (*(scheme for scheme in _EXTRAS if scheme != "hdfs"), "memory")
_ATTEMPTS = 7  # within 6 s
_PERMANENT = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError,
              NotADirectoryError, ImportError, ValueError, TypeError, AttributeError,
              NotImplementedError, UserError)
_PERMANENT_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG)
_FIRST_BLOCK, _LAST_BLOCK = 256 << 10, 8 << 20  # bytes read at once from a remote file


def is_remote(path: str | None) -> bool:
    """Whether a path is an address in cloud storage or in another file system."""
    match = _SCHEME.match(path or "")
    return bool(match) and match[1].lower() not in _LOCAL_OR_WEB


def without_file_scheme(path: str) -> str:
    """Returns a local path without `file://`."""
    return path[len("file://") :] if path.lower().startswith("file://") else path


# === Reading and listing ===


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading. Remote files are streamed, with read-ahead.

    Raises:
      DataError: a remote file is absent or unreadable; OSError: a local one is.
    """
    if is_remote(path):
        return io.BufferedReader(_RemoteFile(path), _FIRST_BLOCK)
    return open(path, "rb")


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Returns the bytes [start, end) of each range, fetched at the same time from remote files.

    Raises:
      DataError: the file is absent or unreadable, or shorter than a range.
    """
    found: list[bytes | None] = [None] * len(ranges)

    def fetch(fs, name: str) -> None:
        missing = [i for i, content in enumerate(found) if content is None]
        starts, ends = ([ranges[i][side] for i in missing] for side in (0, 1))
        parts = fs.cat_ranges([name] * len(missing), starts, ends, on_error="return")
        for i, part, start, end in zip(missing, parts, starts, ends, strict=True):
            if isinstance(part, Exception):
                raise part
            if len(part) != end - start:
                raise ConnectionError(f"got {len(part):,} of {end - start:,} bytes at {start:,}")
            found[i] = part

    if not ranges:
        return []
    if is_remote(path):
        call(path, "read", fetch)
        return found
    with open(path, "rb") as stream:
        found = [os.pread(stream.fileno(), end - start, start) for start, end in ranges]
    for part, (start, end) in zip(found, ranges, strict=True):
        if len(part) != end - start:
            raise DataError(f"{path}: cut off: {len(part):,} of {end - start:,} bytes at {start:,}")
    return found


def identity(path: str) -> Identity:
    """Returns the size and the time stamp of a file, from which a change can be told.

    The time stamp of a remote file depends on its ETag, too.

    Raises:
      DataError: a remote file is absent or unreadable; OSError: a local one is.
    """
    if is_remote(path):
        return _identity(_info(path, "file"))
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def size(path: str) -> int:
    """Returns the number of bytes of a file; errors as `identity`."""
    return identity(path)[0]


def exists(path: str) -> bool:
    """Whether there is a file or directory of this name."""
    return _find_info(path) is not None if is_remote(path) else os.path.exists(path)


def is_dir(path: str) -> bool:
    """Whether there is a directory of this name."""
    if is_remote(path):
        return (_find_info(path) or {}).get("type") == "directory"
    return os.path.isdir(path)


def glob(pattern: str) -> list[str]:
    """Returns the file of this name, else the files that match it as a glob, sorted."""
    if not is_remote(pattern):
        return [pattern] if os.path.exists(pattern) else sorted(local_glob.glob(pattern))
    if (_find_info(pattern) or {}).get("type") == "file":
        return [pattern]
    found = _list(pattern, lambda fs, name: fs.glob(name, detail=True))
    return sorted(url for url, info in found.items() if info["type"] == "file")


def list_dir(path: str) -> list[str]:
    """Returns the names in a directory, sorted; those of directories end in `/`.

    Raises:
      DataError: a remote directory cannot be read (an absent one is empty); OSError: a local one.
    """
    if not is_remote(path):
        return sorted(entry.name + "/" * entry.is_dir() for entry in os.scandir(path))
    found = _list(path, lambda fs, name: {one["name"]: one for one in fs.ls(name, detail=True)})
    return sorted(
        posixpath.basename(url.rstrip("/")) + "/" * (info["type"] == "directory")
        for url, info in found.items() if url.rstrip("/") != path.rstrip("/")
    )


def files_below(path: str) -> dict[str, Identity]:
    """Returns {relative name: identity} of all files below a directory, sorted by name."""
    found = {}
    if not is_remote(path):
        for folder, _, names in os.walk(path):
            for name in names:
                file = os.path.join(folder, name)
                found[os.path.relpath(file, path)] = identity(file)
        return dict(sorted(found.items()))
    base = path.rstrip("/") + "/"
    for url, info in _list(path, lambda fs, name: fs.find(name, detail=True)).items():
        name = url.removeprefix(base)
        if info["type"] == "file" and not url.endswith("/") and name != url:
            if {"", ".", ".."} & set(name.split("/")) or "\\" in name or "\0" in name:
                raise DataError(f"{path}: {name!r} cannot be a file name here: move it away")
            found[name] = _identity(info)
    return dict(sorted(found.items()))


class _RemoteFile(io.RawIOBase):
    """A remote file as a seekable stream; blocks grow and are fetched ahead while read in order."""

    def __init__(self, url: str):
        self._url, self._size = url, size(url)
        self._position = self._start = 0
        self._block, self._block_bytes = b"", _FIRST_BLOCK
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._ahead: concurrent.futures.Future | None = None  # of the block after this one

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def readinto(self, buffer) -> int:
        if self._position >= self._size:
            return 0
        if not self._start <= self._position < self._start + len(self._block):
            self._load()
        part = memoryview(self._block)[self._position - self._start :][: len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _load(self) -> None:
        is_next = self._ahead and self._position == self._start + len(self._block)
        if is_next:
            self._start, self._block = self._position, self._ahead.result()
            self._block_bytes = min(2 * self._block_bytes, _LAST_BLOCK)
        else:
            self._start, self._block_bytes = self._position, _FIRST_BLOCK
            self._block = self._fetch(self._start, self._block_bytes)
        after = self._start + len(self._block)
        self._ahead = None
        if after < self._size:
            self._ahead = self._thread.submit(self._fetch, after, self._block_bytes)

    def _fetch(self, start: int, count: int) -> bytes:
        return read_ranges(self._url, [(start, min(start + count, self._size))])[0]

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        super().close()


# === Copies ===


def cache_directory() -> str:
    """Returns where downloaded and unpacked files are kept: $ALBERT_CACHE or the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.abspath(os.environ.get("ALBERT_CACHE") or os.path.join(base, "albert"))


def local_copy(path: str) -> str:
    """Returns the path of a local copy of a remote file or directory; a local path as it is.

    The copy lies in the cache and is refreshed if the remote file has changed.

    Raises:
      DataError: it is absent or unreadable; UserError: the disk has no room for it.
    """
    if not is_remote(path):
        return without_file_scheme(path)
    from albert.storage import places

    url = path.rstrip("/")
    target = places.mirror_of(url, places.root())
    info = _info(url)
    places.use_mirrors()
    if info["type"] == "file":
        download({url: _identity(info)}, {url: target})
        return target
    found = files_below(url)
    download({f"{url}/{name}": known for name, known in found.items()},
             {f"{url}/{name}": os.path.join(target, name) for name in found})
    for name in set(files_below(target)) - set(found):
        os.unlink(os.path.join(target, name))
    return target


def download(identities: dict[str, Identity], targets: dict[str, str]) -> None:
    """Makes each target a copy of its address, unless it is one already."""
    from albert.storage import temporaries

    def fetch(url: str) -> None:
        with temporaries.temporary_file(targets[url]) as scratch:
            call(url, "read", lambda fs, name: _download(fs, name, scratch, identities[url][0]))
            os.utime(scratch, ns=(identities[url][1],) * 2)
            os.replace(scratch, targets[url])

    wanted = []
    for url, target in targets.items():
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target) or identity(target) != identities[url]:
            wanted.append(url)
    if not wanted:
        return
    needed = sum(identities[url][0] for url in wanted)
    free = shutil.disk_usage(os.path.dirname(targets[wanted[0]])).free
    if needed > free:
        raise UserError(
            f"{cache_directory()} has room for {free / 1e9:.1f} GB, the download needs "
            f"{needed / 1e9:.1f} GB: set ALBERT_CACHE to a directory on a larger disk"
        )
    together(fetch, wanted)


def _download(fs, name: str, target: str, size: int) -> None:
    fs.get_file(name, target)
    if os.path.getsize(target) != size:  # it may have been replaced meanwhile
        raise ConnectionError(f"got {os.path.getsize(target):,} of {size:,} bytes")


def together(do: Callable[[str], Any], urls: Sequence[str]) -> None:
    """Calls a function for several addresses at a time; raises the first error at the end."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(do, url) for url in urls]:
            done.result()


# === Calls of fsspec ===


def call(url: str, verb: str, do: Callable[[Any, str], Result]) -> Result:
    """Returns `do(file system, path)`. Transient errors are retried for a few seconds.

    Raises:
      DataError: any error, told in one line with the address.
    """
    fs, path = _file_system(url)
    for attempt in range(_ATTEMPTS):
        try:
            return do(fs, path)
        except UserError:
            raise
        except Exception as error:  # of whatever type the file system's library raises
            if isinstance(error, FileNotFoundError):
                _require_bucket(url)
                raise AbsentError(f"no such file: {url}") from error
            is_permanent = (
                isinstance(error, _PERMANENT) or _is_of_credentials(error)
                or getattr(error, "errno", None) in _PERMANENT_CODES
            )
            if is_permanent or attempt == _ATTEMPTS - 1:
                raise DataError(f"cannot {verb} {url}: {_reason(error)}") from error
            time.sleep(0.1 * 2**attempt)
    raise AssertionError


class AbsentError(DataError):
    """There is no such remote file or directory."""


def _file_system(url: str):
    scheme = url.split("://", 1)[0].lower()
    install = f"pip install 'albert[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else ""
    if importlib.util.find_spec("fsspec") is None:
        raise DataError(f"{url}: {scheme}:// needs fsspec: {install or 'pip install fsspec'}")
    import fsspec

    try:
        # Others write there too, so earlier listings are not trusted.
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise DataError(f"{url}: {scheme}:// needs a package that is not installed: "
                        f"{install or first_line(error)}") from error
    except ValueError as error:
        raise DataError(f"{url}: {first_line(error)}") from error
    except Exception as error:  # of whatever type the file system's library raises
        raise DataError(f"{url}: {_reason(error)}") from error


def _require_bucket(url: str) -> None:
    scheme, rest = url.split("://", 1)
    bucket = f"{scheme}://{rest.lstrip('/').split('/', 1)[0]}"
    if scheme.lower() not in _OBJECT_STORES or scheme == "memory":
        return
    fs, path = _file_system(bucket)
    try:
        fs.ls(path, detail=False)
    except FileNotFoundError as error:
        raise DataError(f"there is no bucket {bucket}") from error
    except Exception:  # noqa: S110 (one may read files of buckets that one may not list)
        pass


def _info(url: str, kind: str | None = None) -> dict[str, Any]:
    info = call(url, "read", lambda fs, path: fs.info(path))
    if kind and info["type"] != kind:
        raise AbsentError(f"{url} is a {info['type']}, not a {kind}")
    return info


def _find_info(url: str) -> dict[str, Any] | None:
    try:
        return _info(url)
    except AbsentError:
        return None


def _list(url: str, do: Callable) -> dict[str, dict[str, Any]]:
    """Returns {address: info} of what a listing finds; nothing in an absent directory."""
    def listed(fs, path: str) -> dict[str, dict[str, Any]]:
        # The file system's names lack the scheme, and some the host, too.
        key = url.split("://", 1)[1].partition("/")[2].strip("/")
        lead = path.strip("/").removesuffix(key).strip("/")
        root = url.rstrip("/").removesuffix(key).rstrip("/")
        names = do(fs, path).items()
        return {f"{root}/{name.strip('/').removeprefix(lead).strip('/')}": i for name, i in names}

    try:
        found = call(url, "list", listed)
    except AbsentError:
        found = {}
    if not found:
        _require_bucket(url)
    return found


def _identity(info: dict[str, Any]) -> Identity:
    """Returns (size, ns): the second of the last change, and a hash of the ETag below it."""
    import datetime

    times = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
    tags = ("ETag", "etag", "generation", "md5Hash", "content_md5", "VersionId")
    when = next((info[key] for key in times if info.get(key) is not None), 0)
    if isinstance(when, str):
        when = datetime.datetime.fromisoformat(when.replace("Z", "+00:00"))
    if isinstance(when, datetime.datetime):
        when = when.timestamp()
    tag = next((str(info[key]) for key in tags if info.get(key)), repr(when))
    return int(info["size"] or 0), int(float(when)) * 10**9 + zlib.crc32(tag.encode()) % 10**9


def _is_of_credentials(error: BaseException) -> bool:
    return "Credential" in type(error).__name__ or "credentials" in str(error).lower()


def _reason(error: BaseException) -> str:
    if _is_of_credentials(error):
        return f"no credentials ({first_line(error)})"
    if isinstance(error, PermissionError):
        return f"permission denied ({first_line(error)})"
    return first_line(error)
