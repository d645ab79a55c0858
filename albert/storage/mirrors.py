"""Directories in cloud storage, each with a local folder in which this process works.

What makes or removes a file in such a folder passes its path to `push`; nothing else in cloud storage
is changed. The folders are temporary directories in the cache.
"""

import contextlib
import logging
import os
import posixpath
import tempfile
import uuid
from collections.abc import Iterator, Sequence

from albert.errors import RunDirBusyError, UserError
from albert.storage import filesystem, fsspec_calls
from albert.storage.temporary import temporary_dir, this_process

log = logging.getLogger("albert")

_OWNER_FILE = ".owner"
_blocks: list[contextlib.ExitStack] = []  # the outermost `uploaded` block, if any
_mirrors: dict[str, "Mirror"] = {}  # {address: mirror} in this block


class Mirror:
    """A directory in cloud storage, `url`, and its local `folder`."""

    def __init__(self, url: str, folder: str):
        self.url, self.folder = url, filesystem.represent(folder, url)
        self._owner = ""  # what this process wrote in `.owner`
        self._pending: list[str] = []  # names to push, in order

    def pull(self) -> str:
        """Downloads the files that have changed, but for hidden ones; returns the folder."""
        filesystem.download(self.url, self.folder)
        return self.folder

    def own(self) -> bool:
        """Writes `.owner`, which fences off the process that wrote it before; False if that is this one."""
        if self._owner:
            return False
        before = self._read_owner()
        self._owner = f"{this_process()} ({uuid.uuid4().hex})"
        fsspec_calls.write(self._owner_url, self._owner.encode())
        if before:
            log.warning("took over %s from %s: if that process is alive, it stops before it writes "
                        "there again", self.url, before)
        return True

    def check_owner(self) -> None:
        """Raises a RunDirBusyError if another process has taken the directory over."""
        if self._owner and (owner := self._read_owner()) != self._owner:
            self._pending.clear()
            raise RunDirBusyError(
                f"{self.url} was taken over by {owner or 'another process, which has ended'}: this one "
                "stops, and writes nothing more there"
            )

    def push(self, names: Sequence[str] = ()) -> None:
        """Uploads files, or deletes those that are no longer in the folder, one by one in this order.

        If this process is the owner, a failure is logged, and retried with the next files.

        Raises:
          UserError: cannot upload; RunDirBusyError: see `check_owner`.
        """
        self._pending += names
        try:
            self._push_pending()
        except RunDirBusyError:
            raise
        except UserError as error:
            if not self._owner:
                raise
            log.warning("%s; trying again with the next file", error)

    def close(self) -> None:
        """Pushes the remaining files, and gives the directory up.

        Raises:
          UserError: something could not be uploaded (names where it is).
        """
        try:
            self._push_pending()
            if self._owner and self._read_owner() == self._owner:
                fsspec_calls.delete(self._owner_url)
        except RunDirBusyError:
            raise
        except UserError as error:
            unsent = tempfile.mkdtemp(prefix="unsent-", dir=filesystem.cache_directory())
            os.rename(self.folder, os.path.join(unsent, os.path.basename(self.folder)))
            raise UserError(f"{error}; what was not uploaded is in {unsent}") from error

    def _push_pending(self) -> None:
        while self._pending:
            path, url = (f"{where}/{self._pending[0]}" for where in (self.folder, self.url))
            self.check_owner()
            if os.path.exists(path):
                fsspec_calls.upload(path, url)
            else:
                fsspec_calls.delete(url)
            del self._pending[0]

    @property
    def _owner_url(self) -> str:
        return f"{self.url}/{_OWNER_FILE}"

    def _read_owner(self) -> str:
        """Returns the content of `.owner`; "" if there is none."""
        with contextlib.suppress(fsspec_calls.AbsentError):
            content = fsspec_calls.call(self._owner_url, "read", lambda fs, path: fs.cat_file(path))
            return content.decode("utf-8", "replace")
        return ""


@contextlib.contextmanager
def uploaded(path: str = "") -> Iterator[str]:
    """Yields `path_for(path)`. The outermost block closes all mirrors at its end.

    Raises:
      UserError: something could not be uploaded (names where it is).
    """
    if _blocks:
        yield path_for(path)
        return
    with contextlib.ExitStack() as block:
        _blocks.append(block)
        block.callback(_blocks.clear)
        block.callback(_mirrors.clear)
        yield path_for(path)


def open_mirror(url: str) -> Mirror:
    """Returns the mirror of a directory in this block."""
    if url not in _mirrors:
        [block] = _blocks
        parent = block.enter_context(
            temporary_dir(os.path.join(filesystem.cache_directory(), "mirror"))
        )
        folder = os.path.join(parent, posixpath.basename(url))
        os.mkdir(folder)
        _mirrors[url] = Mirror(url, folder)
        block.callback(_mirrors[url].close)
    return _mirrors[url]


def path_for(path: str) -> str:
    """Returns the path at which to make an output: a local path, or one in a mirror's folder."""
    if not filesystem.is_remote(path):
        return filesystem.without_file_scheme(path)
    url, _, name = path.rstrip("/").rpartition("/")
    return os.path.join(open_mirror(url).folder, name)


def find(path: str) -> Mirror | None:
    """Returns the mirror whose folder a path is, or is in."""
    return next((mirror for mirror in _mirrors.values()
                 if f"{os.path.abspath(path)}/".startswith(f"{mirror.folder}/")), None)


def push(*paths: str) -> None:
    """Pushes the paths that are in the folder of a mirror; see `Mirror.push`."""
    for path in paths:
        if mirror := find(path):
            mirror.push([os.path.relpath(path, mirror.folder)])
