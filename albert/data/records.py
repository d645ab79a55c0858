"""Record files and the manifest beside each: what is in them, and how many.

A TFRecord cut exactly between two records reads without any error; only the
count in the manifest can tell. Files without a manifest (made by the original
toolkit) are read too: their records are counted from the framing.
"""

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert.data import files, temporaries
from albert.data.examples import DTYPES, FeatureSpec, frame_examples
from albert.data.tfrecord import (
    HEADER_BYTES,
    count_records,
    read_records,
    scan,
    size_of,
    verify_records,
)
from albert.errors import DataError

__all__ = [
    "FeatureSpec", "block_sizes", "check_records", "check_vocabulary", "count_records", "publish_frames",
    "read_manifest", "read_records", "verify_records", "write_records",
]

log = logging.getLogger("albert")

FORMAT_VERSION = 1
_BATCH = 1024  # records serialised together
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
    batch, filled, total = spec.zeros(_BATCH), 0, 0
    for row in rows:
        for name, (_, length) in spec.features.items():
            value = np.asarray(row[name]) if name in row else None
            want = () if length is None else (length,)
            if value is None or value.shape != want:
                got = "nothing" if value is None else f"shape {value.shape}"
                raise DataError(f"record {total:,}: {name} needs shape {want}, got {got}")
            batch[name][filled] = value
        filled, total = filled + 1, total + 1
        if filled == _BATCH:
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
        os.unlink(manifest_path(path))


def refuse_foreign(path: str) -> None:
    """Refuses to overwrite what is not known to be a record file of this toolkit.

    One of ours has its manifest; or a temporary of it, if a process died while it gave the two
    their names.

    Raises:
      DataError: a file without is there.
    """
    where = manifest_path(path)
    if os.path.lexists(path) and not (os.path.exists(where) or temporaries.temporaries_of(where)):
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


def block_sizes(path: str) -> Sizes:
    """Returns (records, bytes) of the blocks of a file, in order.

    They are in the manifest. Of a file without one, or with one of an earlier
    version, the lengths of all records are read.

    Raises:
      DataError: the file cannot be read, is cut, or its manifest is not usable.
    """
    told = read_manifest(path)
    if told and "blocks" in told:
        return [(records, size) for records, size in told["blocks"]]
    starts, _ = scan(path)
    firsts = starts[::_BATCH]
    begins = np.concatenate([firsts[:1] * 0, firsts[1:] - HEADER_BYTES, [size_of(path)]])
    counts = np.diff(np.append(np.arange(0, len(starts), _BATCH), len(starts)))
    return list(zip(counts.tolist(), np.diff(begins).tolist(), strict=True))


