"""Paths of other places: `s3://`, `gs://`, `hdfs://`, `abfs://` and what else fsspec knows.

Every command works on local files. What a flag names elsewhere has a mirror on this machine: it
is fetched before the command reads it, and what the command writes there is sent at the moments
that `publish` marks. A local path is its own mirror, and costs a look at an empty list.

A file of a mirror may be a stand-in of the right size until `ready` fetches it. Its time of
modification is 0, so that no process takes it for the file.
"""

import contextlib
import dataclasses
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Protocol

from albert.errors import RunDirBusyError, UserError

log = logging.getLogger("albert")

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_WEB = ("http", "https")  # addresses of TF-Hub modules
RUN = "run"  # of the folder of what one process alone writes


def is_remote(path: str | None) -> bool:
    """Whether a path is of another file system than this machine's."""
    match = _SCHEME.match(path or "")
    return bool(match) and match[1].lower() not in (*_WEB, "file")


def without_file_scheme(path: str) -> str:
    """Returns a local path without `file://`."""
    return path[len("file://") :] if path.lower().startswith("file://") else path


def cache_directory() -> str:
    """Returns where fetched and unpacked files are kept: $ALBERT_CACHE, else the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.abspath(os.environ.get("ALBERT_CACHE") or os.path.join(base, "albert"))


def root() -> str:
    """Returns where the mirrors lie."""
    return os.path.join(cache_directory(), "places")


def mirror_of(url: str, folder: str) -> str:
    """Returns the path of a remote file's mirror below a folder."""
    scheme, rest = url.split("://", 1)
    parts = [scheme.lower(), *filter(None, rest.split("/"))]
    if {".", ".."} & set(parts):
        raise ValueError(f"{url}: names of . and .. have no mirror")
    return os.path.join(folder, *parts)


def as_given(text: str) -> str:
    """Returns a text with the addresses of remote files in place of their mirrors' paths."""
    if not _used:
        return text
    own = rf"{re.escape(root())}/(?:{RUN}\.tmp-[0-9a-f]{{8}}-\d+-\d+/|out/)?"
    return re.sub(own + r"([a-z][a-z0-9+.-]*)/", r"\1://", text)


# === What this process has mirrored ===


class Tree(Protocol):
    """The mirror of what a command writes; see `mirrors.Mirror`."""

    local: str

    def push(self) -> None: ...

    def holding(self, directory: str) -> contextlib.AbstractContextManager: ...


_used: list[bool] = []  # not empty once there is a mirror
_trees: list[Tree] = []
_stand_ins: dict[str, "StandIn"] = {}  # by their paths


def use_mirrors() -> None:
    """Tells that there are mirrors now, whose paths `as_given` looks for."""
    _used[:] = [True]


@contextlib.contextmanager
def open_tree(tree: Tree) -> Iterator[None]:
    """Lets `publish` and `held` find a tree, inside the block."""
    _trees.append(tree)
    try:
        yield
    finally:
        _trees.remove(tree)


def tree_of(path: str) -> Tree | None:
    """Returns the tree that a path lies in."""
    if not _trees:
        return None
    path = os.path.abspath(path) + os.sep
    return next((tree for tree in _trees if path.startswith(tree.local + os.sep)), None)


def publish(path: str) -> None:
    """Sends what has changed in a path's tree, if it has one. All of it is whole now.

    What cannot be sent is told, and sent with what comes next, or at the end of the command.

    Raises:
      RunDirBusyError: another process has taken the directory over.
    """
    if tree := tree_of(path):
        try:
            tree.push()
        except RunDirBusyError:
            raise
        except UserError as error:
            log.warning("%s; trying again with the next checkpoint", error)


@dataclasses.dataclass(frozen=True)
class StandIn:
    """How a file that is not here is fetched: whole, or so many bytes of its beginning."""

    fetch: Callable[[], None]
    begin: Callable[[int], bytes]


def stand_in(path: str, size: int, source: StandIn) -> None:
    """Puts a file of zeros in a file's place until `ready` fetches it."""
    _stand_ins[os.path.abspath(path)] = source
    with contextlib.suppress(FileNotFoundError):
        there = os.stat(path)
        if (there.st_size, there.st_mtime_ns) == (size, 0):
            return
        os.unlink(path)  # an earlier one
    descriptor, own = tempfile.mkstemp(prefix=".stand-in-", dir=os.path.dirname(path))
    try:
        os.ftruncate(descriptor, size)
        os.close(descriptor)
        os.utime(own, ns=(0, 0))
        # Not over what another process may have fetched meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(own, path)
    finally:
        os.unlink(own)


def is_stand_in(path: str) -> bool:
    """Whether a file waits to be fetched."""
    return bool(_stand_ins) and os.path.abspath(path) in _stand_ins


def ready(path: str) -> str:
    """Returns the path of a file that is there whole, fetched now if it is a stand-in.

    Raises:
      UserError: it cannot be fetched.
    """
    if _stand_ins and (source := _stand_ins.get(os.path.abspath(path))):
        source.fetch()
        _stand_ins.pop(os.path.abspath(path), None)
    return path


def begin_of(path: str, size: int) -> bytes:
    """Returns the first bytes of a file; of a stand-in, those of its file."""
    if _stand_ins and (source := _stand_ins.get(os.path.abspath(path))):
        return source.begin(min(size, os.path.getsize(path)))
    with open(path, "rb") as stream:
        return stream.read(size)


def forget(folder: str) -> None:
    """Forgets the stand-ins below a folder."""
    for path in [path for path in _stand_ins if path.startswith(folder + os.sep)]:
        del _stand_ins[path]
