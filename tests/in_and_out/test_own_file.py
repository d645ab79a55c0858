"""A classifier for your own texts in one file: read, interpreted, split, trained, reported, served."""

import contextlib
import csv
import json
import re
import shutil

import jobs
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_one_clear_line, assert_same_records, results_of, run_here
from jobs import WORDS, classify

import albert
from albert import convert_hf, predict, run_classifier
from albert.cli import classifier_report, flags, own_texts
from albert.cli.encoder import open_encoder
from albert.errors import DataError, FlagError
from albert.tasks import glue
from albert.tasks import table as tables
from albert.tasks.classification import several_label_scores
from albert.tasks.fine_tuning_data import warn_of_labels
from albert.tasks.glue import Example
from albert.training import evaluate
from albert.training.metrics import read_metrics

CLASSES = ("bad", "so, so")


def rows(count=120, seed=0):
    """Texts whose first word determines the label."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        words = rng.choice(WORDS[10:], rng.integers(3, 9))
        yield " ".join([WORDS[i % 2], *words]), CLASSES[i % 2]


def write(path, found=None, names=("Review", "sentiment")):
    found = list(rows()) if found is None else found
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in found]
    elif path.suffix == ".csv":
        lines = [",".join(names), *(f'"{text}","{label}"' for text, label in found)]
    else:
        lines = ["\t".join(names), *("\t".join(row) for row in found)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return jobs.save_encoder(tmp_path_factory.mktemp("encoder"))


# --- Reading ---


def table_of(names, *rows) -> tables.Table:
    return tables.Table("x.csv", names, [*range(2, 2 + len(rows))], list(zip(*rows)).__getitem__)


def read(*given):
    values = flags.parse(run_classifier.define_flags, ["command", *given])
    return own_texts.read(values, open_encoder(values, None).tokenizer)


def test_half_of_a_surrogate_pair_in_json_is_replaced_and_counted(tmp_path, caplog):
    texts = ["cut \ud83d", "an emoji \U0001f600", "plain"]
    path = tmp_path / "my.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": "a"}) + "\n" for text in texts))
    table = tables.read_table(str(path), "train_file")
    assert table.texts(0) == ["cut \ufffd", "an emoji \U0001f600", "plain"]
    assert "my.jsonl: replaced lone surrogates by U+FFFD in 1 rows" in caplog.text


def test_columns_are_named_numbered_or_have_a_usual_name(tmp_path):
    table = table_of(["id", "what", "kind"], ["1", "a", "b"])
    assert tables.find_columns(table, "what", None, "2").label == 2
    with pytest.raises(FlagError, match="for pairs --text_pair_column; its columns are id, what, kind"):
        tables.find_columns(table)
    with pytest.raises(FlagError, match="--label_column=9: x.csv has no such column"):
        tables.find_columns(table, "what", None, "9")
    pair = table_of(["sentence1", "sentence2", "label"], ["a", "b", "c"])
    assert tables.find_columns(pair, "sentence2") == tables.Columns(1, None, 2)
    other = table_of(["UTTERANCE", "LABEL"], ["a", "b"])
    assert tables.find_columns(other) == tables.Columns(0, None, 1)


SENTENCES = ["is the sky blue in winter", "can a dog learn to read books"]
PAIRS = [  # header, the columns that are used
    ("question,passage,label", "question,passage"),  # BoolQ
    ("passage,question,label", "question,passage"),
    ("index,question,sentence,label", "question,sentence"),  # QNLI
    ("premise,choice,label", "premise,choice"),
    ("title,body,label", "body"),
    ("text,label", "text"),
    ("text,label,author", "text"),
    ("question,passage,label,comment", "question,passage"),
]


def test_two_columns_with_the_usual_names_are_a_pair_and_no_column_is_left_out_silently(tmp_path, caplog):
    caplog.set_level("INFO", "albert")
    for header, used in PAIRS:
        names = header.split(",")
        short = {"index": "7", "label": "yes", "author": "Ada Lovelace"}
        rows = [[short.get(name, sentence) for name in names] for sentence in SENTENCES]
        path = tmp_path / "x.csv"
        path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
        caplog.clear()
        table = tables.read_table(str(path), "train_file")
        columns = tables.find_columns(table)
        assert ",".join(names[n] for n in columns.texts) == used, header
        assert names[columns.label] == "label", header
        assert f"x.csv: columns {used.replace(',', ', ')}, label" in caplog.text
        for name in set(names) - {*used.split(","), "label"}:
            assert name in caplog.text.partition("not used: ")[2], header
    # A flag that names a text decides.
    columns = tables.find_columns(table, "comment")
    assert columns.texts == [3, 1] and "not used: question" in caplog.text
    assert "first line is data" not in caplog.text  # where a column has the name that is looked for


def test_the_log_asks_about_a_header_whose_names_say_nothing(caplog):
    caplog.set_level("INFO", "albert")
    tables.find_columns(table_of(("good film", "1"), ["bad film", "0"]), "0", None, "1")
    assert "columns good film, 1; --notsv_header if its first line is data" in caplog.text


def test_a_label_that_marks_a_missing_value_may_be_named(encoder, tmp_path):
    path = write(tmp_path / "a.csv", [*rows(20), ("w1 w2", "NaN"), *rows(2)])
    given = encoder, f"--train_file={path}", '--label_list=NaN,bad,"so, so"'
    assert read(*given)[0].labels[0] == "NaN"


def test_a_table_has_a_header_unless_a_flag_says_it_has_none(encoder, tmp_path):
    path, lines = tmp_path / "my.csv", [f'"{text}","{label}"' for text, label in rows(41)]
    path.write_text("review,stars\n" + "\n".join(lines) + "\n")
    for flag, expected in (
        ([], [*rows(41)]), (["--tsv_header"], [*rows(41)]),
        (["--notsv_header"], [*rows(41), ("review", "stars")]),
    ):
        data, _ = read(encoder, f"--train_file={path}", "--text_column=0", "--label_column=1", *flag)
        found = [(one.text_a, one.label) for part in data.examples.values() for one in part]
        assert sorted(found) == sorted(expected)


def test_a_column_without_a_name_is_known_by_its_number(encoder, tmp_path):
    """Else predict would read one text of a model for pairs."""
    (tmp_path / "my.csv").write_text(",b,label\n" + "".join(f"w{i},x{i},{'yn'[i % 2]}\n" for i in range(40)))
    data, _ = read(encoder, f"--train_file={tmp_path / 'my.csv'}", "--text_column=b", "--text_pair_column=0")
    assert data.settings == {"text_column": "b", "text_pair_column": "0"}


def test_numbers_that_32_bits_cannot_tell_apart_are_refused(encoder, tmp_path):
    """Rounded, they would all be predicted without an error."""
    for first, step, is_known in (
        (0.1, 0.1, True), (5, 0, True), (2e6, 10, True), (1.7e9, 1, False), (1e39, 1e38, False),
    ):
        path = tmp_path / "my.csv"
        path.write_text("text,score\n" + "".join(f"w{i},{first + i * step!r}\n" for i in range(40)))
        refused = pytest.raises(DataError, match="told apart in 32 bits")
        with contextlib.nullcontext() if is_known else refused:
            read(encoder, f"--train_file={path}", "--regression")


def _examples(found):
    return [Example(str(i), text, None, label) for i, (text, label) in enumerate(found)]


def test_a_row_stays_on_its_side_whatever_else_is_in_the_file():
    found = _examples(rows(2000))
    train, dev = tables.split_off(found, 0.1, seed=3)
    assert sorted([*train, *dev], key=lambda one: int(one.guid)) == found
    assert len(dev) / len(found) == pytest.approx(0.1, abs=0.02)
    held_out = {one.text_a for one in dev}
    labels = [one.label for one in dev]
    assert labels.count("bad") / len(dev) == pytest.approx(0.5, abs=0.1)
    # Rows are added before, deleted, put in another order, or their labels corrected.
    flipped = [(text, CLASSES[label == "bad"]) for text, label in rows(2000)]
    for changed in ([*rows(900, seed=1), *rows(2000)], list(rows(2000))[::3], flipped[::-1]):
        again = tables.split_off(_examples(changed), 0.1, seed=3)[1]
        known = {one.text_a for one in _examples(rows(2000))} & {text for text, _ in changed}
        assert {one.text_a for one in again} & known == held_out & known
    assert held_out < {one.text_a for one in tables.split_off(found, 0.2, seed=3)[1]}


def test_copies_of_a_text_are_on_one_side_whatever_their_case_and_label():
    found = list(rows(400))
    copies = [(text.title(), CLASSES[label == "bad"]) for text, label in found]
    train, dev = tables.split_off(_examples([*found, *copies]), 0.3, seed=3)
    assert len(dev) > 80
    assert not {one.text_a.lower() for one in train} & {one.text_a.lower() for one in dev}


def test_a_dev_file_that_was_trained_on_is_refused_or_loses_its_copies(tmp_path, encoder):
    train = write(tmp_path / "train.csv", list(rows(40)))
    same = write(tmp_path / "same.csv", list(rows(40))[::2])
    new = list(rows(10, seed=5))
    partly = write(tmp_path / "partly.csv", [*new, *list(rows(40))[:7]])
    with pytest.raises(DataError, match="same.csv: --train_file has all its texts, so nothing is held"):
        read(encoder, f"--train_file={train}", f"--dev_file={same}")
    data, choices = read(encoder, f"--train_file={train}", f"--dev_file={partly}")
    assert [one.text_a for one in data.examples["dev"]] == [text for text, _ in new]
    assert choices["held out"] == f"{partly} without 7 of 17 rows, which are in the training file too"


def test_other_rows_are_held_out_with_another_seed(tmp_path, encoder):
    path = write(tmp_path / "train.csv", list(rows(40)))
    found = [read(encoder, f"--train_file={path}", f"--seed={seed}")[0].examples["dev"] for seed in (1, 2, 1)]
    assert found[0] == found[2] != found[1]


# --- Labels ---


def test_labels_are_taken_as_they_are_written_or_as_texts_are_cleaned():
    table = table_of(["text", "label"], ["a", "Yes"], ["b", "NO"])
    found = tables.read_examples(table, tables.Columns(0, None, 1))
    found = tables.with_known_labels(found, ["no", "Yes"], str.lower)
    assert [example.label for example in found] == ["Yes", "no"]
    for label, is_number in (("1e-3", True), ("-2", True), ("nan", False), ("b", False)):
        assert (glue.number(label) is not None) == is_number


def test_a_label_whose_rows_are_all_held_out_is_named_so(caplog):
    warn_of_labels("my.csv", ["a"] * 5 + ["b"] * 5, ["a", "b", "loc", "org"], ["a", "loc"])
    assert caplog.messages == ["my.csv: every example of the label is held out: loc",
                               "my.csv: no training example has the label: org"]
    names = [f"label {i}" for i in range(14_000)]
    warn_of_labels("my.csv", names, names)
    assert len(caplog.messages[-1]) < 200 and caplog.messages[-1].endswith("; and 13994 more")


# --- The report ---


def test_the_report_says_what_each_label_was_taken_for(tmp_path):
    """And its mean leaves out labels that neither occur nor are predicted."""
    labels, found = ("a", "b|c", "absent"), np.eye(3)[[0, 1, 0, 0]] * [[0.9], [0.9], [0.8], [0.9]]
    rows = classifier_report.Rows(
        "4 held-out rows", np.array([0, 1, 1, 1]), found.argmax(-1),
        {"the most frequent label": np.ones(4, int)},
    )
    path = classifier_report.write(
        str(tmp_path), [f"text {i}" for i in range(4)], labels, [rows], found, {},
    )
    report = open(path, encoding="utf-8").read()
    assert "| actual \\ predicted | a | b\\|c | absent |\n" in report
    assert "| **a** | 1 | 0 | 0 |\n| **b\\|c** | 2 | 1 | 0 |\n" in report
    surest = "| text 3 | b\\|c | a | 0.900 |\n| text 2 | b\\|c | a | 0.800 |\n"
    assert surest in report and "text 0" not in report
    assert "| accuracy | 0.500 |" in report
    assert "| macro F1 | 0.500 |" in report
    assert "| the most frequent label: accuracy | 0.750 |" in report


# --- The command ---


def test_one_command_makes_a_classifier_that_learned_and_says_how_good_it_is(
    encoder, tmp_path, capsys
):
    """One of the labels has a comma and a space."""
    path, out = write(tmp_path / "my.csv"), tmp_path / "out"
    given = [encoder, f"--train_file={path}", f"--output_dir={out}"]
    training = ["--learning_rate=0.005", "--num_train_epochs=10", "--class_weights=balanced",
                "--cross_validation=0"]
    assert classify(*given, *training) == 0
    said = capsys.readouterr().err
    assert "columns Review, sentiment" in said and "held out: 11 of 120 rows" in said
    assert "--max_seq_length: 32 (" in said
    # 11 rows cannot tell which of the ten epochs was best.
    assert "11 held-out rows are too few to choose" in said
    assert evaluate.read_best(str(out))["step"] == results_of(out)["global_step"] == 69
    assert len(read_metrics(str(out), "eval")) == 10
    report = (out / "report.md").read_text()
    assert "best of" not in report
    accuracy = float(re.search(r"accuracy \| ([\d.]+)", report)[1])
    results = results_of(out)
    assert accuracy == pytest.approx(results["eval_accuracy"], abs=1e-3)
    assert accuracy > 0.8
    assert {"macro_f1", "f1_bad", "f1_so, so"} <= set(results) and "f1" not in results
    for part in ("macro F1", "| bad |", "| so, so |", "--learning_rate | 0.005 (given)",
                 "albert.predict --model=", "| actual \\ predicted | bad | so, so |"):
        assert part in report, part
    # The output contains no texts except those that the report shows.
    texts = [text.encode() for text, _ in rows()]
    for file in out.rglob("*"):
        assert file.name == "report.md" or not file.is_file() or not any(
            text in file.read_bytes() for text in texts
        ), file
    assert not [*tmp_path.rglob("*.tf_record*")] and not (tmp_path / ".out.work").exists()
    session = albert.open_session(str(out))
    assert session.max_seq_length == 32  # as it was trained
    answer = session.classify("w1 w20 w21 w22")
    assert set(answer["probabilities"]) == {"bad", "so, so"} and answer["label"] == "so, so"
    kept = {name: (out / name).read_bytes() for name in ("metrics.jsonl", "report.md")}
    weights = {path: path.stat().st_mtime_ns for path in out.glob("model.ckpt-*.data*")}
    capsys.readouterr()
    assert classify(*given, *training) == 0  # finished: nothing is trained again
    said = capsys.readouterr().err
    assert "already trained to step 69" in said
    assert {name: (out / name).read_bytes() for name in kept} == kept
    assert weights and {path: path.stat().st_mtime_ns for path in weights} == weights
    assert classify(*given, "--do_eval") == 0  # the same sequence length, so the same score
    assert "--max_seq_length: 32 (100 % of the texts fit)" in capsys.readouterr().err
    assert f"accuracy | {accuracy}" in (out / "report.md").read_text()


REFUSED = [
    (["--train_file=absent.csv"], "no such file: absent.csv"),
    (["--train_file=my.xlsx"], "my.xlsx: expected a *.csv"),
    (["--train_file=my.csv", "--task_name=rte"], "only one of --train_file and --task_name"),
    (["--train_file=my.csv", "--do_predict"], "--do_predict needs --test_file"),
    (["--train_file=my.csv", "--do_train"], "--train_file holds out rows for evaluation"),
    (["--train_file=my.csv", "--label_list=a,b,a"], "is not two or more different labels"),
    (["--train_file=my.csv", "--train_step=5", "--num_train_epochs=2"], "pass only one of --train_step"),
    (["--train_file=my.csv", "--dev_file=my.csv", "--dev_share=0.2"], "pass only one of --dev_file"),
    (["--train_file=my.csv", "--dev_file=my.csv", "--cross_validation=3"],
     "pass only one of --dev_file and --cross_validation"),
    (["--task_name=rte", "--data_dir=.", "--dev_share=0.2", "--text_column=a"],
     "--dev_share, --text_column: only with --train_file"),
    (["--train_file=my.csv", "--label_list=bad,good", "--regression"],
     "pass only one of --regression and --label_list"),
    (["--train_file=my.jsonl", "--notsv_header"],
     "--tsv_header and --delimiter have no effect on --train_file=my.jsonl"),
    (["--train_file=my.csv", "--text_column=1", "--label_column=1"], "must be different columns"),
    (["--train_file=my.csv", "--regression"], "my.csv:2: label 'bad' is not a number"),
    (["--train_file=my.csv", "--label_list=bad,best"],
     "my.csv:3: label 'so, so' is not one of bad, best"),
    (["--train_file=my.csv", "--init_checkpoint=."], ". holds neither"),
    (["--train_file=my.csv", "--class_weights=balanced", '--label_list=bad,worse,"so, so"'],
     "--class_weights=balanced: no training row has the label worse"),
    (["--train_file=numbers.csv", "--class_weights=balanced", "--regression"],
     "--class_weights needs one label per text"),
    (["--train_file=few.csv"], "few.csv: none of 2 rows is held out: give more rows, another --dev_share"),
]


REFUSED_TABLES = [  # content, flags, message
    ("text,a,b\nx,1,0\ny,2,1\n", ["--label_columns=a,b"], "t.csv:3: column 'a' must be 1 or 0"),
    ("text,a,b\nx,1,0\n", ["--label_columns=a,c"],
     "--label_columns=c: t.csv has no such column (text, a, b)"),
    ("text,a,b\nx,1,0\n", ["--label_columns=a,b", "--regression"],
     "pass only one of --label_columns and --regression"),
    ("text,label\nx,a\ny,b\nz,a\nu,b\n", ["--threshold=0.3"], "--threshold has no effect"),
    ("text,labels\nx,\"['a', 'b']\"\ny,\"['c']\"\n", [],
     "is a list: write JSON lines, or a column for each label"),
    ("text,labels\nx,\"['storm' 'none']\"\ny,\"['c']\"\n", [],
     "t.csv:2: the label \"['storm' 'none']\" is a list"),
    ("text,labels\nx,\ny,\"[1, 0]\"\n", [], "t.csv:3: the label '[1, 0]' is a list"),
]


def test_flags_that_do_not_fit_are_refused(encoder, tmp_path, monkeypatch, capsys):
    for name in ("my.csv", "my.jsonl"):
        write(tmp_path / name)
    write(tmp_path / "few.csv", [("w1", "a"), ("w2", "b")])
    write(tmp_path / "numbers.csv", [(text, i) for i, (text, _) in enumerate(rows(40))])
    (tmp_path / "my.xlsx").write_text("x")
    monkeypatch.chdir(tmp_path)

    def assert_refused(message, *arguments):
        assert classify(encoder, *arguments, f"--output_dir={tmp_path / 'out'}") == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert not (tmp_path / "out").exists() and not (tmp_path / ".out.work").exists(), message

    for arguments, message in REFUSED:
        assert_refused(message, *arguments)
    for content, arguments, message in REFUSED_TABLES:
        (tmp_path / "t.csv").write_text(content)
        assert_refused(message, "--train_file=t.csv", *arguments)


def test_settings_suit_the_sizes_of_model_and_data():
    rates = [own_texts.learning_rate("adamw", width) for width in (255, 256, 384, 768, 2048)]
    assert rates == [3e-4, 1e-4, 5e-5, 3e-5, 1e-5]
    # LAMB's updates are in proportion to the weights, whatever the width.
    assert {own_texts.learning_rate("lamb", width) for width in (128, 4096)} == {2e-3}
    assert [own_texts.best_optimizer(w, False) for w in (128, 256, 384)] == ["lamb", "lamb", "adamw"]
    assert own_texts.best_optimizer(128, has_pairs=True) == "adamw"
    assert [own_texts.epochs(count, False) for count in (999, 1000, 4999, 5000)] == [10, 5, 5, 3]
    assert [own_texts.epochs(count, True) for count in (399, 400, 4999, 5000)] == [10, 5, 5, 3]
    # A multiple of 16 that fits 99 of 100 texts, from 32 to the model's maximum.
    for lengths, most, expected in (
        ([9] * 99, 512, 32), ([9] * 98 + [33] * 2, 512, 48), ([9] * 99 + [33], 512, 48),
        ([9] * 199 + [33], 512, 32), ([999] * 9, 512, 512),
    ):
        assert own_texts.sequence_length(lengths, most) == expected


def test_rows_of_the_same_tokens_and_another_label_are_counted(encoder, tmp_path, begin, capsys):
    same = [("w1 w2 w3", "bad"), ("w1  w2 w3", "so, so"), ("w1 w2 😀", "bad"), ("w1 w2 😡", "so, so")]
    path = write(tmp_path / "my.csv", [*rows(80), *same])
    begin(classify, encoder, f"--train_file={path}", f"--output_dir={tmp_path / 'out'}")
    assert "contradictions: 4 of 84 rows have the same tokens as another row, and another" in (
        capsys.readouterr().err)
    write(tmp_path / "my.csv", [*rows(80), same[0], same[0]])
    begin(classify, encoder, f"--train_file={path}", f"--output_dir={tmp_path / 'out'}")
    assert "contradictions" not in capsys.readouterr().err


# --- Several labels ---

NAMES = ("funny", "long", "rude")


def several(count=40, seed=0):
    """Texts with w0, w1 and w2 for the labels; a few have none."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        found = rng.random(3) < 0.4
        words = [WORDS[i] for i in np.flatnonzero(found)]
        yield " ".join([*words, *rng.choice(WORDS[10:], 3)]), tuple(np.array(NAMES)[found].tolist())


