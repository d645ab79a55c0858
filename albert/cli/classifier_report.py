"""A report on a classifier of your own texts, with pictures.

Legend: N held-out rows, C labels.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

import numpy as np

from albert.storage import files
from albert.tasks import glue_metrics
from albert.tasks.choice_metrics import likeliest
from albert.training import curves, run_report

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
        return likeliest(self.logits)

    @property
    def confusion(self) -> np.ndarray:
        """How many rows of each label (first axis) are taken for each other one, [C, C]."""
        return glue_metrics.confusion_of(self.expected, self.found, len(self.labels))


def write(directory: str, rows: HeldOut, settings: Sequence[tuple[str, str]]) -> str:
    """Publishes report.md, confusion.png and curves.png; returns the report's path.

    Args:
      settings: (setting, its value and the reason), for a table.
    """
    confusion = rows.confusion
    _draw_confusion(os.path.join(directory, "confusion.png"), rows.labels, confusion)
    metrics = os.path.join(directory, "metrics.jsonl")
    has_curves = os.path.isfile(metrics)
    if has_curves:
        _draw_curves(os.path.join(directory, "curves.png"), run_report.read_metrics(metrics))
    parts = [
        _results(rows, confusion), _by_label(rows, confusion),
        "## Confusion\n\n![rows of each label, and what they were taken for](confusion.png)\n",
        _errors(rows),
        "## Training\n\n" + ("![curves](curves.png)\n\n" if has_curves else "")
        + run_report.table(("setting", "value"), settings),
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
        + run_report.table((f"on {count:,} held-out rows", ""), [
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
    return "## By label\n\n" + run_report.table(("label", *found, "rows"), lines)


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
    return "## Most confident errors\n\n" + run_report.table(
        ("text", "is", "taken for", "probability"), lines
    )


def _cell(text: str) -> str:
    short = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " ..."
    return short.replace("|", "\\|").replace("<", "&lt;")


def _draw_confusion(path: str, labels: Sequence[str], confusion: np.ndarray) -> None:
    size = min(2.5 + 0.5 * len(labels), 14.0)
    figure, [[axis]] = curves.panels_of(1, 1, (size + 1, size))
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(labels) <= 30:
        names = [name if len(name) <= 20 else name[:19] + "…" for name in labels]
        axis.set_xticks(range(len(labels)), names, rotation=45, ha="right")
        axis.set_yticks(range(len(labels)), names)
        for (i, j), count in np.ndenumerate(confusion):
            color = "white" if shares[i, j] > 0.5 else "black"
            axis.text(j, i, f"{count:,}", ha="center", va="center", color=color, fontsize=9)
    axis.set_xlabel("taken for")
    axis.set_ylabel("is")
    curves.publish(figure, path)


def _draw_curves(path: str, metrics: dict) -> None:
    figure, [panels] = curves.panels_of(1, 2, (9, 3.4))
    for axis, (title, of_training, of_held_out) in zip(panels, (
        ("Loss", "loss", "eval_loss"), ("Accuracy", None, "eval_accuracy"),
    ), strict=True):
        for kind, key, name in (("train", of_training, "training"),
                                ("eval", of_held_out, "held out")):
            points = [(line["step"], line[key]) for line in metrics[kind] if key in line]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        curves.dress(axis, title)
        axis.set_xlabel("step")
        if axis.get_legend_handles_labels()[1]:
            axis.legend(frameon=False, fontsize=9)
    curves.publish(figure, path)
