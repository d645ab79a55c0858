"""What is read at the address of a remote file, and what a Python call writes there.

Commands do this for their flags: see `cli/remote_paths`.
"""

import contextlib
import json
import os
import posixpath
from collections.abc import Iterator

from albert.errors import DataError, UserError
from albert.storage import places

_BESIDE_A_CHECKPOINT = 64 << 20  # bytes of the largest other file that is fetched with it


def local(path: str, flag: str, use: str = "file") -> str:
    """Returns the path of what is to be read: itself, or its mirror's.

    Args:
      flag: what errors call it.
      use: a method of `Inputs`.

    Raises:
      DataError: it is not there; UserError: it cannot be reached.
    """
    if not places.is_remote(path):
        return path
    [found] = getattr(Inputs(), use)(path, flag)
    return found


@contextlib.contextmanager
def in_errors() -> Iterator[None]:
    """Lets a user's error tell addresses, where it tells paths of mirrors."""
    try:
        yield
    except UserError as error:
        error.args = (places.as_given(str(error)),)
        raise


@contextlib.contextmanager
def written(directory: str) -> Iterator[str]:
    """Yields a directory to write into: itself, or a mirror that is sent when the block ends well.

    Raises:
      UserError: it cannot be reached.
    """
    if not places.is_remote(directory):
        yield directory
        return
    from albert.storage import mirrors

    with mirrors.own_folder() as own:
        tree = mirrors.Mirror(directory, places.mirror_of(directory, own))
        tree.pull()
        os.makedirs(tree.local, exist_ok=True)
        with places.open_tree(tree):
            yield tree.local
            tree.push()


class Inputs:
    """What is read. Each method returns the paths of the mirrors of one path."""

    def __init__(self):
        from albert.storage import mirrors, remote_files

        places.use_mirrors()
        self._mirrors, self._remote = mirrors, remote_files
        self.urls: set[str] = set()

    def _fetch(self, folder_url: str, entries: dict, on_demand=lambda name: False) -> str:
        folder = places.mirror_of(folder_url, places.root())
        os.makedirs(folder, exist_ok=True)
        self.urls.update(entry.url for entry in entries.values())
        self._mirrors.fetch(entries, folder, on_demand)
        return folder

    def file(self, url: str, flag: str) -> list[str]:
        """Of a file, or of a directory."""
        url = url.rstrip("/")
        if entry := self._remote.entry_of(url):
            parent, base = posixpath.split(url)
            return [os.path.join(self._fetch(parent, {base: entry}), base)]
        if self._remote.is_directory(url):
            entries = self._remote.list_tree(url)
            folder = self._fetch(url, entries, self._mirrors.is_large)
            self._mirrors.only(folder, entries)
            return [folder]
        raise DataError(f"--{flag}: no such file: {url}")

    def model(self, url: str, flag: str) -> list[str]:
        """Of a directory, an archive, a checkpoint's prefix or one of its files."""
        url = url.rstrip("/")
        parent, base = posixpath.split(url)
        if self._remote.is_directory(url) or base.endswith((".tar", ".gz", ".tgz")):
            return self.file(url, flag)
        beside = {} if parent.endswith(":/") else self._remote.list_directory(parent)
        if base not in beside and not any(name.startswith(f"{base}.") for name in beside):
            raise DataError(f"--{flag}: no such file: {url}")
        stem = base.rpartition(".")[0] or base  # of model.ckpt-1.index, say
        wanted = {
            name: entry for name, entry in beside.items()
            if name == base or name.startswith((f"{base}.", f"{stem}."))
            or (entry.size <= _BESIDE_A_CHECKPOINT and not self._mirrors.is_large(name))
        }
        folder = self._fetch(parent, wanted, self._mirrors.is_large)
        self._mirrors.only(folder, wanted, is_deep=False)
        return [os.path.join(folder, base)]

    def texts(self, pattern: str, flag: str) -> list[str]:
        """Of the files that match a glob, or of a directory."""
        if self._remote.is_directory(pattern.rstrip("/")):
            return self.file(pattern, flag)
        return self._several(self._matched(pattern, flag))

    def records(self, pattern: str, flag: str) -> list[str]:
        """Of the record files that match a glob, with their manifests."""
        from albert.storage.files import MANIFEST_SUFFIX

        matched = self._matched(pattern, flag)
        notes = [one for one in matched if one.url.endswith(MANIFEST_SUFFIX)]
        notes += self._remote.match(pattern + MANIFEST_SUFFIX)
        told = {note.url: path for note, path in zip(notes, self._several(notes), strict=True)}
        shards = [one for one in matched if not one.url.endswith(MANIFEST_SUFFIX)]
        if not shards:
            raise DataError(f"--{flag}: no file matches {pattern}")
        of_manifest = [one for one in shards if one.url + MANIFEST_SUFFIX in told]
        paths = self._several(shards, of_manifest)
        for path in paths:
            if path + MANIFEST_SUFFIX not in told.values():  # there was one
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path + MANIFEST_SUFFIX)
        self._show_siblings(told)
        return paths

    def _matched(self, pattern: str, flag: str) -> list:
        found = self._remote.match(pattern)
        if not found:
            raise DataError(f"--{flag}: no file matches {pattern}")
        return found

    def _several(self, entries: list, on_demand: list = ()) -> list[str]:
        later = {entry.url for entry in on_demand}
        folders: dict[str, dict] = {}
        for entry in entries:
            parent, base = posixpath.split(entry.url)
            folders.setdefault(parent, {})[base] = entry
        for parent, found in folders.items():
            self._fetch(parent, found, lambda name, found=found: found[name].url in later)
        return [places.mirror_of(entry.url, places.root()) for entry in entries]

    def _show_siblings(self, notes: dict[str, str]) -> None:
        """Lets the record files be seen, as stand-ins, that were made with some, but not named."""
        seen: dict[str, dict] = {}
        for url, path in notes.items():
            with contextlib.suppress(OSError, ValueError, AttributeError):
                with open(path, encoding="utf-8") as stream:
                    names = json.load(stream)["info"].get("shards", [])
                parent, folder = posixpath.dirname(url), os.path.dirname(path)
                for name in names:
                    beside = os.path.join(folder, os.path.basename(name))
                    if os.path.exists(beside):
                        continue
                    if parent not in seen:
                        seen[parent] = self._remote.list_directory(parent)
                    if name in seen[parent]:
                        self._mirrors.fetch({name: seen[parent][name]}, folder, lambda _: True)
