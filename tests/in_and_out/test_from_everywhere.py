"""Models as people have them: packed, or from Hugging Face's TensorFlow classes."""

import io
import json
import shutil
import tarfile

import h5py
import numpy as np
import pytest
from helpers import assert_one_clear_line, run
from test_convert_hf import HEADS, random_model, save

import albert
from albert.errors import CheckpointError, ConfigError, DataError
from albert.formats import archives, pretrained, tokenizer_files

THEIRS = {
    "prediction_logits": "prediction_logits", "sop_logits": "sop_logits", "logits": "logits",
    "sequence_output": "last_hidden_state", "pooled_output": "pooler_output",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def packed(folder, target, inside="albert_tiny"):
    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, arcname=inside)
    return str(target)


def vectors(path):
    model = albert.AlbertModel.from_pretrained(str(path))
    return np.asarray(model({"input_ids": np.array([[2, 7, 9, 3]])})["pooled_output"])


# --- Packed, or somewhere near ---


def test_an_archive_as_released_its_parent_folder_and_a_file_of_it_are_opened(
    golden_path, tmp_path, cache
):
    source = golden_path("tf1_ckpt_tiny")
    expected = vectors(source)
    archive = packed(source, tmp_path / "albert_tiny.tar.gz")
    np.testing.assert_array_equal(vectors(archive), expected)
    [unpacked] = cache.iterdir()
    first = (unpacked / "albert_tiny/albert_config.json").stat().st_mtime_ns
    np.testing.assert_array_equal(vectors(archive), expected)
    assert (unpacked / "albert_tiny/albert_config.json").stat().st_mtime_ns == first
    shutil.copytree(source, tmp_path / "parent/albert_tiny")
    np.testing.assert_array_equal(vectors(tmp_path / "parent"), expected)
    np.testing.assert_array_equal(vectors(source / "model.ckpt-best.index"), expected)


def test_a_command_starts_from_an_archive(tmp_path):
    model = random_model("AlbertForSequenceClassification")
    model.save_pretrained(str(tmp_path / "model"))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 123))]
    words += [f"w{i}" for i in range(model.config.vocab_size - len(words))]
    (tmp_path / "model/vocab.txt").write_text("\n".join(words))
    archive = packed(tmp_path / "model", tmp_path / "model.tar.gz")
    (tmp_path / "texts").write_text("a b c\nd e\n")
    out = tmp_path / "vectors.jsonl"
    flags = [f"--input_file={tmp_path}/texts", f"--output_file={out}"]
    done = run("albert.extract_features", f"--model={archive}", *flags)
    assert done.returncode == 0, done.stderr
    assert len(out.read_text().splitlines()) == 2
    done = run("albert.extract_features", f"--model={tmp_path}/texts", *flags[:1],
               f"--output_file={tmp_path}/other.jsonl")
    assert "neither a checkpoint nor a packed archive" in assert_one_clear_line(done.stderr)


