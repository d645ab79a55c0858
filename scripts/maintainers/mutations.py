"""Makes one-line mistakes in copies of the repository, and checks that a fast test fails on each.

  python scripts/maintainers/mutations.py --only=storage

Prints a line for each mutation: the test that failed, SURVIVED, or STALE for a row that is to be
removed. Exits with 1 if there is any of these two.
"""

import argparse
import importlib
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
from typing import NamedTuple

import pytest
from mutants.rows import ROWS

SECONDS = 120  # per test: some mutations cause endless loops
REPO = pathlib.Path(__file__).resolve().parents[2]
# What every fork would import, but for the package itself, which is mutated.
SHARED = ("tensorflow", "hypothesis", "pandas", "scipy.stats", "sentencepiece", "sklearn.linear_model")


class Mutation(NamedTuple):
    """A mistake: `old`, which occurs once in the file, becomes `new`; one of the tests fails."""

    file: str  # below albert/
    old: str
    new: str
    tests: str  # their names, or names of tests as module::test


MUTATIONS = [Mutation(*row) for row in ROWS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="part of the file or the mutation")
    parser.add_argument("--first", default=1, type=int, help="number of the first row")
    given = parser.parse_args()
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "repository")
        shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__"))
        os.symlink(REPO.parent / "shared", pathlib.Path(folder, "shared"))
        import_libraries(copy)
        for number, mutation in enumerate(MUTATIONS, 1):
            is_asked = given.only in mutation.file or given.only in mutation.old
            if is_asked and number >= given.first:
                killer = killer_of(mutation, copy)
                survivors += killer is None or killer.startswith("STALE")
                change = f"{mutation.old.strip()} -> {mutation.new.strip() or '(nothing)'}"
                print(f"{number} {mutation.file}: {change}: {killer or 'SURVIVED'}", flush=True)
        os.chdir(REPO)
    return survivors > 0


def import_libraries(copy: pathlib.Path) -> None:
    """Imports once what takes each test process seconds, as the tests' environment wants it."""
    os.environ |= {
        "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "",
        # Threads of BLAS and of pyarrow could not be forked.
        "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false",
    }
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a script
    os.chdir(copy)
    sys.path[:0] = [str(copy)]
    for name in SHARED:
        importlib.import_module(name)


def killer_of(mutation: Mutation, copy: pathlib.Path) -> str | None:
    """Returns the first test that fails with the mutation; None if none does."""
    path, log = copy / "albert" / mutation.file, copy.parent / "log"
    text = path.read_text("utf-8")
    if text.count(mutation.old) != 1:
        return "STALE: not there, or there twice"
    path.write_text(text.replace(mutation.old, mutation.new), "utf-8")
    tests = [name.partition("::") for name in mutation.tests.split()]
    paths = [f"{next((copy / 'tests').rglob(f'{name}.py'))}{sign}{test}" for name, sign, test in tests]
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        for number in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC * (number == 1) | os.O_APPEND), number)
        code = 1
        try:
            code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", f"--timeout={SECONDS}", *paths]))
        finally:
            sys.stdout.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    path.write_text(text, "utf-8")
    said = log.read_text("utf-8", "replace")
    failed = re.search(r"^(?:FAILED|ERROR) (?:\S*tests/)?(.+?)(?: - |$)", said, re.MULTILINE)
    if code and "Timeout" in said:
        return f"no answer in {SECONDS} s"
    if code == pytest.ExitCode.INTERRUPTED and not failed:
        return "an interrupt"  # as if by Ctrl-C
    if code and not failed:
        raise SystemExit(f"{mutation.file}: the tests did not run:\n{said}")
    return failed and failed[1]


if __name__ == "__main__":
    sys.exit(main())
