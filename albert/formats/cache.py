"""Converted files, which are made once, in the user's cache."""

import os
import shutil
import tempfile
from collections.abc import Callable

from albert.storage.cloud import cache_directory


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
