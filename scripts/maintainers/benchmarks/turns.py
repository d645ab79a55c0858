"""Measures the sides of a benchmark: starts them, runs them in turn, compares them."""

import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError, UserError
from albert.storage import files

log = logging.getLogger("albert")

FOLDER = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.abspath(os.path.join(FOLDER, *[os.pardir] * 3))


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the programs that take turns."""

    name: str
    program: str  # file in this folder
    spec: Mapping[str, Any]
    python: str = sys.executable
    threads: int = os.cpu_count() or 1


def outputs_path(folder: str, side: Side) -> str:
    """Returns the path where a side writes its outputs for the comparison."""
    # A list of files on a command line is separated by commas.
    return os.path.join(folder, re.sub(r"\W+", "-", side.name).strip("-") + ".npz")


class _Process:
    def __init__(self, side: Side, folder: str, amount: float):
        self.side, self.amount = side, amount  # of work per turn
        self.prepared: float | None = None
        self.answers: list[dict[str, Any]] = []
        self.outputs = outputs_path(folder, side)
        spec = self.outputs.removesuffix(".npz") + ".json"
        files.write_json(spec, {**side.spec, "outputs": self.outputs, "threads": side.threads})
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [REPOSITORY, os.environ.get("PYTHONPATH")])
            ),
            "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.errors = self.outputs.removesuffix(".npz") + ".err"
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [side.python, os.path.join(FOLDER, side.program), spec], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )
        if side.spec.get("device") != "gpu":  # on a GPU, sides get ready together
            self.get_ready()

    def get_ready(self) -> None:
        """Waits until the side has done its work once; repeating the call has no effect."""
        if self.prepared is None:
            self.prepared = self._answer()["prepared"]

    def turn(self) -> dict[str, float]:
        with contextlib.suppress(BrokenPipeError):  # in that case there is no answer either
            self.process.stdin.write("turn\n")
            self.process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            with open(self.errors) as stream:
                last = stream.read().strip().splitlines()[-1:] or ["no message"]
            if self.process.wait() == -signal.SIGKILL:
                last = ["it was killed; is there enough memory for all sides?"]
            raise UserError(f"{self.side.name} ended: {last[0]} (all of it: {self.errors})")
        return json.loads(line)


def compare(
    sides: Sequence[Side],
    folder: str,
    *,
    rounds: int,
    tolerance: float | Mapping[str, float] | None,
    work: float | Sequence[float] = 1.0,
    at_once: bool = True,
) -> dict[str, Any]:
    """Returns each side's median and spread in seconds, and its speed relative to the first.

    A side is refused unless it computes the same outputs as the first, to `tolerance` of their
    largest value. Then each does its work once a round. An output `statistics/NAME` is a mean
    of random draws with the standard error `chance/NAME`: it may differ by `_MOST_ERRORS`
    standard errors of the difference.

    Args:
      tolerance: for all outputs, or {an output's name: tolerance}; None where the sides do
        different work.
      work: amount of work per turn, in tokens or examples, or one per side; rates refer to it.
      at_once: if false, a side ends before the next one starts, and does its turns in a row:
        for sides that do not fit in memory together.

    Raises:
      UserError: a side ended; DataError: its outputs differ from the first side's.
    """
    amounts = list(work) if isinstance(work, Sequence) else [work] * len(sides)
    started: list[_Process] = []
    differences: dict[str, float] = {}
    try:
        for side, amount in zip(sides, amounts, strict=True):
            started.append(_Process(side, files.make_dirs(folder), amount))
            if not at_once:
                started[-1].get_ready()
                started[-1].answers += [started[-1].turn() for _ in range(rounds)]
                started[-1].end()
        for one in list(started):
            try:
                one.get_ready()
            except UserError as error:
                if one is started[0] or one.side.spec.get("device") != "gpu":
                    raise
                log.warning("left out: %s", error)  # a GPU is seldom at hand twice
                started.remove(one)
        if tolerance is not None:
            differences = _check_outputs(started, tolerance)
        for _ in range(rounds if at_once else 0):
            for one in started:
                one.answers.append(one.turn())
    finally:
        for one in started:
            one.end()
    results = {
        one.side.name: _summary(one.answers, one.amount) | {
            "prepared_seconds": one.prepared,
            "largest_difference": differences.get(one.side.name),
        }
        for one in started
    }
    first = results[sides[0].name]
    for result in results.values():
        result["ratio"] = result["rate"] / first["rate"]
    return results


def _summary(answers: Sequence[Mapping[str, Any]], work: float) -> dict[str, Any]:
    seconds = [answer["seconds"] for answer in answers]
    return {
        "median_seconds": statistics.median(seconds),
        "least_seconds": min(seconds),
        "most_seconds": max(seconds),
        "rate": work / statistics.median(seconds),
        "peak_bytes": max(answer["peak_bytes"] for answer in answers),
        "parts": {
            name: statistics.median(answer["parts"][name] for answer in answers)
            for name in answers[0]["parts"]
        },
    }


def _check_outputs(
    started: Sequence[_Process], tolerance: float | Mapping[str, float]
) -> dict[str, float]:
    """Returns each side's largest difference from the first, relative to the largest value."""
    found = {}
    expected = _stored(started[0])
    for one in started:
        outputs = _stored(one)
        names = sorted(name for name in set(outputs) & set(expected)
                       if not name.startswith("chance/"))
        shares = {name: _difference(outputs[name], expected[name]) for name in names}
        bad = [name for name, share in shares.items()
               if not share <= _most(name, outputs, expected, tolerance)]
        if bad or not shares:
            what = f" in {bad[0]}" if isinstance(tolerance, Mapping) and bad else ""
            raise DataError(
                f"{one.side.name} computes something else than {started[0].side.name}: differs "
                f"by {max((shares[name] for name in bad), default=float('nan')):.2g} of the "
                f"largest value{what}"
            )
        found[one.side.name] = max(shares.values())
    return found


_MOST_ERRORS = 5.0  # one normal draw in two million is further off


def _stored(one: _Process) -> dict[str, np.ndarray]:
    with np.load(one.outputs) as stored:
        return {name: stored[name] for name in stored.files}


def _most(
    name: str, outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray],
    tolerance: float | Mapping[str, float],
) -> float:
    """Returns how much an output may differ, in the measure of `_difference`."""
    chance = name.replace("statistics/", "chance/")
    if chance == name:
        return tolerance[name] if isinstance(tolerance, Mapping) else tolerance
    error = float(np.hypot(outputs[chance], expected[chance]))
    return _MOST_ERRORS * error / max(abs(float(expected[name])), 1e-6)


def _difference(value: np.ndarray, expected: np.ndarray) -> float:
    if value.shape != expected.shape:
        return float("inf")
    return float(np.abs(value - expected).max()) / max(float(np.abs(expected).max()), 1e-6)
