"""A report on a classifier of your own texts.

Legend: N held-out rows, C labels.
"""

import math
import os
from collections.abc import Sequence

import numpy as np

from albert.formats.model_card import table
from albert.storage import files
from albert.tasks import glue_metrics

_MAX_ERRORS = 10
_MAX_TEXT = 200  # characters that are shown
_USAGE = """## Use it

    echo 'a new text' | python -m albert.predict --model={directory}

From Python:

    import albert

    session = albert.open_session({directory!r})
    print(session.classify('a new text'))
"""


def write(
    directory: str, texts: Sequence[str], labels: Sequence[str], expected: np.ndarray,
    logits: np.ndarray, probabilities: np.ndarray, settings: Sequence[tuple[str, str]],
) -> str:
    """Publishes report.md and returns its path.

    Args:
      texts: N; the two of a pair as one.
      labels: C, in the order of their ids.
      expected: ids of the labels, [N].
      logits, probabilities: [N, C].
      settings: (setting, its value and the reason), for a table.
    """
    predicted = np.argmax(logits, axis=-1)
    confusion = glue_metrics.confusion_of(expected, predicted, len(labels))  # [C, C]
    accuracy = np.trace(confusion) / len(expected)
    error = math.sqrt(max(accuracy * (1 - accuracy), 0.0) / len(expected))
    cells = [_cell(label) for label in labels]
    by_label = glue_metrics.by_label(confusion)
    sure = probabilities.max(-1) * (predicted != expected)
    surest = np.argsort(-sure, kind="stable")[:_MAX_ERRORS]
    parts = [
        f"# A classifier of {len(labels)} labels\n",
        table((f"on {len(expected):,} held-out rows", ""), [
            ("accuracy", f"{accuracy:.3f} ± {error:.3f} (standard error)"),
            ("macro F1", f"{glue_metrics.macro_f1(confusion):.3f}"),
            ("always the commonest label", f"{confusion.sum(1).max() / len(expected):.3f}"),
        ]),
        "## By label\n",
        table(("label", *by_label, "rows"), [
            (label, *(f"{values[i]:.3f}" for values in by_label.values()),
             f"{confusion[i].sum():,}")
            for i, label in enumerate(cells)
        ]),
        "## Confusion\n",
        table(("is \\ taken for", *cells), [
            (f"**{label}**", *counts) for label, counts in zip(cells, confusion, strict=True)
        ]),
        "## Most confident errors\n",
        table(("text", "is", "taken for", "probability"), [
            (_cell(texts[i]), cells[expected[i]], cells[predicted[i]], f"{sure[i]:.3f}")
            for i in surest.tolist() if sure[i]
        ]),
        "## Training\n",
        table(("setting", "value"), settings),
        _USAGE.format(directory=directory),
    ]
    path = os.path.join(directory, "report.md")
    with files.atomic_write(path) as stream:
        stream.write("\n".join(parts))
    return path


def _cell(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."
    return short.replace("|", "\\|").replace("<", "&lt;")
