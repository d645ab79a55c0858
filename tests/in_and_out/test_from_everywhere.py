"""Models in the forms that people have: in folders, of Hugging Face, with a tokenizer.json alone."""

import json
import random
import shutil

import damage
import jobs
import numpy as np
import pytest
import tensorflow as tf
from helpers import SIZES, assert_one_clear_line, run_here, write_config, write_weights
from hf_models import load, random_model, save

import albert
from albert import export_checkpoints, run_classifier
from albert.cli import flags
from albert.cli.encoder import open_encoder
from albert.config import AlbertConfig
from albert.errors import CheckpointError, ConfigError, DataError, UserError
from albert.formats import checkpoints, huggingface, pretrained, tokenizer_files
from albert.tokenization import FullTokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- Packed, or in a nearby folder ---


def test_the_folder_around_a_model_and_its_files_mean_that_model(golden_path, tmp_path):
    source = golden_path("tf1_ckpt_tiny")
    expected = pretrained.open_any_weights(str(source))
    shutil.copytree(source, tmp_path / "parent/albert_tiny")
    for path in (tmp_path / "parent", source / "model.ckpt-best.index"):
        found = pretrained.open_path(str(path))
        assert found.config.hidden_size == 48
        for name in expected.shapes:
            np.testing.assert_array_equal(found.weights().read(name), expected.read(name))


def test_what_is_no_model_or_could_be_several_is_answered_with_what_to_do(golden_path, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(golden_path("tf1_ckpt_tiny"), tmp_path / "both" / name)
    model, other = random_model("AlbertModel"), random_model("AlbertModel", hidden_size=32)
    mixed, bare, wide = (save(model, tmp_path / name) for name in ("mixed", "bare", "wide"))
    model.save_pretrained(str(tmp_path / "theirs"))
    shutil.copytree(tmp_path / "theirs", mixed, dirs_exist_ok=True)
    (bare / "albert_config.json").unlink()
    (wide / "albert_config.json").write_text(other.config.to_json_string())
    for name in ("theirs.h5/config.json", "theirs.h5/tf_model.h5", "hub/variables/variables.index",
                 "empty/x", "texts", "model.tar.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("{}")
    for name, message in {
        "both": "neither albert_config.json",
        "mixed": "model.ckpt-best and Hugging Face's .*safetensors",
        "bare": "has checkpoints, but no albert_config.json",
        "nothing": "no directory", "empty": "neither albert_config.json",
        "wide": r"checkpoint \[8, 16\], model \[8, 32\]",
        "theirs.h5": r"none of model.safetensors, .*Save a tf_model.h5 again .* from_tf=True",
        "hub": "Instead of tensorflow/albert_en_base, pass albert/albert-base-v2",
        "texts": "is not a checkpoint",
        "model.tar.gz": r"is a packed model: unpack it \(tar -xzf FILE\) and pass its folder, or pass",
    }.items():
        with pytest.raises(CheckpointError, match=message):
            load("AlbertModel", tmp_path / name)
    weights = pretrained.open_path(str(mixed / "model.ckpt-best")).weights()
    assert weights.origin == str(mixed / "model.ckpt-best")


# --- Their tokenizer.json alone ---


def alone(folder, content):
    """Writes a tokenizer.json with no other files."""
    folder.mkdir()
    (folder / "tokenizer.json").write_text(content)
    (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False, "keep_accents": True}])
def test_a_tokenizer_json_alone_gives_the_same_ids(settings, golden_path, tmp_path):
    ours = albert.AlbertTokenizer.from_pretrained(str(golden_path("spm/30k-clean.model")), **settings)
    (tmp_path / "made").mkdir()
    tokenizer_files.write(ours.tokenizer, str(tmp_path / "made"), 512)
    content = (tmp_path / "made/tokenizer.json").read_text()
    found = albert.AlbertTokenizer.from_pretrained(alone(tmp_path / "alone", content))
    cases = json.loads(golden_path("tokenization.json").read_text())["cases"]
    texts = [case["text"] for case in cases if isinstance(case.get("text"), str)]
    texts.append("In 1999, 2,000 people paid $3,500.99: \"Café\" (or so).")
    assert len(texts) > 100
    pairs = zip(*(t.tokenizer.encode_batch(texts) for t in (ours, found)), strict=True)
    # If two segmentations are almost equally likely, rounding decides.
    assert sum(a != b for a, b in pairs) <= 1
    assert found.tokenizer.settings == ours.tokenizer.settings


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


