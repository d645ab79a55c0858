"""CoNLL files: reading, refusals, and how words become rows."""

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert import tokenization
from albert.errors import DataError, FlagError
from albert.formats import known_tasks
from albert.tasks import conll
from albert.tasks.token_classification import TokenClassificationTask

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
    first, second = conll.read_sentences(write(tmp_path, SAMPLE))
    assert first.words == ("EU", "rejects", "German", "call", ".")
    assert first.labels == ("B-ORG", "O", "B-MISC", "O", "O")
    assert (first.line, second.line) == (3, 9)
    assert second.labels == ("B-PER", "I-PER")


def test_byte_order_mark_line_ends_and_other_white_space(tmp_path):
    text = "\ufeffa\u00a0b\tO\r\nc\u2028d\tB-X\r\n \t\r\n\r\ne\tO\n-DOCSTART-\nf\tO"
    sentences = conll.read_sentences(write(tmp_path, text))
    assert [s.words for s in sentences] == [("a\u00a0b", "c\u2028d"), ("e",), ("f",)]


def test_iob1_becomes_bio(tmp_path):
    text = "a I-X\nb I-X\nc B-X\nd I-Y\ne O\nf I-Y\n"
    (sentence,) = conll.read_sentences(write(tmp_path, text), "iob1")
    assert sentence.labels == ("B-X", "I-X", "B-X", "B-Y", "O", "B-Y")


def test_labels_are_listed_with_what_longer_entities_need(tmp_path):
    for text, scheme, labels in (
        ("a B-X\nb O\n", "bio", ("O", "B-X", "I-X")),
        ("a B-X\nb E-X\nc O\n", "iobes", ("O", "B-X", "E-X", "I-X", "S-X")),
        ("a ,\nb NN\n", "none", (",", "NN")),
    ):
        sentences = conll.read_sentences(write(tmp_path, text), scheme)
        assert conll.collect_labels(sentences, scheme) == labels


