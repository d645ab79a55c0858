"""The quickstart's text: Python's documentation or any text, and a labelled task made of it."""

import collections
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest
from helpers import REPO
from helpers import write_text

from albert.errors import DataError

FOLDER = REPO / "scripts/quickstart"
sys.path.append(str(FOLDER))

import labelled_task  # noqa: E402
import prose  # noqa: E402
import python_docs  # noqa: E402


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, FOLDER / "text.py", *arguments], capture_output=True,
                          text=True, cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)})


def read_text(path: pathlib.Path) -> list[labelled_task.Document]:
    spec = importlib.util.spec_from_file_location("quickstart_text", FOLDER / "text.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._read(str(path))


def read_tsv(path: pathlib.Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


DOCSTRING = """\
Return the ``value`` of the :func:`~os.path.join` call as it is.

    >>> join('a', 'b')
    'a/b'

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


def test_code_tables_signatures_links_headings_and_markup_are_left_out():
    assert prose.sentences_of(DOCSTRING) == [
        "Return the value of the os.path.join call as it is.",
        "The first item says what the name of the file is.",
        "The result is never an empty string.",
    ]


@pytest.mark.slow
def test_pythons_documentation_is_a_quarter_of_a_million_words_of_english():
    documents = python_docs.read_python_docs()
    sentences = [s for d in documents for s in d.sentences]
    # Distributions leave parts of the library out.
    assert sum(len(s.split()) for s in sentences) > 200_000
    assert not any(s.startswith(">>>") or "::=" in s or "https:" in s for s in sentences)
    assert len(sentences) == len({s.lower() for s in sentences})
    assert {d.part for d in documents} == {"reference", "library"}
    assert len({d.name for d in documents}) == len(documents)


def test_docstrings_are_read_without_importing_and_tests_are_skipped(tmp_path):
    text = '"""This module has some words in it.\n\nIt also has a second sentence here."""\n'
    (tmp_path / "loud.py").write_text(text + "raise SystemExit('imported')\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "hidden.py").write_text(text.replace("module", "fixture"))
    (tmp_path / "python2.py").write_text("print 'no'\n")
    names = [d.name for d in python_docs.read_python_docs(str(tmp_path))]
    assert [n for n in names if n.startswith("module:")] == ["module:loud"]


def test_task_has_the_layout_of_sst_2_and_balanced_classes(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=20)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}",
                 "--num_dev=40", "--num_test=40")
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "classification" / "SST-2"
    for name in ("train", "dev"):
        header, *rows = read_tsv(folder / f"{name}.tsv")
        counts = collections.Counter(row[1] for row in rows)
        assert header == ["sentence", "label"]
        assert counts["0"] == counts["1"] >= 5
    header, *rows = read_tsv(folder / "test.tsv")
    assert header == ["index", "sentence"]
    assert [row[0] for row in rows] == [str(i) for i in range(len(rows))]


def test_dev_and_test_are_from_documents_that_neither_train_nor_corpus_has(tmp_path):
    # Documents too short to spare their ends.
    text = read_text(str(write_text(tmp_path / "in.txt", documents=20)))
    owner = {s: d.name for d in text for s in d.sentences}
    task = labelled_task.make_task(text, (60, 20, 20), random.Random(1))
    from_documents = {
        name: {owner[s] for s, _ in getattr(task, name)} for name in ("train", "dev", "test")
    }
    assert not from_documents["train"] & from_documents["dev"]
    assert not from_documents["train"] & from_documents["test"]
    assert not from_documents["dev"] & from_documents["test"]

    assert run(f"--input_file={tmp_path / 'in.txt'}", f"--output_dir={tmp_path}").returncode == 0
    stats = json.loads((tmp_path / "stats.json").read_text())
    held = stats["task"]["dev_documents"] + stats["task"]["test_documents"]
    assert stats["corpus"]["documents"] == 20 - len(held)
    corpus = set((tmp_path / "corpus.txt").read_text(encoding="utf-8").split("\n"))
    for document in text:
        assert corpus.isdisjoint(document.sentences) == (document.name in held)


def test_the_parts_are_told_by_ends_of_documents_that_the_corpus_lacks(tmp_path):
    lines = [
        "\n".join(f"Word{d} line{i} has some {d} and {i} here." for i in range(80)) for d in range(6)
    ]
    (tmp_path / "in.txt").write_text("\n\n".join(lines) + "\n")
    text = read_text(str(tmp_path / "in.txt"))
    task = labelled_task.make_task(text, (60, 40, 20), random.Random(1))
    train, dev, test = ({s for s, _ in rows} for rows in (task.train, task.dev, task.test))
    assert not train & dev and not train & test and not dev & test
    kept = {s for d in task.rest for s in d.sentences}
    assert len(task.rest) == 6 and train <= kept and not kept & (dev | test)
    # Every document is in every set's reach, not only a few of them.
    assert {s.split()[0] for s in dev} == {f"Word{d}" for d in range(6)}


def test_text_of_one_document_is_cut_for_a_task_with_a_warning(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=1, sentences=600)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}")
    assert result.returncode == 0
    assert "fewer than 3 documents; cut into 12 pseudo-documents" in result.stderr


def test_text_too_uniform_for_a_task_says_so(tmp_path):
    short = "\n\n".join("\n".join(f"Word {i}{j}." for j in range(9)) for i in range(9))
    (tmp_path / "in.txt").write_text(short)
    text = read_text(str(tmp_path / "in.txt"))
    with pytest.raises(DataError, match="too little text for the labelled task"):
        labelled_task.make_task(text, (20, 20, 20), random.Random(1))


def test_real_stories_keep_their_documents(shared, tmp_path):
    source = shared / "data/corpus/sherlock_holmes_se_cc0.txt"
    assert run(f"--input_file={source}", f"--output_dir={tmp_path}").returncode == 0
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["text"]["documents"] == 12 and stats["corpus"]["documents"] == 12
    assert stats["task"]["train"] == 400 and stats["task"]["dev"] >= 200


def test_same_seed_same_bytes_and_other_seed_another_task(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=12)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run(f"--input_file={source}", f"--output_dir={tmp_path / name}",
                   f"--seed={seed}").returncode == 0
    train = "classification/SST-2/train.tsv"
    for file in ("corpus.txt", train):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a" / train).read_bytes() != (tmp_path / "c" / train).read_bytes()
