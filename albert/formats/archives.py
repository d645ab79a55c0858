"""Packed models, and the cache that they are unpacked to. Released ones are `*.tar.gz`."""

import hashlib
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
MAX_MEMBERS = 1000  # files and folders; the released archives have less than ten
ENDINGS = (".tar.gz", ".tgz", ".tar")
_TIMEOUT = 30  # seconds without a byte
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
      CheckpointError: it is damaged, too large, or has a file that may not be unpacked.
    """
    target = cached(_name(path), files.sha256(path), lambda folder: _unpack(path, folder, path, flag))
    log.info("unpacked %s in %s", path, target)
    return target


def downloaded(url: str, flag: str) -> str:
    """Returns the directory in `cache_directory` that the archive at an address is unpacked to, once.

    Nothing remains of one that is refused.

    Raises:
      CheckpointError: it cannot be downloaded, or see `unpacked`.
    """

    def fill(folder: str) -> None:
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(folder), prefix=".download-") as part:
            _download(url, part, flag)
            _unpack(part.name, folder, url, flag)

    target = cached(_name(url), hashlib.sha256(url.encode()).hexdigest(), fill)
    log.info("%s is unpacked in %s", url, target)
    return target


def _name(path: str) -> str:
    name = os.path.basename(path)
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name


def _download(url: str, stream, flag: str) -> None:
    import http.client  # only here: every command would take longer to start
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            log.info("downloading %s", url)
            shutil.copyfileobj(answer, stream)
            size = int(answer.headers.get("Content-Length") or stream.tell())
        stream.flush()
        if stream.tell() != size:
            raise ConnectionError(f"the connection was cut after {stream.tell():,} of {size:,} bytes")
    except (OSError, http.client.HTTPException) as error:
        reason = first_line(getattr(error, "reason", None) or error)
        code = f"{error.code} " if hasattr(error, "code") else ""
        raise CheckpointError(f"{flag}: cannot download {url}: {code}{reason}. Rerun the command to "
                              "try again") from error


def _unpack(path: str, folder: str, origin: str, flag: str) -> None:
    try:
        with tarfile.open(path) as archive:
            size = 0
            for number, member in enumerate(archive, 1):
                size += member.size
                if size > MAX_BYTES or number > MAX_MEMBERS:  # before more of it is decompressed
                    raise ValueError(f"it has more than {MAX_BYTES >> 30} GiB, or than {MAX_MEMBERS:,} "
                                     "files")
            # Refuses links, devices, and names that lead outside the folder.
            archive.extractall(folder, filter="data")
    except _ERRORS as error:
        raise CheckpointError(f"{flag}: cannot unpack {origin}: {first_line(error)}") from error
