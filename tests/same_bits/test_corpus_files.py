"""A corpus in any format gives the same documents, and its format is logged."""

import gzip
import itertools
import json
import os
import pathlib
import sys

import jobs
import pytest
import sentencex
from damage import flipped
from helpers import assert_one_clear_line, run_here

from albert import create_pretraining_data, train_sentencepiece
from albert.errors import DataError
from albert.records import manifests
from albert.text import corpus_files, sentences, structured_files
from albert.text.corpus_files import Form
from albert.text.documents import ReadingCounts, read_documents, sentences_of

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
    pyarrow.parquet.write_table(table, path, row_group_size=7, write_page_checksum=True)
    return path


def read(*paths, form=None, counts=None) -> list[list[str]]:
    paths, form = [str(path) for path in paths], form or Form()
    documents = list(read_documents(paths, str, counts or ReadingCounts(), form=form))
    return [sentences_of(document, form.language) for document in documents]


@pytest.fixture
def folder(tmp_path):
    words = [f"w{i}" for i in range(40)]
    (tmp_path / "vocab.txt").write_text("\n".join([*jobs.SPECIALS, *words, "e", "."]) + "\n")
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


def test_every_form_gives_the_documents_of_plain_text(folder):
    assert read(folder / "corpus.txt") == DOCUMENTS
    for name, write in FORMS.items():
        assert read(write(folder)) == DOCUMENTS, name
    form = Form(text_field="body")
    for write in (write_json, write_parquet):
        assert read(write(folder / "a.jsonl", field="body"), form=form) == DOCUMENTS


def test_records_of_other_forms_have_the_bytes_of_plain_text(folder):
    found = set()
    for path in (folder / "corpus.txt", FORMS["json"](folder), FORMS["parquet"](folder)):
        assert make(folder, path) == 0
        found.add((folder / "out.tfrecord").read_bytes())
    assert len(found) == 1


def test_an_object_is_one_document_whatever_lines_it_has(folder):
    texts = ["a\r\nb\n\n \n\tc\rd", "", None, "e", "\u2028f\ud800", *"g" * 40]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n\n" for t in texts))
    counts = ReadingCounts()
    found = read(folder / "a.jsonl", counts=counts)
    assert found[:2] == [["a", "b", "c", "d"], ["e"]] and found[2][0].startswith("f")
    assert len(found) == 43 and counts.bad_utf8_lines == 1


def test_what_is_no_utf8_in_json_is_replaced_and_counted_as_in_plain_text(folder):
    path, counts = folder / "a.jsonl", ReadingCounts()
    path.write_bytes(b'{"text": "caf\xe9"}\n' + b'{"text": "b"}\n' * 40)
    found = read(path, counts=counts)
    assert found[0] == ["caf\ufffd"] and len(found) == 41 and counts.bad_utf8_lines == 1
    # Half of a surrogate pair
    texts = ["cut \ud83d", "\ude00 cut", "a pair \ud83d\ude00", "word " * 9]
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts * 9))
    with pytest.raises(DataError, match="a.jsonl:1:1: not UTF-8 text"):  # half of the lines
        read(path)
    (folder / "good.txt").write_text("good\n" * 999)
    found = read(path, folder / "good.txt", counts=(counts := ReadingCounts()))
    assert found[:3] == [["cut \ufffd"], ["\ufffd cut"], ["a pair \U0001f600"]]
    assert counts.bad_utf8_lines == 18


# --- Folders ---


def touch(folder, *names) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")


def find(folder) -> list[str]:
    return [os.path.relpath(path, folder) for path in corpus_files.find(str(folder), "input_file")]


