"""Exclusive access to directories: by a lock file, or by a lease in cloud storage.

A lease is an object `.lease` that only one process can create. Its holder rewrites it regularly; the
next process removes one that has not changed for `lease_seconds`. So no clocks are compared.
"""

import contextlib
import glob
import json
import logging
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from albert.errors import FlagError, RunDirBusyError, UserError
from albert.storage import filesystem, fsspec_calls
from albert.storage.temporary import fsync, remove_dead

log = logging.getLogger("albert")

_LOCK_FILE = ".lock"
_leases: list["_Lease"] = []  # of this process


@contextlib.contextmanager
def hold(directory: str) -> Iterator[None]:
    """Creates a directory and locks it for this process; released when the process ends.

    One that represents an address is locked there, by a lease.

    Raises:
      RunDirBusyError: another process holds it (names pid, host and time).
    """
    if filesystem.is_remote(url := filesystem.address_of(directory)):
        with _lease(url):
            yield
        return
    import filelock

    path = os.path.join(directory, _LOCK_FILE)
    try:
        os.makedirs(directory, exist_ok=True)
        lock = filelock.FileLock(path, blocking=False)
        lock.acquire()
    except filelock.Timeout as error:
        raise RunDirBusyError(f"{directory} is in use by {_text_of(path)}") from error
    except OSError as error:
        raise UserError(f"cannot lock {path}: {error.strerror}") from error
    try:
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(_describe(_this_process()))
        remove_dead(glob.glob(os.path.join(glob.escape(directory), ".*.tmp-????????")))
        yield
    finally:
        lock.release()


def _text_of(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as stream:
        return stream.read() or "another process"
    return "another process"


def _this_process() -> dict[str, Any]:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}


def _describe(process: dict[str, Any]) -> str:
    return "pid {pid} on host {host} since {since}".format_map(
        dict.fromkeys(("pid", "host", "since"), "?") | process
    )


# === Work folders ===


def work_folder_of(path: str) -> str:
    """Returns the work folder of an output: next to it, or in the cache if it is remote."""
    if filesystem.is_remote(url := filesystem.address_of(path)):
        path = filesystem.path_in_cache(url, "work")
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(parent, f".{name}.work")


@contextlib.contextmanager
def work_folder(paths: Sequence[str], identity: str) -> Iterator[str]:
    """Yields the folder in which a job makes these files; it is removed on success only.

    It is that of the first file, and locked; those of the others are links to it, so that no other
    job makes one of these files at the same time. It keeps the work of earlier runs of the same job;
    that of a job with another identity is removed.

    Raises:
      RunDirBusyError: another process is making one of the files.
    """
    folder = work_folder_of(paths[0])
    if os.path.islink(folder):
        _remove_idle(folder)
    with hold(folder):
        fsync(os.path.dirname(folder))  # otherwise outputs could survive without their work folder
        _keep_work_of(folder, identity)
        links = [work_folder_of(path) for path in paths[1:]]
        is_done = False
        try:
            for link in links:
                if os.path.realpath(link) != os.path.realpath(folder):
                    _remove_idle(link)
                    os.makedirs(os.path.dirname(link), exist_ok=True)
                    os.symlink(os.path.relpath(folder, os.path.dirname(link)), link)
            yield folder
            is_done = True
        finally:
            if is_done or set(os.listdir(folder)) <= {_LOCK_FILE, "job"}:  # nothing to resume
                for link in links:
                    if os.path.realpath(link) == os.path.realpath(folder):
                        os.unlink(link)
                shutil.rmtree(folder, ignore_errors=True)


def _remove_idle(path: str) -> None:
    """Removes a work folder or a link to one; a RunDirBusyError if a process works there."""
    if os.path.isdir(path):
        with hold(os.path.realpath(path)):
            if not os.path.islink(path):
                shutil.rmtree(path)
    if os.path.islink(path):
        os.unlink(path)


def _keep_work_of(folder: str, identity: str) -> None:
    """Empties a work folder unless it is of a job with this identity."""
    identity_file = os.path.join(folder, "job")
    if os.path.exists(identity_file) and _text_of(identity_file) == identity:
        return
    for entry in os.scandir(folder):
        if entry.name != _LOCK_FILE:
            is_dir = entry.is_dir(follow_symlinks=False)
            (shutil.rmtree if is_dir else os.unlink)(entry.path)
    with open(identity_file, "w", encoding="utf-8") as stream:
        stream.write(identity)
    fsync(identity_file)
    fsync(folder)


