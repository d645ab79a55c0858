"""Progress of long work, with rate and remaining time."""

import logging
import sys
import time

log = logging.getLogger("albert")


def duration(seconds: float) -> str:
    """Returns for example `1h02m`, `3m05s` or `12s`."""
    seconds = int(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 60}m{seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"


class Progress:
    """A line that is updated on a terminal; elsewhere a log line every 30 seconds."""

    def __init__(self, label: str, total: float | None, unit: str):
        """`total` is None if it is unknown; then the remaining time is not shown."""
        self._label, self._total, self._unit = label, total, unit
        self._on_terminal = sys.stderr.isatty()
        self._shown = time.monotonic()
        self._first: tuple[float, float] | None = None  # time, and what was done by then

    def update(self, done: float, detail: str = "") -> None:
        """Shows the progress, if enough time has passed since the last time."""
        now = time.monotonic()
        self._first = self._first or (now, done)  # what comes before, such as compiling, isn't repeated
        if done == self._first[1] or now - self._shown < (0.2 if self._on_terminal else 30):
            return
        self._shown = now
        rate = (done - self._first[1]) / max(now - self._first[0], 1e-9)
        text = f"{self._label} {_number(done)}"
        if self._total is not None:
            left = duration((self._total - done) / rate) if rate > 0 else "?"
            detail = f", {left} left{detail}"
            text += f"/{_number(self._total)}"
        text += f" {self._unit}, {rate:,.1f} {self._unit}/s{detail}"
        if self._on_terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            log.info("%s", text)

    def clear(self) -> None:
        """Clears the line on the terminal."""
        if self._on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
