"""Reads, lists and copies files by path or by address (`s3://`, `gs://`, `abfs://`, `hdfs://`).

`local_copy` downloads. Files to upload are made in the folders of `mirrors`. What is local on behalf
of an address is in a table, so that messages and recorded paths name the address.
fsspec is imported only if there is an address; see `fsspec_calls`.
"""

import concurrent.futures
import contextlib
import glob as local_glob
import io
import logging
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from albert.errors import DataError, UserError
from albert.storage import shipped
from albert.storage.fsspec_calls import (
    AbsentError,
    Identity,
    call,
    find_info,
    stamp_of,
    list_infos,
)
from albert.storage.temporary import temporary_dir

log = logging.getLogger("albert")

_REMOTE = re.compile(r"(?!(?:file|https?)://)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_CHECKPOINT_FILE = re.compile(r"\.(index|meta|safetensors|data-\d{5}-of-\d{5})$")
_SMALL = 64 << 20  # bytes of the largest file that is copied because a checkpoint is
_READ_AHEAD = 2 << 20  # bytes
_addresses: dict[str, str] = {}  # {local path: the address that it is a copy or a mirror of}


def is_remote(path: str | None) -> bool:
    """Whether a path is an address in cloud storage; those of the web belong to TF-Hub modules."""
    return bool(_REMOTE.match(path or ""))


def without_file_scheme(path: str) -> str:
    """Returns a local path without `file://`."""
    return path[len("file://") :] if path.lower().startswith("file://") else path


# === Reading and listing ===


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading. A remote file is streamed, with read-ahead.

    A path that represents an address means the remote file, unless a local one exists.

    Raises:
      DataError: a remote file is missing or unreadable; OSError: a local one is.
    """
    path = path if os.path.lexists(path) else address_of(path)
    if is_remote(path):
        return io.BufferedReader(_RemoteFile(path), _READ_AHEAD)
    return open(path, "rb")


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Returns the bytes [start, end) of each range; concurrently from a remote file.

    Raises:
      DataError: the file is missing, unreadable or too short.
    """
    def fetch(fs, name: str) -> list[bytes]:
        starts, ends = zip(*ranges, strict=True)
        parts = fs.cat_ranges([name] * len(ranges), list(starts), list(ends), on_error="return")
        for part in parts:
            if isinstance(part, Exception):
                raise part
        return parts

    contents: list[bytes] = []
    if ranges and is_remote(path):
        contents = call(path, "read", fetch)
    elif ranges:
        with _local_errors(path), open(path, "rb", buffering=0) as stream:
            contents = [os.pread(stream.fileno(), end - start, start) for start, end in ranges]
    for content, (start, end) in zip(contents, ranges, strict=True):
        if len(content) != end - start:
            raise DataError(f"{path}: truncated: {len(content):,} of {end - start:,} bytes at "
                            f"{start:,}")
    return contents


def stamp(path: str) -> Identity:
    """Returns the size and a time stamp of a file, one of which changes with the file.

    Raises:
      DataError: the file is missing or unreadable.
    """
    if is_remote(path):
        if info := find_info(path):
            return stamp_of(info)
        raise AbsentError(f"no such file: {path}")
    with _local_errors(path):
        info = os.stat(path)
        return info.st_size, info.st_mtime_ns


@contextlib.contextmanager
def _local_errors(path: str) -> Iterator[None]:
    """Turns an OSError in the block into a DataError that names the local file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def size(path: str) -> int:
    """Returns the number of bytes of a file; raises the errors of `stamp`."""
    return stamp(path)[0]


def exists(path: str) -> bool:
    """Whether a file or directory exists, locally or at the address that the path represents."""
    if os.path.lexists(path):
        return True
    return is_remote(url := address_of(path)) and find_info(url) is not None


def is_dir(path: str) -> bool:
    """Whether a directory exists."""
    if is_remote(path):
        return (find_info(path) or {}).get("type") == "directory"
    return os.path.isdir(path)


def glob(pattern: str) -> list[str]:
    """Returns the file with this name, else the files that match it as a glob, sorted."""
    if not is_remote(pattern):
        return [pattern] if os.path.exists(pattern) else sorted(local_glob.glob(pattern))
    if (find_info(pattern) or {}).get("type") == "file":
        return [pattern]
    infos = list_infos(pattern, lambda fs, name: fs.glob(name, detail=True))
    return sorted(url for url, info in infos.items() if info["type"] == "file")


def files_below(path: str) -> dict[str, Identity]:
    """Returns {relative name: identity} of all files below a directory, sorted."""
    identities = {}
    if is_remote(path):
        base = path.rstrip("/") + "/"
        for url, info in list_infos(path, lambda fs, name: fs.find(name, detail=True)).items():
            name = url.removeprefix(base)
            if info["type"] != "file" or url.endswith("/") or name == url:
                continue
            if {"", ".", ".."} & set(name.split("/")) or "\\" in name or "\0" in name:
                raise DataError(f"{path}: {name!r} cannot be a file name here: move it away")
            identities[name] = stamp_of(info)
    else:
        for folder, _, names in os.walk(path):
            for file in (os.path.join(folder, name) for name in names):
                identities[os.path.relpath(file, path)] = stamp(file)
    return dict(sorted(identities.items()))


class _RemoteFile(io.RawIOBase):
    """A seekable stream of a remote file."""

    def __init__(self, url: str):
        self._url, self._size, self._position = url, size(url), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def readinto(self, buffer) -> int:
        end = min(self._position + len(buffer), self._size)
        if self._position >= end:
            return 0
        [content] = read_ranges(self._url, [(self._position, end)])
        buffer[: len(content)] = content
        self._position = end
        return len(content)


# === Paths that represent addresses ===


def cache_directory() -> str:
    """Returns the directory of downloaded and unpacked files: $ALBERT_CACHE or the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.realpath(os.environ.get("ALBERT_CACHE") or os.path.join(base, "albert"))


def path_in_cache(url: str, folder: str) -> str:
    """Returns the path that represents an address in a folder of the cache."""
    scheme, rest = url.split("://", 1)
    parts = [scheme.lower(), *filter(None, rest.split("/"))]
    if {".", ".."} & set(parts):
        raise DataError(f"{url}: an address must not contain . or ..")
    return os.path.join(cache_directory(), folder, *parts)


def represent(path: str, url: str) -> str:
    """Makes messages show an address instead of a local path; returns the absolute path."""
    path = os.path.abspath(path)  # a relative one could be a word of any message
    _addresses[path] = url
    return path


def as_given(text: str) -> str:
    """Returns a text with addresses, and names of built-in models, instead of their paths."""
    for path, url in _addresses.items():
        text = text.replace(path, url)
    return text.replace(os.path.join(shipped.FOLDER, ""), "")


def address_of(path: str) -> str:
    """Returns the address that a path represents or is, or else the path."""
    given = path if is_remote(path) else as_given(os.path.abspath(path))
    return given if is_remote(given) else path


@contextlib.contextmanager
def addresses_in_errors() -> Iterator[None]:
    """Shows addresses in error messages instead of the paths that represent them."""
    try:
        yield
    except UserError as error:
        error.args = (as_given(str(error)),)
        raise


# === Local copies ===


def local_copy(path: str, flag: str = "path") -> str:
    """Returns the path of a local copy of a remote file, directory or checkpoint.

    Copies stay in the cache until the remote file changes. A checkpoint is given by its prefix or one
    of its files, and the small files in its directory are copied, too. Local paths are returned
    unchanged.

    Raises:
      DataError: it is missing (names the `flag`) or unreadable; UserError: the disk is full.
    """
    if not is_remote(path):
        return without_file_scheme(path)
    url = path.rstrip("/")
    target = represent(path_in_cache(path, "downloads"), url)
    info, prefix = find_info(url), _CHECKPOINT_FILE.sub("", url)
    if info and info["type"] == "directory":
        folder, names = target, download(url, target)
    elif info and prefix == url:
        _download({target: (url, stamp_of(info))})
        return target
    else:
        base, folder = os.path.basename(prefix), os.path.dirname(target)
        names = download(os.path.dirname(url), represent(folder, os.path.dirname(url)), base)
        if not any(name.startswith(f"{base}.") for name in names):
            raise AbsentError(f"{flag}: no such file: {path}")
    for name in set(files_below(folder)) - names:  # which were removed there
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    return target


def download(url: str, folder: str, checkpoint: str = "") -> set[str]:
    """Downloads the files below an address that have changed; returns the names of all files.

    Hidden files are not downloaded.

    Args:
      checkpoint: if given, only its files and the small ones next to them are downloaded.
    """
    def is_needed(name: str, size: int) -> bool:
        is_small = "/" not in name and size <= _SMALL and not _CHECKPOINT_FILE.search(name)
        is_of_checkpoint = not checkpoint or name.startswith(f"{checkpoint}.")
        return (is_of_checkpoint or is_small) and not posixpath.basename(name).startswith(".")

    os.makedirs(folder, exist_ok=True)
    remote = files_below(url)
    _download({
        os.path.join(folder, name): (f"{url}/{name}", known)
        for name, known in remote.items() if is_needed(name, known[0])
    })
    return set(remote)


def _download(files: dict[str, tuple[str, Identity]]) -> None:
    """Makes each path a copy of (address, identity), unless it is one."""
    outdated = [
        path for path, (_, known) in files.items()
        if not (os.path.exists(path) and stamp(path) == known)
    ]
    if outdated:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: _fetch(path, *files[path]), outdated))
        more = f" and {len(outdated) - 1} more" if len(outdated) > 1 else ""
        megabytes = sum(files[path][1][0] for path in outdated) / 1e6
        log.info("downloaded %s%s (%.1f MB)", files[outdated[0]][0], more, megabytes)


def _fetch(path: str, url: str, known: Identity) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with temporary_dir(os.path.join(cache_directory(), "download")) as folder:
        copy = os.path.join(folder, "file")
        call(url, "read", lambda fs, name: fs.get_file(name, copy))
        if os.path.getsize(copy) != known[0]:
            raise DataError(f"{url} was replaced while it was downloaded: rerun the command")
        os.utime(copy, ns=(known[1], known[1]))
        os.replace(copy, path)
