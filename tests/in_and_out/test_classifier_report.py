"""The statements about its figures in the report on a model of your texts."""

import dataclasses
import json
import os
import re
import types

import jobs
import numpy as np
import pytest
import tensorflow as tf
from helpers import run_here

import albert
from albert import convert_hf, finetune, modeling, run_classifier
from albert.cli import classifier_report, own_texts, report_page
from albert.cli.classifier_report import Rows
from albert.config import AlbertConfig
from albert.formats import pretrained
from albert.formats.model_card import table
from albert.tasks import baselines
from albert.tasks.classification import ClassificationTask
from albert.tasks.glue import Example

LABELS = ("ham", "spam")


def answered(right: int, tfidf_right: int, count: int, usual_right: int = 0, name: str = "") -> Rows:
    """Rows of ham and spam; the model answers the first `right` right, TF-IDF the last ones."""
    row = np.arange(count)
    expected = (row % 2).astype(int)
    return Rows(name or f"{count} held-out rows", expected, np.where(row < right, expected, 1 - expected), {
        "the most frequent label": np.where(row < usual_right, expected, 1 - expected),
        "TF-IDF with logistic regression": np.where(row >= count - tfidf_right, expected, 1 - expected),
    })


def said(*rows: Rows) -> str:
    return classifier_report.verdict(rows)[1]


def report_on(directory, *rows: Rows, labels=LABELS, **options) -> str:
    """Returns the part of a report before the scores of labels."""
    count = len(rows[0])
    options = {"settings": {}, **options}
    path = classifier_report.write(
        str(directory), ["text"] * count, labels, rows, np.tile([0.6, 0.4], (count, 1)), **options)
    return open(path, encoding="utf-8").read().partition("## By label")[0]


def test_a_classifier_is_compared_row_by_row_with_the_better_baseline_and_few_rows_decide_nothing():
    # b = 400 rows gained, c = 200 lost: (400 - 200) / 1002 +- 1.96 sqrt(601 - 200**2 / 1002) / 1002.
    assert said(answered(800, 600, 1000, 500)) == (
        "**Better than TF-IDF with logistic regression**: accuracy 0.800 against 0.600 on 1,000 rows (95 % "
        "interval: +15.3 to +24.6 points).")
    assert said(answered(2, 0, 2)).endswith("on 2 rows (95 % interval: -19.3 to +100.0 points).")  # no more
    for numbers, begins in (
        ((800, 400, 1000, 500), "**Better than the most frequent label**: accuracy 0.800"),
        ((600, 800, 1000, 500), "**Worse than TF-IDF"),
        ((620, 600, 1000, 500), "**Not significant**: no clear difference from TF-IDF with logistic "
         "regression: accuracy 0.620 against 0.600"),
        ((29, 15, 29), "**Too few rows to tell** whether the model is better than TF-IDF with logistic "
         "regression: accuracy 1.000"),
        ((44, 42, 60, 42), "**Not significant**"),
        ((58, 20, 60, 30), "**Better than the most frequent label**"),
    ):
        assert said(answered(*numbers)).startswith(begins), numbers


FEW, WORSE = answered(44, 42, 60, 42), answered(600, 800, 1000, 500)
ADVICE = [  # rows, options, parts in their order, and what is not in the report
    ([answered(58, 20, 60, 30), answered(400, 600, 800, 300, "800 rows in 2 folds")], {},
     ["**Worse than TF-IDF"], ["cross_validation"]),  # the largest number of rows decides
    ([FEW], {}, ["**Not significant**", "## What to do next", "`--cross_validation=5`", "## Scores"],
     ["larger model"]),
    ([FEW], {"may_validate": False}, [], ["cross_validation"]),  # typed as 0, or with --dev_file
    ([answered(20, 9, 29)], {"may_validate": False}, ["* Label more texts, or score"], ["larger model"]),
    ([answered(800, 600, 1000, 500)], {}, ["* Use it."], []),
    ([WORSE], {}, ["Start from a larger model"], ["vocabulary"]),
    ([WORSE], {"settings": {"texts": "5 % of tokens are unknown to the vocabulary"}},
     ["a model whose vocabulary can read these texts"], ["larger model"]),
]


