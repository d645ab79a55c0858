"""The model and its classes, compared with the original's outputs, losses and gradients."""

import dataclasses
import inspect
import json
import re

import apart
import keras
import numpy as np
import pytest
import tensorflow as tf
import their_keras_hub
from helpers import SIZES, assert_same_gradients, gradients_of, pretraining_rows

from albert import modeling
from albert.config import AlbertConfig
from albert.formats import model_classes
from albert.formats.weights import UNITS
from albert.modeling import AlbertForPreTraining, AlbertModel, EncoderOptions, named_weights
from albert.tasks.pretraining import PretrainingTask

TINY = AlbertConfig(
    50, 8, 16, 3, num_attention_heads=2, intermediate_size=24, max_position_embeddings=12
)


def with_weights_of(model, prefix):
    """Gives a model the weights of a checkpoint; returns the checkpoint's reader."""
    reader = tf.train.load_checkpoint(str(prefix))
    for name, weight in named_weights(model).items():
        if name not in UNITS:
            weight.assign(reader.get_tensor(name))
    return reader


def loss_and_gradients(model, batch):
    """Returns the pretraining loss, its terms, outputs, and dense gradients by name."""
    rows, length = batch["input_ids"].shape
    task = PretrainingTask(length, batch["masked_lm_ids"].shape[1])
    batch = {"is_real_example": tf.ones([rows], tf.int32), **batch}

    def compute():
        outputs = task.outputs(model, batch, output_hidden_states=True)
        divisors, sums = task.loss_weights(batch), task.loss_sums(batch, outputs)
        terms = {name: sums[name] / divisors[name] for name in sums}
        return terms["masked_lm"] + terms["sentence_order"], (terms, outputs)

    loss, (terms, outputs), gradients = gradients_of(model, compute)
    return loss, terms, outputs, {name: g.numpy() for name, g in gradients.items()}


