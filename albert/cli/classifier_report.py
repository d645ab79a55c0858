"""A report on a classifier of your own texts.

Legend: N held-out rows, C labels.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

import numpy as np

from albert.formats.model_card import table
from albert.storage import files
from albert.tasks import glue_metrics

_MOST_ERRORS = 10
_LONGEST_TEXT = 200  # characters that are shown


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The held-out rows, and what the model says of them."""

    texts: Sequence[str]  # N; the two of a pair as one
    labels: Sequence[str]  # C, in the order of their ids
    expected: np.ndarray  # [N], ids
    logits: np.ndarray  # [N, C]
    probabilities: np.ndarray  # [N, C]

    @property
    def found(self) -> np.ndarray:
        """The label of the greatest logit of each row, [N]."""
        return np.argmax(self.logits, axis=-1)

    @property
    def confusion(self) -> np.ndarray:
        """How many rows of each label (first axis) are taken for each other one, [C, C]."""
        return glue_metrics.confusion_of(self.expected, self.found, len(self.labels))


def write(directory: str, rows: HeldOut, settings: Sequence[tuple[str, str]]) -> str:
    """Publishes report.md; returns its path.

    Args:
      settings: (setting, its value and the reason), for a table.
    """
    confusion = rows.confusion
    parts = [
        _results(rows, confusion), _by_label(rows, confusion),
        _confusion(rows, confusion), _errors(rows),
        "## Training\n\n" + table(("setting", "value"), settings),
        "## Use it\n\n"
        f"    echo 'a new text' | python -m albert.predict --model={directory}\n\n"
        "From Python:\n\n"
        "    import albert\n\n"
        f"    session = albert.open_session({directory!r})\n"
        "    print(session.classify('a new text'))\n",
    ]
    path = os.path.join(directory, "report.md")
    with files.atomic_write(path) as stream:
        stream.write("\n".join(filter(None, parts)))
    return path


def _results(rows: HeldOut, confusion: np.ndarray) -> str:
    count = int(confusion.sum())
    accuracy = np.trace(confusion) / count
    error = math.sqrt(max(accuracy * (1 - accuracy), 0.0) / count)
    majority = confusion.sum(1).max() / count
    return (
        f"# A classifier of {len(rows.labels)} labels\n\n"
        + table((f"on {count:,} held-out rows", ""), [
            ("accuracy", f"{accuracy:.3f} ± {error:.3f} (standard error)"),
            ("macro F1", f"{glue_metrics.macro_f1(confusion):.3f}"),
            ("always the commonest label", f"{majority:.3f}"),
        ])
    )


def _by_label(rows: HeldOut, confusion: np.ndarray) -> str:
    found = glue_metrics.by_label(confusion)
    lines = [
        (_cell(label), *(f"{found[name][i]:.3f}" for name in found), f"{confusion[i].sum():,}")
        for i, label in enumerate(rows.labels)
    ]
    return "## By label\n\n" + table(("label", *found, "rows"), lines)


def _confusion(rows: HeldOut, confusion: np.ndarray) -> str:
    labels = [_cell(label) for label in rows.labels]
    lines = [(f"**{label}**", *counts) for label, counts in zip(labels, confusion, strict=True)]
    return "## Confusion\n\n" + table(("is \\ taken for", *labels), lines)


def _errors(rows: HeldOut) -> str:
    found = rows.found
    wrong = np.flatnonzero(found != rows.expected)
    if not len(wrong):
        return "## Errors\n\nNone.\n"
    sure = rows.probabilities[wrong, found[wrong]]
    lines = [
        (_cell(rows.texts[i]), _cell(rows.labels[rows.expected[i]]), _cell(rows.labels[found[i]]),
         f"{rows.probabilities[i, found[i]]:.3f}")
        for i in wrong[np.argsort(-sure, kind="stable")][:_MOST_ERRORS].tolist()
    ]
    return "## Most confident errors\n\n" + table(
        ("text", "is", "taken for", "probability"), lines
    )


def _cell(text: str) -> str:
    short = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " ..."
    return short.replace("|", "\\|").replace("<", "&lt;")
