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


class _Process:
    def __init__(self, side: Side, folder: str):
        self.side, self.prepared = side, None
        self.seconds: list[float] = []
        self.peak_bytes = 0
        path = os.path.join(folder, re.sub(r"\W+", "-", side.name).strip("-"))
        self.outputs, self.errors = path + ".npz", path + ".err"
        files.write_json(path + ".json", {**side.spec, "outputs": self.outputs, "threads": side.threads})
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [REPOSITORY, os.environ.get("PYTHONPATH")])),
            "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        }
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [side.python, os.path.join(FOLDER, side.program), path + ".json"], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )
        if side.spec.get("device") != "gpu":  # on a GPU, sides get ready together
            self.get_ready()

    def get_ready(self) -> None:
        """Waits until the side has done its work once; repeating the call has no effect."""
        if self.prepared is None:
            self.prepared = self._answer()["prepared"]

    def turn(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # in that case there is no answer either
            self.process.stdin.write("turn\n")
            self.process.stdin.flush()
        answer = self._answer()
        self.seconds.append(answer["seconds"])
        self.peak_bytes = max(self.peak_bytes, answer["peak_bytes"])

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
    sides: Sequence[Side], folder: str, *, rounds: int, tolerance: float, work: float = 1.0
) -> dict[str, Any]:
    """Returns each side's median and spread in seconds, and its speed relative to the first.

    A side is refused unless it computes the same outputs as the first, to `tolerance` of their
    largest value. Then each does its work once a round. `work` is the amount per turn, in tokens
    or examples; rates refer to it.

    Raises:
      UserError: a side ended; DataError: its outputs differ from the first side's.
    """
    started: list[_Process] = []
    try:
        for side in sides:
            started.append(_Process(side, files.make_dirs(folder)))
        for one in list(started):
            try:
                one.get_ready()
            except UserError as error:
                if one is started[0] or one.side.spec.get("device") != "gpu":
                    raise
                log.warning("left out: %s", error)  # a GPU is seldom available twice
                started.remove(one)
        differences = {one.side.name: _difference(one, started[0], tolerance) for one in started}
        for _ in range(rounds):
            for one in started:
                one.turn()
    finally:
        for one in started:
            one.end()
    first = statistics.median(started[0].seconds)
    return {
        one.side.name: {
            "median_seconds": (median := statistics.median(one.seconds)),
            "least_seconds": min(one.seconds), "most_seconds": max(one.seconds),
            "rate": work / median, "ratio": first / median, "peak_bytes": one.peak_bytes,
            "prepared_seconds": one.prepared, "largest_difference": differences[one.side.name],
        }
        for one in started
    }


def _difference(one: _Process, first: _Process, tolerance: float) -> float:
    """Returns a side's largest difference from the first, relative to the largest value."""
    largest = 0.0
    with np.load(one.outputs) as found, np.load(first.outputs) as expected:
        for name in set(found) & set(expected) or {"nothing to compare"}:
            value, wanted = found.get(name), expected.get(name)
            same_shape = value is not None and value.shape == wanted.shape
            share = (float(np.abs(value - wanted).max() / max(np.abs(wanted).max(), 1e-6))
                     if same_shape else float("inf"))
            if not share <= tolerance:
                raise DataError(f"{one.side.name} computes something else than {first.side.name}: "
                                f"differs by {share:.3g} of the largest value in {name}")
            largest = max(largest, share)
    return largest
