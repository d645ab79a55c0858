"""Packed models, and the cache that they are unpacked to. Released ones are `*.tar.gz`."""

import logging
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable

from albert.errors import CheckpointError, first_line
from albert.storage import files
from albert.storage.filesystem import cache_directory

log = logging.getLogger("albert")

MAX_BYTES = 16 << 30  # unpacked; the largest model has 1 GiB
ENDINGS = (".tar.gz", ".tgz", ".tar")
_ERRORS = (tarfile.TarError, EOFError, zlib.error, OSError, ValueError)


def is_archive(path: str) -> bool:
    """Whether a path is the name of a packed model."""
    return path.endswith(ENDINGS) and os.path.isfile(path)


def cached(name: str, identity: str, make: Callable[[str], None]) -> str:
    """Returns a folder of the cache; `make` fills it if it is new."""
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
            if not os.path.isdir(target):  # which another process may have made in the meantime
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def unpacked(path: str, flag: str) -> str:
    """Returns the directory in `cache_directory` that an archive is unpacked to, once.

    Raises:
      CheckpointError: it is damaged, or has a file that may not be unpacked.
    """

    def unpack(folder: str) -> None:
        with tarfile.open(path) as archive:
            size = sum(member.size for member in archive)
            if size > MAX_BYTES:
                raise ValueError(f"it would unpack to {size:,} bytes")
            # Refuses links, devices, and names that lead outside the folder.
            archive.extractall(folder, filter="data")

    name = os.path.basename(path)
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    try:
        target = cached(name, files.sha256(path), unpack)
    except _ERRORS as error:
        raise CheckpointError(f"--{flag}: cannot unpack {path}: {first_line(error)}") from error
    log.info("unpacked %s in %s", path, target)
    return target