# === Leases ===


def lease_seconds() -> float:
    """Returns how long a lease is valid without renewal: $ALBERT_LEASE_SECONDS, else 60.

    Raises:
      FlagError: it is not a number from 0.5 to 86400.
    """
    text = os.environ.get("ALBERT_LEASE_SECONDS", "60")
    with contextlib.suppress(ValueError):
        if 0.5 <= float(text) <= 86400:
            return float(text)
    raise FlagError(f"ALBERT_LEASE_SECONDS={text}: must be a number from 0.5 to 86400")


def is_holding_lease() -> bool:
    """Whether this process holds a directory in cloud storage."""
    return bool(_leases)


def check_leases() -> None:
    """Raises a RunDirBusyError if another process has taken over a directory of this one."""
    for lease in _leases:
        lease.check()


@contextlib.contextmanager
def _lease(directory: str) -> Iterator["_Lease"]:
    lease = _Lease(directory)
    lease.take()
    _leases.append(lease)
    try:
        yield lease
    finally:
        _leases.remove(lease)
        lease.release()


class _Lease:
    def __init__(self, directory: str):
        self._directory, self._url = directory, f"{directory}/.lease"
        self._seconds = lease_seconds()
        self._content = _this_process() | {
            "id": uuid.uuid4().hex, "machine": _machine(), "renewals": 0,
        }
        self._confirmed = 0.0  # when this process was last seen to hold it
        self._is_released = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")

    def take(self) -> None:
        if not fsspec_calls.create(self._url, self._text()):
            self._wait_until_silent()
            fsspec_calls.delete(self._url)
            if not fsspec_calls.create(self._url, self._text()):
                raise self._busy(self._read())
            time.sleep(min(self._seconds / 6, 2))  # another process may have removed this one, too
        if not self._is_held():
            raise self._busy(self._read())
        self._thread.start()

    def check(self) -> None:
        if time.monotonic() - self._confirmed > self._seconds / 3 and not self._is_held():
            raise RunDirBusyError(
                f"output_dir {self._directory} was taken over by another process, because this one "
                f"did not renew its lease for {self._seconds:g} s: it writes nothing more there"
            )

    def release(self) -> None:
        self._is_released.set()
        self._thread.join()
        with contextlib.suppress(UserError):  # it expires without this
            if self._is_held():
                fsspec_calls.delete(self._url)

    def _renew(self) -> None:
        while not self._is_released.wait(self._seconds / 6):
            try:
                if not self._is_held():
                    return  # `check` raises the error
                self._content["renewals"] += 1
                fsspec_calls.write(self._url, self._text())
            except UserError as error:
                log.warning("the lease of %s was not renewed: %s", self._directory, error)

    def _wait_until_silent(self) -> None:
        """Returns when the holder is dead or has released the lease."""
        first = now = self._read()
        if now and not _is_of_dead_process(now):
            log.info("%s is in use by %s: waiting up to %.0f s for a heartbeat", self._directory,
                     _describe(now), self._seconds)
        end = time.monotonic() + self._seconds
        while now and not _is_of_dead_process(now) and time.monotonic() < end:
            time.sleep(min(self._seconds / 12, 2))
            now = self._read()
            if now and now != first:
                raise self._busy(now)
        if now:
            log.warning("took over %s from %s", self._directory, _describe(first))

    def _is_held(self) -> bool:
        now = time.monotonic()
        if is_held := self._read().get("id") == self._content["id"]:
            self._confirmed = now
        return is_held

    def _text(self) -> bytes:
        return json.dumps(self._content).encode()

    def _read(self) -> dict[str, Any]:
        """Returns the holder; empty if there is none."""
        try:
            content = fsspec_calls.call(self._url, "read", lambda fs, path: fs.cat_file(path))
            return dict(json.loads(content))
        except fsspec_calls.AbsentError:
            return {}
        except (ValueError, TypeError):  # a file of another kind
            return {"id": content}

    def _busy(self, holder: dict[str, Any]) -> RunDirBusyError:
        return RunDirBusyError(f"output_dir {self._directory} is in use by {_describe(holder)}")


def _is_of_dead_process(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that has ended."""
    is_local = bool(_machine()) and holder.get("machine") == _machine()
    return is_local and not os.path.exists(f"/proc/{holder.get('pid')}")


def _machine() -> str:
    """Returns an identity of this boot of the machine, and of this container."""
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as stream:
            return f"{stream.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""
