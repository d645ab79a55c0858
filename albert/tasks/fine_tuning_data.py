"""The examples of a fine-tuning, and the record files that are made of them. No TensorFlow."""

import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert.records import feature_cache
from albert.records.examples import FeatureSpec

if TYPE_CHECKING:
    from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")


@dataclasses.dataclass(frozen=True)
class FineTuningData:
    """The examples to train on, to evaluate with and to predict."""

    task: str  # by the name that `formats.known_tasks` has for it
    examples: Mapping[str, Sequence[Any]]  # of each split that is used: train, dev, test
    # In the order of their ids; empty for a regression, None where nothing is classified.
    labels: tuple[str, ...] | None = None
    # Metadata about the data that a run records with its flags.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def warn_of_labels(origin: str, labels: Iterable[str], known: Sequence[str]) -> None:
    """Warns if all labels of the training data are equal, or if a known label never occurs."""
    occurring = set(labels)
    if len(occurring) == 1:
        log.warning("%s: every label is %s: there is nothing to learn", origin, *occurring)
    elif absent := [label for label in known if label not in occurring]:
        log.warning("%s: no example has the label %s", origin, ", ".join(absent))


def digest(values: Any) -> str:
    """Returns a checksum of examples, by which their record file is found again."""
    return hashlib.sha256(repr(values).encode("utf-8", "replace")).hexdigest()


@dataclasses.dataclass(frozen=True)
class RecordKeeper:
    """Writes the record files of a run, each only once."""

    tokenizer: "FullTokenizer"
    max_seq_length: int
    directory: str  # of record files that are given no path

    def keep(
        self,
        name: str,
        rows: Iterable[Mapping[str, Any]],
        spec: FeatureSpec,
        depends_on: Mapping[str, Any],
        path: str | None = None,
    ) -> str:
        """Returns the record file of the rows: `path`, or a keyed one that begins with `name`.

        The file is written if it is absent. `depends_on` is what the rows depend on besides the
        tokenizer and the length.

        Raises:
          DataError: `path` exists and was made from something else.
        """
        info = {
            **depends_on, "tokenizer": self.tokenizer.sha256, "max_seq_length": self.max_seq_length
        }
        if path:
            return feature_cache.named_records(path, rows, spec, info)
        return feature_cache.cached_records(self.directory, name, rows, spec, info)
