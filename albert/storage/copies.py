"""Copies of remote files on this machine, for what must be read as local files.

A copy lies in the cache, at a path that follows from its address. It is made again if the remote file
has changed.
"""

import contextlib
import logging
import os
import posixpath
import re
import shutil
from collections.abc import Iterator

from albert.errors import DataError, UserError
from albert.storage import filesystem
from albert.storage.filesystem import Entry, is_remote

log = logging.getLogger("albert")

_BESIDE_A_CHECKPOINT = 64 << 20  # bytes of the largest other file that is copied with it
_CHECKPOINT = re.compile(r"(?P<name>model\.ckpt-(?P<step>\d+|best))\..*")


def cache_directory() -> str:
    """Returns where copies and unpacked archives are kept: $ALBERT_CACHE, else the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.abspath(os.environ.get("ALBERT_CACHE") or os.path.join(base, "albert"))


def path_below(folder: str, url: str) -> str:
    """Returns the path of a remote file's counterpart below a folder."""
    scheme, rest = url.split("://", 1)
    parts = [scheme.lower(), *filter(None, rest.split("/"))]
    if {".", ".."} & set(parts):
        raise DataError(f"{url}: . and .. cannot be part of an address")
    return os.path.join(folder, *parts)


def copies() -> str:
    """Returns the folder of all copies."""
    return os.path.join(cache_directory(), "copies")


_folders: set[str] = set()  # below which counterparts of remote files lie, by their addresses


def show_addresses(folder: str) -> None:
    """Lets `as_given` replace paths below a folder by the addresses of their remote files."""
    _folders.add(folder)


def as_given(text: str) -> str:
    """Returns a text with addresses in place of the paths of copies."""
    for folder in _folders:
        text = re.sub(re.escape(folder) + r"/([a-z][a-z0-9+.-]*)/", r"\1://", text)
    return text


@contextlib.contextmanager
def in_errors() -> Iterator[None]:
    """Lets users' errors show addresses instead of the paths of copies."""
    try:
        yield
    except UserError as error:
        error.args = (as_given(str(error)),)
        raise


def local_copy(path: str, flag: str) -> str:
    """Returns a local file or directory with the content of `path`; a local one is itself.

    Args:
      flag: named in errors.

    Raises:
      DataError: it does not exist; UserError: it cannot be copied.
    """
    if not is_remote(path):
        return path
    url = path.rstrip("/")
    if entry := filesystem.entry_of(url):
        download({url: entry}, copies())
    elif filesystem.is_directory(url):
        _copy_folder(url, {f"{url}/{name}": e for name, e in filesystem.list_tree(url).items()})
    else:
        raise DataError(f"--{flag}: no such file: {url}")
    return path_below(copies(), url)


def local_model(path: str, flag: str) -> str:
    """Does what `local_copy` does, for a model: a directory, an archive, or a checkpoint.

    Of a directory with many checkpoints the one that is used is copied. With a checkpoint its
    directory's small files come.
    """
    if not is_remote(path):
        return path
    url = path.rstrip("/")
    parent, base = posixpath.split(url)
    if filesystem.is_directory(url):
        found = filesystem.list_tree(url)
        unused = _unused_checkpoints(found)
        _copy_folder(url, {f"{url}/{name}": e for name, e in found.items() if name not in unused})
        return path_below(copies(), url)
    if base.endswith((".tar", ".gz", ".tgz")):
        return local_copy(url, flag)
    siblings = {} if parent.endswith(":/") else filesystem.list_directory(parent)
    stem = match["name"] if (match := _CHECKPOINT.fullmatch(base)) else base
    if base not in siblings and not any(name.startswith(f"{stem}.") for name in siblings):
        raise DataError(f"--{flag}: no such file: {url}")
    _copy_folder(parent, {
        f"{parent}/{name}": entry for name, entry in siblings.items()
        if name == base or name.startswith(f"{stem}.")
        or (entry.size <= _BESIDE_A_CHECKPOINT and not _CHECKPOINT.fullmatch(name))
    })
    return path_below(copies(), url)


def _unused_checkpoints(names) -> set[str]:
    """Returns the files of checkpoints beside the best or newest one."""
    steps = {name: match["step"] for name in names if (match := _CHECKPOINT.fullmatch(name))}
    used = max(steps.values(), key=lambda step: (step == "best", step.isdigit() and int(step)),
               default=None)
    return {name for name, step in steps.items() if step != used}


def _copy_folder(url: str, entries: dict[str, Entry]) -> None:
    """Makes the copy of a folder hold these files and no others."""
    folder = path_below(copies(), url)
    wanted = {path_below(copies(), name) for name in entries}
    for parent, _, names in os.walk(folder):
        for name in names:  # of an earlier copy
            if os.path.join(parent, name) not in wanted:
                os.unlink(os.path.join(parent, name))
    download(entries, copies())
    os.makedirs(folder, exist_ok=True)


def download(entries: dict[str, Entry], folder: str) -> None:
    """Copies remote files, by their addresses, to their counterparts below a folder.

    Raises:
      UserError: the disk has no room, or a file cannot be copied.
    """
    show_addresses(folder)
    wanted = {path: entry for url, entry in entries.items()
              if not _is_current(path := path_below(folder, url), entry)}
    if not wanted:
        return
    os.makedirs(folder, exist_ok=True)
    size, free = sum(entry.size for entry in wanted.values()), shutil.disk_usage(folder).free
    if size > free:
        raise UserError(
            f"{folder} has room for {free / 1e9:.1f} GB, {size / 1e9:.1f} GB are to be copied: set "
            "ALBERT_CACHE to a folder of a larger disk"
        )
    filesystem.together(
        filesystem.download, ((entry, path) for path, entry in wanted.items())
    )
    first = next(iter(wanted.values())).url
    more = f" and {len(wanted) - 1} more" if len(wanted) > 1 else ""
    log.info("copied %s%s: %.1f MB", first, more, size / 1e6)


def _is_current(path: str, entry: Entry) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (entry.size, entry.stamp)
