"""Plain text: every reader gets the same lines from every form of it, and other files are refused."""

import bz2
import gzip
import io
import json
import lzma
import os
import pathlib
import random
import subprocess
import sys
import threading
import tracemalloc

import jobs
import pytest
from helpers import REPO, assert_one_clear_line

from albert.cli import answering as inference
from albert.errors import DataError
from albert.pretraining_data import job
from albert.storage import files
from albert.tasks import glue, lines, words
from albert.text import corpus_files, documents, text_files, vocabulary
from albert.text.documents import ReadingCounts, read_documents
from albert.tokenization import preprocess_text

WORDS = [f"w{i}" for i in range(60)] + ["étude", "日本", "naïve", "1️⃣"]
_random = random.Random(1)
# More than any reader holds in memory at a time, especially of compressed text.
TEXT = "".join(
    " ".join(_random.choices(WORDS, k=_random.randint(1, 12))) + ".\n" * _random.choice([1, 1, 2])
    for _ in range(4000)
)


def zstd_compress(content: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.compress(content)
    from backports import zstd

    return zstd.compress(content)


PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd_compress}
FORMS = {
    "plain": str.encode,
    **{name: lambda text, pack=pack: pack(text.encode()) for name, pack in PACK.items()},
    # Two concatenated compressed files, as from `cat`, are one text.
    **{f"two {name}": lambda text, pack=pack: pack(text[:999].encode()) + pack(text[999:].encode())
       for name, pack in PACK.items()},
    "mark": lambda text: text.encode("utf-8-sig"),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "crlf, packed": lambda text: bz2.compress(text.replace("\n", "\r\n").encode()),
}


def as_documents(path: str):
    counts = ReadingCounts()
    return list(read_documents([path], preprocess_text, counts)), counts.lines


def as_vocabulary(path: str):
    return list(vocabulary._read_lines([path], vocabulary.Settings(), corpus_files.Form()))


def as_prose(path: str):
    found = documents.read_documents([path], str, documents.ReadingCounts())
    return [documents.sentences_of(document, "en") for document in found]


TEXT_READERS = [as_documents, as_vocabulary, as_prose, inference.read_texts]
READERS = [*TEXT_READERS, lambda path: list(glue.read_tsv(path))]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Each reader's result for the plain text."""
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(TEXT.encode())
    found = [read(str(path)) for read in READERS]
    assert all(len(str(read)) > len(TEXT) * 0.9 for read in found)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_text_gives_every_reader_the_same_lines(form, expected, tmp_path):
    path, make = tmp_path / "text", FORMS[form]
    path.write_bytes(content := make(TEXT))
    for read, plain in zip(READERS, expected, strict=True):
        assert read(str(path)) == plain, read
    counts = text_files.ReadingCounts()
    with text_files.open_text(str(path)) as stream:
        for _ in text_files.read_lines(stream, "", counts):
            pass
    assert documents.size_of_text(str(path)) == counts.bytes
    assert counts.bytes == len(content) or form not in ("plain", "mark", "crlf")

    path.write_bytes(make("Émile\tB-PER\nsaid\tO\n\n" * 400))
    rows = [["Émile", "B-PER"], ["said", "O"], []] * 400
    found = [(number, list(columns)) for number, _, columns in words.read_lines(str(path))]
    assert found == list(enumerate(rows, 1))
    passage = json.dumps({"questions": ["é"]}, ensure_ascii=False, indent=1)
    path.write_bytes(make(f"{passage}\n" * 400))
    assert [value for _, value in lines.json_values(str(path), "data_dir")] == [json.loads(passage)] * 400


def test_the_lines_of_a_text_are_those_that_are_in_it(tmp_path):
    (tmp_path / "text").write_bytes("\ufeff\ufeffa \r b\u2028c\r\n\r\n \ufeff d\n".encode())
    assert inference.read_texts(str(tmp_path / "text")) == ["a \r b\u2028c", "", " \ufeff d"]
    for word in ("BZh", "BZh9", "ustar", "PK", "7z"):  # first bytes of compressed files
        (tmp_path / "text").write_text(f"{word} is a word.\n")
        assert inference.read_texts(str(tmp_path / "text")) == [f"{word} is a word."]


# --- Files that are not text ---


