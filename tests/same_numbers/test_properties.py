"""Properties of everything that text goes through, on texts that nobody would write."""

import codecs
import json
import random

import hypothesis
import numpy as np
import pytest
from helpers import parse_with_tensorflow
from hypothesis import settings
from hypothesis import strategies as st

from albert.errors import DataError, UserError
from albert.pretraining_data import masking
from albert.pretraining_data.rng import keys_at
from albert.records import examples, features, records, tfrecord
from albert.tasks import glue, race
from albert.tasks.squad import features as squad_features
from albert.tasks.squad import metrics as squad
from albert.text import text_files
from albert.text.documents import ReadingCounts, read_documents
from albert.tokenization import FullTokenizer, preprocess_text
import jobs

# Lone surrogates too, which JSON can hold.
ANY_TEXT = st.text(st.characters(codec=None), max_size=60)
LINES = st.lists(st.binary(max_size=80), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)
pytestmark = pytest.mark.filterwarnings("ignore")


def given(max_examples=40, **strategies):
    """Hypothesis' `given`, with fewer draws."""
    return lambda test: settings(max_examples=max_examples)(hypothesis.given(**strategies)(test))


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    return FullTokenizer(jobs.write_vocabulary(tmp_path_factory.mktemp("wordpiece")), True)


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    from albert.text import vocabulary

    folder = tmp_path_factory.mktemp("spm")
    text = folder / "text"
    text.write_text("\n".join(f"w{i} abc, 20{i}, hello world" for i in range(300)))
    made = vocabulary.train(
        [str(text)], vocabulary.Settings(vocab_size=90, character_coverage=1.0)
    )
    (folder / "spm.model").write_bytes(made)
    return FullTokenizer(None, True, str(folder / "spm.model"))


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


@given(text=ANY_TEXT, lower=st.booleans())
def test_cleaning_ends_and_keeps_no_outer_or_double_space(text, lower):
    cleaned = preprocess_text(text, lower=lower)
    assert cleaned == " ".join(cleaned.split())


# --- Packing ---


@given(
    a=st.integers(0, 40), b=st.none() | st.integers(0, 40), length=st.integers(4, 30)
)
def test_packing_keeps_beginnings_marks_and_nothing_else(a, b, length):
    first = list(range(100, 100 + a))
    second = None if b is None else list(range(200, 200 + b))
    row = features.pack(first, second, length, 2, 3)
    used = int(row.input_mask.sum())
    ids = row.input_ids[:used].tolist()
    assert {len(row.input_ids), len(row.input_mask), len(row.segment_ids)} == {length}
    assert ids[0] == 2 and ids[-1] == 3 and ids.count(3) == (1 if b is None else 2)
    assert not row.input_ids[used:].any() and not row.segment_ids[used:].any()
    kept = [i for i in ids if 100 <= i < 200], [i for i in ids if i >= 200]
    assert kept[0] == first[: len(kept[0])] and kept[1] == (second or [])[: len(kept[1])]
    marks = 2 if b is None else 3
    assert used == min(length, a + (b or 0) + marks)
    # Of two, the longer was cut first.
    if b is not None and len(kept[0]) < a and len(kept[1]) < b:
        assert abs(len(kept[0]) - len(kept[1])) <= 1
    segments = row.segment_ids[:used].tolist()
    assert segments == sorted(segments)
    if b is not None:
        assert sum(segments) == len(kept[1]) + 1


# --- Masking ---


@given(seed=st.integers(0, 10_000), length=st.integers(5, 40), predictions=st.integers(1, 12),
       ngram=st.integers(1, 4))
