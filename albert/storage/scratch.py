"""The scratch folder, in which this process makes files for addresses.

Code that creates or removes a file there passes its path to `upload`; nothing else in cloud storage
is changed. The folder is `scratch-<n>` in the cache, locked during its process. The next process
that uses the number empties it.
"""

import contextlib
import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from albert.errors import RunDirBusyError, UserError
from albert.storage import filesystem, fsspec_calls, locks

log = logging.getLogger("albert")

_locks: dict[str, Any] = {}  # {scratch folder: its lock}, at most one
_pending: list[str] = []  # paths to upload, in order
_directories: list[str] = []  # both read and written


def path_for(path: str) -> str:
    """Returns the path at which to make an output: a local path, or one in the scratch folder."""
    if not filesystem.is_remote(path):
        return filesystem.without_file_scheme(path)
    return filesystem.path_in_cache(path, os.path.basename(_folder()))


def open_directory(url: str) -> str:
    """Downloads a directory that is read and written, and returns its `path_for`."""
    path = path_for(url)
    filesystem.refresh(url, path)
    _directories.append(path)
    return path


def synchronize(directory: str) -> None:
    """Uploads this process's files, and downloads those written before it held the directory."""
    upload()
    if filesystem.is_remote(url := filesystem.address_of(directory)):
        filesystem.refresh(url, directory)


def _folder() -> str:
    import filelock

    for number in itertools.count() if not _locks else ():
        folder = os.path.join(filesystem.cache_directory(), f"scratch-{number}")
        os.makedirs(folder, exist_ok=True)
        lock = filelock.FileLock(f"{folder}.lock", blocking=False)
        with contextlib.suppress(filelock.Timeout):
            lock.acquire()
            shutil.rmtree(folder)  # of a process that was killed
            os.makedirs(folder)
            _locks[folder] = lock
            break
    return next(iter(_locks))


def upload(*paths: str) -> None:
    """Updates objects to match their files, one by one: uploads or deletes them.

    Paths that represent no address are ignored. A command that reads and writes a directory uploads
    while it has the lease, and at its end; a failure is logged, and retried with the next file.

    Raises:
      UserError: cannot upload; RunDirBusyError: another process has taken over the directory.
    """
    _pending.extend(path for path in paths if filesystem.address_of(path) != path)
    if not _directories:
        _upload_pending()
    elif locks.is_holding_lease():
        try:
            _upload_pending()
        except RunDirBusyError:
            raise
        except UserError as error:
            log.warning("%s; trying again with the next file", error)


def _upload_pending() -> None:
    while _pending:
        path, url = _pending[0], filesystem.address_of(_pending[0])
        locks.check_leases()
        if not os.path.exists(path):
            fsspec_calls.delete(url)
        elif not filesystem.is_placeholder(path):
            fsspec_calls.upload(path, url)
        del _pending[0]


@contextlib.contextmanager
def uploaded(path: str = "") -> Iterator[str]:
    """Yields `path_for(path)`; the outermost block removes the scratch folder at its end.

    Raises:
      UserError: something could not be uploaded (names where it is).
    """
    is_outermost = not _locks
    try:
        yield path_for(path)
    except RunDirBusyError:
        _pending.clear()
        raise
    finally:
        if is_outermost and _locks:
            _close()


def _close() -> None:
    folder = _folder()
    try:
        _upload_pending()
        shutil.rmtree(folder)
    except UserError as error:
        unsent = tempfile.mkdtemp(prefix="unsent-", dir=filesystem.cache_directory())
        os.rename(folder, unsent)
        raise UserError(f"{error}; what was not uploaded is in {unsent}") from error
    finally:
        _pending.clear()
        _directories.clear()
        _locks.pop(folder).release()
