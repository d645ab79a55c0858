"""The GLUE tasks: the original's examples, features, records and metrics; bad files refused."""

import gzip
import json

import numpy as np
import pytest
from helpers import assert_same_records, golden_tokenizer

from albert.errors import DataError, FlagError
from albert.records import features
from albert.records.record_files import RecordFiles
from albert.tasks import glue
from albert.tasks.classification import ClassificationTask
from albert.tasks.fine_tuning_data import make_records
from albert.tasks.glue import TASKS, Example


@pytest.fixture(scope="module")
def golden(golden_path):
    with gzip.open(golden_path("glue/features.json.gz"), "rt") as stream:
        return json.load(stream)


def test_examples_and_features_are_the_originals(golden_path, golden):
    tokenizers = {
        kind: golden_tokenizer(golden_path, kind)
        for kind in ("spm_lower", "spm_cased", "wordpiece_lower")
    }
    known = [key for key in golden if "/" in key]
    assert len(known) == len(tokenizers) * (3 * (len(TASKS) - 1) + 1)  # ax has a test file only
    for key in known:
        kind, name, split = key.split("/")
        task, tokenizer, case = TASKS[name], tokenizers[kind], golden[key]
        found = glue.read_examples(
            task, str(golden_path("glue/data")), split, tokenizer.preprocess
        )
        assert list(task.labels) == [label for label in case["labels"] if label is not None], key
        for example, want in zip(found, case["examples"], strict=True):
            assert (example.guid, example.label) == (want["guid"], want["label"]), key
            assert tokenizer.preprocess(example.text_a) == want["text_a"].strip()
            assert tokenizer.preprocess(example.text_b or "") == (want["text_b"] or "").strip()
        rows = ClassificationTask(name, case["max_seq_length"], task.labels).rows(found, tokenizer, split)
        for row, want in zip(rows, case["features"], strict=True):
            for field in ("input_ids", "input_mask", "segment_ids"):
                assert row[field].tolist() == want[field], key
            assert row["label_ids"] == want["label_id"]
            assert row["is_real_example"] == want["is_real_example"]


def test_records_hold_what_the_originals_hold(golden_path, golden):
    tokenizer = golden_tokenizer(golden_path)
    for name in ("mrpc", "sts-b"):
        task, length = TASKS[name], golden[f"spm_lower/{name}/dev"]["max_seq_length"]
        data = glue.read_data(task, str(golden_path("glue/data")), ["dev"], tokenizer.preprocess)
        ours = make_records(
            ClassificationTask(name, length, task.labels), "dev", data.examples["dev"], tokenizer)
        theirs = RecordFiles([str(golden_path(f"glue/{name}.dev.tfrecord"))])
        spec = features.classification_spec(length, not task.labels)
        assert theirs.check(spec).counts == [12]
        assert_same_records(ours, theirs, spec)


# --- Irregular files ---


def read(folder, name, split, content, file=None, normalize=str):
    path = file or folder / TASKS[name].directory / f"{split}.tsv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return glue.read_examples(TASKS[name], str(folder), split, normalize)


def test_mnli_and_mismnli_read_different_files(tmp_path):
    (tmp_path / "MNLI").mkdir()
    for kind in ("matched", "mismatched"):
        texts = ("a", "label"), (kind, "neutral")
        rows = ("\t".join([*"01234567", text, "b", label]) for text, label in texts)
        (tmp_path / f"MNLI/dev_{kind}.tsv").write_text("\n".join(rows))
    for name, kind in (("mnli", "matched"), ("mismnli", "mismatched")):
        assert [e.text_a for e in glue.read_examples(TASKS[name], str(tmp_path), "dev", str)] == [kind]


def test_nothing_but_tabs_and_line_feeds_ends_a_text(tmp_path, caplog):
    odd = ['"a stray quote', "line\u2028separator", "nul\0", "form\x0cfeed", "x" * 1_000_000]
    content = "\ufeffsentence\tlabel\r\n" + "".join(f"{text}\t1\r\n" for text in odd) + "\n\r\n"
    assert [e.text_a for e in read(tmp_path, "sst-2", "dev", content)] == odd
    assert read(tmp_path, "cola", "dev", "\ufeffx\t1\t\tA sentence.\n")[0].label == "1"
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert not warnings
    content = b"sentence\tlabel\na\xff\t1\nb\t0\n\xfe\xfe\t1\n"
    found = read(tmp_path, "sst-2", "dev", content)
    assert [e.text_a for e in found] == ["a\ufffd", "b", "\ufffd\ufffd"]
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "2 of 4 lines had invalid UTF-8" in warning.message


