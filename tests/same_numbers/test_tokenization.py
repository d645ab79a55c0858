"""Tokenization: the original's own tests, golden values, and clear refusals."""

import json
import pickle
import sys
import time

import numpy as np
import pytest

from albert import tokenization
from albert.config import AlbertConfig
from albert.errors import ConfigError, DataError
from albert.text import wordpiece
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


# --- What the original's own tests check (its vocabulary, its sentences) ---


def test_wordpiece_tokens_and_ids_of_the_originals_example(tmp_path):
    tokens = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]
    tokenizer = FullTokenizer(write_vocab(tmp_path / "vocab.txt", tokens))
    pieces = tokenizer.tokenize("UNwant\u00e9d,running")
    assert pieces == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert tokenizer.convert_tokens_to_ids(pieces) == [7, 4, 5, 10, 8, 9]
    assert tokenizer.encode_text("UNwant\u00e9d,running") == [7, 4, 5, 10, 8, 9]
    assert tokenizer.convert_ids_to_tokens([7, 4]) == ["un", "##want"]


def test_ideographs_are_words_of_their_own():
    words = tokenization.BasicTokenizer().tokenize("ah\u535a\u63a8zz")
    assert words == ["ah", "\u535a", "\u63a8", "zz"]


def test_basic_tokenizer_lower_cases_and_drops_accents():
    tokenizer = tokenization.BasicTokenizer(do_lower_case=True)
    words = tokenizer.tokenize(" \tHeLLo!how  \n Are yoU?  ")
    assert words == ["hello", "!", "how", "are", "you", "?"]
    assert tokenizer.tokenize("H\u00e9llo") == ["hello"]


def test_basic_tokenizer_keeps_case_when_asked():
    words = tokenization.BasicTokenizer(do_lower_case=False).tokenize(" \tHeLLo!how  \n Are yoU?  ")
    assert words == ["HeLLo", "!", "how", "Are", "yoU", "?"]


