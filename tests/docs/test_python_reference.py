"""The Python reference: all names, and examples that print what they show, within a tolerance."""

import doctest
import inspect
import operator
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import REPO

import albert

PAGE = (REPO / "docs/reference/api.rst").read_text("utf-8")
NAMES = re.findall(r"^\.\. auto(?:class|function):: albert\.(\S+)$", PAGE, re.M)
EXAMPLES = {
    name: text for name in NAMES
    if "\nExample:\n" in (text := inspect.getdoc(operator.attrgetter(name)(albert)))
}
NUMBER = re.compile(r"-?\d+\.\d+")


class SameWithinATolerance(doctest.OutputChecker):
    """Compares texts regardless of white space, and decimals within 2 % or 0.02."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        numbers = [[float(n) for n in NUMBER.findall(text)] for text in (want, got)]
        texts = ["".join(NUMBER.sub("#", text).split()) for text in (want, got)]
        return texts[0] == texts[1] and np.allclose(*numbers, rtol=0.02, atol=0.02)


def test_every_name_is_in_the_reference_and_each_of_the_main_ones_has_an_example():
    assert set(albert.__all__) - {"AlbertTokenizerFast"} <= set(NAMES)  # it is AlbertTokenizer
    main = re.findall(r"^\| `([\w.]+)` \|", (REPO / "docs/reference/python.md").read_text("utf-8"), re.M)
    assert len(main) == 9 and set(main) <= set(EXAMPLES)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    for package in ("furo", "myst_nb", "sphinxcontrib.mermaid"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra: docs)")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-c", "docs", ".", tmp_path],
        cwd=REPO, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "docs/reference/api.html").read_text("utf-8")
    assert all(f'id="albert.{name}"' in page for name in NAMES)
    # What Keras knows of a model's arguments is not what it takes.
    assert "(*args, **kwargs)" not in re.sub("<[^>]+>", "", page)
    for path in ("index.html", "search.html", "docs/notebooks/tour.html", "CHANGELOG.html"):
        assert (tmp_path / path).is_file()


# Those that train are slow: the README's does so among the fast ones.
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (".fit(" in text)) for name, text in EXAMPLES.items()
])
def test_an_example_prints_what_the_page_shows(name, tmp_path, monkeypatch):
    import keras

    monkeypatch.chdir(tmp_path)
    known = {"albert": albert, "keras": keras, "np": np}
    example = doctest.DocTestParser().get_doctest(EXAMPLES[name], known, name, None, 0)
    assert any(each.want for each in example.examples)
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(SameWithinATolerance()).run(example, out=report.append)
    assert not failed, "".join(report)
