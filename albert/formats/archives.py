"""Where a model lies that a path means: in a packed archive, in the one folder below it, or here.

Released models come as `albert_base_v2.tar.gz` with one folder inside. Some models come with this
package, and are meant by their names.
"""

import logging
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable

from albert.errors import CheckpointError, first_line
from albert.storage import files, filesystem, shipped
from albert.storage.filesystem import cache_directory

log = logging.getLogger("albert")

MOST_BYTES = 16 << 30  # unpacked; the largest model has one
_ENDINGS = (".tar.gz", ".tgz", ".tar")
_ERRORS = (tarfile.TarError, EOFError, zlib.error, OSError, ValueError)


def located(path: str, is_model: Callable[[str], bool], flag: str) -> str:
    """Returns what `path` means: itself, or where its archive, its folder or its name has the model.

    An archive is unpacked once, into `cache_directory`.

    Args:
      is_model: whether a directory holds a model itself.

    Raises:
      CheckpointError: an archive is damaged, or has a file that may not be unpacked.
    """
    path = filesystem.local_copy(shipped.path_of(path), flag)
    if is_archive(path):
        path = _unpacked(path, flag)
    if not os.path.isdir(path) or is_model(path):
        return path
    below = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name[0] != "."]
    models = [folder for folder in below if os.path.isdir(folder) and is_model(folder)]
    if len(models) != 1:
        return path
    log.info("%s: the model in %s", path, models[0])
    return models[0]


def is_whole(path: str) -> bool:
    """Whether a path may be that of a model with its configuration and vocabulary."""
    return is_archive(path) or os.path.isdir(shipped.path_of(path))


def is_archive(path: str) -> bool:
    """Whether a path is that of a packed model."""
    return path.endswith(_ENDINGS) and os.path.isfile(path)


def kept(name: str, identity: str, make: Callable[[str], None]) -> str:
    """Returns a folder of the cache that `make` fills the first time that it is asked for."""
    target = os.path.join(cache_directory(), f"{name}-{identity[:16]}")
    if os.path.isdir(target):
        return target
    os.makedirs(cache_directory(), exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=f".{name}-", dir=cache_directory())
    try:
        make(scratch)
        try:
            os.rename(scratch, target)
        except OSError:
            if not os.path.isdir(target):  # not made by another process meanwhile
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _unpacked(path: str, flag: str) -> str:
    def unpack(folder: str) -> None:
        with tarfile.open(path) as archive:
            size = sum(member.size for member in archive)
            if size > MOST_BYTES:
                raise ValueError(f"it would unpack to {size:,} bytes")
            # Refuses names that lead outside, links and devices.
            archive.extractall(folder, filter="data")

    name = os.path.basename(path)
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    try:
        target = kept(name, files.sha256(path), unpack)
    except _ERRORS as error:
        raise CheckpointError(f"--{flag}: cannot unpack {path}: {first_line(error)}") from error
    log.info("%s: unpacked in %s", path, target)
    return target
