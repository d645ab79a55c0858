"""SQuAD's windows: equal to the original's, field by field; and invalid files."""

import gzip
import json
import random

import jobs
import numpy as np
import pytest
import tensorflow as tf
from helpers import REPO
from record_files_made import payloads_of, write_records

from albert.errors import DataError
from albert.tasks.squad import SquadTask, known_answers, make_windows, read_questions
from albert.tasks.squad_answers import Question
from albert.tokenization import FullTokenizer

S96 = {"max_seq_length": 96, "doc_stride": 32, "max_query_length": 16}
S384 = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}
SETTINGS = {"s96": S96, "s96cased": S96, "s384": S384}
CASES = [
    ("dev-v1.1", "s96"), ("dev-v2.0", "s96"), ("dev-v2.0", "s96cased"), ("dev-v2.0", "s384"),
    ("train-v1.1", "s96"), ("train-v2.0", "s96"), ("train-v2.0", "s384"),
]


@pytest.fixture(scope="module")
def tokenizer(golden_path):
    return FullTokenizer(None, True, str(golden_path("spm/30k-clean.model")))


@pytest.fixture(scope="module")
def wordpiece(golden_path):
    return FullTokenizer(str(golden_path("spm/albert_zh_vocab.txt")), True)


@pytest.fixture(scope="module")
def folders(golden_path):
    """Our awkward passages and, if `../shared` exists, passages from Wikipedia."""
    more = REPO.parent / "shared/golden/open/squad"
    return [golden_path("squad_odd"), *([more] if more.is_dir() else [])]


# The original aligns passages by a longest common subsequence; we ask the tokenizer. Where a token
# begins then differs among white space alone, and passages that the original skips work.
SKIPPED_THERE = {"odd014"}  # accents alone
POSITIONS = {"unique_id", "tok_start_to_orig_index", "tok_end_to_orig_index"}


def without_positions(fields: dict) -> dict:
    return {name: value for name, value in fields.items() if name not in POSITIONS}


def as_the_original_has_it(window, tokenizer, is_training: bool) -> dict:
    """Returns the fields of a window under the original's names, without its numbers."""
    start, end = window.answer or (0, 0)
    first, last = window.spans.T.tolist()
    return {name: values.tolist() for name, values in window.row.items()} | {
        "tokens": tokens_of(window, tokenizer), "paragraph_len": window.offset + len(first) + 1,
        "tok_start_to_orig_index": first, "tok_end_to_orig_index": last,
        "token_is_max_context": {
            str(i): bool(x) for i, x in enumerate(window.has_most_context, window.offset)
        },
        "start_position": start if is_training else None,
        "end_position": end if is_training else None,
        "is_impossible": is_training and window.answer is None,
    }


def tokens_of(window, tokenizer) -> list[str]:
    return [tokenizer.inv_vocab[i] for i in window.row["input_ids"].tolist()]


@pytest.mark.parametrize(("file", "setting"), CASES)
def test_every_field_of_every_window_is_the_originals(file, setting, folders, golden_path):
    is_training, lower = file.startswith("train"), setting != "s96cased"
    tokenizer = FullTokenizer(None, lower, str(golden_path("spm/30k-clean.model")))
    for folder in folders:
        with gzip.open(folder / f"features.{file}.{setting}.json.gz") as stream:
            golden = json.load(stream)
        questions = read_questions(str(folder / f"{file}.json"), is_training)
        there = [i for i, question in enumerate(questions) if question.qas_id not in SKIPPED_THERE]
        windows = make_windows([questions[i] for i in there], tokenizer, **SETTINGS[setting])
        moved = 0
        for number, (window, expected) in enumerate(zip(windows, golden, strict=True)):
            ours = as_the_original_has_it(window, tokenizer, is_training)
            if not is_training:
                assert there[window.question] == expected["example_index"]
            # Nothing reads the window's number in its question.
            del expected["doc_span_index"], expected["example_index"]
            if is_training and expected["start_position"] != ours["start_position"]:
                moved += 1  # an answer between two zero-width spaces
                ours["start_position"] = expected["start_position"]
            assert without_positions(ours) == without_positions(expected), number
            if not is_training:
                text = questions[there[window.question]].passage
                for ours_, theirs in zip(*(
                    zip(one["tok_start_to_orig_index"], one["tok_end_to_orig_index"], strict=True)
                    for one in (ours, expected)
                ), strict=True):
                    same = [text[a : b + 1].strip().strip("\u200b ") for a, b in (ours_, theirs)]
                    assert same[0] == same[1] or theirs[0] == 0, (same, text)
        assert moved <= 1


