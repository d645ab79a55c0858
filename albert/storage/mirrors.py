"""Mirrors of remote files on this machine: what is read is fetched, what is written is sent."""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Container, Iterator, Sequence

from albert.errors import UserError
from albert.storage import leases, places, remote_files, temporaries
from albert.storage.files import MANIFEST_SUFFIX
from albert.storage.remote_files import Entry

log = logging.getLogger("albert")

_BEST = "model.ckpt-best"
# What comes last, because it tells that others are whole: it is sent after them, and goes first.
_INDEX = re.compile(r"(?P<prefix>.+)(\.index|\.manifest\.json|ckpt-\w+\.safetensors)$")
_MAIN = ("saved_model.pb", "model.safetensors", "model.safetensors.index.json")
_STATE = ("checkpoint", "finished.json")
# Large files that are read through `places.ready`.
_ON_DEMAND = re.compile(r".*(\.data-\d{5}-of-\d{5}|ckpt-\d+\.safetensors)$")
# What a run may remove that an earlier job of it has sent.
_OF_RUNS = re.compile(r"(.*/)?(model\.ckpt-[^/]+|best\.json|checkpoint|finished\.json)")
_UNDER_WAY = re.compile(r".*\.tmp-[0-9a-f]{8}-\d+-\d+|\.stand-in-.*")


def _rank(name: str) -> int:
    """Returns the place of a file among those that are sent together.

    The best checkpoint comes before the line of metrics that tells of it, and that before the
    checkpoint with which a run goes on: so a run that goes on misses no line.
    """
    base, is_main = os.path.basename(name), _is_main(name)
    if base.startswith(_BEST):
        return 1 if is_main else 0
    if base == "best.json":
        return 2
    if base in _STATE:
        return 5
    return 4 if is_main else 3


def _is_main(name: str) -> bool:
    return bool(_INDEX.fullmatch(name)) or os.path.basename(name) in _MAIN


def _belongs(name: str, main: str) -> bool:
    """Whether a file is one of those that a main file tells to be whole."""
    if match := _INDEX.fullmatch(main):
        return name != main and name.startswith(match["prefix"])
    return name != main and os.path.dirname(f"{name}/").startswith(os.path.dirname(main))


# === What is read ===


def fetch(entries: dict[str, Entry], folder: str, on_demand: Callable[[str], bool]) -> None:
    """Makes the files of a folder those of `entries`, {name: remote file}; others stay.

    Those of which `on_demand` holds get a stand-in, if they are not there already.
    """
    wanted = {}
    for name, entry in entries.items():
        target = os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if _is_copy(target, entry):
            continue
        if on_demand(name):
            places.stand_in(target, entry.size, _source(entry, target))
        else:
            wanted[target] = entry
    if not wanted:
        return
    remote_files.require_room(wanted.values(), folder)
    remote_files.together(remote_files.fetch, ((entry, path) for path, entry in wanted.items()))
    size = sum(entry.size for entry in wanted.values())
    first = next(iter(wanted.values())).url
    more = f" and {len(wanted) - 1} more" if len(wanted) > 1 else ""
    log.info("fetched %s%s: %.1f MB", first, more, size / 1e6)


def _source(entry: Entry, target: str) -> places.StandIn:
    def fetch_it() -> None:
        remote_files.require_room([entry], os.path.dirname(target))
        remote_files.fetch(entry, target)

    return places.StandIn(fetch_it, lambda size: remote_files.read(entry.url, 0, size))


def _is_copy(path: str, entry: Entry) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (entry.size, entry.stamp)