def write_several(folder, kind="columns", name=None, seed=0):
    path = folder / f"{name or kind}.{'jsonl' if kind == 'json' else 'csv'}"
    with open(path, "w", newline="") as stream:
        if kind == "json":
            stream.writelines(json.dumps({"text": t, "labels": k}) + "\n" for t, k in several(seed=seed))
            return str(path)
        table = csv.writer(stream)
        table.writerow(["text", *NAMES])
        for text, found in several(seed=seed):
            table.writerow([text, *(int(name in found) for name in NAMES)])
    return str(path)


@pytest.fixture(scope="module")
def trained(encoder, tmp_path_factory):
    """The output directory, and the rows and predictions of the test set."""
    folder = tmp_path_factory.mktemp("several")
    path, other = write_several(folder), write_several(folder, name="other", seed=1)
    assert classify(
        encoder, f"--train_file={path}", f"--dev_file={other}", f"--test_file={other}",
        f"--label_columns={','.join(NAMES)}", f"--output_dir={folder / 'out'}", "--threshold=0.4",
        "--learning_rate=0.005", "--train_step=400", "--warmup_step=40", "--save_checkpoints_steps=200",
        f"--export_dir={folder / 'served'}",
    ) == 0
    return folder


def test_it_learns_and_each_label_is_scored_also_in_the_report(trained):
    results = json.loads((trained / "out/eval_results.json").read_text())
    assert {f"f1_{name}" for name in NAMES} < set(results)
    assert results["macro_f1"] > 0.75  # predicting every label: 2 * 0.4 / 1.4 = 0.57
    lines = (trained / "out/submit_results.tsv").read_text().splitlines()[1:]
    found = [tuple(json.loads(line.split("\t")[1])) for line in lines]
    expected = [labels for _, labels in several(seed=1)]
    # From the definition: counts over all labels of all texts.
    right = sum(len({*a} & {*b}) for a, b in zip(found, expected, strict=True))
    total = sum(len(a) + len(b) for a, b in zip(found, expected, strict=True))
    assert results["micro_f1"] == pytest.approx(2 * right / total)
    exact = sum(a == b for a, b in zip(found, expected, strict=True))
    assert results["eval_accuracy"] == pytest.approx(exact / len(found))
    report = (trained / "out/report.md").read_text()
    for name in NAMES:
        assert re.search(rf"\| {name} \| [\d.]+ \| [\d.]+ \| {results[f'f1_{name}']:.3f} \| \d+ \|", report)