def test_an_answer_that_ends_at_the_edge_of_a_window_is_in_it_and_one_token_later_it_is_not(tmp_path):
    tokenizer = FullTokenizer(jobs.write_vocabulary(tmp_path))
    words = [f"w{i}" for i in range(20, 30)]
    text = " ".join(words)
    for last in range(2, 10):
        answer = " ".join(words[last - 1 : last + 1])
        asked = Question("q", "w1", text, (answer,), text.index(answer))
        windows = make_windows([asked], tokenizer, max_seq_length=8, doc_stride=2, max_query_length=4)
        for number, window in enumerate(windows):  # of four words, the first one is 2 * number
            position = 3 + last - 2 * number
            holds = 2 * number <= last - 1 and last < 2 * number + 4
            assert window.answer == ((position - 1, position) if holds else None)
            if holds:
                assert tokens_of(window, tokenizer)[position - 1 : position + 1] == answer.split()


def test_the_training_records_are_the_originals(folders, tokenizer, tmp_path, monkeypatch):
    def messages(path) -> list[tf.train.Example]:
        return [tf.train.Example.FromString(r) for r in payloads_of(str(path))]

    def rows(path):
        """Without the ids, which number the windows in order."""
        return sorted(
            sorted((name, tuple(value.int64_list.value))
                   for name, value in example.features.feature.items() if name != "unique_ids")
            for example in messages(path)
        )

    for folder in folders:
        file, theirs = str(folder / "train-v2.0.json"), folder / "train-v2.0.s96.tfrecord"
        questions = [q for q in read_questions(file, True) if q.qas_id not in SKIPPED_THERE]
        ours = str(tmp_path / f"{folder.name}.tf_record")
        task = SquadTask(**S96)
        path = str(tmp_path / f"{folder.name}.shuffled")
        write_records(path, task.rows(questions, tokenizer, "train"), task.feature_spec(), {})
        with monkeypatch.context() as patch:  # the command shuffles questions first
            patch.setattr(random.Random, "shuffle", lambda *_: None)
            rows_in_order = list(task.rows(questions, tokenizer, "train"))
        write_records(ours, rows_in_order, task.feature_spec(), {})
        moved = [one for one, other in zip(messages(ours), messages(theirs), strict=True) if one != other]
        assert len(moved) <= 1  # an answer between two zero-width spaces
        assert messages(path) != messages(ours)
        differ = [one for one, other in zip(rows(path), rows(theirs), strict=True) if one != other]
        assert len(differ) <= 2


# --- Where windows and answers are ---


def windows_of(context, tokenizer, answer=None, start=-1, question="w1", **settings):
    asked = Question("1", question, context, None if answer is None else (answer,), start)
    settings = {"max_seq_length": 128, "doc_stride": 8, "max_query_length": 8} | settings
    return list(make_windows([asked], tokenizer, **settings))