BAD = [  # text, scheme, known labels, message
    ("a O\nb B-X\nc NN O\n", "bio", None, ":3: 3 columns, the lines before have 2"),
    ("# x y\na O\n", "bio", None, ":2: 2 columns, the lines before have 3"),
    ("a O\n\n# x y\n", "bio", None, ":3: 3 columns, the lines before have 2; give --skip_comments"),
    ("a O\nb I-X\n", "bio", None, ":2: I-X cannot follow O; .* --scheme=iob1"),
    ("a B-X\n\nb I-X\n", "bio", None, ":3: I-X cannot follow O"),
    ("a B-Y\nb I-X\n", "bio", None, ":2: I-X cannot follow B-Y"),
    ("a O\nb NN\n", "bio", None,
     ":2: label 'NN' is not O, B-<type>, I-<type>; give --scheme=none"),
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
            conll.read_sentences(write(tmp_path, text), scheme, known)
    with pytest.raises(DataError, match="--label_list: label 'NN' is not O"):
        conll.check_labels(("O", "NN"), "bio")


def test_words_alone_are_enough_where_nothing_is_learned(tmp_path):
    (sentence,) = conll.read_sentences(write(tmp_path, "a\nb\n"), needs_labels=False)
    assert sentence == conll.Sentence(("a", "b"), None, 1)


def test_label_lists_are_separated_by_commas_those_of_words_also_by_blanks():
    for text, of_words, labels in (
        ("O, B-X,I-X", True, ("O", "B-X", "I-X")),
        ("O B-X I-X", True, ("O", "B-X", "I-X")),
        (", NN .", True, (",", "NN", ".")),
        ("very good,bad", True, ("very good", "bad")),
        ("very good,bad", False, ("very good", "bad")), ('"so, so", bad', False, ("so, so", "bad")),
        ("a , b", False, ("a", "b")),
    ):
        assert known_tasks.parse_labels(text, of_words) == labels
    for text in ("O", "O,O", "O,,B-X", ""):
        for of_words in (True, False):
            with pytest.raises(FlagError, match="not two or more different labels"):
                known_tasks.parse_labels(text, of_words)


# --- Rows ---


@settings(max_examples=60)
@given(st.lists(st.integers(1, 10), min_size=1, max_size=60), st.integers(10, 30))
def test_windows_label_every_word_once_with_its_neighbours(sizes, room):
    found = conll.parts(sizes, room)
    labelled = [word for w in found for word in range(w.first, w.last)]
    assert labelled == list(range(len(sizes)))
    for window in found:
        assert window.start <= window.first < window.last <= window.end
        assert sum(sizes[window.start : window.end]) <= room
    if sum(sizes) <= room:
        assert len(found) == 1


def test_a_word_at_the_edge_of_a_window_has_context_on_both_sides():
    found = conll.parts([1] * 100, 40)
    for before, after in itertools.pairwise(found):
        assert before.end - before.last >= 4 and after.first - after.start >= 4


@pytest.fixture
def tokenizer(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "(", ")", ".", "u", "s",
             "play", "##ing"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    return tokenization.FullTokenizer(str(tmp_path / "vocab.txt"))


def test_the_label_is_on_the_first_piece_of_each_word(tokenizer, caplog):
    # Case, punctuation inside a word, and words that become empty.
    words = ("PARIS", "(Paris)", "playing", "U.S.", "\u0301", "\u200b")
    sentence = conll.Sentence(words, ("O", "B-X", "O", "B-X", "O", "B-X"), 1)
    task = TokenClassificationTask(20, ("O", "B-X", "I-X"))
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
    sentence = conll.Sentence(words, tuple("OB"[i % 2] for i in range(32)), 1)
    rows = list(TokenClassificationTask(12, ("O", "B")).rows([sentence], tokenizer, "train"))
    labels = np.concatenate([row["label_ids"][row["label_ids"] > 0] for row in rows])
    assert labels.tolist() == [1 + i % 2 for i in range(32)]
    assert [row["continues"] for row in rows] == [0] + [1] * (len(rows) - 1)
    assert "train.txt: sentences longer than --max_seq_length=12, split into windows: 1" in caplog.text
    assert "words longer than --max_seq_length=12, truncated: 1" in caplog.text


def test_predictions_have_the_layout_of_the_file(tmp_path):
    path = write(tmp_path, SAMPLE)
    out = conll.write_with_labels(path, "ABCDEFG", str(tmp_path / "out.txt"))
    lines = pathlib.Path(out).read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(SAMPLE.splitlines())
    assert lines[:4] == ["-DOCSTART- -X- O O O", "", "EU NNP B-NP B-ORG A",
                         "rejects VBZ B-VP O B"]
    assert lines[-1] == "Blackburn NNP I-NP I-PER G"


# GermEval's layout: comments, a number, the word, and two columns of labels.
GERMEVAL = """#\thttp://de.wikipedia.org/x [2009-10-17]
1\tSchartau\tB-PER\tO
2\tsagte\tO\tO

#
1\t#\tO\tO
2\tBerlin\tB-LOC\tB-PER
"""


def test_comments_are_skipped_and_columns_chosen(tmp_path):
    path = write(tmp_path, GERMEVAL)
    for label, expected in ((2, [("B-PER", "O"), ("O", "B-LOC")]), (-1, [("O", "O"), ("O", "B-PER")])):
        layout = conll.Layout(1, label, has_comments=True)
        found = conll.read_sentences(path, layout=layout)
        assert [s.words for s in found] == [("Schartau", "sagte"), ("#", "Berlin")]
        assert [s.labels for s in found] == expected and [s.line for s in found] == [2, 6]
    written = conll.write_with_labels(path, "abcd", str(tmp_path / "out.txt"), layout)
    lines = open(written).read().splitlines()
    given = GERMEVAL.splitlines()
    assert lines == [line + f"\t{label}" * bool(label) for line, label in zip(
        given, ("", "a", "b", "", "", "c", "d"), strict=True)]
    for layout, said in (
        (conll.Layout(4), "a.txt:2: --word_column=4: the columns are 0 to 3"),
        (conll.Layout(0, -5), "--label_column=-5: the columns are 0 to 3"),
    ):
        with pytest.raises(DataError, match=said.replace("a.txt", path)):
            conll.read_sentences(path, layout=dataclasses.replace(layout, has_comments=True))


CONLL_U = """# text = vámonos al mar
1-2\tvámonos\t_\t_
1\tvamos\tVERB\tO
2\tnos\tPRON\tO
2.1\tya\tADV\t_
3-4\tal\t_\t_
3\ta\tADP\tO
4\tel\tDET\tB-LOC
5\tmar\tNOUN\tI-LOC

1\tsí\tINTJ\tO
"""


def test_lines_for_several_words_are_no_words_and_stay_as_they_are(tmp_path):
    path, layout = write(tmp_path, CONLL_U), conll.Layout(1, -1, has_comments=True)
    first, second = conll.read_sentences(path, layout=layout)
    assert first.words == ("vamos", "nos", "a", "el", "mar") and second.words == ("sí",)
    assert first.labels == ("O", "O", "O", "B-LOC", "I-LOC")
    written = pathlib.Path(conll.write_with_labels(path, "abcdef", str(tmp_path / "out.txt"), layout))
    labels = iter("abcdef")
    assert written.read_text(encoding="utf-8").splitlines() == [
        f"{line}\t{next(labels)}" if line.split("\t")[0].isdecimal() else line
        for line in CONLL_U.splitlines()
    ]
    # Where the first column holds the words, a range is one of them.
    (sentence,) = conll.read_sentences(write(tmp_path, "1914-1918 O\n"))
    assert sentence.words == ("1914-1918",)
