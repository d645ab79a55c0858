"""Caches features as record files, keyed by their inputs."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

from albert import __version__
from albert.errors import DataError
from albert.records import manifests
from albert.records.examples import FeatureSpec
from albert.records.manifests import Manifest
from albert.storage import files
from albert.storage.temporary import lock_directory

log = logging.getLogger("albert")

# Part of the inputs. Increment it when the same inputs give other features.
FEATURES_VERSION = 1


def cached_records(
    directory: str, name: str, rows: Iterable[Mapping[str, Any]], spec: FeatureSpec,
    depends_on: Mapping[str, Any],
) -> str:
    """Returns the record file `<name>-<key>.tf_record` in `directory`, written if necessary.

    The key is a digest of `depends_on` and the code's version, so that a file made from other inputs
    is never used. `rows` is only iterated over if the file or its manifest is missing or damaged. Of
    several processes that need the same file, one writes it and the others wait. Where a directory
    cannot be locked, all do the work, and publish the same bytes.
    """
    info = {
        **depends_on,
        "features": {k: list(v) for k, v in spec.features.items()},
        "version": f"{__version__}/{FEATURES_VERSION}",
    }
    key = hashlib.sha256(repr(sorted(info.items())).encode()).hexdigest()[:12]
    path, manifest = os.path.join(files.make_dirs(directory), f"{name}-{key}.tf_record"), None
    with contextlib.ExitStack() as lock:
        with contextlib.suppress(OSError):
            lock.callback(os.close, lock_directory(directory, wait=True))
        try:
            manifest = Manifest.read(path)
        except DataError as error:
            log.warning("%s; writing %s again", error, path)
        if manifest and os.path.isfile(path) and os.path.getsize(path) == manifest.bytes:
            log.info("features from %s", path)
        else:
            manifests.write_records(path, rows, spec, info)
            log.info("wrote features to %s", path)
    return path
