"""Directories that one process holds for itself: by a lock file, or by a lease in cloud storage.

A lease is an object `.lease-<n>`, created on the condition that it is new, so one of several
processes gets it. The highest number counts. Its holder rewrites it regularly. Whoever sees no
change for `lease_seconds` creates the next number. So no clocks are compared.
"""

import contextlib
import glob
import json
import logging
import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator

from albert.errors import FlagError, RunDirBusyError, UserError
from albert.storage import filesystem, fsspec_calls
from albert.storage.temporary import remove_dead

log = logging.getLogger("albert")

_LOCK_FILE = ".lock"
_held: list["_Lease"] = []  # by this process


@contextlib.contextmanager
def hold(directory: str) -> Iterator[None]:
    """Makes a directory and holds it for this process; released when the process ends.

    One that stands for an address gets the files that are there by now.

    Raises:
      RunDirBusyError: another process holds it (names pid, host and time).
    """
    if filesystem.is_remote(url := filesystem.address_of(directory)):
        with _lease(url):
            filesystem.refresh(url, directory)
            yield
        return
    import filelock

    path = os.path.join(directory, _LOCK_FILE)
    try:
        os.makedirs(directory, exist_ok=True)
        lock = filelock.FileLock(path, blocking=False)
        lock.acquire()
    except filelock.Timeout as error:
        raise RunDirBusyError(f"{directory} is in use by {_read_text(path)}") from error
    except OSError as error:
        raise UserError(f"cannot lock {path}: {error.strerror}") from error
    try:
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(_describe(_this_process()))
        remove_dead(glob.glob(os.path.join(glob.escape(directory), ".*.tmp-????????")))
        yield
    finally:
        lock.release()


def _read_text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as stream:
        return stream.read().strip() or "another process"
    return "another process"


def _this_process() -> dict[str, str | int]:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}


def _describe(holder: dict) -> str:
    if not holder:
        return "another process"
    return f"pid {holder.get('pid')} on host {holder.get('host')} since {holder.get('since')}"


# === Work folders ===


def work_folder_of(path: str) -> str:
    """Returns the work folder of an output: beside it, or in the cache if it goes to an address."""
    url = filesystem.address_of(path)
    if filesystem.is_remote(url):
        path = filesystem.path_in_cache(url, "work")
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(parent, f".{name}.work")


@contextlib.contextmanager
def work_folder(path: str, identity: str) -> Iterator[str]:
    """Yields the folder in which a job makes `path`; it is removed on success only.

    It is held by one process at a time, and keeps the work of earlier runs of the same job. The
    work of a job of another identity is removed.

    Raises:
      RunDirBusyError: another process is making `path`.
    """
    folder = work_folder_of(path)
    identity_file = os.path.join(folder, "job")
    with hold(folder):
        if not os.path.exists(identity_file) or _read_text(identity_file) != identity:
            for entry in os.scandir(folder):
                if entry.name != _LOCK_FILE:
                    (shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)
            with open(identity_file, "w", encoding="utf-8") as stream:
                stream.write(identity)
        try:
            yield folder
        except BaseException:
            if set(os.listdir(folder)) <= {_LOCK_FILE, "job"}:  # nothing is worth keeping
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


# === Leases ===


def lease_seconds() -> float:
    """Returns how long the holder of a lease may be silent: $ALBERT_LEASE_SECONDS, else 60.

    Raises:
      FlagError: it is not a number from 0.5 to 86400.
    """
    text = os.environ.get("ALBERT_LEASE_SECONDS", "60")
    with contextlib.suppress(ValueError):
        if 0.5 <= float(text) <= 86400:
            return float(text)
    raise FlagError(f"ALBERT_LEASE_SECONDS={text}: give seconds, from 0.5 to 86400")


def is_holding_lease() -> bool:
    """Whether this process holds a directory in cloud storage."""
    return bool(_held)


def check_leases() -> None:
    """Raises a RunDirBusyError if another process has taken over a directory of this one."""
    for lease in _held:
        lease.check()


@contextlib.contextmanager
def _lease(url: str) -> Iterator["_Lease"]:
    lease = _Lease(url)
    lease.take()
    _held.append(lease)
    try:
        yield lease
    finally:
        _held.remove(lease)
        lease.release()


