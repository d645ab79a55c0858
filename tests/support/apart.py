"""Other libraries, each in a process of its own: torch beside TensorFlow can end a process."""

import concurrent.futures
import contextlib
import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator

import pytest


def needs(*packages: str, extra: str) -> None:
    """Skips what follows where a package is absent; imports none of them."""
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    if absent:
        reason = f"{', '.join(absent)} not installed (extra: {extra})"
        pytest.skip(reason, allow_module_level=True)


@contextlib.contextmanager
def process() -> Iterator[Callable]:
    """Yields call(function, *arguments), which computes in one process that is not a fork.

    The function is one of a module that imports the other library inside of it.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result(300)
