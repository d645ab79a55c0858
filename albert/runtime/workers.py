"""A pool of processes that ends with its owner, and whose results come in order."""

import collections
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from typing import Any

from albert.errors import Preempted, UserError


def available_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


class Workers:
    """Runs functions of a module in `count` processes; with one, in this process."""

    def __init__(self, count: int):
        self.count = count
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            # Not forked: the owner may have imported TensorFlow, whose threads don't survive a
            # fork. A fresh process costs a few tenths of a second.
            context = multiprocessing.get_context("spawn")
            self._is_over = context.Event()
            self._pool = ProcessPoolExecutor(
                count, context, _follow, (os.getpid(), self._is_over)
            )

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_) -> None:
        if self._pool is not None:
            self._is_over.set()  # tasks under way are given up
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[Any]:
        """Yields function(*task) in the order of the tasks, which are taken as needed.

        Raises:
          UserError: a process died (most often for want of memory).
        """
        if self._pool is None:
            for task in tasks:
                yield function(*task)
            return
        waiting: collections.deque = collections.deque()
        try:
            for task in tasks:
                waiting.append(self._pool.submit(function, *task))
                # Some in reserve, for results come in order; not many, for they
                # hold text.
                if len(waiting) > self.count + max(2, self.count // 2):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process died, perhaps for want of memory: try a smaller --num_processes"
            ) from error


def _follow(owner: int, is_over: Event) -> None:
    """Ends this process when its owner does or has no more tasks, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == owner and not is_over.wait(0.5):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def preemptible(message: str) -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into `Preempted`, so that clean-up happens."""
    def stop(number: int, _) -> None:
        for kind in STOPPING:
            signal.signal(kind, signal.SIG_IGN)
        raise Preempted(f"stopped by {signal.Signals(number).name}: {message}", number)

    with on_signals(stop):
        yield


STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def on_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Lets a function handle SIGINT and SIGTERM, which only the main thread can; others do not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.signal(kind, handler) for kind in STOPPING}
    try:
        yield
    finally:
        for kind, earlier in before.items():
            signal.signal(kind, earlier)
