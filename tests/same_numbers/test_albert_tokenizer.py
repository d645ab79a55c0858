"""`AlbertTokenizer`: rows, masks and offsets, for both kinds of vocabulary."""

import json
import os
import pickle
import random
import shutil

import apart
import numpy as np
import pytest
import their_transformers
from helpers import SIZES, train_pieces, write_config

import albert
from albert import tokenization
from albert.errors import CheckpointError, DataError
from albert.text.offsets import encode_with_offsets, origins_of, without_space


@pytest.fixture(scope="module", params=["30k-clean.model", "albert_zh_vocab.txt"])
def tokenizer(request, golden_path):
    return albert.AlbertTokenizer.from_pretrained(str(golden_path(f"spm/{request.param}")))


def test_rows_are_laid_out_padded_and_cut_as_the_model_reads_them(tokenizer):
    t = tokenizer.tokenizer
    a, b = t.encode_text("the first one"), t.encode_text("a second")
    encoded = tokenizer(
        ["the first one", "a second"], ["a second", "the first one"], padding=True,
        return_tensors="np",
    )
    assert all(array.dtype == np.int32 for array in encoded.values())
    expected = [t.cls_id, *a, t.sep_id, *b, t.sep_id]
    assert encoded["input_ids"][0].tolist() == expected
    assert tokenizer.encode("the first one", "a second") == expected
    assert encoded["segment_ids"][0].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert tokenizer.build_inputs_with_special_tokens(a, b) == expected
    encoded = tokenizer(
        ["the", "the first one of many"], padding="max_length", max_length=8, return_tensors="np"
    )
    assert encoded["input_ids"].shape == (2, 8)
    assert encoded["input_mask"][0].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert not encoded["input_ids"][0, 3:].any()
    ids, sep = tokenizer.tokenizer.encode_text, tokenizer.sep_token_id
    long, short = "the first one of very many", "a second one"
    for truncation, length, kept in (
        (True, 3 + 2 * len(ids(short)), (len(ids(short)), len(ids(short)))),  # the longer one
        ("only_first", 3 + len(ids(short)) + 2, (2, len(ids(short)))),
        ("only_second", 3 + len(ids(long)) + 1, (len(ids(long)), 1)),
    ):
        row = tokenizer(long, short, truncation=truncation, max_length=length)["input_ids"]
        assert row == [
            tokenizer.cls_token_id, *ids(long)[: kept[0]], sep, *ids(short)[: kept[1]], sep
        ]
    assert tokenizer(long, max_length=4)["input_ids"] == [
        tokenizer.cls_token_id, *ids(long)[:2], sep
    ]


def test_a_truncation_that_nobody_asked_for_is_warned_of_once(tokenizer, caplog, monkeypatch):
    monkeypatch.setattr(albert.AlbertTokenizer, "_has_warned", False)
    short = albert.AlbertTokenizer(tokenizer.tokenizer, max_length=8)
    for options in ({"truncation": True}, {"max_length": 4}, {"return_overflowing_tokens": True}):
        short(["the " * 20, "the"], **options)
    assert not caplog.messages and len(short("the " * 20)["input_ids"]) == 8
    short("the " * 30, "the first one")
    [said] = caplog.messages
    assert said.startswith("truncated a text of 22 tokens to the model's maximum, 8; pass truncation=True")


