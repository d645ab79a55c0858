"""docs/evidence/reliability.md names a test for every promise, and the tests are there."""

import ast
import re

import pytest
from helpers import REPO

DOCUMENT = REPO / "docs/evidence/reliability.md"
TESTS = REPO / "tests"
TEXT = DOCUMENT.read_text(encoding="utf-8")
_NAMED = re.compile(r"`(test_\w+)::(test_\w+)`")


def functions_of(module: str) -> set[str]:
    [path] = TESTS.rglob(f"{module}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def rows(heading: str) -> list[list[str]]:
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("module", sorted({module for module, _ in _NAMED.findall(TEXT)}))
def test_every_test_that_is_named_exists(module):
    named = {test for where, test in _NAMED.findall(TEXT) if where == module}
    assert not named - functions_of(module)


def test_each_of_the_twenty_five_faults_has_a_promise_and_a_test():
    found = rows("Twenty-five faults")
    assert [row[0] for row in found] == [str(number) for number in range(1, 26)]
    for number, promise, tests in found:
        assert promise and _NAMED.search(tests), number


def test_every_promise_beyond_them_has_a_test():
    for promise, tests in rows("Beyond them"):
        assert promise and _NAMED.search(tests), promise


def test_every_script_and_flag_of_the_figures_exists():
    measured = rows("Last measured")
    assert len(measured) >= 7
    for what, how, result in measured:
        assert what and result and "@" not in result
        script = re.search(r"scripts/maintainers/\w+\.py", how)
        assert script is None or (REPO / script[0]).is_file()
        for module in re.findall(r"`(test_\w+)`", how):
            assert list(TESTS.rglob(f"{module}.py"))


def test_the_readme_leads_to_it():
    assert "docs/evidence/reliability.md" in (REPO / "README.md").read_text(encoding="utf-8")
