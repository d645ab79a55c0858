"""SQuAD's windows: the original's, field by field; and files that are none."""

import dataclasses
import gzip
import json
import os
import random

import pytest
import tensorflow as tf
from helpers import REPO

from albert.errors import DataError
from albert.records import records, tfrecord
from albert.tasks.squad import alignment
from albert.tasks.squad import records as squad_records
from albert.tasks.squad.features import SquadExample, make_windows, read_answers, read_examples
from albert.tokenization import FullTokenizer

SETTINGS = {
    "s96": {"max_seq_length": 96, "doc_stride": 32, "max_query_length": 16},
    "s96cased": {"max_seq_length": 96, "doc_stride": 32, "max_query_length": 16},
    "s384": {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64},
}
CASES = [
    ("dev-v1.1", "s96"), ("dev-v2.0", "s96"), ("dev-v2.0", "s96cased"), ("dev-v2.0", "s384"),
    ("train-v1.1", "s96"), ("train-v2.0", "s96"), ("train-v2.0", "s384"),
]


@pytest.fixture(scope="module")
def tokenizer(golden_path):
    return FullTokenizer(None, True, str(golden_path("spm/30k-clean.model")))


@pytest.fixture(scope="module")
def folders(golden_path):
    """Awkward passages of ours; where `../shared` is, also passages of Wikipedia."""
    more = REPO.parent / "shared/golden/open/squad"
    return [golden_path("squad_odd"), *([more] if more.is_dir() else [])]


@pytest.mark.parametrize(("file", "setting"), CASES)
def test_every_field_of_every_window_is_the_originals(file, setting, folders, golden_path):
    is_training, lower = file.startswith("train"), setting != "s96cased"
    tokenizer = FullTokenizer(None, lower, str(golden_path("spm/30k-clean.model")))
    for folder in folders:
        with gzip.open(folder / f"features.{file}.{setting}.json.gz") as stream:
            golden = json.load(stream)
        examples = read_examples(str(folder / f"{file}.json"), is_training)
        windows = list(
            make_windows(examples, tokenizer, is_training=is_training, **SETTINGS[setting])
        )
        assert len(windows) == len(golden)
        for window, expected in zip(windows, golden, strict=True):
            ours = json.loads(json.dumps(dataclasses.asdict(window)))
            assert ours == expected, window.unique_id
        summary = json.loads((folder / "features_summary.json").read_text())
        dropped = summary[f"{file}.json/{setting}"]["examples_dropped_as_mismatch"]
        if dropped is not None:
            with_windows = {window.example_index for window in windows}
            assert [i for i in range(len(examples)) if i not in with_windows] == dropped


def messages(path) -> list[tf.train.Example]:
    return [tf.train.Example.FromString(record) for record in tfrecord.read_records(str(path))]


def test_the_training_records_are_the_originals(folders, tokenizer, tmp_path):
    def rows(path):
        """Without the ids, which count windows in their order."""
        found = []
        for example in messages(path):
            features = {
                k: tuple(v.int64_list.value) for k, v in example.features.feature.items()
                if k != "unique_ids"
            }
            found.append(tuple(sorted(features.items())))
        return sorted(found)

    for folder in folders:
        examples = read_examples(str(folder / "train-v2.0.json"), True)
        maker = squad_records.WindowKeeper(
            tokenizer, directory=str(tmp_path / folder.name), **SETTINGS["s96"]
        )
        path = maker.training_records(examples, str(folder / "train-v2.0.json"))
        # The reference has the file's order; the command shuffles questions first.
        assert rows(path) == rows(folder / "train-v2.0.s96.tfrecord")
        shuffled = list(examples)
        random.Random(12345).shuffle(shuffled)
        assert shuffled != examples


def test_in_the_files_order_the_training_records_are_the_originals_with_their_ids(
    folders, tokenizer, tmp_path
):
    for folder in folders:
        examples = read_examples(str(folder / "train-v2.0.json"), True)
        windows = make_windows(examples, tokenizer, is_training=True, **SETTINGS["s96"])
        ours = str(tmp_path / f"{folder.name}.tf_record")
        rows = squad_records.window_rows(windows, True)
        records.write_records(ours, rows, squad_records.record_spec(96, True), {})
        assert messages(ours) == messages(folder / "train-v2.0.s96.tfrecord")


def test_records_for_prediction_are_kept_and_stale_ones_refused(golden_path, tokenizer, tmp_path):
    origin = str(golden_path("squad_odd/dev-v1.1.json"))
    examples = read_examples(origin, False)
    maker = squad_records.WindowKeeper(tokenizer, directory=str(tmp_path), **SETTINGS["s96"])
    named = str(tmp_path / "named.tfrecord")
    for path in (None, named):
        first, windows = maker.prediction_records(examples, origin, path)
        written = os.stat(first).st_mtime_ns
        assert maker.prediction_records(examples, origin, path) == (first, windows)
        assert os.stat(first).st_mtime_ns == written
    other = dataclasses.replace(maker, doc_stride=17)
    with pytest.raises(DataError, match="made from another doc_stride: remove it, or name"):
        other.prediction_records(examples, origin, named)


