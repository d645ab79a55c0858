"""The end of a benchmark that measures: starts the sides, lets them take turns, compares, reports."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert import files
from albert.errors import DataError, UserError

FOLDER = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(FOLDER))


@dataclasses.dataclass(frozen=True)
class Side:
    """One of those who take turns."""

    name: str
    program: str  # file in this folder
    spec: Mapping[str, Any]
    python: str = sys.executable
    threads: int = os.cpu_count() or 1


class _Process:
    def __init__(self, side: Side, folder: str):
        self.side = side
        self.outputs = os.path.join(folder, f"{side.name}.npz")
        spec = os.path.join(folder, f"{side.name}.json")
        files.write_json(spec, {**side.spec, "outputs": self.outputs, "threads": side.threads})
        environment = os.environ | {
            "PYTHONPATH": REPOSITORY, "TF_CPP_MIN_LOG_LEVEL": "3", "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        self.errors = os.path.join(folder, f"{side.name}.err")
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [side.python, os.path.join(FOLDER, side.program), spec], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )
        self.prepared = self._answer()["prepared"]

    def turn(self) -> dict[str, float]:
        self.process.stdin.write("turn\n")
        self.process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            with open(self.errors) as stream:
                last = stream.read().strip().splitlines()[-1:] or ["no message"]
            raise UserError(f"{self.side.name} ended: {last[0]} (all of it: {self.errors})")
        return json.loads(line)


def compare(
    sides: Sequence[Side], folder: str, *, rounds: int, tolerance: float, work: float = 1.0
) -> dict[str, Any]:
    """Returns each side's median and spread in seconds, and its ratio to the first one's rate.

    The sides compute the same outputs, to `tolerance` of their largest value;
    one that does not is refused. Then each does its work once a round.

    Args:
      work: how much a turn does, as tokens or examples; rates are given of it.

    Raises:
      UserError: a side ended; DataError: its outputs are others than the first one's.
    """
    started = [_Process(side, files.make_dirs(folder)) for side in sides]
    try:
        differences = _check_outputs(started, tolerance)
        turns: list[list[dict[str, float]]] = [[] for _ in started]
        for _ in range(rounds):
            for answers, one in zip(turns, started, strict=True):
                answers.append(one.turn())
    finally:
        for one in started:
            one.end()
    results: dict[str, Any] = {}
    for answers, one in zip(turns, started, strict=True):
        seconds = [answer["seconds"] for answer in answers]
        results[one.side.name] = {
            "median_seconds": statistics.median(seconds),
            "least_seconds": min(seconds),
            "most_seconds": max(seconds),
            "rate": work / statistics.median(seconds),
            "peak_bytes": max(answer["peak_bytes"] for answer in answers),
            "prepared_seconds": one.prepared,
            "largest_difference": differences[one.side.name],
        }
    first = results[sides[0].name]
    for result in results.values():
        result["ratio"] = first["median_seconds"] / result["median_seconds"]
    return results


def _check_outputs(started: Sequence[_Process], tolerance: float) -> dict[str, float]:
    """Returns each side's largest difference from the first, as a share of the largest value."""
    found = {}
    with np.load(started[0].outputs) as stored:
        expected = {name: stored[name] for name in stored.files}
    for one in started:
        with np.load(one.outputs) as stored:
            shares = []
            for name in sorted(set(stored.files) & set(expected)):
                largest = max(float(np.abs(expected[name]).max()), 1e-6)
                shares.append(float(np.abs(stored[name] - expected[name]).max()) / largest)
        if not shares or not max(shares) <= tolerance:
            raise DataError(
                f"{one.side.name} computes something else than {started[0].side.name}: "
                f"differs by {max(shares, default=float('nan')):.2g} of the largest value"
            )
        found[one.side.name] = max(shares)
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)
