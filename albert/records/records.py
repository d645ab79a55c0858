"""Record files are written here, and the manifest beside each: what is in them, and how many.

A TFRecord cut exactly between two records reads without any error; only the
count in the manifest can tell. Files without a manifest (made by the original
toolkit) are read too: see `record_files`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.records.examples import DTYPES, FeatureSpec, frame_examples
from albert.storage import files

FORMAT_VERSION = 1
BATCH = 1024  # records serialised together
# (records, bytes) of successive parts of a file.
Sizes = list[tuple[int, int]]


# === Writing ===


def write_records(
    path: str, rows: Iterable[Mapping[str, Any]], spec: FeatureSpec, info: Mapping[str, Any]
) -> int:
    """Publishes rows as a TFRecord file with its manifest; returns how many.

    Args:
      rows: one mapping a record, {name: values of the spec's length}; may be a generator.
      info: what the manifest says beside counts and features (JSON values).

    Raises:
      DataError: a row's feature is missing or of another length; UserError: cannot write.
    """
    return publish_frames(path, frame_rows(rows, spec), spec, info)


def frame_rows(
    rows: Iterable[Mapping[str, Any]], spec: FeatureSpec
) -> Iterator[tuple[bytes, int]]:
    """Yields (bytes of whole framed records, how many) of rows, as `write_records` takes them.

    Raises:
      DataError: a row's feature is missing or of another length.
    """
    batch, filled, total = spec.zeros(BATCH), 0, 0
    for row in rows:
        for name, (_, length) in spec.features.items():
            value = np.asarray(row[name]) if name in row else None
            want = () if length is None else (length,)
            if value is None or value.shape != want:
                got = "nothing" if value is None else f"shape {value.shape}"
                raise DataError(f"record {total:,}: {name} needs shape {want}, got {got}")
            batch[name][filled] = value
        filled, total = filled + 1, total + 1
        if filled == BATCH:
            yield frame_examples(batch, spec), filled
            filled = 0
    if filled:
        rest = {name: values[:filled] for name, values in batch.items()}
        yield frame_examples(rest, spec), filled


def publish_frames(
    path: str,
    frames: Iterable[tuple[bytes, int]],
    spec: FeatureSpec,
    info: Mapping[str, Any],
) -> int:
    """Publishes framed records, then their manifest; returns the number of records.

    Args:
      frames: (bytes of whole framed records, how many records).

    A manifest of an earlier file goes first, so that it never describes this one.
    """
    blocks: Sizes = []
    # The manifest's file begins first and gets its name last, see `refuse_foreign`.
    with files.atomic_write(manifest_path(path)) as note, files.atomic_write(path, "wb") as stream:
        for content, count in frames:
            stream.write(content)
            blocks.append((count, len(content)))
        note.write(manifest_text(blocks, spec, info))
        remove_manifest(path)
    return sum(count for count, _ in blocks)


def manifest_path(path: str) -> str:
    """Returns where the manifest of a record file is."""
    return path + files.MANIFEST_SUFFIX


def remove_manifest(path: str) -> None:
    """Removes the manifest of `path`, if there is one."""
    if os.path.exists(manifest_path(path)):
        files.remove(manifest_path(path))


def refuse_foreign(path: str) -> None:
    """Refuses to overwrite what is not known to be a record file of this toolkit.

    One of ours has its manifest; or a temporary of it, if a process died while it gave the two
    their names.

    Raises:
      DataError: a file without is there.
    """
    where = manifest_path(path)
    if os.path.lexists(path) and not os.path.exists(where):
        raise DataError(
            f"{path} is not overwritten: it has no {os.path.basename(where)} beside it, as record "
            "files of this toolkit have; remove it, or name another"
        )


def manifest_text(
    blocks: Sequence[tuple[int, int]], spec: FeatureSpec, info: Mapping[str, Any]
) -> str:
    """Returns the text of a `manifest`."""
    return files.sealed_json_text(manifest(blocks, spec, info))


def manifest(
    blocks: Sequence[tuple[int, int]], spec: FeatureSpec, info: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the manifest of a record file.

    Args:
      blocks: (records, bytes) of successive parts of the file, together all of it.
    """
    features = [[name, dtype, length] for name, (dtype, length) in spec.features.items()]
    return {
        "format_version": FORMAT_VERSION,
        "records": sum(records for records, _ in blocks),
        "bytes": sum(size for _, size in blocks),
        "blocks": [list(block) for block in blocks],
        "features": features,
        "info": dict(info),
    }


def read_manifest(path: str) -> dict[str, Any] | None:
    """Returns the manifest of a record file, or None if it has none.

    Keys: format_version, records, bytes, features (list of [name, dtype, length]), info and,
    in later ones, blocks (list of [records, bytes]).

    Raises:
      DataError: it is not a manifest, or of a later version of the toolkit.
    """
    where = manifest_path(path)
    if not os.path.exists(where):
        return None
    manifest = files.read_sealed_json(where)
    if "format_version" not in manifest:
        raise DataError(f"{where}: not a manifest of a record file")
    if manifest["format_version"] != FORMAT_VERSION:
        raise DataError(
            f"{where}: format version {manifest['format_version']}, this toolkit reads "
            f"{FORMAT_VERSION}: write {os.path.basename(path)} anew"
        )
    missing = [key for key in ("records", "bytes", "features", "info") if key not in manifest]
    if missing:
        raise DataError(f"{where}: lacks {', '.join(missing)}")
    bad = [key for key, is_good in _MANIFEST_KEYS.items() if not is_good(manifest[key])]
    if "blocks" in manifest and not bad and not _are_blocks(manifest):
        bad = ["blocks"]
    if bad:
        raise DataError(
            f"{where}: unusable {', '.join(bad)}: write {os.path.basename(path)} anew"
        )
    return manifest


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_blocks(manifest: Mapping[str, Any]) -> bool:
    blocks = manifest["blocks"]
    return (
        isinstance(blocks, list)
        and all(isinstance(b, list) and len(b) == 2 and all(map(_is_count, b)) for b in blocks)
        and sum(b[0] for b in blocks) == manifest["records"]
        and sum(b[1] for b in blocks) == manifest["bytes"]
    )


def _is_feature(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 3 and isinstance(value[0], str)
        and value[1] in tuple(DTYPES) and (value[2] is None or _is_count(value[2]))
    )


def _is_info(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    shards = value.get("shards", [])
    return (
        isinstance(shards, list) and all(isinstance(name, str) for name in shards)
        and (value.get("vocab_size") is None or _is_count(value["vocab_size"]))
    )


# What each key of a manifest must be.
_MANIFEST_KEYS = {
    "records": _is_count,
    "bytes": _is_count,
    "features": lambda value: isinstance(value, list) and all(map(_is_feature, value)),
    "info": _is_info,
}
