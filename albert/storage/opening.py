"""Files opened, found and read alike, on this machine or in cloud storage."""

import errno
import glob
import io
import os
from collections.abc import Sequence
from typing import BinaryIO

from albert.errors import DataError
from albert.storage import filesystem

_READ_AHEAD = 4 << 20  # bytes


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading; a remote one is streamed.

    Raises:
      OSError: as of `open`; DataError: a remote file cannot be read.
    """
    if not filesystem.is_remote(path):
        return open(path, "rb")
    return io.BufferedReader(_RemoteFile(path), _READ_AHEAD)


class _RemoteFile(io.RawIOBase):
    """A remote file, read by ranges, each of which is retried."""

    def __init__(self, path: str):
        self._path, self._size, self._position = path, size_of(path), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        [content] = read_ranges(self._path, [(self._position, end)])
        buffer[: len(content)] = content
        self._position = end
        return len(content)


def exists(path: str) -> bool:
    """Whether there is a file or directory."""
    return filesystem.info_of(path) is not None if filesystem.is_remote(path) else os.path.exists(path)


def size_of(path: str) -> int:
    """Returns the bytes of a file.

    Raises:
      OSError: there is no such file.
    """
    if not filesystem.is_remote(path):
        return os.path.getsize(path)
    if entry := filesystem.entry_of(path):
        return entry.size
    raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)


def stamp_of(path: str) -> int:
    """Returns a number that changes when a file does: its time of modification in nanoseconds.

    Raises:
      OSError: there is no such file.
    """
    if not filesystem.is_remote(path):
        return os.stat(path).st_mtime_ns
    if entry := filesystem.entry_of(path):
        return entry.stamp
    raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)


def find(pattern: str) -> list[str]:
    """Returns the file of this name, or the files that match it as a glob, sorted."""
    if filesystem.is_remote(pattern):
        return [entry.url for entry in filesystem.match(pattern)]
    # "a [v2].txt" is a name, too.
    return [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Returns the bytes from start to end for each (start, end) of a file.

    Raises:
      OSError, DataError: the file cannot be read.
    """
    if not filesystem.is_remote(path):
        with open(path, "rb") as stream:
            return [os.pread(stream.fileno(), end - start, start) for start, end in ranges]
    starts, ends = zip(*ranges, strict=True) if ranges else ((), ())

    def cat(fs, name: str) -> list[bytes]:
        found = fs.cat_ranges([name] * len(ranges), list(starts), list(ends), on_error="raise")
        if any(len(part) != end - start for part, (start, end) in zip(found, ranges, strict=True)):
            raise ConnectionError("got fewer bytes than asked for")
        return found

    try:
        return filesystem.call(path, "read", cat)
    except filesystem.AbsentError as error:
        raise DataError(f"no such file: {path}") from error
