"""--task_name=tsv: columns by name or number, in English and Chinese; bad files refused."""

import json

import numpy as np
import pytest

from albert import run_classifier
from albert.cli import flags
from albert.errors import DataError, FlagError
from albert.tasks import glue, own_file
from albert.tokenization import FullTokenizer

HEADER = "id\tpremise\thypothesis\tgold\n"


def read(folder, content, split="train", labels=("no", "yes", "maybe"), **options):
    if content is not None:
        raw = content if isinstance(content, bytes) else content.encode()
        (folder / f"{split}.tsv").write_bytes(raw)
    options = {"text": "premise", "text_pair": "hypothesis", "label": "gold"} | options
    data = own_file.read_folder(
        str(folder), [split], labels=labels, normalize=str.lower, **options
    )
    return data.examples[split]


def test_columns_are_found_by_the_headers_names_in_any_order(tmp_path):
    examples = read(tmp_path, "gold\tid\thypothesis\tpremise\nyes\t7\tb\ta\nno\t8\td\tc\n")
    found = [(e.text_a, e.text_b, e.label) for e in examples]
    assert found == [("a", "b", "yes"), ("c", "d", "no")]


def test_columns_are_found_by_number_with_and_without_a_header(tmp_path):
    numbers = {"text": "1", "text_pair": None, "label": "0"}
    with_header = read(tmp_path, "gold\tpremise\nyes\ta\n", **numbers)
    without = read(tmp_path, "yes\ta\n", **numbers, has_header=False)
    assert [(e.text_a, e.text_b, e.label) for e in with_header] == [("a", None, "yes")]
    assert [(e.text_a, e.text_b, e.label) for e in without] == [("a", None, "yes")]


def test_each_file_has_its_own_columns_and_test_needs_no_label(tmp_path):
    read(tmp_path, HEADER + "1\ta\tb\tyes\n")
    examples = read(tmp_path, "hypothesis\tpremise\nb\ta\nd\tc\n", "test")
    assert [(e.guid, e.text_a, e.text_b) for e in examples] == [("0", "a", "b"), ("1", "c", "d")]


def test_labels_are_taken_as_they_are_written_or_as_texts_are_cleaned(tmp_path):
    rows = HEADER + "1\ta\tb\tYes\n2\ta\tb\tNO\n"
    assert [e.label for e in read(tmp_path, rows, labels=("no", "Yes"))] == ["Yes", "no"]


def test_numbers_are_a_regression(tmp_path):
    assert [e.label for e in read(tmp_path, HEADER + "1\ta\tb\t-2.5\n", labels=())] == [-2.5]


