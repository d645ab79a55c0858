"""Records that are read together: files with their manifests, or features in memory.

They consist of blocks of successive records, which are read one at a time.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError, UserError
from albert.records import examples
from albert.records.examples import ExampleError, FeatureSpec
from albert.records.manifests import Manifest, Sizes
from albert.records.tfrecord import HEADER_BYTES, read_block, read_range, scan
from albert.storage import files

log = logging.getLogger("albert")

BLOCK = 1024  # records
_FINGERPRINT_PARTS = 16  # of a file without a manifest, of which are read
_FINGERPRINT_BYTES = 64 << 10  # of each

# Features whose length is a flag of the reader.
_LENGTH_FLAGS = {"input_ids": "max_seq_length", "masked_lm_positions": "max_predictions_per_seq"}


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks of successive records, of all files; int64 [K] each."""

    file: np.ndarray  # number of the file
    offset: np.ndarray  # its first byte in the file
    size: np.ndarray  # bytes
    first: np.ndarray  # number of its first record in the file
    records: np.ndarray


class RecordFiles:
    """Files of records that are read together, in this order.

    Manifests and counts are read on demand, only once.

    Args:
      paths: the files.
      flag: the flag that named them, for messages.
    """

    def __init__(self, paths: Sequence[str], flag: str = ""):
        self.paths = tuple(paths)
        self.flag = flag
        self.error: UserError | None = None  # the last one of a `tf.data` pipeline

    @classmethod
    def of_flag(cls, patterns: str, flag: str) -> "RecordFiles":
        """Returns the files that match comma-separated globs; a DataError if one has no match."""
        return cls(files.expand_globs(patterns, flag), flag)

    def __str__(self) -> str:
        return ", ".join(self.paths)

    # === How they were made ===

    @functools.cached_property
    def _manifests(self) -> list[Manifest | None]:
        return list(map(Manifest.read, self.paths))

    def manifests(self) -> Iterator[tuple[str, Manifest]]:
        """Yields each path with its manifest, which is empty if the file has none."""
        for path, manifest in zip(self.paths, self._manifests, strict=True):
            yield path, manifest or Manifest()

    @property
    def tokenizer_sha256(self) -> str | None:
        """The tokenizer of all files; None if they differ or do not name it."""
        digests = {manifest.tokenizer_sha256 for _, manifest in self.manifests()}
        return digests.pop() if len(digests) == 1 else None

    def length_of(self, name: str) -> int | None:
        """Returns the length of a feature, None if the manifests do not agree on one."""
        lengths = {m.features[name][1] for _, m in self.manifests() if name in m.features}
        return lengths.pop() if len(lengths) == 1 else None

    def fingerprints(self) -> list[list[Any]]:
        """Returns [name, size, digest of the first bytes] of each file, read again if it changed."""
        infos = map(os.stat, self.paths)
        return [_fingerprint(path, info.st_size, info.st_mtime_ns)
                for path, info in zip(self.paths, infos, strict=True)]

    # === Their records ===

    @functools.cached_property
    def _sizes(self) -> list[Sizes]:
        """The blocks of each file, from the manifest; else from the lengths of all records."""
        return [manifest.blocks or _scanned_blocks(path) for path, manifest in self.manifests()]

    @functools.cached_property
    def counts(self) -> list[int]:
        """The number of records in each file."""
        if all(self._manifests):
            return [manifest.records for manifest in self._manifests]
        return [sum(count for count, _ in sizes) for sizes in self._sizes]

    @property
    def count(self) -> int:
        """The number of records in all files."""
        return sum(self.counts)

    @functools.cached_property
    def blocks(self) -> Blocks:
        """The blocks of all files, from the manifests.

        If there is no manifest, or one of an early version, the lengths of all records are read.

        Raises:
          DataError: a file cannot be read or is truncated, or its manifest is invalid.
        """
        columns = []
        for number, sizes in enumerate(self._sizes):
            counts, spans = np.array(sizes, np.int64).reshape(-1, 2).T
            file = np.full(len(counts), number)
            offset, first = np.cumsum(spans) - spans, np.cumsum(counts) - counts
            columns.append(np.stack([file, offset, spans, first, counts]))
        return Blocks(*np.concatenate(columns, axis=1))

    def read_block(
        self, number: int, spec: FeatureSpec, vocab_size: int
    ) -> dict[str, np.ndarray]:
        """Returns the features of a block's records, see `examples.decode_examples`.

        Raises:
          DataError: names the file and the record that is damaged, lacks a feature, or has an id
            or a position out of range.
        """
        path, first = self.paths[self.blocks.file[number]], int(self.blocks.first[number])
        offset, size = int(self.blocks.offset[number]), int(self.blocks.size[number])
        messages = read_block(path, offset, size, first, int(self.blocks.records[number]))
        try:
            features = examples.decode_examples(messages, spec)
        except ExampleError as error:
            raise _in_file(path, error, first) from error
        return _checked(features, spec, vocab_size, path, first)

    # === Checks ===

    def check(self, expected: FeatureSpec, vocab_size: int | None = None) -> "RecordFiles":
        """Compares every file with its manifest, or else its first record, and returns itself.

        Args:
          expected: features that the reader will use; there may be others.
          vocab_size: see `check_vocabulary`.

        Raises:
          DataError: a file is truncated, empty, or made for another model or other flags.
        """
        if vocab_size is not None:
            self.check_vocabulary(vocab_size)
        for path, manifest in zip(self.paths, self._manifests, strict=True):
            if manifest:
                _check_manifest(path, manifest, expected)
        self._check_shards()
        for number, path in enumerate(self.paths):
            if not self.counts[number]:
                raise DataError(f"{path} holds no records")
            if not self._manifests[number]:
                _check_features(path, _first_lengths(path, *self._sizes[number][0]), expected)
        return self

    def _check_shards(self) -> None:
        """Refuses files of different runs as shards of one data set; warns of missing ones.

        Raises:
          DataError: names two files that were not written together.
        """
        digests: dict[str, dict[str | None, str]] = {}  # {shard: {its digest: who says so}}
        for path, manifest in self.manifests():
            for name, digest in manifest.shards.items():
                shard = os.path.normpath(os.path.join(os.path.dirname(path), name))
                digests.setdefault(shard, {}).setdefault(digest, path)
        for path, manifest in self.manifests():
            is_listed = None not in digests.get(shard := os.path.normpath(path), {None: ""})
            if is_listed and not manifest.records:  # it has no manifest
                digests[shard].setdefault(files.sha256(path), path)
        given = set(map(os.path.normpath, self.paths))
        for shard, sources in digests.items():
            if shard in given and len(sources) > 1:
                one, other = list(sources.values())[:2]
                raise DataError(f"{one} and {other} were written by different runs, and are not parts of "
                                "one data set: make the records again")
        if absent := [shard for shard in sorted(digests.keys() - given) if not os.path.exists(shard)]:
            log.warning("missing files that were written with these: %s", ", ".join(absent))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuses records that were made with another vocabulary than the model's.

        A smaller one could be trained on, but no vocabulary would fit the result. Without a manifest,
        ids are checked when they are read.

        Raises:
          DataError: names the file, both sizes, and the remedy.
        """
        for path, manifest in self.manifests():
            if manifest.vocab_size not in (None, vocab_size):
                raise DataError(
                    f"{path} was made with a vocabulary of {manifest.vocab_size:,} tokens, config "
                    f"vocab_size is {vocab_size:,}: make the records with the model's vocabulary, "
                    f"or set vocab_size to {manifest.vocab_size} in the config of a new model"
                )


@functools.lru_cache(maxsize=4096)
def _fingerprint(path: str, size: int, modified: int) -> list[Any]:
    name, manifest = os.path.basename(path), Manifest.read(path)
    if digest := manifest and manifest.shards.get(name):
        return [name, size, digest[:16]]
    step = max(_FINGERPRINT_BYTES, size // _FINGERPRINT_PARTS)
    content = b"".join(read_range(path, at, _FINGERPRINT_BYTES) for at in range(0, size, step))
    return [name, size, hashlib.sha256(content).hexdigest()[:16]]


def _checked(
    features: dict[str, np.ndarray], spec: FeatureSpec, vocab_size: int, origin: str, first: int
) -> dict[str, np.ndarray]:
    """Returns the features of a block, whose first record has this number.

    Raises:
      DataError: a value is out of range.
    """
    # Compiled look-ups clamp too large ids, and wrap negative ones. A position beyond the end would
    # be in the next sequence.
    flag, vocabulary = (2, "values 0 and 1"), (vocab_size, f"vocabulary of {vocab_size:,} tokens")
    limits = {
        "input_ids": vocabulary, "masked_lm_ids": vocabulary, "segment_ids": flag, "input_mask": flag,
        "next_sentence_labels": flag, "is_real_example": flag,
        "masked_lm_positions": (spec.row_length, f"sequence of {spec.row_length} tokens"),
        "masked_lm_weights": (math.inf, "range of weights, finite and not negative"),
    }
    for name, (limit, what) in limits.items():
        if name in features and len(features[name]):
            values = features[name].reshape(len(features[name]), -1)
            if not (values.max() < limit and values.min() >= 0):  # as NaN is neither
                is_good = ((values < limit) & (values >= 0)).all(axis=1)
                number = first + int(is_good.argmin())
                raise DataError(f"{origin}: record {number:,}: {name} outside the {what}")
    return features


def _first_lengths(path: str, count: int, size: int) -> dict[str, int]:
    """Returns {feature: length} of a file's first record, whose block has `count` in `size` bytes."""
    first = read_block(path, 0, size, 0, count)[0]
    try:
        return {name: len(values) for name, values in examples.feature_values(first).items()}
    except ExampleError as error:
        raise _in_file(path, error, 0) from error


