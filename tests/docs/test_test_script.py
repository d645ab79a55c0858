"""scripts/test.sh: what it installs, what it runs on all cores, and what it says of the rest."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import REPO, setup_arguments

PARALLEL = [f"--jobs={max(2, min(4, os.cpu_count()))}"]


@pytest.fixture
def copied(tmp_path):
    """A copy of the scripts, with an environment that says what it is asked for."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/test.sh", "scripts/environment.sh", "setup.py", "requirements.txt"):
        shutil.copy(REPO / name, tmp_path / name)
    for environment in (".venv", ".venv-beam"):
        python = tmp_path / environment / "bin/python"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\n[ "$1" = -m ] && printf "%s|" "$@" && echo\nexit 0\n')
        python.chmod(0o755)
    return tmp_path


def asked(copied, *arguments) -> tuple[str, list[list[str]]]:
    """Returns what was asked of pip and, each time that it was called, of pytest."""
    done = subprocess.run(
        ["bash", str(copied / "scripts/test.sh"), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # What pip prints goes to stderr.
    calls = [line.rstrip("|").split("|") for line in done.stdout.splitlines()]
    assert all(call[:2] == ["-m", "pytest"] for call in calls)
    return done.stderr, [call[2:] for call in calls]


@pytest.mark.parametrize("given", [
    [], ["tests/same_numbers/test_config.py"], ["-m", "slow or not slow"], ["-k", "not slow", "-x"],
])
def test_the_tests_run_on_all_cores_whatever_is_asked_of_them(given, copied):
    assert asked(copied, *given)[1] == [[*PARALLEL, *given]]


@pytest.mark.parametrize("given", [
    ["--jobs=1"], ["--jobs", "2"], ["--pdb", "tests"],
])
def test_who_says_how_many_processes_gets_these(given, copied):
    assert asked(copied, *given)[1] == [given]


def test_all_runs_the_slow_ones_with_every_optional_package_and_beam_apart(copied):
    said, [most, beam] = asked(copied, "--all", "-x")
    assert most == [*PARALLEL, "-m", "slow or not slow", "-x"]
    assert beam == ["-m", "slow or not slow", "-x", "--jobs=1", "-k", "beam_pipeline"]
    installed = [set(extras.split(",")) for extras in re.findall(r"\[([\w,-]+)\]", said)]
    # Of the engines' packages those that need no device.
    every = set(setup_arguments()["extras_require"]) - {"dev", "gpu", "jax", "jax-cuda"}
    every -= {"s3", "gcs", "azure", "hdfs"}  # remote-test and gcs-test bring two; of the others no test has a server
    of_beam = {"beam", "beam-dask"}
    assert installed == [every - of_beam, {"test", "remote-test", *of_beam}]
    assert re.findall(r"\[([\w,-]+)\]", asked(copied)[0]) == ["test"]


def test_a_failure_among_all_is_one_whichever_environment_it_was_in(copied):
    python = copied / ".venv/bin/python"
    for code, expected in ((1, 1), (5, 5), (0, 0)):
        python.write_text(f'#!/bin/sh\n[ "$2" = pytest ] && exit {code}\nexit 0\n')
        done = subprocess.run(["bash", copied / "scripts/test.sh", "--all"], capture_output=True)
        assert done.returncode == expected
    (copied / ".venv-beam/bin/python").write_text('#!/bin/sh\n[ "$2" = pytest ] && exit 1\nexit 0\n')
    done = subprocess.run(["bash", copied / "scripts/test.sh", "--all"], capture_output=True)
    assert done.returncode == 1


@pytest.mark.parametrize(("ci", "code", "said"), [
    ("", 0, "1 skipped"), ("true", 1, "Under CI this is a failure"),
])
def test_absent_golden_values_are_a_failure_under_ci(ci, code, said, tmp_path):
    tests = tmp_path / "repository/tests"
    tests.mkdir(parents=True)
    for name in ("conftest.py", "parallel.py"):
        shutil.copy(REPO / "tests" / name, tests)
    shutil.copy(REPO / "pytest.ini", tests.parent)
    (tests / "test_it.py").write_text("def test_it(shared):\n    assert shared\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], cwd=tests.parent,
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(REPO), "CI": ci},
    )
    assert done.returncode == code, done.stdout
    assert said in done.stdout and f"{tmp_path / 'shared'} is absent" in done.stdout
    assert "not run: the slow tests" in done.stdout and "test.sh --all" in done.stdout
