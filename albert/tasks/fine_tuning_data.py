"""Examples for fine-tuning, and their record files. No TensorFlow."""

import collections
import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert.errors import some
from albert.records.record_files import RecordsInMemory

if TYPE_CHECKING:
    from albert.tasks.task import Task
    from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

_LOCATIONS = ("guid", "qas_id", "place", "line")  # fields of examples that are no content
_NOT_TEXTS = (*_LOCATIONS, "label", "labels", "answers", "start")


@dataclasses.dataclass(frozen=True)
class FineTuningData:
    """Examples to train on, to evaluate on and to predict."""

    task: str  # its name
    # Of each split in use (train, dev, test), as instances of a data class.
    examples: Mapping[str, Sequence[Any]]
    # In the order of their ids; empty for a regression, None without classification.
    labels: tuple[str, ...] | None = None
    # Properties of the data that a run records with its flags.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The training examples, also if nothing is trained, where their file is known; and whether the
    # dev examples are the rest of that file.
    trained_on: Sequence[Any] = ()
    is_split: bool = False

    @property
    def has_several(self) -> bool:
        """Whether a text may have several labels."""
        return "label_threshold" in self.settings


def digest_of(examples: Sequence[Any]) -> str:
    """Returns a digest of examples, in their order, without their locations in files."""
    content = hashlib.sha256()
    for one in examples:
        content.update(_content(one, _LOCATIONS).encode("utf-8", "replace"))
    return content.hexdigest()


def _content(example: Any, without: Sequence[str]) -> str:
    return repr({name: value for name, value in vars(example).items() if name not in without})


def warn_of_copies(examples: Mapping[str, Sequence[Any]]) -> None:
    """Warns of examples to evaluate on whose texts are trained on, whatever their answers are."""
    trained = {hash(_content(one, _NOT_TEXTS)) for one in examples["train"]}
    if copies := sum(hash(_content(one, _NOT_TEXTS)) in trained for one in examples.get("dev", ())):
        log.warning("%s of %s examples to evaluate on are training examples too: their scores do not "
                    "show how well new texts are answered", f"{copies:,}", f"{len(examples['dev']):,}")


def warn_of_labels(
    origin: str, labels: Iterable[Any], known: Sequence[str], held_out: Iterable[Any] = ()
) -> None:
    """Warns if the training data have only one label, or lack a known one, or have it only once.

    Args:
      held_out: labels of rows of the same file.
    """
    counts, held_out = collections.Counter(_each(labels)), {*_each(held_out)}
    if len(counts) == 1:
        log.warning("%s: every label is %s: there is nothing to learn", origin, *counts)
    for said, rare in (
        ("every example of the label is held out", [x for x in known if not counts[x] and x in held_out]),
        ("no training example has the label", [x for x in known if not counts[x] and x not in held_out]),
        ("only one training example has the label (misspelt?)", [x for x in known if counts[x] == 1]),
    ):
        if len(counts) > 1 and rare:
            log.warning("%s: %s: %s", origin, said, some(rare))


def _each(labels: Iterable[Any]) -> Iterator[Any]:
    """Yields every label, also of texts that have several."""
    for label in labels:
        yield from label if isinstance(label, tuple) else (label,)


def make_records(
    task: "Task", split: str, examples: Sequence[Any], tokenizer: "FullTokenizer"
) -> RecordsInMemory:
    """Returns the records of a split's examples."""
    spec = (task if split == "train" else task.for_evaluation()).feature_spec()
    return RecordsInMemory(task.rows(examples, tokenizer, split), spec, f"{split} examples")