def test_it_is_called_as_hugging_faces_are(tokenizer):
    pairs = [("the first one of many", "a second"), ("one", "two")]
    lists = tokenizer(*map(list, zip(*pairs, strict=True)))
    arrays = tokenizer(pairs, padding=True, return_tensors="np")
    lengths = arrays["attention_mask"].sum(1).tolist()
    for name, value in arrays.items():
        assert value.dtype == np.int32
        assert [row[:n].tolist() for row, n in zip(value, lengths, strict=True)] == lists[name]
        assert tokenizer(pairs, padding=True)[name] == value.tolist()
        assert tokenizer(*pairs[0])[name] == lists[name][0]
    assert pickle.loads(pickle.dumps(lists)) == lists
    assert lists.token_type_ids == lists["segment_ids"] and "attention_mask" not in dict(lists)
    padded = tokenizer.pad([tokenizer(*pair) for pair in pairs], return_tensors="np")
    for name, value in tokenizer.pad(dict(lists)).items():
        np.testing.assert_array_equal(value, arrays[name])
        np.testing.assert_array_equal(padded[name], arrays[name])
    with pytest.raises(DataError, match="pass padding=True"):
        tokenizer(pairs, return_tensors="np")
    first, second = (tokenizer.tokenizer.encode_text(text) for text in pairs[0])
    assert tokenizer.encode(*pairs[0], add_special_tokens=False) == first + second
    assert type(tokenizer("one", return_tensors="tf")["input_ids"]).__module__.startswith("tensorf")
    for name in ("cls", "sep", "mask", "pad", "unk"):
        number = getattr(tokenizer.tokenizer, f"{name}_id")
        assert getattr(tokenizer, f"{name}_token_id") == number
        token = getattr(tokenizer, f"{name}_token")
        assert token.strip("[]<>").lower() == name
        assert tokenizer.convert_ids_to_tokens(number) == token
        assert tokenizer.convert_ids_to_tokens(np.array(number)) == token  # as `argmax` on JAX
        assert tokenizer.convert_tokens_to_ids(token) == number == tokenizer.get_vocab()[token]
    texts = tokenizer.batch_decode(lists.input_ids, skip_special_tokens=True)
    assert texts == ["the first one of many a second", "one two"]
    assert len(tokenizer) == tokenizer.vocab_size


def test_padding_again_keeps_masks_segments_and_labels(tokenizer):
    """As a `collate` function pads examples of several lengths, padded before or not."""
    pairs = [("the first one of many", "a second"), ("one", "two")]
    expected = tokenizer(pairs, padding="max_length", max_length=24, return_tensors="np")
    lengths = expected["attention_mask"].sum(1).tolist()
    tags = [list(range(n)) for n in lengths]
    plain = [tokenizer(*pair) for pair in pairs]
    padded = [tokenizer(*pair, padding="max_length", max_length=20) for pair in pairs]
    arrays = [dict(tokenizer(*pair, return_tensors="np", padding=True)) for pair in pairs]
    theirs = [{"input_ids": one["input_ids"], "token_type_ids": one["segment_ids"],
               "attention_mask": one["input_mask"]} for one in padded]
    arrays = [{name: array[0] for name, array in one.items()} for one in arrays]
    for examples in (plain, padded, arrays, theirs):
        examples = [{**one, "labels": label} for one, label in zip(examples, (2, 0), strict=True)]
        found = tokenizer.pad(examples, padding="max_length", max_length=24, return_tensors="np")
        assert found["labels"].tolist() == [2, 0]
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        by_column = {name: [one[name] for one in examples] for name in examples[0]}
        again = tokenizer.pad(by_column, padding="max_length", max_length=24)
        assert again == {name: value.tolist() for name, value in found.items()}
    found = tokenizer.pad([{**one, "labels": own} for one, own in zip(plain, tags, strict=True)])
    assert found["labels"] == [own + [-100] * (max(lengths) - len(own)) for own in tags]
    several = tokenizer.pad([{**one, "labels": [0.0, 1.0]} for one in plain], return_tensors="np")
    assert several["labels"].tolist() == [[0, 1], [0, 1]] and several["labels"].dtype == np.float32
    offsets = [tokenizer(*pair, return_offsets_mapping=True) for pair in pairs]
    assert tokenizer.pad(offsets)["offset_mapping"] == tokenizer(
        pairs, padding=True, return_offsets_mapping=True)["offset_mapping"]
    with pytest.raises(DataError, match="the same keys"):
        tokenizer.pad([plain[0], {**plain[1], "labels": 1}])
    with pytest.raises(DataError, match="with input_ids, not labels"):
        tokenizer.pad({"labels": [1]})