@contextlib.contextmanager
def original_errors(*sources: RecordFiles | None) -> Iterator[None]:
    """Raises the error of a `tf.data` pipeline over these records, instead of TensorFlow's."""
    try:
        yield
    except Exception as failure:
        for source in sources:
            if source and source.error:
                raise source.error from failure
        raise


def _in_file(path: str, error: ExampleError, first: int) -> DataError:
    """Returns the error with the file; `first` is the number of the first record."""
    return DataError(f"{path}: record {first + error.number:,}: {error.problem}")


def _scanned_blocks(path: str) -> Sizes:
    starts, _ = scan(path)
    begins = np.append(starts[:: BLOCK] - HEADER_BYTES, os.path.getsize(path))
    counts = np.diff(np.append(np.arange(0, len(starts), BLOCK), len(starts)))
    return list(zip(counts.tolist(), np.diff(begins).tolist(), strict=True))


def _check_manifest(path: str, manifest: Manifest, expected: FeatureSpec) -> None:
    size = os.path.getsize(path)
    if size != manifest.bytes:
        count = len(scan(path)[0])
        raise DataError(
            f"{path}: {count:,} records in {size:,} bytes, its manifest says "
            f"{manifest.records:,} in {manifest.bytes:,}: write it again"
        )
    lengths = {name: length or 1 for name, (_, length) in manifest.features.items()}
    _check_features(path, lengths, expected)


