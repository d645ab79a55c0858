"""Damaged corpora in the newer formats: a result or one clear line, no hang, no silent loss."""

import json
import random

import pytest

from albert.errors import DataError
from albert.text.corpus_files import Form
from albert.text.documents import ReadingCounts, read_documents

TEXTS = [f"w{i} w{i % 7}. é {'x' * (i % 40)}\nw{i + 1}" for i in range(60)]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Returns a file with some bytes changed, removed, duplicated or inserted."""
    found = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, size = rng.randrange(len(found) + 1), rng.choice([1, 1, 2, 8, 60])
        odd = [b"\n", b"\r", b"\0", b'"', b"{", b"}", b"\\", b"\xff", b"[" * 99]
        kind = rng.randrange(5)
        if kind == 0:
            found[at : at + size] = rng.randbytes(len(found[at : at + size]))
        elif kind == 1:
            del found[at : at + size]
        elif kind == 4:
            del found[at:]
        else:
            found[at:at] = rng.choice(odd) if kind == 3 else found[at : at + size]
    return bytes(found)


def read(path) -> list[list[str]] | None:
    """Returns the documents, or None if one clear line says that there are none."""
    try:
        return list(read_documents([str(path)], str, ReadingCounts(), form=Form()))
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return None


def holds_a_text(line: bytes) -> bool:
    value = json.loads(line.decode("utf-8", "surrogateescape").strip(" \t\r\n") or "{}")
    return bool(value.get("text") and value["text"].strip())


def test_no_object_of_a_damaged_json_file_is_lost_without_a_word(tmp_path):
    content = "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(TEXTS)).encode()
    rng, path, answers = random.Random(0), tmp_path / "a.jsonl", 0
    for _ in range(400):
        path.write_bytes(damaged := mutated(content, rng))
        if (found := read(path)) is not None:
            answers += 1
            assert len(found) == sum(map(holds_a_text, damaged.split(b"\n")))
    assert 32 < answers < 320


def test_no_row_of_a_damaged_table_is_lost_without_a_word(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra: parquet)")
    import pyarrow.parquet

    path = tmp_path / "a"
    for compression in ("snappy", "none", "zstd", "gzip"):
        pyarrow.parquet.write_table(
            pyarrow.table({"text": TEXTS}), path, compression=compression, row_group_size=13,
            write_page_checksum=True,
        )
        content, answers, rng = path.read_bytes(), 0, random.Random(compression)
        for _ in range(150):
            path.write_bytes(damaged := mutated(content, rng))
            if (found := read(path)) is not None and damaged[:4] == b"PAR1":
                answers += 1
                assert len(found) == len(TEXTS)
        assert answers < 150
