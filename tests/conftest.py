"""Fixtures shared by the tests."""

import functools
import gc
import lzma
import os
import pathlib
import sys
from collections.abc import Callable

import hypothesis
import pytest

from albert import engines

# Before TensorFlow is imported, so that it computes here as in the commands' processes.
engines.set_environment()

pytest_plugins = ["parallel", "shared_runs"]

# The same examples on every run; no deadline, since other tests run at the same time.
# To explore further: pytest --hypothesis-profile=explore.
_HEALTHY = [hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow]
for _name, _same in (("same", True), ("explore", False)):
    hypothesis.settings.register_profile(
        _name, deadline=None, derandomize=_same, database=None, suppress_health_check=_HEALTHY
    )
hypothesis.settings.load_profile("same")

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
SHARED = pathlib.Path(__file__).resolve().parents[1].parent / "shared"


def require_shared() -> pathlib.Path:
    if not SHARED.is_dir():
        reason = f"golden values not found: {SHARED} is absent"
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(f"{reason}. Under CI this is a failure: put it there", pytrace=False)
        pytest.skip(reason)
    return SHARED


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of files that cannot be in the repository; skips the test if it is missing.

    In CI the test fails instead.
    """
    return require_shared()


@pytest.fixture(scope="session")
def golden_path(tmp_path_factory) -> Callable[[str], pathlib.Path]:
    """Function that maps the name of a golden file or folder to its path.

    The path is in tests/golden, decompressed, or else in the folder of the `shared` fixture.
    """
    unpacked = tmp_path_factory.mktemp("golden")

    @functools.cache
    def unpack(top: str) -> None:
        for source in filter(pathlib.Path.is_file, GOLDEN.rglob("*")):
            target = unpacked / source.relative_to(GOLDEN)
            if target.relative_to(unpacked).parts[0] in (top, f"{top}.xz"):
                target.parent.mkdir(parents=True, exist_ok=True)
                content = source.read_bytes()
                if target.suffix == ".xz":
                    target, content = target.with_suffix(""), lzma.decompress(content)
                target.write_bytes(content)

    def find(name: str) -> pathlib.Path:
        unpack(name.partition("/")[0])
        ours = unpacked / name
        return ours if ours.exists() else require_shared() / "golden/open" / name

    return find


def pytest_collection_finish():
    # Imported modules stay. Keras collects garbage whenever a layer loses a weight, which would
    # traverse all of them, and a fork would copy their pages.
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter, config):
    left = ["the slow tests"] if config.option.markexpr == "not slow" else []
    if skipped := len(terminalreporter.stats.get("skipped", ())):
        left.append(f"{skipped} skipped ones, whose reasons stand above")
    if left:
        how = "bash scripts/test.sh --all"
        terminalreporter.write_line(f"not run: {' and '.join(left)}. All of them: {how}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    # Tests that do not need TensorFlow do not import it.
    if "tensorflow" in sys.modules:
        import helpers

        helpers.use_plain_graphs()


@pytest.fixture(autouse=True)
def float32_afterwards():
    """Resets the precision, which Keras keeps per process, so that it does not reach the next test."""
    yield
    if "keras" in sys.modules:
        sys.modules["keras"].config.set_dtype_policy("float32")
    if "tensorflow" in sys.modules:
        # The seed too: with a global seed of 0, TensorFlow accepts no computed op seeds.
        sys.modules["tensorflow"].random.set_seed(1)
