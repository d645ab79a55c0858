"""Tables in the forms that people have: read, answered row by row, and written back."""

import csv
import gzip
import json
import pathlib
import random

import pytest
from helpers import assert_one_clear_line, run_here
from jobs import WORDS

import albert
from albert import predict
from albert.cli import answering
from albert.errors import DataError, FlagError
from albert.tasks import lines
from albert.tasks import table as tables
from albert.tasks.glue import Example

ROWS = [("so good", "pos"), ("so bad", "neg")]


def read(path: pathlib.Path, content: str | bytes, encoding=None) -> list[tuple]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return rows_of(examples_of(path, encoding=encoding))


def examples_of(path: pathlib.Path, **options) -> list[Example]:
    table = tables.read_table(str(path), "train_file", **options)
    return tables.read_examples(table, tables.find_columns(table))


def rows_of(found: list[Example]) -> list[tuple]:
    return [(*filter(None, (one.text_a, one.text_b)), one.label) for one in found]


def cells(table: tables.Table) -> list[list]:
    return [list(row) for row in zip(*map(table.cells, range(len(table.names))))]


SAME = [  # the same two rows, as various programs write them
    ("a.csv", "text,label\nso good,pos\nso bad,neg\n"),
    ("a.csv", "text,label,,\nso good,pos,,\nso bad,neg,,\n"),  # Kaggle's empty columns
    ("a.csv", "text,label,,\nso good,pos\nso bad,neg,,,,\n"),
    ("a.csv", ",text,label\n0,so good,pos\n1,so bad,neg\n"),  # the index of pandas
    ("a.csv", " text , label \nso good,pos\nso bad,neg\n"),
    ("a.csv", "text;label\r\nso good;pos\r\nso bad;neg\r\n"),  # Excel, with decimal commas
    ("a.csv", 'text;label\nso good;"pos"\nso bad;neg\n'),
    ("a.csv", "text\tlabel\nso good\tpos\nso bad\tneg\n"),
    ("a.CSV", '"text","label"\n"so\ngood",pos\n\n"so bad","neg"\n'),
    ("a.csv", b"\xef\xbb\xbftext,label\nso good,pos\nso bad,neg\n"),
    ("a.csv", '\ufefftext;label\r\n"so\r\ngood";pos\r\nso bad;neg\r\n'),
    ("a.tsv.gz", gzip.compress(b"text\tlabel\n\nso good\tpos\n\n\nso bad\tneg\n")),
    ("a.json", json.dumps([{"text": t, "label": k} for t, k in ROWS])),
    ("a.json", json.dumps([{"text": t, "label": k} for t, k in ROWS], indent=2)),
    ("a.json", "".join(json.dumps({"text": t, "label": k}) + "\n" for t, k in ROWS)),
    ("a.jsonl.gz", gzip.compress(b"".join(
        json.dumps({"text": t, "label": k, "more": None}).encode() + b"\n" for t, k in ROWS
    ))),
]


def test_what_programs_write_is_read_as_the_same_rows(tmp_path):
    for number, (name, content) in enumerate(SAME):
        assert read(tmp_path / name, content) == ROWS, number


def test_parquet_is_a_table_too(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"id": [7, 8, 9], "text": ["so good", None, "so bad"], "label": [1, 0, 0]})
    parquet.write_table(table, path)
    assert read(path, path.read_bytes()) == [("so good", "1"), ("so bad", "0")]
    with pytest.raises(DataError, match="a.parquet: row 1: label '1' is not one of yes, no"):
        tables.with_known_labels(examples_of(path), ["yes", "no"], str)
    # Not every program says which bytes are text.
    parquet.write_table(pyarrow.table({"text": ["schön".encode(), b"no"], "label": [b"1", b"0"]}), path)
    assert read(path, path.read_bytes()) == [("schön", "1"), ("no", "0")]
    parquet.write_table(pyarrow.table({"text": [b"so", "schön".encode("latin-1")]}), path)
    with pytest.raises(DataError, match="a.parquet: row 2: column 'text' holds bytes that are not UTF-8"):
        tables.read_table(str(path), "train_file").texts(0)


