"""Properties of all text processing, on texts that nobody would write."""

import json
import random

import hypothesis
import jobs
import numpy as np
import pytest
from helpers import parse_with_tensorflow, train_pieces
from hypothesis import settings
from hypothesis import strategies as st
from record_files_made import payloads_of, write_records

from albert.errors import DataError
from albert.records import examples, manifests
from albert.tasks import glue, squad
from albert.text import text_files
from albert.text.documents import ReadingCounts, read_documents
from albert.tokenization import FullTokenizer, preprocess_text

# Including lone surrogates, which JSON can hold.
ANY_TEXT = st.text(st.characters(codec=None), max_size=60)
LINES = st.lists(st.binary(max_size=80), max_size=12).map(b"\n".join)
pytestmark = pytest.mark.filterwarnings("ignore")


def given(max_examples=40, **strategies):
    """Hypothesis's `given`, with fewer examples."""
    return lambda test: settings(max_examples=max_examples)(hypothesis.given(**strategies)(test))


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    return FullTokenizer(jobs.write_vocabulary(tmp_path_factory.mktemp("wordpiece")), True)


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    lines = [f"w{i} abc, 20{i}, hello world" for i in range(300)]
    path = train_pieces(tmp_path_factory.mktemp("spm") / "spm", lines, 90, character_coverage=1.0)
    return FullTokenizer(None, True, path)


# --- Tokenizer ---


@given(text=ANY_TEXT)
@pytest.mark.parametrize("kind", ["wordpiece", "spm"])
def test_any_text_gives_ids_of_the_vocabulary_and_never_special_ones(kind, text, request):
    tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode_text(text)
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id}
    assert not special & set(ids)
    assert tokenizer.encode_batch([text, "w1", text])[0] == ids
    if not text.strip():
        assert ids == []


@given(raw=st.binary(max_size=80))
def test_any_bytes_are_text(raw, spm):
    assert spm.encode_text(raw) == spm.encode_text(raw.decode("utf-8", "ignore"))


# --- Readers ---


def is_refused(raw: bytes) -> bool:
    """Whether the lines of a text end with CR alone."""
    return b"\r" in raw[:-1] and b"\n" not in raw


@given(raw=LINES)
def test_any_bytes_are_rows_of_a_table_or_a_clear_error(raw, tmp_path):
    path = tmp_path / "x.tsv"
    path.write_bytes(raw)
    try:
        rows = list(glue.read_tsv(str(path)))
    except DataError as error:
        assert "\n" not in str(error)
        assert not raw.strip(b"\r\n") or raw == b"\xef\xbb\xbf" or is_refused(raw)
        return
    assert [number for number, _ in rows] == list(range(1, len(rows) + 1))
    # Only a line feed ends a row, and only a tab ends a cell.
    content = raw.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
    assert len(rows) == content.count(b"\n") + 1 or b"\r" in content
    assert sum(len(cells) - 1 for _, cells in rows) == content.count(b"\t")


@given(raw=LINES)
def test_any_bytes_are_documents_without_blank_lines_or_a_clear_error(raw, tmp_path, monkeypatch):
    path, content, counts = tmp_path / "text", raw, ReadingCounts()
    path.write_bytes(content)
    monkeypatch.setattr(text_files, "MAX_BAD", 1)  # otherwise hardly any example would be read
    try:
        documents = list(read_documents([str(path)], preprocess_text, counts))
    except DataError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        assert b"\0" in content or is_refused(content)
        return
    assert counts.documents == len(documents) and counts.bytes == len(content)
    assert all(line.strip() for document in documents for line in document)


def read_squad(folder, value):
    (folder / "dev.json").write_text(json.dumps(value))
    return squad.read_questions(str(folder / "dev.json"), is_training=False)


@given(context=ANY_TEXT, question=ANY_TEXT)
@pytest.mark.parametrize("kind", ["wordpiece", "spm"])
def test_windows_lead_back_into_the_passage(kind, context, question, request, tmp_path):
    qas = [{"id": "q", "question": question}]
    questions = read_squad(tmp_path, {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]})
    for window in squad.make_windows(
        questions, request.getfixturevalue(kind), max_seq_length=20, doc_stride=6, max_query_length=5
    ):
        assert len(window.row["input_ids"]) == 20
        assert all(0 <= a <= b < len(context) for a, b in window.spans.tolist())


@given(rows=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3),
                     min_size=1, max_size=6), value=st.floats(width=32), max_examples=10)
def test_any_numbers_come_back_from_records(rows, value, tmp_path):
    spec = manifests.FeatureSpec({"x": ("int64", 3), "y": ("float32", None)})
    path = str(tmp_path / "x.tfrecord")
    write_records(
        path, ({"x": np.array(r, np.int64), "y": np.float32(value)} for r in rows), spec, {}
    )
    ours = examples.decode_examples(payloads_of(path), spec)
    for parsed in (ours, parse_with_tensorflow(path, spec)):
        np.testing.assert_array_equal(parsed["x"], rows)
        np.testing.assert_array_equal(parsed["y"], np.full(len(rows), value, "float32"))


@given(seed=st.integers(0, 1 << 30), count=st.integers(0, 30))
def test_a_long_line_is_cut_without_losing_a_byte(seed, count, tmp_path, monkeypatch):
    words = random.Random(seed).choices(["abc", "é", "字", "🙂", "x" * 40], k=count)
    path = tmp_path / "text"
    path.write_text(" ".join(words))
    monkeypatch.setattr(text_files, "LONGEST_LINE", 32)
    found = read_documents([str(path)], preprocess_text, ReadingCounts())
    text = "".join("".join(document) for document in found)
    assert "\ufffd" not in text
    assert text.replace(" ", "") == "".join(words)