def test_wordpieces_are_greedy_and_unknown_words_whole():
    tokens = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing"]
    tokenizer = tokenization.WordpieceTokenizer({t: i for i, t in enumerate(tokens)})
    assert tokenizer.tokenize("") == []
    assert tokenizer.tokenize("unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert tokenizer.tokenize("unwantedX running") == ["[UNK]", "runn", "##ing"]


def test_tokens_convert_by_vocabulary():
    vocab = {token: i for i, token in enumerate(TINY_VOCAB)}
    tokens = ["un", "##want", "##ed", "runn", "##ing"]
    assert tokenization.convert_tokens_to_ids(vocab, tokens) == [7, 4, 5, 8, 9]
    inverse = {i: token for token, i in vocab.items()}
    assert tokenization.convert_ids_to_tokens(inverse, [7, 4]) == ["un", "##want"]


def test_character_classes():
    assert all(map(wordpiece._is_whitespace, " \t\r\n\u00a0"))
    assert not any(map(wordpiece._is_whitespace, "A-"))
    assert wordpiece._is_control("\u0005")
    assert not any(map(wordpiece._is_control, "A \t\r\U0001f4a9"))
    assert all(map(wordpiece._is_punctuation, "-$`."))
    assert not any(map(wordpiece._is_punctuation, "A "))


# --- Golden values ---


def test_every_golden_string_gives_the_originals_sentencepieces(golden, spm):
    tokenizer = FullTokenizer(None, spm_model_file=spm)
    for case in golden:
        raw = tokenizer.tokenize(case["text"])
        assert raw == case["raw"]["tokens"], case["text"]
        assert tokenizer.convert_tokens_to_ids(raw) == case["raw"]["ids"]


@pytest.mark.parametrize("lower", [True, False])
def test_every_golden_string_is_preprocessed_as_the_original_did(golden, spm, lower):
    tokenizer = FullTokenizer(None, do_lower_case=lower, spm_model_file=spm)
    batch = tokenizer.encode_batch([case["text"] for case in golden])
    for case, ids in zip(golden, batch, strict=True):
        want, text = case[f"lower_{str(lower).lower()}"], case["text"]
        cleaned = tokenization.preprocess_text(text, lower=lower)
        assert cleaned == want["preprocessed"], text
        kept = tokenization.preprocess_text(text, remove_space=False, lower=lower)
        assert kept == want["preprocessed_keep_space"], text
        tokens = tokenizer.tokenize(cleaned)
        assert tokens == want["tokens"], text
        assert tokenizer.convert_tokens_to_ids(tokens) == want["ids"]
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


def test_special_pieces_of_the_released_models(spm, zh_vocab):
    english, chinese = FullTokenizer(None, spm_model_file=spm), FullTokenizer(zh_vocab)
    assert (english.pad_id, english.cls_id, english.sep_id, english.mask_id) == (0, 2, 3, 4)
    assert (chinese.pad_id, chinese.cls_id, chinese.sep_id, chinese.mask_id) == (0, 101, 102, 103)
    assert (english.vocab_size, chinese.vocab_size) == (30000, 21128)


# --- The comma rule, with a model that has word-internal "digit," pieces ---


class ToySentencePiece:
    """Answers as a SentencePiece model with the piece "99," would."""

    ANSWERS = {
        "1999, b": ["▁19", "99,", "▁b"], "99": ["▁", "9", "9"],
        "x7,": ["▁x", "7,"], "7": ["▁7"],
    }

    def EncodeAsPieces(self, text):  # noqa: N802 (the library's name)
        return list(self.ANSWERS[text])


def test_comma_after_a_number_is_cut_off_without_starting_a_word():
    pieces = tokenization.encode_pieces(ToySentencePiece(), "1999, b")
    assert pieces == ["▁19", "9", "9", ",", "▁b"]
    assert tokenization.encode_pieces(ToySentencePiece(), "x7,") == ["▁x", "7", ","]


@pytest.mark.parametrize("with_commas", [True, False])
def test_batches_give_the_ids_of_single_texts_with_a_home_made_model(tmp_path, with_commas):
    import sentencepiece

    numbers = [f"{n},{n % 7} x{n}, in {1900 + n}, b" for n in range(300)]
    lines = numbers if with_commas else [line.replace(",", "") for line in numbers]
    (tmp_path / "text").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=90, pad_id=0,
        unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        hard_vocab_limit=False, split_by_number=False, split_by_unicode_script=False,
        minloglevel=2, character_coverage=1.0,
    )
    tokenizer = FullTokenizer(None, spm_model_file=str(tmp_path / "m.model"))
    comma_pieces = [p for p in tokenizer.vocab if tokenization.ends_in_digit_comma(p)]
    assert bool(comma_pieces) == with_commas == ("," in tokenizer.vocab)
    batch = tokenizer.encode_batch(numbers)
    for text, ids in zip(numbers, batch, strict=True):
        pieces = tokenizer.tokenize(tokenizer.preprocess(text))
        assert not any(map(tokenization.ends_in_digit_comma, pieces))
        assert ids == tokenizer.convert_tokens_to_ids(pieces)
    for texts in (numbers, ["", "b", "", *numbers[:5], ""], [""], []):
        rows = tokenizer.encode_batch(texts)
        flat, sizes = tokenizer.encode_flat(texts)
        assert flat.dtype == np.int32 and flat.tolist() == [i for row in rows for i in row]
        assert sizes.tolist() == [len(row) for row in rows]


def test_white_space_collapses_whatever_it_is():
    spaces = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()]
    assert len(spaces) > 20
    for space in spaces:
        for text in (f"a{space}b", f"a {space}b", f"{space}a b", f"a b{space}", f"a b{space} c"):
            assert tokenization.preprocess_text(text, keep_accents=True) == " ".join(text.split())
    for text in ("", " ", "  ", "a", " a", "a ", "a  b", "a b c"):
        assert tokenization.preprocess_text(text) == " ".join(text.split())


# --- Vocabulary files ---


