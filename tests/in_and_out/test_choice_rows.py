"""Questions with options of one's own, one a line."""

import json

import jobs
import pytest

from albert.errors import DataError, FlagError
from albert.tasks import race
from albert.tasks.race import row_as_passage
from albert.tokenization import FullTokenizer

ANSWERED = [  # options, answer, the letter of its one meaning
    (["Ada", "Norman"], "Norman", "B"), (["Ada", "Norman"], "B", "B"), (["Ada", "Norman"], 1, "B"),
    (["Ada", "Norman"], "1", "B"), (["4", "5", "6"], "5", "B"), (["2", "1", "0"], 1, "B"),
    (["B", "A"], 1, "B"), (["A", "B"], "B", "B"),
]
AMBIGUOUS = [
    (["2", "3", "4", "5"], "2", "the text of A and the number of C"),
    (["2", "3", "4", "5"], 2, "the text of A and the number of C"),
    (["B", "A", "C", "D"], "B", "the text of A and the letter of B"),
    (["yes", "no", "yes"], "yes", "the text of A and the text of C"),
]
REFUSED = [
    ({"question": "w1", "options": ["w1", "w2"], "answer": 5}, "the answer 5 is none of its 2 options"),
    ({"question": "w1", "answer": "w1"}, "the question has no options"),
    ({"question": "Who?", "options": ["a", "b"], "context": "c", "answer": "a"}, "unknown keys context: "),
]


def test_an_answer_is_a_text_a_letter_or_a_number_and_refused_if_it_means_two_options():
    for options, answer, letter in ANSWERED:
        row = {"question": "Who?", "options": options, "answer": answer, "article": "N. sat.", "id": 7}
        assert row_as_passage(row, "dev.jsonl:1") == {
            "article": "N. sat.", "questions": ["Who?"], "options": [options], "answers": [letter],
            "id": "7",
        }
    for options, answer, reason in AMBIGUOUS:
        with pytest.raises(DataError, match=f"dev.jsonl:1: the answer {answer!r} is {reason}: give a"):
            row_as_passage({"question": "Who?", "options": options, "answer": answer}, "dev.jsonl:1")
    for row, message in REFUSED:
        with pytest.raises(DataError, match=f"dev.jsonl:1: {message}"):
            row_as_passage(row, "dev.jsonl:1")
    assert "answers" not in row_as_passage({"question": "Who?", "options": ["a", "b"]}, "test.jsonl:1")


def test_a_file_of_rows_trains_and_an_answer_that_is_no_option_is_named_with_its_line(tmp_path):
    tokenizer = FullTokenizer(jobs.write_vocabulary(tmp_path))
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(
            json.dumps({"question": f"w{i}", "options": ["w1", "w2", "w3"], "answer": i % 3}) + "\n"
            for i in range(6)
        ))
    with pytest.raises(FlagError, match="--middle_only has no effect on .*train.jsonl"):
        race.read_questions(str(tmp_path), "train", tokenizer, ["middle"])
    questions = race.read_questions(str(tmp_path), "train", tokenizer)
    assert [question.label for question in questions] == [0, 1, 2, 0, 1, 2]
    assert questions[1].endings == ("w1 w1", "w1 w2", "w1 w3")
    flags = [f for f in jobs.race_flags(tmp_path) if not f.startswith(("--data_dir", "--train_step"))]
    assert jobs.race(*flags, f"--data_dir={tmp_path}", "--train_step=2") == 0
    with (tmp_path / "dev.jsonl").open("a") as stream:
        stream.write('{"question": "w1", "options": ["w1", "w2"], "answer": 5}\n')
    with pytest.raises(DataError, match=r"dev.jsonl:7: the answer 5 is none of its 2 options"):
        race.read_questions(str(tmp_path), "dev", tokenizer)
