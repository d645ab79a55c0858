"""Questions with options in the files of well-known data sets, one a line."""

import json

import jobs
import pytest

from albert.errors import DataError
from albert.tasks import race
from albert.tasks.choice_rows import as_passage
from albert.tokenization import FullTokenizer

# As they are distributed (SWAG, HellaSwag, COPA, CommonsenseQA twice, ARC), and two of one's own.
ROWS = [
    ({"sent1": "She sits.", "sent2": "She", "ending0": "eats.", "ending1": "flies.",
      "ending2": "x.", "ending3": "y.", "label": 1},
     "She sits.", "She", ["eats.", "flies.", "x.", "y."], "B"),
    ({"ctx": "A man", "endings": ["runs", "sings"], "label": "0"}, "A man", "", ["runs", "sings"], "A"),
    ({"premise": "I slept.", "choice1": "I was ill.", "choice2": "I ran.", "question": "cause", "label": 0},
     "I slept.", "What was the cause?", ["I was ill.", "I ran."], "A"),
    ({"id": "7", "question": {"stem": "Where?", "choices": [
        {"label": "A", "text": "home"}, {"label": "B", "text": "sea"}, {"label": "C", "text": "sky"}]},
      "answerKey": "C"}, "", "Where?", ["home", "sea", "sky"], "C"),
    ({"question": "Where?", "choices": {"label": ["1", "2"], "text": ["home", "sea"]}, "answerKey": "2"},
     "", "Where?", ["home", "sea"], "B"),
    ({"question": "Who?", "options": ["Ada", "Norman"], "answer": "Norman", "context": "N. sat."},
     "N. sat.", "Who?", ["Ada", "Norman"], "B"),
    ({"question": "Who?", "options": ["Ada", "Norman"], "label": -1}, "", "Who?", ["Ada", "Norman"], None),
]


@pytest.mark.parametrize("row, article, question, options, answer", ROWS)
def test_a_row_of_each_data_set_is_a_question_with_its_answer(row, article, question, options, answer):
    found = as_passage(row, "dev.jsonl:1")
    assert (found["article"], found["questions"], found["options"]) == (article, [question], [options])
    assert found.get("answers", [None]) == [answer]


def test_a_file_of_rows_trains_and_an_answer_that_is_no_option_is_named_with_its_line(tmp_path):
    tokenizer = FullTokenizer(jobs.write_vocabulary(tmp_path))
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(
            json.dumps({"question": f"w{i}", "options": ["w1", "w2", "w3"], "label": i % 3}) + "\n"
            for i in range(6)
        ))
    questions = race.read_questions(str(tmp_path), "train", tokenizer)
    assert [question.label for question in questions] == [0, 1, 2, 0, 1, 2]
    assert questions[1].endings == ("w1 w1", "w1 w2", "w1 w3")
    flags = [f for f in jobs.race_flags(tmp_path) if not f.startswith(("--data_dir", "--train_step"))]
    assert jobs.race(*flags, f"--data_dir={tmp_path}", "--train_step=2") == 0
    with (tmp_path / "dev.jsonl").open("a") as stream:
        stream.write('{"question": "w1", "options": ["w1", "w2"], "label": 5}\n')
    with pytest.raises(DataError, match=r"dev.jsonl:7: the answer 5 is none of its 2 options"):
        race.read_questions(str(tmp_path), "dev", tokenizer)
    (tmp_path / "dev.jsonl").write_text('{"question": "w1", "answer": "w1"}\n')
    with pytest.raises(DataError, match=r"dev.jsonl:1: no options: .*got question, answer"):
        race.read_questions(str(tmp_path), "dev", tokenizer)