def test_the_verdict_comes_first_and_then_what_the_person_can_do(tmp_path):
    for rows, options, parts, absent in ADVICE:
        report = report_on(tmp_path, *rows, **options)
        places = [report.index(part) for part in parts]
        assert places == sorted(places)
        assert not [part for part in absent if part in report]


def test_a_label_without_held_out_rows_has_no_scores():
    table = classifier_report._by_label(answered(3, 3, 4), (*LABELS, "absent"))
    assert "| absent | - | - | - | 0 |" in table and "0.000" not in table.splitlines()[-1]


def test_where_rare_labels_are_never_predicted_the_threshold_is_named(tmp_path):
    expected = np.array([[1, 0], [1, 1], [1, 0]] * 5, bool)
    rows = Rows("15 held-out rows", expected, expected & [True, False], {"a": expected & False})
    path = classifier_report.write(
        str(tmp_path), ["t"] * 15, ("often", "rare"), [rows], expected * 0.4, {})
    assert "Lower `--threshold`" in open(path).read()


def test_a_label_that_is_never_predicted_is_named_with_a_remedy_other_than_a_larger_model(tmp_path):
    ham = np.zeros(1000, int)
    for rare, is_advised in ((5, True), (500, False)):  # weights change nothing where labels are even
        expected = np.array([0] * (1000 - rare) + [1] * rare)
        rows = Rows("1,000 held-out rows", expected, ham, {"TF-IDF": expected})
        report = report_on(tmp_path, rows)
        assert "**Worse than TF-IDF**" in report and "**Never predicts spam**" in report
        assert ("--class_weights=balanced" in report) == is_advised != ("half of `--learning_rate`" in report)
        assert "larger model" not in report
        assert "--class_weights" not in report_on(tmp_path, rows, is_balanced=True)
    absent = Rows("9 held-out rows", *(np.zeros(9, int),) * 2, {"x": np.zeros(9, int)})
    report = report_on(tmp_path, absent)
    assert "No row has the label spam: nothing is measured for it." in report
    assert "Never predicts" not in report


def test_the_report_on_several_labels_shows_where_the_classifier_is_wrong(tmp_path):
    expected = np.array([[1, 0], [1, 1], [0, 1]], bool)
    probabilities = np.array([[0.9, 0.7], [0.2, 0.8], [0.1, 0.6]])
    tfidf = np.array([[1, 0], [1, 1], [0, 0]], bool)
    rows = Rows("3 held-out rows", expected, probabilities >= 0.5,
                {"the most frequent label": np.array([[1, 0]] * 3, bool), "TF-IDF": tfidf})
    report = open(classifier_report.write(
        str(tmp_path), ["one", "two", "three"], ("a|b", "c"), [rows], probabilities, {}
    )).read()
    # Of 4 labels 3 are found, one is wrong: micro F1 = 2 * 3 / (4 + 4). Of each text: 2/3, 2/3 and 1;
    # always a|b: 1, 2/3 and 0; TF-IDF: 1, 1 and 0.
    for line in ("micro F1 | 0.750", "F1 per text | 0.778", "the most frequent label: F1 per text | 0.556",
                 "TF-IDF: F1 per text | 0.667", "all labels of a text right | 0.333"):
        assert f"| {line} |\n" in report, line
    assert "**Too few rows to tell** whether the model is better than TF-IDF: F1 per text 0.778" in report
    assert "| a\\|b | 1.000 | 0.500 | 0.667 | 2 |" in report
    assert "| two | a\\|b | yes | 0.200 |\n| one | c | no | 0.700 |\n" in report