@pytest.mark.parametrize("labels", [("fraud", "legit"), ("no", "yes", "maybe")])
def test_f1_is_reported_by_the_labels_name_never_of_an_arbitrary_one(labels):
    from albert.tasks.classification import ClassificationTask

    task = ClassificationTask(
        "tsv", 8, len(labels), False, "accuracy", "eval_accuracy", label_names=labels
    )
    label_ids = np.array([0, 1, 1, 1])
    results = task.score({"label_ids": label_ids, "logits": np.eye(len(labels))[[0, 0, 1, 1]]})
    assert results == {
        "eval_accuracy": 0.75, "macro_f1": pytest.approx((2 / 3 + 4 / 5) / 2),
        f"f1_{labels[0]}": pytest.approx(2 / 3), f"f1_{labels[1]}": pytest.approx(4 / 5),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + "1\ta\tb\tyes\n2\ta\tyes\n", r"train\.tsv:3: 3 columns, the first line has 4"),
        (HEADER + "1\ta\tb\tyes\tx\n", r"train\.tsv:2: 5 columns, the first line has 4; quote"),
        (HEADER + "1\ta\tb\tyes\n\n2\ta\tb\tyes\n", r"train\.tsv:3: 1 columns, the first line has 4"),
        (HEADER + "1\ta\tb\tperhaps\n", r"train\.tsv:2: label 'perhaps' is not one of no, yes, ma"),
        ("1\ta\tb\tyes\n2\ta\tb\tno\n",
         r"--text_column=premise: .*train\.tsv has no such column \(1, a, b, yes\)"),
        (HEADER.replace("id", "gold") + "1\ta\tb\tyes\n", r"train\.tsv:1: two columns are named 'gold'"),
        (HEADER, "no rows below the names of the columns"),
        ("", r"train\.tsv: the file is empty"),
        (HEADER.encode() + b"1\ta\xff\tb\tyes\n", r"train\.tsv:2: not UTF-8 text \(byte 4"),
        (HEADER + "1\t" + "x" * (glue.MAX_LINE + 1), r"train\.tsv:2: a line of more than 16,777"),
        (None, r"no such file: .*train\.tsv; --data_dir must hold the file train\.tsv"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises((DataError, FlagError), match=message):
        read(tmp_path, content)


def test_a_first_line_that_is_data_is_noticed_where_columns_have_numbers(tmp_path):
    with pytest.raises(DataError, match=r"train\.tsv:1: a header line is expected, this is data.*--notsv_header"):
        read(tmp_path, "yes\ta\nno\tb\n", text="1", text_pair=None, label="0")


def test_a_column_that_is_not_there_is_named_with_its_flag(tmp_path):
    with pytest.raises(FlagError, match="--label_column=9: .* has no such column .id, premise"):
        read(tmp_path, HEADER + "1\ta\tb\tyes\n", label="9")
    with pytest.raises(FlagError, match=r"--text_column=premise: .* no such column \(0, 1, 2, 3\)"):
        read(tmp_path, "1\ta\tb\tyes\n", has_header=False)


# --- The command ---

WORDS = "很 好 坏 电 影 服 务 房 间 不 错 差".split()


@pytest.fixture(scope="module")
def chinese(golden_path, tmp_path_factory):
    """Flags of a tiny model with the Chinese vocabulary, and files in XNLI's columns."""
    folder = tmp_path_factory.mktemp("xnli")
    vocabulary = golden_path("spm/albert_zh_vocab.txt")
    config = {
        "vocab_size": len(FullTokenizer(str(vocabulary)).vocab), "embedding_size": 4,
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8, "max_position_embeddings": 16,
    }
    (folder / "config.json").write_text(json.dumps(config))
    labels = ("entailment", "neutral", "contradiction")
    for split, count in (("train", 12), ("dev", 7)):
        rows = [
            f"{WORDS[i % 12]}{WORDS[i * 5 % 12]}。\t{WORDS[i * 7 % 12]}？\t{labels[i % 3]}\n"
            for i in range(count)
        ]
        text = "sentence1\tsentence2\tgold_label\n" + "".join(rows)
        (folder / f"{split}.tsv").write_text(text, encoding="utf-8")
    text = "sentence1\tsentence2\n很好\t不错\n房间差\t好\n"
    (folder / "test.tsv").write_text(text, encoding="utf-8")
    return [
        "--task_name=tsv", f"--data_dir={folder}", "--text_column=sentence1",
        "--text_pair_column=sentence2", "--label_column=gold_label",
        f"--label_list={', '.join(labels)}", f"--vocab_file={vocabulary}",
        f"--albert_config_file={folder}/config.json", "--max_seq_length=12", "--train_step=2",
        "--train_batch_size=4",
    ]


def run(*arguments):
    values = flags.parse(run_classifier.define_flags, ["run_classifier", *map(str, arguments)])
    run_classifier.main(values)


def test_chinese_pairs_are_trained_evaluated_and_predicted(chinese, tmp_path):
    run(*chinese, f"--output_dir={tmp_path}", "--do_train", "--do_eval", "--do_predict")
    results = json.loads((tmp_path / "eval_results.json").read_text())
    assert results["eval_accuracy"] * 7 == pytest.approx(round(results["eval_accuracy"] * 7))
    lines = (tmp_path / "submit_results.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["index", "0", "1"]
    assert {line.split("\t")[1] for line in lines[1:]} <= {"entailment", "neutral", "contradiction"}
    unk = FullTokenizer(chinese[6].removeprefix("--vocab_file=")).vocab["[UNK]"]
    from albert.records.tfrecord import read_records
    tf = pytest.importorskip("tensorflow")
    (path,) = tmp_path.parent.glob(f".{tmp_path.name}.work/tsv_train-*.tf_record")
    first = tf.train.Example.FromString(next(read_records(str(path)))).features.feature
    assert sum(first["input_mask"].int64_list.value) == 8  # one token a sign, and three of form
    assert unk not in first["input_ids"].int64_list.value
    # Names in another order would be silently wrong.
    for action in ("--do_predict", "--do_eval"):
        with pytest.raises(FlagError, match="was trained with --label_list='entailment,neutral"):
            run(*chinese, f"--output_dir={tmp_path}", action,
                "--label_list=neutral,entailment,contradiction")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label_list="], "needs --label_list=a,b,c or --regression, one of them"),
        (["--regression"], "needs --label_list=a,b,c or --regression, one of them"),
        (["--label_list=a"], "--label_list=a is not two or more different labels"),
        (["--label_list=a,b,a"], "is not two or more different labels"),
        (["--task_name=rte"], "--label_list, --text_column, --text_pair_column, --label_column: "
                              "only --task_name=tsv takes this"),
        (["--classifier_dropout=1"], "--classifier_dropout=1.0: must be a number"),
        (["--albert_dropout=-0.1"], "--albert_dropout=-0.1: must be a number"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(chinese, tmp_path, arguments, message):
    with pytest.raises(FlagError, match=message):
        run(*chinese, f"--output_dir={tmp_path}/out", "--do_train", *arguments)
    assert not (tmp_path / "out").exists()