class _Lease:
    def __init__(self, url: str):
        self._directory, self._number, self._seconds = url, 0, lease_seconds()
        self._holder = _this_process() | {"id": uuid.uuid4().hex, "boot": _boot(), "renewals": 0}
        self._confirmed = time.monotonic()
        self._is_released = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")

    def take(self) -> None:
        last = self._last()
        stale = self._wait_until_silent(last) if last else None
        self._number = last + 1
        # Whatever is created in the meantime is another process's.
        if not fsspec_calls.create(self._url(self._number), self._text()):
            raise self._busy(self._number)
        newest, before = self._last(), self._read(last) if last else None
        if newest > self._number or before not in (None, stale):
            fsspec_calls.delete(self._url(self._number))
            raise self._busy(newest if before in (None, stale) else last)
        if last:
            fsspec_calls.delete(self._url(last))
        self._thread.start()

    def check(self) -> None:
        if time.monotonic() - self._confirmed > self._seconds / 3:
            if self._last() != self._number:
                raise RunDirBusyError(
                    f"output_dir {self._directory} was taken over by another process, because this "
                    f"one was silent for more than {self._seconds:g} s: it writes nothing more there"
                )
            self._confirmed = time.monotonic()

    def release(self) -> None:
        self._is_released.set()
        self._thread.join()
        with contextlib.suppress(UserError):  # it expires without this
            fsspec_calls.delete(self._url(self._number))

    def _renew(self) -> None:
        while not self._is_released.wait(self._seconds / 6):
            try:
                if self._last() != self._number:
                    return  # `check` raises the error
                self._holder["renewals"] += 1
                fsspec_calls.write(self._url(self._number), self._text())
                self._confirmed = time.monotonic()
            except UserError as error:
                log.warning("the lease of %s was not renewed: %s", self._directory, error)

    def _wait_until_silent(self, number: int) -> bytes | None:
        """Returns a lease's content once its holder is dead; None if it was released."""
        first = self._read(number)
        if first is None or _is_of_dead_process(_parse(first)):
            return first
        log.info("%s is held by %s: waiting up to %.0f s for a sign of life", self._directory,
                 _describe(_parse(first)), self._seconds)
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            time.sleep(min(self._seconds / 12, 2))
            if (now := self._read(number)) is None:
                return None
            if now != first:
                raise self._busy(number)
        log.warning("%s: taken over from %s, which is silent", self._directory,
                    _describe(_parse(first)))
        return first

    def _last(self) -> int:
        """Returns the highest number of a lease of the directory; 0 if there is none."""
        listed = fsspec_calls.list_infos(
            self._directory, lambda fs, path: {i["name"]: i for i in fs.ls(path, detail=True)}
        )
        numbers = (re.search(r"/\.lease-(\d+)$", url) for url in listed)
        return max((int(match[1]) for match in numbers if match), default=0)

    def _url(self, number: int) -> str:
        return f"{self._directory}/.lease-{number}"

    def _text(self) -> bytes:
        return json.dumps(self._holder).encode()

    def _read(self, number: int) -> bytes | None:
        try:
            return fsspec_calls.call(self._url(number), "read", lambda fs, path: fs.cat_file(path))
        except fsspec_calls.AbsentError:
            return None

    def _busy(self, number: int) -> RunDirBusyError:
        holder = _describe(_parse(self._read(number)))
        return RunDirBusyError(f"output_dir {self._directory} is in use by {holder}")


def _parse(content: bytes | None) -> dict:
    with contextlib.suppress(ValueError):
        if isinstance(value := json.loads(content or b""), dict):
            return value
    return {}


def _is_of_dead_process(holder: dict) -> bool:
    """Whether the holder was a process of this machine that has ended."""
    if (holder.get("host"), holder.get("boot")) == (socket.gethostname(), _boot()):
        with contextlib.suppress(PermissionError, TypeError, OverflowError):
            try:
                os.kill(holder.get("pid"), 0)
            except ProcessLookupError:
                return True
    return False


def _boot() -> str:
    """Returns what distinguishes this start of the machine, and this container, from others."""
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as stream:
            return f"{stream.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""
