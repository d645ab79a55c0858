"""The model against the original's outputs, losses and gradients."""

import dataclasses
import json
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import REPO, SIZES, assert_same_gradients, pretraining_rows

from albert import modeling
from albert.config import AlbertConfig
from albert.modeling import AlbertForPreTraining, AlbertModel, EncoderOptions, named_weights
from albert.tasks.pretraining import PretrainingTask

TINY = AlbertConfig(
    50, 8, 16, 3, num_attention_heads=2, intermediate_size=24, max_position_embeddings=12
)


def pretraining_loss(model, batch):
    rows, length = batch["input_ids"].shape
    task = PretrainingTask(length, batch["masked_lm_ids"].shape[1])
    batch = {"is_real_example": tf.ones([rows], tf.int32), **batch}
    outputs = model(batch, output_hidden_states=True)
    weights, sums = task.loss_weights(batch), task.loss_sums(batch, outputs)
    terms = {name: sums[name] / weights[name] for name in sums}
    return terms["masked_lm"] + terms["sentence_order"], terms, outputs


@pytest.mark.parametrize("case", ["tf1_ckpt_tiny", "tf1_ckpt_tiny_groups", "tf1_ckpt_tiny_nomap"])
@pytest.mark.parametrize("part", ["io", "io2", "io3"])
def test_outputs_losses_and_gradients_equal_the_originals(case, part, golden_path):
    folder = golden_path(case)
    model = AlbertForPreTraining(AlbertConfig.from_json_file(str(folder / "albert_config.json")))
    reader = tf.train.load_checkpoint(str(folder / "model.ckpt-best"))
    weights = named_weights(model)
    for name, weight in weights.items():
        weight.assign(reader.get_tensor(name))
    golden = np.load(folder / f"{part}.npz")
    batch = {k[3:]: tf.constant(golden[k]) for k in golden.files if k.startswith("in/")}
    with tf.GradientTape() as tape:
        loss, terms, outputs = pretraining_loss(model, batch)
    gradients = tape.gradient(loss, [w.value for w in weights.values()])
    # In io2 the last row masks every key: there the original's own rounding shows.
    rows = slice(0, -1) if part == "io2" else slice(None)
    for name in ("word_embedding_output", "embedding_output", "sequence_output", "pooled_output"):
        np.testing.assert_allclose(outputs[name][rows], golden[f"out/{name}"][rows], atol=1e-5)
    for i, output in enumerate(outputs["encoder_outputs"]):
        expected = golden[f"out/encoder_layer_{i}"]
        np.testing.assert_allclose(output[rows], expected[rows], atol=1e-5)
    assert f"out/encoder_layer_{i + 1}" not in golden.files
    np.testing.assert_allclose(terms["masked_lm"], golden["out/masked_lm_loss"], rtol=1e-5)
    np.testing.assert_allclose(terms["sentence_order"], golden["out/sentence_order_loss"], rtol=1e-5)
    np.testing.assert_allclose(loss, golden["out/total_loss"], rtol=1e-5)
    log_probs = tf.nn.log_softmax(outputs["prediction_logits"])
    expected = golden["out/masked_lm_log_probs"].reshape(log_probs.shape)
    np.testing.assert_allclose(log_probs[rows], expected[rows], atol=2e-5)
    dense = {
        name: tf.convert_to_tensor(g).numpy() for name, g in zip(weights, gradients, strict=True)
    }
    theirs = {k.removeprefix("grad/"): golden[k] for k in golden.files if k.startswith("grad/")}
    assert_same_gradients(dense, theirs)


SPEC_BASE = {
    "vocab_size": 37, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 4,
    "num_attention_heads": 4, "intermediate_size": 24, "max_position_embeddings": 12,
    "type_vocab_size": 2, "hidden_act": "gelu",
}


