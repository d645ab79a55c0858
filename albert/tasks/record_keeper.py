"""Where the rows of a task are kept: record files. No TensorFlow."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from albert.records import feature_cache
from albert.records.examples import FeatureSpec

if TYPE_CHECKING:
    from albert.tokenization import FullTokenizer


def digest(values: Any) -> str:
    """Returns a checksum of what was read, by which its record file is found again."""
    return hashlib.sha256(repr(values).encode("utf-8", "replace")).hexdigest()


@dataclasses.dataclass(frozen=True)
class RecordKeeper:
    """What all rows of a run share, and the folder for record files whose path is not given."""

    tokenizer: "FullTokenizer"
    max_seq_length: int
    directory: str

    def keep(
        self,
        name: str,
        rows: Iterable[Mapping[str, Any]],
        spec: FeatureSpec,
        depends_on: Mapping[str, Any],
        path: str | None = None,
    ) -> str:
        """Returns the record file of the rows: `path`, or a keyed one that begins with `name`.

        The file is written if it is not there. `depends_on` tells what else the rows depend on
        than the tokenizer and the length.

        Raises:
          DataError: `path` exists and was made from something else.
        """
        info = {
            **depends_on, "tokenizer": self.tokenizer.sha256, "max_seq_length": self.max_seq_length
        }
        if path:
            return feature_cache.named_records(path, rows, spec, info)
        return feature_cache.cached_records(self.directory, name, rows, spec, info)
