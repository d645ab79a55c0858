"""Blocks of remote record files, fetched ahead of the step into a bounded folder.

Threads fetch the blocks of a group while those of the group before are learned from. Each becomes
a small file. They go when the group has been read, unless all records fit `limit` bytes.
"""

import atexit
import contextlib
import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from albert.errors import FlagError
from albert.storage import mirrors, places, remote_files

_THREADS = 10  # as many connections as S3's library keeps open
Block = tuple[str, int, int]  # path of the stand-in, first byte, bytes


def cache_bytes() -> int:
    """Returns how many bytes of records are kept: $ALBERT_RECORDS_GB, by default 16.

    Raises:
      FlagError: it is no number.
    """
    text = os.environ.get("ALBERT_RECORDS_GB", "16")
    try:
        return int(float(text) * 1e9)
    except (ValueError, OverflowError) as error:
        raise FlagError(f"ALBERT_RECORDS_GB={text}: give a number of gigabytes") from error


class BlockCache:
    """Fetches blocks of files that are stand-ins; all calls may come from any thread."""

    def __init__(self, total_bytes: int):
        self._keeps_all = total_bytes <= cache_bytes()
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(mirrors.own_folder())
        atexit.register(self.close)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="records")
        self._lock = threading.Lock()
        self._fetched: dict[Block, Future] = {}
        self._numbers = itertools.count()

    def begin(self, blocks: Sequence[Block]) -> None:
        """Has blocks fetched by threads."""
        with self._lock:
            for block in blocks:
                if block not in self._fetched:
                    self._fetched[block] = self._pool.submit(self._fetch, block)

    def paths(self, blocks: Sequence[Block]) -> list[str]:
        """Returns the files that hold some blocks, and nothing else, once they are there.

        All others may go then.

        Raises:
          UserError: one cannot be fetched.
        """
        self.begin(blocks)
        with self._lock:
            waiting = [self._fetched[block] for block in blocks]
        found = [one.result() for one in waiting]
        self._drop(set(blocks))
        return found

    def fetched(self) -> list[tuple[str, str]]:
        """Returns (path of the stand-in, file of the block) of the blocks that are here."""
        with self._lock:
            done = [(block[0], one) for block, one in self._fetched.items() if one.done()]
        return [(path, one.result()) for path, one in done if not one.exception()]

    def _drop(self, kept: set[Block]) -> None:
        if self._keeps_all:
            return
        with self._lock:
            gone = [block for block in self._fetched if block not in kept]
            ended = [self._fetched.pop(block) for block in gone]
        for one in ended:
            if not one.cancel() and one.exception() is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(one.result())

    def _fetch(self, block: Block) -> str:
        path, start, size = block
        content = remote_files.read(places.as_given(path), start, start + size)
        name = os.path.join(self._folder, f"block-{next(self._numbers)}")
        with open(name, "wb") as stream:
            stream.write(content)
        return name

    def close(self) -> None:
        """Ends the threads and removes the files."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._stack.close()
