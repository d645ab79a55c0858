"""`AlbertTokenizer`: rows, masks and offsets, for both kinds of vocabulary."""

import json
import shutil

import numpy as np
import pytest
import sentencepiece
from helpers import write_config

import albert
from albert import tokenization
from albert.errors import CheckpointError, DataError
from albert.text.offsets import encode_with_offsets


@pytest.fixture(params=["spm", "wordpiece"])
def tokenizer(request, golden_path):
    name = {"spm": "30k-clean.model", "wordpiece": "albert_zh_vocab.txt"}[request.param]
    return albert.AlbertTokenizer.from_pretrained(str(golden_path(f"spm/{name}")))


def test_rows_are_packed_as_the_model_reads_them(tokenizer):
    t = tokenizer.tokenizer
    a, b = t.encode_text("the first one"), t.encode_text("a second")
    encoded = tokenizer(["the first one", "a second"], ["a second", "the first one"])
    assert encoded["input_ids"].dtype == np.int32
    expected = [t.cls_id, *a, t.sep_id, *b, t.sep_id]
    assert encoded["input_ids"][0].tolist() == expected
    assert tokenizer.encode("the first one", "a second") == expected
    assert encoded["segment_ids"][0].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert tokenizer.build_inputs_with_special_tokens(a, b) == expected
    segments = encoded["segment_ids"][0].tolist()
    assert tokenizer.create_token_type_ids_from_sequences(a, b) == segments
    mask = tokenizer.get_special_tokens_mask(a, b)
    assert mask == tokenizer.get_special_tokens_mask(expected, already_has_special_tokens=True)
    assert mask == [1, *[0] * len(a), 1, *[0] * len(b), 1]


def test_short_rows_are_padded_and_long_ones_cut_from_the_longer_text(tokenizer):
    encoded = tokenizer(["the", "the first one of many"], padding="max_length", max_length=8)
    assert encoded["input_ids"].shape == (2, 8)
    assert encoded["input_mask"][0].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert not encoded["input_ids"][0, 3:].any()
    cut = tokenizer("the first one of very many", "a", max_length=6)["input_ids"][0].tolist()
    assert len(cut) == 6
    assert cut[-2:] == [*tokenizer.tokenizer.encode_text("a"), tokenizer.tokenizer.sep_id]
    with pytest.raises(DataError, match="text 0 has .* tokens, 6 is the maximum"):
        tokenizer("the first one of very many", max_length=6, truncation=False)


def test_it_is_called_as_hugging_faces_are(tokenizer):
    pairs = [("the first one of many", "a second"), ("one", "two")]
    lists = tokenizer(*map(list, zip(*pairs, strict=True)))
    for name, value in tokenizer(pairs, padding=True, return_tensors="np").items():
        np.testing.assert_array_equal(value, lists[name])
    for name, value in tokenizer(pairs, padding=False).items():
        lengths = lists["input_mask"].sum(1).tolist()
        assert [len(row) for row in value] == lengths
        assert value[1] == lists[name][1][: lengths[1]].tolist()
    assert type(tokenizer("one", return_tensors="tf")["input_ids"]).__module__.startswith("tensorf")
    t = tokenizer.tokenizer
    assert [t.cls_id, t.sep_id, t.mask_id, t.pad_id, t.unk_id] == [
        tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id,
        tokenizer.pad_token_id, tokenizer.unk_token_id,
    ]
    assert (tokenizer.cls_token, tokenizer.mask_token) == ("[CLS]", "[MASK]")
    assert tokenizer.convert_ids_to_tokens(t.mask_id) == "[MASK]"
    assert tokenizer.convert_tokens_to_ids("[MASK]") == t.mask_id == tokenizer.get_vocab()["[MASK]"]
    texts = tokenizer.batch_decode(lists["input_ids"], skip_special_tokens=True)
    assert texts == ["the first one of many a second", "one two"]
    assert len(tokenizer) == tokenizer.vocab_size


