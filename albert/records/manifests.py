"""The manifest of a record file describes its content and how it was made.

A TFRecord file that is truncated exactly between two records reads without an error; only the count
in the manifest reveals it. Files without a manifest, such as the original's, are read, too.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from albert.errors import DataError
from albert.records.examples import FeatureSpec
from albert.storage import files

FORMAT_VERSION = 1
_UNFINISHED = "unfinished"  # key of the manifest of a file that is being replaced
# (records, bytes) of all blocks of a file.
Sizes = Sequence[tuple[int, int]]


# === The manifest ===


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Describes a record file's content and how it was made; JSON next to the file."""

    records: int = 0
    bytes: int = 0
    features: Mapping[str, tuple[str, int | None]] = dataclasses.field(default_factory=dict)
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # JSON values
    blocks: Sizes = ()

    @classmethod
    def of(cls, blocks: Sizes, spec: FeatureSpec, info: Mapping[str, Any]) -> "Manifest":
        """Returns the manifest of a file that consists of these blocks."""
        return cls(
            sum(records for records, _ in blocks), sum(size for _, size in blocks),
            dict(spec.features), dict(info), tuple(map(tuple, blocks)),
        )

    @classmethod
    def read(cls, path: str) -> "Manifest | None":
        """Returns the manifest of a record file, None if it has none.

        Raises:
          DataError: it is damaged, invalid, or of a later version.
        """
        where = manifest_path(path)
        if not os.path.exists(where):
            return None
        value = files.read_sealed_json(where)
        if "format_version" not in value:
            raise DataError(f"{where}: not a manifest of a record file")
        if value["format_version"] != FORMAT_VERSION:
            raise DataError(f"{where}: format version {value['format_version']}, this toolkit reads "
                            f"{FORMAT_VERSION}: write {os.path.basename(path)} again")
        if value.get(_UNFINISHED):
            raise DataError(f"{path} is unfinished: the command that writes it was interrupted, or is "
                            "still running: rerun that command, then this one")
        try:
            features = {str(n): (str(kind), size and int(size)) for n, kind, size in value["features"]}
            blocks = tuple(map(tuple, value.get("blocks", ())))
            info = dict(value["info"])
            int(info.get("vocab_size") or 0)
            return cls(value["records"], value["bytes"], features, info, blocks)
        except (KeyError, TypeError, ValueError) as error:  # without a digest
            raise DataError(f"{where}: not a manifest's values: {error!r}") from error

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object that `read` reads."""
        return {
            "format_version": FORMAT_VERSION,
            "records": self.records,
            "bytes": self.bytes,
            "blocks": list(map(list, self.blocks)),
            "features": [[name, *feature] for name, feature in self.features.items()],
            "info": dict(self.info),
        }

    # --- How the records were made ---

    @property
    def tokenizer_sha256(self) -> str | None:
        """Identity of the vocabulary and the preprocessing of texts."""
        return self.info.get("tokenizer_sha256")

    @property
    def vocab_size(self) -> int | None:
        return self.info.get("vocab_size")

    @property
    def flags(self) -> Mapping[str, Any]:
        return self.info.get("flags") or {}

    @property
    def shards(self) -> Mapping[str, str | None]:
        """{relative path: SHA-256} of all files that were written together."""
        return self.info.get("shards", {})


def manifest_path(path: str) -> str:
    """Returns the path of the manifest of a record file."""
    return path + files.MANIFEST_SUFFIX


def mark_unfinished(path: str) -> None:
    """Marks a file that is about to be replaced, until its manifest is written."""
    files.write_sealed_json(manifest_path(path), {"format_version": FORMAT_VERSION, _UNFINISHED: True})


def is_complete(path: str) -> bool:
    """Whether a record file was written to its end, with its manifest."""
    where = manifest_path(path)
    return os.path.exists(where) and not files.read_json_object(where).get(_UNFINISHED)


# === Writing ===


def refuse_foreign(path: str) -> None:
    """Refuses to overwrite a file that may not be a record file of this toolkit.

    Raises:
      DataError: the file exists, and has no manifest.
    """
    where = manifest_path(path)
    if os.path.lexists(path) and not os.path.exists(where):
        raise DataError(f"{path} is not overwritten: it has no {os.path.basename(where)}, unlike record "
                        "files of this toolkit; remove it, or choose another name")