def test_wordpiece_windows_find_their_answers(golden_path, tmp_path):
    tokenizer = FullTokenizer(str(golden_path("spm/albert_zh_vocab.txt")), True)
    context = "北京是中国的首都，人口超过2000万。ALBERT 于 2019 年发布。"
    questions = [("中国的首都是哪里", "北京"), ("人口多少", "2000万"), ("哪年发布", "2019")]
    data = {"data": [{"paragraphs": [{"context": context, "qas": [
        {"id": str(i), "question": q, "answers": [{"text": a, "answer_start": context.index(a)}]}
        for i, (q, a) in enumerate(questions)
    ]}]}]}
    path = tmp_path / "zh.json"
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    windows = list(
        make_windows(
            read_examples(str(path), True), tokenizer, max_seq_length=32, doc_stride=8,
            max_query_length=12, is_training=True,
        )
    )
    found = set()
    for window in windows:
        if window.is_impossible:
            continue
        offset = window.tokens.index("[SEP]") + 1
        begin = window.tok_start_to_orig_index[window.start_position - offset]
        last = window.tok_end_to_orig_index[window.end_position - offset]
        found.add(context[begin : last + 1])
    assert found >= {"北京", "2019"}
    assert any(answer in ("2000万", "2000") for answer in found)


CHINESE = (
    "ＡＬＢＥＲＴ　是Ｇｏｏｇｌｅ的模型，Naïve café\u200b 模型 İstanbul ﬁrst 𠀀字 😀 "
    "保禄·若瑟（），1963年被任为主教"
)


def test_every_wordpiece_stands_at_its_own_characters(golden_path):
    tokenizer = FullTokenizer(str(golden_path("spm/albert_zh_vocab.txt")), True)
    example = SquadExample("1", "谁", CHINESE, None, None, False, "zh.json")
    (window,) = make_windows(
        [example], tokenizer, max_seq_length=128, doc_stride=8, max_query_length=8,
        is_training=False,
    )
    pieces = window.tokens[window.tokens.index("[SEP]") + 1 : window.paragraph_len - 1]
    begins, lasts = window.tok_start_to_orig_index, window.tok_end_to_orig_index
    for piece, begin, last in zip(pieces, begins, lasts, strict=True):
        text = CHINESE[begin : last + 1]
        if piece == "[UNK]":
            assert text in ("ﬁrst", "𠀀", "😀")
        else:
            (word,) = tokenizer.basic_tokenizer.tokenize(text)
            assert word == piece.removeprefix("##")
    assert all(last < begin for last, begin in zip(lasts, begins[1:], strict=False))
    covered = {i for span in zip(begins, lasts, strict=True) for i in range(span[0], span[1] + 1)}
    assert {CHINESE[i] for i in set(range(len(CHINESE))) - covered} == {"\u3000", "\u200b", " "}


def test_an_answer_in_wordpieces_is_widened_to_whole_pieces_and_no_further(golden_path):
    tokenizer = FullTokenizer(str(golden_path("spm/albert_zh_vocab.txt")), True)
    settings = {"max_seq_length": 128, "doc_stride": 8, "max_query_length": 8}
    for start in range(len(CHINESE)):
        for end in range(start + 1, min(start + 7, len(CHINESE)) + 1):
            answer = CHINESE[start:end]
            if answer != answer.strip(" \u3000\u200b"):
                continue
            example = SquadExample("1", "谁", CHINESE, answer, start, False, "zh.json")
            (window,) = make_windows([example], tokenizer, is_training=True, **settings)
            offset = window.tokens.index("[SEP]") + 1
            first, last = window.start_position - offset, window.end_position - offset
            begins, lasts = window.tok_start_to_orig_index, window.tok_end_to_orig_index
            assert begins[first] <= start <= lasts[first]
            assert begins[last] <= end - 1 <= lasts[last]


def squad(tmp_path, *qas, context="the cat sat on the mat"):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}))
    return str(path)


def question(**changes):
    return {
        "id": "1", "question": "who sat?", "answers": [{"text": "cat", "answer_start": 4}]
    } | changes