def test_of_two_texts_the_one_that_is_named_is_cut(tokenizer):
    ids = tokenizer.tokenizer.encode_text
    pair = "the first one of many", "a second one"
    made = tokenizer(*pair, truncation="only_first", max_length=3 + len(ids(pair[1])) + 2)
    expected = tokenizer.build_inputs_with_special_tokens(ids(pair[0])[:2], ids(pair[1]))
    assert made["input_ids"][0].tolist() == expected
    made = tokenizer(*pair, truncation="only_second", max_length=3 + len(ids(pair[0])))
    assert made["segment_ids"][0].sum() == 1
    with pytest.raises(DataError, match="truncation='only_second' leaves"):
        tokenizer(*pair, truncation="only_second", max_length=4)
    for wrong in ({"padding": "left"}, {"truncation": 3}, {"return_tensors": "pt"}):
        with pytest.raises(DataError, match=f"{[*wrong][0]} must be one of .*, got"):
            tokenizer("one", **wrong)


def test_the_mask_may_be_written_and_other_special_pieces_are_text(tokenizer):
    t = tokenizer.tokenizer
    ids = tokenizer.encode("the [MASK] one")
    assert ids.count(t.mask_id) == 1
    assert ids[1] == t.encode_text("the")[0]
    assert tokenizer.encode("the [SEP] one").count(t.sep_id) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True).split() == ["the", "one"]


def normal(text: str) -> str:
    return tokenization.preprocess_text(text, lower=True).replace(" ", "")


def test_every_piece_is_found_where_it_stands(tokenizer):
    text = "  The naïve  café, in 1999, (sold)\tＴＥＡ to Ünder-writers…"
    encoded = tokenizer(text, return_offsets_mapping=True)
    pieces = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
    offsets = encoded["offset_mapping"][0].tolist()
    assert offsets[0] == offsets[-1] == [0, 0]
    unknown = ("[UNK]", "<unk>")
    for piece, (begin, end) in zip(pieces[1:-1], offsets[1:-1], strict=True):
        plain = normal(piece.replace("▁", "").removeprefix("##"))
        # One character of the text may make several of the pieces ("…").
        assert piece in unknown or plain == normal(text[begin:end]) or text[begin:end] == "…"
    assert text[offsets[2][0] : offsets[2][1]][0] in "naN"


def test_offsets_hold_for_awkward_strings(tokenizer, golden_path):
    cases = json.loads(golden_path("tokenization.json").read_text("utf-8"))["cases"]
    texts = [case["text"] for case in cases]
    total = right = 0
    for text in texts:
        ids, spans = encode_with_offsets(tokenizer.tokenizer, text)
        assert ids == tokenizer.tokenizer.encode_text(text)
        assert len(ids) == len(spans)
        begins = [begin for begin, _ in spans]
        assert begins == sorted(begins)
        assert all(0 <= begin <= end <= len(text) for begin, end in spans)
        for piece, (begin, end) in zip(tokenizer.convert_ids_to_tokens(ids), spans, strict=True):
            if piece not in ("[UNK]", "<unk>", "▁"):
                total += 1
                plain = normal(piece.replace("▁", "").removeprefix("##"))
                right += normal(text[begin:end]) == plain
    # The rest are characters that make several ("½"), or that a normaliser drops.
    assert right / total > 0.98


def test_texts_that_are_none_are_refused(tokenizer):
    with pytest.raises(DataError, match="text 1 is not a string but int: 7"):
        tokenizer(["a", 7])
    with pytest.raises(DataError, match="text_pair 0 is not a string but NoneType"):
        tokenizer(["a"], [None])
    with pytest.raises(DataError, match="2 texts and 1 second texts"):
        tokenizer(["a", "b"], ["c"])


@pytest.fixture
def hindi(tmp_path):
    """A tokenizer's directory at Hugging Face, of a vocabulary with accents and virama."""
    lines = ["Café हिन्दी the big", "naïve क्ष small"] * 9
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(tmp_path / "spiece"), vocab_size=50,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        hard_vocab_limit=False, minloglevel=2, normalization_rule_name="identity",
    )
    return tmp_path


