"""The tables of mutations, and the tests' golden values."""

import sys

import conftest
import pytest
from helpers import REPO

sys.path.append(str(REPO / "scripts/maintainers"))

from mutants.rows import ROWS  # noqa: E402


def test_absent_golden_values_are_a_failure_under_ci(tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "SHARED", tmp_path / "shared")
    for ci, outcome in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(outcome, match=f"{tmp_path / 'shared'} is absent"):
            conftest.require_shared()


def test_each_mutation_is_of_one_place_and_names_tests_that_there_are():
    names = {path.stem: path.read_text("utf-8") for path in (REPO / "tests").rglob("test_*.py")}
    for file, old, new, tests in ROWS:
        assert (REPO / "albert" / file).read_text("utf-8").count(old) == 1 and new != old, (file, old)
        for module, _, test in (name.partition("::") for name in tests.split()):
            assert "def " + test.split("[")[0] in names[module], tests
