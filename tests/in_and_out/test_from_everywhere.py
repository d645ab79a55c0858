"""Models in the forms that people have: packed, in folders, or with a tokenizer.json alone."""

import json
import random
import shutil

import damage
import jobs
import numpy as np
import pytest
from helpers import assert_one_clear_line, run_here
from hf_models import load, random_model, save

import albert
from albert import extract_features
from albert.errors import CheckpointError, DataError, UserError
from albert.formats import pretrained, tokenizer_files
from albert.tokenization import FullTokenizer

@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- Packed, or in a nearby folder ---


def test_the_folder_around_a_model_and_its_files_mean_that_model(golden_path, tmp_path, capsys):
    source = golden_path("tf1_ckpt_tiny")
    expected = pretrained.open_any_weights(str(source))
    shutil.copytree(source, tmp_path / "parent/albert_tiny")
    for path in (tmp_path / "parent", source / "model.ckpt-best.index"):
        found = pretrained.open_path(str(path))
        assert found.config.hidden_size == 48
        for name in expected.shapes:
            np.testing.assert_array_equal(found.weights().read(name), expected.read(name))
    (tmp_path / "texts").write_text("w1 w2 w3\nw4 w5\n")
    capsys.readouterr()
    (tmp_path / "model.tar.gz").touch()
    for path, message in (
        ("texts", "is not a checkpoint"),
        ("model.tar.gz", "is a packed model: unpack it (tar -xzf FILE) and give its folder, or give"),
        ("https://there.org/a/model.tar.gz", "model.tar.gz is a packed model: unpack it (tar -xzf"),
    ):
        path = path if "://" in path else f"{tmp_path}/{path}"
        assert run_here(extract_features, f"--model={path}", f"--input_file={tmp_path}/texts",
                        f"--output_file={tmp_path}/vectors.jsonl") == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)


def test_what_could_be_several_models_or_lacks_a_part_is_not_guessed(golden_path, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(golden_path("tf1_ckpt_tiny"), tmp_path / "both" / name)
    folder = save(random_model("AlbertModel"), tmp_path / "mixed")
    random_model("AlbertModel").save_pretrained(str(tmp_path / "theirs"))
    shutil.copytree(tmp_path / "theirs", folder, dirs_exist_ok=True)
    save(random_model("AlbertModel"), tmp_path / "bare")
    (tmp_path / "bare/albert_config.json").unlink()
    for name, message in {
        "both": "neither albert_config.json",
        "mixed": "model.ckpt-best and Hugging Face's .*safetensors",
        "bare": "has checkpoints, but no albert_config.json",
    }.items():
        with pytest.raises(CheckpointError, match=message):
            albert.from_pretrained(str(tmp_path / name))
    weights = pretrained.open_path(str(folder / "model.ckpt-best")).weights()
    assert weights.origin == str(folder / "model.ckpt-best")


# --- What is no longer read ---


@pytest.mark.parametrize("name, message", [
    ("config.json tf_model.h5", r"none of model.safetensors, .*Save a tf_model.h5 again .* from_tf=True"),
    ("variables/variables.index", "Instead of tensorflow/albert_en_base, give albert/albert-base-v2"),
])
def test_a_form_of_others_is_answered_with_what_to_type(name, message, tmp_path):
    for path in name.split():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("{}")
    with pytest.raises(CheckpointError, match=message):
        albert.from_pretrained(str(tmp_path))


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
