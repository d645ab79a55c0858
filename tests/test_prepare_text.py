"""prepare_text: any text, or Python's documentation, becomes sentences, documents and a task."""

import collections
import json
import pathlib
import random
import subprocess

import helpers
import pytest

from albert.errors import DataError
from albert.own_text import labelled_task, prose, python_docs, text_corpus
from albert.own_text.sentences import split_sentences


def run(*arguments: str) -> subprocess.CompletedProcess:
    return helpers.run("albert.prepare_text", *arguments)


def words(rng: random.Random, count: int) -> str:
    text = " ".join(rng.choice("red blue old new big small dog cat sees hears the a of".split())
                    for _ in range(count))
    return text.capitalize() + "."


def write_text(path: pathlib.Path, documents: int, sentences: int = 12) -> pathlib.Path:
    rng = random.Random(7)
    blocks = ["\n".join(words(rng, 12) for _ in range(sentences)) for _ in range(documents)]
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def read_tsv(path: pathlib.Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


# === Sentences ===


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Mr. Smith met J. K. Rowling. They talked.",
         ["Mr. Smith met J. K. Rowling.", "They talked."]),
        ("Use a list, e.g. Python's (i.e. a sequence). Done.",
         ["Use a list, e.g. Python's (i.e. a sequence).", "Done."]),
        ('He said "Stop!" and left. "Why?" she asked.',
         ['He said "Stop!" and left.', '"Why?" she asked.']),
        ("“I see.” He went on… Then nothing.", ["“I see.”", "He went on…", "Then nothing."]),
        ("See sys.path and 3.5 here. Next.", ["See sys.path and 3.5 here.", "Next."]),
        ("At 3 p.m. They left at 4 p.m. sharp.", ["At 3 p.m.", "They left at 4 p.m. sharp."]),
        ("It was I. Then he went.", ["It was I.", "Then he went."]),
        ("1. First item. 2. Second.", ["1. First item.", "2. Second."]),
        ("Wait . . . What?", ["Wait . . . What?"]),
        ("你好。世界！", ["你好。", "世界！"]),
        ("no stop at all", ["no stop at all"]),
        ("  \t ", []),
    ],
)
def test_a_paragraph_is_split_at_the_ends_of_its_sentences(paragraph, expected):
    assert split_sentences(paragraph) == expected


def test_splitting_loses_no_text(golden_path):
    text = golden_path("pretraining_data/corpus.txt").read_text(encoding="utf-8")
    for paragraph in (text, *text.split("\n\n"), *text.split("\n")):
        assert " ".join(split_sentences(paragraph)) == " ".join(paragraph.split())


# === Prose out of documentation ===

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


# === The command ===


def test_same_seed_same_bytes_and_other_seed_another_task(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=12)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run(f"--input_file={source}", f"--output_dir={tmp_path / name}",
                   f"--seed={seed}").returncode == 0
    train = "classification/SST-2/train.tsv"
    for file in ("corpus.txt", train):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a" / train).read_bytes() != (tmp_path / "c" / train).read_bytes()


@pytest.mark.parametrize("label", labelled_task.LABELS)
def test_task_has_the_layout_of_sst_2_and_balanced_classes(tmp_path, label):
    source = write_text(tmp_path / "in.txt", documents=20)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}", f"--label={label}",
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
    text = text_corpus.read_text_file(str(write_text(tmp_path / "in.txt", documents=20)))
    owner = {s: d.name for d in text.documents for s in d.sentences}
    task = labelled_task.make_task(text.documents, "part", (60, 20, 20), random.Random(1))
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
    for document in text.documents:
        assert corpus.isdisjoint(document.sentences) == (document.name in held)


def test_the_parts_are_told_by_ends_of_documents_that_the_corpus_lacks(tmp_path):
    lines = [
        "\n".join(f"Word{d} line{i} has some {d} and {i} here." for i in range(80)) for d in range(6)
    ]
    (tmp_path / "in.txt").write_text("\n\n".join(lines) + "\n")
    text = text_corpus.read_text_file(str(tmp_path / "in.txt"))
    task = labelled_task.make_task(text.documents, "part", (60, 40, 20), random.Random(1))
    train, dev, test = ({s for s, _ in rows} for rows in (task.train, task.dev, task.test))
    assert not train & dev and not train & test and not dev & test
    kept = {s for d in task.rest for s in d.sentences}
    assert len(task.rest) == 6 and train <= kept and not kept & (dev | test)
    # Every document is in every set's reach, not only a few of them.
    assert {s.split()[0] for s in dev} == {f"Word{d}" for d in range(6)}


