"""RACE: the original's questions, features, records and head; both layouts; bad files refused."""

import gzip
import json

import jobs
import numpy as np
import pytest
from helpers import assert_same_records, golden_tokenizer

from albert.errors import DataError
from albert.records import features
from albert.records.record_files import RecordFiles
from albert.tasks import race
from albert.tasks.classification import MultipleChoiceTask
from albert.tasks.fine_tuning_data import make_records
from albert.tokenization import FullTokenizer

VARIANTS = {  # {name: (levels, tokenizer)}
    "spm_lower": (race.LEVELS, "spm_lower"), "spm_high_only": (("high",), "spm_lower"),
    "spm_middle_only_cased": (("middle",), "spm_cased"),
    "wordpiece_lower": (("middle",), "wordpiece_lower"),
}


# The golden files were made by the original's run_race (see their README).


def test_questions_and_features_are_the_originals(golden_path):
    with gzip.open(golden_path("race/features.json.gz"), "rt") as stream:
        golden = json.load(stream)
    data_dir, seen = str(golden_path("race/data")), []
    for variant, (levels, kind) in VARIANTS.items():
        tokenizer = golden_tokenizer(golden_path, kind)
        for key, case in golden.items():
            name, _, rest = key.partition("/")
            if name != variant:
                continue
            seen.append(name)
            questions = race.read_questions(data_dir, rest.split("/")[0], tokenizer, levels)
            for question, want in zip(questions, case["examples"], strict=True):
                assert question.guid.startswith(want["example_id"] + "-")
                assert question.article == want["context_sentence"].strip()
                assert [e.strip() for e in question.endings] == [e.strip() for e in want["endings"]]
                assert question.label == want["label"]
            rows = race.question_rows(
                questions, tokenizer, case["max_seq_length"], case["max_qa_length"]
            )
            for row, want in zip(rows, case["features"], strict=True):
                for field in ("input_ids", "input_mask", "segment_ids"):
                    assert row[field].tolist() == sum(want[field], [])
                assert row["label_ids"] == want["label_id"]
                assert bool(row["is_real_example"]) == want["is_real_example"]
    assert all(seen.count(variant) >= 3 for variant in VARIANTS)


def test_records_hold_what_the_originals_hold(golden_path):
    tokenizer = golden_tokenizer(golden_path)
    questions = race.read_questions(str(golden_path("race/data")), "dev", tokenizer)
    task = MultipleChoiceTask("race", 128, tuple("ABCD"), max_qa_length=32)
    theirs = RecordFiles([str(golden_path("race/dev.s128.tfrecord"))])
    spec = features.classification_spec(128, False, race.NUM_CHOICES)
    assert theirs.check(spec).counts == [len(questions)]
    assert_same_records(make_records(task, "dev", questions, tokenizer), theirs, spec)
    message = "has max_seq_length 128 .* expected 64: pass --max_seq_length=128"
    with pytest.raises(DataError, match=message):
        theirs.check(features.classification_spec(64, False, race.NUM_CHOICES))


# --- Files as the archive has them ---

PASSAGE = {
    "id": "middle1.txt", "article": "w1 w2 w3 w4", "questions": ["w5 _ or __?", "w6?"],
    "options": [["w1", "w2", "w3", "w4"], ["w7", "w8", "w9", "w10"]], "answers": ["B", "D"],
}
ONE = json.dumps(PASSAGE)


def write(folder, content, name="all.txt", split="dev", level="middle"):
    path = folder / "RACE" / split / level / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def tokenizer(tmp_path):
    return FullTokenizer(jobs.write_vocabulary(tmp_path))


@pytest.fixture
def read(tmp_path, tokenizer):
    """Function that reads the questions from a file's content."""

    def get(content=ONE, name="all.txt", split="dev"):
        write(tmp_path, content, name, split)
        return race.read_questions(str(tmp_path), split, tokenizer, ["middle"])

    return get


def test_each_split_has_the_questions_of_its_levels_by_file_name(tmp_path, tokenizer):
    for split in ("train", "dev", "test"):
        for level, answers in (("high", "DA"), ("middle", "BC")):
            for name in ("2.txt", "10.txt"):  # without a final line feed
                passage = PASSAGE | {"article": f"{split} {level}", "answers": [*answers]}
                write(tmp_path, json.dumps(passage | {"id": level + name}), name, split, level)
        questions = race.read_questions(str(tmp_path), split, tokenizer)
        assert [(q.guid, q.level, q.label) for q in questions] == [
            (f"{level}{name}-{i}", level, label)
            for level, labels in (("middle", (1, 2)), ("high", (3, 0)))
            for name in ("10.txt", "2.txt") for i, label in enumerate(labels)
        ]
        assert {q.article for q in questions} == {f"{split} middle", f"{split} high"}
        task = MultipleChoiceTask("race", 8, tuple("ABCD")).scoring(questions)
        assert task.parts == (("middle", 4), ("high", 4))