def test_quotation_marks_of_tab_separated_text_stay_unless_a_delimiter_is_given(tmp_path):
    stray = '"Oh" he said\t1\nan "odd\t0\n"end\t1\n'
    assert read(tmp_path / "a.tsv", "text\tlabel\n" + stray) == [
        ('"Oh" he said', "1"), ('an "odd', "0"), ('"end', "1")
    ]
    # Rows between two stray quotation marks are not a multi-line cell.
    between = 'text\tlabel\n"begins\t1\nso\t0\nends"\t1\n'
    assert [row[0] for row in read(tmp_path / "a.tsv", between)] == ['"begins', "so", 'ends"']
    quoted = 'text\tlabel\n"say ""yes"",\nnow"\t1\nno\t0\n'  # as pandas writes them
    with pytest.raises(DataError, match=r"a\.tsv:2: 1 columns, .* --delimiter=tab if a \*\.tsv quotes"):
        read(tmp_path / "a.tsv", quoted)
    table = tables.read_table(str(tmp_path / "a.tsv"), "train_file", delimiter="\t")
    assert cells(table) == [['say "yes",\nnow', "1"], ["no", "0"]] and table.lines == [2, 4]
    pipes = tmp_path / "a.txt"
    pipes.write_text("so, good|pos\n")
    table = tables.read_table(str(pipes), "train_file", False, delimiter="|")
    assert (table.names, cells(table)) == (["0", "1"], [["so, good", "pos"]])


def test_the_first_line_is_a_header_in_every_table_but_txt_unless_a_flag_says_otherwise(tmp_path):
    content = "Content\tscore\nso good\t1\n"
    for name, given, is_header in (
        ("a.tsv", None, True), ("a.csv", None, True), ("a.txt", None, False), ("a.txt", True, True),
        ("a.tsv", False, False), ("a.tsv.gz", None, True),
    ):
        packed = gzip.compress(content.encode()) if name.endswith("gz") else content.encode()
        (tmp_path / name).write_bytes(packed)
        path = str(tmp_path / name)
        table = tables.read_table(path, "f", given, delimiter="\t")
        rows = [["Content", "score"], ["so good", "1"]]
        assert cells(table) == rows[is_header:], name
        assert [*table.names] == (rows[0] if is_header else ["0", "1"])


def test_another_encoding_is_read_on_request_and_named_in_the_refusal(tmp_path):
    content = "text,label\nso good,pos\ncafé,neg\n".encode("cp1252")
    with pytest.raises(DataError, match=r"a\.csv:3: not UTF-8 text .* pass --encoding=cp1252"):
        read(tmp_path / "a.csv", content)
    assert read(tmp_path / "a.csv", content, "cp1252")[1] == ("café", "neg")
    content = "text\tlabel\nso\t1\n".encode("utf-16")  # as spreadsheets write "Unicode text"
    said = r"a\.tsv:1: not UTF-8 .*, or pass --encoding=cp1252 \(or utf-16\) if"
    with pytest.raises(DataError, match=said):
        read(tmp_path / "a.tsv", content)
    assert read(tmp_path / "a.tsv", content, "utf-16") == [("so", "1")]


def test_rows_without_text_or_label_are_left_out_and_counted(tmp_path, caplog):
    found = read(tmp_path / "a.csv", "text,label\nso good,pos\n,pos\nso bad,\n  ,\nso bad,neg\n")
    assert found == ROWS
    assert "skipped 3 of 5 rows without text or label, the first at" in caplog.text
    assert "a.csv:3: column 'text' is empty" in caplog.text
    with pytest.raises(DataError, match=r"a\.csv:2: column 'label' is empty, and every"):
        read(tmp_path / "a.csv", "text,label\na,\nb,\n")


