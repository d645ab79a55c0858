"""Fixtures shared by the tests."""

import os
import pathlib
import sys

import hypothesis
import pytest

from albert.cli import flags

# Before TensorFlow is imported: in this process it computes as in the commands' own.
flags.set_environment()

# The same draws on every run; no limit of time, which is that of the other tests too.
# To look further: pytest --hypothesis-profile=explore.
_HEALTHY = [hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow]
for _name, _same in (("same", True), ("explore", False)):
    hypothesis.settings.register_profile(
        _name, deadline=None, derandomize=_same, database=None, suppress_health_check=_HEALTHY
    )
hypothesis.settings.load_profile("same")

SHARED = pathlib.Path(__file__).resolve().parents[1].parent / "shared"


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of golden values and real data, or a skip that says so; under CI a failure."""
    if not SHARED.is_dir():
        reason = f"golden values not found: {SHARED} is absent"
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(f"{reason}. Under CI this is a failure: put it there", pytrace=False)
        pytest.skip(reason)
    return SHARED


def pytest_terminal_summary(terminalreporter, config):
    left = ["the slow tests"] if config.option.markexpr == "not slow" else []
    if skipped := len(terminalreporter.stats.get("skipped", ())):
        left.append(f"{skipped} skipped ones, whose reasons stand above")
    if left:
        how = "bash scripts/test.sh --all"
        terminalreporter.write_line(f"not run: {' and '.join(left)}. All of them: {how}")


@pytest.fixture(autouse=True)
def float32_afterwards():
    """Leaves no run's precision, which is Keras's for the whole process, to the next test."""
    yield
    if "keras" in sys.modules:
        sys.modules["keras"].config.set_dtype_policy("float32")
    if "tensorflow" in sys.modules:
        # Nor its seed: beside a global one of 0, TensorFlow takes no seeds that are computed.
        sys.modules["tensorflow"].random.set_seed(1)
