"""prepare_text: any text becomes sentences and documents."""

import gzip
import itertools
import json
import pathlib
import random
import re
import subprocess

import helpers
import pytest
from helpers import words, write_text

from albert import prepare_text
from albert.runtime import progress
from albert.text.sentences import split_sentences


def run(*arguments: str) -> subprocess.CompletedProcess:
    return helpers.run("albert.prepare_text", *arguments)


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


def test_all_words_are_written(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=12)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path / 'out'}")
    assert result.returncode == 0 and " W " not in result.stderr
    written = (tmp_path / "out/corpus.txt").read_text(encoding="utf-8")
    assert written.split() == source.read_text(encoding="utf-8").split()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["corpus.txt", "stats.json"]
    count = f"{len(written.split()):,}"
    assert f"read {count} words in 12 documents" in result.stderr
    assert f"corpus.txt: {count} words (100.0 %) in 12 documents, 144 sentences" in result.stderr


def test_it_is_reported_where_each_word_went(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=20)
    source.write_text(source.read_text() + "\nToo short.\n")
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}",
                 "--min_document_words=5")
    assert result.returncode == 0, result.stderr
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["dropped"] == {"fewer than 5 words": {"documents": 1, "sentences": 1, "words": 2}}
    told = {
        what: int(number.replace(",", "")) for what, number in
        re.findall(r"(read|dropped|corpus\.txt:) ([0-9,]+) words", result.stderr)
    }
    assert told["read"] == 20 * 12 * 12 + 2 == sum(told.values()) - told["read"]
    assert told["dropped"] == 2
    assert told["corpus.txt:"] == stats["corpus"]["words"]


def test_a_paragraph_a_line_becomes_a_sentence_a_line(tmp_path):
    rng = random.Random(1)
    blocks = ["\n".join(f"{words(rng, 9)[:-1]} now. {words(rng, 9)[:-1]} too." for _ in range(9)) for _ in range(9)]
    (tmp_path / "in.txt").write_bytes("\r\n\r\n".join(blocks).encode("utf-8-sig"))
    assert run(f"--input_file={tmp_path / 'in.txt'}", f"--output_dir={tmp_path}").returncode == 0
    text = (tmp_path / "corpus.txt").read_text(encoding="utf-8")
    assert [len(document.split("\n")) for document in text.strip().split("\n\n")] == [18] * 9
    assert not text.startswith("\ufeff")


def test_invalid_utf8_is_replaced_counted_and_told_once(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=12)
    lines = source.read_bytes().split(b"\n")
    lines[1] += b" caf\xe9"
    lines[2] += b" \xff\xfe"
    source.write_bytes(b"\n".join(lines))
    result = run(f"--input_file={source}", f"--output_dir={tmp_path}")
    assert result.returncode == 0
    assert result.stderr.count("not UTF-8") == 1
    assert json.loads((tmp_path / "stats.json").read_text())["invalid_utf8_lines"] == 2
    assert "caf\ufffd" in (tmp_path / "corpus.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no file matches"),
        (b"", "0 sentences"),
        (b"\n \n\n", "0 sentences"),
        (b"Too little. Text.\n", "2 sentences; at least 30"),
        ("Wide text.\n".encode("utf-16-le"), "UTF-16 without a mark"),
    ],
)
def test_unusable_input_is_one_line_and_exit_2_and_nothing_is_written(tmp_path, content, message):
    source = tmp_path / "in.txt"
    if content is not None:
        source.write_bytes(content)
    result = run(f"--input_file={source}", f"--output_dir={tmp_path / 'out'}")
    assert result.returncode == 2
    line = helpers.assert_one_clear_line(result.stderr)
    assert message in line and str(source) in line
    assert not (tmp_path / "out").exists()


# === Documents that are left out ===


def stories(count: int) -> list[str]:
    rng = random.Random(3)
    return ["\n".join(words(rng, 12) for _ in range(20)) for _ in range(count)]


