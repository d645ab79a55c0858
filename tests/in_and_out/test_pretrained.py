"""`from_pretrained` and `save_pretrained`: any layout in, Hugging Face's out, the same numbers."""

import json
import shutil

import keras
import numpy as np
import pytest
from helpers import run_here
from test_convert_hf import HEADS, batch, random_model, save

import albert
from albert import export_checkpoints, modeling
from albert.errors import CheckpointError
from albert.formats import checkpoints, pretrained


def outputs(model, kind):
    inputs = batch(HEADS[kind].get("num_choices"))
    return {k: np.asarray(v) for k, v in model(inputs).items() if k != "encoder_outputs"}


@pytest.mark.parametrize("kind", [k for k in HEADS if k != "AlbertForPreTraining"])
def test_what_was_saved_is_loaded(kind, tmp_path):
    model = random_model(kind)
    model.save_pretrained(str(tmp_path / "model"))
    sizes = {k: v for k, v in HEADS[kind].items() if k == "num_choices"}
    again = getattr(albert, kind).from_pretrained(str(tmp_path / "model"), **sizes)
    expected = outputs(model, kind)
    for name, value in outputs(again, kind).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.parametrize("layout", ["tf1_ckpt_tiny", "hf/tiny", "hub_tf1/module", "prefix"])
def test_every_layout_loads_without_being_told_which(layout, golden_path, tmp_path):
    golden = golden_path("tf1_ckpt_tiny")
    io = np.load(golden / "io.npz")
    path = golden / "model.ckpt-best" if layout == "prefix" else golden_path(layout)
    model = albert.AlbertModel.from_pretrained(str(path))
    inputs = {k: io[f"in/{k}"] for k in ("input_ids", "input_mask", "segment_ids")}
    output = model(inputs)["sequence_output"]
    np.testing.assert_allclose(output, io["out/sequence_output"], atol=1e-5)
    theirs = {
        "input_ids": inputs["input_ids"], "attention_mask": inputs["input_mask"],
        "token_type_ids": inputs["segment_ids"],
    }
    np.testing.assert_array_equal(model(theirs)["sequence_output"], output)


def test_a_head_that_is_not_there_is_new_and_told(golden_path, caplog):
    path = str(golden_path("tf1_ckpt_tiny"))
    with pytest.raises(CheckpointError, match="give num_labels"):
        albert.AlbertForSequenceClassification.from_pretrained(path)
    model = albert.AlbertForSequenceClassification.from_pretrained(path, num_labels=4)
    assert model.num_labels == 4
    assert "new, to be trained: output_weights; output_bias" in caplog.text


def test_a_directory_without_a_model_or_with_another_one_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such directory"):
        albert.AlbertModel.from_pretrained(str(tmp_path / "nothing"))
    with pytest.raises(CheckpointError, match="neither albert_config.json"):
        albert.AlbertModel.from_pretrained(str(tmp_path))
    folder = save(random_model("AlbertModel"), tmp_path / "model")
    other = save(random_model("AlbertModel", hidden_size=32), tmp_path / "other")
    shutil.copy(other / "albert_config.json", folder)
    with pytest.raises(CheckpointError, match=r"checkpoint \[8, 16\], model \[8, 32\]"):
        albert.AlbertModel.from_pretrained(str(folder))


@pytest.mark.parametrize("kind", ["AlbertModel", "AlbertForSequenceClassification"])
def test_a_frozen_model_or_one_of_another_name_is_saved_whole_and_loaded_again(kind, tmp_path):
    path = str(tmp_path / "model")
    model = random_model(kind)
    released = set(modeling.named_weights(model))
    model.trainable = False
    model.save_pretrained(path)
    assert set(pretrained.open_path(path).weights().shapes) == released
    again = getattr(albert, kind).from_pretrained(path, name="other")
    assert set(modeling.named_weights(again)) == released
    again.save_pretrained(str(tmp_path / "again"))
    expected = outputs(model, kind)
    for one in (again, getattr(albert, kind).from_pretrained(str(tmp_path / "again"))):
        for name, value in outputs(one, kind).items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_weights_of_which_the_model_has_none_are_no_start(tmp_path):
    random_model("AlbertModel").save_pretrained(str(tmp_path / "model"))
    weights = pretrained.open_path(str(tmp_path / "model")).weights()
    with pytest.raises(CheckpointError, match="has none of the model's weights"):
        checkpoints.warm_start({"cls/other": (2,)}, weights)