def read_manifest(path: str) -> dict[str, Any] | None:
    """Returns the manifest of a record file, or None if it has none.

    Keys: format_version, records, bytes, features (list of [name, dtype, length]), info and,
    in later ones, blocks (list of [records, bytes], see `block_sizes`).

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


# === Checking ===


def check_records(
    paths: Sequence[str],
    expected: FeatureSpec,
    vocab_size: int | None = None,
    tokenizer_sha256: str | None = None,
) -> list[int]:
    """Returns the number of records of every file, having compared it with its manifest.

    A file without a manifest is judged by its framing and its first record.

    Args:
      expected: features that the reader will ask for; others may be there too.
      vocab_size: rows of the embedding table, see `check_vocabulary`.
      tokenizer_sha256: identity of the tokenizer in use, if there is one.

    Raises:
      DataError: a file is cut, empty, or made for another model or other flags.
    """
    if vocab_size is not None:
        check_vocabulary(paths, vocab_size)
    counts, absent = [], set()
    for path in paths:
        manifest = read_manifest(path)
        if manifest is None:
            counts.append(count_records(path))
            if counts[-1]:
                _check_features(path, feature_lengths(path), expected)
        else:
            counts.append(_check_manifest(path, manifest, expected, tokenizer_sha256))
            beside = os.path.dirname(path)
            shards = [os.path.join(beside, name) for name in manifest["info"].get("shards", [])]
            absent.update(shard for shard in shards if not os.path.exists(shard))
        if not counts[-1]:
            raise DataError(f"{path}: holds no records")
    if absent:
        log.warning("written together with these, but not found: %s", ", ".join(sorted(absent)))
    return counts


def _check_manifest(
    path: str,
    manifest: Mapping[str, Any],
    expected: FeatureSpec,
    tokenizer_sha256: str | None,
) -> int:
    size, records = size_of(path), manifest["records"]
    if size != manifest["bytes"]:
        found = count_records(path)
        raise DataError(
            f"{path}: {found:,} records in {size:,} bytes, its manifest says {records:,} in "
            f"{manifest['bytes']:,}: write it anew"
        )
    lengths = {name: length or 1 for name, _, length in manifest["features"]}
    _check_features(path, lengths, expected)
    made_with = manifest["info"].get("tokenizer_sha256")
    if tokenizer_sha256 and made_with and tokenizer_sha256 != made_with:
        raise DataError(f"{path} was made with another vocabulary or case flag: write it anew")
    return records


def check_vocabulary(paths: Sequence[str], vocab_size: int) -> None:
    """Refuses records that were made with another vocabulary than a model's, before any compute.

    One of fewer pieces would train too, but no vocabulary would ever fit the result. The ids of
    records without a manifest are looked at when they are read.

    Raises:
      DataError: names the file, both numbers of pieces, and the remedy.
    """
    for path in paths:
        has = ((read_manifest(path) or {}).get("info") or {}).get("vocab_size")
        if has is not None and has != vocab_size:
            raise DataError(
                f"{path} was made with a vocabulary of {has:,} pieces, config vocab_size is "
                f"{vocab_size:,}: make the records with the model's vocabulary, or set "
                f"vocab_size to {has} in the configuration of a new model"
            )


def mean_fill(paths: Sequence[str], spec: FeatureSpec, sample: int = 512) -> float:
    """Returns the share of the rows' places that are tokens, in the first records of each file.

    Args:
      paths: files that `check_records` has passed.
      sample: records looked at in all; files hold theirs in random order.
    """
    used = count = 0
    for path in paths[:sample]:
        for record in itertools.islice(read_records(path), -(-sample // len(paths))):
            features = _parse(path, record)
            if "segment_lengths" in features:  # of A and B, with [CLS] and twice [SEP]
                used += sum(features["segment_lengths"].int64_list.value) + 3
            else:
                used += sum(features["input_mask"].int64_list.value)
            count += 1
    places = (spec.features.get("input_mask") or spec.features["input_ids"])[1]
    return used / (count * places) if count else 1.0


# Features whose length a flag of the reader decides.
_LENGTH_FLAGS = {
    "input_ids": "max_seq_length", "masked_lm_positions": "max_predictions_per_seq",
}


def _check_features(path: str, lengths: Mapping[str, int], expected: FeatureSpec) -> None:
    for name, (_, length) in expected.features.items():
        want, has = length or 1, lengths.get(name)
        if has is None:
            raise DataError(
                f"{path} has no feature {name} (it has {', '.join(lengths)}): "
                "was it made for another command?"
            )
        if has == want:
            continue
        if name in _LENGTH_FLAGS:
            flag, length = _LENGTH_FLAGS[name], has
            if name == "input_ids" and expected.row_length:
                has, want = (count * expected.row_length // want for count in (has, want))
            raise DataError(
                f"{path} has {flag} {has} ({name} of length {length}), expected {want}: "
                f"pass --{flag}={has}"
            )
        raise DataError(f"{path}: {name} has length {has}, expected {want}")


def feature_lengths(path: str) -> dict[str, int]:
    """Returns {feature: number of values} of the first record."""
    return {
        name: len(getattr(feature, feature.WhichOneof("kind") or "int64_list").value)
        for name, feature in _parse(path, next(read_records(path))).items()
    }


def _parse(path: str, record: bytes):
    """Returns {name: tf.train.Feature} of a record, by TensorFlow's own parser."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        return tf.train.Example.FromString(record).features.feature
    except DecodeError as error:
        raise DataError(f"{path}: one of its first records is not a tf.train.Example") from error
