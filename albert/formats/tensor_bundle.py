"""TensorFlow's checkpoint files, `<prefix>.index` and `<prefix>.data-*`: arrays by name."""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert.data import files, temporaries
from albert.errors import CheckpointError, first_line, some

# What a damaged bundle raises: truncated data is an IndexError of the binding.
_UNREADABLE = (tf.errors.OpError, IndexError, ValueError, RuntimeError)
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")


class Weights:
    """The named tensors of one checkpoint, read on demand."""

    def __init__(self, origin: str, reader, keys: Mapping[str, str] | Iterable[str]):
        """Takes TensorFlow's reader or one like it, and {name: name in the file}."""
        self.origin = origin
        self._reader = reader
        self._keys = dict(keys) if isinstance(keys, Mapping) else {name: name for name in keys}
        shapes = reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shapes[key]) for name, key in self._keys.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor.

        Raises:
          CheckpointError: the file is damaged (the bundle's checksums are verified).
        """
        try:
            return self._reader.get_tensor(self._keys[name])
        except _UNREADABLE as error:
            raise CheckpointError(
                f"{self.origin}: cannot read {name}: {first_line(error)}"
            ) from error


def open_reader(prefix: str):
    """Returns TensorFlow's reader of a tensor bundle.

    Raises:
      CheckpointError: not a tensor bundle, or damaged.
    """
    try:
        return tf.train.load_checkpoint(prefix)
    except _UNREADABLE as error:
        raise CheckpointError(
            f"{prefix} is not a readable checkpoint: {first_line(error)}"
        ) from error


def check_whole(prefix: str, reader) -> None:
    """Refuses data files that are shorter than their tensors, those that nobody reads included.

    Raises:
      CheckpointError: names what cannot be read.
    """
    shapes, kinds = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    sizes = {
        name: math.prod(shapes[name]) * kind.size
        for name, kind in kinds.items() if kind.is_numpy_compatible and kind != tf.string
    }
    needed, found = sum(sizes.values()), sum(map(os.path.getsize, shards(prefix)))
    if found >= needed:
        return
    # What claims to be larger than the files is not even tried.
    lost = [n for n, size in sorted(sizes.items()) if size > found or not _is_readable(reader, n)]
    raise CheckpointError(
        f"{prefix} is cut short: its data files have {found:,} bytes, its tensors {needed:,}; "
        f"cannot be read: {some(lost)}; copy it anew"
    )


def _is_readable(reader, name: str) -> bool:
    try:
        reader.get_tensor(name)
    except _UNREADABLE:
        return False
    return True


def missing_shards(prefix: str) -> list[str]:
    """Returns the names of the data files that belong to a checkpoint and are not there."""
    base = os.path.basename(prefix)
    there = {(int(m[1]), int(m[2])) for m in map(_SHARD.search, shards(prefix)) if m}
    counts = sorted({count for _, count in there})
    if not counts:
        return [f"{base}.data-00000-of-00001"]
    # A whole set is enough, whatever else lies beside it.
    sets = [[i for i in range(n) if (i, n) not in there] for n in counts]
    return [f"{base}.data-{i:05d}-of-{counts[-1]:05d}" for i in sets[-1]] if all(sets) else []


def shards(prefix: str) -> list[str]:
    """Returns the paths of a checkpoint's data files."""
    folder, base = os.path.split(prefix)
    names = os.listdir(folder or ".")
    return [os.path.join(folder, n) for n in names if n.startswith(base + ".data-")]


def write(
    prefix: str, tensors: Mapping[str, Any], before: Callable[[], None] = lambda: None
) -> None:
    """Publishes a tensor bundle; its index appears last.

    `before` is called when all is written and nothing is published yet.

    Raises:
      CheckpointError: it could not be written (disk full, say); nothing is left behind.
    """
    try:
        with temporaries.temporary_dir(prefix) as scratch:
            _write(prefix, os.path.join(scratch, "bundle"), tensors, before)
    except (tf.errors.OpError, OSError) as error:
        raise CheckpointError(
            f"cannot write {prefix}: {first_line(error)}; is the disk full?"
        ) from error


def _write(
    prefix: str, inner: str, tensors: Mapping[str, Any], before: Callable[[], None]
) -> None:
    tf.raw_ops.SaveV2(
        prefix=inner,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.convert_to_tensor(t) for t in tensors.values()],
    )
    suffixes = (".data-00000-of-00001", ".index")
    for suffix in suffixes:
        with open(inner + suffix, "rb") as stream:
            os.fsync(stream.fileno())
    before()
    for suffix in suffixes:
        os.replace(inner + suffix, prefix + suffix)
    files.fsync(os.path.dirname(os.path.abspath(prefix)))