def test_faster_precisions_are_named_with_what_they_change(tmp_path):
    def answers(*probabilities):
        return [{"label": LABELS[p > 0.5], "probabilities": {"ham": 1 - p, "spam": p}} for p in probabilities]

    precisions = {"float32": (1.0, answers(0.2, 0.51)), "int8": (3.96, answers(0.25, 0.49)),
                  "bfloat16": (0.8, answers(0.2, 0.5))}
    path = classifier_report.write(str(tmp_path), ["t"] * 60, LABELS, [answered(44, 42, 60, 42)],
                                   np.tile([0.6, 0.4], (60, 1)), {}, precisions=precisions)
    report = open(path).read()
    assert "with 2 of the held-out rows" in report
    assert "| `int8` | 4.0 times | 1 | 0.05 |" in report and "| `bfloat16`" not in report
    assert "| `int8` | 2.0 times | 0 | 1.5 |" in "".join(classifier_report._faster(
        {"float32": (1.0, [{"value": 1.0}]), "int8": (2.0, [{"value": 2.5}])}))
    assert "Answer faster" not in report_on(tmp_path, answered(44, 42, 60, 42))


def test_a_report_on_wrong_answers_alone_counts_rows_and_holds_any_names(tmp_path):
    report_on(tmp_path, answered(0, 60, 60, name="60 rows of a|b.csv"), settings={"file": "a|b.csv"})
    report = (tmp_path / "report.md").read_text()
    assert "|  | 60 rows of a\\|b.csv |\n" in report and "| file | a\\|b.csv |\n" in report
    assert "| ham | 0.000 | 0.000 | 0.000 | 30 |\n" in report


def test_the_command_of_a_report_can_be_pasted_wherever_the_model_is(tmp_path):
    report_on(tmp_path / "my model", answered(44, 42, 60, 42))
    assert f"--model='{tmp_path}/my model'\n" in (tmp_path / "my model/report.md").read_text()
    report_on(tmp_path, answered(44, 42, 60, 42), has_pairs=True)
    assert r"    printf 'a text\tanother text\n' | python -m" in (tmp_path / "report.md").read_text()


@pytest.mark.filterwarnings("error")
def test_tfidf_learns_words_and_numbers():
    def rows(*texts):
        return [(text, None) for text in texts]

    texts = ["a fine film", "fine acting", "a dull film", "dull acting"] * 5
    labels = ["good", "good", "bad", "bad"] * 5
    found = baselines.tfidf_answers(rows(*texts), labels, rows("fine", "dull", "so dull a film"))
    assert found.tolist() == ["good", "bad", "bad"]
    several = np.array([[label == "good", "acting" in text] for label, text in zip(labels, texts)])
    found = baselines.tfidf_answers(rows(*texts), several, rows("fine acting", "a dull film"))
    assert found.tolist() == [[1, 1], [0, 0]]
    baselines.tfidf_answers(rows(*texts), np.array([[1, 0]] * len(texts)), rows("fine"))  # says nothing
    # Without words, characters.
    assert baselines.tfidf_answers(rows("!", "?"), ["good", "bad"], rows("!")).tolist() == ["good"]
    assert baselines.tfidf_answers(rows(*texts[:2]), labels[:2], rows("dull")).tolist() == ["good"]
    # Of texts without blanks, each character is a word.
    for good, bad in ("好坏", "\u0e14\u0e25", "よわ"):
        found = baselines.tfidf_answers(
            rows(f"电影{good}看", f"电影{bad}看", f"这{good}吗", f"这{bad}吗"), ["good", "bad"] * 2,
            rows(f"戏{good}", f"戏{bad}"))
        assert found.tolist() == ["good", "bad"]
    values = [1000.0 if label == "good" else 0.0 for label in labels]
    high, low = baselines.tfidf_answers(rows(*texts), values, rows("fine", "dull"))
    assert high > 700 and low < 300


