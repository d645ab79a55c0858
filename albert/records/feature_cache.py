"""Record files of features, each with what it was made from, so that none is made twice."""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from albert import __version__
from albert.errors import DataError
from albert.records import records
from albert.storage import files

log = logging.getLogger("albert")

# Part of what a file was made from. Raise it when the same input gives other features.
FEATURES_VERSION = 1


def cached_records(
    directory: str,
    name: str,
    rows: Iterable[Mapping[str, Any]],
    spec: records.FeatureSpec,
    depends_on: Mapping[str, Any],
) -> str:
    """Returns the record file `<name>-<key>.tf_record` in `directory`, written if need be.

    The key is a digest of `depends_on` and of the code's version, so that a
    file made from anything else is never taken. `rows` is only iterated when
    the file or its manifest is absent or damaged. Of several processes that
    want the same file one writes it and the others wait.
    """
    info = _made_from(spec, depends_on)
    key = hashlib.sha256(repr(sorted(info.items())).encode()).hexdigest()[:12]
    path = os.path.join(files.make_dirs(directory), f"{name}-{key}.tf_record")
    with _one_at_a_time(directory):
        return _made_if_need_be(path, rows, spec, info)


def named_records(
    path: str,
    rows: Iterable[Mapping[str, Any]],
    spec: records.FeatureSpec,
    depends_on: Mapping[str, Any],
) -> str:
    """Returns `path`, written if it is absent or damaged.

    Raises:
      DataError: it was made from anything else than `depends_on`, or is no file of ours.
    """
    records.refuse_foreign(path)
    info = _made_from(spec, depends_on)
    with _one_at_a_time(files.make_dirs(os.path.dirname(os.path.abspath(path)))):
        return _made_if_need_be(path, rows, spec, info)


def has_no_manifest(path: str | None) -> bool:
    """Whether a record file is there that does not tell what it was made from (the original's)."""
    return bool(path) and os.path.isfile(path) and not records.Manifest.read(path)


def _made_from(spec: records.FeatureSpec, depends_on: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **depends_on,
        "features": {k: list(v) for k, v in spec.features.items()},
        "version": f"{__version__}/{FEATURES_VERSION}",
    }


def _made_if_need_be(
    path: str,
    rows: Iterable[Mapping[str, Any]],
    spec: records.FeatureSpec,
    info: Mapping[str, Any],
) -> str:
    """Returns `path`, made from `info`: the file that is there, or else a new one of `rows`."""
    if not _is_whole(path):
        records.write_records(path, rows, spec, info)
        log.info("wrote features to %s", path)
        return path
    theirs = records.Manifest.read(path).info
    if differ := [key for key in info if not files.is_same_json(theirs.get(key), info[key])]:
        raise DataError(
            f"{path} was made from another {', '.join(differ)}: remove it, or name another file"
        )
    log.info("features from %s", path)
    return path


def _is_whole(path: str) -> bool:
    """Whether the file has a manifest and the size that it states."""
    try:
        manifest = records.Manifest.read(path)
    except DataError as error:
        log.warning("%s; writing %s anew", error, path)
        return False
    return bool(manifest) and os.path.isfile(path) and os.path.getsize(path) == manifest.bytes


@contextlib.contextmanager
def _one_at_a_time(directory: str) -> Iterator[None]:
    """Holds `directory` itself locked, which leaves no lock file behind."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            # Some network file systems cannot lock a directory. Then both
            # processes do the work, and publish the same bytes.
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOTSUP):
                raise
        yield
    finally:
        os.close(descriptor)