@pytest.mark.parametrize("case", ["tf1_ckpt_tiny", "tf1_ckpt_tiny_groups", "tf1_ckpt_tiny_nomap"])
@pytest.mark.parametrize("part", ["io", "io2", "io3"])
def test_outputs_losses_and_gradients_equal_the_originals(case, part, golden_path):
    folder = golden_path(case)
    model = AlbertForPreTraining(AlbertConfig.from_json_file(str(folder / "albert_config.json")))
    with_weights_of(model, folder / "model.ckpt-best")
    golden = np.load(folder / f"{part}.npz")
    batch = {k[3:]: tf.constant(golden[k]) for k in golden.files if k.startswith("in/")}
    loss, terms, outputs, gradients = loss_and_gradients(model, batch)
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
    theirs = {k.removeprefix("grad/"): golden[k] for k in golden.files if k.startswith("grad/")}
    assert_same_gradients(gradients, theirs)


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
    batch = {
        name: tf.constant(value, tf.float32 if name == "masked_lm_weights" else tf.int32)
        for name, value in golden["inputs"].items()
    }
    batch["next_sentence_labels"] = tf.reshape(batch["next_sentence_labels"], [2, 1])
    _, terms, outputs, gradients = loss_and_gradients(model, batch)
    assert len(outputs["encoder_outputs"]) == expected["n_layers"]
    np.testing.assert_allclose(terms["masked_lm"], expected["mlm_loss"], rtol=1e-5)
    np.testing.assert_allclose(terms["sentence_order"], expected["sop_loss"], rtol=1e-5)
    np.testing.assert_allclose(outputs["embedding_output"][0, 1], expected["emb_0_1"], atol=1e-5)
    np.testing.assert_allclose(outputs["sequence_output"][1, 5], expected["seq_1_5"], atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"][0], expected["pool_0"], atol=1e-5)
    norm = tf.linalg.global_norm(list(gradients.values()))
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


@pytest.mark.parametrize("part", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_is_a_function_of_the_given_seed_and_off_outside_training(part):
    model = AlbertModel(dataclasses.replace(TINY, initializer_range=0.3, **{part: 0.3}))

    def pooled(training, seed):
        ids, seed = tf.constant([[2, 7, 9, 3]]), tf.constant(seed, tf.int64)
        return model(ids, training=training, dropout_seed=seed)["pooled_output"].numpy()

    np.testing.assert_array_equal(pooled(True, [1, 5]), pooled(True, [1, 5]))
    assert not np.array_equal(pooled(True, [1, 5]), pooled(True, [1, 6]))
    assert not np.array_equal(pooled(True, [1, 5]), pooled(True, [2, 5]))
    np.testing.assert_array_equal(pooled(False, [1, 5]), pooled(False, [2, 6]))


def test_activations_are_known_by_the_originals_names():
    x = np.linspace(-3, 3, 13)
    gelu = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    for name, expected in (("relu", np.maximum(x, 0)), ("GELU", gelu), ("tanh", np.tanh(x))):
        found = modeling.get_activation(name)(tf.constant(x))
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=name)
    assert {modeling.get_activation(name) for name in ("linear", "", None)} == {None}
    with pytest.raises(ValueError, match="Unsupported activation"):
        modeling.get_activation("swish")


def test_gelu_is_finite_where_a_cube_exceeds_half_precision():
    x = tf.constant([-6e4, -800.0, -600.0, -60.0, 0.0, 60.0, 600.0, 800.0, 6e4], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(modeling.gelu(x))
    np.testing.assert_array_equal(tape.gradient(value, x), [0.0] * 4 + [0.5] + [1.0] * 4)


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
    names = with_weights_of(model, folder / "model.ckpt").get_variable_to_shape_map()
    assert set(names) - {"global_step"} == set(named_weights(model)) - {*UNITS}
    golden = np.load(folder / "io.npz")
    inputs = {k[3:]: golden[k] for k in golden.files if k.startswith("in/")}
    inputs.pop("start_positions", None)  # known in training only
    outputs = model.of_batch(inputs)
    compared = [k for k in golden.files if k.removeprefix("predict/") in outputs]
    assert compared
    for key in compared:
        ours = np.reshape(outputs[key.removeprefix("predict/")], golden[key].shape)
        np.testing.assert_allclose(ours, golden[key], atol=1e-5, err_msg=key)


def test_layers_share_what_the_config_says():
    # Paper, Table 4. With equal weights in every layer, each equals the model that shares all.
    ids = np.random.default_rng(0).integers(1, TINY.vocab_size, [2, 7])
    shared = AlbertModel(TINY)
    expected, values = shared({"input_ids": ids})["sequence_output"], named_weights(shared)
    for sharing, attentions, feed_forwards in (
        ("all", 1, 1), ("attention", 1, 3), ("ffn", 3, 1), ("none", 3, 3),
    ):
        model = AlbertModel(dataclasses.replace(TINY, parameter_sharing=sharing))
        names = named_weights(model)
        for end, count in (("query/kernel", attentions), ("_0/LayerNorm/gamma", attentions),
                           ("_1/intermediate/dense/kernel", feed_forwards),
                           ("_0/LayerNorm_1/gamma", feed_forwards)):
            assert sum(name.endswith(end) for name in names) == count, (sharing, end)
        for name, weight in names.items():
            weight.assign(values[re.sub(r"group_\d+/inner", "group_0/inner", name)])
        found = model({"input_ids": ids})["sequence_output"]
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=sharing)


def test_first_weights_are_truncated_normals_of_the_configs_and_the_heads_own_width():
    config = dataclasses.replace(TINY, vocab_size=900, hidden_size=64, initializer_range=0.1)
    for kind, sizes in ((AlbertForPreTraining, {}), *HEADS.values()):
        for name, weight in named_weights(kind(config, **sizes)).items():
            if name.endswith(("gamma", "beta", "bias", "mean", "deviation")):
                assert (weight.numpy() == name.endswith(("gamma", "deviation"))).all(), name
                continue
            # As for the original's fine-tuned heads, whatever the configuration says.
            is_fixed = name in ("output_weights", "cls/squad/output_weights")
            width = 0.02 if is_fixed else 0.1
            assert np.abs(weight).max() < 2.3 * width, name  # cut at two deviations
            if weight.numpy().size >= 128:
                assert np.std(weight) == pytest.approx(0.88 * width, rel=0.2), name


def test_the_choices_of_records_are_flat_and_those_of_callers_apart():
    ids = np.random.default_rng(0).integers(1, TINY.vocab_size, [2, 4, 7])
    four, three = modeling.AlbertForMultipleChoice(TINY), modeling.AlbertForMultipleChoice(TINY, 3)
    three.set_weights(four.get_weights())
    apart = four({"input_ids": ids})["logits"]
    assert apart.shape == (2, 4)
    np.testing.assert_allclose(four.of_batch({"input_ids": ids.reshape(2, 28)})["logits"], apart)
    np.testing.assert_allclose(three({"input_ids": ids})["logits"], apart)


@pytest.mark.parametrize("kind, is_short", [
    (AlbertForPreTraining, True), (modeling.AlbertForMaskedLM, False),
])
def test_without_positions_every_place_is_predicted(kind, is_short):
    model = kind(TINY, encoder_options=EncoderOptions(needed_outputs_only=is_short))
    ids = np.random.default_rng(0).integers(1, TINY.vocab_size, [2, 7])
    every = model({"input_ids": ids})
    places = np.tile(np.arange(7, dtype=np.int32), (2, 1))
    named = model({"input_ids": ids, "masked_lm_positions": places})
    assert every["prediction_logits"].shape == (2, 7, TINY.vocab_size)
    for name in every:
        np.testing.assert_allclose(every[name], named[name], atol=1e-6, err_msg=name)


def test_logits_of_weighted_positions_alone_give_the_losses_and_hits_of_all_positions():
    task, rows, found = PretrainingTask(12, 3), list(pretraining_rows(5)), {}
    batch = {name: tf.cast(np.stack([row[name] for row in rows]), tf.int32) for name in rows[0]}
    batch |= {"is_real_example": tf.ones(5), "masked_lm_weights": tf.constant(
        [[1.0, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1]]
    )}
    for alone in (False, True):
        keras.utils.set_random_seed(3)
        options = EncoderOptions(needed_outputs_only=True, weighted_positions_only=alone)
        model = task.build_model(AlbertConfig(**SIZES | {"num_hidden_layers": 1}), options)
        outputs = tf.function(task.outputs)(model, batch, training=False)
        found[alone] = task.loss_sums(batch, outputs), task.statistics(batch, outputs)
        assert outputs["prediction_logits"].shape[:-1] == ((6,) if alone else (5, 3))
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6)  # noqa: E731
    tf.nest.map_structure(same, found[False], found[True])


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