def test_vocabulary_reads_first_column_and_collapses_repeats(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("a 0.5\n \nb\na\n\u2028\nc", encoding="utf-8")
    assert tokenization.load_vocab(str(path)) == {"a": 0, " ": 1, "b": 2, "c": 3}


def test_line_separator_does_not_shift_later_ids(zh_vocab):
    vocab = tokenization.load_vocab(zh_vocab)
    assert list(vocab.values()) == list(range(21128))


# --- Hostile text ---


@pytest.mark.parametrize(
    "text", ["a\ud800b", "\x00", "", "   ", "\u2581", "e\u0301", "[CLS] [MASK]"]
)
def test_hostile_text_never_crashes_and_never_makes_special_ids(spm, zh_vocab, text):
    for tokenizer in (FullTokenizer(None, spm_model_file=spm), FullTokenizer(zh_vocab)):
        ids = tokenizer.encode_text(text)
        assert not {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id} & set(ids)
        pieces = tokenizer.tokenize(tokenizer.preprocess(text))
        assert tokenizer.convert_tokens_to_ids(pieces) == ids


def test_bytes_are_accepted_as_utf8(spm):
    tokenizer = FullTokenizer(None, spm_model_file=spm)
    assert tokenizer.encode_text("naïve café".encode()) == tokenizer.encode_text("naïve café")
    with pytest.raises(ValueError, match="Unsupported string type"):
        tokenization.convert_to_unicode(7)


def test_a_very_long_line_is_encoded_in_reasonable_time(spm):
    tokenizer = FullTokenizer(None, spm_model_file=spm)
    start = time.process_time()
    assert len(tokenizer.encode_text("é," * 150_000)) > 100_000
    assert time.process_time() - start < 20


@pytest.mark.parametrize("name", ["spm", "zh_vocab"])
def test_tokenizers_can_be_pickled(name, request):
    path, text = request.getfixturevalue(name), "Naïve 日本 1999, café"
    tokenizer = FullTokenizer(path) if name == "zh_vocab" else FullTokenizer(None, True, path)
    ids = tokenizer.encode_text(text)
    assert pickle.loads(pickle.dumps(tokenizer)).encode_text(text) == ids


# --- Refusals ---


def test_no_vocabulary_is_refused():
    with pytest.raises(DataError, match="--spm_model_file or --vocab_file"):
        FullTokenizer("", spm_model_file=None)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match="--vocab_file: no such file: .*absent"):
        FullTokenizer(str(tmp_path / "absent"))
    with pytest.raises(DataError, match="--spm_model_file: no such file: .*absent"):
        FullTokenizer(None, spm_model_file=str(tmp_path / "absent"))


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\n\x0e\n\x05<unk>"])
def test_what_is_not_a_sentencepiece_model_is_refused(tmp_path, content):
    path = tmp_path / "bad.model"
    path.write_bytes(content)
    with pytest.raises(DataError, match="bad.model: not a SentencePiece model"):
        FullTokenizer(None, spm_model_file=str(path))


def test_a_truncated_sentencepiece_model_is_refused(tmp_path, spm):
    path = tmp_path / "cut.model"
    with open(spm, "rb") as stream:
        path.write_bytes(stream.read()[:300_001])
    with pytest.raises(DataError, match="cut.model: not a SentencePiece model"):
        FullTokenizer(None, spm_model_file=str(path))


def test_a_sentencepiece_model_given_as_vocabulary_is_explained(spm):
    with pytest.raises(DataError, match="--spm_model_file"):
        FullTokenizer(spm)


def test_missing_special_pieces_are_all_named(tmp_path):
    tokenizer = FullTokenizer(write_vocab(tmp_path / "v.txt", ["a", "[SEP]"]))
    with pytest.raises(DataError, match=r"no \[CLS\], \[MASK\], \[PAD\]"):
        tokenization.check_special_pieces(tokenizer)
    with pytest.raises(DataError, match=r"no token \[MASK\]"):
        _ = tokenizer.mask_id


def test_vocabulary_of_another_size_than_the_config_is_refused(tmp_path, spm):
    sizes = dict(embedding_size=2, hidden_size=2, num_attention_heads=1, intermediate_size=2)
    tokenizer = FullTokenizer(None, spm_model_file=spm)
    tokenization.check_vocabulary(tokenizer, AlbertConfig(vocab_size=30000, **sizes))
    for size in (8000, 30001):
        with pytest.raises(ConfigError, match=f"30,000 tokens, config vocab_size is {size:,}"):
            tokenization.check_vocabulary(tokenizer, AlbertConfig(vocab_size=size, **sizes))


def test_identity_depends_on_vocabulary_and_case(tmp_path):
    one = write_vocab(tmp_path / "one.txt", TINY_VOCAB)
    two = write_vocab(tmp_path / "two.txt", [*TINY_VOCAB, "x"])
    cases = [(path, lower) for path in (one, two) for lower in (True, False)]
    assert len({FullTokenizer(path, do_lower_case=lower).sha256 for path, lower in cases}) == 4
    assert FullTokenizer(one).sha256 == FullTokenizer(one).sha256
