"""Holds a remote directory for one process, by an object that its holder renews.

A lease is the object `.lease-<n>`, made on the condition that there is none of its name, so one of
several processes makes it. The highest number counts. Its holder rewrites it from time to time. A
process that finds one that does not change for `lease_seconds` makes the next number. So no clocks are
compared, and no object is replaced conditionally, which not every store supports.
"""

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from albert.errors import FlagError, RunDirBusyError, UserError
from albert.storage import filesystem, work

log = logging.getLogger("albert")

_NAME = re.compile(r"\.lease-(\d+)")


def is_lease(name: str) -> bool:
    """Whether a file of a directory is a lease."""
    return bool(_NAME.fullmatch(name))


def lease_seconds() -> float:
    """Returns how long a holder may be silent: $ALBERT_LEASE_SECONDS, by default 60.

    Raises:
      FlagError: it is not such a number.
    """
    text = os.environ.get("ALBERT_LEASE_SECONDS", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0.5 <= seconds <= 86400:
        raise FlagError(f"ALBERT_LEASE_SECONDS={text}: give seconds, from 0.5 to 86400")
    return seconds


class Lease:
    """A lease that this process holds, renewed by a thread."""

    def __init__(self, directory: str, number: int, holder: dict[str, Any], seconds: float):
        self._directory, self._number, self._holder = directory, number, holder
        self._seconds, self._renewals = seconds, 0
        self._renewed = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raises a RunDirBusyError if another process has taken the directory over."""
        found = _leases(self._directory)
        is_silent = time.monotonic() - self._renewed > self._seconds
        if max(found, default=0) > self._number or self._number not in found and is_silent:
            raise RunDirBusyError(
                f"{self._directory} was taken over by another process, because this one was silent "
                f"for more than {self._seconds:g} s: nothing more is written there"
            )

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / 6):
            self._renewals += 1
            try:
                if max(_leases(self._directory), default=0) > self._number:
                    return  # `check` reports it
                content = _content(self._holder, self._renewals)
                filesystem.write(_url(self._directory, self._number), content)
                self._renewed = time.monotonic()
            except UserError as error:
                log.warning("the lease of %s was not renewed: %s", self._directory, error)

    def end(self) -> None:
        """Gives the directory back."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(UserError):  # it expires
            filesystem.remove(_url(self._directory, self._number))


@contextlib.contextmanager
def held(directory: str) -> Iterator[Lease]:
    """Holds a remote directory for this process.

    Raises:
      RunDirBusyError: another process holds it.
    """
    lease = _take(directory, lease_seconds())
    lease.start()
    try:
        yield lease
    finally:
        lease.end()


def _take(directory: str, seconds: float) -> Lease:
    number, stale = max(_leases(directory), default=0), None
    if number:
        stale = _wait_until_stale(directory, number, seconds)
    holder = {"id": uuid.uuid4().hex, "pid": os.getpid(), "host": socket.gethostname(),
              "boot": work.boot_id(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    lease, url = Lease(directory, number + 1, holder, seconds), _url(directory, number + 1)
    if not filesystem.create(url, _content(holder, 0)):
        raise _busy(directory, number + 1)
    after = _leases(directory)
    # The old holder may have come back, or others may have gone further, meanwhile.
    is_same = number not in after or (stale is not None and _read(directory, number) == stale)
    if max(after, default=0) > number + 1 or not is_same:
        filesystem.remove(url)
        raise _busy(directory, max(after, default=0) if is_same else number)
    for old in after:
        if old <= number:
            filesystem.remove(_url(directory, old))
    return lease


def _wait_until_stale(directory: str, number: int, seconds: float) -> bytes | None:
    """Returns a lease's content once its holder is dead or silent; None if the lease is gone.

    Raises:
      RunDirBusyError: it is renewed.
    """
    first = _read(directory, number)
    if first is None or _is_of_dead_process(first):
        return first
    log.info("%s is held by %s: waiting up to %.0f s for a sign of life",
             directory, _describe(first), seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(seconds / 12, 2))
        now = _read(directory, number)
        if now is None:
            return None
        if now != first:
            raise _busy(directory, number)
    log.warning("%s: its holder, %s, is silent: taken over", directory, _describe(first))
    return first


def _is_of_dead_process(content: bytes) -> bool:
    """Whether the holder was a process of this machine that has ended."""
    holder = _parse(content)
    if (holder.get("host"), holder.get("boot")) != (socket.gethostname(), work.boot_id()):
        return False
    try:
        return not work.is_alive(int(holder.get("pid", 0)) or os.getpid())
    except (OSError, ValueError, OverflowError):
        return False


def _leases(directory: str) -> set[int]:
    names = filesystem.list_directory(directory)
    return {int(match[1]) for match in map(_NAME.fullmatch, names) if match}


def _url(directory: str, number: int) -> str:
    return f"{directory}/.lease-{number}"


def _read(directory: str, number: int) -> bytes | None:
    with contextlib.suppress(UserError):
        return filesystem.read(_url(directory, number))
    return None


def _content(holder: dict[str, Any], renewals: int) -> bytes:
    return json.dumps(holder | {"renewals": renewals}).encode()


def _parse(content: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(content or b"")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _describe(content: bytes | None) -> str:
    holder = _parse(content)
    if not holder:
        return "another process"
    return f"pid {holder.get('pid')} on host {holder.get('host')} since {holder.get('since')}"


def _busy(directory: str, number: int) -> RunDirBusyError:
    return RunDirBusyError(f"{directory} is in use by {_describe(_read(directory, number))}")
