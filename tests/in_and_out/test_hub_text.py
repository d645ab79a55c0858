"""Modules that take raw text: for every string, they give our tokenizer's ids."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from helpers import SIZES, assert_one_clear_line, run_here, write_config, write_weights
from jobs import SPECIALS

from albert import export_to_tfhub
from albert.export import text_graph
from albert.records import features
from albert.tokenization import FullTokenizer

pytest.importorskip("tensorflow_text", reason="the [text] extra is not installed")


def stranger(code: str, *arguments, folder, **environment) -> dict:
    """Runs code in a process that cannot import this package; returns its last line, parsed as JSON."""
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, cwd=folder, timeout=300, env=os.environ | environment,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def graph_ids(tokenizer: FullTokenizer, texts) -> list[list[int]]:
    """Returns the ids from the graph, not from eager execution."""
    encoded = [t if isinstance(t, bytes) else t.encode() for t in texts]
    graph = tf.function(text_graph.ids_of(tokenizer).__call__)
    return graph(tf.constant(np.array(encoded, object))).to_list()


@pytest.fixture(scope="module")
def cases(golden_path) -> list[dict]:
    path = golden_path("tokenization.json")
    return json.loads(path.read_text("utf-8"))["cases"]


@pytest.fixture(scope="module")
def modules(golden_path, tmp_path_factory):
    """The two modules of a tiny model with the released vocabulary."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "albert").mkdir()
    write_config(folder / "albert", vocab_size=30000)
    write_weights(folder / "albert/model.ckpt-best", SIZES | {"vocab_size": 30000})
    assert 0 == run_here(
        export_to_tfhub, f"--albert_directory={folder / 'albert'}",
        f"--spm_model_file={golden_path('spm/30k-clean.model')}",
        f"--export_path={folder / 'encoder'}",
        f"--export_preprocessor_path={folder / 'preprocessor'}",
    )
    return folder


PREPROCESS = """
import json, sys
import tensorflow as tf, tensorflow_hub as hub, tensorflow_text
module = hub.load(sys.argv[1])
texts = json.load(open(sys.argv[2]))
assert not any(n.split(".")[0] == "albert" for n in sys.modules)
ids = module.tokenize(tf.constant([t.encode() for t in texts]))
pair = [module.tokenize(["One text, of 1999, here."]), module.tokenize(["Its second."])]
packed = module.bert_pack_inputs(pair, 13)
packed |= {"default": module.bert_pack_inputs(pair)["input_word_ids"]}
packed |= {"single": module(["One text, of 1999, here."])["input_word_ids"]}
try:
    module.bert_pack_inputs(pair, seq_length=17)
    error = ""
except tf.errors.InvalidArgumentError as e:
    error = str(e)
print(json.dumps({
    "ids": ids.to_list(), "error": error,
    "packed": {k: v.numpy().tolist() for k, v in packed.items()},
    "special": {k: int(v) for k, v in module.tokenize.get_special_tokens_dict().items()},
    "inputs": str(module.signatures["serving_default"].structured_input_signature),
}))
"""


def test_a_stranger_gets_the_originals_ids_from_text(modules, cases, golden_path, tmp_path):
    (tmp_path / "texts.json").write_text(json.dumps([case["text"] for case in cases]))
    # TensorFlow's own lower-casing would follow the locale: "I" would become a dotless i.
    seen = stranger(
        PREPROCESS, modules / "preprocessor", tmp_path / "texts.json", folder=tmp_path,
        LC_ALL="tr_TR.UTF-8", LANG="tr_TR.UTF-8",
    )
    for case, ids in zip(cases, seen["ids"], strict=True):
        assert ids == case["lower_true"]["ids"], case["text"]
    assert seen["special"] == {
        "vocab_size": 30000, "padding_id": 0, "start_of_sequence_id": 2, "end_of_segment_id": 3,
        "mask_id": 4,
    }
    tokenizer = FullTokenizer(None, True, str(golden_path("spm/30k-clean.model")))
    a, b = tokenizer.encode_text("One text, of 1999, here."), tokenizer.encode_text("Its second.")
    expected = features.join_texts(a, b, 13, tokenizer.cls_id, tokenizer.sep_id)
    assert seen["packed"]["input_word_ids"] == [expected["input_ids"].tolist()]
    assert seen["packed"]["input_mask"] == [expected["input_mask"].tolist()]
    assert seen["packed"]["input_type_ids"] == [expected["segment_ids"].tolist()]
    # The default length is the model's maximum: its position table has 16 rows.
    expected = features.join_texts(a, b, 16, tokenizer.cls_id, tokenizer.sep_id)
    assert seen["packed"]["default"] == [expected["input_ids"].tolist()]
    expected = features.join_texts(a, None, 16, tokenizer.cls_id, tokenizer.sep_id)
    assert seen["packed"]["single"] == [expected["input_ids"].tolist()]
    assert "at most 16 ids" in seen["error"]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", ["spm", "wordpiece"])