def test_the_baseline_of_pairs_sees_how_similar_the_two_texts_are():
    rng = np.random.default_rng(1)
    rows = [[" ".join(rng.choice([*"abcdefghijklmnop"], 6) + "x") for _ in range(2)] for _ in range(200)]
    answers = np.arange(200) % 2
    for row, is_same in zip(rows, answers):
        row[1] = " ".join(rng.permutation(row[0].split())) if is_same else row[1]
    numbers = baselines.tfidf_answers(rows[:100], answers[:100] * 10.0, rows[100:])
    assert np.corrcoef(numbers, answers[100:])[0, 1] > 0.8
    examples = [Example("", *row, "no yes".split()[i]) for row, i in zip(rows, answers)]
    task = ClassificationTask("tsv", 8, ("no", "yes"))
    given = {"label_ids": answers[100:], "logits": np.zeros((100, 2))}
    found = run_classifier.answered("", task, examples[:100], examples[100:], given)
    assert (found.baselines["TF-IDF with logistic regression"] == answers[100:]).mean() > 0.9


def test_a_page_needs_no_other_file_and_texts_do_not_format_it(tmp_path):
    text = "<script>x</script> ![a](http://x/y.png) [b](http://x) <http://x> $title | # &amp;"
    parts = ["## A\n", table(("text", "n"), [(classifier_report._cell(text), 1)])]
    assert report_page.publish(str(tmp_path), "Title", parts) == str(tmp_path / "report.md")
    page = (tmp_path / "report.html").read_text()
    assert "<title>Title</title>" in page and "<h2>A</h2>" in page and "<td>1</td>" in page
    assert not re.search(r"<script|<img|<a |src=|href=|url\(|@import", page)
    for literal in ("&lt;script&gt;", "![a](http://x/y.png)", "$title | #"):
        assert literal in page


