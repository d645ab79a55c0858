"""prepare_text: any text becomes sentences and documents."""

import gzip
import itertools
import json
import pathlib
import random
import re
import subprocess

import pytest
from helpers import assert_one_clear_line, run_here, words, write_text

from albert import prepare_text
from albert.runtime import progress
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
    assert f"read {count} words in 12 documents" in caplog.text
    assert f"corpus.txt: {count} words (100.0 %) in 12 documents, 144 sentences" in caplog.text
    source.write_text(source.read_text() + "\nToo short.\n")
    caplog.clear()
    assert prepare(source, tmp_path, "--min_document_words=5") == 0
    assert stats_of(tmp_path)["dropped"] == {
        "fewer than 5 words": {"documents": 1, "sentences": 1, "words": 2}
    }
    found = re.findall(r"(read|dropped|corpus\.txt:) ([0-9,]+) words", caplog.text)
    assert {what: int(number.replace(",", "")) for what, number in found} == {
        "read": 12 * 12 * 12 + 2, "dropped": 2, "corpus.txt:": 12 * 12 * 12
    }
    assert stats_of(tmp_path)["corpus"]["words"] == 12 * 12 * 12


def test_a_paragraph_a_line_becomes_a_sentence_a_line(tmp_path):
    rng = random.Random(1)
    blocks = ["\n".join(f"{words(rng, 9)[:-1]} now. {words(rng, 9)[:-1]} too." for _ in range(9))
              for _ in range(9)]
    (tmp_path / "in.txt").write_bytes("\r\n\r\n".join(blocks).encode("utf-8-sig"))
    assert prepare(tmp_path / "in.txt", tmp_path) == 0
    text = (tmp_path / "corpus.txt").read_text(encoding="utf-8")
    assert [len(document.split("\n")) for document in text.strip().split("\n\n")] == [18] * 9
    assert not text.startswith("\ufeff")


def test_invalid_utf8_is_replaced_and_counted_in_one_warning(tmp_path, caplog):
    source = write_text(tmp_path / "in.txt", documents=12)
    lines = source.read_bytes().split(b"\n")
    lines[1] += b" caf\xe9"
    lines[2] += b" \xff\xfe"
    source.write_bytes(b"\n".join(lines))
    assert prepare(source, tmp_path) == 0
    assert caplog.text.count("not UTF-8") == 1
    assert stats_of(tmp_path)["invalid_utf8_lines"] == 2
    assert "caf\ufffd" in (tmp_path / "corpus.txt").read_text(encoding="utf-8")


def test_unusable_input_is_one_clear_line_and_nothing_is_written(tmp_path, capsys):
    source = tmp_path / "in.txt"
    for content, said in (
        (None, "no file matches"),
        (b"", "0 sentences"),
        (b"\n \n\n", "0 sentences"),
        (b"Too little. Text.\n", "2 sentences; at least 30"),
        ("Wide text.\n".encode("utf-16-le"), "UTF-16 without a mark"),
    ):
        if content is not None:
            source.write_bytes(content)
        assert prepare(source, tmp_path / "out") == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert said in line and str(source) in line
        assert not (tmp_path / "out").exists()


# === Dropped documents ===


@pytest.fixture
def dropped(tmp_path):
    """Function from texts added to twelve stories, and flags, to the number dropped for each reason."""
    rng = random.Random(3)
    stories = ["\n".join(words(rng, 12) for _ in range(20)) for _ in range(12)]

    def run(more, *flags) -> dict[str, int]:
        texts = stories + more(stories)
        (tmp_path / "in.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        assert prepare(tmp_path / "in.txt", tmp_path / "out", *flags) == 0
        stats = stats_of(tmp_path / "out")
        counts = {why: counts["documents"] for why, counts in stats["dropped"].items()}
        assert stats["corpus"]["documents"] == len(texts) - sum(counts.values())
        return counts

    return run


def doubles(stories: list[str]) -> list[str]:
    return stories[:5] + [text.replace("dog", "cow", 2) for text in stories[:3]]


def test_documents_are_left_out_on_request_and_counted(dropped):
    assert dropped(doubles) == {}
    same = "duplicate of an earlier document"
    assert dropped(doubles, "--drop_duplicates=exact") == {same: 5}
    assert dropped(
        lambda _: ["Too short.", "word " * 400, "word " * 5, "other " * 300],
        "--min_document_words=5", "--max_document_words=300",
    ) == {"fewer than 5 words": 1, "more than 300 words": 1}


def test_near_doubles_are_left_out_and_counted(dropped, tmp_path):
    pytest.importorskip("rensa", reason="rensa is not installed (extra: filters)")
    runs = []
    for _ in range(2):
        assert dropped(doubles, "--drop_duplicates=near", "--duplicate_threshold=0.7") == {
            "duplicate of an earlier document": 5,
            "near duplicate of an earlier document (similarity 0.7)": 3,
        }
        runs.append((tmp_path / "out/corpus.txt").read_bytes())
    assert runs[0] == runs[1]


def test_documents_of_other_languages_are_left_out(dropped, tmp_path, capsys):
    pytest.importorskip("py3langid", reason="py3langid is not installed (extra: filters)")
    german = "Das Haus steht am Ende der Straße, und niemand weiß, wem es gehört. " * 5
    assert dropped(lambda _: [german], "--keep_languages=en") == {"not in en": 1}
    assert prepare(tmp_path / "in.txt", tmp_path / "x", "--keep_languages=en,xx") == 2
    assert "--keep_languages: xx: none of" in assert_one_clear_line(capsys.readouterr().err)


# === Large texts ===


def test_it_reports_how_far_a_large_text_is(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "albert")
    plain, packed = write_text(tmp_path / "in.txt", 60, 40), tmp_path / "in.txt.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    monkeypatch.setattr(prepare_text, "_BATCH", 1000)
    clock = itertools.count(0, 10)  # each reading advances it by ten seconds
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    for path in (plain, packed):
        caplog.clear()
        assert prepare(path, tmp_path / "out") == 0
        found = re.findall(r"read ([0-9.]+)/([0-9.]+) MB, [0-9.]+ MB/s, ([0-9hms]+) left",
                           caplog.text)
        assert 5 < len(found) < 50, caplog.text  # one in 30 seconds
        done, total = [float(so_far) for so_far, *_ in found], path.stat().st_size / 1e6
        assert done == sorted(done) and {end for _, end, _ in found} == {f"{total:,.1f}"}
    with subprocess.Popen(["cat", plain], stdout=subprocess.PIPE) as reader:
        caplog.clear()
        assert prepare(f"/dev/fd/{reader.stdout.fileno()}", tmp_path / "out") == 0
    assert re.search(r"read [0-9.]+ MB, [0-9.]+ MB/s\n", caplog.text)
