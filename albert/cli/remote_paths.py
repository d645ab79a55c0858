"""Remote paths in flags: before a command runs, each becomes the path of its mirror.

A flag of the kind `path` says by its `use` what the command does with it:

    file        reads a file, or a directory with all that is in it
    model       reads a model: a directory, an archive, a checkpoint's prefix or one of its files
    texts       reads the files of comma-separated globs
    records     reads record files, likewise; those with a manifest are fetched as they are read
    output      writes a file or a directory
    outputs     writes the files of a comma-separated list
    prefix      writes files that begin with it, and some beside them
    directory   reads and writes a directory
"""

import contextlib
import json
import os
import posixpath
import tempfile
from collections.abc import Iterator

from absl import flags as absl_flags

from albert.data import places
from albert.errors import (
    DataError,
    FlagError,
    Preempted,
    RunDirBusyError,
    TrainingDivergedError,
    UserError,
    WorkerLostError,
)

USES = ("file", "model", "texts", "records", "output", "outputs", "prefix", "directory")
_WRITTEN = ("output", "outputs", "prefix", "directory")
_SEVERAL = ("texts", "records", "outputs")
_BESIDE_A_CHECKPOINT = 64 << 20  # bytes of the largest other file that is fetched with it


def parts_of(value: str, use: str) -> list[str]:
    """Returns the paths of a flag's value."""
    parts = value.split(",") if use in _SEVERAL else [value]
    return [part.strip() for part in parts if part.strip()]


@contextlib.contextmanager
def mirrored(values: absl_flags.FlagValues) -> Iterator[None]:
    """Lets the flags name mirrors inside the block; sends what was written there at its end.

    Raises:
      DataError: what is to be read is not there; UserError: it cannot be reached.
    """
    before = {}
    for name in values:
        flag = values[name]
        if not (getattr(flag, "use", None) and {"://", "@"} & _marks(flag.value or "")):
            continue
        if flag.unless and values[flag.unless].value:
            continue
        parts = list(map(places.without_file_scheme, parts_of(flag.value, flag.use)))
        if any(_is_elsewhere(part, flag.use) for part in parts):
            before[name] = flag.value
        else:
            flag.value = ",".join(parts)
    if not before:
        yield
        return
    with _Session() as session:
        for name in sorted(before, key=lambda name: values[name].use in _WRITTEN):
            flag = values[name]
            flag.given, flag.value = flag.value, session.mirror(name, flag.value, flag.use)
        try:
            yield
        except (UserError, TrainingDivergedError, WorkerLostError, Preempted) as error:
            if not isinstance(error, RunDirBusyError):
                session.send()
            raise
        session.send()


def _marks(value: str) -> set[str]:
    return {mark for mark in ("://", "@") if mark in value}


def _is_elsewhere(part: str, use: str) -> bool:
    """Whether a path is remote, or that of a list of texts which is, or names what is."""
    if use == "texts" and part.startswith("@") and not os.path.exists(part):
        return places.is_remote(part[1:]) or any(map(places.is_remote, _lines(part[1:])))
    return places.is_remote(part)


def _lines(path: str) -> list[str]:
    """Returns the lines of a list; none if it cannot be read, which its reader tells."""
    try:
        with open(path, encoding="utf-8-sig") as stream:
            return [line.strip() for line in stream if line.strip()]
    except (OSError, UnicodeDecodeError):
        return []


def local_file(url: str, flag: str) -> str:
    """Returns the path of a small file: itself, or its copy.

    Raises:
      DataError: it is not there; UserError: it cannot be reached.
    """
    return _Inputs().file(url, flag)[0] if places.is_remote(url) else url


class _Session:
    """The mirrors of one command."""

    def __init__(self):
        from albert.data import mirrors

        self._mirrors, self._stack = mirrors, contextlib.ExitStack()
        self._inputs, self._trees, self._own = _Inputs(), [], ""

    def __enter__(self) -> "_Session":
        self._own = self._stack.enter_context(self._mirrors.own_folder())
        return self

    def __exit__(self, *error) -> None:
        self._stack.__exit__(*error)

    def mirror(self, flag: str, value: str, use: str) -> str:
        """Returns the value of a flag with the paths of mirrors."""
        found = []
        for part in parts_of(value, use):
            if not _is_elsewhere(part, use):
                found.append(part)
            elif part.startswith("@"):
                path = local_file(part[1:], flag)
                found += [self.mirror(flag, line, use) for line in _lines(path)]
            elif use in _WRITTEN:
                found.append(self._written(flag, part.rstrip("/"), use))
            else:
                found += getattr(self._inputs, use)(part, flag)
        return ",".join(found)

    def _written(self, flag: str, url: str, use: str) -> str:
        if url in self._inputs.urls:
            raise DataError(f"{url} is an input: it is not overwritten; name another file")
        parent, base = posixpath.split(url)
        if use == "directory":
            return self._open(self._mirrors.Mirror(url, places.mirror_of(url, self._own)))
        if parent.endswith((":", ":/")):
            raise FlagError(f"--{flag}: {url} is a bucket: name something in it")
        stem = os.path.splitext(base)[0]

        def is_ours(name: str) -> bool:
            return use == "prefix" or name == base or name.startswith((f"{base}.", f"{stem}."))

        # What a killed run left under way lies beside its output, and is found there again.
        folder = self._own if use == "prefix" else os.path.join(places.root(), "out")
        local = places.mirror_of(parent, folder)
        self._open(self._mirrors.Mirror(parent, local, is_ours, [base]))
        return os.path.join(local, base)

    def _open(self, tree) -> str:
        tree.pull()
        self._trees.append(tree)
        self._stack.enter_context(places.open_tree(tree))
        return tree.local

    def send(self) -> None:
        """Sends all that was written.

        Raises:
          UserError: it cannot be sent; it stays here, and the message says where.
        """
        try:
            for tree in self._trees:
                tree.push()
        except RunDirBusyError:
            raise
        except UserError as error:
            raise UserError(f"{error}; what was made lies in {self._kept()}") from error
        for tree in self._trees:
            if not tree.local.startswith(self._own):
                tree.clear()

    def _kept(self) -> str:
        """Moves the mirrors of this process to where they stay; returns the folder."""
        if not os.listdir(self._own):
            return os.path.join(places.root(), "out")
        kept = tempfile.mkdtemp(prefix="unsent-", dir=places.root())
        for name in os.listdir(self._own):
            os.rename(os.path.join(self._own, name), os.path.join(kept, name))
        return kept


class _Inputs:
    """What a command reads. Each method returns the paths of the mirrors of one path."""

    def __init__(self):
        from albert.data import mirrors, remote_files

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
        from albert.data.files import MANIFEST_SUFFIX

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