def only(folder: str, names: Container[str], is_deep: bool = True) -> None:
    """Removes from a folder all files but those of these names; of the folder itself, or deep."""
    for name in list(_files(folder)):
        if name not in names and (is_deep or "/" not in name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def is_large(name: str) -> bool:
    """Whether a file beside a model is fetched only when it is read."""
    return bool(_ON_DEMAND.fullmatch(name))


def _files(folder: str) -> Iterator[str]:
    """Yields the names of the files below a folder, relative to it, that are not under way."""
    waiting = [""]
    while waiting:
        place = waiting.pop()
        try:
            entries = sorted(os.scandir(os.path.join(folder, place)), key=lambda one: one.name)
        except FileNotFoundError:
            continue
        for entry in entries:
            if _UNDER_WAY.fullmatch(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{place}{entry.name}/")
            elif entry.is_file() and entry.name != ".lock":
                yield place + entry.name


# === What is written ===


class Mirror:
    """A remote directory and its mirror, of all files or some.

    A file that is gone here is removed there only if this mirror has sent it, or if it can only
    be of a run: other files of the directory are the user's.

    Args:
      is_ours: which of the files that lie in the directory itself are sent.
      folders: which directories in it are, with all that is below them; None: all of them.
      is_read: which of the files in the directory itself are fetched; None: all that are sent.
    """

    def __init__(
        self, url: str, local: str, is_ours: Callable[[str], bool] = lambda name: True,
        folders: Sequence[str] | None = None, is_read: Callable[[str], bool] | None = None,
    ):
        self.url, self.local = url.rstrip("/"), local
        self._of_directory, self._folders = is_ours, folders
        self._read_of_directory = is_read or is_ours
        self._sent: dict[str, tuple[int, int]] = {}  # {name: (size, time)} as they are there
        self._own: set[str] = set()  # what this mirror has sent
        self._leases: list[leases.Lease] = []

    def _is_ours(self, name: str) -> bool:
        return self._is_of(name, self._of_directory)

    def _is_read(self, name: str) -> bool:
        return self._is_of(name, self._read_of_directory)

    def _is_of(self, name: str, of_directory: Callable[[str], bool]) -> bool:
        first, _, below = name.partition("/")
        if leases.is_lease(os.path.basename(name)):
            return False
        if below:
            return self._folders is None or first in self._folders
        return of_directory(name)

    def _listed(self) -> dict[str, Entry]:
        if self._folders is None:
            found = remote_files.list_tree(self.url)
        else:
            found = remote_files.list_directory(self.url)
            for folder in self._folders:
                below = remote_files.list_tree(f"{self.url}/{folder}")
                found |= {f"{folder}/{name}": entry for name, entry in below.items()}
        return {name: entry for name, entry in found.items() if self._is_read(name)}

    def pull(self) -> None:
        """Makes the mirror what the directory is. Large files get stand-ins.

        Raises:
          UserError: it cannot be read.
        """
        found = self._listed()
        for name in list(_files(self.local)):
            if self._is_read(name) and name not in found:
                os.unlink(os.path.join(self.local, name))
        os.makedirs(os.path.dirname(self.local), exist_ok=True)
        fetch(
            found, self.local,
            lambda name: is_large(name) or name + MANIFEST_SUFFIX in found,
        )
        self._sent = {name: (entry.size, entry.stamp) for name, entry in found.items()}

    def _state(self) -> dict[str, tuple[int, int]]:
        """Returns (size, time) of each file of the mirror; of a stand-in, those of its file."""
        state = {}
        for name in _files(self.local):
            path = os.path.join(self.local, name)
            if not self._is_ours(name):
                continue
            if places.is_stand_in(path) and name in self._sent:
                state[name] = self._sent[name]
                continue
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(path)
                state[name] = (found.st_size, found.st_mtime_ns)
                if not found.st_mtime_ns:
                    raise UserError(f"{self.url}/{name} has not been fetched: only a stand-in is here")
        return state

    def push(self) -> None:
        """Sends what has changed since the last time, and removes what is gone of its own.

        Whatever call is the last one, a reader finds each model, checkpoint and record file as
        it was, as it is now, or not at all.

        Raises:
          UserError: it cannot be written; RunDirBusyError: another process holds the directory.
        """
        now = self._state()
        changed = {name for name, state in now.items() if self._sent.get(name) != state}
        gone = {
            name for name in set(self._sent) - set(now)
            if name in self._own or self._folders is None and _OF_RUNS.fullmatch(name)
        }
        if not changed and not gone:
            return
        for lease in self._leases:
            lease.check()
        touched = changed | gone
        for main in filter(_is_main, sorted(self._sent)):
            is_replaced = main in changed and any(
                _belongs(name, main) and name in self._sent for name in touched
            )
            if main in gone or is_replaced:
                self._remove(main)
        for rank in range(6):
            names = sorted(name for name in changed if _rank(name) == rank)
            remote_files.together(self._send, ((name, now[name]) for name in names))
        for name in sorted(gone):
            self._remove(name)

    def _send(self, name: str, state: tuple[int, int]) -> None:
        remote_files.send(os.path.join(self.local, name), f"{self.url}/{name}")
        self._sent[name] = state
        self._own.add(name)

    def _remove(self, name: str) -> None:
        if name in self._sent:
            remote_files.remove(f"{self.url}/{name}")
            del self._sent[name]
            self._own.discard(name)

    def clear(self) -> None:
        """Removes the files of the mirror; others may have theirs in the same folder."""
        for name in list(_files(self.local)):
            if self._is_read(name) or name in self._own:
                os.unlink(os.path.join(self.local, name))
        self._sent.clear()
        self._own.clear()

    @contextlib.contextmanager
    def holding(self, directory: str) -> Iterator[None]:
        """Holds the remote directory of a mirrored one; brings the mirror up to date first.

        What the block has made is sent when it ends, also by an error of the user's or a signal.
        """
        inside = os.path.relpath(os.path.abspath(directory), self.local)
        url = self.url if inside == "." else f"{self.url}/{inside}"
        with leases.held(url) as lease:
            self.push()  # what the command has made before
            self.pull()  # what the last holder has made meanwhile
            self._leases.append(lease)
            try:
                yield
            finally:
                # Also after an error: what is in the mirror is whole at any time.
                try:
                    self.push()
                finally:
                    self._leases.remove(lease)


@contextlib.contextmanager
def own_folder() -> Iterator[str]:
    """Yields a folder for the mirrors of this process alone, which goes at its end."""
    with temporaries.temporary_dir(os.path.join(places.root(), places.RUN)) as folder:
        try:
            yield folder
        finally:
            places.forget(folder)