def test_a_folder_is_all_files_below_it_once_and_in_order_without_hidden_ones(tmp_path):
    touch(tmp_path, "b/2.txt", "a.txt", "b/1.jsonl", ".hidden", "b/.git/x", "z.txt")
    assert find(tmp_path) == ["a.txt", "b/1.jsonl", "b/2.txt", "z.txt"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="^input_file: no file below the directory"):
        find(tmp_path / "empty")
    # Also behind symbolic links, even circular ones.
    touch(tmp_path, "corpus/a.txt", "elsewhere/b.txt")
    (tmp_path / "corpus/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "corpus")
    assert find(tmp_path / "corpus") == ["a.txt", "linked/b.txt"]


# --- Document boundaries in plain text ---


@pytest.mark.parametrize(("texts", "documents", "is_said"), [
    ([as_text()], 30, False),
    # One paragraph a line, a blank line between two books, as in the original.
    (["\n".join(["w1 " * 300] * 50) + "\n\n" + "\n".join(["w2 " * 300] * 50)], 2, False),
    (["\n\n" + "a\n" * 9 + "\n\n"], 9, True), (["a\nb\n", "a\n\nb\nc\n"], 4, True),
    ([""], 0, False), (["a " * 900], 1, False), (["a\r\nb\r\n\r\nc\r\n"], 2, False),
    *(([f"a\nb\n{blank}\nc\n"], 2, False) for blank in (" ", " \t", "\u3000 \u3000", "\u00a0", "\u2003")),
])
def test_blank_lines_separate_documents_and_where_there_are_none_each_line_is_one(
    texts, documents, is_said, tmp_path, caplog
):
    paths, counts = [], ReadingCounts()
    for number, text in enumerate(texts):
        paths.append(str(tmp_path / f"{number}.txt"))
        pathlib.Path(paths[-1]).write_text(text, encoding="utf-8")
    assert len(read(*paths, counts=counts)) == documents
    counts.warn()
    said = f"{paths[0]}: no blank line separates documents, so each line is one"
    assert (said in caplog.text) == ("so each line is one" in caplog.text) == is_said


def test_the_flag_decides_otherwise(folder):
    path = folder / "text"
    path.write_text("w1 w2\nw3 w4\n\nw5 w6\n")
    for layout, lengths in (("blank_lines", [2, 1]), ("lines", [1, 1, 1]), ("files", [3])):
        assert list(map(len, read(path, form=Form(layout)))) == lengths
        assert make(folder, path, f"--document_layout={layout}") == 0
        manifest = manifests.Manifest.read(str(folder / "out.tfrecord"))
        assert manifest.info["documents"] == len(lengths)
    path.write_text('{"x": 1}\n{"x": 2}\n')
    assert read(path, form=Form("blank_lines")) == [['{"x": 1}', '{"x": 2}']]


def test_very_long_documents_are_cut_and_counted(folder, monkeypatch, caplog):
    from albert.text import documents

    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 200)
    (folder / "text").write_text("w1 w2 w3\n" * 300)
    counts = ReadingCounts()
    found = list(read_documents([str(folder / "text")], str, counts, form=Form("blank_lines")))
    assert all(200 <= sum(map(len, document)) < 210 for document in found[:-1])
    assert sum(map(len, found)) == 300 and counts.cut_documents == len(found) - (300 % 25 > 0)
    assert make(folder, folder / "text", "--document_layout=blank_lines") == 0
    assert "very long documents were divided at 12 positions" in caplog.text


def test_lines_are_split_into_sentences_on_request(folder):
    text = "W1 w2. W3 w4! W5?\n\nW6 said: “W7. W8?” Then w9.\n" + "".join(
        f"W1 w2. W3 w4! W5? W{i}.\n\nW6 said: “W7. W8?” Then w{i}.\n" for i in range(30))
    (folder / "text").write_text(text, encoding="utf-8")
    lines = [["W1 w2.", "W3 w4!", "W5?"], ["W6 said: “W7.", "W8?”", "Then w9."]]
    for layout, expected in (("lines", lines), ("blank_lines", [lines[0], [*lines[1], *lines[0], "W0."]])):
        assert read(folder / "text", form=Form(layout, language="en"))[:2] == expected
        outputs = set()
        for more in (["--split_sentences"], []):
            assert make(folder, folder / "text", f"--document_layout={layout}", *more) == 0
            outputs.add((folder / "out.tfrecord").read_bytes())
        assert len(outputs) == 2


# --- Files that are not a corpus ---


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
    assert sentences.split_sentences(paragraph) == expected


def test_splitting_loses_no_text(golden_path):
    text = golden_path("pretraining_data/corpus.txt").read_text(encoding="utf-8")
    for paragraph in (text, *text.split("\n\n"), *text.split("\n")):
        assert "".join("".join(sentences.split_sentences(paragraph)).split()) == "".join(paragraph.split())


@pytest.mark.parametrize("language", ["pt-BR", "ceb", "war", "arz", "als", "nah", "scn", "gsw", "haw", "xx"])
def test_any_language_is_split_by_its_own_rules_or_those_of_english(language):
    assert sentences.split_sentences("Kuta wapala. Mixa tunelo.", language) == [
        "Kuta wapala.", "Mixa tunelo."
    ]