def test_scores_are_those_of_the_definition():
    actual = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]], bool)
    found = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0]], bool)
    scores = several_label_scores(actual, found, ("a", "b", "c", "d"))
    assert scores == pytest.approx({
        "eval_accuracy": 0.0, "micro_f1": 2 * 3 / (4 + 5), "macro_f1": (1 + 1 / 2 + 0) / 3,
        "f1_a": 1.0, "f1_b": 0.5,
    })


def test_sessions_commands_and_exports_give_the_same_labels(trained, tmp_path):
    texts = [text for text, _ in several(seed=1)]
    session = albert.open_session(trained / "out")
    answers = session.classify(texts)
    lines = (trained / "out/test_results.tsv").read_text().splitlines()
    expected = np.array([[float(x) for x in line.split("\t")] for line in lines])
    for answer, row in zip(answers, expected, strict=True):
        assert list(answer["probabilities"].values()) == pytest.approx(row, abs=1e-5)
        assert answer["labels"] == [name for name, p in zip(NAMES, row, strict=True) if p >= 0.4]
    assert run_here(
        predict, f"--model={trained / 'out'}", f"--input_file={trained / 'other.csv'}",
        f"--output_file={tmp_path / 'out.csv'}",
    ) == 0
    table = list(csv.DictReader(open(tmp_path / "out.csv")))
    assert [json.loads(row["predicted_labels"]) for row in table] == [a["labels"] for a in answers]
    assert "0.4" in (trained / "out/README.md").read_text()

    serve = tf.saved_model.load(str(trained / "served")).signatures["serving_default"]
    tokenizer = albert.AlbertTokenizer.from_pretrained(trained / "out")
    served = serve(**tokenizer(texts, padding=True, return_tensors="tf"))
    np.testing.assert_allclose(tf.sigmoid(served["logits"]), expected, atol=1e-5)

    assert run_here(convert_hf, f"--albert_directory={trained / 'out'}",
                    f"--output_dir={tmp_path / 'hf'}") == 0
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    again = albert.open_session(tmp_path / "hf").classify(texts)
    assert [one["labels"] for one in again] == [one["labels"] for one in answers]