REFUSED = [
    ("a.csv", "text,label\na,1\nb,0,more\n", r"a\.csv:3: 3 columns, the first line has 2"),
    ("a.csv", 'text,label\na,1\n"two\nlines",1,2\n', r"a\.csv:3: 3 columns"),
    ("a.tsv", "text\tlabel\na\t1\n\na\n", r"a\.tsv:4: 1 columns, the first line has 2"),
    *((name, content, rf"{name}:2: not UTF-8 text") for name, content in (
        ("a.tsv", b"text\tlabel\na\xff\t1\n"), ("a.csv", b"text,label\na\xff,1\n"),
        ("a.jsonl", b'\n{"text": "\xff"}\n'))),
    ("a.csv", "text,label\n", "no rows below"),
    ("a.csv", "", "the file is empty"),
    ("a.jsonl", '{"text": "a"\n', r"a\.jsonl:2:1: not JSON: .*, in the value that begins at line 1"),
    ("a.csv", "text,label\na,1\nb,1\n", "only one label"),
    ("a.csv", "text,label\n" + "".join(f"t{i},{i}\n" for i in range(30)),
     "30 different values in 30 rows, .* Pass --label_column"),
    ("a.csv", 'text,label\na,1\n"open,1\nb,0\n', r'a\.csv:3: a " opens in this row and is not closed'),
    ("a.csv", "sep=;\ntext;label\na;1\n", r"a\.csv:1: remove this line and pass --delimiter=';'"),
    ("a.csv", "text,label,text\na,1,b\n", r"a\.csv:1: two columns are named 'text': rename one, or "
     "pass a number as --text_column"),
    ("a.csv", "text,Label,label\na,1,b\n", r"a\.csv:1: two columns are named 'label'"),
    ("a.jsonl", '{"a": 1}\n{"text": "a", "text": "b"}\n', r"a\.jsonl:2: .* the key 'text' occurs twice"),
    ("a.jsonl", '{"text": ["a"], "label": 1}\n', r"a\.jsonl:1: column 'text' holds a list, not text"),
    ("a.jsonl", '{"text": "a", "label": {"b": 1}}\n', r"column 'label' holds an object, not text"),
    ("a.json", '[\n{"text": "a", "label": 1},\n{"text": }]', r"a\.json:3:10: not JSON"),
    ("a.json", '[\n{"text": "a", "label": 1},\n7]', r"a\.json:3: expected a JSON object, got 7"),
    ("a.json", '[{"text": "a", "label": 1}', r"a\.json: the list is not closed"),
    ("a.parquet", "no", r"a\.parquet: damaged or truncated Parquet"),
    ("a.csv", "id,what,kind,\n1,2,3,\n", r"pass --text_column and --label_column, and for pairs "
     r"--text_pair_column; its columns are id, what, kind\. "
     "If these are data, pass --notsv_header, and columns by number: --text_column=0"),
    ("a.csv", f"a text {'of many words ' * 9},good,1\nb,bad,2\n",
     r"its columns are a text of many words of many w\.\.\., good, 1\. If these"),
]


def test_a_refusal_names_the_line_of_the_users_file(tmp_path):
    for name, content, message in REFUSED:
        with pytest.raises((DataError, FlagError), match=message):
            read(tmp_path / name, content)
            tables.labels_of(name, examples_of(tmp_path / name))


# --- Answers ---


@pytest.fixture(scope="module")
def told(classified, tmp_path_factory):
    """Function that answers a file; returns the exit code and the output."""
    folder = tmp_path_factory.mktemp("told")
    open_model, opened = answering.open_model, []

    def open_once(values):
        opened[:] = opened or [open_model(values)]
        return opened[0]

    def get(name, content, *flags, to="out.jsonl"):
        (folder / name).write_text(content, errors="surrogateescape")
        out = folder / to
        code = run_here(
            predict, f"--model={classified.out}", f"--input_file={folder / name}",
            f"--output_file={out}", *flags,
        )
        return out.read_text() if code == 0 else code

    get.session = albert.open_session(str(classified.out))
    with pytest.MonkeyPatch.context() as patch:  # a graph takes longer than all tables
        patch.setattr(answering, "open_model", open_once)
        yield get


TEXTS = [" ".join(WORDS[i : i + 4]) for i in range(3)]


def labels(told, texts):
    return [one["label"] for one in told.session.classify(texts)]