def test_two_models_below_a_folder_are_not_guessed_between(golden_path, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(golden_path("tf1_ckpt_tiny"), tmp_path / "both" / name)
    with pytest.raises(CheckpointError, match="neither albert_config.json"):
        albert.from_pretrained(str(tmp_path / "both"))


def test_two_models_in_one_directory_are_not_guessed_between(golden_path, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(golden_path("tf1_ckpt_tiny"), folder)
    save(random_model("AlbertModel"), tmp_path / "ours")
    for path in (tmp_path / "ours").glob("model.ckpt-best*"):
        shutil.copy(path, folder)
    shutil.copytree(golden_path("hf_tensorflow/safetensors"), folder, dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match="model.ckpt-best and Hugging Face's .*safetensors"):
        albert.from_pretrained(str(folder))
    weights = pretrained.open_path(str(folder / "model.ckpt-best")).weights()
    assert weights.origin == str(folder / "model.ckpt-best")


def test_checkpoints_without_a_configuration_say_what_is_missing(tmp_path):
    save(random_model("AlbertModel"), tmp_path / "model")
    (tmp_path / "model/albert_config.json").unlink()
    with pytest.raises(CheckpointError, match="has checkpoints, but no albert_config.json"):
        albert.from_pretrained(str(tmp_path / "model"))


@pytest.mark.parametrize("what", ["cut", "text", "outside", "link", "large"])
def test_an_archive_that_is_damaged_or_leads_outside_is_refused(
    what, golden_path, tmp_path, cache, monkeypatch
):
    path = tmp_path / "model.tar.gz"
    if what == "large":
        packed(golden_path("tf1_ckpt_tiny"), path)
        monkeypatch.setattr(archives, "MOST_BYTES", 1000)
    elif what in ("cut", "text"):
        packed(golden_path("tf1_ckpt_tiny"), path)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if what == "cut" else b"no archive at all")
    else:
        member = tarfile.TarInfo("../outside.txt" if what == "outside" else "model/link")
        if what == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc"
        with tarfile.open(path, "w:gz") as archive:
            archive.addfile(member, io.BytesIO(b""))
    with pytest.raises(CheckpointError, match="cannot unpack .*model.tar.gz"):
        albert.from_pretrained(str(path))
    assert not any(cache.iterdir()) and not (tmp_path / "outside.txt").exists()


# --- Hugging Face's TensorFlow classes ---


@pytest.mark.parametrize("name, kind", [
    ("h5", "AlbertForPreTraining"), ("h5_encoder", "AlbertModel"),
    ("safetensors", "AlbertForSequenceClassification"),
])
def test_files_of_their_tensorflow_classes_give_their_numbers(name, kind, golden_path):
    folder = golden_path(f"hf_tensorflow/{name}")
    model = albert.from_pretrained(str(folder))
    assert type(model).__name__ == kind
    golden = np.load(folder / "io.npz")
    outputs = model({key[3:]: golden[key] for key in golden.files if key.startswith("in/")})
    for ours, value in outputs.items():
        expected = golden[f"out/{THEIRS[ours]}"]
        np.testing.assert_allclose(value, expected, atol=1e-5, err_msg=ours)


def copied(folder, target):
    shutil.copytree(folder, target)
    return target


@pytest.mark.parametrize("spoil", ["cut", "text", "layer", "external", "no_names"])
def test_a_damaged_h5_file_is_refused(spoil, golden_path, tmp_path):
    folder = copied(golden_path("hf_tensorflow/h5"), tmp_path / "model")
    path = folder / "tf_model.h5"
    if spoil == "cut":
        path.write_bytes(path.read_bytes()[:3000])
    elif spoil == "text":
        path.write_text("no file of HDF5")
    else:
        with h5py.File(path, "r+") as stream:
            layer = stream["albert"]
            names = list(layer.attrs["weight_names"])
            if spoil == "layer":
                del layer[names[0]]
            elif spoil == "external":
                del layer[names[0]]
                layer[names[0]] = h5py.ExternalLink("/etc/passwd", "/")
            else:
                del layer.attrs["weight_names"]
    with pytest.raises(CheckpointError, match=r"tf_model\.h5"):
        albert.from_pretrained(str(folder))


# --- Their tokenizer.json alone ---


def test_a_tokenizer_json_alone_gives_the_same_ids(golden_path, tmp_path, cache):
    ours = albert.AlbertTokenizer.from_pretrained(str(golden_path("spm/30k-clean.model")))
    made = tmp_path / "made"
    made.mkdir()
    tokenizer_files.write(ours.tokenizer, str(made), 512)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(made / "tokenizer.json", alone)
    (alone / "tokenizer_config.json").write_text("{}")
    found = albert.AlbertTokenizer.from_pretrained(str(alone))
    cases = json.loads(golden_path("tokenization.json").read_text())["cases"]
    texts = [case["text"] for case in cases if isinstance(case.get("text"), str)]
    texts.append("In 1999, 2,000 people paid $3,500.99: \"Café\" (or so).")
    assert len(texts) > 100
    pairs = zip(*(t.tokenizer.encode_batch(texts) for t in (ours, found)), strict=True)
    # Where two ways to cut are almost equally likely, a rounding decides.
    assert sum(a != b for a, b in pairs) <= 1
    assert found.tokenizer.settings == ours.tokenizer.settings


@pytest.mark.parametrize("change, message", [
    ({"model": {"type": "BPE"}}, "only Unigram"),
    ({"normalizer": {"type": "NFC"}}, "the normalizer NFC is not known"),
    ({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}}, "replaces 'a'"),
    ({"model": {"type": "Unigram", "vocab": [["a"]], "unk_id": 0}}, "is damaged"),
])
def test_a_tokenizer_json_that_cuts_in_another_way_is_refused(change, message, tmp_path):
    values = {"added_tokens": [], "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0]]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values | change))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(DataError, match=message):
        albert.AlbertTokenizer.from_pretrained(str(tmp_path))


def test_such_a_tokenizer_json_hinders_nobody_who_does_without_it(golden_path, tmp_path, cache):
    shutil.copytree(golden_path("hf_tensorflow/h5"), tmp_path / "model")
    for name in ("spiece.model", "tokenizer.json"):
        (tmp_path / "model" / name).unlink(missing_ok=True)
    (tmp_path / "model/tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    model = albert.from_pretrained(str(tmp_path / "model"))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [f"w{i}" for i in range(model.config.vocab_size - len(pieces))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    session = albert.open_session(
        str(tmp_path / "model"), vocab_file=str(tmp_path / "vocab.txt"), max_seq_length=8
    )
    assert session.embed("w1 w2").shape == (model.config.hidden_size,)
    with pytest.raises(DataError, match="only Unigram"):
        albert.open_session(str(tmp_path / "model"))


# --- Whatever class it is ---


@pytest.mark.parametrize("kind", HEADS)
def test_a_directory_gives_the_class_that_it_was_saved_as(kind, tmp_path):
    model = random_model(kind)
    model.save_pretrained(str(tmp_path / "model"))
    again = albert.from_pretrained(str(tmp_path / "model"))
    assert type(again) is type(model)
    source = pretrained.open_path(str(tmp_path / "model"))
    object.__setattr__(source, "metadata", type(source.metadata)())
    guessed = pretrained.class_of(source)
    alike = {"AlbertForTokenClassification", "AlbertForMultipleChoice"}
    assert guessed == ("AlbertForSequenceClassification" if kind in alike else kind)


def test_the_interface_shows_itself():
    assert {"AlbertModel", "AlbertTokenizer", "from_pretrained"} <= set(dir(albert))


# --- Modules of tf-models-official ---


def test_a_module_of_tf_models_gives_its_numbers_and_reads_its_settings(golden_path, tmp_path):
    folder = golden_path("tf_models")
    model = albert.AlbertForMaskedLM.from_pretrained(str(folder))
    assert (model.config.num_hidden_layers, model.config.num_attention_heads) == (3, 2)
    golden = np.load(folder / "io.npz")
    inputs = {key[3:]: golden[key] for key in golden.files if key.startswith("in/")}
    logits = model(inputs)["prediction_logits"]
    np.testing.assert_allclose(logits, golden["out/mlm_logits"], atol=1e-5)
    encoder = albert.from_pretrained(str(folder))
    assert type(encoder).__name__ == "AlbertModel"
    inputs.pop("masked_lm_positions")
    for name in ("pooled_output", "sequence_output"):
        np.testing.assert_allclose(encoder(inputs)[name], golden[f"out/{name}"], atol=1e-5)
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(folder))
    assert tokenizer.encode("W1 w2") == [2, 6, 7, 3]
    # Before TensorFlow 2.5 the metadata lay in the graph's own file.
    older = copied(folder, tmp_path / "older")
    (older / "keras_metadata.pb").rename(older / "saved_model.pb")
    assert albert.AlbertModel.from_pretrained(str(older)).config.to_dict() == encoder.config.to_dict()


@pytest.mark.parametrize("spoil, message", [
    ("metadata", "does not say its architecture"), ("cut", "settings are damaged"),
    ("weights", "variables"),
])
def test_a_damaged_module_of_tf_models_is_refused(spoil, message, golden_path, tmp_path):
    folder = copied(golden_path("tf_models"), tmp_path / "module")
    path = folder / "keras_metadata.pb"
    content = path.read_bytes()
    if spoil == "metadata":
        path.unlink()
    elif spoil == "cut":
        path.write_bytes(content[: content.index(b'AlbertEncoder", "config"') + 60])
    else:
        data = folder / "variables/variables.data-00000-of-00001"
        data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises((CheckpointError, ConfigError), match=message):
        albert.AlbertModel.from_pretrained(str(folder))
