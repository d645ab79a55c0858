"""Addresses in flags: copies a command's inputs in and its outputs out, see `storage.cloud`.

A path flag's `use` says what the command does with it:

    file        reads a file, or a directory with all that is in it
    model       reads a model: a directory, a checkpoint's prefix or one of its files,
                or one to download by its name on a hub
    texts       reads text files (comma-separated globs)
    records     reads record files (comma-separated globs), with their manifests
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
from albert.storage import cloud, files

USES = ("file", "model", "texts", "records", "output", "outputs", "prefix", "directory")
_WRITTEN = ("output", "outputs", "prefix", "directory")


@contextlib.contextmanager
def local_paths(values: absl_flags.FlagValues) -> Iterator[None]:
    """Replaces addresses in flags by local paths, and uploads the outputs after the block."""
    with contextlib.ExitStack() as outputs:
        for flag in (values[name] for name in values):
            if getattr(flag, "use", None) == "model" and flag.value:
                from albert.formats import model_hub  # imports NumPy, which not all commands need

                if model_hub.is_name(flag.value):
                    _check_data(values)
                replace(flag, model_hub.local_path(flag.value, flag.name))
        flags = [values[name] for name in values if "://" in str(values[name].value)]
        flags = [flag for flag in flags if getattr(flag, "use", None)]
        inputs: set[str] = set()
        for flag in sorted(flags, key=lambda flag: (flag.use in _WRITTEN, flag.name)):
            if flag.use in ("texts", "records", "outputs"):
                parts = [part.strip() for part in flag.value.split(",") if part.strip()]
            else:
                parts = [flag.value]
            paths = [path for part in parts for path in _local(part, flag, inputs, outputs)]
            replace(flag, ",".join(paths))
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
    """Sets a flag's value; `given` remains as typed, for records of the run."""
    if value != flag.value:
        flag.given, flag.value = getattr(flag, "given", flag.value), value


def _local(path: str, flag, inputs: set[str], outputs: contextlib.ExitStack) -> list[str]:
    """Returns the local paths of an address; other paths are unchanged.

    Args:
      inputs: addresses that the command reads; those of this flag are added.
      outputs: closed when the outputs are complete.
    """
    if not cloud.is_remote(path):
        return [path.removeprefix("file://")]
    if flag.use not in _WRITTEN:
        is_glob = flag.use in ("texts", "records")
        copies = (cloud.local_copies(path, flag.name, files.BESIDE_RECORDS) if is_glob
                  else [cloud.local_copy(path, flag.name)])
        inputs.update(map(cloud.as_given, copies))
        return copies
    if path in inputs:
        raise DataError(f"{path} is an input and would be overwritten: name another file")
    if "/" not in path.rstrip("/").split("://")[1] and flag.use != "directory":
        raise FlagError(f"--{flag.name}: {path} is a bucket: name a path in it")
    return [outputs.enter_context(cloud.output(path, flag.use == "directory"))]