def test_a_loaded_model_trains_in_compile_and_fit(tmp_path):
    keras.utils.set_random_seed(0)
    random_model("AlbertModel").save_pretrained(str(tmp_path / "model"))
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    encoder = albert.AlbertModel.from_pretrained(str(tmp_path / "model"))
    logits = keras.layers.Dense(2)(encoder(inputs)["pooled_output"])
    model = keras.Model(inputs, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    before = {n: w.numpy().copy() for n, w in modeling.named_weights(encoder).items()}
    data = {name: np.asarray(value, "int32") for name, value in batch().items()}
    labels = np.array([0, 1, 1])
    untrained = model.evaluate(data, labels, verbose=0)  # without dropout
    model.fit(data, labels, epochs=20, verbose=0)
    assert model.evaluate(data, labels, verbose=0) < untrained
    after = modeling.named_weights(encoder)
    assert any(not np.array_equal(after[n].numpy(), before[n]) for n in before)


def test_the_saved_directory_is_one_for_every_command(tmp_path):
    random_model("AlbertForPreTraining").save_pretrained(str(tmp_path / "model"))
    source = pretrained.open_path(str(tmp_path / "model"))
    assert "cls/seq_relationship/output_weights" in source.weights().shapes
    assert source.metadata.architecture == "AlbertForPreTraining"
    again = tmp_path / "model.ckpt"
    arguments = f"--albert_directory={tmp_path}/model", f"--export_path={again}"
    assert run_here(export_checkpoints, *arguments) == 0
    assert pretrained.open_any_weights(str(again)).shapes.keys() >= source.weights().shapes.keys()


def every_sharing():
    for sharing in ("all", "attention", "ffn", "none"):
        for layers, groups in ((4, 1), (4, 2), (22, 22)):  # they round the last one differently
            yield {"parameter_sharing": sharing, "num_hidden_layers": layers,
                   "num_hidden_groups": groups}


@pytest.mark.parametrize("changes", [
    *every_sharing(), {"hidden_act": "gelu_erf"}, {"hidden_act": "relu"}, {"embedding_size": 16},
], ids=lambda c: "-".join(map(str, c.values())))
def test_every_architecture_comes_back_as_it_was(changes, tmp_path):
    model = random_model("AlbertModel", **changes)
    model.save_pretrained(str(tmp_path / "model"))
    again = albert.AlbertModel.from_pretrained(str(tmp_path / "model"))
    assert again.config == model.config
    before, after = modeling.named_weights(model), modeling.named_weights(again)
    assert after.keys() == before.keys()
    for name, weight in before.items():
        np.testing.assert_array_equal(after[name], weight, err_msg=name)


def test_an_architecture_that_another_library_changed_is_read_as_it_is_now(tmp_path):
    random_model("AlbertModel").save_pretrained(str(tmp_path / "model"))
    path = tmp_path / "model/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_dropout_prob": 0.3}))
    assert pretrained.open_path(str(tmp_path / "model")).config.hidden_dropout_prob == 0.3


def test_a_model_that_version_0_2_saved_is_read_and_replaced(tmp_path):
    model = random_model("AlbertForSequenceClassification")
    model.label_names = ("a", "b", "c")
    path = tmp_path / "model"
    path.mkdir()
    pretrained.write_archive(str(path), model)
    again = albert.from_pretrained(str(path))
    assert again.label_names == model.label_names
    again.output_bias.assign([1.0, 2.0, 3.0])
    again.save_pretrained(str(path))
    np.testing.assert_array_equal(albert.from_pretrained(str(path)).output_bias, [1, 2, 3])


def test_a_model_is_not_saved_beside_the_checkpoints_of_a_run(tmp_path):
    save(random_model("AlbertModel"), tmp_path / "run")
    for path in (tmp_path / "run").glob("model.ckpt-best.*"):
        path.rename(str(path).replace("best", "7"))
    with pytest.raises(CheckpointError, match="save to another directory"):
        random_model("AlbertModel").save_pretrained(str(tmp_path / "run"))
