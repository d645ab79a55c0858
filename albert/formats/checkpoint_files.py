"""The files of one checkpoint, of either kind: found, written, opened. No TensorFlow at import.

A tensor bundle, as the original wrote them, is `<prefix>.index` and `<prefix>.data-*`; where
TensorFlow is absent, a checkpoint is `<prefix>.safetensors`. The index, or the one file, is what
makes it a checkpoint: it appears last, and goes first.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from albert.engines import is_installed
from albert.errors import CheckpointError
from albert.formats import tensor_bundle, tensor_file
from albert.storage import files
from albert.storage.temporary import temporary_dir

MAIN = (tensor_bundle.SUFFIXES[-1], tensor_file.SUFFIXES[-1])
_PARTS = re.compile(r"\.(index|meta|safetensors|data-\d{5}-of-\d{5})$")


def exists(prefix: str) -> bool:
    """Whether there is a checkpoint of this prefix."""
    return main_file(prefix) is not None


def main_file(prefix: str) -> str | None:
    """Returns the file that makes a prefix a checkpoint; None if there is none."""
    return next((prefix + suffix for suffix in MAIN if os.path.isfile(prefix + suffix)), None)


def prefix_of(path: str) -> str:
    """Returns the prefix that a path means, which may be that of one of its files."""
    return _PARTS.sub("", path)


def prefixes(names: list[str]) -> list[str]:
    """Returns the checkpoints among the names of a directory's files, sorted."""
    return sorted({os.path.splitext(n)[0] for n in names if n.endswith(MAIN)})


def files_of(prefix: str) -> list[str]:
    """Returns a checkpoint's files, the one that makes it a checkpoint first.

    Whoever deletes them in this order never leaves a part that looks like a whole checkpoint.
    """
    mains = [prefix + suffix for suffix in MAIN]
    paths = [*mains, *tensor_bundle.shards(prefix), prefix + ".json"]
    return [path for path in paths if os.path.exists(path)]


def _kind_written():
    return tensor_bundle if is_installed("tensorflow") else tensor_file


def main_names(prefix: str) -> list[str]:
    """Returns what the file may be called that makes a prefix a checkpoint, as written here first."""
    suffixes = sorted(MAIN, key=_kind_written().SUFFIXES.__contains__, reverse=True)
    return [prefix + suffix for suffix in suffixes]


def open_reader(prefix: str) -> "tensor_bundle.BundleReader | tensor_file.TensorFileReader":
    """Returns what reads a checkpoint's tensors.

    Raises:
      CheckpointError: it is not readable.
    """
    if main_file(prefix) == prefix + tensor_file.SUFFIXES[-1]:
        return tensor_file.TensorFileReader(prefix)
    return tensor_bundle.BundleReader(prefix)


def write(
    prefix: str, tensors: Mapping[str, Any], before: Callable[[], None] = lambda: None
) -> None:
    """Publishes a checkpoint: a tensor bundle, or one file where TensorFlow is absent.

    `before` is called when all is written and nothing is published yet.

    Raises:
      CheckpointError: it could not be written (disk full, say); nothing is left behind.
    """
    kind = _kind_written()
    try:
        with temporary_dir(prefix) as scratch:
            inner = os.path.join(scratch, "checkpoint")
            kind.write(inner, tensors)
            before()
            files.publish(*((inner + suffix, prefix + suffix) for suffix in kind.SUFFIXES))
            # Of the same step, made where there was TensorFlow.
            files.remove(*filter(os.path.exists, main_names(prefix)[1:]))
    except OSError as error:
        raise CheckpointError(
            f"cannot write {prefix}: {error.strerror or error}; is the disk full?"
        ) from error
