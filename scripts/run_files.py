"""Reads the metrics and results of runs, and draws pictures in one style."""

import json
import os
from typing import Any

from albert.errors import DataError
from albert.storage import files

Lines = list[dict[str, Any]]


def read_metrics(path: str) -> dict[str, Lines]:
    """Returns the lines of metrics.jsonl by kind ("train", "eval"), ordered by step, without nulls.

    Raises:
      DataError: no such file, no usable line, or a line that is not a metric.
    """
    files.require_file(path, "directory")
    by_kind: dict[str, Lines] = {"train": [], "eval": []}
    with open(path, encoding="utf-8", errors="replace") as stream:
        lines = stream.readlines()
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith("\n"):
            break  # the run is writing it, or was killed while writing it
        try:
            value = {name: x for name, x in json.loads(line).items() if x is not None}
            by_kind.setdefault(value["kind"], []).append(value)
            assert isinstance(value["step"], int)
        except (
            ValueError, TypeError, AttributeError, KeyError, AssertionError, RecursionError
        ) as error:
            raise DataError(f"{path}:{number}: not a line of metrics") from error
    if not any(by_kind.values()):
        raise DataError(f"{path}: no metrics yet; let run_pretraining finish first")
    return {kind: sorted(values, key=lambda v: v["step"]) for kind, values in by_kind.items()}


def read_results(directory: str) -> dict[str, float]:
    """Returns `eval_results.json` of a run's directory."""
    return files.read_json_object(os.path.join(directory, "eval_results.json"))


def panels_of(rows: int, columns: int, size: tuple[float, float], **options: Any):
    """Returns (figure, panels as an array [rows, columns]); `size` is in inches."""
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, dpi=120, squeeze=False, **options)


def publish(figure, path: str) -> None:
    """Writes a figure as a PNG, and closes it."""
    from matplotlib import pyplot

    # A $ in a label or a setting's name is a character, not the start of a formula.
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)
    figure.tight_layout()
    with files.atomic_write(path, "wb") as stream:
        figure.savefig(stream, format="png", metadata={"Software": None})
    pyplot.close(figure)


def dress(axis, title: str, pad: float = 6) -> None:
    """Gives a panel a title and a grid, and removes its frame."""
    axis.set_title(title, fontsize=11, loc="left", fontweight="bold", pad=pad)
    axis.grid(color="#e6e6e6", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
