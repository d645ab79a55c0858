"""Directories in cloud storage, written through a local scratch folder.

Whoever makes, replaces or removes a file below the scratch folder notes it here, in order; `flush`
does the same to the remote files in that order. So each remote file is known by name, what comes
last locally comes last remotely, and nothing that others put there is touched.
"""

import contextlib
import logging
import os
import posixpath
import tempfile
from collections.abc import Iterator

from albert.errors import RunDirBusyError, UserError
from albert.storage import copies, filesystem, lease, work

log = logging.getLogger("albert")

_folders: list["RemoteFolder"] = []


class RemoteFolder:
    """A remote directory and its scratch folder.

    Args:
      scratch: where the counterpart of the directory lies, by its address.
    """

    def __init__(self, url: str, scratch: str):
        self.url = url.rstrip("/")
        self._scratch, self.local = scratch, copies.path_below(scratch, self.url)
        self._pending: list[tuple[str, str]] = []  # (operation, name), in order
        self._published: set[str] = set()
        self._lease: lease.Lease | None = None
        copies.show_addresses(scratch)
        os.makedirs(self.local, exist_ok=True)

    def download(self) -> None:
        """Copies all files of the directory to the scratch folder."""
        found = filesystem.list_tree(self.url)
        copies.download({
            f"{self.url}/{name}": entry for name, entry in found.items()
            if not lease.is_lease(posixpath.basename(name))
        }, self._scratch)

    def note(self, operation: str, name: str) -> None:
        """Notes that a file was written ("put", or "append" if it grows) or removed ("remove")."""
        if operation != "append" or ("append", name) not in self._pending:
            self._pending.append((operation, name))

    def note_others(self) -> None:
        """Notes all local files that were not noted, before those that were."""
        noted = {name for _, name in self._pending}
        names = [os.path.relpath(os.path.join(parent, name), self.local)
                 for parent, _, files in os.walk(self.local) for name in files]
        self._pending[:0] = [("put", name) for name in sorted(names) if name not in noted]

    def flush(self) -> None:
        """Does to the remote files what was noted since the last time.

        Raises:
          UserError: they cannot be written; what was not done stays noted. RunDirBusyError:
          another process has taken the directory over.
        """
        if self._pending and self._lease:
            self._lease.check()
        while self._pending:
            operation, name = self._pending[0]
            path, url = os.path.join(self.local, name), f"{self.url}/{name}"
            if operation == "remove":
                filesystem.remove(url)
            elif os.path.exists(path):  # else it is removed later on
                filesystem.upload(path, url)
                self._published.add(name)
            del self._pending[0]

    def clear(self) -> None:
        """Removes the local files that were published."""
        for name in self._published:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.local, name))

    @contextlib.contextmanager
    def held(self, directory: str) -> Iterator[None]:
        """Holds a directory in it for this process; brings the scratch folder up to date first."""
        inside = os.path.relpath(os.path.abspath(directory), self.local)
        with lease.held(self.url if inside == "." else f"{self.url}/{inside}") as held:
            self.flush()
            self.download()  # what the last holder has written meanwhile
            self._lease = held
            try:
                yield
            finally:
                # After an error, too: each operation leaves complete files.
                try:
                    self.flush()
                finally:
                    self._lease = None


def _folder_of(path: str) -> tuple[RemoteFolder, str] | None:
    """Returns the remote folder that a path belongs to, and its name there."""
    path = os.path.abspath(path)
    for folder in _folders:
        if path == folder.local or path.startswith(folder.local + os.sep):
            return folder, os.path.relpath(path, folder.local)
    return None


def note(operation: str, path: str) -> None:
    """Notes what was done to a file; see `RemoteFolder.note`. Of no effect on local directories."""
    if _folders and (found := _folder_of(path)):
        found[0].note(operation, found[1])


def flush(path: str) -> None:
    """Publishes what was written to a directory. All of it is complete now.

    What cannot be written is logged, and tried again at the next call or the end of the command.

    Raises:
      RunDirBusyError: another process has taken the directory over.
    """
    if _folders and (found := _folder_of(path)):
        try:
            found[0].flush()
        except RunDirBusyError:
            raise
        except UserError as error:
            log.warning("%s; trying again with the next checkpoint", error)


@contextlib.contextmanager
def lock_run_dir(directory: str) -> Iterator[None]:
    """Holds a run's directory for this process, in cloud storage by a lease.

    Raises:
      RunDirBusyError: a live process holds it (message: pid, host, since when).
    """
    found = _folder_of(directory) if _folders else None
    remote = found[0].held(directory) if found else contextlib.nullcontext()
    with remote, work.lock_dir(directory):
        work.sweep(directory, is_held=True)
        yield


class Session:
    """The remote folders of one command or call, flushed when it ends."""

    def __init__(self):
        self._opened: list[RemoteFolder] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Session":
        self._cache = os.path.realpath(copies.cache_directory())
        path = os.path.join(self._cache, "scratch")
        self._scratch = self._stack.enter_context(work.temporary_dir(path))
        return self

    def open(self, url: str, is_kept: bool = False) -> RemoteFolder:
        """Returns a remote folder that is flushed with the session.

        Args:
          is_kept: its scratch folder outlives the session, for unfinished work.
        """
        folder = RemoteFolder(url, os.path.join(self._cache, "out") if is_kept else self._scratch)
        self._opened.append(folder)
        _folders.append(folder)
        return folder

    def flush(self) -> None:
        """Publishes all that was written.

        Raises:
          UserError: it cannot be; the message says where it is kept.
        """
        for folder in self._opened:
            try:
                folder.flush()
            except RunDirBusyError:
                raise
            except UserError as error:
                kept = tempfile.mkdtemp(prefix="unsent-", dir=self._cache)
                os.rename(folder.local, os.path.join(kept, os.path.basename(folder.local)))
                raise UserError(f"{error}; what was made is kept in {kept}") from error

    def __exit__(self, *_) -> None:
        for folder in self._opened:
            _folders.remove(folder)
            folder.clear()
        self._stack.close()


@contextlib.contextmanager
def written(directory: str) -> Iterator[str]:
    """Yields a local directory to write to: itself, or a scratch folder published at the end."""
    if not filesystem.is_remote(directory):
        yield directory
        return
    with Session() as session:
        folder = session.open(directory)
        yield folder.local
        folder.note_others()
        session.flush()