REFUSED = [  # task, split, content, message
    ("cola", "dev", "x\t1\t\tfine\nx\t1\n", r"dev\.tsv:2: expected at least 4 .* columns, got 2"),
    ("sst-2", "dev", "sentence\tlabel\na\t1\n\nb\t0\n", r"dev\.tsv:3: .* at least 2 .*, got 1"),
    ("rte", "train", "index\ta\tb\tlabel\n0\tx\ty\tentails\n",
     r"train\.tsv:2: label 'entails' is not one of entailment, not_entailment"),
    *(("sts-b", "dev", "i\t" * 9 + "score\n" + "0\t" * 9 + f"{label}\n",
       r"dev\.tsv:2: label .* is not a number") for label in ("high", "nan", "")),
    *(("sst-2", "dev", content, "empty") for content in ("", "\n\n", "\ufeff")),
    ("sst-2", "dev", "sentence\tlabel\n", "no examples"),
    ("sst-2", "dev", "fine film\t1\nbad film\t0\n", r"dev\.tsv:1: expected a header"),
    ("mrpc", "dev", "\ufeff1\t2\t3\ta\tb\n", r"dev\.tsv:1: expected a header"),
    ("sts-b", "dev", "0\t" * 9 + "3.5\n", r"dev\.tsv:1: expected a header"),
    ("sst-2", "test", "0\tfine film\n1\tbad film\n", r"test\.tsv:1: expected a header"),
]


def test_a_bad_file_is_refused_with_the_line(tmp_path):
    for name, split, content, said in REFUSED:
        with pytest.raises(DataError, match=said):
            read(tmp_path, name, split, content)
    with pytest.raises(DataError, match=r"WNLI/dev\.tsv; --data_dir must hold the folder WNLI"):
        glue.read_examples(TASKS["wnli"], str(tmp_path), "dev")
    with pytest.raises(FlagError, match="--do_train: task ax has no train file"):
        glue.read_examples(TASKS["ax"], str(tmp_path), "train")


def test_short_rows_of_qqp_are_skipped_and_counted_in_one_warning(tmp_path, caplog):
    row = "7\t1\t2\tWhy?\tHow?\t1\n"
    content = "id\tq1\tq2\tquestion1\tquestion2\tis_duplicate\n" + row + "8\t1\t2\tcut\n\"\n" + row
    assert len(read(tmp_path, "qqp", "train", content)) == 2
    assert [r.message for r in caplog.records if "skipped 2 rows" in r.message]


def test_labels_are_cleaned_like_texts(tmp_path):
    content = "index\ta\tb\tlabel\n0\tx\ty\tEntailment\n"
    assert read(tmp_path, "rte", "dev", content, normalize=str.lower)[0].label == "entailment"


# --- Prediction files ---


@pytest.mark.parametrize(("name", "logits", "probabilities", "results", "answers", "submitted"), [
    ("rte", [[1, 0], [-2, 2]], [[0.75, 0.25], [0.1, 0.9]], "0.75\t0.25\n0.1\t0.9\n",
     ["entailment", "not_entailment"], None),
    # The server accepts similarities from 0 to 5.
    ("sts-b", [[3.5], [-0.25], [5.75]], None, "3.5\n-0.25\n5.75\n",
     ["3.5", "-0.25", "5.75"], ["3.5", "0.0", "5.0"]),
    # The greatest logit decides, even if the probabilities are equal.
    ("rte", [[0.1, np.nextafter(np.float32(0.1), np.float32(1))], [0.1, 0.1]], [[0.5, 0.5]] * 2,
     "0.5\t0.5\n" * 2, ["not_entailment", "entailment"], None),
])
def test_prediction_files_have_probabilities_and_label_names(
    name, logits, probabilities, results, answers, submitted, tmp_path
):
    examples = [Example(str(7 + i), "a", None, "0") for i in range(len(logits))]
    ClassificationTask(name, 8, TASKS[name].labels).write_predictions(examples, {
        "probabilities": np.array(probabilities or logits, np.float32),
        "logits": np.array(logits, np.float32),
    }, str(tmp_path))

    def table(values):
        lines = "".join(f"{7 + i}\t{value}\n" for i, value in enumerate(values))
        return "index\tprediction\n" + lines

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "test_results.tsv": results, "submit_results.tsv": table(answers),
        TASKS[name].submission: table(submitted or answers),
    }


