"""How far work is, and how long it will take: for people who wait."""

import logging
import sys
import time
from collections.abc import Callable

log = logging.getLogger("albert")


class Progress:
    """One line that is updated on a terminal; elsewhere a line now and then."""

    def __init__(self, what: str, unit: str, total: float | None):
        """`total` is None where it is not known: then the time that is left is not told."""
        self._what, self._unit, self._total = what, unit, total
        self._on_terminal = sys.stderr.isatty()
        self._started = self._shown = time.monotonic()

    def show(self, done: float | Callable[[], float]) -> None:
        """Says how far the work is, if it is time to; only then is a function called."""
        now = time.monotonic()
        if now - self._shown < (0.2 if self._on_terminal else 30):
            return
        self._shown, done = now, done() if callable(done) else done
        rate = done / (now - self._started)
        line = f"{self._what}: {done:,.1f} {self._unit}, {rate:,.1f}/s"
        if self._total is not None:
            left = (self._total - done) / rate if rate else 0
            line = (f"{self._what}: {done:,.1f} of {self._total:,.1f} {self._unit}, "
                    f"{rate:,.1f}/s, {left:,.0f} s left")
        if self._on_terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            log.info("%s", line)

    def end(self) -> None:
        """Clears the line."""
        if self._on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
