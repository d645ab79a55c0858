"""Ends a run when its numbers diverge."""

import collections
from collections.abc import Mapping
from typing import Any

from albert.errors import TrainingDivergedError


class DivergenceCheck:
    """Counts bad steps, whose updates are skipped, and ends the run when there are too many.

    Too many are more than `MAX_CONSECUTIVE` in a row, or more than `MAX_SHARE` of the last
    `WINDOW` steps.
    """

    MAX_CONSECUTIVE = 10
    WINDOW = 1000
    MAX_SHARE = 0.01

    def __init__(self):
        self.skipped = 0
        self.consecutive = 0  # bad steps up to the last one
        self._recent: collections.deque[bool] = collections.deque(maxlen=self.WINDOW)

    def state(self) -> dict[str, int | list[int]]:
        """Returns what `restore` needs, as JSON values."""
        bad = [i for i, is_bad in enumerate(self._recent) if is_bad]
        return {"recent": len(self._recent), "bad": bad, "consecutive": self.consecutive}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues to count from another process's `state`; an empty one starts from zero."""
        bad = set(state.get("bad", ()))
        self._recent.extend(i in bad for i in range(state.get("recent", 0)))
        self.consecutive = state.get("consecutive", 0)

    def check(self, step: int, bad: bool, loss: float, gradient_norm: float) -> None:
        """Takes note of one step, `bad` if its loss or gradient was not finite.

        Raises:
          TrainingDivergedError: too many bad steps.
        """
        self._recent.append(bad)
        self.consecutive = self.consecutive + 1 if bad else 0
        if not bad:
            return
        self.skipped += 1
        share = sum(self._recent) / self.WINDOW
        if self.consecutive > self.MAX_CONSECUTIVE or share > self.MAX_SHARE:
            raise TrainingDivergedError(
                f"training diverged at step {step}: loss {loss}, gradient norm {gradient_norm}; "
                f"{self.consecutive} bad steps in a row, {sum(self._recent)} of the last "
                f"{len(self._recent)}. A lower --learning_rate or a longer warm-up may help"
            )
