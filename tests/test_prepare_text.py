"""prepare_text: any text, or Python's documentation, becomes sentences and documents; a task."""

import collections
import gzip
import itertools
import json
import pathlib
import random
import re
import subprocess

import helpers
import pytest

from albert import prepare_text
from albert.errors import DataError
from albert.runtime import progress
from albert.text import corpus_files, labelled_task, prose, python_docs, text_corpus
from albert.text.sentences import split_sentences


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


def read_text(path) -> text_corpus.Text:
    return text_corpus.read_text([str(path)], corpus_files.Form(language="en"), f"{path}.spool")


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
        ("“I see. Do you?” he asked. “I do.”", ["“I see.", "Do you?” he asked.", "“I do.”"]),
        ("See sys.path and 3.5 here. Next.", ["See sys.path and 3.5 here.", "Next."]),
        ("At 3 p.m. They left at 4 p.m. sharp.", ["At 3 p.m.", "They left at 4 p.m. sharp."]),
        ("It was I. Then he went.", ["It was I.", "Then he went."]),
        ("你好。世界！", ["你好。", "世界！"]),
        ("他说：「走吧。快走！」好。", ["他说：「走吧。快走！」", "好。"]),
        ("यह एक वाक्य है। यह दूसरा है।", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("هل أنت بخير؟ نعم.", ["هل أنت بخير؟", "نعم."]),
        ("It\u3000is. So\u00a0be.\u2003We go.", ["It is.", "So be.", "We go."]),
        ("no stop at all", ["no stop at all"]),
        ("  \t ", []),
    ],
)
def test_a_paragraph_is_split_at_the_ends_of_its_sentences(paragraph, expected):
    assert split_sentences(paragraph) == expected


def test_splitting_loses_no_text(golden_path):
    text = golden_path("pretraining_data/corpus.txt").read_text(encoding="utf-8")
    for paragraph in (text, *text.split("\n\n"), *text.split("\n")):
        assert "".join("".join(split_sentences(paragraph)).split()) == "".join(paragraph.split())


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


def test_all_words_are_written_and_no_task_is_made_unless_asked_for(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=12)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path / 'out'}")
    assert result.returncode == 0 and " W " not in result.stderr
    written = (tmp_path / "out/corpus.txt").read_text(encoding="utf-8")
    assert written.split() == source.read_text(encoding="utf-8").split()
    assert not (tmp_path / "out/classification").exists()
    assert json.loads((tmp_path / "out/stats.json").read_text())["task"] is None
    count = f"{len(written.split()):,}"
    assert f"read {count} words in 12 documents" in result.stderr
    assert f"corpus.txt: {count} words (100.0 %), 144 sentences, 12 documents" in result.stderr


def test_one_document_is_left_whole_where_no_task_needs_more(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=1, sentences=600)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}")
    assert result.returncode == 0 and " W " not in result.stderr
    assert (tmp_path / "corpus.txt").read_bytes() == source.read_bytes()
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["pseudo_documents"] is False and stats["corpus"]["documents"] == 1


def test_it_is_reported_where_each_word_went(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=20)
    source.write_text(source.read_text() + "\nToo short.\n")
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}", "--label=part",
                 "--min_document_words=5")
    assert result.returncode == 0, result.stderr
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["dropped_words"] == {"fewer than 5 words": 2}
    told = {
        what: int(number.replace(",", "")) for what, number in
        re.findall(r"(read|left out|reserved|corpus\.txt:) ([0-9,]+) words", result.stderr)
    }
    assert told["read"] == 20 * 12 * 12 + 2 == sum(told.values()) - told["read"]
    assert told["left out"] == 2 and told["reserved"] > 100
    assert told["corpus.txt:"] == stats["corpus"]["words"]


def test_flags_of_a_task_that_is_not_made_are_refused(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=12)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}", "--num_dev=40")
    assert result.returncode == 2 and "--num_dev has no effect without --label" in result.stderr