def test_an_option_fills_every_blank_or_follows_the_question(read, tokenizer):
    first, second = questions = read()
    assert first.endings == tuple(f"w5 w{n} or w{n}w{n}?" for n in (1, 2, 3, 4))
    assert second.endings == ("w6? w7", "w6? w8", "w6? w9", "w6? w10")
    rows = list(race.question_rows(questions, tokenizer, 8, 2))
    ids = tokenizer.convert_ids_to_tokens(rows[1]["input_ids"])
    # The passage loses its end; a question that is too long loses its beginning.
    assert ids[8:16] == ["[CLS]", "w1", "w2", "w3", "[SEP]", "[UNK]", "w8", "[SEP]"]
    assert rows[1]["segment_ids"].tolist() == [0, 0, 0, 0, 0, 1, 1, 1] * 4


def test_several_passages_of_a_file_are_all_read_and_all_txt_alone(read):
    assert len(read(ONE, "1.txt")) == 2 and len(read(ONE, "2.txt")) == 4
    assert len(read()) == 2
    assert len(read(ONE + ONE + "\n\n" + ONE)) == 6
    assert len(read("\ufeff" + json.dumps(PASSAGE, indent=1) + ONE)) == 4


REFUSED = [  # content, or change to the second passage; message
    ({"answers": ["B", "E"]}, r"all\.txt:2: question 2: answer 'E' is not one of A, B, C, D"),
    ({"answers": ["AB", "A"]}, r"all\.txt:2: question 1: answer 'AB'"),
    ({"answers": [1, "A"]}, r"all\.txt:2: question 1: answer 1"),
    ({"answers": ["A"]}, r"all\.txt:2: the passage has 2 questions, 2 options, 1 answers"),
    ({"options": [["a"] * 4, ["a"]]}, r"all\.txt:2: question 2 has 1 options, expected 2 to 26"),
    ({"answers": ["B", "C"], "options": [["a"] * 4, ["a"] * 2]},
     r"all\.txt:2: question 2: answer 'C' is not one of A, B$"),
    ({"options": [["a"] * 4, "abcd"]}, r"all\.txt:2: question 2: its options are not a list"),
    ({"questions": ["a", 7]}, r"all\.txt:2: question 2 is not a text: 7"),
    ({"questions": None}, r"all\.txt:2: 'questions' must be a list, got None"),
    ({"article": None}, r"all\.txt:2: 'article' must be a text, got None"),
    ('{"a": 1}\n', r"all\.txt:1: no 'article'; is it a RACE file"),
    ("[1]", r"all\.txt:1: expected an object, got int; is it a RACE file"),
    (ONE + "\n{'a'}", r"all\.txt:2:2: not JSON"),
    (ONE[:-9], r"all\.txt:1:\d+: not JSON"),
    (ONE.encode() + b"\n\"\xff\"", r"all\.txt:2: not UTF-8 text"),
    ("[" * 100_000, r"all\.txt:1: not usable JSON: nested too deeply"),
    ("\n", "no passage with questions in it"),
]


def test_a_bad_passage_is_refused_with_its_line_and_question(read, tmp_path, tokenizer):
    for content, said in REFUSED:
        if isinstance(content, dict):
            content = ONE + "\n" + json.dumps(PASSAGE | content) + "\n"
        with pytest.raises(DataError, match=said):
            read(content)
    with pytest.raises(DataError, match="RACE/train/middle; --data_dir must hold the folder RACE"):
        race.read_questions(str(tmp_path), "train", tokenizer)


def test_answers_may_be_absent_from_the_test_questions_only(read):
    unlabelled = json.dumps({k: v for k, v in PASSAGE.items() if k != "answers"})
    assert [q.label for q in read(unlabelled, split="test")] == [None, None]
    with pytest.raises(DataError, match="no 'answers'; is it a RACE file"):
        read(unlabelled)
    with pytest.raises(DataError, match="2 of 4 questions have answers"):
        read(unlabelled + ONE, split="test")


def test_accuracy_is_reported_for_each_level():
    task = MultipleChoiceTask("race", 8, tuple("ABCD"), parts=(("middle", 2), ("high", 3)))
    labels, guesses = np.array([0, 1, 2, 3, 0]), np.array([0, 2, 2, 3, 1])
    arrays = {"logits": np.eye(4)[guesses], "label_ids": labels}
    assert task.score(arrays) == pytest.approx(
        {"eval_accuracy": 0.6, "eval_accuracy_middle": 0.5, "eval_accuracy_high": 2 / 3}
    )
    arrays = {name: values[1:] for name, values in arrays.items()}
    assert task.score(arrays) == {"eval_accuracy": 0.5}  # different rows from those of the levels
