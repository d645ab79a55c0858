"""What the training loop keeps from step to step: running averages, and its pace."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.training import steps
from albert.training.engine import Engine

log = logging.getLogger("albert")

# One call into the engine takes about this long at most, so that a signal is
# answered soon, however large --iterations_per_loop is.
SECONDS_PER_CALL = 1.0


class Averages:
    """Averages since the last line of metrics, of the steps whose update was not skipped.

    Steps are added one by one, in the same order on every run, so that sums are equal to the bit.
    """

    def __init__(
        self,
        names: Sequence[str],
        state: Mapping[str, Any] | None = None,
        has_loss_scale: bool = False,
    ):
        self._names = names
        self._has_loss_scale = has_loss_scale
        columns = steps.PAIRS + 2 * len(names)
        # Earlier versions added up skipped steps too, whose loss may be NaN.
        if state and (len(state["sums"]) != columns or not all(map(_is_finite, state["sums"]))):
            log.warning("the running averages are of an older version: starting them anew")
            state = None
        self._sums = list(state["sums"]) if state else [0.0] * columns
        self.steps = state["steps"] if state else 0

    def add(self, row: np.ndarray) -> None:
        self._last_rate = float(row[steps.RATE])
        if row[steps.BAD] or row[steps.OVERFLOW]:
            for column in (steps.BAD, steps.OVERFLOW, steps.TOKENS):
                self._sums[column] += float(row[column])
            return
        self._sums = [total + float(x) for total, x in zip(self._sums, row, strict=True)]
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {"sums": self._sums, "steps": self.steps}

    def flush(self) -> dict[str, float]:
        """Returns the averages, NaN where every step was skipped, and starts anew."""
        count = self.steps or math.nan
        values = {
            "loss": self._sums[steps.LOSS] / count,
            "gradient_norm": self._sums[steps.NORM] / count,
            "learning_rate": self._last_rate,
            "skipped_steps": self._sums[steps.BAD],
        }
        if self._has_loss_scale:  # these steps were skipped too, to lower the scale
            values["loss_scale_overflows"] = self._sums[steps.OVERFLOW]
        for i, name in enumerate(self._names):
            total, weight = self._sums[steps.PAIRS + 2 * i : steps.PAIRS + 2 * i + 2]
            # A task names its metrics for evaluations, but these are of training batches.
            name = re.sub(r"^eval_", "train_", name)
            values[name] = total / weight if weight else 0.0 * count
        self.tokens = self._sums[steps.TOKENS]
        self._sums, self.steps = [0.0] * len(self._sums), 0
        return values


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


class Pace:
    """How many steps one call into the engine makes, and whether to stop after it.

    All workers must do the same, or they would wait for each other for ever. So each
    tells what it wants (`control`), and all follow the sum of it (`update`).
    """

    def __init__(self, engine: Engine, most: int):
        self.count = 1
        self._most = most
        self._wanted = 1
        self._workers = engine.num_workers
        self._replicas = engine.num_replicas // self._workers

    def control(self, raised: int | None, is_chief: bool) -> list[float]:
        """Returns what this worker wants: [to stop, steps of the next call but one]."""
        return [float(raised is not None), float(self._wanted if is_chief else 0)]

    def update(self, count: int, seconds: float, agreed: np.ndarray, latch) -> bool:
        """Takes note of a call of `count` steps. Returns whether to stop now."""
        per_second = count / max(seconds, 1e-6)
        self._wanted = max(1, min(self._most, int(SECONDS_PER_CALL * per_second)))
        if self._workers == 1:
            self.count = self._wanted
            return latch.raised is not None
        self.count = max(1, round(agreed[1] / self._replicas))
        return agreed[0] > 0