def _check_features(path: str, lengths: Mapping[str, int], expected: FeatureSpec) -> None:
    for name, (_, length) in expected.features.items():
        wanted, actual = length or 1, lengths.get(name)
        if actual is None:
            raise DataError(f"{path} has no feature {name} (it has {', '.join(lengths)}): was it made "
                            "for another command?")
        if actual == wanted:
            continue
        if name not in _LENGTH_FLAGS:
            raise DataError(f"{path}: {name} has length {actual}, expected {wanted}")
        flag, length = _LENGTH_FLAGS[name], actual
        if name == "input_ids" and expected.row_length:
            actual, wanted = (n * expected.row_length // wanted for n in (actual, wanted))
        raise DataError(
            f"{path} has {flag} {actual} ({name} of length {length}), expected {wanted}: "
            f"pass --{flag}={actual}"
        )


# === In memory ===


class RecordsInMemory:
    """Records that were made for this process, which are read like `RecordFiles`.

    Args:
      rows: a mapping for each record, {name: values of the spec's length}; may be a generator.
      name: of the rows, for messages.
    """

    paths: tuple[str, ...] = ()
    error: UserError | None = None  # the last one of a `tf.data` pipeline

    def __init__(self, rows: Iterable[Mapping[str, Any]], spec: FeatureSpec, name: str):
        self._name, self._blocks, rows = name, [], iter(rows)
        while block := list(itertools.islice(rows, BLOCK)):
            self._blocks.append({
                name: _narrow(np.array([row[name] for row in block], examples.DTYPES[dtype]))
                for name, (dtype, _) in spec.features.items()
            })
        counts = [len(next(iter(block.values()))) for block in self._blocks]
        records = np.array(counts, np.int64)
        self.count, self.blocks = sum(counts), Blocks(*np.zeros((4, len(records)), np.int64), records)

    def __str__(self) -> str:
        return self._name

    def read_block(self, number: int, spec: FeatureSpec, vocab_size: int) -> dict[str, np.ndarray]:
        """Returns the features of a block's records; see `RecordFiles.read_block`."""
        features = {name: self._blocks[number][name] for name in spec.features}
        return _checked(features, spec, vocab_size, self._name, BLOCK * number)

    def check(self, expected: FeatureSpec, vocab_size: int | None = None) -> "RecordsInMemory":
        """Returns itself; a DataError if there are no records."""
        if not self.count:
            raise DataError(f"no {self}")
        return self

    def fingerprints(self) -> list[list[Any]]:
        """Returns [name, number of records, digest of all]."""
        digest = hashlib.sha256()
        for values in itertools.chain.from_iterable(block.values() for block in self._blocks):
            digest.update(values.tobytes())
        return [[self._name, self.count, digest.hexdigest()[:16]]]


def _narrow(values: np.ndarray) -> np.ndarray:
    """Returns integers in the smallest type that fits all."""
    for dtype in (np.uint8, np.uint16, np.int32) if values.dtype == np.int64 else ():
        limits = np.iinfo(dtype)
        if values.min(initial=0) >= limits.min and values.max(initial=0) <= limits.max:
            return values.astype(dtype)
    return values
