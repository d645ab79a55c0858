"""scripts/test.sh and its foundations: concurrent test modules, and processes that are forks."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import conftest
import forked
import pytest
from helpers import REPO, setup_arguments, start

PARALLEL = [f"--jobs={max(2, min(4, os.cpu_count()))}"]

# --- test.sh ---


@pytest.fixture
def copied(tmp_path):
    """A copy of the scripts, with an environment that logs how it is called."""
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
    """Returns the arguments of pip and of each call of pytest."""
    done = subprocess.run(
        ["bash", str(copied / "scripts/test.sh"), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # pip's output goes to stderr.
    calls = [line.rstrip("|").split("|") for line in done.stdout.splitlines()]
    assert all(call[:2] == ["-m", "pytest"] for call in calls)
    return done.stderr, [call[2:] for call in calls]


def test_the_tests_run_on_all_cores_unless_the_number_of_processes_is_given(copied):
    for given in ([], ["-m", "slow or not slow"], ["-k", "not slow", "-x"]):
        assert asked(copied, *given)[1] == [[*PARALLEL, *given]]
    for given in (["--jobs=1"], ["--jobs", "2"], ["--pdb", "tests"]):
        assert asked(copied, *given)[1] == [given]


def test_all_runs_the_slow_ones_with_every_optional_package_and_beam_apart(copied):
    said, [most, beam] = asked(copied, "--all", "-x")
    assert most == [*PARALLEL, "-m", "slow or not slow", "-x"]
    assert beam == ["-m", "slow or not slow", "-x", "--jobs=1", "-k", "beam_pipeline"]
    installed = [set(extras.split(",")) for extras in re.findall(r"\[([\w,-]+)\]", said)]
    # Backend packages that need no device; two of the storage packages come with other extras.
    of_beam = {"beam", "beam-dask"}
    every = set(setup_arguments()["extras_require"]) - {
        "dev", "gpu", "jax", "jax-cuda", "jax-tpu", "s3", "gcs", "azure", "hdfs"}
    assert installed == [every - of_beam, {"test", "remote-test", *of_beam}]
    assert re.findall(r"\[([\w,-]+)\]", asked(copied)[0]) == ["test"]


def test_a_failure_among_all_is_one_whichever_environment_it_was_in(copied):
    for environment, code, expected in (
        (".venv", 1, 1), (".venv", 5, 5), (".venv", 0, 0), (".venv-beam", 1, 1)
    ):
        python = copied / environment / "bin/python"
        python.write_text(f'#!/bin/sh\n[ "$2" = pytest ] && exit {code}\nexit 0\n')
        done = subprocess.run(["bash", copied / "scripts/test.sh", "--all"], capture_output=True)
        assert done.returncode == expected


# --- conftest.py and parallel.py ---


def run_pytest(folder, *arguments, **environment) -> tuple[int, str]:
    environment |= {"PYTHONPATH": f"{REPO}:{REPO / 'tests/support'}", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], cwd=folder,
        capture_output=True, text=True, env=os.environ | environment,
    )
    return done.returncode, done.stdout


def test_absent_golden_values_are_a_failure_under_ci(tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "SHARED", tmp_path / "shared")
    for ci, outcome in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(outcome, match=f"{tmp_path / 'shared'} is absent"):
            conftest.require_shared()


def test_modules_at_a_time_are_counted_and_shown_whatever_becomes_of_them(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["parallel"]\n')
    for name, code in {
        "a": "def test_a(tmp_path):\n    print('said')\n    assert tmp_path.exists()\n",
        "b": "import pytest\ndef test_b():\n    print('the reason')\n    assert 1 == 2\n"
             "def test_c():\n    pytest.skip('not here')\n",
        "c": "import os\ndef test_d():\n    os._exit(7)\ndef test_e():\n    assert True\n",
    }.items():
        (tmp_path / f"test_{name}.py").write_text(code)
    code, out = run_pytest(tmp_path, "--jobs=2")
    assert code == 1 and "2 failed, 2 passed, 1 skipped" in out
    assert "assert 1 == 2" in out and "the reason" in out and "said" not in out
    assert "the process ended with 7 while it ran this test" in out


@pytest.mark.slow
def test_the_first_failure_ends_all_modules_if_that_is_asked(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["parallel"]\n')
    (tmp_path / "test_a.py").write_text("def test_a():\n    assert False\n")
    (tmp_path / "test_b.py").write_text("import time\ndef test_b():\n    time.sleep(100)\n")
    code, out = run_pytest(tmp_path, "--jobs=2", "-x")
    assert code == 1 and "1 failed" in out and "passed" not in out


def test_sigterm_ends_the_modules_and_the_processes_of_their_tests(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["parallel"]\n')
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(
            "import pathlib, subprocess\ndef test_it():\n"
            "    process = subprocess.Popen(['sleep', '100'])\n"
            f"    pathlib.Path('{name}.pid').write_text(str(process.pid))\n    process.wait()\n"
        )
    environment = {"PYTHONPATH": f"{REPO}:{REPO / 'tests/support'}", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--jobs=2"], cwd=tmp_path,
        stdout=subprocess.DEVNULL, env=os.environ | environment,
    ) as process:
        files = [tmp_path / f"{name}.pid" for name in "ab"]
        while not all(path.exists() and path.read_text() for path in files):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait(20) == 143
    for path in files:
        for _ in range(100):  # until it is reaped
            if not pathlib.Path("/proc", path.read_text()).exists():
                break
            time.sleep(0.05)
        else:
            state = pathlib.Path("/proc", path.read_text(), "stat").read_text().split()[2]
            assert state == "Z"


# --- forked.py ---

PROGRAM = """
import os, sys, time
print(__name__, sys.argv, os.getcwd(), os.environ["SAID"], input(), flush=True)
print("on stderr", file=sys.stderr)
if sys.argv[1:] == ["wait"]:
    time.sleep(100)
sys.exit(5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux alone")
def test_a_fork_is_a_process_like_any_other(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    options = {"cwd": tmp_path, "stdin": subprocess.PIPE, "env": {"SAID": "a"}}
    fork = start("program", "--flag", **options)
    assert isinstance(fork, forked.Process)
    anew = subprocess.run(
        [sys.executable, "-m", "program", "--flag"], cwd=tmp_path, capture_output=True, text=True,
        input="typed\n", env=os.environ | {"SAID": "a"},
    )
    assert (*fork.communicate("typed\n"), fork.returncode) == (anew.stdout, anew.stderr, 5)

    killed = start("program", "wait", **options)
    killed.stdin.write("typed\n")
    killed.stdin.flush()
    assert killed.stdout.readline() and killed.poll() is None
    killed.kill()
    assert killed.wait(20) == -9
    killed.communicate()
    # Variables that are read at start-up need a real start.
    for name in ("TF_ENABLE_ONEDNN_OPTS", "PYTHONHASHSEED"):
        assert not forked.can_serve(os.environ | {name: "0"})
