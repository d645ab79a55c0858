"""Multi-label classification: from the table to the served model."""

import csv
import json
import re
import shutil

import jobs
import numpy as np
import pytest
from helpers import assert_one_clear_line, assert_same_records, run_here
from jobs import WORDS, classify

import albert
from albert import convert_hf, predict
from albert.tasks.classification import several_label_scores

NAMES = ("funny", "long", "rude")


def rows(count=40, seed=0):
    """Texts with w0, w1 and w2 for the labels; a few have none."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        found = rng.random(3) < 0.4
        words = [WORDS[i] for i in np.flatnonzero(found)]
        yield " ".join([*words, *rng.choice(WORDS[10:], 3)]), tuple(np.array(NAMES)[found].tolist())



@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return jobs.save_encoder(tmp_path_factory.mktemp("encoder"))


def write(folder, kind="columns", name=None, seed=0):
    path = folder / f"{name or kind}.{'jsonl' if kind == 'json' else 'csv'}"
    with open(path, "w", newline="") as stream:
        if kind == "json":
            stream.writelines(json.dumps({"text": t, "labels": k}) + "\n" for t, k in rows(seed=seed))
            return str(path)
        table = csv.writer(stream)
        table.writerow(["text", *NAMES] if kind == "columns" else ["text", "labels"])
        for text, found in rows(seed=seed):
            table.writerow([text, *(int(n in found) for n in NAMES)] if kind == "columns"
                           else [text, list(found)])  # as written by pandas
    return str(path)


@pytest.fixture(scope="module")
def trained(start, tmp_path_factory):
    """The output directory, and the rows and predictions of the test set."""
    folder = tmp_path_factory.mktemp("several")
    path, other = write(folder), write(folder, name="other", seed=1)
    assert classify(
        start, f"--train_file={path}", f"--dev_file={other}", f"--test_file={other}",
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
    expected = [labels for _, labels in rows(seed=1)]
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
    texts = [text for text, _ in rows(seed=1)]
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

    import tensorflow as tf

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
    start, tmp_path, begin, capsys
):
    written = []
    for kind in ("json", "columns", "found"):
        out = tmp_path / kind
        columns = [f"--label_columns={','.join(NAMES)}"] if kind == "columns" else []
        path, other = (write(tmp_path, kind.replace("found", "columns"), name, seed)
                       for name, seed in ((None, 0), ("other", 1)))
        (task, *_, records), _ = begin(classify, start, f"--train_file={path}", f"--dev_file={other}",
                                       "--cross_validation=0", *columns, f"--output_dir={out}")
        written.append(records)
        is_said = f"columns text, {', '.join(NAMES)}; a label each: 3 (--label_column" in capsys.readouterr().err
        assert is_said == (kind == "found")
    for records in written[1:]:
        assert_same_records(records, written[0], task.feature_spec())


REFUSED = [
    ("text,a,b\nx,1,0\ny,2,1\n", ["--label_columns=a,b"], "t.csv:3: column 'a' must be 1 or 0"),
    ("text,a,b\nx,1,0\n", ["--label_columns=a,c"], "--label_columns=c: {}t.csv has no such column (text, a, b)"),
    ("text,a,b\nx,1,0\n", ["--label_columns=a,b", "--regression"], "give only one of --label_columns and --regression"),
    ("text,label\nx,a\ny,b\nz,a\nu,b\n", ["--threshold=0.3"], "--threshold has no effect"),
    ("text,labels\nx,\"['a', 'b']\"\ny,\"['c']\"\n", [], "is a list: write JSON lines, or a column for each label"),
    ("text,labels\nx,\"['storm' 'none']\"\ny,\"['c']\"\n", [], "t.csv:2: the label \"['storm' 'none']\" is a list"),
    ("text,labels\nx,\ny,\"[1, 0]\"\n", [], "t.csv:3: the label '[1, 0]' is a list"),
]


def test_a_refusal_names_file_line_and_columns(start, tmp_path, capsys):
    for content, flags, message in REFUSED:
        (tmp_path / "t.csv").write_text(content)
        capsys.readouterr()
        assert classify(
            start, f"--train_file={tmp_path / 't.csv'}", f"--output_dir={tmp_path / 'no'}", *flags
        ) == 2
        said = assert_one_clear_line(capsys.readouterr().err)
        assert message.format(f"{tmp_path}/") in said
        assert not (tmp_path / "no").exists()


def test_a_model_answers_by_the_threshold_of_its_last_report(trained, start, tmp_path):
    shutil.copytree(trained / "out", tmp_path / "out")
    for threshold in (0.7, 0.2):
        assert classify(
            start, f"--train_file={trained / 'columns.csv'}", f"--dev_file={trained / 'other.csv'}",
            f"--output_dir={tmp_path / 'out'}", f"--threshold={threshold}", "--nodo_train", "--do_eval",
        ) == 0
        session = albert.open_session(tmp_path / "out")
        answers = session.classify([text for text, _ in rows(seed=1)])
        assert [set(one["labels"]) for one in answers] == [
            {name for name, p in one["probabilities"].items() if p >= threshold} for one in answers]


def test_a_run_is_not_resumed_with_labels_that_exclude_each_other(trained, start, tmp_path, capsys):
    path = tmp_path / "one.csv"
    path.write_text("text,label\n" + "".join(f"w{i} w9,{NAMES[i % 3]}\n" for i in range(12)))
    assert classify(start, f"--train_file={path}", "--dev_share=0.4",
                    f"--output_dir={trained / 'out'}") == 2
    assert "was trained with another number of labels" in assert_one_clear_line(capsys.readouterr().err)
