"""Tasks of runs, and their labels. No TensorFlow."""

import csv

from albert.errors import FlagError

_BINARY = ("0", "1")
_INFERENCE = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
# Labels of GLUE's tasks in the order of their ids; a regression has none.
GLUE_LABELS: dict[str, tuple[str, ...]] = {
    "ax": _INFERENCE, "cola": _BINARY, "mismnli": _INFERENCE, "mnli": _INFERENCE,
    "mrpc": _BINARY, "qnli": _ENTAILMENT, "qqp": _BINARY, "rte": _ENTAILMENT,
    "sst-2": _BINARY, "sts-b": (), "wnli": _BINARY,
}
GLUE_OF_ONE_TEXT = ("cola", "sst-2")  # the others have pairs
TSV, WORDS, RACE = "tsv", "token_classification", "race"


def split_labels(text: str, of_words: bool = False) -> tuple[str, ...]:
    """Returns the labels of a --label_list: separated by commas or, for labels of words, by blanks.

    A label that contains a comma is quoted. A lone comma between blanks is a label of words, as in
    the Penn Treebank.
    """
    parts = text.split()
    if of_words and len(parts) > 1 and not any("," in part for part in parts if part != ","):
        return tuple(parts)
    listed = next(csv.reader([text], skipinitialspace=True), []) if '"' in text else text.split(",")
    return tuple(part.strip() for part in listed)


def parse_labels(text: str, of_words: bool = False) -> tuple[str, ...]:
    """Returns the labels of a --label_list, see `split_labels`.

    Raises:
      FlagError: fewer than two, or one twice.
    """
    labels = split_labels(text, of_words)
    if len(labels) < 2 or "" in labels or len(set(labels)) < len(labels):
        raise FlagError(f"--label_list={text} is not two or more different labels")
    return labels
