"""Addresses in flags: downloads a command's inputs and uploads its outputs.

A path flag's `use` says what the command does with it:

    file        reads a file, or a directory with all that is in it
    model       reads a model: a directory, a checkpoint's prefix or one of its files,
                or one to download by its name on a hub
    texts       reads text files (comma-separated globs), streaming them
    records     reads record files (comma-separated globs), by ranges
    output      writes a file or a directory
    outputs     writes files (comma-separated)
    prefix      writes files whose names begin with it
    directory   reads and writes a directory
"""

import contextlib
import os
from collections.abc import Iterator

from absl import flags as absl_flags

from albert.errors import DataError, FlagError
from albert.storage import filesystem, fsspec_calls, mirrors

USES = ("file", "model", "texts", "records", "output", "outputs", "prefix", "directory")
_STREAMED = ("texts", "records")
_WRITTEN = ("output", "outputs", "prefix", "directory")


@contextlib.contextmanager
def local_paths(values: absl_flags.FlagValues) -> Iterator[None]:
    """Replaces addresses in flags by local paths, and uploads the outputs after the block."""
    with mirrors.uploaded():
        inputs: set[str] = set()
        for flag in (values[name] for name in values):
            if getattr(flag, "use", None) == "model" and flag.value:
                from albert.formats import model_hub  # imports NumPy, which not all commands need

                if model_hub.is_name(flag.value):
                    _check_data(values)
                replace(flag, model_hub.local_path(flag.value, flag.name))
        flags = [values[name] for name in values if "://" in str(values[name].value)]
        flags = [flag for flag in flags if getattr(flag, "use", None)]
        for flag in sorted(flags, key=lambda flag: (flag.use in _WRITTEN, flag.name)):
            if flag.unless and values[flag.unless].value:
                continue
            several = flag.use in (*_STREAMED, "outputs")
            parts = [part.strip() for part in flag.value.split(",")] if several else [flag.value]
            value = ",".join(_local(part, flag, inputs) for part in parts if part)
            if any(map(filesystem.is_remote, parts)):
                replace(flag, value)
            flag.value = value
        yield


def _check_data(values: absl_flags.FlagValues) -> None:
    """Raises a DataError for a file that does not exist, before minutes of a download."""
    # run_classifier, which has --dev_file, reads --train_file in any case.
    conditions = {"predict_file": "do_predict"} | ({} if "dev_file" in values else {"train_file": "do_train"})
    for name in {"train_file", "dev_file", "test_file", "predict_file", "data_dir"} & set(values):
        path, is_used = values[name].value, values[conditions.get(name, name)].value
        is_absent = path and is_used and "://" not in path and not os.path.exists(path)
        if is_absent and not values[name].help.startswith("No effect"):
            raise DataError(f"{name}: no such file or directory: {path}")


def replace(flag, value: str) -> None:
    """Sets a flag's value; `given` remains what the user typed, for what is recorded."""
    if value != flag.value:
        flag.given, flag.value = getattr(flag, "given", flag.value), value


def _local(path: str, flag, inputs: set[str]) -> str:
    if not filesystem.is_remote(path) or flag.use in _STREAMED:
        return filesystem.without_file_scheme(path)
    if flag.use not in _WRITTEN:
        inputs.add(path)
        return filesystem.local_copy(path, flag.name)
    if path in inputs:
        raise DataError(f"{path} is an input and would be overwritten: name another file")
    if "/" not in path.rstrip("/").split("://")[1] and flag.use != "directory":
        raise FlagError(f"--{flag.name}: {path} is a bucket: name a path in it")
    fsspec_calls.require_bucket(path)
    if flag.use == "directory":
        return mirrors.open_mirror(path.rstrip("/")).pull()
    return mirrors.path_for(path)