LONG = [
    "The boys were playing in 2,000 gardens, weren't they?", "a", "the boys [MASK] playing",
    "unbelievably incomprehensible " * 4, "in U.S. texts: 3.5%, or 1,000,000", "It's a café, isn't it? Yes.",
]
PAIRED = [(LONG[1], LONG[0]), (LONG[2], LONG[3]), (LONG[4], LONG[5])]
SPLIT = [text.split() for text in LONG]
CALLS = [  # of transformers' courses on question answering and on token classification, and mixtures
    *(((LONG,), {"max_length": 14, "stride": stride, "return_overflowing_tokens": True, "padding": padding})
      for stride in (0, 3, 6) for padding in (False, True, "max_length")),
    *((tuple(map(list, zip(*pairs))), {
        "max_length": 36, "stride": 4, "return_overflowing_tokens": True, "padding": "max_length",
        "truncation": which,
    }) for pairs, which in ((PAIRED, "only_second"), ([p[::-1] for p in PAIRED], "only_first"))),
    ((LONG[0],), {"max_length": 14, "stride": 5, "return_overflowing_tokens": True}),
    ((LONG,), {"max_length": 14, "stride": 5}), ((LONG[0], LONG[1]), {}),
    ((SPLIT,), {"is_split_into_words": True}), ((SPLIT[0],), {"is_split_into_words": True}),
    ((SPLIT, SPLIT[::-1]), {"is_split_into_words": True, "padding": True}),
    ((SPLIT,), {"is_split_into_words": True, "max_length": 12, "stride": 2, "padding": True,
                "return_overflowing_tokens": True}),
    (([["a", "", "b"]],), {"is_split_into_words": True}),
    ((LONG,), {"padding": True, "pad_to_multiple_of": 8}), ((LONG,), {"pad_to_multiple_of": 8}),
    ((LONG, LONG[::-1]), {"padding": True, "padding_side": "left", "pad_to_multiple_of": 16}),
    ((LONG,), {"padding": True, "padding_side": "left", "max_length": 14, "stride": 2,
               "return_overflowing_tokens": True}),
]


def test_windows_words_and_masks_are_those_of_transformers(golden_path, tmp_path):
    apart.needs("transformers", "torch", extra="interop")
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(golden_path("spm/30k-clean.model")))
    tokenizer.save_pretrained(tmp_path)
    everything = {"truncation": True, "return_offsets_mapping": True, "return_special_tokens_mask": True}
    calls = [(texts, everything | options) for texts, options in CALLS]
    with apart.process() as call:
        theirs = json.loads(json.dumps(call(their_transformers.encodings, str(tmp_path), calls)))
        tokens = call(their_transformers.special_tokens, str(tmp_path))
    for (texts, options), expected in zip(calls, theirs, strict=True):
        ours = tokenizer(*texts, **options)
        assert their_transformers.with_numbers(ours) == expected, options
        if options.get("padding"):
            arrays = tokenizer(*texts, **options, return_tensors="np")
            assert {name: array.tolist() for name, array in arrays.items()} == dict(ours)
    assert tokenizer.special_tokens_map == tokens
    tokenizer.padding_side = "left"
    rows = tokenizer(LONG[:3])["input_ids"]
    padded = tokenizer.pad({"input_ids": rows}, pad_to_multiple_of=8)["input_ids"]
    assert padded == [[0] * (16 - len(row)) + row for row in rows]


