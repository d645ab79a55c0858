"""HubLayer: a module inside a Keras 3 model, trained, saved and loaded."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import REPO, write_config

import albert
from albert.config import AlbertConfig
from albert.errors import CheckpointError
from albert.export import hub_export
from albert.modeling import AlbertForPreTraining, AlbertModel, named_weights

NAMES = ("input_word_ids", "input_mask", "input_type_ids")


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("module")
    config = AlbertConfig.from_json_file(write_config(folder))
    (folder / "spm.model").write_bytes(b"an asset")
    path = str(folder / "encoder")
    hub_export.export_module(
        AlbertForPreTraining(config), [str(folder / "spm.model")], path, do_lower_case=True
    )
    return path


def examples(count: int = 48):
    """Sequences with one label for all: learned by a wide margin on any processor."""
    ids = np.random.default_rng(0).integers(5, 40, (count, 8))
    rows = ids, np.ones_like(ids), np.zeros_like(ids)
    return dict(zip(NAMES, rows, strict=True)), np.ones(count, ids.dtype)


def classifier(module: str, **arguments) -> keras.Model:
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in NAMES}
    encoder = albert.HubLayer(module, output_key="pooled_output", name="encoder", **arguments)
    keras.utils.set_random_seed(1)
    model = keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs)))
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def copies(layer) -> list[np.ndarray]:
    return [weight.numpy().copy() for weight in layer.weights]


def test_fit_lowers_the_loss_and_moves_every_encoder_variable(module):
    model = classifier(module)
    layer = model.get_layer("encoder")
    before = copies(layer)
    losses = model.fit(*examples(), epochs=4, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert len(before) == 25
    for old, weight in zip(before, layer.weights, strict=True):
        assert np.any(old != weight.numpy()), weight.path
    # What Keras trained is what the module itself computes with.
    loaded, (inputs, _) = layer._module.target, examples(2)
    expected = loaded({k: tf.constant(v, tf.int32) for k, v in inputs.items()})["pooled_output"]
    np.testing.assert_allclose(layer(inputs), expected, atol=1e-6)


def test_it_gives_the_outputs_of_the_model_that_was_exported(module):
    config = AlbertConfig.from_json_file(os.path.join(module, "../albert_config.json"))
    layer, model, (inputs, _) = albert.HubLayer(module), AlbertModel(config), examples(3)
    for weight, value in zip(named_weights(model).values(), layer.weights, strict=True):
        weight.assign(value)
    expected = model(dict(zip(("input_ids", "input_mask", "segment_ids"), inputs.values())))
    found = layer(inputs)
    for key in ("pooled_output", "sequence_output"):
        np.testing.assert_allclose(found[key], expected[key], atol=1e-5)


def test_a_frozen_layer_neither_trains_nor_drops_out(module):
    model = classifier(module, trainable=False)
    layer, (inputs, labels) = model.get_layer("encoder"), examples()
    before = copies(layer)
    assert layer.trainable_weights == [] and len(layer.non_trainable_weights) == 25
    model.fit(inputs, labels, epochs=1, verbose=0)
    for old, weight in zip(before, layer.weights, strict=True):
        np.testing.assert_array_equal(old, weight)
    np.testing.assert_array_equal(layer(inputs, training=True), layer(inputs))


def test_training_switches_dropout_on(module):
    layer, (inputs, _) = albert.HubLayer(module, output_key="default"), examples(4)
    assert float(tf.reduce_max(tf.abs(layer(inputs, training=True) - layer(inputs)))) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("way", ["checkpoint", "weights", "model"])
def test_what_was_trained_is_saved_and_loaded(way, module, tmp_path):
    model, (inputs, labels) = classifier(module), examples()
    model.fit(inputs, labels, epochs=1, verbose=0)
    expected = model.predict(inputs, verbose=0)
    other = classifier(module)
    assert np.abs(other.predict(inputs, verbose=0) - expected).max() > 1e-3
    if way == "weights":
        model.save_weights(tmp_path / "m.weights.h5")
        other.load_weights(tmp_path / "m.weights.h5")
    elif way == "model":
        model.save(tmp_path / "m.keras")
        other = keras.models.load_model(tmp_path / "m.keras")
    else:
        prefix = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
        tf.train.Checkpoint(model=other).read(prefix).assert_existing_objects_matched()
    np.testing.assert_allclose(other.predict(inputs, verbose=0), expected, atol=1e-6)


def test_a_model_around_the_layer_is_exported_for_serving(module, tmp_path):
    model, (inputs, _) = classifier(module), examples(3)
    model.export(tmp_path / "served", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "served")
    served = loaded.serve({name: tf.constant(v, tf.int32) for name, v in inputs.items()})
    np.testing.assert_allclose(served, model.predict(inputs, verbose=0), atol=1e-6)


def test_the_mlm_part_has_its_own_inputs_and_variables(module):
    layer, (inputs, _) = albert.HubLayer(module, part="mlm", output_key="mlm_logits"), examples(2)
    assert len(layer.weights) == 25 + 5
    positions = {"masked_lm_positions": np.array([[1, 2, 3], [4, 0, 0]])}
    assert layer(inputs | positions).shape == (2, 3, 40)


TEXTS = tf.TensorSpec([None], tf.string)


class TextOnly(tf.Module):
    """Texts to vectors; nothing tells it whether it trains."""

    variables = trainable_variables = None  # lists of a reusable SavedModel, not tf.Module's

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.random.stateless_normal([7, 4], [1, 2]), name="table")
        self.variables = self.trainable_variables = [self.table]

    @tf.function(input_signature=[TEXTS])
    def __call__(self, texts):
        return tf.gather(self.table, tf.strings.length(texts) % 7)


class AnyOptions(TextOnly):
    @tf.function
    def __call__(self, texts, **options):
        return tf.gather(self.table, tf.strings.length(texts) % 7) * (1 + options["training"])


def test_a_module_that_takes_texts_alone_is_called_with_texts_alone_and_trains(tmp_path):
    saved = TextOnly()
    tf.saved_model.save(saved, str(tmp_path / "module"))
    layer = albert.HubLayer(str(tmp_path / "module"))
    texts = tf.constant(["a", "three", "seven!!"])
    np.testing.assert_array_equal(layer(texts, training=True), saved(texts))
    inputs = keras.Input([], dtype="string")
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(texts, np.ones([3, 1]), epochs=1, verbose=0)
    assert np.any(layer.weights[0].numpy() != saved.table.numpy())


def test_a_function_of_a_module_is_a_part_whether_or_not_it_takes_training(tmp_path):
    saved = TextOnly()
    saved.lengths = tf.function(tf.strings.length, input_signature=[TEXTS])
    saved.scaled = tf.function(lambda texts, training: tf.strings.length(texts) * (2 - training))
    for training in (0, 1):
        saved.scaled.get_concrete_function(TEXTS, training=bool(training))
    tf.saved_model.save(saved, str(tmp_path / "module"))
    texts = tf.constant(["a", "three"])
    lengths = albert.HubLayer(str(tmp_path / "module"), part="lengths")
    assert lengths(texts).numpy().tolist() == [1, 5]
    scaled = albert.HubLayer(str(tmp_path / "module"), part="scaled")
    assert scaled(texts).numpy().tolist() == [2, 10]
    assert scaled(texts, training=True).numpy().tolist() == [1, 5]


def test_training_among_options_without_names_is_passed_too(tmp_path):
    saved = AnyOptions()
    for training in (False, True):
        saved.__call__.get_concrete_function(TEXTS, training=training)
    tf.saved_model.save(saved, str(tmp_path / "module"))
    layer, texts = albert.HubLayer(str(tmp_path / "module")), tf.constant(["a"])
    np.testing.assert_allclose(layer(texts, training=True), 2 * layer(texts))


def test_bad_modules_and_outputs_are_refused_by_name(module, tmp_path):
    with pytest.raises(CheckpointError, match="no saved_model.pb"):
        albert.HubLayer(str(tmp_path))
    with pytest.raises(CheckpointError, match="has no part 'nli'"):
        albert.HubLayer(module, part="nli")
    with pytest.raises(ValueError, match="no output 'logits'; it gives .*pooled_output"):
        albert.HubLayer(module, output_key="logits")(examples(1)[0])
    plain = tf.Module()
    plain.variable = tf.Variable(1.0)
    tf.saved_model.save(plain, str(tmp_path / "plain"))
    with pytest.raises(CheckpointError, match="no reusable SavedModel"):
        albert.HubLayer(str(tmp_path / "plain"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/saved_model.pb").write_bytes(b"not a graph")
    with pytest.raises(CheckpointError, match="cannot load the module"):
        albert.HubLayer(str(tmp_path / "broken"))


def test_a_sequence_longer_than_the_position_table_is_named(module):
    ids = np.full((1, 17), 7)
    inputs = dict(zip(NAMES, (ids, ids, ids * 0), strict=True))
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 16 ids"):
        albert.HubLayer(module)(inputs)


def test_importing_albert_imports_no_tensorflow():
    code = ("import sys, albert; assert 'HubLayer' in albert.__all__\n"
            "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
            "try: albert.Nothing\nexcept AttributeError as e: print(e)")
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(REPO)},
    )
    assert result.returncode == 0, result.stderr
    assert "no attribute 'Nothing'" in result.stdout
