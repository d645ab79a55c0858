"""RACE: the original's questions, features, records and head; both layouts; bad files refused."""

import gzip
import json

import numpy as np
import pytest

from albert.errors import DataError
from albert.records import features
from albert.records.record_files import RecordFiles
from albert.tasks import race
from albert.tasks.fine_tuning_data import FineTuningData, RecordKeeper
from albert.tokenization import FullTokenizer

VARIANTS = {
    "spm_lower": race.LEVELS,
    "spm_high_only": ("high",),
    "spm_middle_only_cased": ("middle",),
    "wordpiece_lower": ("middle",),
}


@pytest.fixture(scope="module")
def golden(golden_path):
    with gzip.open(golden_path("race/features.json.gz"), "rt") as stream:
        return json.load(stream)


def make_tokenizer(golden_path, variant):
    if variant.startswith("wordpiece"):
        return FullTokenizer(str(golden_path("spm/albert_zh_vocab.txt")))
    lower = not variant.endswith("cased")
    return FullTokenizer(None, lower, str(golden_path("spm/30k-clean.model")))


# The golden files were made by the original's run_race (see their README).


@pytest.mark.parametrize("variant", VARIANTS)
def test_questions_and_features_are_the_originals(golden_path, golden, variant):
    tokenizer = make_tokenizer(golden_path, variant)
    cases = {key: case for key, case in golden.items() if key.startswith(f"{variant}/")}
    assert len(cases) >= 3
    for key, case in cases.items():
        split = key.split("/")[1]
        data_dir = str(golden_path("race/data"))
        questions = race.read_questions(data_dir, split, tokenizer, VARIANTS[variant])
        for question, want in zip(questions, case["examples"], strict=True):
            assert question.guid.startswith(want["example_id"] + "-")
            assert question.article == want["context_sentence"].strip()
            assert [e.strip() for e in question.endings] == [e.strip() for e in want["endings"]]
            assert question.label == want["label"]
        rows = race.question_rows(
            questions, tokenizer, case["max_seq_length"], case["max_qa_length"]
        )
        for row, want in zip(rows, case["features"], strict=True):
            for name in ("input_ids", "input_mask", "segment_ids"):
                assert row[name].tolist() == sum(want[name], [])
            assert row["label_ids"] == want["label_id"]
            assert bool(row["is_real_example"]) == want["is_real_example"]


def test_records_hold_what_the_originals_hold(golden_path, tmp_path):
    tf = pytest.importorskip("tensorflow")
    tokenizer = make_tokenizer(golden_path, "spm_lower")
    questions = race.read_questions(str(golden_path("race/data")), "dev", tokenizer)
    data = FineTuningData("race", {"dev": questions})
    path = race.question_records(data, "dev", RecordKeeper(tokenizer, 128, str(tmp_path)), 32)
    theirs = str(golden_path("race/dev.s128.tfrecord"))

    def read(path):
        messages = [tf.train.Example.FromString(m.numpy()) for m in tf.data.TFRecordDataset(path)]
        return [{k: str(v) for k, v in m.features.feature.items()} for m in messages]

    assert read(path) == read(theirs)
    spec = features.classification_spec(128, False, race.NUM_CHOICES)
    assert RecordFiles([theirs]).check(spec).counts == [len(questions)]
    message = "has max_seq_length 128 .* expected 64: pass --max_seq_length=128"
    with pytest.raises(DataError, match=message):
        RecordFiles([theirs]).check(features.classification_spec(64, False, race.NUM_CHOICES))


def test_the_archives_layout_without_final_newlines_is_read_in_the_order_of_names(
    shared, golden_path
):
    tokenizer = make_tokenizer(golden_path, "spm_lower")
    questions = race.read_questions(str(shared / "data/race"), "dev", tokenizer)
    levels = dict(race.level_sizes(questions))
    assert list(levels) == ["middle", "high"] and min(levels.values()) > 10
    passages = list(dict.fromkeys(q.guid.rsplit("-", 1)[0] for q in questions))
    assert len(passages) == len(list((shared / "data/race/RACE/dev").glob("*/*.txt")))
    for level in race.LEVELS:
        names = [p.removeprefix(level) for p in passages if p.startswith(level)]
        assert names == sorted(names)


# --- Files of odd shape ---


class Cleaned:
    """The part of a tokenizer that reading needs."""

    @staticmethod
    def preprocess(text):
        return text.strip()


PASSAGE = {
    "id": "middle1.txt", "article": "A cat sat.", "questions": ["Who _ ?", "What sat?"],
    "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]], "answers": ["B", "D"],
}


def read(tmp_path, content, name="all.txt", split="dev"):
    folder = tmp_path / "RACE" / split / "middle"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return race.read_questions(str(tmp_path), split, Cleaned, ["middle"])