def test_same_seed_same_bytes_and_other_seed_another_task(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=12)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run(f"--input_file={source}", f"--output_dir={tmp_path / name}",
                   f"--seed={seed}", "--label=part").returncode == 0
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
    text = read_text(str(write_text(tmp_path / "in.txt", documents=20)))
    owner = {s: d.name for d in text.documents for s in d.sentences}
    task = labelled_task.make_task(text.documents, "part", (60, 20, 20), random.Random(1))
    from_documents = {
        name: {owner[s] for s, _ in getattr(task, name)} for name in ("train", "dev", "test")
    }
    assert not from_documents["train"] & from_documents["dev"]
    assert not from_documents["train"] & from_documents["test"]
    assert not from_documents["dev"] & from_documents["test"]

    assert run(f"--input_file={tmp_path / 'in.txt'}", f"--output_dir={tmp_path}",
               "--label=part").returncode == 0
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
    text = read_text(str(tmp_path / "in.txt"))
    task = labelled_task.make_task(text.documents, "part", (60, 40, 20), random.Random(1))
    train, dev, test = ({s for s, _ in rows} for rows in (task.train, task.dev, task.test))
    assert not train & dev and not train & test and not dev & test
    kept = {s for d in task.rest for s in d.sentences}
    assert len(task.rest) == 6 and train <= kept and not kept & (dev | test)
    # Every document is in every set's reach, not only a few of them.
    assert {s.split()[0] for s in dev} == {f"Word{d}" for d in range(6)}


def test_word_order_rows_have_the_same_words_as_their_sentence(tmp_path):
    text = read_text(str(write_text(tmp_path / "in.txt", documents=20)))
    originals = {s for d in text.documents for s in d.sentences}
    bags = {tuple(sorted(s.split())) for s in originals}
    task = labelled_task.make_task(text.documents, "word_order", (60, 20, 20), random.Random(1))
    for sentence, label in task.train + task.dev + task.test:
        assert tuple(sorted(sentence.split())) in bags
        assert (sentence in originals) == (label == 1)


def test_reserved_documents_can_stay_in_the_corpus(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=20)
    run(f"--input_file={source}", f"--output_dir={tmp_path}", "--noreserve_task_documents",
        "--label=part")
    assert json.loads((tmp_path / "stats.json").read_text())["corpus"]["documents"] == 20


def test_a_paragraph_a_line_becomes_a_sentence_a_line(tmp_path):
    rng = random.Random(1)
    blocks = ["\n".join(f"{words(rng, 9)[:-1]} now. {words(rng, 9)[:-1]} too." for _ in range(9)) for _ in range(9)]
    (tmp_path / "in.txt").write_bytes("\r\n\r\n".join(blocks).encode("utf-8-sig"))
    text = read_text(str(tmp_path / "in.txt"))
    assert [len(d.sentences) for d in text.documents] == [18] * 9
    assert not text.documents[0].sentences[0].startswith("\ufeff")


def test_text_of_one_document_is_cut_for_a_task_with_a_warning(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=1, sentences=600)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}", "--label=part")
    assert result.returncode == 0
    assert "no blank line, so one document; cut into 12 pseudo-documents" in result.stderr
    assert json.loads((tmp_path / "stats.json").read_text())["pseudo_documents"] is True


def test_invalid_utf8_is_replaced_counted_and_told_once(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=12)
    lines = source.read_bytes().split(b"\n")
    lines[1] += b" caf\xe9"
    lines[2] += b" \xff\xfe"
    source.write_bytes(b"\n".join(lines))
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}")
    assert result.returncode == 0
    assert result.stderr.count("not UTF-8") == 1
    assert json.loads((tmp_path / "stats.json").read_text())["invalid_utf8_lines"] == 2
    assert "caf\ufffd" in (tmp_path / "corpus.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no file matches"),
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
    text = read_text(str(tmp_path / "in.txt"))
    with pytest.raises(DataError, match="too little text for the labelled task"):
        labelled_task.make_task(text.documents, "word_order", (20, 20, 20), random.Random(1))


