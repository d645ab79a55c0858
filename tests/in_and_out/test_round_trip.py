"""Every class through every format: weights, names and settings survive the round trip."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
from helpers import run_here, train_pieces
from hf_models import HEADS, assert_same_weights, convert, load, random_model, save

import albert
from albert import export_checkpoints, run_classifier
from albert.cli import encoder, flags
from albert.errors import CheckpointError
from albert.formats import checkpoints, pretrained
from albert.formats.model_classes import is_labelled
from albert.formats.metadata import MULTI_LABEL
from albert.tokenization import FullTokenizer, TextSettings

OPTIONS = HEADS | {
    "AlbertForBeamQuestionAnswering": {"start_n_top": 3, "end_n_top": 2, "classifier_dropout": 0.2},
    "AlbertForSequenceClassification": {"num_labels": 3, "classifier_dropout": 0.3},
}
CASED, UNCASED = TextSettings(do_lower_case=False, keep_accents=True), TextSettings()
SENTENCE = "Café  the Quick brown क्‍ष"
NAMES = [f"name {i}, of some" for i in range(5)]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> str:
    lines = ["Café the Quick brown fox jumps over the lazy dog", "क्‍ष pack my box"] * 9
    prefix = tmp_path_factory.mktemp("pieces") / "spm"
    return train_pieces(prefix, lines, 60, normalization_rule_name="identity")


def written(kind, folder, pieces, text=CASED, is_named=True, **changes):
    """Saves a model with all its metadata; returns it and its tokenizer."""
    cut = FullTokenizer(None, text.do_lower_case, pieces, keep_accents=text.keep_accents)
    tokenizer = albert.AlbertTokenizer(cut, max_length=11)
    model = random_model(
        kind, options=OPTIONS[kind], vocab_size=tokenizer.vocab_size, num_hidden_layers=2, **changes
    )
    if is_named and is_labelled(kind):
        model.label_names = NAMES[: model.num_labels]
    if is_named and kind == "AlbertForSequenceClassification":
        model.problem_type = MULTI_LABEL
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return model, tokenizer


def as_released(start, folder):
    archive = start.with_name("archive")
    if not archive.exists():
        assert convert(f"--hf_directory={start}", f"--output_dir={archive}") == 0
    return archive


def there_and_back(start, folder):
    archive = as_released(start, folder)
    assert convert(f"--albert_directory={archive}", f"--output_dir={folder}") == 0
    return folder


# From the directory that `save_pretrained` wrote to the same model elsewhere.
WAYS = {
    "as it is": lambda start, folder: start,
    "a released archive": as_released,
    "a checkpoint's prefix": lambda *way: as_released(*way) / "model.ckpt-best",
    "there and back": there_and_back,
}


@pytest.mark.parametrize("kind, is_named", [
    *((kind, True) for kind in OPTIONS),
    ("AlbertForSequenceClassification", False), ("AlbertForTokenClassification", False),
])
def test_what_is_known_of_a_model_comes_back_with_its_weights(kind, is_named, pieces, tmp_path, monkeypatch):
    """Models without names of labels are lower-cased."""
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))
    text = CASED if is_named else UNCASED
    model, tokenizer = written(kind, tmp_path / "start", pieces, text, is_named)
    for number, (name, way) in enumerate(WAYS.items()):
        path = str(way(tmp_path / "start", tmp_path / str(number)))
        again = albert.from_pretrained(path)
        assert type(again) is type(model) and again.config == model.config, name
        # Some of their classes have no pooler: it comes back newly initialized.
        is_new = name == "there and back" and kind in HEADS and not pretrained.reads_pooler(type(model))
        assert_same_weights(again, model, but=["bert/pooler/"] * is_new)
        config = again.get_config()
        assert {key: config[key] for key in OPTIONS[kind]} == OPTIONS[kind], name
        if is_labelled(kind):
            names = tuple(NAMES[: again.num_labels]) if is_named else None
            assert again.label_names == model.label_names == names
            place = pathlib.Path(path)
            if place.is_dir():
                is_told = '["name 0, of some", "name 1, of some"' in (place / "README.md").read_text()
                assert is_told == is_named
        if kind == "AlbertForSequenceClassification":
            assert again.problem_type == (MULTI_LABEL if is_named else None), name
        source = pretrained.open_path(path)
        assert source.tokenizer().settings == text, name
        assert source.tokenizer().encode_text(SENTENCE) == tokenizer.tokenizer.encode_text(SENTENCE)
        if name == "as it is":
            assert source.vocabulary.max_length == 11, name


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=() if options else pytest.mark.slow) for kind, options in OPTIONS.items()
])
def test_keras_formats_bring_weights_and_options_back(kind, tmp_path):
    model = random_model(kind, options=OPTIONS[kind], num_hidden_layers=2)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    other = random_model(kind, seed=1, options=OPTIONS[kind], num_hidden_layers=2)
    other.load_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    for again in (other, loaded):
        assert_same_weights(again, model)


def test_ids_of_special_pieces_are_those_of_the_vocabulary_everywhere(tmp_path):
    words = ["[PAD]", "[CLS]", "[UNK]", "w1", "[MASK]", "[SEP]", "w2", "w3"]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, *(f"x{i}" for i in range(52))]))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), False, None)
    pretrained.save(random_model("AlbertForMaskedLM"), str(tmp_path / "start"), tokenizer)
    theirs = there_and_back(tmp_path / "start", tmp_path / "way")
    values = json.loads((theirs / "config.json").read_text())
    assert [values[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [1, 5, 0]
    found = albert.AlbertTokenizer.from_pretrained(str(theirs))
    assert not found.tokenizer.is_spm and not found.tokenizer.settings.do_lower_case
    np.testing.assert_array_equal(
        found(["w1 w2", "W1"], padding=True)["input_ids"], [[1, 3, 6, 5], [1, 2, 5, 0]]
    )


def test_a_model_knows_how_texts_are_prepared_where_its_vocabulary_comes_later(pieces, tmp_path):
    written("AlbertForTokenClassification", tmp_path / "start", pieces)
    load("AlbertForTokenClassification", tmp_path / "start").save_pretrained(str(tmp_path / "bare"))
    shutil.copy(tmp_path / "start/spiece.model", tmp_path / "bare")
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(tmp_path / "bare"))
    assert tokenizer.tokenizer.settings == CASED
    # So does a model fine-tuned from it.
    arguments = ["x", f"--init_checkpoint={tmp_path}/bare", "--max_seq_length=8"]
    for more, expected in (
        ([], CASED), ([f"--spm_model_file={pieces}"], CASED),
        (["--do_lower_case"], TextSettings(do_lower_case=True, keep_accents=True)),
    ):
        values = flags.parse(run_classifier.define_flags, [*arguments, *more])
        assert encoder.open_encoder(values, 8).tokenizer.settings == expected


def test_a_pretrained_model_that_becomes_another_forgets_what_it_was(tmp_path):
    random_model("AlbertForPreTraining").save_pretrained(str(tmp_path / "start"))
    source = pretrained.open_path(str(tmp_path / "start"))
    assert source.metadata.architecture == "AlbertForPreTraining"
    assert run_here(export_checkpoints, f"--albert_directory={tmp_path}/start",
                    f"--export_path={tmp_path}/model.ckpt") == 0
    exported = pretrained.open_any_weights(str(tmp_path / "model.ckpt"))
    assert exported.shapes.keys() >= source.weights().shapes.keys()
    model = load("AlbertForTokenClassification", tmp_path / "start", num_labels=2)
    model.label_names = ("O", "B-X")
    model.save_pretrained(str(tmp_path / "tagger"))
    metadata = pretrained.open_path(str(tmp_path / "tagger")).metadata
    assert metadata.architecture == "AlbertForTokenClassification"
    assert metadata.label_names == ("O", "B-X") and metadata.task is None
    with pytest.raises(ValueError, match="3 names of 2 labels"):
        model.label_names = ("O", "B-X", "I-X")


ARCHITECTURES = [
    *({"parameter_sharing": sharing, "num_hidden_groups": 2}
      for sharing in ("all", "attention", "ffn", "none")),
    {"num_hidden_layers": 18, "num_hidden_groups": 14},  # they round these groups differently
    {"hidden_act": "gelu_erf", "inner_group_num": 2, "num_hidden_groups": 2},
    {"hidden_act": "relu", "embedding_size": 16},
]


def test_every_architecture_comes_back_as_it_was_or_as_another_library_changed_it(tmp_path):
    for number, changes in enumerate(ARCHITECTURES):
        model, folder = random_model("AlbertModel", **changes), tmp_path / str(number)
        model.save_pretrained(str(folder))
        again = load("AlbertModel", folder)
        assert again.config == model.config
        assert_same_weights(again, model)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"hidden_dropout_prob": 0.3}))
    assert pretrained.open_path(str(folder)).config.hidden_dropout_prob == 0.3


# --- Weights that do not fit the model ---


def test_a_head_that_is_not_there_is_new_and_told(golden_path, caplog):
    path = golden_path("tf1_ckpt_tiny")
    with pytest.raises(CheckpointError, match="pass num_labels"):
        load("AlbertForSequenceClassification", path)
    model = load("AlbertForSequenceClassification", path, num_labels=4)
    assert model.num_labels == 4
    assert "new, to be trained: output_weights; output_bias" in caplog.text
    # Without any matching weight, a warm start is refused.
    weights = pretrained.open_path(str(path)).weights()
    with pytest.raises(CheckpointError, match="has none of the model's weights"):
        checkpoints.warm_start({"cls/other": (2,)}, weights)


def test_no_model_is_saved_over_another_ones_weights(tmp_path):
    folder = save(random_model("AlbertModel"), tmp_path / "model")
    for path in folder.glob("model.ckpt-best.*"):
        path.rename(str(path).replace("best", "7"))
    with pytest.raises(CheckpointError, match="save to another directory"):
        random_model("AlbertModel", hidden_size=32).save_pretrained(str(folder))


# --- Other labels ---


@pytest.fixture(scope="module")
def two_labels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    random_model("AlbertForSequenceClassification", options={"num_labels": 2}).save_pretrained(folder)
    return folder


def test_labels_are_named_by_either_of_hugging_faces_arguments(two_labels):
    for how in ({"label_names": ["no", "yes"]}, {"id2label": {1: "yes", 0: "no"}},
                {"id2label": {"0": "no", "1": "yes"}, "num_labels": 2}):
        assert albert.from_pretrained(two_labels, **how).label_names == ("no", "yes")
    for bad in ({"id2label": {0: "a", 2: "b"}}, {"label_names": ["a", "b"], "num_labels": 3}):
        with pytest.raises((ValueError, CheckpointError)):
            albert.from_pretrained(two_labels, **bad)


def test_another_number_of_labels_is_a_new_head_on_request(two_labels):
    with pytest.raises(CheckpointError, match="ignore_mismatched_sizes=True"):
        albert.from_pretrained(two_labels, num_labels=3)
    model = albert.from_pretrained(two_labels, label_names=["a", "b", "c"], ignore_mismatched_sizes=True)
    assert model(np.array([[2, 7, 4, 9, 3]])).logits.shape == (1, 3) and model.label_names == ("a", "b", "c")
    former = albert.from_pretrained(two_labels)
    for ours, theirs in zip(model.bert.weights, former.bert.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (ours, theirs)))
