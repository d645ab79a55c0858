"""Errors, each with the exit code of a command that it ends.

A message is one line: the file (and its line or record), the value that is wrong, what to do.
`flags.run_command` prints it after `error:` and exits with the code of its class.
"""

import re
from collections.abc import Sequence

# Names of operations in TensorFlow's error messages.
_OPERATION = re.compile(r"\{\{[^{}]*\}\} | \[Op:\w+\]")


class UserError(Exception):
    """The user can fix it: bad input, bad flags, a full disk."""

    exit_code = 2


class FlagError(UserError):
    """A flag or an argument is missing, unknown, contradictory or out of range."""


class ConfigError(UserError):
    """The architecture (`albert_config.json`) is malformed or inconsistent."""


class DataError(UserError):
    """An input cannot be used: it is missing, empty, corrupt or in the wrong format."""


class CheckpointError(UserError):
    """A checkpoint cannot be read or written, or does not fit the model."""


class RunDirBusyError(UserError):
    """Another process uses the same output directory."""


class TrainingDivergedError(Exception):
    """Loss or gradients are no longer finite; the last good checkpoint is kept."""

    exit_code = 3


class WorkerLostError(Exception):
    """Another machine of the run died; restart all of them."""

    exit_code = 75  # EX_TEMPFAIL, by which schedulers know to retry


class Preempted(Exception):
    """A signal stopped the run, which has saved its state."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        # The shell's convention: 128 + signal, so SIGTERM gives 143.
        self.exit_code = 128 + signal_number


def first_line(error: BaseException) -> str:
    """Returns the first line of another library's error, without the names of operations."""
    text = _OPERATION.sub("", getattr(error, "message", None) or str(error)).strip()
    return (text.splitlines() or [type(error).__name__])[0][:300]


def some(items: Sequence[str], limit: int = 6) -> str:
    """Lists the first few items in one line, cut to 200 characters, and says how many more there are."""
    more = f"; and {len(items) - limit} more" if len(items) > limit else ""
    return "; ".join(item if len(item) <= 200 else f"{item[:200]}..." for item in items[:limit]) + more