BAD = {
    "no data": ('{"version": 1}', "s.json: no 'data'"),
    "list": ("[]", "s.json: expected an object, got list"),
    "not json": ("{", "s.json:1:2: not JSON"),
    "empty": ("", "s.json:1:1: not JSON"),
    "no questions": ('{"data": []}', "s.json: no questions"),
    "no paragraphs": ('{"data": [{}]}', "s.json: data[0]: no 'paragraphs'"),
    "context": ('{"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}',
                "data[0].paragraphs[0]: 'context' must be a string, got 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_none_is_refused_with_the_place(case, tmp_path):
    text, message = BAD[case]
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(DataError) as error:
        read_examples(str(tmp_path / "s.json"), True)
    assert message in str(error.value)


BAD_QUESTIONS = {
    "no id": ([{"question": "x", "answers": []}], "qas[0]: no 'id'"),
    "twice": ([question(), question()], "qas[1]: id '1' stands already at data[0].paragraphs[0]"),
    "two answers": ([question(answers=[{}, {}])], "qas[0]: 2 answers"),
    "no answers": ([question(answers=[])], "qas[0]: 0 answers"),
    "answer": ([question(answers=[{"text": "cat"}])], "qas[0].answers[0]: no 'answer_start'"),
    "impossible": ([question(is_impossible="no")], "'is_impossible' must be true or false"),
    "start": ([question(answers=[{"text": "cat", "answer_start": "4"}])],
              "'answer_start' must be a whole number"),
}


@pytest.mark.parametrize("case", BAD_QUESTIONS)
def test_a_bad_question_is_refused_with_its_place(case, tmp_path):
    questions, message = BAD_QUESTIONS[case]
    path = squad(tmp_path, *questions)
    with pytest.raises(DataError) as error:
        read_examples(path, True)
    assert message in str(error.value)
    assert "data[0].paragraphs[0].qas[" in str(error.value)


def test_invalid_utf8_is_refused(tmp_path):
    (tmp_path / "s.json").write_bytes(b'{"data": "\xff"}')
    with pytest.raises(DataError, match="not UTF-8 text"):
        read_examples(str(tmp_path / "s.json"), False)


def test_an_answer_that_is_not_where_the_file_says_is_left_out_and_told(tmp_path, caplog):
    wrong = question(id="2", answers=[{"text": "dog", "answer_start": 4}])
    examples = read_examples(squad(tmp_path, question(), wrong), True)
    assert [e.qas_id for e in examples] == ["1"]
    assert "1 of 2 questions" in caplog.text and "2 (data[0].paragraphs[0].qas[1])" in caplog.text


def test_prediction_needs_no_answers(tmp_path):
    bare = {"id": "1", "question": "who sat?"}
    (example,) = read_examples(squad(tmp_path, bare), False)
    assert example.orig_answer_text is None and not example.is_impossible


@pytest.mark.parametrize("answers", [None, "cat", ["cat"], [{}], [{"text": 1}], [{"text": "c"}]])
def test_to_predict_nothing_is_asked_of_answers(answers, tmp_path, caplog):
    (example,) = read_examples(squad(tmp_path, question(answers=answers)), False)
    assert example.orig_answer_text is None and not caplog.records


def test_to_predict_a_question_with_a_displaced_answer_is_kept(tmp_path):
    wrong = question(id="2", answers=[{"text": "cat", "answer_start": 4000}])
    unplaced = question(id="3", answers=[{"text": "cat"}])
    examples = read_examples(squad(tmp_path, question(), wrong, unplaced), False)
    assert [e.qas_id for e in examples] == ["1", "2", "3"]


@pytest.mark.parametrize("changes, expected", [
    ({}, ["cat"]),
    ({"answers": []}, []),
    ({"answers": [], "is_impossible": True}, []),
    ({"is_impossible": True}, ["cat"]),
    ({"answers": None}, None),
])
def test_the_answers_of_a_question_are_known_or_not(changes, expected, tmp_path):
    path = squad(tmp_path, question(), question(id="2", **changes), {"id": "3", "question": "why?"})
    assert read_answers(path) == {"1": ["cat"], "2": expected, "3": None}


def test_a_file_of_empty_lists_has_no_known_answers(tmp_path):
    empty = question(answers=[])  # as some write a test set
    assert read_answers(squad(tmp_path, empty)) == {"1": None}
    impossible = question(id="2", answers=[], is_impossible=True)
    assert read_answers(squad(tmp_path, empty, impossible)) == {"1": [], "2": []}


def test_a_training_file_without_one_usable_answer_is_refused(tmp_path):
    wrong = question(answers=[{"text": "dog", "answer_start": 4}])
    with pytest.raises(DataError, match="no question has its answer where answer_start says"):
        read_examples(squad(tmp_path, wrong), True)


def test_a_shuffled_file_reads_each_passage_once(golden_path, tokenizer, monkeypatch):
    examples = read_examples(str(golden_path("squad_odd/dev-v1.1.json")), False)
    random.Random(1).shuffle(examples)
    read, align = [], alignment.align
    monkeypatch.setattr(
        alignment, "align", lambda *texts: read.append(texts) or align(*texts)
    )
    list(make_windows(examples, tokenizer, is_training=False, **SETTINGS["s96"]))
    assert len(read) == len({example.paragraph_text for example in examples})


def test_a_file_of_blank_passages_leaves_no_empty_records(tokenizer, tmp_path):
    examples = read_examples(squad(tmp_path, question(answers=[]), context=" \n "), False)
    maker = squad_records.WindowKeeper(
        tokenizer, directory=str(tmp_path / "out"), **SETTINGS["s96"]
    )
    with pytest.raises(DataError, match=r"qas\[0\]: neither this passage nor any other can be"):
        maker.prediction_records(examples, str(tmp_path / "s.json"))
    assert not (tmp_path / "out").exists()