def test_word_order_rows_have_the_same_words_as_their_sentence(tmp_path):
    text = text_corpus.read_text_file(str(write_text(tmp_path / "in.txt", documents=20)))
    originals = {s for d in text.documents for s in d.sentences}
    bags = {tuple(sorted(s.split())) for s in originals}
    task = labelled_task.make_task(text.documents, "word_order", (60, 20, 20), random.Random(1))
    for sentence, label in task.train + task.dev + task.test:
        assert tuple(sorted(sentence.split())) in bags
        assert (sentence in originals) == (label == 1)


def test_reserved_documents_can_stay_in_the_corpus(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=20)
    run(f"--input_file={source}", f"--output_dir={tmp_path}", "--noreserve_task_documents")
    assert json.loads((tmp_path / "stats.json").read_text())["corpus"]["documents"] == 20


def test_a_paragraph_a_line_becomes_a_sentence_a_line(tmp_path):
    rng = random.Random(1)
    blocks = ["\n".join(f"{words(rng, 10)} {words(rng, 10)}" for _ in range(9)) for _ in range(9)]
    (tmp_path / "in.txt").write_bytes("\r\n\r\n".join(blocks).encode("utf-8-sig"))
    text = text_corpus.read_text_file(str(tmp_path / "in.txt"))
    assert [len(d.sentences) for d in text.documents] == [18] * 9
    assert not text.documents[0].sentences[0].startswith("\ufeff")


def test_text_of_one_document_is_cut_with_a_warning(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=1, sentences=600)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}")
    assert result.returncode == 0
    assert "no blank line, so one document; cut into 12 pseudo-documents" in result.stderr
    assert json.loads((tmp_path / "stats.json").read_text())["pseudo_documents"] is True


def test_invalid_utf8_is_replaced_counted_and_told_once(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=12)
    lines = source.read_bytes().split(b"\n")
    lines[1] += b" caf\xe9"
    lines[2] += b" \xff\xfe"
    source.write_bytes(b"\n".join(lines))
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}", "--noreserve_task_documents")
    assert result.returncode == 0
    assert result.stderr.count("not UTF-8") == 1
    assert json.loads((tmp_path / "stats.json").read_text())["invalid_utf8_lines"] == 2
    assert "caf\ufffd" in (tmp_path / "corpus.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "0 sentences"),
        (b"\n \n\n", "0 sentences"),
        (b"Too little. Text.\n", "2 sentences; at least 30"),
        ("Wide text.\n".encode("utf-16-le"), "UTF-16 without a mark"),
    ],
)
def test_unusable_input_is_one_line_and_exit_2_and_nothing_is_written(tmp_path, content, message):
    source = tmp_path / "in.txt"
    if content is not None:
        source.write_bytes(content)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path / 'out'}")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and message in result.stderr
    assert str(source) in result.stderr
    assert not (tmp_path / "out").exists()


def test_text_too_uniform_for_a_task_says_so(tmp_path):
    short = "\n\n".join("\n".join(f"Word {i}{j}." for j in range(9)) for i in range(9))
    (tmp_path / "in.txt").write_text(short)
    text = text_corpus.read_text_file(str(tmp_path / "in.txt"))
    with pytest.raises(DataError, match="too little text for the labelled task"):
        labelled_task.make_task(text.documents, "word_order", (20, 20, 20), random.Random(1))


def test_real_stories_keep_their_documents(shared, tmp_path):
    source = shared / "data/corpus/sherlock_holmes_se_cc0.txt"
    assert run(f"--input_file={source}", f"--output_dir={tmp_path}").returncode == 0
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["text"]["documents"] == 12 and stats["corpus"]["documents"] == 12
    assert stats["task"]["train"] == 400 and stats["task"]["dev"] >= 200
