"""Other libraries, each in a separate process: torch and TensorFlow together can crash a process."""

import concurrent.futures
import contextlib
import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator

import pytest


def needs(*packages: str, extra: str) -> None:
    """Skips the test or module if a package is missing; imports none of them."""
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    if absent:
        reason = f"{', '.join(absent)} not installed (extra: {extra})"
        pytest.skip(reason, allow_module_level=True)


@contextlib.contextmanager
def process() -> Iterator[Callable]:
    """Yields call(function, *arguments), which computes in one process that is not a fork.

    The function must import the other library inside its body.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result(300)
