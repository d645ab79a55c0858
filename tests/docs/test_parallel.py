"""parallel.py: several test modules at a time, each in a fork."""

import os
import shutil
import subprocess
import sys

import pytest
from helpers import REPO

PASSES = "def test_{name}(tmp_path):\n    print('said')\n    assert tmp_path.exists()\n"


@pytest.fixture
def project(tmp_path):
    shutil.copy(REPO / "tests/support/parallel.py", tmp_path)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["parallel"]\n')
    (tmp_path / "test_a.py").write_text(PASSES.format(name="a"))
    return tmp_path


def outcome(project, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--jobs=2", *arguments],
        cwd=project, capture_output=True, text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(project)},
    )
    return done.returncode, done.stdout


def test_what_passes_fails_and_is_skipped_is_counted_and_shown(project):
    (project / "test_b.py").write_text(
        "import pytest\ndef test_b():\n    print('the reason')\n    assert 1 == 2\n"
        "def test_c():\n    pytest.skip('not here')\n"
    )
    code, out = outcome(project)
    assert code == 1 and "1 failed, 1 passed, 1 skipped" in out
    assert "assert 1 == 2" in out and "the reason" in out and "said" not in out


def test_a_test_that_ends_its_process_is_a_failure_and_the_rest_is_run(project):
    (project / "test_b.py").write_text(
        "import os\ndef test_b():\n    os._exit(7)\ndef test_c():\n    assert True\n"
    )
    code, out = outcome(project)
    assert code == 1 and "1 failed, 2 passed" in out
    assert "the process ended with 7 while it ran this test" in out


def test_the_first_failure_ends_all_if_that_is_asked(project):
    (project / "test_a.py").write_text("def test_a():\n    assert False\n")
    (project / "test_b.py").write_text("import time\ndef test_b():\n    time.sleep(100)\n")
    code, out = outcome(project, "-x")
    assert code == 1 and "1 failed" in out and "passed" not in out
