"""The examples of the Python reference print what the page shows, numbers within a tolerance."""

import doctest
import importlib
import re

import numpy as np
import pytest
from helpers import REPO

import albert

PAGE = (REPO / "docs/reference/python.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"^### (\w+)\n(?:(?!^##).)*?^```pycon\n(.*?)^```", PAGE, re.M | re.S))
NUMBER = re.compile(r"-?\d+\.\d+")


class SameWithinATolerance(doctest.OutputChecker):
    """Compares texts regardless of white space, and decimals within 2 % or 0.02."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        numbers = [[float(n) for n in NUMBER.findall(text)] for text in (want, got)]
        texts = ["".join(NUMBER.sub("#", text).split()) for text in (want, got)]
        return texts[0] == texts[1] and np.allclose(*numbers, rtol=0.02, atol=0.02)


def test_each_of_the_main_names_has_an_example(monkeypatch):
    monkeypatch.syspath_prepend(REPO / "scripts/maintainers")
    reference = importlib.import_module("reference")
    assert [name.rpartition(".")[2] for name in reference.NAMES] == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_the_page_shows(name, tmp_path, monkeypatch):
    import keras

    monkeypatch.chdir(tmp_path)
    known = {"albert": albert, "keras": keras, "np": np}
    example = doctest.DocTestParser().get_doctest(EXAMPLES[name], known, name, None, 0)
    assert any(each.want for each in example.examples)
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(SameWithinATolerance()).run(example, out=report.append)
    assert not failed, "".join(report)


def test_a_number_that_differs_is_an_error():
    check = SameWithinATolerance().check_output
    assert check("{'p': 0.512, 'n': 3}", "{'p': 0.51,\n 'n': 3}\n", 0)
    assert not check("{'p': 0.512}", "{'p': 0.45}", 0) and not check("(2, 7)", "(2, 8)", 0)