def refused(read, path) -> str:
    with pytest.raises(DataError) as caught:
        read(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("read", TEXT_READERS)
def test_a_damaged_packed_text_is_one_line_with_its_name(read, tmp_path):
    for name in (*PACK, "two gz"):
        whole = FORMS[name](TEXT)
        at = len(whole) // 3
        flipped = bytes(255 - byte for byte in whole[at : at + 40])
        for content in (whole[: len(whole) // 2], whole[:-3], whole[:at] + flipped + whole[at + 40 :]):
            (tmp_path / "text").write_bytes(content)
            said = refused(read, tmp_path / "text")
            assert f"{tmp_path}/text: damaged or truncated " in said, name


@pytest.mark.parametrize("read", TEXT_READERS)
def test_a_nul_is_refused_with_its_line(read, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(TEXT.encode() + b"w1\0w2\n")
    line = TEXT.count("\n") + 1
    assert f"{path}:{line}: a NUL byte: this is not UTF-8 text" in refused(read, path)


@pytest.mark.parametrize("read", TEXT_READERS[:3])
def test_more_than_one_line_of_twenty_that_is_no_utf8_is_refused(read, tmp_path):
    path = tmp_path / "text"
    for encoding, word in (("latin-1", "café au lait"), ("gb18030", "日本語"), ("koi8-r", "слово")):
        lines = [f"w{i} w{i + 1}." for i in range(400)]
        lines[1:21] = [word] * 20
        path.write_bytes("\n".join(lines).encode(encoding) + b"\n")
        assert "\ufffd" in str(read(str(path)))
        lines[21] = word
        path.write_bytes("\n".join(lines).encode(encoding) + b"\n")
        message = refused(read, path)
        assert f"{path}:2: not UTF-8 text; convert it first, for example with iconv -f " in message
        assert message.endswith("; 21 of 400 lines are not UTF-8")


def data_flags(folder: pathlib.Path, *inputs: pathlib.Path, **changes) -> list[str]:
    (folder / "vocab.txt").write_text("\n".join([*jobs.SPECIALS, *WORDS, "."]) + "\n")
    values = {
        "input_file": ",".join(map(str, inputs)), "output_file": folder / "out.tfrecord",
        "vocab_file": folder / "vocab.txt", "max_seq_length": 32, "dupe_factor": 1,
    }
    return [f"--{name}={value}" for name, value in (values | changes).items()]


def test_invalid_lines_are_counted_over_the_corpus(tmp_path, caplog, capsys):
    one, two = tmp_path / "a.txt", tmp_path / "b.txt"
    one.write_bytes("café\n".encode("latin-1") * 10)
    two.write_text(TEXT, encoding="utf-8")
    assert jobs.create_data(*data_flags(tmp_path, one, two)) == 0
    assert caplog.text.count("had invalid UTF-8, replaced by U+FFFD") == 1
    assert f"10 of {TEXT.count(chr(10)) + 10:,} lines" in caplog.text and "a.txt:1" in caplog.text
    two.write_bytes("naïve\n".encode("latin-1") * 10)
    capsys.readouterr()
    assert jobs.create_data(*data_flags(tmp_path, two, one)) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"{two}:1: not UTF-8 text; convert it first" in line
    assert "iconv -f WINDOWS-1252 -t UTF-8" in line and "20 of 20 lines" in line


def test_other_encodings_and_line_ends_are_refused_with_the_conversion(tmp_path):
    for content, message in (
        (TEXT.encode("utf-16"), "a NUL byte: this is not UTF-8 text; convert it first (iconv -f UTF-16"),
        (TEXT.replace("\n", "\r").encode(), "its lines end with CR alone: convert them (tr"),
    ):
        (tmp_path / "text").write_bytes(content)
        assert message in refused(as_documents, tmp_path / "text")


def test_without_its_package_zstd_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    (tmp_path / "text").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 99)
    assert "zstd needs a package: pip install backports.zstd" in refused(as_documents, tmp_path / "text")


@pytest.mark.parametrize("form", PACK)
def test_packed_text_that_unpacks_to_very_much_is_not_held(form):
    words = b"w" if form == "bz2" else b"w1 w2\n"  # bzip2 compresses this slowly
    packed = io.BytesIO(PACK[form](words * ((24 << 20) // len(words))))
    tracemalloc.start()
    stream = text_files.decode(packed, "text")
    while stream.read(1 << 16):
        pass
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


# --- Records ---


def make_records(folder: pathlib.Path, content: bytes, processes: int = 1) -> bytes:
    text = folder / "text"
    text.write_bytes(content)
    flags = data_flags(folder, text, dupe_factor=4, num_processes=processes)
    assert jobs.create_data(*flags) == 0
    left = {path.name for path in folder.iterdir()} - {"out.tfrecord.vocabulary.txt"}
    assert left == {"vocab.txt", "text", "out.tfrecord", "out.tfrecord.manifest.json"}
    return (folder / "out.tfrecord").read_bytes()


def test_records_of_a_packed_text_have_the_bytes_of_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_BLOCK", (20_000, 20_000))
    expected = make_records(tmp_path, TEXT.encode())
    forms = {"gz": 2, "xz": 1}
    for form, processes in forms.items():
        assert make_records(tmp_path, FORMS[form](TEXT), processes) == expected, form


# --- Names, pipes and devices ---


def test_a_file_is_its_name_before_it_is_a_pattern(tmp_path):
    for name in ("a [v2].txt", "a v.txt", "b*.txt", "bc.txt"):
        (tmp_path / name).write_text("x")
    found = files.expand_globs(f"{tmp_path}/a [v2].txt,{tmp_path}/b*.txt", "input_file")
    assert found == [f"{tmp_path}/a [v2].txt", f"{tmp_path}/b*.txt"]
    assert files.expand_globs(f"{tmp_path}/a ?.txt", "input_file") == [f"{tmp_path}/a v.txt"]
    with pytest.raises(DataError, match="is given twice"):
        files.expand_globs(f"{tmp_path}/bc.txt,{tmp_path}/b?.txt", "input_file")


def test_a_pipe_is_read_where_a_text_is_read_once(tmp_path):
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    expected = inference.read_texts(str(tmp_path / "text"))
    for form in ("plain", "gz"):
        os.mkfifo(tmp_path / form)
        writer = threading.Thread(target=(tmp_path / form).write_bytes, args=[FORMS[form](TEXT)])
        writer.start()
        assert inference.read_texts(str(tmp_path / form)) == expected
        writer.join()


def test_what_is_read_more_than_once_is_no_pipe(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "albert.create_pretraining_data", *data_flags(tmp_path, "/dev/stdin")],
        input="w1\n", cwd=REPO, capture_output=True, text=True,
    )
    assert done.returncode == 2
    line = assert_one_clear_line(done.stderr)
    assert "is a pipe or a device" in line and "write it to a file first" in line


def test_directories_and_absent_files_are_told_with_their_flag(tmp_path):
    for path, message in ((tmp_path, "cannot read .*: Is a directory"), ("absent", "no such file")):
        with pytest.raises(DataError, match=f"^input_file: {message}"):
            inference.read_texts(str(path))