def test_what_it_does_not_know_is_refused_by_name(tokenizer):
    for arguments, options, said in (
        (("the first one",), {"max_length": 4, "truncation": False}, "text 0 has .* 4 is the max"),
        (("a b c", "d e"), {"max_length": 4, "truncation": "only_second"},
         "leaves no space with truncation='only_second'"),
        (("one", "two"), {"max_length": 2}, "max_length 2 leaves no space"),
        (("one",), {"padding": "left"}, "padding must be one of .*, got 'left'"),
        (("one",), {"truncation": 3}, "truncation must be one of .*, got 3"),
        (("one",), {"return_tensors": "pt"}, 'return_tensors="pt": use "np", and torch.from_numpy'),
        (("one",), {"return_tensors": "xy"}, "return_tensors must be one of .*, got 'xy'"),
        ((["a", 7],), {}, "text 1 is not a string but int: 7"),
        ((["a"], [None]), {}, "text_pair 0 is not a string but NoneType"),
        ((["a", "b"], ["c"]), {}, "2 texts, but 1 second texts"),
        (("one",), {"padding": True, "padding_side": "top"}, "padding_side must be one of .*'top'"),
        (("one",), {"is_split_into_words": True}, "expected a list of words, got 'one'"),
        (("a b c d e",), {"max_length": 5, "stride": 3, "return_overflowing_tokens": True},
         "leaves no space .* stride=3"),
        (("a b c", "d e"), {"max_length": 5, "return_overflowing_tokens": True}, "only_first.*only_sec"),
    ):
        with pytest.raises(DataError, match=said):
            tokenizer(*arguments, **options)


def test_the_mask_may_be_written_and_other_special_tokens_are_text(tokenizer):
    t = tokenizer.tokenizer
    ids = tokenizer.encode("the [MASK] one")
    assert ids.count(t.mask_id) == 1 and ids[1] == t.encode_text("the")[0]
    encoded = tokenizer("the [MASK] one", return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    assert offsets[ids.index(t.mask_id)] == [4, 10] and offsets[-2] == [11, 14]
    words = encoded.word_ids()
    assert words[0] is words[-1] is None and words[1] == 0 and words[ids.index(t.mask_id)] == 1
    assert tokenizer(["x", "unbelievably so"], padding="max_length").word_ids(1)[-1] is None
    assert tokenizer.encode("the [SEP] one").count(t.sep_id) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True).split() == ["the", "one"]


def normal(text: str) -> str:
    return tokenization.preprocess_text(text, lower=True).replace(" ", "")


