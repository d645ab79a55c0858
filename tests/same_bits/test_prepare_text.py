"""prepare_text: any text becomes sentences and documents."""

import json
import pathlib
import random

import pytest
from helpers import assert_one_clear_line, run_here, words, write_text

from albert import prepare_text
from albert.text.sentences import split_sentences


def prepare(source, out, *flags: str) -> int:
    return run_here(prepare_text, f"--input_file={source}", f"--output_dir={out}", *flags)


def stats_of(out: pathlib.Path) -> dict:
    return json.loads((out / "stats.json").read_text())


# === Sentences ===


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Mr. Smith met J. K. Rowling. They talked.",
         ["Mr. Smith met J. K. Rowling.", "They talked."]),
        ("Use a list, e.g. Python's (i.e. a sequence). Done.",
         ["Use a list, e.g. Python's (i.e. a sequence).", "Done."]),
        ('He said "Stop!" and left. "Why?" she asked.',
         ['He said "Stop!" and left.', '"Why?" she asked.']),
        ("“I see. Do you?” he asked. “I do.”", ["“I see.", "Do you?” he asked.", "“I do.”"]),
        ("See sys.path and 3.5 here. Next.", ["See sys.path and 3.5 here.", "Next."]),
        ("At 3 p.m. They left at 4 p.m. sharp.", ["At 3 p.m.", "They left at 4 p.m. sharp."]),
        ("It was I. Then he went.", ["It was I.", "Then he went."]),
        ("你好。世界！", ["你好。", "世界！"]),
        ("他说：「走吧。快走！」好。", ["他说：「走吧。快走！」", "好。"]),
        ("यह एक वाक्य है। यह दूसरा है।", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("هل أنت بخير؟ نعم.", ["هل أنت بخير؟", "نعم."]),
        ("It\u3000is. So\u00a0be.\u2003We go.", ["It is.", "So be.", "We go."]),
        ("no stop at all", ["no stop at all"]),
        ("  \t ", []),
    ],
)
def test_a_paragraph_is_split_at_the_ends_of_its_sentences(paragraph, expected):
    assert split_sentences(paragraph) == expected


def test_splitting_loses_no_text(golden_path):
    text = golden_path("pretraining_data/corpus.txt").read_text(encoding="utf-8")
    for paragraph in (text, *text.split("\n\n"), *text.split("\n")):
        assert "".join("".join(split_sentences(paragraph)).split()) == "".join(paragraph.split())



# === The command ===


def test_all_words_are_written_or_it_is_reported_where_they_went(tmp_path, caplog):
    caplog.set_level("INFO", "albert")
    source, out = write_text(tmp_path / "in.txt", documents=12), tmp_path / "out"
    assert prepare(source, out) == 0
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    written = (out / "corpus.txt").read_text(encoding="utf-8")
    assert written.split() == source.read_text(encoding="utf-8").split()
    assert sorted(path.name for path in out.iterdir()) == ["corpus.txt", "stats.json"]
    count = f"{len(written.split()):,}"
    assert f"corpus.txt: {count} words in 12 documents, 144 sentences" in caplog.text
    source.write_text(source.read_text() + "\n" + source.read_text().split("\n\n")[3] + "\n")
    caplog.clear()
    assert prepare(source, tmp_path) == 0
    copies = {"documents": 1, "sentences": 12, "words": 12 * 12}
    assert stats_of(tmp_path)["copies"] == copies and (tmp_path / "corpus.txt").read_text() == written
    assert "dropped 144 words in 1 document: copies of earlier documents" in caplog.text


def test_a_paragraph_a_line_becomes_a_sentence_a_line(tmp_path):
    rng = random.Random(1)
    blocks = ["\n".join(f"{words(rng, 9)[:-1]} now. {words(rng, 9)[:-1]} too." for _ in range(9))
              for _ in range(9)]
    (tmp_path / "in.txt").write_bytes("\r\n\r\n".join(blocks).encode("utf-8-sig"))
    assert prepare(tmp_path / "in.txt", tmp_path) == 0
    text = (tmp_path / "corpus.txt").read_text(encoding="utf-8")
    assert [len(document.split("\n")) for document in text.strip().split("\n\n")] == [18] * 9
    assert not text.startswith("\ufeff")


def test_unusable_input_is_one_clear_line_and_nothing_is_written(tmp_path, capsys):
    source = tmp_path / "in.txt"
    for content, said in (
        (None, "no file matches"),
        (b"", "0 sentences"),
        (b"\n \n\n", "0 sentences"),
        (b"Too little. Text.\n", "2 sentences; at least 30"),
        ("Wide text.\n".encode("utf-16-le"), "a NUL byte: this is not UTF-8 text; convert it first"),
    ):
        if content is not None:
            source.write_bytes(content)
        assert prepare(source, tmp_path / "out") == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert said in line and str(source) in line
        assert not (tmp_path / "out").exists()


# === Texts that need a look ===


@pytest.mark.parametrize(("language", "hint"), [
    ("german", "de"), ("Deutsch", "de"), ("xx", ""), ("frensh", "fr"),
])
def test_a_language_that_is_no_code_is_refused_with_the_nearest_one(language, hint, tmp_path, capsys):
    source = write_text(tmp_path / "in.txt", documents=12)
    assert prepare(source, tmp_path / "out", f"--language={language}") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"--language={language} is no language code (ISO 639): did you mean {hint}" in line
    assert not (tmp_path / "out").exists()
    for code in ("de", "pt-BR", "zh", "vi", "la"):
        assert prepare(source, tmp_path / code, f"--language={code}") == 0
