"""Tokenization: the original's own tests, golden values, and clear refusals."""

import json
import pickle
import sys

import numpy as np
import pytest
from helpers import train_pieces

from albert import tokenization
from albert.config import AlbertConfig
from albert.errors import ConfigError, DataError
from albert.tokenization import FullTokenizer

TINY_VOCAB = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]


def write_vocab(path, tokens):
    path.write_text("".join(token + "\n" for token in tokens), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def golden(golden_path):
    return json.loads(golden_path("tokenization.json").read_text("utf-8"))["cases"]


@pytest.fixture(scope="module")
def spm(golden_path):
    return str(golden_path("spm/30k-clean.model"))


@pytest.fixture(scope="module")
def zh_vocab(golden_path):
    return str(golden_path("spm/albert_zh_vocab.txt"))


# --- The original's own tests (its vocabulary, its sentences) ---


def test_wordpiece_tokens_and_ids_of_the_originals_example(tmp_path):
    tokenizer = FullTokenizer(write_vocab(tmp_path / "vocab.txt", TINY_VOCAB))
    tokens = tokenizer.tokenize("UNwant\u00e9d,running")
    assert tokens == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert tokenizer.convert_tokens_to_ids(tokens) == [7, 4, 5, 10, 8, 9]
    assert tokenization.convert_tokens_to_ids(tokenizer.vocab, tokens) == [7, 4, 5, 10, 8, 9]
    assert tokenizer.encode_text("UNwant\u00e9d,running") == [7, 4, 5, 10, 8, 9]
    assert tokenizer.convert_ids_to_tokens([7, 4]) == ["un", "##want"]
    assert tokenization.convert_ids_to_tokens(tokenizer.inv_vocab, [7, 4]) == ["un", "##want"]


def test_basic_tokenizer_splits_at_punctuation_and_ideographs_and_lower_cases_if_asked():
    lower, cased = tokenization.BasicTokenizer(), tokenization.BasicTokenizer(do_lower_case=False)
    assert lower.tokenize("ah\u535a\u63a8zz") == ["ah", "\u535a", "\u63a8", "zz"]
    text = " \tHeLLo!how  \n Are yoU?  "
    assert lower.tokenize(text) == ["hello", "!", "how", "are", "you", "?"]
    assert cased.tokenize(text) == ["HeLLo", "!", "how", "Are", "yoU", "?"]
    assert (lower.tokenize("H\u00e9llo"), cased.tokenize("H\u00e9llo")) == (["hello"], ["Héllo"])


def test_wordpieces_are_greedy_and_unknown_words_whole():
    tokenizer = tokenization.WordpieceTokenizer({t: i for i, t in enumerate(TINY_VOCAB)})
    assert tokenizer.tokenize("") == []
    assert tokenizer.tokenize("unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert tokenizer.tokenize("unwantedX running") == ["[UNK]", "runn", "##ing"]
    longest = "want" * 50  # 200 characters
    assert tokenizer.tokenize(f"{longest} {longest}e") == ["want", *["##want"] * 49, "[UNK]"]


# --- Golden values ---


@pytest.mark.parametrize("lower", [True, False])
def test_every_golden_string_is_preprocessed_and_cut_as_by_the_original(golden, spm, lower):
    tokenizer = FullTokenizer(None, do_lower_case=lower, spm_model_file=spm)
    batch = tokenizer.encode_batch([case["text"] for case in golden])
    for case, ids in zip(golden, batch, strict=True):
        want, text = case[f"lower_{str(lower).lower()}"], case["text"]
        cleaned = tokenization.preprocess_text(text, lower=lower)
        assert cleaned == want["preprocessed"], text
        kept = tokenization.preprocess_text(text, remove_space=False, lower=lower)
        assert kept == want["preprocessed_keep_space"], text
        for given, expected in ((cleaned, want), (text, case["raw"])):
            tokens = tokenizer.tokenize(given)
            assert tokens == expected["tokens"], text
            assert tokenizer.convert_tokens_to_ids(tokens) == expected["ids"]
        assert tokenization.encode_ids(tokenizer.sp_model, cleaned) == want["encode_ids"]
        assert ids == want["ids"] == tokenizer.encode_text(text)


@pytest.mark.parametrize("lower", [True, False])
def test_every_golden_string_gives_the_originals_wordpieces(golden, zh_vocab, lower):
    tokenizer = FullTokenizer(zh_vocab, do_lower_case=lower)
    for case in golden:
        want = case[f"wordpiece_lower_{str(lower).lower()}"]
        assert tokenizer.basic_tokenizer.tokenize(case["text"]) == want["basic"], case["text"]
        tokens = tokenizer.tokenize(case["text"])
        assert tokens == want["tokens"], case["text"]
        assert tokenizer.convert_tokens_to_ids(tokens) == want["ids"]
        assert tokenizer.encode_text(case["text"]) == want["ids"]


def test_word_starts_are_the_originals(golden_path, spm):
    path = golden_path("pretraining_data/is_start_piece.json")
    golden = json.loads(path.read_text(encoding="utf-8"))
    tokenizer = FullTokenizer(None, spm_model_file=spm)
    starts = tokenizer.start_pieces()
    continuations = {tokenizer.inv_vocab[i] for i, start in enumerate(starts) if not start}
    assert continuations == set(golden["start_pieces_false"])
    assert sum(starts) == golden["count_true"]


def test_special_tokens_and_vocabularies_of_the_released_models(spm, zh_vocab):
    english, chinese = FullTokenizer(None, spm_model_file=spm), FullTokenizer(zh_vocab)
    for tokenizer, ids in ((english, [0, 1, 2, 3, 4]), (chinese, [0, 100, 101, 102, 103])):
        names = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
        assert [getattr(tokenizer, name) for name in names] == ids
    assert english.vocab_size == 30000
    # U+2028, a token there, does not shift the ids after it.
    assert list(tokenization.load_vocab(zh_vocab).values()) == list(range(21128))


# --- The comma rule, with a model that has word-internal "digit," tokens ---


@pytest.mark.parametrize("with_commas", [True, False])
def test_a_comma_after_a_number_is_cut_off_without_starting_a_word(tmp_path, with_commas):
    numbers = [f"{n},{n % 7} x{n}, in {1900 + n}, b" for n in range(300)]
    lines = numbers if with_commas else [line.replace(",", "") for line in numbers]
    path = train_pieces(tmp_path / "m", lines, 90, split_by_number=False, split_by_unicode_script=False,
                        character_coverage=1.0)
    tokenizer = FullTokenizer(None, spm_model_file=path)
    comma_tokens = [p for p in tokenizer.vocab if tokenization.ends_in_digit_comma(p)]
    assert bool(comma_tokens) == with_commas == ("," in tokenizer.vocab)
    for text, ids in zip(numbers, tokenizer.encode_batch(numbers), strict=True):
        tokens = tokenizer.tokenize(tokenizer.preprocess(text))
        assert not any(map(tokenization.ends_in_digit_comma, tokens))
        assert "".join(tokens) == "▁" + text.replace(" ", "▁") == "".join(
            tokenization.encode_pieces(tokenizer.sp_model, text))
        assert ids == tokenizer.convert_tokens_to_ids(tokens)
    for texts in (numbers, ["", "b", "", *numbers[:5], ""], [""], []):
        rows = tokenizer.encode_batch(texts)
        flat, sizes = tokenizer.encode_flat(texts)
        assert flat.dtype == np.int32 and flat.tolist() == [i for row in rows for i in row]
        assert sizes.tolist() == [len(row) for row in rows]


# --- Odd texts and vocabularies ---


def test_white_space_collapses_whatever_it_is():
    spaces = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()]
    assert len(spaces) > 20
    for space in spaces:
        for text in (f"a{space}b", f"a {space}b", f"{space}a b", f"a b{space}", f"a b{space} c"):
            assert tokenization.preprocess_text(text, keep_accents=True) == " ".join(text.split())
    for text in ("", " ", "  ", "a", " a", "a ", "a  b", "a b c"):
        assert tokenization.preprocess_text(text) == " ".join(text.split())


def test_vocabulary_reads_first_column_and_collapses_repeats(tmp_path):
    path = write_vocab(tmp_path / "vocab.txt", ["a 0.5", " ", "b", "a", "\u2028", "c"])
    assert tokenization.load_vocab(path) == {"a": 0, " ": 1, "b": 2, "c": 3}


def test_written_special_tokens_are_text_and_bytes_and_copies_give_the_same_ids(spm, zh_vocab):
    for tokenizer in (FullTokenizer(None, spm_model_file=spm), FullTokenizer(zh_vocab)):
        special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
        assert not special & set(tokenizer.encode_text("[CLS] [MASK]"))
        text = "naïve café, 日本 1999, " * 3
        ids = tokenizer.encode_text(text)
        assert tokenizer.encode_text(text.encode()) == ids
        assert pickle.loads(pickle.dumps(tokenizer)).encode_text(text) == ids
        assert len(tokenizer.encode_text("é," * 150_000)) > 100_000
    with pytest.raises(ValueError, match="Unsupported string type"):
        tokenization.convert_to_unicode(7)


# --- Refusals ---


def test_files_that_are_no_vocabulary_are_refused_by_name(tmp_path, spm):
    path = tmp_path / "bad.model"
    with open(spm, "rb") as stream:
        cut = stream.read()[:300_001]
    for content in (b"", b"hello\n", b"\n\x0e\n\x05<unk>", cut):
        path.write_bytes(content)
        with pytest.raises(DataError, match="bad.model: not a SentencePiece model"):
            FullTokenizer(None, spm_model_file=str(path))
    for vocab, model, said in (
        ("", None, "--spm_model_file or --vocab_file"),
        (str(tmp_path / "absent"), None, "^vocab_file: no such file: .*absent"),
        (None, str(tmp_path / "absent"), "^spm_model_file: no such file: .*absent"),
        (spm, None, "Then pass it as --spm_model_file"),
    ):
        with pytest.raises(DataError, match=said):
            FullTokenizer(vocab, spm_model_file=model)


def test_missing_special_tokens_are_all_named(tmp_path):
    tokenizer = FullTokenizer(write_vocab(tmp_path / "v.txt", ["a", "[SEP]"]))
    with pytest.raises(DataError, match=r"no \[CLS\], \[MASK\], \[PAD\], \[UNK\]"):
        tokenization.check_special_pieces(tokenizer)
    with pytest.raises(DataError, match=r"no token \[MASK\]"):
        _ = tokenizer.mask_id
    tokens = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    with pytest.raises(DataError, match=r"\[PAD\] has id 1, it must have id 0"):
        tokenization.check_special_pieces(FullTokenizer(write_vocab(tmp_path / "v.txt", tokens)))


def test_vocabulary_of_another_size_than_the_config_is_refused(spm):
    sizes = dict(embedding_size=2, hidden_size=2, num_attention_heads=1, intermediate_size=2)
    tokenizer = FullTokenizer(None, spm_model_file=spm)
    tokenization.check_vocabulary(tokenizer, AlbertConfig(vocab_size=30000, **sizes))
    for size in (8000, 30001):
        with pytest.raises(ConfigError, match=f"30,000 tokens, config vocab_size is {size:,}"):
            tokenization.check_vocabulary(tokenizer, AlbertConfig(vocab_size=size, **sizes))


def test_identity_depends_on_vocabulary_and_settings(tmp_path, spm):
    one = write_vocab(tmp_path / "one.txt", TINY_VOCAB)
    two = write_vocab(tmp_path / "two.txt", [*TINY_VOCAB, "x"])
    made = [FullTokenizer(path, lower) for path in (one, two) for lower in (True, False)]
    changes = ({}, {"keep_accents": True}, {"remove_space": False})
    made += [FullTokenizer(None, spm_model_file=spm, **change) for change in changes]
    assert len({tokenizer.sha256 for tokenizer in made}) == 7
    assert FullTokenizer(one).sha256 == made[0].sha256