def test_every_token_is_found_where_it_stands(tokenizer, golden_path):
    text = "  The naïve  café, in 1999, (sold)\tＴＥＡ to Ünder-writers…"
    encoded = tokenizer(text, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    assert offsets[0] == offsets[-1] == [0, 0]
    assert offsets[1][0] == 2 and text[offsets[2][0]] in "naN"
    assert offsets[1:-1] == [
        list(without_space(text, span)) for span in encode_with_offsets(tokenizer.tokenizer, text)[1]
    ]
    cases = json.loads(golden_path("tokenization.json").read_text("utf-8"))["cases"]
    total = right = 0
    for text in (text, *(case["text"] for case in cases)):
        ids, spans = encode_with_offsets(tokenizer.tokenizer, text)
        spans = [without_space(text, span) for span in spans]
        assert ids == tokenizer.tokenizer.encode_text(text)
        begins = [begin for begin, _ in spans]
        assert begins == sorted(begins)
        assert all(0 <= begin <= end <= len(text) for begin, end in spans)
        for token, (begin, end) in zip(tokenizer.convert_ids_to_tokens(ids), spans, strict=True):
            if token not in ("[UNK]", "<unk>", "▁"):
                total += 1
                plain = normal(token.replace("▁", "").removeprefix("##"))
                right += normal(text[begin:end]) == plain
    # The rest are characters that expand to several ("½"), or that a normaliser drops.
    assert right / total > 0.98


def test_every_character_of_a_preprocessed_text_has_its_origin(golden_path):
    spm = str(golden_path("spm/30k-clean.model"))
    rng, odd = random.Random(0), "a B\t\u0301\u0300 é½ﬁ\u200b\u1e9b\u0323\u212bİΣσ한か\u3099\x1c…🙂\ud800"
    for settings in ({}, {"keep_accents": True}, {"remove_space": False}, {"do_lower_case": False}):
        tokenizer = tokenization.FullTokenizer(None, spm_model_file=spm, **settings)
        for _ in range(500):
            text = "".join(rng.choice(odd) for _ in range(rng.randrange(12)))
            clean, origins = tokenizer.preprocess(text), origins_of(text, tokenizer)
            assert len(origins) == len(clean) and origins == sorted(origins), ascii(text)
            for char, i in zip(clean, origins, strict=True):
                of_one = tokenizer.preprocess_character(text[i])
                assert char in of_one or char == " " and text[i].isspace() or char in "σς", ascii(text)


# --- Added tokens ---


def test_added_tokens_are_matched_whole_before_all_others(tokenizer, tmp_path):
    tokenizer = pickle.loads(pickle.dumps(tokenizer))  # leaves the fixture's unchanged
    before, size = tokenizer.encode("the covid19, Bill"), len(tokenizer)
    assert tokenizer.add_tokens(["[E1]", "COVID19", "[E1]", "."]) == 2
    assert tokenizer.add_tokens("Café") == 1 and tokenizer.add_tokens(["covid"]) == 1
    assert len(tokenizer) == size + 4 and tokenizer.vocab_size == size
    for number, token in enumerate(("[E1]", "COVID19", "Café", "covid")):
        assert tokenizer.convert_tokens_to_ids(token) == size + number == tokenizer.get_vocab()[token]
        assert tokenizer.convert_ids_to_tokens(size + number) == token
    marker, virus, cafe, _ = range(size, size + 4)
    words = [tokenizer.encode(word, add_special_tokens=False) for word in ("the", "bill", "s", ",")]
    the, bill, s, _ = words
    text = "The [E1] [e1]Bill[E1] covid19s COVID19 CAFE the café"
    expected = [*the, marker, marker, *bill, marker, virus, *s, virus, cafe, *the, cafe]
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert encoded.input_ids[1:-1] == expected
    spans = {text[slice(*span)] for span, i in zip(encoded.offset_mapping, encoded.input_ids, strict=True)
             if i >= size}
    assert spans == {"[E1]", "[e1]", "covid19", "COVID19", "CAFE", "café"}
    ours = tokenizer.tokenizer
    assert ours.convert_tokens_to_ids(ours.tokenize(ours.preprocess(text))) == expected
    assert tokenizer.encode("the [MASK][E1]").count(tokenizer.mask_token_id) == 1
    assert tokenizer(text).word_ids()[2:4] == [1, 2] and ours.start_pieces()[size:] == [True] * 4
    assert "[E1]" in tokenizer.decode(expected, skip_special_tokens=True)
    for nothing in ("", " ", 7):
        with pytest.raises(DataError, match="not a token"):
            tokenizer.add_tokens([nothing])

    tokenizer.save_pretrained(tmp_path)
    again = albert.AlbertTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab() and again.encode(text) == tokenizer.encode(text)
    plain = albert.AlbertTokenizer.from_pretrained(ours.path)
    assert plain.encode("the covid19, Bill") == before != again.encode("the covid19, Bill")
    assert plain.tokenizer.sha256 != again.tokenizer.sha256 == ours.sha256


def test_a_model_learns_the_added_tokens_of_its_directory(made_once, hindi, tmp_path):
    tokenizer = albert.AlbertTokenizer.from_pretrained(hindi)
    tokenizer.add_tokens(["[E1]"])
    model = albert.AlbertModel(albert.AlbertConfig(**SIZES | {"vocab_size": len(tokenizer)}))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    session = albert.open_session(tmp_path / "model")
    text = "the [E1] big"
    with_marker, without = session.embed([text, "the big"], pooling="mean")
    hidden = model(**tokenizer([text], return_tensors="np")).sequence_output
    np.testing.assert_allclose(with_marker, np.mean(hidden[0], 0), atol=1e-5)
    assert np.abs(with_marker - without).max() > 1e-3


def test_added_tokens_of_hugging_faces_files_are_read_or_refused(hindi, golden_path, tmp_path):
    size = len(albert.AlbertTokenizer.from_pretrained(hindi))
    (hindi / "added_tokens.json").write_text(json.dumps({"bb": size + 1, "[A]": size, "[CLS]": 2}))
    tokenizer = albert.AlbertTokenizer.from_pretrained(hindi)
    assert tokenizer.convert_ids_to_tokens([size, size + 1]) == ["[A]", "bb"]
    (hindi / "added_tokens.json").write_text(json.dumps({"bb": size + 1}))
    with pytest.raises(DataError, match=f"added token 'bb' has id {size + 1}, it would have to be {size}"):
        albert.AlbertTokenizer.from_pretrained(hindi)
    # From version 5 on, their library writes nothing else.
    tokenizer.save_pretrained(tmp_path)
    os.remove(tmp_path / "spiece.model")
    os.remove(tmp_path / "tokenizer_config.json")
    alone = albert.AlbertTokenizer.from_pretrained(tmp_path)
    assert alone.get_vocab() == tokenizer.get_vocab()
    assert alone.encode("the [a] big bb") == tokenizer.encode("the [a] big bb")


# --- Directories ---


@pytest.fixture
def hindi(made_once, tmp_path):
    """A tokenizer directory in Hugging Face's layout, with accents and virama in its vocabulary."""
    lines = ["Café हिन्दी the big", "naïve क्ष small"] * 9
    folder, _ = made_once("hindi", lambda folder: train_pieces(
        folder / "spiece", lines, 50, normalization_rule_name="identity"))
    return shutil.copytree(folder, tmp_path / "hindi")


def opened(folder, options={}, **values):
    """Returns the tokenizer of a directory with these settings."""
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return albert.AlbertTokenizer.from_pretrained(str(folder), **options)


def test_accents_and_case_are_kept_where_the_directory_says_so(hindi):
    text = "Café हिन्दी"
    kept = opened(hindi, keep_accents=True, do_lower_case=False, tokenizer_class="AlbertTokenizer")
    assert kept.decode(kept.encode(text), skip_special_tokens=True) == text
    lost = opened(hindi, do_lower_case=False)
    assert lost.tokenizer.preprocess(text) == "Cafe हिनदी"
    asked = opened(hindi, {"keep_accents": True}, do_lower_case=False)
    assert asked.tokenizer.sha256 == kept.tokenizer.sha256
    spaced = opened(hindi, remove_space=False, model_max_length=8)
    assert spaced.tokenizer.preprocess(" A  b ") == " a  b "
    assert spaced.model_max_length == 8 and opened(hindi).model_max_length == 512
    for one in (kept, lost, spaced):
        for text in ("the  big Café हिन्दी naïve", " small "):
            tokens = one.tokenize(text)
            spans = one(text, return_offsets_mapping=True, max_length=64)["offset_mapping"]
            for token, (begin, end) in zip(tokens, spans[1:-1], strict=True):
                found = one.tokenizer.preprocess(text[begin:end]).strip()
                assert found == token.replace("▁", " ").strip() or token == "<unk>"


REFUSED = [
    ({"keep_accents": "yes"}, "keep_accents must be true or false, got 'yes'"),
    ({"do_lower_case": 1}, "do_lower_case must be true or false"),
    ({"never_split": ["x"]}, "never_split is"),
    ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs is"),
    ({"tokenizer_class": "XLNetTokenizer"}, "tokenizer_class is 'XLNetTokenizer'"),
    ({"tokenize_chinese_chars": "no"}, "tokenize_chinese_chars must be true or false"),
    ({"additional_special_tokens": ["[X]"]}, "additional_special_tokens is"),
    ({"added_tokens_decoder": {"50": {"content": "[X]", "special": True}}}, r"'\[X\]' is special"),
    ({"added_tokens_decoder": {"50": {"content": "x y", "single_word": True}}}, "'x y' is single_w"),
    ({"added_tokens_decoder": {"50": {"content": 5}}}, "not an added token: .*5"),
    ({"added_tokens_decoder": [1]}, "added_tokens_decoder must be"),
    ({"model_max_length": "512"}, "model_max_length must be a number"),
    ({"vocabulary_file": "../x.model"}, "is not a plain file name"),
]


def test_a_setting_that_changes_ids_is_respected_or_refused(hindi, golden_path, tmp_path):
    for values, said in REFUSED:
        with pytest.raises(DataError, match=f"tokenizer_config.json.*{said}"):
            opened(hindi, **values)
    opened(hindi, model_max_length=10**30, new_thing=3, name_or_path="x", padding_side="left")
    (tmp_path / "vocab.txt").write_text("\n".join(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "café", "cafe", "東", "京", "東京"]))
    assert opened(tmp_path, strip_accents=False).tokenize("Café 東京") == ["café", "東", "京"]
    asked = opened(tmp_path, do_lower_case=False, strip_accents=True, tokenize_chinese_chars=False)
    assert asked.tokenize("Café café 東京") == ["[UNK]", "cafe", "東京"]
    asked.save_pretrained(tmp_path / "again")
    again = albert.AlbertTokenizer.from_pretrained(tmp_path / "again")
    assert again.tokenizer.sha256 == asked.tokenizer.sha256


