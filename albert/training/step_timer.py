"""How many steps one call into the engine makes."""

import numpy as np

from albert.training.engine import Engine

# One call into the engine takes about this long at most, so that a signal is
# answered soon, however large --iterations_per_loop is.
SECONDS_PER_CALL = 1.0


class StepTimer:
    """How many steps one call into the engine makes, and whether to stop after it.

    All workers must do the same, or they would wait for each other forever. So each
    says how many it wants (`control`), and all follow the sum (`update`).
    """

    def __init__(self, engine: Engine, max_steps: int):
        self.count = 1
        self._max_steps = max_steps
        self._wanted = 1
        self._workers = engine.num_workers
        self._replicas = engine.num_replicas // self._workers

    def control(self, raised: int | None, is_chief: bool) -> list[float]:
        """Returns what this worker wants: [to stop, steps of the next call but one]."""
        return [float(raised is not None), float(self._wanted if is_chief else 0)]

    def update(self, count: int, seconds: float, agreed: np.ndarray, latch) -> bool:
        """Takes note of a call of `count` steps. Returns whether to stop now."""
        per_second = count / max(seconds, 1e-6)
        self._wanted = max(1, min(self._max_steps, int(SECONDS_PER_CALL * per_second)))
        if self._workers == 1:
            self.count = self._wanted
            return latch.raised is not None
        self.count = max(1, round(agreed[1] / self._replicas))
        return agreed[0] > 0