def test_masking_gives_back_the_row_and_stays_within_its_bounds(seed, length, predictions, ngram):
    rng = np.random.default_rng(seed)
    chosen = masking.MaskingSettings(max_predictions_per_seq=predictions, ngram=ngram)
    is_start = np.ones(60, bool)
    is_start[30:50] = False
    special_ids = masking.SpecialIds(2, 3, 4, 60)
    width = 48
    ids = np.zeros((4, width), np.int64)
    lengths = np.full(4, length)
    ids[:, :length] = rng.integers(5, 60, (4, length))
    ids[:, 0], ids[:, length - 1], ids[:, length // 2] = 2, 3, 3
    boundary = masking.token_boundaries(ids, lengths, is_start, special_ids)
    keys = keys_at(seed, np.arange(4))
    out = masking.mask_batch(ids.copy(), lengths, boundary, special_ids, chosen, keys)
    for row in range(4):
        count = int(out.counts[row])
        positions = out.positions[row, :count]
        assert not out.positions[row, count:].any() and not out.labels[row, count:].any()
        assert count <= predictions and len(set(positions.tolist())) == count
        assert sorted(positions.tolist()) == positions.tolist()
        assert not {0, length - 1, length // 2} & set(positions.tolist())
        assert (positions < length).all()
        restored = out.input_ids[row].copy()
        restored[positions] = out.labels[row, :count]
        np.testing.assert_array_equal(restored, ids[row])


# --- Readers ---


def lines_of(raw: list[bytes]) -> bytes:
    return b"\n".join(raw)


@given(raw=LINES)
def test_any_bytes_are_rows_of_a_table_or_a_clear_error(raw, tmp_path):
    path = tmp_path / "x.tsv"
    path.write_bytes(lines_of(raw))
    try:
        rows = list(glue.read_tsv(str(path)))
    except DataError as error:
        assert "\n" not in str(error)
        assert not lines_of(raw).strip(b"\r\n") or lines_of(raw) == b"\xef\xbb\xbf"
        return
    assert [number for number, _ in rows] == list(range(1, len(rows) + 1))
    # Nothing but a line feed ends a row, nothing but a tab a cell.
    content = lines_of(raw).removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
    assert len(rows) == content.count(b"\n") + 1 or b"\r" in content
    assert sum(len(cells) - 1 for _, cells in rows) == content.count(b"\t")


@given(raw=LINES)
def test_any_bytes_are_documents_without_blank_lines_or_a_clear_error(raw, tmp_path):
    path, content, counts = tmp_path / "text", lines_of(raw), ReadingCounts()
    path.write_bytes(content)
    before, text_files.MAX_BAD = text_files.MAX_BAD, 1  # else hardly any draw would be read
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        documents = list(read_documents([str(path)], preprocess_text, counts))
    except DataError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        assert b"\0" in content or is_wide
        return
    finally:
        text_files.MAX_BAD = before
    assert counts.documents == len(documents) and (counts.bytes == len(content) or is_wide)
    assert all(line.strip() for document in documents for line in document)


@given(value=JSON)
def test_any_json_is_a_passage_or_a_clear_error(value, wordpiece, tmp_path):
    folder = tmp_path / "RACE/train/middle"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "1.txt").write_text(json.dumps(value))
    with pytest.raises(DataError):  # no draw of these is a passage
        race.read_questions(str(tmp_path), "train", wordpiece, ["middle"])


@given(article=ANY_TEXT, question=ANY_TEXT, options=st.lists(ANY_TEXT, min_size=4, max_size=4))
def test_any_texts_are_a_question(article, question, options, wordpiece, tmp_path):
    folder = tmp_path / "RACE/train/middle"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "1.txt").write_text(json.dumps({
        "article": article, "questions": [question], "options": [options], "answers": ["B"],
    }))
    [found] = race.read_questions(str(tmp_path), "train", wordpiece, ["middle"])
    [row] = race.question_rows([found], wordpiece, 12, 6)
    assert row["label_ids"] == 1 and row["input_ids"].shape == (48,)


@given(value=JSON)
def test_any_json_is_questions_or_a_clear_error(value, tmp_path):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(value))
    try:
        found = squad_features.read_examples(str(path), is_training=False)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert found == []


@given(context=ANY_TEXT, question=ANY_TEXT)
@pytest.mark.parametrize("kind", ["wordpiece", "spm"])
def test_windows_lead_back_into_the_passage(kind, context, question, request, tmp_path):
    tokenizer = request.getfixturevalue(kind)
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [
        {"id": "q", "question": question}]}]}]}))
    examples = squad_features.read_examples(str(path), is_training=False)
    for window in squad_features.make_windows(
        examples, tokenizer, max_seq_length=20, doc_stride=6, max_query_length=5,
        is_training=False,
    ):
        starts, ends = window.tok_start_to_orig_index, window.tok_end_to_orig_index
        assert len(starts) == len(ends)
        assert all(0 <= a <= b < len(context) for a, b in zip(starts, ends, strict=True))
        assert len(window.input_ids) == 20


@given(gold=ANY_TEXT, prediction=ANY_TEXT)
def test_scores_of_any_texts_are_shares(gold, prediction):
    assert 0 <= squad.f1_score(gold, prediction) <= 1
    assert squad.exact_match(gold, gold) and squad.f1_score("a" + gold, "a" + gold) in (0, 1)


@given(rows=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3),
                     min_size=1, max_size=6), value=st.floats(width=32), max_examples=10)
def test_any_numbers_come_back_from_records(rows, value, tmp_path):
    spec = records.FeatureSpec({"x": ("int64", 3), "y": ("float32", None)})
    path = str(tmp_path / "x.tfrecord")
    records.write_records(
        path, ({"x": np.array(r, np.int64), "y": np.float32(value)} for r in rows), spec, {}
    )
    ours = examples.decode_examples(list(tfrecord.read_records(path)), spec)
    for parsed in (ours, parse_with_tensorflow(path, spec)):
        np.testing.assert_array_equal(parsed["x"], rows)
        np.testing.assert_array_equal(parsed["y"], np.full(len(rows), value, "float32"))


@given(seed=st.integers(0, 1 << 30), count=st.integers(0, 30))
def test_a_long_line_is_cut_without_losing_a_byte(seed, count, tmp_path):
    words = random.Random(seed).choices(["abc", "é", "字", "🙂", "x" * 40], k=count)
    path = tmp_path / "text"
    path.write_text(" ".join(words))
    before = text_files.LONGEST_LINE
    text_files.LONGEST_LINE = 32
    try:
        found = list(read_documents([str(path)], preprocess_text, ReadingCounts()))
    finally:
        text_files.LONGEST_LINE = before
    text = "".join("".join(document) for document in found)
    assert "\ufffd" not in text
    assert text.replace(" ", "") == "".join(words)