def test_real_stories_keep_their_documents(shared, tmp_path):
    source = shared / "data/corpus/sherlock_holmes_se_cc0.txt"
    assert run(f"--input_file={source}", f"--output_dir={tmp_path}",
               "--label=part").returncode == 0
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["text"]["documents"] == 12 and stats["corpus"]["documents"] == 12
    assert stats["task"]["train"] == 400 and stats["task"]["dev"] >= 200


# === Documents that are left out ===


def stories(count: int) -> list[str]:
    rng = random.Random(3)
    return ["\n".join(words(rng, 12) for _ in range(20)) for _ in range(count)]


def prepared(folder: pathlib.Path, texts: list[str], *more: str) -> dict:
    (folder / "in.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    result = run(f"--input_file={folder / 'in.txt'}", f"--output_dir={folder / 'out'}", *more)
    assert result.returncode == 0, result.stderr
    return json.loads((folder / "out" / "stats.json").read_text())


def test_nothing_is_left_out_by_default(tmp_path):
    texts = stories(12)
    stats = prepared(tmp_path, texts + texts)
    assert stats["dropped"] == {} and stats["corpus"]["documents"] == 24


def test_doubles_are_left_out_and_counted(tmp_path):
    texts = stories(12)
    like = [text.replace("dog", "cow", 2) for text in texts[:3]]
    stats = prepared(tmp_path, texts + texts[:5] + like, "--drop_duplicates=exact")
    assert stats["dropped"] == {"the same words as an earlier document": 5}
    assert stats["corpus"]["documents"] == 15


def test_near_doubles_are_left_out_and_counted(tmp_path):
    pytest.importorskip("rensa", reason="rensa is not installed (extra: filters)")
    texts = stories(12)
    like = [text.replace("dog", "cow", 2) for text in texts[:3]]
    runs = []
    for _ in range(2):
        stats = prepared(tmp_path, texts + texts[:5] + like, "--drop_duplicates=near",
                         "--duplicate_threshold=0.7")
        runs.append((tmp_path / "out" / "corpus.txt").read_bytes())
        assert stats["dropped"] == {
            "the same words as an earlier document": 5,
            "nearly an earlier document (alike to 0.7)": 3,
        }
    assert runs[0] == runs[1]


def test_documents_of_other_lengths_are_left_out(tmp_path):
    stats = prepared(tmp_path, [*stories(12), "Too short.", "word " * 400],
                     "--min_document_words=5", "--max_document_words=300")
    assert stats["dropped"] == {"fewer than 5 words": 1, "more than 300 words": 1}


def test_documents_of_other_languages_are_left_out(tmp_path):
    pytest.importorskip("py3langid", reason="py3langid is not installed (extra: filters)")
    german = "Das Haus steht am Ende der Straße, und niemand weiß, wem es gehört. " * 5
    english = ["The house stands at the end of the street.\n" + text for text in stories(12)]
    stats = prepared(tmp_path, [*english, german], "--keep_languages=en")
    assert stats["dropped"] == {"not of the languages en": 1}
    result = run(f"--input_file={tmp_path / 'in.txt'}", f"--output_dir={tmp_path}/x",
                 "--keep_languages=en,xx")
    assert result.returncode == 2 and "--keep_languages: xx: none of" in result.stderr


# === Large texts ===


@pytest.fixture
def small_memory(monkeypatch):
    monkeypatch.setattr(text_corpus, "MOST_HELD", 20_000)
    monkeypatch.setattr(text_corpus, "_SAMPLE", 15_000)
    monkeypatch.setattr(text_corpus, "_PIECE", 7)


def large(folder, name, *more):
    helpers.run_here(prepare_text, f"--input_file={folder / 'in.txt'}",
                     f"--output_dir={folder / name}", *more)
    text = (folder / name / "corpus.txt").read_text(encoding="utf-8")
    return [document.strip().split("\n") for document in text.split("\n\n")]


@pytest.mark.parametrize("label", labelled_task.LABELS)
def test_a_large_text_loses_nothing_but_what_is_held_out(label, tmp_path, small_memory):
    rng = random.Random(9)
    documents = [
        [f"Of {d} and {s} it says {words(rng, 6)}" for s in range(rng.choice([3, 7, 20]))]
        for d in range(90)
    ]
    (tmp_path / "in.txt").write_text("\n\n".join("\n".join(d) for d in documents) + "\n")
    small = [f"--label={label}", "--num_dev=40", "--num_test=40"]
    assert large(tmp_path, "all", "--noreserve_task_documents", *small) == documents
    assert large(tmp_path, "none") == documents
    kept = large(tmp_path, "kept", *small)
    sentences = [s for d in documents for s in d]
    left = [s for d in kept for s in d]
    assert left == [s for s in sentences if s in set(left)]  # in order, none double
    stats = json.loads((tmp_path / "kept" / "stats.json").read_text())
    assert stats["text"]["documents"] == 90 and stats["text"]["sentences"] == len(sentences)
    assert stats["corpus"] == {"documents": len(kept), "sentences": len(left),
                               "words": sum(len(s.split()) for s in left)}
    folder = tmp_path / "kept" / "classification" / "SST-2"
    tested = {row[1] for row in read_tsv(folder / "test.tsv")[1:]}
    tested |= {row[0] for row in read_tsv(folder / "dev.tsv")[1:]}
    gone = set(sentences) - set(left)
    assert 0 < len(gone) < len(sentences) / 5
    if label != "neighbours":  # whose rows are two sentences
        assert not tested & set(left)
    # Nothing is glued together that did not stand together.
    borders = {(a, b) for d in documents for a, b in zip(d, d[1:], strict=False)}
    assert {(a, b) for d in kept for a, b in zip(d, d[1:], strict=False)} <= borders


def test_it_is_told_how_far_a_large_text_is(tmp_path, small_memory, monkeypatch, caplog):
    caplog.set_level("INFO", "albert")
    write_text(tmp_path / "in.txt", documents=60, sentences=40)
    size = (tmp_path / "in.txt").stat().st_size / 1e6
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress((tmp_path / "in.txt").read_bytes()))
    packed = (tmp_path / "in.txt.gz").stat().st_size / 1e6
    clock = itertools.count(0, 10)  # each look at it takes ten seconds
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    for name, total in (("in.txt", size), ("in.txt.gz", packed)):
        caplog.clear()
        helpers.run_here(prepare_text, f"--input_file={tmp_path / name}",
                         f"--output_dir={tmp_path / 'out'}")
        for what, whole in (("reading", total), ("writing", None)):
            told = re.findall(rf"{what}: ([0-9.]+) of ([0-9.]+) MB, [0-9.]+/s, ([0-9]+) s left",
                              caplog.text)
            assert 5 < len(told) < 50, caplog.text  # one in 30 seconds
            done = [float(so_far) for so_far, *_ in told]
            assert done == sorted(done) and done[-1] <= float(told[-1][1])
            assert whole is None or {end for _, end, _ in told} == {f"{whole:,.1f}"}
    with open(tmp_path / "in.txt", "rb") as stream:
        caplog.clear()
        reader = subprocess.Popen(["cat"], stdin=stream, stdout=subprocess.PIPE)
        helpers.run_here(prepare_text, f"--input_file=/dev/fd/{reader.stdout.fileno()}",
                         f"--output_dir={tmp_path / 'out'}")
    assert re.search(r"reading: [0-9.]+ MB, [0-9.]+/s\n", caplog.text)


def test_a_large_text_of_one_document_is_cut(tmp_path, small_memory, monkeypatch):
    monkeypatch.setattr(text_corpus, "_SAMPLE", 60_000)
    write_text(tmp_path / "in.txt", documents=1, sentences=2000)
    kept = large(tmp_path, "out", "--label=part", "--num_dev=40", "--num_test=40")
    assert max(map(len, kept)) == 50 and 20 < len(kept) <= 40
    assert json.loads((tmp_path / "out" / "stats.json").read_text())["pseudo_documents"] is True
