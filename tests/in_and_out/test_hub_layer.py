"""HubLayer: a module inside a Keras 3 model, trained, saved and loaded."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import REPO
from hf_models import load

import albert
from albert.errors import CheckpointError

NAMES = ("input_word_ids", "input_mask", "input_type_ids")


@pytest.fixture(scope="module")
def path(hub_module) -> str:
    return str(hub_module[1])


def examples(count: int = 48):
    """Sequences that all have one label: learned by a wide margin on any processor."""
    ids = np.random.default_rng(0).integers(5, 20, (count, 8))
    rows = ids, np.ones_like(ids), np.zeros_like(ids)
    return dict(zip(NAMES, rows, strict=True)), np.ones(count, ids.dtype)


def copies(layer) -> list[np.ndarray]:
    return [weight.numpy().copy() for weight in layer.weights]


def test_a_layer_trains_with_dropout_unless_it_is_frozen_and_is_exported(path, tmp_path):
    keras.utils.set_random_seed(1)
    ids = {name: keras.Input([None], dtype="int32", name=name) for name in NAMES}
    layer = albert.HubLayer(path, trainable=False, output_key="pooled_output")
    model = keras.Model(ids, keras.layers.Dense(2)(layer(ids)))
    inputs, labels = examples()
    before = copies(layer)
    assert layer.trainable_weights == [] and len(layer.non_trainable_weights) == 25
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for trainable in (False, True):
        layer.trainable = trainable
        model.compile(keras.optimizers.Adam(1e-2), loss, jit_compile="auto" if trainable else False)
        losses = model.fit(inputs, labels, epochs=4, batch_size=16, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
        for old, weight in zip(before, layer.weights, strict=True):
            assert np.any(old != weight.numpy()) == trainable, weight.path
        differs = np.abs(layer(inputs, training=True) - layer(inputs)).max()
        assert (differs > 1e-4) == trainable  # dropout
    # The weights that Keras trained are those that the module uses, and those that are exported.
    inputs, loaded = examples(3)[0], layer._module.target
    tensors = {k: tf.constant(v, tf.int32) for k, v in inputs.items()}
    np.testing.assert_allclose(layer(inputs), loaded(tensors)["pooled_output"], atol=1e-6)
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(tensors), model(inputs), atol=1e-6)


def test_it_gives_the_outputs_of_the_model_that_was_exported_at_lengths_that_it_takes(path, hub_module):
    layer, model, (inputs, _) = albert.HubLayer(path), load("AlbertModel", hub_module[0]), examples(3)
    expected = model(dict(zip(("input_ids", "input_mask", "segment_ids"), inputs.values())))
    found = layer(inputs)
    for key in ("pooled_output", "sequence_output"):
        np.testing.assert_allclose(found[key], expected[key], atol=1e-5)
    ids = np.full((1, 17), 7)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 16 ids"):
        layer(dict(zip(NAMES, (ids, ids, ids * 0), strict=True)))


def test_the_mlm_part_has_its_own_inputs_and_variables(path):
    layer, (inputs, _) = albert.HubLayer(path, part="mlm", output_key="mlm_logits"), examples(2)
    assert len(layer.weights) == 25 + 5
    positions = {"masked_lm_positions": np.array([[1, 2, 3], [4, 0, 0]])}
    assert layer(inputs | positions).shape[:2] == (2, 3)


TEXTS = tf.TensorSpec([None], tf.string)


class TextOnly(tf.Module):
    """Texts to vectors, without a training argument."""

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


def around(path) -> keras.Model:
    inputs = keras.Input([], dtype="string")
    return keras.Model(inputs, keras.layers.Dense(1)(albert.HubLayer(path)(inputs)))


def test_a_module_that_takes_texts_alone_trains_and_is_saved_in_every_way(tmp_path):
    saved, path = TextOnly(), str(tmp_path / "module")
    tf.saved_model.save(saved, path)
    texts = tf.constant(["a", "three", "seven!!"])
    np.testing.assert_array_equal(albert.HubLayer(path)(texts, training=True), saved(texts))
    model = around(path)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(texts, np.ones([3, 1]), epochs=1, verbose=0)
    assert np.any(model.layers[1].weights[0].numpy() != saved.table.numpy())
    expected, others = model(texts), [around(path), around(path)]
    assert np.abs(others[0](texts) - expected).max() > 1e-3
    model.save_weights(tmp_path / "m.weights.h5")
    others[0].load_weights(tmp_path / "m.weights.h5")
    prefix = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(model=others[1]).read(prefix).assert_existing_objects_matched()
    model.save(tmp_path / "m.keras")
    for other in (*others, keras.models.load_model(tmp_path / "m.keras")):
        np.testing.assert_allclose(other(texts), expected, atol=1e-6)


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
    # It is passed with unnamed options too.
    saved = AnyOptions()
    for training in (False, True):
        saved.__call__.get_concrete_function(TEXTS, training=training)
    tf.saved_model.save(saved, str(tmp_path / "options"))
    layer = albert.HubLayer(str(tmp_path / "options"))
    np.testing.assert_allclose(layer(texts, training=True), 2 * layer(texts))


def test_bad_modules_and_outputs_are_refused_by_name(tmp_path):
    for name, content in {"broken": b"not a graph", "empty": None}.items():
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / "saved_model.pb").write_bytes(content)
    plain = tf.Module()
    plain.variable = tf.Variable(1.0)
    tf.saved_model.save(plain, str(tmp_path / "plain"))
    tf.saved_model.save(TextOnly(), str(tmp_path / "texts"))
    for name, part, message in (
        ("empty", None, "no saved_model.pb"), ("broken", None, "cannot load the module"),
        ("plain", None, "no reusable SavedModel"), ("texts", "nli", "has no part 'nli'"),
    ):
        with pytest.raises(CheckpointError, match=message):
            albert.HubLayer(str(tmp_path / name), part=part)
    layer = albert.HubLayer(str(tmp_path / "texts"), output_key="logits")
    with pytest.raises(ValueError, match="no output 'logits'; it gives a single tensor"):
        layer(["a text"])


def test_importing_albert_imports_no_tensorflow():
    code = ("import sys, albert; assert 'HubLayer' in albert.__all__\n"
            "assert {'AlbertModel', 'from_pretrained'} <= set(dir(albert))\n"
            "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
            "try: albert.Nothing\nexcept AttributeError as e: print(e)")
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(REPO)},
    )
    assert result.returncode == 0, result.stderr
    assert "no attribute 'Nothing'" in result.stdout