def test_copies_of_raw_documents_are_dropped_and_counted(folder, caplog):
    path = folder / "text"
    path.write_text("One is.\nTwo.\n\nThree.\n\nOne is.\nTwo.\n\nTwo.\n")
    counts = ReadingCounts()
    found = read(path, form=Form(language="en"), counts=counts)
    assert found == [["One is.", "Two."], ["Three."], ["Two."]]
    assert (counts.documents, counts.copies) == (3, 1)
    assert len(read(path)) == 4
    counts.warn()
    assert "dropped 1 document(s): copies of earlier ones" in caplog.text


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


REFUSED = [  # file, content, message
    ("a.jsonl", b'{"text": "a"}\nno\n', "a.jsonl:2: not a JSON object on one line"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "b\n', "a.jsonl:2: not a JSON object on one line"),
    ("a.jsonl", b"plain\n", "a.jsonl:1: not a JSON object on one line"),
    ("a.jsonl", b'{"body": "a", "id": 1}\n',
     "a.jsonl:1: no field 'text' (there are: body; id): name one with --text_field"),
    ("a", b'{"body": "a", "id": 1}\n', "a:1: no field 'text' (there are: body; id)"),
    ("a.jsonl", b'{"text": 7}\n', "a.jsonl:1: 'text' is int, not text"),
    ("a.jsonl", b'{"text": "a\\u0000"}\n', "a.jsonl:1: a NUL character in 'text'"),
    ("a.parquet", b"PAR1" + b"x" * 99, "damaged or truncated Parquet file"),
    ("a.csv", b"id,text\n1,a\n", "a.csv: a table, not text: save its texts as JSON lines"),
]


def test_what_cannot_be_read_is_one_line_and_nothing_is_left(folder, capsys):
    for name, content, said in REFUSED:
        (folder / name).write_bytes(content)
        before = sorted(path.name for path in folder.iterdir())
        assert make(folder, folder / name) == 2
        assert said in assert_one_clear_line(capsys.readouterr().err)
        assert run_here(train_sentencepiece, f"--input={folder / name}",
                        f"--model_prefix={folder}/out") == 2
        assert said in assert_one_clear_line(capsys.readouterr().err)
        assert sorted(path.name for path in folder.iterdir()) == before
    for name, content in (("a.jsonl", b'{"text": ""}\n{"text": " \\n"}\n'), ("b", b"\n \n")):
        (folder / name).write_bytes(content)
        assert make(folder, folder / name) == 2
        assert "only blank lines" in capsys.readouterr().err.splitlines()[-1]
        assert not (folder / "out.tfrecord").exists()


def test_a_table_without_the_column_names_those_there_are(folder, capsys):
    write_parquet(folder / "a", field="body")
    assert make(folder, folder / "a") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "a: no column 'text' (there are: id; body): name one with --text_field" in line
    assert make(folder, folder / "a", "--text_field=id") == 2
    assert "'id' holds int64, not text" in assert_one_clear_line(capsys.readouterr().err)


def test_a_csv_is_text_if_the_layout_says_so(folder):
    (folder / "a.csv").write_text("w1,w2\nw3\n")
    assert read(folder / "a.csv", form=Form("lines")) == [["w1,w2"], ["w3"]]


def test_parquet_with_huge_texts_is_refused_by_its_row(folder, monkeypatch):
    monkeypatch.setattr(structured_files, "LONGEST_OBJECT", 1000)
    path = write_parquet(folder / "a", [["w1"]] * 40 + [["w2 " * 400]])
    with pytest.raises(DataError, match="a: row [0-9]+: more than 0 MB of text in [0-9]+ rows: divide"):
        read(path)


def test_no_row_is_lost_by_a_damaged_header_of_a_page_which_has_no_checksum(folder):
    import pyarrow.parquet

    content, said = write_parquet(path := folder / "a").read_bytes(), ""
    with pyarrow.parquet.ParquetFile(path) as file:
        header = file.metadata.row_group(0).column(1).data_page_offset
    for at, bit in itertools.product(range(header, header + 20), range(8)):
        path.write_bytes(flipped(content, at, 1 << bit))
        try:
            assert len(read(path)) == len(DOCUMENTS)
        except DataError as error:
            said += str(error)
    assert " rows can be read" in said


def test_parquet_that_cannot_be_opened_says_what_to_do(folder, monkeypatch):
    path = write_parquet(folder / "a")
    with pytest.raises(DataError, match="a.gz: Parquet that is compressed, or comes from a pipe"):
        read(packed(path))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="Parquet needs pyarrow: pip install pyarrow"):
        read(path)