def test_a_beam_that_is_wider_than_the_row_ends_in_places_that_are_no_answer():
    narrow, wide = (modeling.AlbertForBeamQuestionAnswering(TINY, k, k) for k in (4, 6))
    wide.set_weights(narrow.get_weights())
    rows = {"input_ids": np.array([[2, 9, 7, 8]]), "p_mask": np.zeros([1, 4], np.int32)}
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in rows}
    call = tf.function(wide, input_signature=[spec], autograph=False)  # an unknown length
    expected, found = narrow(rows), call({k: tf.constant(v, tf.int32) for k, v in rows.items()})
    for name in ("start_top_index", "start_top_log_probs"):
        np.testing.assert_allclose(found[name][:, :4], expected[name], atol=1e-6)
    np.testing.assert_array_equal(found["start_top_index"][:, 4:], [[0, 0]])  # [CLS]
    assert np.max(found["start_top_log_probs"][:, 4:]) < -1e30
    for name in ("end_top_index", "end_top_log_probs"):
        ours = np.reshape(found[name], (6, 6))[:4, :4]
        np.testing.assert_allclose(ours, np.reshape(expected[name], (4, 4)), atol=1e-6)


# --- The registry of classes ---


def test_every_public_class_is_in_the_registry():
    public = {name for name in modeling.__all__ if name.startswith("AlbertFor")}
    assert public | {"AlbertModel"} == set(model_classes.MODEL_CLASSES)
    # For weights with several heads, the fine-tuned head counts.
    weights = [*named_weights(AlbertForPreTraining(TINY)), "output_weights"]
    assert model_classes.class_of_weights(weights).name == "AlbertForSequenceClassification"


@pytest.mark.parametrize("name", model_classes.MODEL_CLASSES)
def test_the_registry_is_true_of_the_class(name):
    kind, model_class = model_classes.MODEL_CLASSES[name], getattr(modeling, name)
    is_labelled = "num_labels" in inspect.signature(model_class).parameters
    model = model_class(TINY, **({"num_labels": 3} if is_labelled else {}))
    rng = np.random.default_rng(0)
    shape = (1, 4, 6) if kind.task == model_classes.CHOICE else (1, 6)
    inputs = {"input_ids": rng.integers(0, 20, shape, np.int32)}
    before = model(inputs)
    assert set(kind.outputs) <= set(before)
    assert kind.has_labels == is_labelled
    weights = named_weights(model)
    assert kind.weight is None or kind.weight in weights
    assert model_classes.class_of_weights(weights).weight == kind.weight
    weights["bert/pooler/dense/kernel"].assign(rng.normal(0, 9, [16, 16]))
    after = model(inputs)
    changes = any(not np.array_equal(before[output], after[output]) for output in kind.outputs)
    assert kind.reads_pooler == changes
    assert model_classes.reads_pooler(type("Theirs", (type(model),), {})) == kind.reads_pooler


# --- keras-hub, where the extra `interop` is installed ---


@pytest.mark.parametrize("direction", ["to", "from"])
def test_keras_hub_computes_the_same(direction):
    apart.needs("keras_hub", extra="interop")
    config = AlbertConfig(
        60, 8, 16, 4, num_hidden_groups=2, inner_group_num=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=12,
    )
    ours = AlbertModel(config)
    weights = named_weights(ours)
    rng = np.random.default_rng(0)
    for name, weight in weights.items():
        weight.assign(rng.normal(0, 0.3, weight.shape) + name.endswith("gamma"))
    ids = rng.integers(1, config.vocab_size, [3, 9])
    mask = (np.arange(9) < np.array([[9], [6], [4]])).astype(int)
    segments = (np.arange(9) > 3) * mask
    given = {n: w.numpy() for n, w in weights.items()} if direction == "to" else {}
    inputs = {"token_ids": ids, "segment_ids": segments, "padding_mask": mask}
    with apart.process() as call:
        theirs, expected = call(their_keras_hub.compute, config.to_dict(), given, inputs)
    assert set(theirs) == set(weights)
    for name, weight in weights.items():
        weight.assign(np.reshape(theirs[name], weight.shape))
    outputs = ours({"input_ids": ids, "input_mask": mask, "segment_ids": segments})
    real = mask.astype(bool)  # they mask padding queries, whose outputs are unused
    for name, where in (("sequence_output", real), ("pooled_output", slice(None))):
        np.testing.assert_allclose(
            np.asarray(outputs[name])[where], expected[name][where], atol=1e-5
        )