def test_each_row_of_a_table_is_answered_by_its_text(told):
    expected = [json.loads(json.dumps(one)) for one in told.session.classify(TEXTS)]
    table = "id,Text,note\n" + "".join(f'{i},"{t}",x\n' for i, t in enumerate(TEXTS))
    lined = table.replace("w1 w2", "w1\nw2")  # a text with a line break
    for name, content, flags in (
        ("a.csv", table, []), ("a.csv", lined, []),
        ("a.csv", table.replace("Text", "words"), ["--text_column=words"]),
        ("a.csv", "\n".join(TEXTS), ["--notsv_header"]),
        ("a.csv", table.replace(",", ";").replace('"', ""), ["--delimiter=;"]),
        ("a.tsv", "id\tsentence\n" + "".join(f"1\t{t}\n" for t in TEXTS), []),
        ("a.tsv", "\n".join(TEXTS) + "\n", ["--notsv_header"]),
        ("a.txt", "\n".join(TEXTS) + "\n", []),
        ("a.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in TEXTS), []),
        ("a.json", json.dumps([{"text": t} for t in TEXTS]), []),
        ("a.txt", "some words\n" + "".join(f"{t}\n" for t in TEXTS), ["--tsv_header"]),
    ):
        answers = [json.loads(line) for line in told(name, content, *flags, to="answers").splitlines()]
        assert [one["label"] for one in answers] == [one["label"] for one in expected], (name, flags)
        for one, other in zip(answers, expected, strict=True):
            assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_a_table_is_written_back_with_its_answers(told):
    table = f'id,text,\n1,"{TEXTS[0]}",\n2,,\n3,"a ""b"", {TEXTS[1]}",\n'
    found = list(csv.reader(told("a.csv", table, to="out.csv").splitlines()))
    (one, two), rest = labels(told, [TEXTS[0], f'a "b", {TEXTS[1]}']), ["", "", "", ""]
    header = ["id", "text", "", "predicted_label", "predicted_probability", "probability_0",
              "probability_1"]
    assert found[0] == header and [row[:4] for row in found[1:]] == [
        ["1", TEXTS[0], "", one], ["2", "", "", ""], ["3", f'a "b", {TEXTS[1]}', "", two],
    ]
    assert found[2][3:] == rest and float(found[1][4]) == max(map(float, found[1][5:]))
    # Rerunning the command replaces its first answers.
    written = told("a.csv", table, to="out.csv")
    assert told("b.csv", written, to="again.csv") == told("b.CSV", written, to="again.CSV") == written
    # Also where quotes are text, and a line end cannot be part of a cell.
    quoted = told("a.tsv", f'text\tn\n"Oh" {TEXTS[0]}\t"\n', to="out.tsv")
    assert quoted.splitlines()[1].startswith(f'"Oh" {TEXTS[0]}\t"\t')
    assert told("b.tsv", quoted, to="again.tsv") == quoted
    parted = told("a.jsonl", json.dumps({"text": "a\n\tb", "n": ["x"]}), to="out.tsv")
    assert parted.splitlines()[1].startswith('a  b\t["x"]\t')
    rows = "".join(json.dumps({"text": t, "n": [1]}) + "\n" for t in TEXTS)
    lines = told("a.jsonl", rows, to="out.jsonl").splitlines()
    assert [json.loads(line)["predicted_label"] for line in lines] == labels(told, TEXTS)
    assert json.loads(lines[0])["n"] == [1]  # other columns stay as they are


def test_tables_that_cannot_be_answered_are_refused_in_a_line(told, capsys):
    for name, content, flags, message in (
        ("a.csv", "text,b\n1,2\n", ["--text_column=c"], "has no such column (text, b)"),
        ("a.csv", "text\na\n", ["--encoding=none"], "unknown --encoding=none"),
        ("a.csv", "text\na\n", ["--delimiter=ab"], "--delimiter=ab: pass one character, or tab"),
        ("a.md", "text\n", ["--text_column=c"], "--text_column: only with a table as --input_file"),
        ("a.csv", "text,n,n\na,1,2\n", [], "a.csv have equal names (text, n, n): name it *.csv"),
    ):
        capsys.readouterr()
        assert told(name, content, *flags, to="no.jsonl" if "equal" in message else "no.csv") == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)


