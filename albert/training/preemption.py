"""Ends a run in order at a signal."""

import signal

from albert.runtime import workers


class PreemptionSignal:
    """Remembers a SIGTERM or SIGINT until the loop asks for it. A second one kills at once.

    A context manager: outside of it, the signals have their usual meaning.
    """

    def __init__(self):
        self.raised: int | None = None  # the signal's number
        self._handling = workers.on_signals(self._note)

    def __enter__(self) -> "PreemptionSignal":
        self._handling.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self._handling.__exit__(*exception)

    def _note(self, number, frame) -> None:
        self.raised = number
        for each in workers.STOPPING:
            signal.signal(each, signal.SIG_DFL)
