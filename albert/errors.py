"""The ways in which a command can end badly, each with its exit code.

A message is one line that names the file (and the line or record), the value
received and what to do about it. `flags.run_command` prints it after
`error: ` and exits with the class's code; nothing else in the toolkit decides
exit codes.
"""

import re
from collections.abc import Sequence

# Names of TensorFlow's operations, in the messages of its errors.
_OPERATION = re.compile(r"\{\{[^{}]*\}\} | \[Op:\w+\]")


class UserError(Exception):
    """An error that the user can fix: bad input, bad flags, a full disk."""

    exit_code = 2


class FlagError(UserError):
    """A flag is missing, unknown, contradictory or has an unusable value."""


class ConfigError(UserError):
    """The architecture (`albert_config.json`) is malformed or inconsistent."""


class DataError(UserError):
    """An input file cannot be used: missing, empty, corrupt or of another shape."""


class CheckpointError(UserError):
    """A checkpoint cannot be read, written or matched to the model."""


class RunDirBusyError(UserError):
    """Another process is working in the same output directory."""


class TrainingDivergedError(Exception):
    """Loss or gradients stayed non-finite; the last good checkpoint is kept."""

    exit_code = 3


class WorkerLostError(Exception):
    """Another machine of the run died; every one must be started again."""

    exit_code = 75  # EX_TEMPFAIL: try again


class Preempted(Exception):
    """A signal asked the run to stop; everything was saved first."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        # The shell's convention: 128 + signal, so SIGTERM gives 143.
        self.exit_code = 128 + signal_number


def first_line(error: BaseException) -> str:
    """Returns the first line of another library's error, without the names of operations."""
    text = _OPERATION.sub("", getattr(error, "message", None) or str(error)).strip()
    return (text.splitlines() or [type(error).__name__])[0][:300]


def some(items: Sequence[str], most: int = 6) -> str:
    """Returns the first few items in one line, and how many more there are."""
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