def test_the_curve_has_the_evaluations_of_the_run_and_always_the_last(tmp_path):
    lines = [{"kind": "eval", "step": i, "loss": 9.5 - i / 10, "eval_accuracy": i / 100}
             for i in range(1, 51)]
    lines += [{"kind": "train", "step": 60, "loss": 1.0}, {"kind": "eval", "step": 70, "loss": None}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot = report_page.curve(str(tmp_path), "eval_accuracy")
    assert plot.count("<circle") == 50 and 'cx="400.0" cy="20.0"' in plot  # the last, and the highest
    for text in ("0.500", "0.010", "step 50", "eval accuracy 0.500"):
        assert f">{text}</text>" in plot
    report_page.publish(str(tmp_path), "Title", ["a", plot, "b"])
    assert (tmp_path / "learning_curve.svg").read_text() == plot
    assert plot in (tmp_path / "report.html").read_text()
    assert "a\n![Learning curve](learning_curve.svg)\n\nb" in (tmp_path / "report.md").read_text()
    assert report_page.curve(str(tmp_path), "absent") == "No evaluations.\n"


# --- The command ---


@pytest.fixture
def own_table(tmp_path):
    """Returns a table, whose labels follow from the first word, and the flags of a small run on it."""
    path = tmp_path / "my.csv"
    lines = [f"w{i % 5} w{10 + i % 7} w{20 + i % 11} w3,{'good' if i % 5 < 2 else 'bad'}" for i in range(60)]
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    own = ("data_dir", "task_name", "save_checkpoints_steps")
    given = [flag for flag in jobs.classifier_flags(tmp_path) if not flag[2:].startswith(own)]
    return path, [*given, f"--train_file={path}"]


def pretend_to_train(monkeypatch) -> None:
    """Makes a training instant, whose model answers one label."""

    def run(values, settings, encoder, data, task):
        rows, out = data.examples["dev"], settings.output_dir
        os.makedirs(out, exist_ok=True)
        answers = np.tile([0.6, 0.4], (len(rows), 1))
        expected = np.array([task.id_of(row.label) for row in rows])
        evaluation = types.SimpleNamespace(
            predictions={"label_ids": expected, "logits": answers, "probabilities": answers})
        return finetune.Result(
            types.SimpleNamespace(origin=os.path.join(out, "x")), {"dev": evaluation})

    monkeypatch.setattr(finetune, "run", run)


def test_folds_are_trained_on_their_rows_alone_and_choose_no_checkpoint(own_table, tmp_path, monkeypatch):
    """Nor are the baselines fitted on held-out rows."""
    path, given = own_table
    copies = path.read_text().splitlines()[1:11]
    with path.open("a") as stream:
        stream.write("\n".join([*copies, "w9 w8 w7,rare\n"]))  # a label which not every fold has
    runs, fitted, train = [], [], finetune.run
    pretend_to_train(monkeypatch)
    pretend = finetune.run

    def run(values, settings, encoder, data, task):
        runs.append((settings, {name: [row.text_a for row in rows] for name, rows in data.examples.items()}))
        # The first fold is trained.
        return (train if len(runs) == 2 else pretend)(values, settings, encoder, data, task)

    def answers(train, labels, texts):
        fitted.append((train, texts))
        return np.zeros(len(texts), int)

    monkeypatch.setattr(finetune, "run", run)
    monkeypatch.setattr(baselines, "tfidf_answers", answers)
    (tmp_path / "new.csv").write_text("text\nw1 w2\n")
    given += ["--cross_validation=2", "--warmup_step=4", "--do_train", "--do_eval"]
    assert jobs.classify(*given, "--do_predict", f"--test_file={tmp_path / 'new.csv'}") == 0
    (whole, last), (one, rows), (two, others) = runs
    assert rows["train"] == others["dev"] and rows["dev"] == others["train"]
    assert len(rows["dev"]) + len(rows["train"]) == 71 and len(rows["dev"]) in range(33, 39)
    for settings in (one, two):
        assert settings.save_checkpoints_steps == settings.train_step < whole.train_step
        assert settings.warmup_step == 2 and whole.warmup_step == 4
        assert whole.do_predict and not settings.do_predict
    for (train, texts), of_run in zip(fitted, (rows, others, last), strict=True):
        assert ([a for a, _ in train], [a for a, _ in texts]) == (of_run["train"], of_run["dev"])
        assert not {*train} & {*texts}
    report = (tmp_path / "out/report.md").read_text()
    assert re.search(r"\|  \| \d+ held-out rows \| 71 rows in 2 folds \|", report)
    assert re.search(r"\| accuracy \| [\d.]+ \| [\d.]+ \|", report)
    assert "on 71 rows" in report and "--cross_validation" not in report
    assert not [*(tmp_path / "out").rglob("*.tf_record*")] and not [*tmp_path.glob(".out.work*")]
    assert jobs.classify(*given, "--seed=3", f"--output_dir={tmp_path / 'other'}") == 0
    assert {*runs[4][1]["dev"]} not in ({*rows["dev"]}, {*others["dev"]})  # the seed draws the folds
    assert jobs.classify(*given, "--do_train=false") == 2
    assert jobs.classify(*given, "--cross_validation=1") == 2


@pytest.mark.parametrize("change", [
    "nothing", "--learning_rate=0.5", "the data", "the vocabulary", "the weights",
])
def test_a_killed_cross_validation_resumes_only_with_the_same_data_flags_and_files(
    change, own_table, tmp_path, monkeypatch
):
    path, given = own_table
    pretend_to_train(monkeypatch)
    folders, train = [], finetune.run
    monkeypatch.setattr(baselines, "tfidf_answers", lambda train, labels, texts: np.zeros(len(texts), int))

    def stop(values, settings, *data):
        if settings.output_dir.endswith("/2"):  # the second fold
            raise KeyboardInterrupt
        if "folds-" in settings.output_dir:
            folders.append((settings.output_dir, os.path.isdir(settings.output_dir)))
        return train(values, settings, *data)

    def write_weights(deviation: float) -> list[str]:
        [start] = [one for one in given if one.startswith("--albert_config_file")]
        config = AlbertConfig.from_json_file(start.partition("=")[2])
        config = dataclasses.replace(config, initializer_range=deviation)
        for before in tmp_path.glob("model.ckpt-best*"):
            before.unlink()
        pretrained.save(modeling.AlbertForPreTraining(config), str(tmp_path), is_archive=True)
        return [f"--init_checkpoint={tmp_path}/model.ckpt-best"]

    monkeypatch.setattr(finetune, "run", stop)
    given = [*given, "--cross_validation=2"]
    if change == "the weights":
        given += write_weights(0.1)
    assert jobs.classify(*given) == 130
    more = [change] if "=" in change else []
    if change == "the data":
        with path.open("a") as stream:
            stream.write("w9 w8 w7,bad\n")
    if change == "the vocabulary":
        *others, one, two = (tmp_path / "vocab.txt").read_text().split()
        (tmp_path / "vocab.txt").write_text("\n".join([*others, two, one]) + "\n")
    if change == "the weights":
        more = write_weights(0.2)
    assert jobs.classify(*given, *more) == 130
    (one, _), (again, resumed) = folders
    assert (again == one, resumed) == (change == "nothing",) * 2


def test_a_label_with_fewer_rows_than_folds_is_said_at_the_start(own_table, tmp_path, capsys, begin):
    path, given = own_table
    path.write_text("text,label\n" + "".join(f"w{i} w{i + 1},good\n" for i in range(40)) + "w1 w3,bad\n")
    begin(jobs.classify, *given, "--cross_validation=3")
    said = capsys.readouterr().err
    said, *_ = said.partition("fold 1 of 3")
    assert "labels on fewer texts than folds: bad; not every fold has them" in said
    assert jobs.classify(*given, "--cross_validation=3", "--class_weights=balanced") == 2
    assert "labels on fewer texts than folds: bad: use fewer folds" in capsys.readouterr().err


def test_a_labelled_test_file_is_scored_in_the_report(own_table, tmp_path, capsys, monkeypatch):
    path, given = own_table
    test = tmp_path / "test.csv"
    rows = [f"w{i % 5} w{5 + i} w4,{'good' if i % 5 < 2 else 'bad'}" for i in range(20)]
    test.write_text("\n".join(["text,label", *rows, "w1 w2,?", "w1 w2,"]) + "\n")
    given = [*given, f"--test_file={test}", "--cross_validation=0", "--learning_rate=0.01",
             "--save_checkpoints_steps=3"]
    monkeypatch.setattr(own_texts, "ENOUGH_ROWS", 1)
    fitted, tfidf = [], baselines.tfidf_answers
    monkeypatch.setattr(
        baselines, "tfidf_answers", lambda train, *more: fitted.append(len(train)) or tfidf(train, *more))
    assert jobs.classify(*given) == 0
    said = capsys.readouterr().err
    assert f"{test}: 2 of 22 rows have none of the labels, the first at {test}:22" in said
    answers = (tmp_path / "out/submit_results.tsv").read_text().splitlines()[1:]
    assert len(answers) == 22
    hits = sum(answer.split("\t")[1] == row.split(",")[1] for answer, row in zip(answers, rows))
    report = (tmp_path / "out/report.md").read_text()
    assert re.search(r"\|  \| \d+ held-out rows \| 20 rows of test.csv \|", report)
    assert re.search(rf"\| accuracy \| .* \| {hits / 20:.3f} \|", report)
    assert "## Learning curve\n\n![Learning curve](learning_curve.svg)\n" in report
    accuracy = re.search(r"\| accuracy \| ([\d.]+)", report)[1]
    last = said.splitlines()[-1]
    assert f"accuracy {accuracy} against" in last or f"accuracy {hits / 20:.3f} against" in last
    assert last.endswith(f"Report: {tmp_path}/out/report.md. Ask the model: echo 'a text' | python -m "
                         f"albert.predict --model={tmp_path}/out")
    assert (tmp_path / "out/report.html").read_text().count("<h2>") == report.count("\n## ")
    results = (tmp_path / "out/predict_results.txt").read_text()
    assert f"eval_accuracy = {hits / 20}" in results
    # Training rows among them do not count.
    test.write_text(path.read_text() + "\n".join(rows) + "\n")
    assert jobs.classify(*given) == 0
    said = capsys.readouterr().err
    held_out = int(re.search(r"held out: (\d+) of 60 rows", said)[1])
    assert set(fitted) == {60 - held_out}  # on the training rows, whatever is scored
    assert f"{test}: {60 - held_out} of 80 rows are training rows, the first at {test}:" in said
    assert f"| {20 + held_out} rows of test.csv |" in (tmp_path / "out/report.md").read_text()
    assert jobs.classify(*given, "--cross_validation=2", "--learning_rate=0.5") == 2  # before any fold
    assert "fold 1 of 2" not in capsys.readouterr().err


def test_a_regression_learns_and_reports_in_the_units_of_its_labels(tmp_path, capsys):
    """Wherever the model goes."""
    encoder = jobs.save_encoder(tmp_path)
    path, out = tmp_path / "my.csv", tmp_path / "out"
    rows = [(f"w{i % 3} w{10 + i % 7} w{20 + i % 11}", 10_000 + 3_000 * (i % 3)) for i in range(90)]
    path.write_text("text,label\n" + "".join(f"{text},{value}\n" for text, value in rows))
    assert jobs.classify(
        encoder, f"--train_file={path}", "--regression", f"--output_dir={out}", f"--test_file={path}",
        "--learning_rate=0.005", "--num_train_epochs=20", "--save_checkpoints_steps=1000",
        f"--export_dir={tmp_path / 'served'}",
    ) == 0
    found = np.array([float(x) for x in (out / "test_results.tsv").read_text().split()])
    expected = np.array([value for _, value in rows])
    assert np.abs(found - expected).mean() < 1000  # always the mean: 2,000
    report = (out / "report.md").read_text()
    error = float(re.search(r"\| mean absolute error \| ([\d.e+]+)", report)[1])
    assert error < 1000 and re.search(r"the mean: mean absolute error \| \d,\d{3}", report)
    assert "TF-IDF with ridge regression: mean absolute error |" in report
    assert re.search(r"\*\*(Too few|Better|Worse|Not significant).* mean absolute error", report), report
    texts = [text for text, _ in rows[:5]]
    answers = [answer["value"] for answer in albert.open_session(str(out)).classify(texts)]
    np.testing.assert_allclose(answers, found[:5], rtol=1e-5)
    model = modeling.AlbertForSequenceClassification.from_pretrained(str(out))
    model.save_pretrained(str(tmp_path / "saved"))
    jobs.write_vocabulary(tmp_path / "saved")
    assert run_here(convert_hf, f"--albert_directory={out}", f"--output_dir={tmp_path}/theirs") == 0
    for folder in ("saved", "theirs"):
        answers = [one["value"] for one in albert.open_session(str(tmp_path / folder)).classify(texts)]
        np.testing.assert_allclose(answers, found[:5], rtol=1e-5, err_msg=folder)
    serve = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    inputs = albert.AlbertTokenizer.from_pretrained(out)(texts, padding=True, return_tensors="tf")
    np.testing.assert_allclose(serve(**inputs)["logits"][:, 0], found[:5], rtol=1e-5)
    again = jobs.classify(
        f"--init_checkpoint={out}", f"--train_file={path}", "--regression", "--learning_rate=0.005",
        f"--output_dir={tmp_path / 'again'}", "--num_train_epochs=1",
    )
    loss = float(re.search(r"eval_loss = (\S+)", (tmp_path / "again/eval_results.txt").read_text())[1])
    assert again == 0 and loss < 5  # in deviations: a head in other units would start at thousands
