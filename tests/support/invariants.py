"""Invariants that must hold after any failure."""

import contextlib
import fnmatch
import hashlib
import json
import pathlib
from collections.abc import Iterator

from albert.storage import files

# Files that a run appends to or replaces by design; everything else is written once.
LIVING = (
    "*/.lock", "*/.lock.holder", "*/metrics.jsonl", "*/checkpoint", "*/events.out.*", "*/albert_config.json",
    "*/eval_results.*", "*/README.md",
)


def snapshot(folder: pathlib.Path) -> dict[str, str]:
    """Returns {path: digest} of every file below a folder."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file()
    }


def assert_tidy(folder: pathlib.Path) -> None:
    """Checks that no temporary files are left, and that every JSON file is complete and has its seal."""
    litter = [str(path) for path in folder.rglob("*") if ".tmp" in path.name]
    assert not litter
    for path in folder.rglob("*.json"):
        if "content_sha256" in json.loads(path.read_text("utf-8")):
            files.read_sealed_json(str(path))
    for path in folder.rglob("metrics.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            json.loads(line)


@contextlib.contextmanager
def nothing_lost(folder: pathlib.Path, *may_change: str) -> Iterator[None]:
    """Checks the three invariants when the block ends.

    1. no temporary files left; 2. no half-written JSON; 3. earlier files are
    byte-identical or, for a damaged checkpoint, renamed to `*.corrupt`.
    `may_change` are patterns for full paths.
    """
    before = snapshot(folder)
    yield
    assert_tidy(folder)
    after = snapshot(folder)
    for path, digest in before.items():
        if any(fnmatch.fnmatch(path, pattern) for pattern in (*LIVING, *may_change)):
            continue
        assert digest in (after.get(path), after.get(path + ".corrupt")), path


@contextlib.contextmanager
def untouched(folder: pathlib.Path) -> Iterator[None]:
    """Checks that no byte below a folder changes, except for the holder of its lock."""

    def content() -> dict[str, str]:
        return {k: v for k, v in snapshot(folder).items() if not k.endswith("/.lock")}

    before = content()
    yield
    assert content() == before
