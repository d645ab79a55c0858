"""A corpus in whatever form gives the same documents, and what its form is, is told."""

import gzip
import importlib.util
import json
import os
import pathlib
import sys
import threading

import pytest
import sentencex
from helpers import REPO, assert_one_clear_line, run, run_here

from albert import create_pretraining_data, prepare_text, train_sentencepiece
from albert.errors import DataError
from albert.records import records
from albert.text import corpus_files, sentences
from albert.text.corpus_files import Form
from albert.text.documents import ReadingCounts, read_documents, split_documents

if importlib.util.find_spec("pyarrow") is None:
    pytest.skip("pyarrow is not installed (extra: parquet)", allow_module_level=True)

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DOCUMENTS = [[f"w{d} w{n} w{d + n} é." for n in range(3 + d % 4)] for d in range(30)]


def as_text(documents=DOCUMENTS) -> str:
    return "\n\n".join("\n".join(lines) for lines in documents) + "\n"


def write_json(path: pathlib.Path, documents=DOCUMENTS, field="text", **more) -> pathlib.Path:
    lines = [json.dumps({"id": i, field: "\n".join(d)}, **more) for i, d in enumerate(documents)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_parquet(path, documents=DOCUMENTS, field="text", kind=None) -> pathlib.Path:
    import pyarrow.parquet  # it starts a thread, and test modules are forked (tests/support/parallel.py)

    if kind == "dictionary":
        kind = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    texts = pyarrow.array(["\n".join(d) for d in documents])
    table = pyarrow.table({"id": range(len(documents)), field: texts.cast(kind) if kind else texts})
    pyarrow.parquet.write_table(table, path, row_group_size=7)
    return path


def read(*paths, form=None) -> list[list[str]]:
    form = form or corpus_files.recognise([str(p) for p in paths], Form("auto"))
    documents = list(read_documents([str(p) for p in paths], str, ReadingCounts(), form=form))
    return split_documents(documents, form.language)


@pytest.fixture
def folder(tmp_path):
    words = [f"w{i}" for i in range(40)]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *words, "e", "."]) + "\n")
    (tmp_path / "corpus.txt").write_text(as_text(), encoding="utf-8")
    return tmp_path


def make(folder, path, *more) -> int:
    return run_here(
        create_pretraining_data, f"--input_file={path}", f"--output_file={folder}/out.tfrecord",
        f"--vocab_file={folder}/vocab.txt", "--max_seq_length=16", "--dupe_factor=3", *more,
    )


# --- One reader for all forms ---


def packed(path: pathlib.Path) -> pathlib.Path:
    other = path.with_name(path.name + ".gz")
    other.write_bytes(gzip.compress(path.read_bytes()))
    return other


FORMS = {
    "json": lambda folder: write_json(folder / "a.jsonl"),
    "packed json": lambda folder: packed(write_json(folder / "a.jsonl")),
    "json without its name": lambda folder: packed(write_json(folder / "a", ensure_ascii=False)),
    "parquet": lambda folder: write_parquet(folder / "a.parquet"),
    "parquet without its name": lambda folder: write_parquet(folder / "a", kind="large_string"),
    "a dictionary": lambda folder: write_parquet(folder / "a", kind="dictionary"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_documents_of_plain_text(form, folder):
    assert read(FORMS[form](folder)) == read(folder / "corpus.txt") == DOCUMENTS


@pytest.mark.parametrize("more", [(), ("--original_draw_order",)])
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_records_of_other_forms_have_the_bytes_of_plain_text(form, more, folder):
    assert make(folder, folder / "corpus.txt", *more) == 0
    expected = (folder / "out.tfrecord").read_bytes()
    assert make(folder, FORMS[form](folder), *more) == 0
    assert (folder / "out.tfrecord").read_bytes() == expected


def test_another_field_is_read_where_it_is_named(folder):
    form = Form("auto", text_field="body")
    for write in (write_json, write_parquet):
        assert read(write(folder / "a.jsonl", field="body"), form=form) == DOCUMENTS


def test_an_object_is_one_document_whatever_lines_it_has(folder):
    texts = ["a\r\nb\n\n \n\tc\rd", "", None, "e", "\u2028f\ud800", *"g" * 40]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n\n" for t in texts))
    counts = ReadingCounts()
    found = list(read_documents([str(folder / "a.jsonl")], str, counts, form=Form()))
    assert found[:2] == [["a", "b", "c", "d"], ["e"]] and found[2][0].startswith("f")
    assert len(found) == 43 and counts.bad_utf8_lines == 1


def test_what_is_no_utf8_in_json_is_counted_as_in_plain_text(folder):
    (folder / "a.jsonl").write_bytes(b'{"text": "caf\xe9"}\n' + b'{"text": "b"}\n' * 40)
    counts = ReadingCounts()
    found = list(read_documents([str(folder / "a.jsonl")], str, counts, form=Form()))
    assert found[0] == ["caf\ufffd"] and len(found) == 41 and counts.bad_utf8_lines == 1


def test_half_of_a_surrogate_pair_in_json_becomes_one_replacement_character(folder):
    texts = ["cut \ud83d", "\ude00 cut", "a pair \ud83d\ude00", "word " * 9]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts * 9))
    counts = ReadingCounts()
    with pytest.raises(DataError, match="a.jsonl:1:1: not UTF-8 text"):  # half of the lines
        list(read_documents([str(folder / "a.jsonl")], str, counts))
    good = folder / "good.txt"
    good.write_text("good\n" * 999)
    found = list(read_documents([str(folder / "a.jsonl"), str(good)], str, counts := ReadingCounts()))
    assert found[:3] == [["cut \ufffd"], ["\ufffd cut"], ["a pair \U0001f600"]]
    assert counts.bad_utf8_lines == 18