@pytest.mark.parametrize("stride", [1, 3, 5, 6, 128])
def test_windows_cover_every_token_and_each_has_most_context_once(stride, tmp_path):
    tokenizer = FullTokenizer(jobs.write_vocabulary(tmp_path))
    context = " ".join(f"w{i}" for i in range(12))
    windows = windows_of(
        context, tokenizer, max_seq_length=10, doc_stride=stride, max_query_length=2,
        question="w20 w21 w22",
    )
    starts, covered, best = [], set(), []
    for window in windows:
        tokens = tokens_of(window, tokenizer)
        assert tokens[:4] == ["[CLS]", "w20", "w21", "[SEP]"]  # the third is cut off
        words = tokens[4 : 4 + len(window.spans)]
        starts.append(int(words[0][1:]))
        covered.update(words)
        best += np.array(words)[window.has_most_context].tolist()
    step = min(stride, 5)  # no more than fits in a window
    assert starts == list(range(0, max(12 - 5, step * -(-7 // step)) + 1, step))
    assert covered == set(context.split()) and sorted(best) == sorted(covered)


CHINESE = (
    "ＡＬＢＥＲＴ　是Ｇｏｏｇｌｅ的模型，Naïve café\u200b 模型 İstanbul ﬁrst 𠀀字 😀 "
    "保禄·若瑟（），1963年被任为主教"
)


def test_every_wordpiece_stands_at_its_own_characters(wordpiece):
    (window,) = windows_of(CHINESE, wordpiece)
    begins, lasts = window.spans.T.tolist()
    pieces = tokens_of(window, wordpiece)[window.offset : window.offset + len(begins)]
    for piece, begin, last in zip(pieces, begins, lasts, strict=True):
        text = CHINESE[begin : last + 1]
        if piece == "[UNK]":
            assert text in ("ﬁrst", "𠀀", "😀")
        else:
            assert wordpiece.basic_tokenizer.tokenize(text) == [piece.removeprefix("##")]
    assert all(last < begin for last, begin in zip(lasts, begins[1:], strict=False))
    covered = {i for span in zip(begins, lasts, strict=True) for i in range(span[0], span[1] + 1)}
    assert {CHINESE[i] for i in set(range(len(CHINESE))) - covered} == {"\u3000", "\u200b", " "}


def test_an_answer_in_wordpieces_is_widened_to_whole_tokens_and_no_further(wordpiece):
    for start in range(len(CHINESE)):
        for end in range(start + 1, min(start + 7, len(CHINESE)) + 1):
            answer = CHINESE[start:end]
            if answer == answer.strip(" \u3000\u200b"):
                (window,) = windows_of(CHINESE, wordpiece, answer, start)
                first, last = (window.spans[at - window.offset] for at in window.answer)
                assert first[0] <= start <= first[1]
                assert last[0] <= end - 1 <= last[1]


def text_of(window, passage) -> str:
    """Returns the answer in a window, by the characters of its tokens."""
    first, last = (window.spans[at - window.offset] for at in window.answer)
    return passage[first[0] : last[1] + 1]


@pytest.mark.parametrize("mark", ["\u0301", " \u0301 ", "\u0301 \u0301", " \u200b ", "\u00ad"])
def test_an_answer_stands_where_it_does_whatever_accents_stand_alone_before_it(mark, tokenizer):
    passage = f"a {mark} b the cat sat"
    [window] = windows_of(passage, tokenizer, "cat", passage.index("cat"))
    assert text_of(window, passage) == " cat"


# --- Files ---


def write(tmp_path, *qas, context="the cat sat on the mat") -> str:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}))
    return str(path)


def question(text="cat", start=4, **changes) -> dict:
    answers = [{"text": text, "answer_start": start}]
    return {"id": "1", "question": "who sat?", "answers": answers} | changes


FIRST = "s.json: question 1: "
REFUSED = [  # content of the file, or its questions; message
    ('{"version": 1}', "s.json: no 'data'"),
    ("[3]", "s.json: expected an object, got int"), ("3", "got int"),
    ("{", "s.json:1:2: not JSON"),
    ("", "s.json: no questions"),
    (b'{"data": "\xff"}', "not UTF-8 text"),
    ('{"data": []}', "s.json: no questions"),
    ('{"data": [{}]}', "s.json: no 'paragraphs'"),
    ('{"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}', "'context' must be a text, got 3"),
    ([question(id=1)], f"{FIRST}'id' must be a text, got 1"),
    ([{"question": "x"}], f"{FIRST}no 'id'"),
    ([{"id": "1", "answers": []}], f"{FIRST}no 'question'"),
    ('{"question": "x", "answers": []}\n', "s.json: no 'data'; is it a SQuAD file?"),
    ([question(), question()], "question 2: duplicate id '1'"),
    ([question(), question(id="2", answers=[{}, {}])], "question 2: no 'text'"),
    ([question(answers={"text": ["a"], "answer_start": [1]})], f"{FIRST}'answers' must be a list"),
    ([question(is_impossible=0)], f"{FIRST}'is_impossible' must be true or false"),
    ([question(start="4")], f"{FIRST}'answer_start' must be an integer"),
    ([question("dog")], "no question has its answer where answer_start says"),
]


def test_a_bad_file_is_refused_with_the_place(tmp_path):
    for content, said in REFUSED:
        if isinstance(content, list):
            write(tmp_path, *content)
        else:
            content = content if isinstance(content, bytes) else content.encode()
            (tmp_path / "s.json").write_bytes(content)
        with pytest.raises(DataError) as error:
            read_questions(str(tmp_path / "s.json"), True)
        assert said in str(error.value)


def test_training_uses_the_first_of_several_answers_and_says_so(tmp_path, caplog):
    several = [*question()["answers"], {"text": "sat", "answer_start": 8}]
    path = write(tmp_path, question(answers=several), question(id="2", answers=[]))
    for is_training, start in ((True, 4), (False, -1)):
        found = read_questions(path, is_training)
        assert [(q.answers, q.start) for q in found] == [(("cat", "sat"), start), ((), -1)]
    assert caplog.text.count("1 of 2 questions have several answers; training uses the first") == 1


def test_an_answer_that_is_not_where_the_file_says_is_left_out_and_reported(tmp_path, caplog):
    wrong = [question("dog", id="2"), question(start=900, id="3"), question(start=-1, id="4")]
    path = write(tmp_path, question(), *wrong)
    assert [q.qas_id for q in read_questions(path, True)] == ["1"]
    assert "3 of 4 questions, whose answer is not in the passage at answer_start: 2; 3; 4" in caplog.text
    assert len(read_questions(path, False)) == 4


@pytest.mark.parametrize("passage, answer", [
    ("서울은 대한민국의 수도이다. 부산은 항구 도시이다.", "부산은 항구"),
    ("½ ¼ ¾ " * 9 + "cat", "cat"), ("①②③④⑤⑥⑦⑧⑨ ㎏㎏㎏㎏㎏㎏ … … … 7 …", "7"),
])
def test_a_passage_that_the_original_drops_can_be_read_by_the_positions_of_its_tokens(
    passage, answer, tokenizer
):
    asked = Question("1", "who?", passage, (answer,), passage.index(answer))
    [window] = make_windows([asked], tokenizer, max_seq_length=128, doc_stride=64, max_query_length=8)
    assert text_of(window, passage).strip() == answer


@pytest.mark.parametrize("changes, expected", [
    ({}, ("cat",)),
    ({"answers": []}, ()),
    ({"answers": [], "is_impossible": True}, ()),
    ({"is_impossible": True}, ("cat",)),
    ({"answers": None}, None),
])
def test_the_answers_of_a_question_are_known_or_not(changes, expected, tmp_path):
    path = write(tmp_path, question(), question(id="2", **changes), {"id": "3", "question": "why?"})
    questions = read_questions(path, False)
    assert [q.answers for q in questions] == [("cat",), expected, None]
    assert known_answers(questions, True) is None
    known = {"1": ("cat",), "2": expected}
    assert known_answers(questions[:2], True) == (None if expected is None else known)
    assert known_answers(questions[:2], False) == (known if expected else None)


def test_a_file_of_empty_lists_has_no_known_answers(tmp_path):
    empty = question(answers=[])  # as in some test sets
    assert [q.answers for q in read_questions(write(tmp_path, empty), False)] == [None]
    impossible = question(id="2", answers=[], is_impossible=True)
    found = read_questions(write(tmp_path, empty, impossible), False)
    assert [q.answers for q in found] == [(), ()]


def test_a_file_of_blank_passages_leaves_no_empty_records(tokenizer, tmp_path):
    questions = read_questions(write(tmp_path, question(answers=[]), context=" \n "), False)
    with pytest.raises(DataError, match="none of its passages has any token"):
        SquadTask(**S96).predicting(questions, tokenizer)