def test_a_table_that_was_written_is_read_as_the_same_cells(tmp_path):
    rng, parts = random.Random(0), ['"', ",", ";", "\t", "\n", "\r", " ", "é", "\u2028", "\x0c", "#", "0"]
    for number in range(60):
        rows = [["".join(rng.choices(parts, k=rng.randint(0, 4))) + "x" for _ in "ab"] for _ in "123"]
        for ending in ("csv", "tsv", "jsonl"):
            path = str(tmp_path / f"a.{ending}")
            tables.write_table(path, ["a", "b"], rows)
            if ending == "tsv":  # which has no quotes
                rows = [[lines.cell(cell) for cell in row] for row in rows]
            assert cells(tables.read_table(path, "input_file")) == rows, number


# --- A label is one thing, however it is written ---


def labelled(path: pathlib.Path, *labels) -> list[Example]:
    """Returns the examples of a table with these labels."""
    if path.suffix == ".csv":
        path.write_text("text,label\n" + "".join(f"t{i},{label}\n" for i, label in enumerate(labels)))
    else:
        lines = (json.dumps({"text": f"t{i}", "label": x}) for i, x in enumerate(labels))
        path.write_text("".join(f"{line}\n" for line in lines))
    return examples_of(path)


def test_a_label_is_the_same_alone_in_its_column_and_however_it_is_written(tmp_path, caplog):
    for written in (["1.0", "1.5", "2.0"], ["1", "1.5", "2"], [1.0, 1.5, 2.0], [1, 1.5, 2]):
        for name in ("a.csv", "a.jsonl"):
            found = labelled(tmp_path / name, *written)
            assert [one.label for one in found] == ["1", "1.5", "2"]
            assert tables.with_known_labels(found, ["1", "1.5", "2"], str, is_strict=False) == found
    for one, other in (
        ("yes", "yes\u200b"), ("yes", "\ufeffyes"), ("yes", "\u200eyes\u200f"), ("caf\u00e9", "cafe\u0301"),
        ("a b", " a\u00a0 b "), ("7", "7.0"), ("-3", "-3.00"),
    ):
        found = labelled(tmp_path / "a.csv", one, other, "no")
        first, second, third = (one.label for one in found)
        assert first == second != third
        assert tables.labels_of("a.csv", found * 2) == sorted({first, "no"})
    one, other = labelled(tmp_path / "a.jsonl", ["a", "b"], ["b", "a", "b"])
    assert one.label == other.label
    numbers = labelled(tmp_path / "a.csv", 10, 5, 10, 5)
    assert tables.labels_of("a.csv", numbers) == ["5", "10"]  # in the order of numbers
    assert tables.labels_of("a.csv", labelled(tmp_path / "a.csv", "--5", 10, "--5", 10)) == ["--5", "10"]
    lists = labelled(tmp_path / "a.jsonl", ["a"], None, ["b"], [])
    assert [one.label for one in lists] == [("a",), ("b",), ()]  # null is a gap
    assert "differ only" not in caplog.text
    for one, other in (("yes", "Yes"), ("1", "01"), ("YES", "yes")):  # labels of their own
        assert len(tables.labels_of("a.csv", labelled(tmp_path / "a.csv", one, other, "no") * 2)) == 3
        assert f"differ only by case or leading zeros: {' and '.join(sorted((one, other)))};" in caplog.text


def test_what_cannot_be_a_label_is_an_error(tmp_path):
    for label in ("None", "inf", "-inf", "NaT", "nan", "NULL"):
        with pytest.raises(DataError, match=f"a.csv:3: is the label '{label}' a missing value?"):
            tables.labels_of("a.csv", labelled(tmp_path / "a.csv", "yes", label, "no"))
    for vector in ([0, 1], [0.1, 0.9], [True, False], ["storm", 1]):
        said = r"a.jsonl:2: a list of labels has their names, not .*--label_columns"
        with pytest.raises(DataError, match=said):
            labelled(tmp_path / "a.jsonl", ["storm"], vector)
    with pytest.raises(DataError, match="a.jsonl has no label: there is nothing to learn"):
        tables.labels_of("a.jsonl", labelled(tmp_path / "a.jsonl", [], []))
    with pytest.raises(DataError, match="a.jsonl:3: label 'rain' is no list, unlike that of others"):
        labelled(tmp_path / "a.jsonl", ["storm"], None, "rain")