def test_the_name_of_a_task_says_what_a_checkpoint_predicts():
    for name, task in TASKS.items():
        metadata = ClassificationTask(name, 8, task.labels).metadata({})
        assert metadata.label_names == (task.labels or None)
        assert (metadata.problem_type == "regression") == (not task.labels)
        assert (metadata.num_texts == 2) == (task.test.text_b is not None)
    # The names of the sample submission of gluebenchmark.com.
    assert {name: task.submission for name, task in TASKS.items()} == {
        "ax": "AX.tsv", "cola": "CoLA.tsv", "mnli": "MNLI-m.tsv", "mismnli": "MNLI-mm.tsv",
        "mrpc": "MRPC.tsv", "qnli": "QNLI.tsv", "qqp": "QQP.tsv", "rte": "RTE.tsv",
        "sst-2": "SST-2.tsv", "sts-b": "STS-B.tsv", "wnli": "WNLI.tsv",
    }


# --- Metrics ---


def test_scores_equal_the_originals_without_its_padding_rows(golden_path):
    data = np.load(golden_path("heads/classifier_metrics.npz"))
    for task, keys in (
        ("mnli", ["eval_accuracy"]), ("cola", ["eval_accuracy", "matthew_corr"]),
        ("sts-b", ["pearson", "MSE"]),
    ):
        def rows(name):
            return np.concatenate([data[f"{task}/batch{i}/{name}"] for i in range(3)])

        real = rows("is_real_example") > 0
        ours = glue.score(TASKS[task].metric, rows("label_ids")[real], rows("logits")[real])
        ours["eval_loss"] = rows("per_example_loss")[real].mean()
        for key in [*keys, "eval_loss"]:
            theirs = float(data[f"{task}/result/{key}"])
            assert ours[key] == pytest.approx(theirs, abs=2e-6), key


def scores(metric, labels, guesses):
    return glue.score(metric, np.array(labels), np.eye(max(guesses) + 1)[guesses])


def test_each_metric_has_the_values_of_its_library_ties_and_all():
    # f1 is of class 1, accuracy of all.
    assert scores("accuracy_and_f1", [1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0]) == {
        "eval_accuracy": pytest.approx(5 / 7), "f1": pytest.approx(2 / 3)
    }
    found = scores("matthews", [0, 1, 1, 2, 2, 2, 0, 1, 2, 0], [0, 1, 2, 2, 2, 0, 0, 1, 1, 1])
    assert found == {"eval_accuracy": 0.6, "matthew_corr": 0.4090909090909091}
    labels = np.array([0.0, 1.0, 1.0, 2.0, 3.5, 5.0, 5.0, 5.0])
    values = np.array([0.1, 0.3, 0.2, 2.0, 2.0, 4.0, 5.0, 3.0])
    assert glue.score("regression", labels, values[:, None]) == pytest.approx({
        "pearson": 0.9311247124513947, "spearman": 0.9632566387742928, "MSE": 1.04875,
    }, abs=1e-14)


@pytest.mark.filterwarnings("error")
def test_what_is_undefined_is_zero_without_a_warning():
    for metric, key in (("matthews", "matthew_corr"), ("accuracy_and_f1", "f1")):
        for labels in ([0, 1, 1, 0], [0, 0]):
            assert scores(metric, labels, [0] * len(labels))[key] == 0.0
    for labels in ([0, 1, 1, 0], [1]):
        found = glue.score("regression", np.array(labels), np.zeros(len(labels)))
        assert found["pearson"] == found["spearman"] == 0.0
    # Predictions that hardly vary can still be correlated.
    labels = np.array([1.0, 2.0, 3.0])
    assert glue.score("regression", labels, 1e6 + labels * 1e-8)["pearson"] > 0.9