def test_a_saved_tokenizer_is_the_same_again_beside_another_vocabulary_too(hindi, tmp_path):
    tokenizer = opened(hindi, keep_accents=True, do_lower_case=False)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/older.model").write_bytes(b"of another tokenizer")
    tokenizer.save_pretrained(str(tmp_path / "saved"))
    shutil.copy(hindi / "spiece.model", tmp_path / "plain.model")
    again, beside, plain = (
        albert.AlbertTokenizer.from_pretrained(str(path))
        for path in (tmp_path / "saved", hindi / "spiece.model", tmp_path / "plain.model")
    )
    assert again.tokenizer.sha256 == tokenizer.tokenizer.sha256 == beside.tokenizer.sha256
    assert plain.tokenizer.sha256 != again.tokenizer.sha256


def test_a_models_directory_gives_its_tokenizer_and_keeps_it(golden_path, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_config(folder, vocab_size=30000)
    with pytest.raises(DataError, match="no vocabulary"):
        albert.AlbertTokenizer.from_pretrained(str(folder))
    shutil.copy(golden_path("spm/30k-clean.model"), folder)
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(folder))
    assert tokenizer.model_max_length == 16
    again = albert.AlbertTokenizer.from_pretrained(str(folder / "30k-clean.model"))
    assert again.encode("hello world") == tokenizer.encode("hello world")
    (tmp_path / "copy").mkdir()
    with pytest.raises(CheckpointError, match="neither albert_config.json"):
        albert.AlbertTokenizer.from_pretrained(str(tmp_path / "copy"))


@pytest.mark.parametrize("text", [
    "cafe\u0301 time", "nai\u0308ve cafe\u0301", "o\u0302\u0323 a\u0308", "e\u0301",
])
def test_the_span_of_a_token_has_the_marks_of_its_last_letter(text, tokenizer):
    spans = tokenizer(text, return_offsets_mapping=True)["offset_mapping"][1:-1]
    # Together, the spans are the text, and none overlaps another.
    assert "".join(text[begin:end] for begin, end in spans).replace(" ", "") == text.replace(" ", "")
    assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:]))
