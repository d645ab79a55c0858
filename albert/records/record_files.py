"""Record files that are opened once: how many records they hold, and what they were made with.

One `RecordFiles` goes from the command to the loop, the pipeline and the evaluation. It reads
what it needs to know of the files when it is first asked, and keeps it.
"""

import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.records import examples, records
from albert.records.examples import FeatureSpec
from albert.records.records import Sizes
from albert.records.tfrecord import (
    HEADER_BYTES,
    count_records,
    read_records,
    scan,
    size_of,
    verify_records,
)
from albert.storage import files, places

log = logging.getLogger("albert")

# Features whose length a flag of the reader decides.
_LENGTH_FLAGS = {
    "input_ids": "max_seq_length", "masked_lm_positions": "max_predictions_per_seq",
}


class RecordFiles:
    """Files of records that are read together, in their order.

    `paths` are the files; `flag` is the flag that named them, for messages.
    """

    def __init__(self, paths: Sequence[str], flag: str = ""):
        self.paths = tuple(paths)
        self.flag = flag

    @classmethod
    def of_flag(cls, patterns: str, flag: str) -> "RecordFiles":
        """Returns the files of comma-separated globs.

        Raises:
          DataError: one matches nothing.
        """
        return cls(files.expand_globs(patterns, flag), flag)

    def __str__(self) -> str:
        return ", ".join(self.paths)

    @functools.cached_property
    def manifests(self) -> dict[str, dict[str, Any] | None]:
        """The manifest of each file, None where there is none; see `records.read_manifest`."""
        return {path: records.read_manifest(path) for path in self.paths}

    def infos(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yields each path with what its manifest says that it was made with."""
        for path, manifest in self.manifests.items():
            yield path, manifest["info"] if manifest else {}

    def info_of_all(self, name: str) -> Any:
        """Returns what the manifests of all files say of something, None where they differ."""
        found = {info.get(name) for _, info in self.infos()}
        return found.pop() if len(found) == 1 else None

    def with_feature(self, name: str) -> list[str]:
        """Returns the files whose manifest tells of a feature."""
        return [
            path for path, manifest in self.manifests.items()
            if manifest and any(name == feature for feature, _, _ in manifest["features"])
        ]

    def length_of(self, name: str) -> int | None:
        """Returns the length of a feature, None where the manifests do not tell one."""
        lengths = {
            length for manifest in self.manifests.values() if manifest
            for feature, _, length in manifest["features"] if feature == name
        }
        return lengths.pop() if len(lengths) == 1 else None

    @functools.cached_property
    def counts(self) -> list[int]:
        """The number of records of each file; without a manifest they are counted."""
        return [
            manifest["records"] if manifest else count_records(path)
            for path, manifest in self.manifests.items()
        ]

    @property
    def count(self) -> int:
        """The number of records of all files."""
        return sum(self.counts)

    @functools.cached_property
    def blocks(self) -> list[Sizes]:
        """The (records, bytes) of each file's blocks, in order.

        They are in the manifest. Of a file without one, or with one of an earlier
        version, the lengths of all records are read.

        Raises:
          DataError: a file cannot be read, is cut, or its manifest is not usable.
        """
        return [
            [(count, size) for count, size in manifest["blocks"]]
            if manifest and "blocks" in manifest else _scanned_blocks(path)
            for path, manifest in self.manifests.items()
        ]

    # === Of remote files: see `remote_blocks` ===

    def is_fetched(self) -> bool:
        """Whether all files are there whole."""
        return not any(map(places.is_stand_in, self.paths))

    def fetch(self, num_records: int = 0) -> None:
        """Fetches the first files, whole, that hold so many records together; 0: all files.

        Raises:
          UserError: one cannot be fetched.
        """
        if self.is_fetched():
            return
        from albert.storage import remote_files

        before = itertools.accumulate(self.counts, initial=0)
        wanted = [
            path for path, first in zip(self.paths, before, strict=False)
            if not num_records or first < num_records
        ]
        remote_files.together(places.ready, ((path,) for path in wanted))

    @functools.cached_property
    def _cache(self):
        from albert.storage.remote_blocks import BlockCache

        return BlockCache(sum(map(size_of, self.paths)))

    @functools.cached_property
    def _sizes(self) -> dict[tuple[int, int], int]:
        """{(number of the file, first byte): bytes} of all blocks."""
        sizes = {}
        for number, blocks in enumerate(self.blocks):
            ends = itertools.accumulate((size for _, size in blocks), initial=0)
            sizes |= {
                (number, start): size for start, (_, size) in zip(ends, blocks, strict=False)
            }
        return sizes

    def located(self, blocks: np.ndarray) -> list[tuple[str, int]]:
        """Returns (file, first byte) of blocks, once they are there to be read.

        Copies of earlier blocks may go then.

        Args:
          blocks: int64 [S, 2 or more]: the number of the file, its byte.

        Raises:
          UserError: one cannot be fetched.
        """
        here = [(self.paths[number], start) for number, start, *_ in blocks.tolist()]
        apart = self._of_stand_ins(blocks)
        copies = dict(zip(apart, self._cache.paths(apart), strict=True)) if apart else {}
        found = {block[:2]: (path, 0) for block, path in copies.items()}
        return [found.get(place, place) for place in here]

    def fetch_ahead(self, blocks: np.ndarray) -> None:
        """Begins to fetch the blocks of stand-ins that `located` will be asked for next."""
        self._cache.begin(self._of_stand_ins(blocks))

    def _of_stand_ins(self, blocks: np.ndarray) -> list[tuple[str, int, int]]:
        if self.is_fetched():
            return []
        keys = [(number, start) for number, start, *_ in blocks.tolist()]
        return [
            (self.paths[key[0]], key[1], self._sizes[key]) for key in keys
            if places.is_stand_in(self.paths[key[0]])
        ]

    def verify(self) -> None:
        """Raises a DataError at the first damaged record; of stand-ins, among those read so far."""
        for path in self.paths:
            if not places.is_stand_in(path):
                verify_records(path)
        if not self.is_fetched():
            for path, copy in self._cache.fetched():
                try:
                    verify_records(copy)
                except DataError:
                    verify_records(path)
                    raise

    def _begins(self, most: int) -> list[str]:
        """Returns files that begin as the first ones do: of a stand-in, its first block."""
        chosen, found = range(len(self.paths[:most])), list(self.paths[:most])
        apart = [number for number in chosen if places.is_stand_in(found[number])]
        if apart:
            rows = np.array([[number, 0] for number in apart])
            for number, (path, _) in zip(apart, self.located(rows), strict=True):
                found[number] = path
        return found

    # === What is in them ===

    def check(
        self,
        expected: FeatureSpec,
        vocab_size: int | None = None,
        tokenizer_sha256: str | None = None,
    ) -> "RecordFiles":
        """Returns itself, having compared every file with its manifest.

        A file without a manifest is judged by its framing and its first record.

        Args:
          expected: features that the reader will ask for; others may be there too.
          vocab_size: rows of the embedding table, see `check_vocabulary`.
          tokenizer_sha256: identity of the tokenizer in use, if there is one.

        Raises:
          DataError: a file is cut, empty, or made for another model or other flags.
        """
        if vocab_size is not None:
            self.check_vocabulary(vocab_size)
        absent = set()
        for path, manifest in self.manifests.items():
            if manifest:
                _check_manifest(path, manifest, expected, tokenizer_sha256)
                beside = os.path.dirname(path)
                shards = (os.path.join(beside, name) for name in manifest["info"].get("shards", []))
                absent.update(shard for shard in shards if not os.path.exists(shard))
        for path, count in zip(self.paths, self.counts, strict=True):
            if not count:
                raise DataError(f"{path}: holds no records")
            if not self.manifests[path]:
                _check_features(path, feature_lengths(path), expected)
        if absent:
            log.warning("written together with these, but not found: %s", ", ".join(sorted(absent)))
        return self

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuses records that were made with another vocabulary than a model's.

        One of fewer pieces would train too, but no vocabulary would ever fit the result. The
        ids of records without a manifest are looked at when they are read.

        Raises:
          DataError: names the file, both numbers of pieces, and the remedy.
        """
        for path, info in self.infos():
            has = info.get("vocab_size")
            if has is not None and has != vocab_size:
                raise DataError(
                    f"{path} was made with a vocabulary of {has:,} pieces, config vocab_size is "
                    f"{vocab_size:,}: make the records with the model's vocabulary, or set "
                    f"vocab_size to {has} in the configuration of a new model"
                )

    def mean_fill(self, spec: FeatureSpec, sample: int = 512) -> float:
        """Returns the share of the rows' places that are tokens, in the first records.

        Args:
          sample: records looked at in all; files hold theirs in random order.
        """
        used = count = 0
        for path, begin in zip(self.paths, self._begins(sample), strict=False):
            for record in itertools.islice(read_records(begin), -(-sample // len(self.paths))):
                with _of_file(path):
                    lengths = examples.feature_values(record, "segment_lengths")
                    mask = examples.feature_values(record, "input_mask")
                if lengths is not None:  # of A and B, with [CLS] and twice [SEP]
                    used += int(lengths.sum()) + 3
                elif mask is not None:
                    used += int(mask.sum())
                count += 1
        places = (spec.features.get("input_mask") or spec.features["input_ids"])[1]
        return used / (count * places) if count else 1.0


def _scanned_blocks(path: str) -> Sizes:
    starts, _ = scan(path)
    firsts = starts[:: records.BATCH]
    begins = np.concatenate([firsts[:1] * 0, firsts[1:] - HEADER_BYTES, [size_of(path)]])
    counts = np.diff(np.append(np.arange(0, len(starts), records.BATCH), len(starts)))
    return list(zip(counts.tolist(), np.diff(begins).tolist(), strict=True))


def _check_manifest(
    path: str, manifest: Mapping[str, Any], expected: FeatureSpec, tokenizer_sha256: str | None
) -> None:
    size = size_of(path)
    if size != manifest["bytes"]:
        found = count_records(path)
        raise DataError(
            f"{path}: {found:,} records in {size:,} bytes, its manifest says "
            f"{manifest['records']:,} in {manifest['bytes']:,}: write it anew"
        )
    lengths = {name: length or 1 for name, _, length in manifest["features"]}
    _check_features(path, lengths, expected)
    made_with = manifest["info"].get("tokenizer_sha256")
    if tokenizer_sha256 and made_with and tokenizer_sha256 != made_with:
        raise DataError(f"{path} was made with another vocabulary or case flag: write it anew")


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
    record = next(read_records(path))
    with _of_file(path):
        return examples.feature_lengths(record)


@contextlib.contextmanager
def _of_file(path: str) -> Iterator[None]:
    """Names the file in the error over one of its records."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: one of its first records is not a tf.train.Example") from error
