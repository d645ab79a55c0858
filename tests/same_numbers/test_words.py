"""Labels of words: files, refusals, how words become rows, and the scores of entities."""

import pathlib
import random
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert import tokenization
from albert.cli import flags
from albert.errors import DataError, FlagError
from albert.tasks import words as word_labels
from albert.tasks.words import WordLabelTask, entity_scores, find_entities, read_sentences

SAMPLE = """-DOCSTART- -X- O O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
call NN I-NP O
. . O O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def write(folder, text, name="train.txt"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_words_and_labels_are_the_first_and_last_column(tmp_path):
    first, second = read_sentences(write(tmp_path, SAMPLE))
    assert first.words == ("EU", "rejects", "German", "call", ".")
    assert first.labels == ("B-ORG", "O", "B-MISC", "O", "O")
    assert (first.line, second.line) == (3, 9)
    assert second.labels == ("B-PER", "I-PER")


def test_byte_order_mark_line_ends_and_other_white_space(tmp_path):
    text = "\ufeffa\u00a0b\tO\r\nc\u2028d\tB-X\r\n \t\r\n\r\ne\tO\n-DOCSTART-\nf\tO"
    sentences = read_sentences(write(tmp_path, text))
    assert [s.words for s in sentences] == [("a\u00a0b", "c\u2028d"), ("e",), ("f",)]


def test_labels_are_listed_with_what_longer_entities_need(tmp_path):
    for text, scheme, labels in (
        ("a B-X\nb O\n", "bio", ("O", "B-X", "I-X")), ("a ,\nb NN\n", "none", (",", "NN")),
        ("a O\nb B-caf\u00e9\nc I-cafe\u0301\u200b\n", "bio", ("O", "B-caf\u00e9", "I-caf\u00e9")),
    ):
        sentences = read_sentences(write(tmp_path, text), scheme)
        assert word_labels.collect_labels(sentences, scheme) == labels


BAD = [  # text, scheme, known labels, message
    ("a O\nb B-X\nc NN O\n", "bio", None, ":3: 3 columns, the lines before have 2"),
    ("# x y\na O\n", "bio", None, ":2: 2 columns, the lines before have 3"),
    ("a O\nb I-X\n", "bio", None, ":2: I-X cannot follow O: entities begin with B-"),
    ("a I-X\n", "bio", None, ":1: I-X cannot follow O"),
    ("a B-X\n\nb I-X\n", "bio", None, ":3: I-X cannot follow O"),
    ("a B-Y\nb I-X\n", "bio", None, ":2: I-X cannot follow B-Y"),
    ("a O\nb NN\n", "bio", None,
     ":2: label 'NN' is not O, B-<type>, I-<type>; pass --scheme=none"),
    ("a S-X\n", "bio", None, ":1: label 'S-X' is not O"),
    ("a O\n\nb B-X\n", "bio", ("O", "B-Y"), ":3: label 'B-X' is not one of O, B-Y"),
    ("a\nb\n", "bio", None, ":1: only one column: expected a word and its label"),
    ("", "bio", None, ": no sentences in it"),
    ("-DOCSTART- O\n\n", "bio", None, ": no sentences in it"),
    (b"a O\nb\xff O\n", "bio", None, r":2: not UTF-8 text \(byte 2 of the line\)"),
]


def test_a_bad_file_is_refused_with_its_line(tmp_path):
    for text, scheme, known, said in BAD:
        with pytest.raises(DataError, match="train.txt" + said):
            read_sentences(write(tmp_path, text), scheme, known)
    with pytest.raises(DataError, match="--label_list: label 'NN' is not O"):
        word_labels.check_label("NN", "bio", "--label_list")


def test_words_alone_are_enough_where_nothing_is_learned(tmp_path):
    (sentence,) = read_sentences(write(tmp_path, "a\nb\n"), needs_labels=False)
    assert sentence == word_labels.Sentence(("a", "b"), None, 1)


def test_label_lists_are_separated_by_commas_those_of_words_also_by_blanks():
    for text, of_words, labels in (
        ("O, B-X,I-X", True, ("O", "B-X", "I-X")),
        ("O B-X I-X", True, ("O", "B-X", "I-X")),
        (", NN .", True, (",", "NN", ".")),
        ("very good,bad", True, ("very good", "bad")),
        ("very good,bad", False, ("very good", "bad")), ('"so, so", bad', False, ("so, so", "bad")),
        ("a , b", False, ("a", "b")),
    ):
        assert flags.parse_labels(text, of_words) == labels
    for text in ("O", "O,O", "O,,B-X", ""):
        for of_words in (True, False):
            with pytest.raises(FlagError, match="not two or more different labels"):
                flags.parse_labels(text, of_words)


# --- Rows ---


@settings(max_examples=60)
@given(st.lists(st.integers(1, 10), min_size=1, max_size=60), st.integers(10, 30))
def test_windows_hold_every_word_once_and_as_many_as_fit(sizes, room):
    ids = [[9] * size for size in sizes]
    tokenizer = types.SimpleNamespace(cls_id=2, sep_id=3)
    rows = word_labels.sentence_rows(ids, range(len(ids)), tokenizer, room + 2)
    labels = [row["label_ids"][row["label_ids"] > 0] - 1 for row in rows]
    assert np.concatenate(labels).tolist() == list(range(len(sizes)))
    used = [sum(sizes[word] for word in of_row) for of_row in labels]
    assert used == [int(row["input_mask"].sum()) - 2 for row in rows] and max(used) <= room
    for count, following in zip(used, labels[1:], strict=False):
        assert count + sizes[following[0]] > room


@pytest.fixture
def tokenizer(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "(", ")", ".", "u", "s",
             "play", "##ing"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    return tokenization.FullTokenizer(str(tmp_path / "vocab.txt"))


def test_the_label_is_on_the_first_piece_of_each_word(tokenizer, caplog):
    # Case, punctuation inside a word, and words that become empty.
    words = ("PARIS", "(Paris)", "playing", "U.S.", "\u0301", "\u200b")
    sentence = word_labels.Sentence(words, ("O", "B-X", "O", "B-X", "O", "B-X"), 1)
    task = WordLabelTask(20, ("O", "B-X", "I-X"))
    (row,) = task.rows([sentence], tokenizer, "train")
    ids = tokenizer.convert_ids_to_tokens(row["input_ids"])
    labelled = [(ids[i], int(label)) for i, label in enumerate(row["label_ids"]) if label]
    assert labelled == [
        ("paris", 1), ("(", 2), ("play", 1), ("u", 2), ("[UNK]", 1), ("[UNK]", 2)
    ]
    assert row["input_mask"].sum() == 2 + 1 + 3 + 2 + 4 + 1 + 1
    assert not caplog.text


def test_long_sentences_are_split_and_counted(tokenizer, caplog):
    caplog.set_level("WARNING", logger="albert")
    words = ("paris",) * 30 + ("s" * 3 + ".",) + ("." * 20,)
    sentence = word_labels.Sentence(words, tuple("OB"[i % 2] for i in range(32)), 1)
    rows = list(WordLabelTask(12, ("O", "B")).rows([sentence], tokenizer, "train"))
    labels = np.concatenate([row["label_ids"][row["label_ids"] > 0] for row in rows])
    assert labels.tolist() == [1 + i % 2 for i in range(32)]
    assert [row["continues"] for row in rows] == [0] + [1] * (len(rows) - 1)
    assert "train.txt: sentences longer than --max_seq_length=12, split into windows: 1" in caplog.text
    assert "words longer than --max_seq_length=12, truncated: 1" in caplog.text


def test_predictions_have_the_layout_of_the_file(tmp_path):
    path = write(tmp_path, SAMPLE)
    out = word_labels.write_with_labels(path, "ABCDEFG", str(tmp_path / "out.txt"))
    lines = pathlib.Path(out).read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(SAMPLE.splitlines())
    assert lines[:4] == ["-DOCSTART- -X- O O O", "", "EU NNP B-NP B-ORG A",
                         "rejects VBZ B-VP O B"]
    assert lines[-1] == "Blackburn NNP I-NP I-PER G"


# --- Scores ---


@pytest.mark.parametrize(("labels", "expected"), [
    ("O O", []),
    ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
    ("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
    ("O I-PER I-PER", [("PER", 1, 2)]),  # begins without B-
    ("B-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)]),  # another type never continues
    ("I-PER O I-PER", [("PER", 0, 0), ("PER", 2, 2)]),
    ("B-a-b I-a-b", [("a-b", 0, 1)]),
    ("NN X-PER -", []),
    ("", []),
])
def test_entities_are_those_of_conlleval(labels, expected):
    assert find_entities(labels.split()) == expected


# From seqeval 1.2.2 (default mode), for the same sentences.
@pytest.mark.parametrize(("seed", "precision", "recall", "f1", "by_type"), [
    (1, 0.6035502958579881, 0.5895953757225434, 0.5964912280701754,
     {"LOC": 0.5974025974025974, "ORG": 0.6461538461538462, "PER": 0.5691056910569106}),
    (2, 0.5632183908045977, 0.5664739884393064, 0.5648414985590778,
     {"LOC": 0.5112781954887218, "ORG": 0.625, "PER": 0.582089552238806}),
])
def test_scores_equal_seqevals(seed, precision, recall, f1, by_type):
    rng = random.Random(seed)
    known = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "I-ORG"]
    gold = [[rng.choice(known) for _ in range(6)] for _ in range(40)]
    guessed = [[x if rng.random() < 0.6 else rng.choice(known) for x in s] for s in gold]
    gold, guessed = ([label for sentence in part for label in (*sentence, "O")] for part in (gold, guessed))
    expected = {"eval_precision": precision, "eval_recall": recall, "eval_f1": f1}
    expected |= {f"eval_f1_{kind}": value for kind, value in by_type.items()}
    assert entity_scores(gold, guessed) == pytest.approx(expected, abs=1e-12)


def test_nothing_found_and_nothing_to_find_are_zero_not_an_error():
    assert entity_scores(["O"], ["O"]) == {
        "eval_precision": 0.0, "eval_recall": 0.0, "eval_f1": 0.0
    }
    assert entity_scores(["B-A"], ["O"])["eval_f1_A"] == 0.0