def settings(folder, **values) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_accents_and_case_are_kept_where_the_directory_says_so(hindi):
    settings(hindi, keep_accents=True, do_lower_case=False, tokenizer_class="AlbertTokenizer")
    text = "Café हिन्दी"
    kept = albert.AlbertTokenizer.from_pretrained(str(hindi))
    assert kept.decode(kept.encode(text), skip_special_tokens=True) == text
    settings(hindi, do_lower_case=False)
    lost = albert.AlbertTokenizer.from_pretrained(str(hindi))
    assert lost.tokenizer.preprocess(text) == "Cafe हिनदी"
    asked = albert.AlbertTokenizer.from_pretrained(str(hindi), keep_accents=True)
    assert asked.tokenizer.sha256 == kept.tokenizer.sha256
    settings(hindi, remove_space=False, model_max_length=8)
    spaced = albert.AlbertTokenizer.from_pretrained(str(hindi))
    assert spaced.tokenizer.preprocess(" A  b ") == " a  b "
    assert spaced.model_max_length == 8
    for one in (kept, lost, spaced):
        for text in ("the  big Café हिन्दी naïve", " small "):
            pieces = one.tokenize(text)
            spans = one(text, return_offsets_mapping=True, max_length=64)["offset_mapping"][0]
            for piece, (begin, end) in zip(pieces, spans[1:-1], strict=True):
                found = one.tokenizer.preprocess(text[begin:end]).strip()
                assert found == piece.replace("▁", " ").strip() or piece == "<unk>"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep_accents": "yes"}, "keep_accents must be true or false, got 'yes'"),
        ({"do_lower_case": 1}, "do_lower_case must be true or false"),
        ({"cls_token": "<s>"}, "cls_token is '<s>'"),
        ({"mask_token": {"content": "<mask>"}}, "mask_token is '<mask>'"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs is"),
        ({"tokenizer_class": "XLNetTokenizer"}, "tokenizer_class is 'XLNetTokenizer'"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars is False"),
        ({"padding_side": "left"}, "padding_side is 'left'"),
        ({"additional_special_tokens": ["[X]"]}, "additional_special_tokens is"),
        ({"added_tokens_decoder": {"50": {"content": "[X]"}}}, r"not supported: \[X\]"),
        ({"added_tokens_decoder": [1]}, "added_tokens_decoder must be"),
        ({"model_max_length": "512"}, "model_max_length must be a number"),
        ({"vocabulary_file": "../x.model"}, "is not a plain file name"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_setting_that_cannot_be_honoured_is_refused_by_its_name(values, message, hindi):
    settings(hindi, **values)
    with pytest.raises(DataError, match=message) as raised:
        albert.AlbertTokenizer.from_pretrained(str(hindi))
    assert "tokenizer_config.json" in str(raised.value)


def test_a_setting_that_nobody_here_knows_is_told(hindi, caplog):
    settings(hindi, model_max_length=10**30, new_thing=3, name_or_path="x", unk_token="<unk>")
    albert.AlbertTokenizer.from_pretrained(str(hindi))
    assert "settings without effect here: new_thing" in caplog.text


def test_accents_of_words_go_with_their_case_and_in_no_other_way(tmp_path, golden_path):
    shutil.copy(golden_path("spm/albert_zh_vocab.txt"), tmp_path)
    settings(tmp_path, do_lower_case=True, strip_accents=False)
    with pytest.raises(DataError, match="strip_accents is False"):
        albert.AlbertTokenizer.from_pretrained(str(tmp_path))


def test_a_saved_tokenizer_is_the_same_again_beside_another_vocabulary_too(hindi, tmp_path):
    settings(hindi, keep_accents=True, do_lower_case=False)
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(hindi))
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/older.model").write_bytes(b"of another tokenizer")
    tokenizer.save_pretrained(str(tmp_path / "saved"))
    again = albert.AlbertTokenizer.from_pretrained(str(tmp_path / "saved"))
    assert again.tokenizer.sha256 == tokenizer.tokenizer.sha256
    assert again.tokenizer.sha256 != albert.AlbertTokenizer.from_pretrained(
        str(hindi / "spiece.model")
    ).tokenizer.sha256


def test_a_models_directory_gives_its_tokenizer_and_keeps_it(golden_path, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_config(folder, vocab_size=30000)
    with pytest.raises(DataError, match="no vocabulary"):
        albert.AlbertTokenizer.from_pretrained(str(folder))
    shutil.copy(golden_path("spm/30k-clean.model"), folder)
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(folder))
    assert tokenizer.model_max_length == 16
    (path,) = tokenizer.save_vocabulary(str(tmp_path / "copy"), "my")
    assert path.endswith("my-30k-clean.model")
    again = albert.AlbertTokenizer.from_pretrained(path)
    assert again.encode("hello world") == tokenizer.encode("hello world")
    with pytest.raises(CheckpointError, match="neither albert_config.json"):
        albert.AlbertTokenizer.from_pretrained(str(tmp_path / "copy"))
