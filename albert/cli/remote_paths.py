"""Flags that name files in cloud storage: what a command reads is copied, what it writes is published.

A flag of the kind `path` says by its `use` what the command does with it:

    file        reads a file, or a directory with all of its files
    model       reads a model: a directory, an archive, or a checkpoint
    texts       reads the files of comma-separated globs, as streams
    records     reads record files, likewise, by ranges of bytes
    output      writes a file or a directory
    outputs     writes the files of a comma-separated list, and keeps unfinished work
    prefix      writes files that begin with it
    directory   reads and writes a directory
"""

import contextlib
import os
import posixpath
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
from albert.storage import copies, filesystem, write_through
from albert.storage.files import MANIFEST_SUFFIX

USES = ("file", "model", "texts", "records", "output", "outputs", "prefix", "directory")
_LISTS = ("texts", "records", "outputs")
_STREAMED = ("texts", "records")
_COPIED = {"file": copies.local_copy, "model": copies.local_model}


def parts_of(value: str, use: str) -> list[str]:
    """Returns the paths of a flag's value."""
    parts = value.split(",") if use in _LISTS else [value]
    return [part.strip() for part in parts if part.strip()]


@contextlib.contextmanager
def local_paths(values: absl_flags.FlagValues) -> Iterator[None]:
    """Lets flags name local files inside the block; publishes what was written at its end.

    Raises:
      DataError: an input does not exist; UserError: it cannot be read or written.
    """
    remote = []
    for name in values:
        flag = values[name]
        if not (getattr(flag, "use", None) and "://" in (flag.value or "")):
            continue
        if flag.unless and values[flag.unless].value:
            continue
        parts = [_without_file_scheme(part) for part in parts_of(flag.value, flag.use)]
        flag.value = ",".join(parts)
        if any(map(filesystem.is_remote, parts)) and flag.use not in _STREAMED:
            remote.append(name)
    if not remote:
        yield
        return
    with write_through.Session() as session:
        inputs = {
            part for name in values if getattr(values[name], "use", "") in (*_COPIED, *_STREAMED)
            for part in parts_of(values[name].value or "", values[name].use)
        }
        for name in sorted(remote, key=lambda name: values[name].use not in _COPIED):
            flag = values[name]
            flag.given, flag.value = flag.value, ",".join(
                _local(part, name, flag.use, session, inputs)
                for part in parts_of(flag.value, flag.use)
            )
        try:
            yield
        except (UserError, TrainingDivergedError, WorkerLostError, Preempted) as error:
            if not isinstance(error, RunDirBusyError):
                session.flush()
            raise
        session.flush()


def _without_file_scheme(path: str) -> str:
    return path[len("file://") :] if path.lower().startswith("file://") else path


def _local(
    path: str, flag: str, use: str, session: write_through.Session, inputs: set[str]
) -> str:
    """Returns the local path that stands for one of a flag."""
    if not filesystem.is_remote(path):
        return path
    if use in _COPIED:
        return _COPIED[use](path, flag)
    url = path.rstrip("/")
    if url in inputs:
        raise DataError(f"{url} is an input: it is not overwritten; name another file")
    if use == "directory":
        folder = session.open(url)
        folder.download()
        return folder.local
    parent, base = posixpath.split(url)
    if parent.endswith((":", ":/")):
        raise FlagError(f"--{flag}: {url} is a bucket: name something in it")
    local = os.path.join(session.open(parent, is_kept=use == "outputs").local, base)
    if use != "prefix":
        _show_existing(url, local)
    return local


def _show_existing(url: str, local: str) -> None:
    """Makes empty files for what exists at an output's address, so that commands see it."""
    if filesystem.entry_of(url):
        open(local, "wb").close()
        if entry := filesystem.entry_of(url + MANIFEST_SUFFIX):
            filesystem.download(entry, local + MANIFEST_SUFFIX)
    elif filesystem.is_directory(url):
        for name in filesystem.list_tree(url):
            os.makedirs(os.path.dirname(os.path.join(local, name)), exist_ok=True)
            open(os.path.join(local, name), "wb").close()
