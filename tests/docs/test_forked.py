"""forked.py: what tests start as a fork behaves as what is started anew."""

import os
import subprocess
import sys

import forked
import pytest
from helpers import start

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


def test_variables_that_are_read_at_the_start_need_a_real_one():
    assert not forked.can_serve(os.environ | {"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert not forked.can_serve(os.environ | {"PYTHONHASHSEED": "0"})