def test_an_option_fills_every_blank_or_follows_the_question(tmp_path):
    first, second = read(tmp_path, json.dumps(PASSAGE | {"questions": ["_ or __?", "What?"]}))
    assert first.endings == ("a or aa?", "b or bb?", "c or cc?", "d or dd?")
    assert second.endings == ("What? e", "What? f", "What? g", "What? h")
    assert (first.label, second.label) == (1, 3)
    assert (first.guid, second.guid) == ("middle1.txt-0", "middle1.txt-1")


def test_passages_put_together_without_line_feeds_are_all_read(tmp_path):
    one = json.dumps(PASSAGE)
    assert len(read(tmp_path, one + one + "\n\n" + one)) == 6
    assert len(read(tmp_path, "\ufeff" + json.dumps(PASSAGE, indent=1) + one)) == 4


def test_all_txt_comes_before_single_passages(tmp_path):
    read(tmp_path, json.dumps(PASSAGE), "1.txt")
    assert len(read(tmp_path, json.dumps(PASSAGE), "2.txt")) == 4
    assert len(read(tmp_path, json.dumps(PASSAGE))) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": ["B", "E"]}, r"all\.txt:2: question 2: answer 'E' is not one of A, B, C, D"),
        ({"answers": ["AB", "A"]}, r"all\.txt:2: question 1: answer 'AB'"),
        ({"answers": [1, "A"]}, r"all\.txt:2: question 1: answer 1"),
        ({"answers": ["A"]}, r"all\.txt:2: the passage has 2 questions, 2 options, 1 answers"),
        ({"options": [["a"] * 4, ["a"] * 3]}, r"all\.txt:2: question 2 has 3 options, expected 4"),
        ({"options": [["a"] * 4, "abcd"]}, r"all\.txt:2: question 2: its options are not a list"),
        ({"questions": ["a", 7]}, r"all\.txt:2: question 2 is not a text: 7"),
        ({"questions": None}, r"all\.txt:2: questions must be a list, got None"),
        ({"article": None}, r"all\.txt:2: article must be a text, got None"),
    ],
)
def test_a_bad_passage_is_named_by_file_line_and_question(tmp_path, change, message):
    lines = json.dumps(PASSAGE) + "\n" + json.dumps(PASSAGE | change) + "\n"
    with pytest.raises(DataError, match=message):
        read(tmp_path, lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}\n', r"all\.txt:1: the passage has no article, questions, options, answers"),
        ("[1]", r"all\.txt:1: a passage is a JSON object, got list"),
        (json.dumps(PASSAGE) + "\n{'a'}", r"all\.txt:2:2: not JSON"),
        (json.dumps(PASSAGE)[:-9], r"all\.txt:1:\d+: not JSON"),
        (json.dumps(PASSAGE).encode() + b"\n\"\xff\"", r"all\.txt:2: not UTF-8 text"),
        ("[" * 100_000, r"all\.txt:1: not usable JSON: nested too deeply"),
        ("\n", "no passage in it"),
    ],
)
def test_what_is_no_json_of_race_is_refused_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)


def test_a_missing_folder_tells_what_must_be_there(tmp_path):
    with pytest.raises(DataError, match="RACE/dev/middle; --data_dir must hold the folder RACE"):
        race.read_questions(str(tmp_path), "dev", Cleaned)


def test_answers_may_be_absent_from_the_test_questions_only(tmp_path):
    unlabelled = json.dumps({k: v for k, v in PASSAGE.items() if k != "answers"})
    assert [q.label for q in read(tmp_path, unlabelled, split="test")] == [None, None]
    with pytest.raises(DataError, match="the passage has no answers"):
        read(tmp_path, unlabelled)
    with pytest.raises(DataError, match="2 of 4 questions have answers"):
        read(tmp_path, unlabelled + json.dumps(PASSAGE), split="test")


def test_a_named_feature_file_of_other_settings_is_refused(golden_path, tmp_path):
    tokenizer = make_tokenizer(golden_path, "spm_lower")
    data = FineTuningData("race", {"dev": read(tmp_path, json.dumps(PASSAGE))})
    path = str(tmp_path / "dev.tfrecord")

    def make(max_qa_length):
        return race.question_records(
            data, "dev", RecordKeeper(tokenizer, 64, ""), max_qa_length, path
        )

    assert make(16) == make(16) == path
    with pytest.raises(DataError, match="made from another max_qa_length: remove it"):
        make(17)


# --- The head ---


def test_accuracy_is_told_for_each_level():
    pytest.importorskip("tensorflow")
    from albert.tasks.classification import MultipleChoiceTask

    task = MultipleChoiceTask.of_choices("race", 8, 4, parts=(("middle", 2), ("high", 3)))
    labels, guesses = np.array([0, 1, 2, 3, 0]), np.array([0, 2, 2, 3, 1])
    arrays = {"logits": np.eye(4)[guesses], "label_ids": labels}
    assert task.score(arrays) == pytest.approx(
        {"eval_accuracy": 0.6, "eval_accuracy_middle": 0.5, "eval_accuracy_high": 2 / 3}
    )
    arrays = {name: values[1:] for name, values in arrays.items()}
    assert task.score(arrays) == {"eval_accuracy": 0.5}  # other rows than those of the parts
