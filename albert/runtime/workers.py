"""This machine's processor, worker processes that end with the one that started them, and signals."""

import atexit
import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any

from albert.errors import Preempted, UserError

STOPPING = (signal.SIGINT, signal.SIGTERM)


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Instructions, as named in /proc/cpuinfo, and the speed-up of a training step in bfloat16 over
# float32: measured with TensorFlow on two cores, see docs/evidence/performance.md.
_GAINS = {"amx_bf16": 2.0, "avx512_bf16": 1.7}


def bfloat16_gain(cpuinfo: str = "/proc/cpuinfo") -> float | None:
    """Returns the speed-up of training in bfloat16 on this machine; None if there is none."""
    try:
        with open(cpuinfo) as stream:
            words = {word for line in stream if line.startswith("flags") for word in line.split()}
    except OSError:
        return None
    return next((gain for name, gain in _GAINS.items() if name in words), None)


class Workers:
    """Runs functions of a module in `count` processes, or in this process if that is 1.

    Args:
      remedy: what to do if a process dies, for the message.
    """

    def __init__(self, count: int, remedy: str = "try a smaller --num_processes"):
        self.count, self._remedy = count, remedy
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            # TensorFlow's threads do not survive a fork. Spawning takes a few tenths of a second.
            context = multiprocessing.get_context("spawn")
            # Only this process can write to the pipe, so that its end closes the pipe, too.
            self._reader, self._writer = context.Pipe(duplex=False)
            self._pool = ProcessPoolExecutor(count, context, _end_with, (self._reader,))

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_) -> None:
        if self._pool is not None:
            self._writer.close()  # unfinished tasks are abandoned
            self._pool.shutdown(cancel_futures=True)
            self._reader.close()

    def map(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[Any]:
        """Yields function(*task) in the order of the tasks, which are taken as needed.

        Raises:
          UserError: a process died (most often for lack of memory).
        """
        if self._pool is None:
            for task in tasks:
                yield function(*task)
            return
        waiting: collections.deque = collections.deque()
        try:
            for task in tasks:
                with _no_main_module():
                    waiting.append(self._pool.submit(function, *task))
                # A few in reserve, since results are yielded in order; not many, since tasks hold text.
                if len(waiting) > self.count + max(2, self.count // 2):
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        except BrokenProcessPool as error:
            raise UserError(f"a worker process died, perhaps for lack of memory: {self._remedy}") from error

    def _result(self, future: Future) -> Any:
        # The pool's thread dies if there is no memory to start another; nothing would come, nor an error.
        while not wait([future], timeout=1).done:
            if not self._pool._executor_manager_thread.is_alive():
                raise BrokenProcessPool
        return future.result()


def in_turn(function: Callable[..., Iterable], count: int, *arguments: Any) -> Iterator[Any]:
    """Yields items of function(number, count, *arguments), which `count` processes iterate over, in turn.

    A process waits until its item is taken, and ends when this one or this iterator has ended.

    Raises:
      UserError: a process died; or what the function raises.
    """
    context, pipes = multiprocessing.get_context("spawn"), []
    for number in range(count):
        ours, theirs = context.Pipe(duplex=False)
        with _no_main_module():
            context.Process(
                target=_send, args=(theirs, function, number, count, *arguments), daemon=True
            ).start()
        theirs.close()
        pipes.append(ours)
        atexit.register(ours.close)  # before Python waits for its processes
    try:
        for pipe in itertools.cycle(pipes):
            item = pipe.recv()
            if isinstance(item, Exception):
                raise item
            yield item
    except EOFError as error:
        raise UserError("a process that reads records died, perhaps for lack of memory: try a smaller "
                        "--input_processes") from error
    finally:
        for pipe in pipes:
            pipe.close()


def _send(pipe: Connection, function: Callable[..., Iterable], *arguments: Any) -> None:
    """Sends the items of a function, and its error, as long as somebody receives them."""
    for number in STOPPING:  # a scheduler may send them to all processes, of which one saves its work
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        try:
            for item in function(*arguments):
                pipe.send(item)
        except UserError as error:
            pipe.send(error)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Spawns processes in the block that don't import the main module before anything else.

    With its libraries that takes seconds, in which they would not notice that this process has ended.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _end_with(pipe: Connection) -> None:
    """Ends this process when the other end of a pipe is closed; ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        pipe.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def on_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handles SIGINT and SIGTERM with a function in the block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def first_signal() -> Iterator[list[int]]:
    """Yields a list that gets the first SIGINT or SIGTERM in the block; a second one kills."""
    numbers: list[int] = []

    def note(number: int, _) -> None:
        numbers.append(number)
        for each in STOPPING:
            signal.signal(each, signal.SIG_DFL)

    with on_signals(note):
        yield numbers


@contextlib.contextmanager
def preemptible(message: str) -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into `Preempted`, so that the block can clean up."""
    def stop(number: int, _) -> None:
        for each in STOPPING:
            signal.signal(each, signal.SIG_IGN)
        raise Preempted(f"stopped by {signal.Signals(number).name}: {message}", number)

    with on_signals(stop):
        yield
