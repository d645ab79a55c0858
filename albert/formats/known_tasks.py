"""Labels and kind of model for each task that a run can be trained for. No TensorFlow."""

from collections.abc import Mapping
from typing import Any

from albert.errors import FlagError
from albert.formats.model_classes import CLASS_OF_RUN
from albert.formats.model_metadata import REGRESSION, SINGLE_LABEL

_BINARY = ("0", "1")
_INFERENCE = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
# Labels of GLUE's tasks in the order of their ids; a regression has none.
GLUE_LABELS: dict[str, tuple[str, ...]] = {
    "ax": _INFERENCE, "cola": _BINARY, "mismnli": _INFERENCE, "mnli": _INFERENCE,
    "mrpc": _BINARY, "qnli": _ENTAILMENT, "qqp": _BINARY, "rte": _ENTAILMENT,
    "snli": _INFERENCE, "sst-2": _BINARY, "sts-b": (), "wnli": _BINARY,
}
GLUE_OF_ONE_TEXT = ("cola", "sst-2")  # the others have pairs
TSV, WORDS, RACE = "tsv", "token_classification", "race"


def split_labels(text: str, of_words: bool = False) -> tuple[str, ...]:
    """Returns the labels of a --label_list: separated by commas, those of words also by blanks.

    Between blanks a comma that stands alone is a label of words, as in the Penn Treebank.
    """
    parts = text.split()
    if of_words and len(parts) > 1 and not any("," in part for part in parts if part != ","):
        return tuple(parts)
    return tuple(part.strip() for part in text.split(","))


def parse_labels(text: str, of_words: bool = False) -> tuple[str, ...]:
    """Returns the labels of a --label_list, see `split_labels`.

    Raises:
      FlagError: fewer than two, or one twice.
    """
    labels = split_labels(text, of_words)
    if len(labels) < 2 or "" in labels or len(set(labels)) < len(labels):
        raise FlagError(f"--label_list={text} is not two or more different labels")
    return labels


def metadata_of_task(task: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns architecture, label_names, problem_type and num_texts, as far as they follow.

    `flags` are those of the training.
    """
    architecture = CLASS_OF_RUN.get(TSV if task in GLUE_LABELS else task)
    metadata = {"architecture": architecture, "label_names": None}
    if flags.get("labels"):
        metadata["label_names"] = tuple(flags["labels"])
    elif listed := flags.get("label_list"):
        # Runs before version 0.3 recorded labels of words with blanks between them.
        metadata["label_names"] = tuple(listed.split()) if task == WORDS else split_labels(listed)
    if task == TSV:
        is_number, is_pair = flags.get("regression"), bool(flags.get("text_pair_column"))
    elif task in GLUE_LABELS:
        metadata["label_names"] = GLUE_LABELS[task] or None
        is_number, is_pair = not GLUE_LABELS[task], task not in GLUE_OF_ONE_TEXT
    else:
        return metadata
    problem_type = REGRESSION if is_number else SINGLE_LABEL
    return metadata | {"problem_type": problem_type, "num_texts": 1 + is_pair}