@pytest.mark.parametrize("change, message", [
    ({"model": {"type": "BPE"}}, "only Unigram"),
    ({"normalizer": {"type": "NFC"}}, "the normalizer NFC is not supported"),
    ({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}}, "replaces 'a'"),
    ({"model": {"type": "Unigram", "vocab": [["a"]], "unk_id": 0}}, "is damaged"),
    ({"pre_tokenizer": None}, "its pre_tokenizer .* is not supported"),
    ({"pre_tokenizer": METASPACE | {"prepend_scheme": "first"}}, "its pre_tokenizer .*first"),
    ({"pre_tokenizer": METASPACE | {"replacement": "_"}}, "its pre_tokenizer .*_"),
    ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, METASPACE]}},
     "its pre_tokenizer .*Digits"),
    ({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0]], "byte_fallback": True},
      "pre_tokenizer": METASPACE}, "byte_fallback"),
])
def test_a_tokenizer_json_that_cuts_in_another_way_is_refused(change, message, tmp_path):
    values = {"added_tokens": [], "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0]]}}
    folder = alone(tmp_path / "alone", json.dumps(values | change))
    with pytest.raises(DataError, match=message):
        albert.AlbertTokenizer.from_pretrained(folder)


def test_such_a_tokenizer_json_hinders_nobody_who_does_without_it(tmp_path):
    model = random_model("AlbertModel")
    model.save_pretrained(str(tmp_path / "model"))
    (tmp_path / "model/tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    assert load("AlbertModel", tmp_path / "model").config == model.config
    pieces = [*jobs.SPECIALS, *(f"w{i}" for i in range(model.config.vocab_size - 5))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    session = albert.open_session(tmp_path / "model", vocab_file=tmp_path / "vocab.txt")
    assert session.tokenizer.encode_text("w1 w2") == [6, 7]
    with pytest.raises(DataError, match="only Unigram"):
        albert.open_session(str(tmp_path / "model"))


def test_a_malformed_tokenizer_json_gives_a_tokenizer_or_one_line(golden_path, tmp_path):
    golden = FullTokenizer(None, spm_model_file=str(golden_path("spm/30k-clean.model")))
    tokenizer_files.write(golden, str(tmp_path))
    for path in tmp_path.iterdir():
        if path.name != "tokenizer.json":
            path.unlink()
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    values["model"]["vocab"] = values["model"]["vocab"][:40]
    values["normalizer"]["normalizers"] = [
        step for step in values["normalizer"]["normalizers"] if step["type"] != "Precompiled"
    ]
    content, opened = json.dumps(values).encode(), 0
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert tokenizer_files.find(str(tmp_path)).open().vocab_size == 40
    odd = [(f"{key} is {one!r}", json.dumps(values | {key: one}).encode())
           for key in values for one in damage.ODD_VALUES]
    for what, changed in [*odd, *damage.json_mutations(content, random.Random(0))]:
        (tmp_path / "tokenizer.json").write_bytes(changed)
        try:
            tokenizer_files.find(str(tmp_path)).open()
            opened += 1
        except UserError as error:
            assert "tokenizer.json" in str(error) and "\n" not in str(error), what
    assert opened > 50


# --- Their config.json ---

BASE = {"vocab_size": 30000, "embedding_size": 128, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12}


@pytest.mark.parametrize("change, expected", [
    ({}, "gelu_erf"), ({"hidden_act": "gelu_new"}, "gelu"), ({"hidden_act": "gelu_python"}, "gelu_erf"),
    # albert-base-v1 as published: "gelu", trained with tanh.
    (BASE, "gelu"),
    # The same fine-tuned over there, with erf.
    (BASE | {"architectures": ["AlbertForSequenceClassification"]}, "gelu_erf"),
])
def test_what_gelu_means_is_decided_and_told(change, expected, caplog):
    values = SIZES | {"hidden_act": "gelu"} | change
    assert huggingface.config_from_theirs(values, "config.json").hidden_act == expected
    is_doubtful = values["hidden_act"] == "gelu"
    assert is_doubtful == ("change it to gelu_python (erf) or gelu_new (tanh)" in caplog.text)


def test_flags_read_their_configuration_as_theirs(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "albert", **SIZES, "hidden_act": "gelu"}))
    values = flags.parse(run_classifier.define_flags, [
        "", f"--albert_config_file={config}", f"--vocab_file={jobs.write_vocabulary(tmp_path)}"])
    with pytest.raises(ConfigError, match=r"config\.json is a configuration of Hugging Face: open"):
        AlbertConfig.from_json_file(str(config))
    named = pretrained.open_named(str(tmp_path), "model.ckpt-best", str(config))
    for found in (open_encoder(values, None), named):
        assert found.config.hidden_act == "gelu_erf"


def test_what_their_configuration_leaves_out_has_their_defaults(caplog):
    config = huggingface.config_from_theirs({}, "config.json")
    found = config.embedding_size, config.hidden_size, config.num_attention_heads
    assert found == (128, 4096, 64) and config.hidden_act == "gelu"
    assert (config.num_hidden_layers, config.intermediate_size) == (12, 16384)
    assert "num_attention_heads" in caplog.text


@pytest.mark.parametrize("change, message", [
    ({"model_type": "roberta"}, "model_type is 'roberta'"), ({"hidden_act": "silu"}, "hidden_act 'silu'"),
    ({"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
])
def test_a_config_that_we_do_not_compute_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        huggingface.config_from_theirs(SIZES | change, "config.json")


# --- export_checkpoints ---


@pytest.mark.parametrize("case", ["tf1_ckpt_tiny_groups", "heads/classifier_3way", "heads/squad_v2"])
def test_the_originals_checkpoint_comes_out_as_it_went_in_but_for_slots(case, golden_path, tmp_path):
    folder, out = golden_path(case), tmp_path / "clean/model.ckpt-best"
    name = "model.ckpt" if case.startswith("heads") else "model.ckpt-best"
    arguments = f"--albert_directory={folder}", f"--checkpoint_name={name}", f"--export_path={out}"
    assert run_here(export_checkpoints, *arguments) == 0
    before = tf.train.load_checkpoint(str(folder / name))
    after = tf.train.load_checkpoint(str(out))
    kept = {n for n in before.get_variable_to_shape_map() if "/adam_" not in n}
    assert set(after.get_variable_to_shape_map()) == kept | {"global_step"}
    for variable in kept - {"global_step"}:
        np.testing.assert_array_equal(after.get_tensor(variable), before.get_tensor(variable))
    assert after.get_tensor("global_step") == 0


def test_slots_and_strangers_are_left_out_and_nothing_is_overwritten(tmp_path, capsys):
    write_config(tmp_path)
    made = checkpoints.open_weights(write_weights(tmp_path / "made", SIZES))
    weights = {name: made.read(name) for name in made.shapes}
    extra = {
        "bert/pooler/dense/bias/lamb_m": np.zeros(16, "f4"), "global_step": np.int64(9),
        "bert/pooler/dense/bias/adam_v": np.zeros(16, "f4"), "somebody/else": np.ones(2, "f4"),
    }
    checkpoints.write(str(tmp_path / "model.ckpt-9"), weights | extra)
    (tmp_path / "mine.json").write_text('{"mine": 1}')

    def export(name: str) -> int:
        arguments = f"--albert_directory={tmp_path}", "--checkpoint_name=model.ckpt-9"
        return run_here(export_checkpoints, *arguments, f"--export_path={tmp_path / name}")

    assert export("clean") == 0
    found = checkpoints.open_weights(str(tmp_path / "clean")).shapes
    assert set(found) == set(weights) | {"global_step"}
    assert "somebody/else" in capsys.readouterr().err
    another = {"bert/encoder/transformer/group_1/inner_group_0/LayerNorm/beta": np.ones(16, "f4")}
    checkpoints.write(str(tmp_path / "model.ckpt-9"), weights | another)
    assert export("more") == 2
    assert "variables that the config does not imply: " in assert_one_clear_line(capsys.readouterr().err)
    for name, message in {
        "clean": "exists", "mine": "mine.json is a file of another kind",
        "other": "checkpoint [16, 16], model [32, 32]",
    }.items():
        if name == "other":
            write_config(tmp_path, hidden_size=32)
        assert export(name) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert name == "clean" or not (tmp_path / f"{name}.index").exists()
    assert (tmp_path / "mine.json").read_text() == '{"mine": 1}'