@pytest.mark.parametrize("case", ["A_1group", "B_2groups_2inner", "C_E_eq_H_relu"])
def test_the_three_cases_of_the_specification(case, golden_path):
    # spec 17: weights by formula, in the byte order of the names.
    golden = json.loads(golden_path("spec_golden.json").read_text())
    expected = golden["model"][case]
    model = AlbertForPreTraining(AlbertConfig(**SPEC_BASE | expected["config"]))
    weights = named_weights(model)
    for i, name in enumerate(sorted(name + ":0" for name in weights)):
        weight = weights[name[:-2]]
        wave = np.sin(0.7 * np.arange(np.prod(weight.shape)) + i + 1).reshape(weight.shape)
        weight.assign(1 + 0.1 * wave if name.endswith("gamma:0") else 0.3 * wave)
    if expected["variables"]:
        ours = [[n + ":0", list(weights[n].shape)] for n in sorted(weights)]
        assert ours == [[v[0], list(v[1])] for v in expected["variables"]]
    batch = {}
    for name, value in golden["inputs"].items():
        kind = tf.float32 if name == "masked_lm_weights" else tf.int32
        batch[name] = tf.constant(value, kind)
    batch["next_sentence_labels"] = tf.reshape(batch["next_sentence_labels"], [2, 1])
    with tf.GradientTape() as tape:
        loss, terms, outputs = pretraining_loss(model, batch)
    gradients = tape.gradient(loss, [w.value for w in weights.values()])
    assert len(outputs["encoder_outputs"]) == expected["n_layers"]
    np.testing.assert_allclose(terms["masked_lm"], expected["mlm_loss"], rtol=1e-5)
    np.testing.assert_allclose(terms["sentence_order"], expected["sop_loss"], rtol=1e-5)
    np.testing.assert_allclose(outputs["embedding_output"][0, 1], expected["emb_0_1"], atol=1e-5)
    np.testing.assert_allclose(outputs["sequence_output"][1, 5], expected["seq_1_5"], atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"][0], expected["pool_0"], atol=1e-5)
    norm = tf.linalg.global_norm([tf.convert_to_tensor(g) for g in gradients])
    np.testing.assert_allclose(norm, expected["dense_grad_global_norm"], rtol=1e-5)


def test_every_weight_has_its_name_in_a_released_checkpoint(golden_path):
    # The index of the released Chinese base model; slots and global_step are not weights.
    prefix = golden_path("tf1_index") / "albert_base_model.ckpt-best"
    released = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    del released["global_step"]
    size = {"vocab_size": 21128, "embedding_size": 128, "hidden_size": 768,
            "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    weights = named_weights(AlbertForPreTraining(AlbertConfig(**size)))
    assert {name: list(w.shape) for name, w in weights.items()} == released


def test_masks_and_segments_default_to_ones_and_zeros():
    model = AlbertModel(TINY)
    ids = tf.constant([[2, 7, 9, 3]])
    plain = model({"input_ids": ids})
    full = model(
        {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}
    )
    np.testing.assert_array_equal(plain["pooled_output"], full["pooled_output"])


def test_padding_does_not_change_what_real_tokens_see():
    model = AlbertModel(TINY)
    short = model({"input_ids": tf.constant([[2, 7, 9, 3]])})
    padded = model(
        {"input_ids": tf.constant([[2, 7, 9, 3, 0, 0]]),
         "input_mask": tf.constant([[1, 1, 1, 1, 0, 0]])}
    )
    np.testing.assert_allclose(
        short["sequence_output"], padded["sequence_output"][:, :4], atol=1e-5
    )


def test_dropout_is_a_function_of_the_given_seed_and_off_outside_training():
    config = AlbertConfig(**TINY.to_dict() | {"hidden_dropout_prob": 0.3})
    model = AlbertModel(config)
    batch = {"input_ids": tf.constant([[2, 7, 9, 3]])}

    def pooled(training, seed):
        return model(batch, training=training, dropout_seed=tf.constant(seed, tf.int64))[
            "pooled_output"
        ].numpy()

    np.testing.assert_array_equal(pooled(True, [1, 5]), pooled(True, [1, 5]))
    assert not np.array_equal(pooled(True, [1, 5]), pooled(True, [1, 6]))
    assert not np.array_equal(pooled(True, [1, 5]), pooled(True, [2, 5]))
    np.testing.assert_array_equal(pooled(False, [1, 5]), pooled(False, [2, 6]))


@pytest.mark.slow
def test_a_user_can_fit_the_model_with_keras_alone():
    keras.utils.set_random_seed(1)
    config = dataclasses.replace(TINY, initializer_range=0.1)  # wide: it is small
    inputs = {"input_ids": keras.Input((4,), dtype="int32", name="input_ids")}
    logits = modeling.AlbertForSequenceClassification(config, 2)(inputs)["logits"]
    model = keras.Model(inputs, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss)
    ids = np.random.default_rng(0).integers(5, 50, (16, 4))
    labels = (ids[:, 1] > 25).astype("int32")
    history = model.fit({"input_ids": ids}, labels, epochs=30, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0]


def test_a_model_survives_keras_configuration_round_trip():
    model = modeling.AlbertForSequenceClassification(TINY, 3, classifier_dropout=0.2)
    again = type(model).from_config(model.get_config())
    assert again.config == TINY
    assert (again.num_labels, again.classifier_dropout) == (3, 0.2)


@pytest.mark.parametrize("name", ["relu", "GELU", "tanh", "linear", "", None])
def test_activations_are_known_by_the_originals_names(name):
    activation = modeling.get_activation(name)
    if activation is not None:
        assert float(activation(tf.constant(0.0))) == 0.0


def test_gelu_is_the_tanh_form():
    x = np.linspace(-3, 3, 13)
    expected = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(modeling.gelu(tf.constant(x)), expected, atol=1e-6)
    with pytest.raises(ValueError, match="Unsupported activation"):
        modeling.get_activation("swish")


def test_gelu_and_its_gradient_are_those_of_the_formula():
    x = tf.constant(np.concatenate([np.linspace(-12, 12, 2001), [0.0, -1e-20, 1e4]]), tf.float32)
    weight = tf.cos(tf.range(len(x), dtype=tf.float32))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        value, expected = modeling.gelu(x), tf.nn.gelu(x, approximate=True)
        ours, theirs = tf.reduce_sum(weight * value), tf.reduce_sum(weight * expected)
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_allclose(tape.gradient(ours, x), tape.gradient(theirs, x), atol=1e-6)
    # To the bit, the products of the formula in this order.
    scale, cubic = np.sqrt(2 / np.pi), 0.044715
    tanh = tf.tanh(scale * (x + cubic * tf.pow(x, 3)))
    slope = 1.0 + tanh + x * (1.0 - tanh * tanh) * (scale + (3.0 * scale * cubic * x) * x)
    np.testing.assert_array_equal(tape.gradient(ours, x), weight * (0.5 * slope))


def test_gelus_gradient_is_a_number_where_a_cube_is_beyond_half_precision():
    x = tf.constant([-6e4, -800.0, -600.0, -60.0, 0.0, 60.0, 600.0, 800.0, 6e4], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(modeling.gelu(x))
    np.testing.assert_array_equal(tape.gradient(value, x), [0.0] * 4 + [0.5] + [1.0] * 4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_switched_on_from_outside(policy):
    keras.utils.set_random_seed(1)
    exact = AlbertForPreTraining(TINY)
    keras.config.set_dtype_policy(policy)
    mixed = AlbertForPreTraining(TINY)
    for ours, theirs in zip(mixed.trainable_weights, exact.trainable_weights, strict=True):
        assert ours.dtype == "float32"
        ours.assign(theirs)
    batch = {"input_ids": tf.constant([[2, 7, 9, 3]]), "masked_lm_positions": tf.constant([[1]])}
    half = mixed(batch, output_hidden_states=True)
    assert half["sequence_output"].dtype == tf.as_dtype(policy.removeprefix("mixed_"))
    difference = tf.cast(half["sop_logits"], tf.float32) - exact(batch)["sop_logits"]
    assert float(tf.reduce_max(tf.abs(difference))) < 0.03


def test_neither_modeling_nor_what_it_imports_of_ours_imports_tensorflow():
    # So that the model is computed on another backend of Keras, which does.
    code = """
import builtins, keras
plain = builtins.__import__

def watched(name, where=None, *rest):
    importer = (where or {}).get("__name__", "")
    assert not (importer.startswith("albert") and name.startswith("tensorflow")), importer
    return plain(name, where, *rest)

builtins.__import__ = watched
import albert.modeling
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


HEADS = {
    "classifier_3way": (modeling.AlbertForSequenceClassification, {"num_labels": 3}),
    "classifier_regression": (modeling.AlbertForSequenceClassification, {"num_labels": 1}),
    "race": (modeling.AlbertForMultipleChoice, {}),
    "squad_v1": (modeling.AlbertForQuestionAnswering, {}),
    "squad_v2": (modeling.AlbertForBeamQuestionAnswering, {"end_n_top": 4}),
}


@pytest.mark.parametrize("case", HEADS)
def test_every_fine_tuned_head_has_the_originals_weights_and_outputs(case, golden_path):
    folder = golden_path(f"heads/{case}")
    kind, sizes = HEADS[case]
    model = kind(AlbertConfig.from_json_file(str(folder / "albert_config.json")), **sizes)
    weights = named_weights(model)
    reader = tf.train.load_checkpoint(str(folder / "model.ckpt"))
    names = set(reader.get_variable_to_shape_map()) - {"global_step"}
    assert names == set(weights)
    for name, weight in weights.items():
        weight.assign(reader.get_tensor(name))
    golden = np.load(folder / "io.npz")
    inputs = {k[3:]: golden[k] for k in golden.files if k.startswith("in/")}
    inputs.pop("start_positions", None)  # known in training only
    outputs = model(inputs)
    compared = [k for k in golden.files if k.removeprefix("predict/") in outputs]
    assert compared
    for key in compared:
        ours = np.reshape(outputs[key.removeprefix("predict/")], golden[key].shape)
        np.testing.assert_allclose(ours, golden[key], atol=1e-5, err_msg=key)


@pytest.mark.parametrize(
    ("sharing", "attentions", "feed_forwards"),
    [("all", 1, 1), ("attention", 1, 3), ("ffn", 3, 1), ("none", 3, 3)],
)
def test_layers_share_what_the_config_says(sharing, attentions, feed_forwards):
    # Paper, Table 4.
    config = AlbertConfig(**TINY.to_dict() | {"parameter_sharing": sharing})
    names = named_weights(AlbertModel(config))
    assert sum(n.endswith("query/kernel") for n in names) == attentions
    assert sum(n.endswith("inner_group_0/LayerNorm/gamma") for n in names) == attentions
    assert sum(n.endswith("intermediate/dense/kernel") for n in names) == feed_forwards
    assert sum(n.endswith("inner_group_0/LayerNorm_1/gamma") for n in names) == feed_forwards


def test_equal_weights_in_every_layer_are_the_shared_model():
    ids = np.random.default_rng(0).integers(1, TINY.vocab_size, [2, 7])
    shared_model = AlbertModel(TINY)
    expected = shared_model({"input_ids": ids})["sequence_output"]
    shared_weights = named_weights(shared_model)
    for sharing in ("attention", "ffn", "none"):
        model = AlbertModel(AlbertConfig(**TINY.to_dict() | {"parameter_sharing": sharing}))
        for name, weight in named_weights(model).items():
            weight.assign(shared_weights[re.sub(r"group_\d+/inner", "group_0/inner", name)])
        np.testing.assert_allclose(
            model({"input_ids": ids})["sequence_output"], expected, atol=1e-6
        )


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [*HEADS.values(), (modeling.AlbertForMaskedLM, {}),
     (modeling.AlbertForTokenClassification, {"num_labels": 5})],
)
def test_a_model_is_rebuilt_from_its_config(kind, sizes):
    model = kind(TINY, **sizes)
    if "num_labels" in sizes:
        model.label_names = [f"label {i}" for i in range(model.num_labels)]
    again = kind.from_config(model.get_config())
    assert again.metadata == model.metadata
    assert modeling.parameter_shapes(again) == modeling.parameter_shapes(model)


def test_choices_may_be_flat_or_apart():
    ids = np.random.default_rng(0).integers(1, TINY.vocab_size, [2, 4, 7])
    model = modeling.AlbertForMultipleChoice(TINY)
    apart = model({"input_ids": ids})["logits"]
    flat = model({"input_ids": ids.reshape(2, 28)})["logits"]
    assert apart.shape == (2, 4)
    np.testing.assert_allclose(flat, apart)


def test_choices_apart_say_themselves_how_many_they_are():
    ids = np.random.default_rng(0).integers(1, TINY.vocab_size, [2, 3, 7])
    four = modeling.AlbertForMultipleChoice(TINY)
    three = modeling.AlbertForMultipleChoice(TINY, 3)
    three.set_weights(four.get_weights())
    np.testing.assert_allclose(
        four({"input_ids": ids})["logits"], three({"input_ids": ids})["logits"]
    )


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("kind", [AlbertForPreTraining, modeling.AlbertForMaskedLM])
def test_without_positions_every_place_is_predicted(kind, is_short):
    model = kind(TINY, encoder_options=EncoderOptions(needed_outputs_only=is_short))
    ids = np.random.default_rng(0).integers(1, TINY.vocab_size, [2, 7])
    places = np.tile(np.arange(7, dtype=np.int32), (2, 1))
    every = model({"input_ids": ids})
    named = model({"input_ids": ids, "masked_lm_positions": places})
    assert every["prediction_logits"].shape == (2, 7, TINY.vocab_size)
    np.testing.assert_allclose(every["prediction_logits"], named["prediction_logits"], atol=1e-6)
    if kind is AlbertForPreTraining:
        np.testing.assert_allclose(every["sop_logits"], named["sop_logits"], atol=1e-6)


def test_logits_of_weighted_positions_alone_give_the_losses_and_hits_of_all_positions():
    task = PretrainingTask(12, 3)
    rows = list(pretraining_rows(5))
    batch = {
        name: tf.cast(np.stack([row[name] for row in rows]), tf.int32) for name in rows[0]
    }
    batch |= {"is_real_example": tf.ones(5), "masked_lm_weights": tf.constant(
        [[1.0, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1]]
    )}
    found = {}
    for alone in (False, True):
        keras.utils.set_random_seed(3)
        options = EncoderOptions(needed_outputs_only=True, weighted_positions_only=alone)
        model = task.build_model(AlbertConfig(**SIZES), options)
        outputs = tf.function(model)(batch, training=False)
        found[alone] = task.loss_sums(batch, outputs), task.statistics(batch, outputs)
        assert outputs["prediction_logits"].shape[:-1] == ((6,) if alone else (5, 3))
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found[False], found[True]
    )


def test_without_p_mask_answers_are_where_the_windows_of_squad_have_them():
    model = modeling.AlbertForBeamQuestionAnswering(TINY, 3, 2)
    rows = {  # [CLS] ? ? [SEP] and a passage, [SEP], padding; and a row without padding
        "input_ids": [[2, 9, 8, 3, 10, 11, 12, 3, 0, 0], [2, 9, 3, 10, 11, 12, 13, 14, 15, 3]],
        "input_mask": [[1] * 8 + [0] * 2, [1] * 10],
        "segment_ids": [[0] * 4 + [1] * 4 + [0] * 2, [0] * 3 + [1] * 7],
    }
    p_mask = [[0, 1, 1, 1, 0, 0, 0, 1, 1, 1], [0, 1, 1, 0, 0, 0, 0, 0, 0, 1]]
    rows = {name: np.array(values) for name, values in rows.items()}
    told, untold = model(rows | {"p_mask": np.array(p_mask)}), model(rows)
    for name in ("start_top_index", "start_top_log_probs", "end_top_index", "end_top_log_probs",
                 "cls_logits"):
        np.testing.assert_array_equal(untold[name], told[name], err_msg=name)


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_beam_that_is_wider_than_the_row_ends_in_places_that_are_no_answer(is_traced):
    narrow, wide = (modeling.AlbertForBeamQuestionAnswering(TINY, k, k) for k in (4, 6))
    wide.set_weights(narrow.get_weights())
    rows = {"input_ids": np.array([[2, 9, 7, 8]]), "p_mask": np.zeros([1, 4], np.int32)}
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in rows}
    call = tf.function(wide, input_signature=[spec], autograph=False) if is_traced else wide
    expected, found = narrow(rows), call({k: tf.constant(v, tf.int32) for k, v in rows.items()})
    for name in ("start_top_index", "start_top_log_probs"):
        np.testing.assert_allclose(found[name][:, :4], expected[name], atol=1e-6)
    np.testing.assert_array_equal(found["start_top_index"][:, 4:], [[0, 0]])  # [CLS]
    assert np.max(found["start_top_log_probs"][:, 4:]) < -1e30
    for name in ("end_top_index", "end_top_log_probs"):
        ours = np.reshape(found[name], (6, 6))[:4, :4]
        np.testing.assert_allclose(ours, np.reshape(expected[name], (4, 4)), atol=1e-6)


def test_a_sequence_longer_than_the_position_table_is_named():
    model = AlbertModel(TINY)
    assert model({"input_ids": np.ones((1, 12), int)})["sequence_output"].shape == (1, 12, 16)
    with pytest.raises(ValueError, match="13 ids are more than the position table has rows: 12"):
        model({"input_ids": np.ones((1, 13), int)})
