"""The directory that one run holds for itself, where there are no locks: a lease object.

A lease is `.lease-<n>`. It is made under the condition that there is none of its name, so of
several processes one makes it. The highest number counts. Its holder writes it anew from time to
time. Who finds one that does not change for `lease_seconds` makes the next number. So no clocks
are compared, and no object is replaced under a condition, which not every store can.
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
from albert.storage import remote_files

log = logging.getLogger("albert")

_NAME = re.compile(r"\.lease-(\d+)")


def is_lease(name: str) -> bool:
    """Whether a file of a directory is a lease."""
    return bool(_NAME.fullmatch(name))


def lease_seconds() -> float:
    """Returns how long a holder may be silent: $ALBERT_LEASE_SECONDS, by default 60.

    Raises:
      FlagError: it is no such number.
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

    @property
    def _url(self) -> str:
        return _url(self._directory, self._number)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raises a RunDirBusyError if another process has taken the directory over."""
        found = _leases(self._directory)
        if max(found, default=0) > self._number or (
            self._number not in found
            and time.monotonic() - self._renewed > self._seconds
        ):
            raise RunDirBusyError(
                f"output_dir {self._directory} was taken over by another process, as this one was "
                f"silent for more than {self._seconds:g} s: nothing more is written there"
            )

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / 6):
            self._renewals += 1
            try:
                if max(_leases(self._directory), default=0) > self._number:
                    return  # `check` tells
                remote_files.write(self._url, _text(self._holder, self._renewals))
                self._renewed = time.monotonic()
            except UserError as error:
                log.warning("the lease of %s was not renewed: %s", self._directory, error)

    def end(self) -> None:
        """Gives the directory back."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(UserError):  # it ends by itself
            remote_files.remove(self._url)


@contextlib.contextmanager
def held(directory: str) -> Iterator[Lease]:
    """Holds a remote directory for this process alone.

    Raises:
      RunDirBusyError: another one holds it.
    """
    seconds = lease_seconds()
    lease = _take(directory, seconds)
    lease.start()
    try:
        yield lease
    finally:
        lease.end()


def _take(directory: str, seconds: float) -> Lease:
    found = _leases(directory)
    number, stale = max(found, default=0), None
    if number:
        stale = _wait_for_the_end_of(directory, number, seconds)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = {"id": uuid.uuid4().hex, "pid": os.getpid(), "host": socket.gethostname(),
              "boot": _boot(), "since": since}
    lease = Lease(directory, number + 1, holder, seconds)
    # Judged before it is made: what lies there by now may be another's.
    if not remote_files.create(_url(directory, number + 1), _text(holder, 0)):
        raise _busy(directory, number + 1)
    after = _leases(directory)
    is_same = number not in after or (stale is not None and _read(directory, number) == stale)
    if max(after, default=0) > number + 1 or not is_same:
        remote_files.remove(_url(directory, number + 1))
        raise _busy(directory, max(after, default=0) if is_same else number)
    for old in after:
        if old <= number:
            remote_files.remove(_url(directory, old))
    return lease


def _wait_for_the_end_of(directory: str, number: int, seconds: float) -> bytes | None:
    """Returns a lease's content once it is that of a dead process; None if it is gone.

    Raises:
      RunDirBusyError: it is renewed meanwhile.
    """
    first = _read(directory, number)
    if first is None or _is_of_the_dead(first):
        return first
    log.info("%s is held by %s: waiting up to %.0f s for a sign of life",
             directory, _name_of(first), seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(seconds / 12, 2))
        now = _read(directory, number)
        if now is None:
            return None
        if now != first:
            raise _busy(directory, number)
    log.warning("%s: its holder, %s, is silent: taken over", directory, _name_of(first))
    return first


def _is_of_the_dead(content: bytes) -> bool:
    """Whether the holder was a process of this machine that is no more."""
    holder = _parsed(content)
    if (holder.get("host"), holder.get("boot")) != (socket.gethostname(), _boot()):
        return False
    try:
        os.kill(int(holder.get("pid", 0)) or os.getpid(), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False


def _boot() -> str:
    """Returns what tells this start of the machine, and this container, from others."""
    told = []
    for read in (lambda: open("/proc/sys/kernel/random/boot_id", encoding="utf-8").read().strip(),
                 lambda: os.readlink("/proc/self/ns/pid")):
        with contextlib.suppress(OSError):
            told.append(read())
    return " ".join(told)


def _leases(directory: str) -> set[int]:
    names = remote_files.list_directory(directory)
    return {int(match[1]) for match in map(_NAME.fullmatch, names) if match}


def _url(directory: str, number: int) -> str:
    return f"{directory}/.lease-{number}"


def _read(directory: str, number: int) -> bytes | None:
    url = _url(directory, number)
    if remote_files.entry_of(url) is None:
        return None
    with contextlib.suppress(UserError):
        return remote_files.read(url)
    return None


def _text(holder: dict[str, Any], renewals: int) -> bytes:
    return json.dumps(holder | {"renewals": renewals}).encode()


def _parsed(content: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(content or b"")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _name_of(content: bytes | None) -> str:
    holder = _parsed(content)
    if not holder:
        return "another process"
    return f"pid {holder.get('pid')} on host {holder.get('host')} since {holder.get('since')}"


def _busy(directory: str, number: int) -> RunDirBusyError:
    return RunDirBusyError(
        f"output_dir {directory} is in use by {_name_of(_read(directory, number))}"
    )