def test_the_graph_cuts_every_golden_text_as_the_original(kind, lower, cases, golden_path):
    spm = kind == "spm"
    tokenizer = FullTokenizer(
        None if spm else str(golden_path("spm/albert_zh_vocab.txt")), lower,
        str(golden_path("spm/30k-clean.model")) if spm else None,
    )
    found = graph_ids(tokenizer, [case["text"] for case in cases])
    key = f"lower_{lower}".lower()
    for case, ids in zip(cases, found, strict=True):
        assert ids == case[key if spm else f"wordpiece_{key}"]["ids"], case["text"]


@pytest.mark.parametrize("settings", [
    {}, {"keep_accents": True}, {"remove_space": False}, {"do_lower_case": True},
], ids=lambda settings: "-".join(settings) or "none")
def test_the_graph_prepares_texts_as_the_tokenizers_settings_say(settings, cases, golden_path):
    options = {"do_lower_case": False} | settings
    tokenizer = FullTokenizer(
        None, spm_model_file=str(golden_path("spm/30k-clean.model")), **options
    )
    texts = [case["text"] for case in cases] + [" Café  हिन्दी\t", "\u00a0a "]
    texts = [text for text in texts if text.isprintable()]
    for text, ids in zip(texts, graph_ids(tokenizer, texts), strict=True):
        assert ids == tokenizer.encode_text(text), text


@pytest.mark.parametrize("kind", ["spm", "wordpiece"])
def test_every_character_is_treated_as_python_treats_it(kind, golden_path):
    tokenizer = FullTokenizer(
        str(golden_path("spm/albert_zh_vocab.txt")), True,
        str(golden_path("spm/30k-clean.model")) if kind == "spm" else None,
    )
    # The entire Basic Multilingual Plane, and the other planes except ideographs.
    codes = [*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200)]
    texts = [f"aB{chr(c)}C3{chr(c)}, {chr(c)}Σ" for c in codes]
    # Bytes that are not UTF-8 are dropped as in Python.
    rng = np.random.default_rng(0)
    alphabet = np.frombuffer(b"Aa \x80\xbf\xc0\xc2\xe2\x82\xac\xed\xa0\xf0\x9f\x98\xf4\xff", "u1")
    texts += [rng.choice(alphabet, rng.integers(1, 12)).tobytes() for _ in range(2000)]
    found, expected = graph_ids(tokenizer, texts), tokenizer.encode_batch(texts)
    assert not [t for t, a, b in zip(texts, found, expected, strict=True) if a != b]


TEXTS = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen jugs",
         "in 1999, 20 of 100 and 345 eeeee iiii"]


@pytest.mark.parametrize("settings", [
    {}, {"model_type": "bpe"}, {"model_type": "char"}, {"byte_fallback": True, "vocab_size": 340},
    {"user_defined_symbols": ["<x>", "("]}, {"normalization_rule_name": "identity"},
], ids=str)
@pytest.mark.parametrize("comma", [",", ""], ids=["comma", "no comma"])
def test_vocabularies_of_every_kind_are_followed(settings, comma, tmp_path):
    """Also without a token for the comma, where unknown tokens can end in a digit and a comma."""
    model = io.BytesIO()
    settings = {"vocab_size": 80, "model_type": "unigram"} | settings
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t.replace(",", comma) for t in TEXTS] * 9), model_writer=model,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        hard_vocab_limit=False, minloglevel=2, **settings,
    )
    (tmp_path / "spm.model").write_bytes(model.getvalue())
    tokenizer = FullTokenizer(None, True, str(tmp_path / "spm.model"))
    rng = np.random.default_rng(1)
    alphabet = list("abeeeiii  019,,78(.²<x>") + ["[CLS]", "Ж", "<unk>", "\u00bd"]
    texts = ["".join(rng.choice(alphabet, rng.integers(0, 20))) for _ in range(1000)]
    texts += ["7,", "7,7", "Ж7,", "78,,", "7,x", "²,", "20,", "(20,", "19,99"]
    found = graph_ids(tokenizer, texts)
    for text, ids, expected in zip(texts, found, tokenizer.encode_batch(texts), strict=True):
        assert ids == expected, text


def test_a_word_too_long_is_unknown_by_characters_not_bytes(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "ж", "##ж", "a", "##a"]))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), True, None)
    texts = ["ж" * 200, "ж" * 201, "a" * 200, "a" * 201, "aжab a"]
    found = graph_ids(tokenizer, texts)
    assert found == tokenizer.encode_batch(texts)
    assert [len(row) for row in found] == [200, 1, 200, 1, 2]


@pytest.mark.parametrize("arguments, message", [
    ([], "is required"),
    (["--export_path={0}/m", "--export_preprocessor_path={0}/m"], "must be different"),
    (["--export_preprocessor_path={0}/m", "--max_seq_length=17"], "exceeds max_position_embeddings 16"),
    (["--export_preprocessor_path={0}"], "exists: remove it"),
    (["--export_path={0}/m", "--export_preprocessor_path={0}/n"],
     "pip install 'tensorflow-text==2.21.*'"),
])
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    arguments, message, golden_path, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)  # as if not installed
    write_config(tmp_path, vocab_size=30000)
    (tmp_path / "spm.model").write_bytes(golden_path("spm/30k-clean.model").read_bytes())
    arguments = [a.format(tmp_path) for a in arguments]
    assert run_here(export_to_tfhub, f"--albert_directory={tmp_path}", *arguments) == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert len(list(tmp_path.iterdir())) == 2
