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
import os
import posixpath
import tempfile
from collections.abc import Iterator

from absl import flags as absl_flags

from albert.errors import (
    DataError,
    FlagError,
    Preempted,
    RunDirBusyError,
    TrainingDivergedError,
    UserError,
    WorkerLostError,
)
from albert.storage import addresses, places
from albert.storage.files import MANIFEST_SUFFIX

USES = ("file", "model", "texts", "records", "output", "outputs", "prefix", "directory")
_WRITTEN = ("output", "outputs", "prefix", "directory")
_SEVERAL = ("texts", "records", "outputs")


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


class _Session:
    """The mirrors of one command."""

    def __init__(self):
        from albert.storage import mirrors

        self._mirrors, self._stack = mirrors, contextlib.ExitStack()
        self._inputs, self._trees, self._own = addresses.Inputs(), [], ""

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
                path = addresses.local(part[1:], flag)
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

        # Other files there, whatever their names begin with, are the user's or another command's.
        own = {base, base + MANIFEST_SUFFIX}

        def is_ours(name: str) -> bool:
            return name in own or use != "outputs" and (
                use == "prefix" or name.startswith((f"{base}.", f"{stem}.README"))
            )

        # What a killed run left under way lies beside its output, and is found there again.
        folder = self._own if use == "prefix" else os.path.join(places.root(), "out")
        local = places.mirror_of(parent, folder)
        is_read = None if use == "prefix" else own.__contains__
        self._open(self._mirrors.Mirror(parent, local, is_ours, [base], is_read))
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