def prepared(folder: pathlib.Path, texts: list[str], *more: str) -> dict:
    (folder / "in.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    result = run(f"--input_file={folder / 'in.txt'}", f"--output_dir={folder / 'out'}", *more)
    assert result.returncode == 0, result.stderr
    stats = json.loads((folder / "out" / "stats.json").read_text())
    stats["dropped"] = {why: counts["documents"] for why, counts in stats["dropped"].items()}
    return stats


def test_nothing_is_left_out_by_default(tmp_path):
    texts = stories(12)
    stats = prepared(tmp_path, texts + texts)
    assert stats["dropped"] == {} and stats["corpus"]["documents"] == 24


def test_doubles_are_left_out_and_counted(tmp_path):
    texts = stories(12)
    like = [text.replace("dog", "cow", 2) for text in texts[:3]]
    stats = prepared(tmp_path, texts + texts[:5] + like, "--drop_duplicates=exact")
    assert stats["dropped"] == {"the same words as an earlier document": 5}
    assert stats["corpus"]["documents"] == 15


def test_near_doubles_are_left_out_and_counted(tmp_path):
    pytest.importorskip("rensa", reason="rensa is not installed (extra: filters)")
    texts = stories(12)
    like = [text.replace("dog", "cow", 2) for text in texts[:3]]
    runs = []
    for _ in range(2):
        stats = prepared(tmp_path, texts + texts[:5] + like, "--drop_duplicates=near",
                         "--duplicate_threshold=0.7")
        runs.append((tmp_path / "out" / "corpus.txt").read_bytes())
        assert stats["dropped"] == {
            "the same words as an earlier document": 5,
            "nearly an earlier document (similarity 0.7)": 3,
        }
    assert runs[0] == runs[1]


def test_documents_of_other_lengths_are_left_out(tmp_path):
    stats = prepared(tmp_path, [*stories(12), "Too short.", "word " * 400],
                     "--min_document_words=5", "--max_document_words=300")
    assert stats["dropped"] == {"fewer than 5 words": 1, "more than 300 words": 1}


def test_documents_of_other_languages_are_left_out(tmp_path):
    pytest.importorskip("py3langid", reason="py3langid is not installed (extra: filters)")
    german = "Das Haus steht am Ende der Straße, und niemand weiß, wem es gehört. " * 5
    english = ["The house stands at the end of the street.\n" + text for text in stories(12)]
    stats = prepared(tmp_path, [*english, german], "--keep_languages=en")
    assert stats["dropped"] == {"not of the languages en": 1}
    result = run(f"--input_file={tmp_path / 'in.txt'}", f"--output_dir={tmp_path}/x",
                 "--keep_languages=en,xx")
    assert result.returncode == 2 and "--keep_languages: xx: none of" in result.stderr


# === Large texts ===


def test_it_is_told_how_far_a_large_text_is(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "albert")
    write_text(tmp_path / "in.txt", documents=60, sentences=40)
    size = (tmp_path / "in.txt").stat().st_size / 1e6
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress((tmp_path / "in.txt").read_bytes()))
    packed = (tmp_path / "in.txt.gz").stat().st_size / 1e6
    monkeypatch.setattr(prepare_text, "_BATCH", 1000)
    clock = itertools.count(0, 10)  # each look at it takes ten seconds
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    for name, total in (("in.txt", size), ("in.txt.gz", packed)):
        caplog.clear()
        helpers.run_here(prepare_text, f"--input_file={tmp_path / name}",
                         f"--output_dir={tmp_path / 'out'}")
        told = re.findall(r"read ([0-9.]+)/([0-9.]+) MB, [0-9.]+ MB/s, ([0-9hms]+) left",
                          caplog.text)
        assert 5 < len(told) < 50, caplog.text  # one in 30 seconds
        done = [float(so_far) for so_far, *_ in told]
        assert done == sorted(done) and {end for _, end, _ in told} == {f"{total:,.1f}"}
    with open(tmp_path / "in.txt", "rb") as stream:
        caplog.clear()
        reader = subprocess.Popen(["cat"], stdin=stream, stdout=subprocess.PIPE)
        helpers.run_here(prepare_text, f"--input_file=/dev/fd/{reader.stdout.fileno()}",
                         f"--output_dir={tmp_path / 'out'}")
    assert re.search(r"read [0-9.]+ MB, [0-9.]+ MB/s\n", caplog.text)


