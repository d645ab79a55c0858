"""The possible contents of a disk after a power cut at any moment (as in ALICE, OSDI 2014).

A file system guarantees only the minimum: the bytes of a file are on the disk after an fsync of the
file, and the names in a directory after an fsync of the directory. Before that, each may or may not
have reached the disk.
"""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from unittest import mock

_OPERATIONS = ("rename", "replace", "remove", "unlink", "link", "mkdir", "rmdir", "fsync")

Names = dict[int, dict[str, int]]  # {inode of a directory: {name: inode}}


def power_cuts(
    folder: pathlib.Path, work: Callable[[], object], scratch: pathlib.Path
) -> Iterator[pathlib.Path]:
    """Does `work`, and yields a copy of each state in which a power cut may leave `folder`.

    They include the states that a killed process leaves, in which all written data is preserved.
    The last one is the state that is certainly on the disk after the work is done.
    """
    disk = _Disk(folder)
    with disk.recorded():
        work()
    for number, state in enumerate(disk.states):
        copy = scratch / str(number)
        (copy / folder.name).mkdir(parents=True)
        for name, content in state.items():
            path = copy / folder.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir() if content is None else path.write_bytes(content)
        yield copy / folder.name
        shutil.rmtree(copy)


class _Disk:
    """Follows the files below a folder.

    It identifies them by inode and keeps them open, so that no inode number is reused.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder, self._root = folder, os.stat(folder).st_ino
        self._open: dict[int, int] = {}  # {inode: file descriptor}
        self._synced_names = self._names()
        self._synced = {inode: self._bytes(inode) for inode in self._open.keys() - self._synced_names}
        self._sizes: dict[int, int] = {}
        # For each state, {path: bytes of the file, or None for a directory}.
        self.states: list[dict[str, bytes | None]] = []

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        try:
            with contextlib.ExitStack() as stack:
                for name in _OPERATIONS:
                    stack.enter_context(mock.patch.object(os, name, self._before(getattr(os, name))))
                yield
            self._cut()
            self.states.append(self._state(self._synced_names, self._on_disk))
        finally:
            for descriptor in self._open.values():
                os.close(descriptor)

    def _before(self, operation: Callable) -> Callable:
        def recorded(*arguments, **options):
            self._cut()
            result = operation(*arguments, **options)
            if operation.__name__ == "fsync":
                inode, names = os.fstat(arguments[0]).st_ino, self._names()
                if inode in names:
                    self._synced_names[inode] = names[inode]
                elif inode in self._open:
                    self._synced[inode] = self._bytes(inode)
            return result

        return recorded

    def _cut(self) -> None:
        """Adds the states that a power cut may leave now, the likeliest one last."""
        names, synced = self._names(), self._synced_names
        for inode in names:
            synced.setdefault(inode, {})
        self._add(synced, self._on_disk)
        for inode in names.keys() & synced.keys():  # one rename reached the disk before the others
            for name in names[inode].keys() | synced[inode].keys():
                changed = {**synced[inode], name: names[inode].get(name)}
                self._add({**synced, inode: changed}, self._on_disk)
        self._add(names, self._on_disk)
        for file in self._changed():  # the last write may reach the disk first
            self._add(names, lambda inode, file=file: self._only(file, inode))
        self._add(names, self._torn)
        self._add(names, self._bytes)

    def _add(self, names: Names, content: Callable[[int], bytes]) -> None:
        state = self._state(names, content)
        if state not in self.states:
            self.states.append(state)

    def _state(self, names: Names, content: Callable[[int], bytes]) -> dict[str, bytes | None]:
        state: dict[str, bytes | None] = {}

        def add(directory: int, path: str) -> None:
            for name, inode in sorted(names.get(directory, {}).items()):
                if inode in self._synced_names:
                    state[path + name] = None
                    add(inode, f"{path}{name}/")
                elif inode is not None:
                    state[path + name] = content(inode)

        add(self._root, "")
        return state

    def _on_disk(self, inode: int) -> bytes:
        return self._synced.get(inode, b"")

    def _changed(self) -> list[int]:
        """Returns the files that changed since the last cut."""
        before, self._sizes = self._sizes, {
            inode: os.fstat(self._open[inode]).st_size for inode in self._open
        }
        return [inode for inode, size in self._sizes.items() if size != before.get(inode)]

    def _only(self, written: int, inode: int) -> bytes:
        return self._bytes(inode) if inode == written else self._on_disk(inode)

    def _torn(self, inode: int) -> bytes:
        content = self._bytes(inode)
        return self._synced.get(inode, content[: len(content) // 2])

    def _bytes(self, inode: int) -> bytes:
        descriptor = self._open[inode]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def _names(self) -> Names:
        names: Names = {}
        for path, directories, others in os.walk(self._folder):
            names[os.stat(path).st_ino] = {
                name: self._known(os.path.join(path, name)) for name in directories + others
            }
        return names

    def _known(self, path: str) -> int:
        inode = os.lstat(path).st_ino
        if inode not in self._open:
            self._open[inode] = os.open(path, os.O_RDONLY)
        return inode
