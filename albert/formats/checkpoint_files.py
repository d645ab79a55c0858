"""The files of one checkpoint, `<prefix>.index` and `<prefix>.data-*`.

They have TensorFlow 1's format, like the original's. A checkpoint exists if its index does: the
index is published last and removed first. No TensorFlow.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from albert.errors import CheckpointError
from albert.formats import tensor_bundle
from albert.storage import files
from albert.storage.temporary import temporary_dir

INDEX = ".index"
_PARTS = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def exists(prefix: str) -> bool:
    """Whether there is a checkpoint with this prefix."""
    return os.path.isfile(prefix + INDEX)


def prefix_of(path: str) -> str:
    """Returns the prefix of a checkpoint, given it or one of its files."""
    return _PARTS.sub("", path)


def prefixes(directory: str) -> list[str]:
    """Returns the names of a directory's checkpoints, sorted."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return sorted(name.removesuffix(INDEX) for name in names if name.endswith(INDEX))


def files_of(prefix: str) -> list[str]:
    """Returns a checkpoint's files in the order in which to delete them: the index first."""
    paths = [prefix + INDEX, *tensor_bundle.shards(prefix), prefix + ".json"]
    return [path for path in paths if os.path.exists(path)]


def write(
    prefix: str, tensors: Mapping[str, Any], before: Callable[[], None] = lambda: None
) -> None:
    """Publishes a checkpoint.

    Args:
      before: called after writing and before publishing.

    Raises:
      CheckpointError: it could not be written (disk full, for example); nothing is left behind.
    """
    try:
        with temporary_dir(prefix) as scratch:
            inner = os.path.join(scratch, "checkpoint")
            tensor_bundle.write(inner, tensors)
            before()
            files.publish(*((inner + end, prefix + end) for end in tensor_bundle.SUFFIXES))
    except OSError as error:
        raise CheckpointError(
            f"cannot write {prefix}: {error.strerror or error}"
        ) from error
