"""The GLUE tasks: the original's examples, features and records; bad files refused."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from albert.errors import DataError, FlagError
from albert.formats import known_tasks, run_states
from albert.records import features
from albert.records.record_files import RecordFiles
from albert.tasks import glue
from albert.tasks.glue import TASKS
from albert.tasks.fine_tuning_data import FineTuningData, RecordKeeper
from albert.tokenization import FullTokenizer

TOKENIZERS = ("spm_lower", "spm_cased", "wordpiece_lower")


@pytest.fixture(scope="module")
def golden(golden_path):
    with gzip.open(golden_path("glue/features.json.gz"), "rt") as stream:
        return json.load(stream)


def make_tokenizer(golden_path, kind):
    if kind == "wordpiece_lower":
        return FullTokenizer(str(golden_path("spm/albert_zh_vocab.txt")))
    return FullTokenizer(None, kind == "spm_lower", str(golden_path("spm/30k-clean.model")))


def golden_splits(golden, kind, task):
    prefix = f"{kind}/{task}/"
    return {k.removeprefix(prefix): case for k, case in golden.items() if k.startswith(prefix)}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_examples_and_features_are_the_originals(golden_path, golden, name):
    task, data_dir = TASKS[name], str(golden_path("glue/data"))
    for kind in TOKENIZERS:
        tokenizer = make_tokenizer(golden_path, kind)
        splits = golden_splits(golden, kind, name)
        for split, case in splits.items():
            examples = glue.read_examples(task, data_dir, split, tokenizer.preprocess)
            assert_same_features(task, tokenizer, examples, case)
        assert len(splits) == (1 if name == "ax" else 3)


def assert_same_features(task, tokenizer, examples, case):
    assert list(task.labels) == [label for label in case["labels"] if label is not None]
    for example, want in zip(examples, case["examples"], strict=True):
        assert (example.guid, example.label) == (want["guid"], want["label"])
        assert tokenizer.preprocess(example.text_a) == want["text_a"].strip()
        assert tokenizer.preprocess(example.text_b or "") == (want["text_b"] or "").strip()
    rows = glue.example_rows(examples, task.labels, tokenizer, case["max_seq_length"])
    for row, want in zip(rows, case["features"], strict=True):
        for key in ("input_ids", "input_mask", "segment_ids"):
            assert row[key].tolist() == want[key]
        assert row["label_ids"] == want["label_id"]
        assert row["is_real_example"] == want["is_real_example"]


@pytest.mark.parametrize("name", ["mrpc", "sts-b"])
def test_records_hold_what_the_originals_hold(golden_path, golden, tmp_path, name):
    tf = pytest.importorskip("tensorflow")
    task, tokenizer = TASKS[name], make_tokenizer(golden_path, "spm_lower")
    length = golden[f"spm_lower/{name}/dev"]["max_seq_length"]
    data_dir = str(golden_path("glue/data"))
    data = glue.read_data(task, data_dir, ["dev"], tokenizer.preprocess)
    path = glue.example_records(data, "dev", RecordKeeper(tokenizer, length, str(tmp_path)))
    theirs = str(golden_path(f"glue/{name}.dev.tfrecord"))

    def read(path):
        messages = [tf.train.Example.FromString(m.numpy()) for m in tf.data.TFRecordDataset(path)]
        return [{k: str(v) for k, v in m.features.feature.items()} for m in messages]

    assert read(path) == read(theirs)
    spec = features.classification_spec(length, task.is_regression)
    assert RecordFiles([theirs]).check(spec).counts == [12]


def test_reading_tasks_needs_no_tensorflow():
    code = "import sys; from albert import run_classifier; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- Files of odd shape ---


def write(tmp_path, task, file, content):
    path = tmp_path / task.directory / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(tmp_path)


def read(tmp_path, name, split, file, content):
    task = TASKS[name]
    return glue.read_examples(task, write(tmp_path, task, file, content), split)


def sst(tmp_path, content):
    return read(tmp_path, "sst-2", "dev", "dev.tsv", content)


def test_quotes_other_separators_and_carriage_returns_are_text_or_nothing(tmp_path):
    odd = ['"a stray quote', "line\u2028separator", "nul\0", "form\x0cfeed", "x" * 1_000_000]
    content = "sentence\tlabel\r\n" + "".join(f"{text}\t1\r\n" for text in odd)
    assert [e.text_a for e in sst(tmp_path, content)] == odd


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    content = "\ufeffx\t1\t\tA sentence.\n"
    assert read(tmp_path, "cola", "dev", "dev.tsv", content)[0].label == "1"
    with pytest.raises(DataError, match="header"):
        read(tmp_path, "mrpc", "dev", "dev.tsv", "\ufeff1\t2\t3\ta\tb\n")


def test_empty_lines_at_the_end_are_nothing(tmp_path):
    assert len(sst(tmp_path, "sentence\tlabel\na\t1\n\n\r\n")) == 1


def test_invalid_utf8_is_replaced_and_counted_once(tmp_path, caplog):
    examples = sst(tmp_path, b"sentence\tlabel\na\xff\t1\nb\t0\n\xfe\xfe\t1\n")
    assert [e.text_a for e in examples] == ["a\ufffd", "b", "\ufffd\ufffd"]
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert [r.message.split(": ")[1] for r in warnings] == [
        "2 of 4 lines had invalid UTF-8, replaced by U+FFFD"
    ]


def test_a_row_with_too_few_columns_is_named_by_file_and_line(tmp_path):
    with pytest.raises(DataError, match=r"dev\.tsv:2: expected at least 4 .* columns, got 2"):
        read(tmp_path, "cola", "dev", "dev.tsv", "x\t1\t\tfine\nx\t1\n")
    with pytest.raises(DataError, match=r"dev\.tsv:3: expected at least 2 .* columns, got 1"):
        sst(tmp_path, "sentence\tlabel\na\t1\n\nb\t0\n")


def test_an_unknown_label_is_named_with_the_known_ones(tmp_path):
    content = "index\ta\tb\tlabel\n0\tx\ty\tentails\n"
    message = r"train\.tsv:2: label 'entails' is not one of entailment, not_entailment"
    with pytest.raises(DataError, match=message):
        read(tmp_path, "rte", "train", "train.tsv", content)


@pytest.mark.parametrize("label", ["high", "nan", ""])
def test_a_regression_label_must_be_a_number(tmp_path, label):
    content = "i\t" * 9 + "score\n" + "0\t" * 9 + f"{label}\n"
    with pytest.raises(DataError, match=r"dev\.tsv:2: label .* is not a number"):
        read(tmp_path, "sts-b", "dev", "dev.tsv", content)


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_an_empty_file_is_refused(tmp_path, content):
    with pytest.raises(DataError, match="empty"):
        sst(tmp_path, content)


def test_a_file_with_a_header_only_is_refused(tmp_path):
    with pytest.raises(DataError, match="no examples"):
        sst(tmp_path, "sentence\tlabel\n")


def test_a_missing_header_is_noticed_in_labelled_and_unlabelled_files(tmp_path):
    with pytest.raises(DataError, match=r"dev\.tsv:1: a header"):
        sst(tmp_path, "fine film\t1\nbad film\t0\n")
    with pytest.raises(DataError, match=r"test\.tsv:1: a header"):
        read(tmp_path, "sst-2", "test", "test.tsv", "0\tfine film\n1\tbad film\n")


def test_short_rows_of_qqp_are_skipped_and_counted_in_one_warning(tmp_path, caplog):
    row = "7\t1\t2\tWhy?\tHow?\t1\n"
    content = "id\tq1\tq2\tquestion1\tquestion2\tis_duplicate\n" + row + "8\t1\t2\tcut\n\"\n" + row
    assert len(read(tmp_path, "qqp", "train", "train.tsv", content)) == 2
    assert [r.message for r in caplog.records if "skipped 2 rows" in r.message]


def test_labels_are_cleaned_like_texts(tmp_path):
    content = "index\ta\tb\tlabel\n0\tx\ty\tEntailment\n"
    data_dir = write(tmp_path, TASKS["rte"], "dev.tsv", content)
    assert glue.read_examples(TASKS["rte"], data_dir, "dev", str.lower)[0].label == "entailment"


def test_a_missing_file_is_named_with_its_folder(tmp_path):
    with pytest.raises(DataError, match=r"RTE/dev\.tsv; --data_dir must hold the folder RTE"):
        glue.read_examples(TASKS["rte"], str(tmp_path), "dev")


def test_ax_says_that_it_has_nothing_to_train_on(tmp_path):
    with pytest.raises(FlagError, match="--do_train: task ax has no train file"):
        glue.read_examples(TASKS["ax"], str(tmp_path), "train")


def test_an_edited_task_file_gets_another_feature_file(tmp_path, golden_path):
    task, tokenizer = TASKS["sst-2"], make_tokenizer(golden_path, "spm_lower")
    cache = str(tmp_path / "cache")

    def make(content, length=16, tokenizer=tokenizer):
        data_dir = write(tmp_path, task, "dev.tsv", content)
        data = glue.read_data(task, data_dir, ["dev"], tokenizer.preprocess)
        return glue.example_records(data, "dev", RecordKeeper(tokenizer, length, cache))

    first = make("sentence\tlabel\na\t1\n")
    assert make("sentence\tlabel\na\t1\n") == first
    cased = make_tokenizer(golden_path, "spm_cased")
    others = {
        make("sentence\tlabel\na\t0\n"),
        make("sentence\tlabel\na\t1\n", length=17),
        make("sentence\tlabel\na\t1\n", tokenizer=cased),
    }
    assert len(others | {first}) == 4


# --- Prediction files ---


def predict(tmp_path, name, probabilities, logits=None):
    """Returns the contents of the files of predictions by name."""
    examples = [glue.Example(str(i), "a", None, "0") for i in range(len(probabilities))]
    arrays = {"probabilities": np.array(probabilities, np.float32)}
    arrays["logits"] = np.array(probabilities if logits is None else logits, np.float32)
    data = FineTuningData(name, {"test": examples}, TASKS[name].labels)
    paths = glue.write_predictions(data, arrays, str(tmp_path))
    return {p.removeprefix(f"{tmp_path}/"): open(p, encoding="utf-8").read() for p in paths}


def test_prediction_files_have_probabilities_and_label_names(tmp_path):
    answers = "index\tprediction\n0\tentailment\n1\tnot_entailment\n"
    assert predict(tmp_path, "rte", [[0.75, 0.25], [0.1, 0.9]]) == {
        "test_results.tsv": "0.75\t0.25\n0.1\t0.9\n",
        "submit_results.tsv": answers,
        "RTE.tsv": answers,
    }


def test_the_label_is_that_of_the_greatest_logit_where_probabilities_are_equal(tmp_path):
    first, second = np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(1))
    logits = [[first, second], [second, first], [first, first]]
    files = predict(tmp_path, "rte", [[0.5, 0.5]] * 3, logits)
    assert files["RTE.tsv"].split()[3::2] == ["not_entailment", "entailment", "entailment"]


def test_prediction_files_of_a_regression_have_values_which_the_server_takes_within_0_and_5(
    tmp_path,
):
    assert predict(tmp_path, "sts-b", [[3.5], [-0.25], [5.75]]) == {
        "test_results.tsv": "3.5\n-0.25\n5.75\n",
        "submit_results.tsv": "index\tprediction\n0\t3.5\n1\t-0.25\n2\t5.75\n",
        "STS-B.tsv": "index\tprediction\n0\t3.5\n1\t0.0\n2\t5.0\n",
    }


def test_what_a_tasks_name_tells_of_a_checkpoint_is_what_its_files_hold():
    assert {*TASKS, "snli"} == set(known_tasks.GLUE_LABELS)  # of 0.2, whose models are still opened
    for name, task in TASKS.items():
        metadata = run_states.metadata_of({"task": name})
        assert metadata.label_names == (task.labels or None)
        assert (metadata.problem_type == "regression") == task.is_regression
        assert (metadata.num_texts == 2) == (task.test.text_b is not None)


def test_every_task_of_the_benchmark_has_the_file_name_of_its_server():
    # The names of the sample submission of gluebenchmark.com.
    assert {task.submission for task in TASKS.values()} == {
        "AX.tsv", "CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "MRPC.tsv", "QNLI.tsv", "QQP.tsv",
        "RTE.tsv", "SST-2.tsv", "STS-B.tsv", "WNLI.tsv",
    }