def test_all_commands_read_json_and_parquet(folder, tmp_path):
    documents = [[f"This is sentence {i} of {d} words." for i in range(9)] for d in range(12)]
    (folder / "plain.txt").write_text(as_text(documents))
    found = set()
    for path in (folder / "plain.txt", write_json(folder / "a.jsonl", documents),
                 write_parquet(folder / "a.parquet", documents)):
        out = folder / f"{path.name}.out"
        assert run_here(prepare_text, f"--input_file={path}", f"--output_dir={out}") == 0
        assert run_here(train_sentencepiece, f"--input={path}", f"--model_prefix={out}/spm",
                        "--vocab_size=36") == 0
        found.add(((out / "corpus.txt").read_bytes(), (out / "spm.model").read_bytes()))
    assert len(found) == 1


# --- Folders, lists, the standard input ---


def test_a_folder_is_all_files_below_it_in_order_without_hidden_ones(tmp_path):
    for name in ("b/2.txt", "a.txt", "b/1.jsonl", ".hidden", "b/.git/x", "z.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    found = corpus_files.find(str(tmp_path), "input_file")
    assert [os.path.relpath(path, tmp_path) for path in found] == [
        "a.txt", "b/1.jsonl", "b/2.txt", "z.txt"
    ]
    with pytest.raises(DataError, match="--input_file: no file below the directory"):
        (tmp_path / "empty").mkdir()
        corpus_files.find(str(tmp_path / "empty"), "input_file")


def test_folders_behind_symbolic_links_are_read_once_even_if_they_lead_back(tmp_path):
    for name in ("corpus/a.txt", "elsewhere/b.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x\n")
    (tmp_path / "corpus/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "corpus")
    found = corpus_files.find(str(tmp_path / "corpus"), "input_file")
    assert [os.path.basename(path) for path in found] == ["a.txt", "b.txt"]


def test_a_list_names_files_globs_and_folders(tmp_path):
    for name in ("one.txt", "d/two.txt", "g1.txt", "g2.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    (tmp_path / "list").write_text(f"{tmp_path}/one.txt\n\n{tmp_path}/d\n{tmp_path}/g*.txt\n")
    found = corpus_files.find(f"@{tmp_path}/list", "input_file")
    assert [os.path.basename(path) for path in found] == ["one.txt", "two.txt", "g1.txt", "g2.txt"]
    with pytest.raises(DataError, match="is given twice"):
        corpus_files.find(f"@{tmp_path}/list,{tmp_path}/one.txt", "input_file")


def test_names_in_a_list_are_relative_to_it_and_it_may_not_name_itself(tmp_path, monkeypatch):
    (tmp_path / "data/more").mkdir(parents=True)
    (tmp_path / "data/one.txt").write_text("x\n")
    (tmp_path / "data/more/two.txt").write_text("x\n")
    (tmp_path / "data/list").write_text("one.txt\n@more/list\n")
    (tmp_path / "data/more/list").write_text("two.txt\n")
    monkeypatch.chdir(tmp_path)
    found = corpus_files.find("@data/list", "input_file")
    assert found == ["data/one.txt", "data/more/two.txt"]
    (tmp_path / "data/more/list").write_text("@../list\n")
    with pytest.raises(DataError, match="--input_file: the list .*data/more/../list names itself"):
        corpus_files.find("@data/list", "input_file")


@pytest.mark.parametrize("form", ["plain", "json"])
def test_the_standard_input_is_read_where_a_text_is_read_once(form, folder):
    documents = [[f"This is sentence {i} of {d} words." for i in range(9)] for d in range(12)]
    (folder / "plain").write_text(as_text(documents))
    write_json(folder / "json", documents)
    for name, path in (("a", folder / "plain"), ("b", "-")):
        with open(folder / form, "rb") as stream:
            done = run("albert.prepare_text", f"--input_file={path}",
                       f"--output_dir={folder / name}", stdin=stream, cwd=REPO)
        assert done.returncode == 0, done.stderr
        with open(folder / form, "rb") as stream:
            done = run("albert.train_sentencepiece", f"--input={path}", "--vocab_size=36",
                       f"--model_prefix={folder / name}/spm", stdin=stream, cwd=REPO)
        assert done.returncode == 0, done.stderr
    for name in ("corpus.txt", "spm.model"):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes()


# --- How documents lie in plain text ---

LONG = [" ".join(f"w{d} w{n}." for n in range(90)) for d in range(20)]


@pytest.mark.parametrize(("texts", "layout", "said", "documents"), [
    ([as_text()], "blank_lines", "a blank line ends a document", 30),
    (["\n".join(LONG)], "lines", "each line is a document (no blank line", 20),
    (["\n".join(LONG), "\n\n".join(LONG)], "blank_lines", "a blank line ends a document", 21),
    # A slip or two do not make two documents of many.
    (["\n".join([*LONG * 4, "", *LONG * 2])], "lines", "each line is a document (1 blank lines", 120),
    (["\n".join([*LONG, "", *LONG])], "blank_lines", "a blank line ends a document", 2),
    (["a\nb\n"] * 3, "blank_lines", "each file is a document", 3),
    (["a\nb\n"], "blank_lines", "all of it is one document", 1),
    (["\n\n" + "a\n" * 9 + "\n\n"], "blank_lines", "all of it is one document", 1),
    ([""], "blank_lines", "all of it is one document", 0),
    (["a " * 900], "blank_lines", "all of it is one document", 1),
])
def test_the_layout_is_recognised_and_logged(texts, layout, said, documents, tmp_path, caplog):
    caplog.set_level("INFO", "albert")
    paths = []
    for number, text in enumerate(texts):
        paths.append(str(tmp_path / f"{number}.txt"))
        pathlib.Path(paths[-1]).write_text(text)
    form = corpus_files.recognise(paths, Form("auto"))
    assert form.layout == layout and said in caplog.text
    assert len(read(*paths, form=form)) == documents


@pytest.mark.parametrize(("text", "said", "documents"), [
    ("\n".join(LONG), "each line is a document (no blank line", 20),
    ("\n".join(LONG) + "\n\n" + LONG[0], "a blank line ends a document", 2),
    ("a b\n" * 40, "all of it is one document", 1),
    ("".join(json.dumps({"text": line}) + "\n" for line in LONG), "each JSON object", 20),
    ("\n".join(LONG * 300), "each line is a document", 6000),  # more than a pipe holds
])
def test_the_layout_of_a_pipe_is_recognised_by_its_beginning_which_is_not_lost(
    text, said, documents, caplog
):
    caplog.set_level("INFO", "albert")
    read_end, write_end = os.pipe()

    def write() -> None:
        with open(write_end, "wb") as stream:
            stream.write(text.encode())

    thread = threading.Thread(target=write)
    thread.start()
    found = read(f"/dev/fd/{read_end}", form=Form("auto"))
    thread.join()
    os.close(read_end)
    assert len(found) == documents and f"documents: {said}" in caplog.text
    if "{" not in text:
        assert [line for document in found for line in document] == [
            line.strip() for line in text.split("\n") if line
        ]


@pytest.mark.parametrize(("layout", "lengths"), [
    ("blank_lines", [2, 1]), ("lines", [1, 1, 1]), ("files", [3]),
])
def test_the_flag_decides_otherwise(layout, lengths, folder):
    (folder / "text").write_text("w1 w2\nw3 w4\n\nw5 w6\n")
    assert list(map(len, read(folder / "text", form=Form(layout)))) == lengths
    assert make(folder, folder / "text", f"--document_layout={layout}") == 0
    manifest = records.Manifest.read(str(folder / "out.tfrecord"))
    assert manifest.info["documents"] == len(lengths)


def test_objects_in_a_text_that_is_none_of_json_are_read_as_they_are_on_request(tmp_path):
    (tmp_path / "a").write_text('{"x": 1}\n{"x": 2}\n')
    assert read(tmp_path / "a", form=Form("blank_lines", detects_json=False)) == [
        ['{"x": 1}', '{"x": 2}']
    ]


def test_very_long_documents_are_cut_and_told(folder, monkeypatch, caplog):
    from albert.text import documents

    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 200)
    (folder / "text").write_text("w1 w2 w3\n" * 300)
    counts = ReadingCounts()
    found = list(read_documents([str(folder / "text")], str, counts))
    assert all(200 <= sum(map(len, document)) < 210 for document in found[:-1])
    assert sum(map(len, found)) == 300 and counts.cut_documents == len(found) - (300 % 25 > 0)
    assert make(folder, folder / "text") == 0
    assert "very long documents were cut at 12 positions" in caplog.text


@pytest.mark.parametrize("layout", ["blank_lines", "lines"])
def test_lines_are_split_into_sentences_on_request(layout, folder):
    (folder / "text").write_text(
        "W1 w2. W3 w4! W5?\n\nW6 said: “W7. W8?” Then w9.\n" * 30, encoding="utf-8"
    )
    form = Form(layout, language="en")
    assert read(folder / "text", form=form)[:2] == [
        ["W1 w2.", "W3 w4!", "W5?"], ["W6 said: “W7.", "W8?”", "Then w9."]
    ] or layout == "blank_lines"
    outputs = set()
    for processes in (1, 2):
        assert make(folder, folder / "text", f"--document_layout={layout}", "--split_sentences",
                    f"--num_processes={processes}") == 0
        outputs.add((folder / "out.tfrecord").read_bytes())
    assert len(outputs) == 1


# --- What is none ---


def test_a_line_of_any_length_is_split_a_few_kilobytes_at_a_time(monkeypatch):
    sizes, segment = [], sentencex.segment
    monkeypatch.setattr(
        sentencex, "segment", lambda language, text: sizes.append(len(text)) or segment(language, text)
    )
    chinese = [f"这是第{i}个句子。" for i in range(3000)]
    assert sentences.split_sentences("".join(chinese), "zh") == chinese
    english = [f"Sentence {i} says: it is not the last, Mr. Smith." for i in range(1000)]
    assert sentences.split_sentences(" ".join(english)) == english
    assert max(sizes) <= 4096
    endless = "字" * 100_000  # nothing ends a sentence
    assert "".join(sentences.split_sentences(endless, "zh")) == endless
    assert max(sizes) <= 8 * 4096


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.jsonl", b'{"text": "a"}\nno\n', "a.jsonl:2: not a JSON object in one line"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "b\n', "a.jsonl:2: not a JSON object in one line"),
    ("a.jsonl", b"plain\n", "a.jsonl:1: not a JSON object in one line"),
    ("a.jsonl", b'{"body": "a", "id": 1}\n',
     "a.jsonl:1: no field 'text' (there are: body; id): name one with --text_field"),
    ("a", b'{"body": "a", "id": 1}\n', "a:1: no field 'text' (there are: body; id)"),
    ("a.jsonl", b'{"text": 7}\n', "a.jsonl:1: 'text' is int, not text"),
    ("a.jsonl", b'{"text": "a\\u0000"}\n', "a.jsonl:1: a NUL character in 'text'"),
    ("a.parquet", b"PAR1" + b"x" * 99, "damaged or truncated Parquet file"),
])
def test_what_cannot_be_read_is_one_line_and_nothing_is_left(
    name, content, message, folder, capsys
):
    (folder / name).write_bytes(content)
    before = sorted(path.name for path in folder.iterdir())
    assert make(folder, folder / name) == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert run_here(prepare_text, f"--input_file={folder / name}",
                    f"--output_dir={folder}/out") == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_table_without_the_column_names_those_there_are(folder, capsys):
    write_parquet(folder / "a", field="body")
    assert make(folder, folder / "a") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "a: no column 'text' (there are: id; body): name one with --text_field" in line
    assert make(folder, folder / "a", "--text_field=id") == 2
    assert "'id' holds int64, not text" in assert_one_clear_line(capsys.readouterr().err)


def test_without_pyarrow_parquet_says_what_to_install(folder, monkeypatch):
    write_parquet(folder / "a")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="Parquet needs pyarrow: pip install pyarrow"):
        read(folder / "a")


def test_parquet_that_is_packed_is_told_to_be_unpacked(folder):
    with pytest.raises(DataError, match="a.gz: Parquet that is compressed, or comes from a pipe"):
        read(packed(write_parquet(folder / "a")))


def test_a_corpus_without_a_readable_line_is_refused(folder, capsys):
    for name, content in (("a.jsonl", b'{"text": ""}\n{"text": " \\n"}\n'), ("b", b"\n \n")):
        (folder / name).write_bytes(content)
        assert make(folder, folder / name) == 2
        assert "only blank lines" in capsys.readouterr().err.splitlines()[-1]
        assert not (folder / "out.tfrecord").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(folder, capsys):
    (folder / "d").mkdir()
    (folder / "d" / "a").write_text("x\n")
    for path in (folder / "d" / "a", folder / "d"):
        path.chmod(0)
        assert make(folder, folder / "d") == 2
        assert "ermission denied" in assert_one_clear_line(capsys.readouterr().err)
        path.chmod(0o700)
