"""Reads the metrics and results of a run, and writes tables of them."""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from albert.errors import DataError
from albert.storage import files

Lines = list[dict[str, Any]]


def read_metrics(path: str) -> dict[str, Lines]:
    """Returns the lines of metrics.jsonl by kind ("train", "eval"), by step, without nulls.

    Raises:
      DataError: no such file, no usable line, or a line that is not a metric.
    """
    files.require_file(path, "directory")
    by_kind: dict[str, Lines] = {"train": [], "eval": []}
    with open(path, encoding="utf-8", errors="replace") as stream:
        lines = stream.readlines()
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith("\n"):
            break  # the run is writing it, or was killed while it did
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


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