def test_lists_and_columns_of_labels_are_the_same_whether_a_flag_names_them_or_not(
    encoder, tmp_path, begin, capsys
):
    written = []
    for kind in ("json", "columns", "found"):
        out = tmp_path / kind
        columns = [f"--label_columns={','.join(NAMES)}"] if kind == "columns" else []
        path, other = (write_several(tmp_path, kind.replace("found", "columns"), name, seed)
                       for name, seed in ((None, 0), ("other", 1)))
        (task, *_, records), _ = begin(classify, encoder, f"--train_file={path}", f"--dev_file={other}",
                                       "--cross_validation=0", *columns, f"--output_dir={out}")
        written.append(records)
        said = f"columns text, {', '.join(NAMES)}; a label each: 3 (--label_column"
        assert (said in capsys.readouterr().err) == (kind == "found")
    for records in written[1:]:
        assert_same_records(records, written[0], task.feature_spec())


def test_a_model_answers_by_the_threshold_of_its_last_report(trained, encoder, tmp_path):
    shutil.copytree(trained / "out", tmp_path / "out")
    for threshold in (0.7, 0.2):
        assert classify(
            encoder, f"--train_file={trained / 'columns.csv'}", f"--dev_file={trained / 'other.csv'}",
            f"--output_dir={tmp_path / 'out'}", f"--threshold={threshold}", "--nodo_train", "--do_eval",
        ) == 0
        session = albert.open_session(tmp_path / "out")
        answers = session.classify([text for text, _ in several(seed=1)])
        assert [set(one["labels"]) for one in answers] == [
            {name for name, p in one["probabilities"].items() if p >= threshold} for one in answers]


def test_a_run_is_not_resumed_with_labels_that_exclude_each_other(trained, encoder, tmp_path, capsys):
    path = tmp_path / "one.csv"
    path.write_text("text,label\n" + "".join(f"w{i} w9,{NAMES[i % 3]}\n" for i in range(12)))
    assert classify(encoder, f"--train_file={path}", "--dev_share=0.4",
                    f"--output_dir={trained / 'out'}") == 2
    assert "was trained with another number of labels" in assert_one_clear_line(capsys.readouterr().err)
