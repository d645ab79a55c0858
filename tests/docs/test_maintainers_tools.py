"""The tools in scripts/: each produces the promised output from tiny inputs."""

import sys

import conftest
import jobs
import pytest
from helpers import REPO, program

sys.path.append(str(REPO / "scripts/maintainers"))

from mutants.rows import ROWS  # noqa: E402

quickstart = jobs.script("text", "scripts/quickstart")


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


# --- The quickstart's text ---

DOCSTRING = """\
Return the ``value`` of the :func:`~os.path.join` call as it is.

    >>> join('a', 'b')

Heading here
============

* The first item says what the *name* of the file is [1]_.

def join(a, b):
    return a

+-----+------+
| a b | of c |
+-----+------+

join(path, *paths)
   See https://example.org for what this is about in detail.
   The result is never an empty string.
"""


def test_prose_is_read_from_docstrings_without_importing_their_modules(tmp_path):
    assert list(quickstart.sentences_of(DOCSTRING)) == [
        "Return the value of the os.path.join call as it is.",
        "The result is never an empty string.",
    ]
    text = '"""This module has some words in it.\n\nIt also has a second sentence here."""\n'
    (tmp_path / "loud.py").write_text(text + "raise SystemExit('imported')\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test/hidden.py").write_text(text.replace("module", "fixture"))
    (tmp_path / "python2.py").write_text("print 'no'\n")
    reference, library = quickstart.python_docs(str(tmp_path))
    assert library == [["This module has some words in it.", "It also has a second sentence here."]]
    assert len(reference) > 50


def test_the_quickstarts_task_is_of_sentences_that_its_corpus_lacks_the_same_for_a_seed(tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("\n\n".join(
        "\n".join(f"Sentence {i} of document {number} has some words." for i in range(20))
        for number in range(20)))
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        done = program(REPO / "scripts/quickstart/text.py", f"--input_file={source}",
                       f"--output_dir={tmp_path / name}", f"--seed={seed}", "--num_dev=20")
        assert done.returncode == 0, done.stderr
    rows = {}
    for name in ("train", "dev", "test"):
        a, b, c = ((tmp_path / x / f"classification/SST-2/{name}.tsv").read_text() for x in "abc")
        assert a == b != c
        head, *rows[name] = [line.split("\t") for line in a.splitlines()]
        assert head == (["index", "sentence"] if name == "test" else ["sentence", "label"])
    sentences = {"train": {s for s, _ in rows["train"]}, "dev": {s for s, _ in rows["dev"]},
                 "test": {s for _, s in rows["test"]}}
    assert len(sentences["train"]) == 340 and len(sentences["dev"]) == 20 and len(sentences["test"]) == 20
    corpus = set((tmp_path / "a/corpus.txt").read_text().splitlines()) - {""}
    everything = set(source.read_text().splitlines()) - {""}
    assert corpus == everything - sentences["dev"] - sentences["test"] and sentences["train"] <= corpus
    for name in ("train", "dev"):
        for sentence, label in rows[name]:
            assert int(label) == (int(sentence.split()[4]) >= 10)
        assert len({label for _, label in rows[name]}) == 2
    assert [i for i, _ in rows["test"]] == [str(i) for i in range(20)]
