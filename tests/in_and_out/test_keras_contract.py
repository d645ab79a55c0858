"""What Keras promises of a model, each of our classes keeps, on TensorFlow and on JAX.

On JAX this module runs once more, in a process of its own.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import REPO
from helpers import NEEDS_JAX, SIZES

import albert
from albert import modeling, optimization
from albert.errors import UserError

ROWS, LENGTH, VOCAB = 8, 12, SIZES["vocab_size"]
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
CONFIG = modeling.AlbertConfig(**SIZES | {
    "initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
})


def sparse():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def binary():
    return keras.losses.BinaryCrossentropy(from_logits=True)


# Of each class: its arguments, its losses by output, and labels [B, ...] below these numbers.
KINDS = {
    "AlbertModel": ((), {"sequence_output": "mse", "pooled_output": "mse"}, {}),
    "AlbertForMaskedLM": ((), {"prediction_logits": sparse}, {"prediction_logits": (LENGTH, VOCAB)}),
    "AlbertForPreTraining": (
        (), {"prediction_logits": sparse, "sop_logits": sparse},
        {"prediction_logits": (LENGTH, VOCAB), "sop_logits": (None, 2)},
    ),
    "AlbertForSequenceClassification": ((3,), {"logits": sparse}, {"logits": (None, 3)}),
    "AlbertForTokenClassification": ((3,), {"logits": sparse}, {"logits": (LENGTH, 3)}),
    "AlbertForMultipleChoice": ((2,), {"logits": sparse}, {"logits": (None, 2)}),
    "AlbertForQuestionAnswering": (
        (), {"start_logits": sparse, "end_logits": sparse},
        {"start_logits": (None, LENGTH), "end_logits": (None, LENGTH)},
    ),
    "AlbertForBeamQuestionAnswering": (
        (2, 2), {"start_log_probs": sparse, "end_log_probs": sparse, "cls_logits": binary},
        {"start_log_probs": (None, LENGTH), "end_log_probs": (None, LENGTH),
         "cls_logits": (None, 2)},
    ),
}
# The fast tests go through it.
FAST = "AlbertForSequenceClassification"
EACH = pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k == FAST else pytest.mark.slow) for k in KINDS]
)


def make(kind, **options):
    keras.utils.set_random_seed(1)
    return getattr(albert, kind)(CONFIG, *KINDS[kind][0], **options)


def inputs_of(kind):
    rng = np.random.default_rng(2)
    shape = (ROWS, 2, LENGTH) if kind == "AlbertForMultipleChoice" else (ROWS, LENGTH)
    ids = rng.integers(5, VOCAB, shape).astype("int32")
    used = rng.integers(9, LENGTH + 1, shape[:-1])[..., None]
    mask = (np.arange(LENGTH) < used).astype("int32")
    batch = {"input_ids": ids * mask, "input_mask": mask,
             "segment_ids": (np.arange(LENGTH) > 4) * mask}
    if kind == "AlbertForBeamQuestionAnswering":
        batch["start_positions"] = np.full(ROWS, 6, "int32")
    return batch


def labels_of(kind):
    rng = np.random.default_rng(3)
    labels = {
        name: rng.integers(0, most, (ROWS,) if length is None else (ROWS, length))
        for name, (length, most) in KINDS[kind][2].items()
    }
    if kind == "AlbertForBeamQuestionAnswering":  # where an answer can be
        labels |= {"start_log_probs": np.full(ROWS, 6), "end_log_probs": np.full(ROWS, 6)}
    if kind == "AlbertModel":
        width = CONFIG.hidden_size
        labels = {
            "sequence_output": rng.normal(size=(ROWS, LENGTH, width)).astype("float32"),
            "pooled_output": rng.normal(size=(ROWS, width)).astype("float32"),
        }
    return labels


def compiled(kind, **options):
    model = make(kind, **options)
    losses = {n: one if isinstance(one, str) else one() for n, one in KINDS[kind][1].items()}
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=losses)
    return model


def predictions(model, kind):
    return {name: np.asarray(value) for name, value in model(inputs_of(kind)).items()}


def assert_same(found, expected, atol=0.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=atol, err_msg=name)


# --- Training as Keras does it ---


@EACH
def test_fit_learns_evaluate_and_predict_agree_with_the_call(kind):
    model, x, y = compiled(kind), inputs_of(kind), labels_of(kind)
    first = model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    history = model.fit(x, y, epochs=15, batch_size=ROWS, verbose=0).history["loss"]
    last = model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    assert history[-1] < history[0] and last < 0.9 * first
    assert_same(model.predict(x, verbose=0), predictions(model, kind), atol=1e-5)
    assert np.all(np.isfinite(model.train_on_batch(x, y)))


@pytest.mark.slow
def test_a_classifier_takes_bare_arrays_metrics_and_what_the_tokenizer_makes(tmp_path):
    model = make("AlbertForSequenceClassification")
    model.compile(
        optimizer=optimization.create_optimizer(
            optimization.OptimizerConfig("lamb", 0.01, num_train_steps=100)
        ),
        loss=sparse(), metrics=["accuracy"],
    )
    ids, labels = inputs_of("AlbertModel")["input_ids"], labels_of(
        "AlbertForSequenceClassification")["logits"]
    history = model.fit(ids, labels, epochs=2, verbose=0).history
    assert set(history) == {"loss", "accuracy"}
    assert model.predict(ids, verbose=0)["logits"].shape == (ROWS, 3)
    vocabulary = tmp_path / "vocab.txt"
    words = [f"word{i}" for i in range(VOCAB - 5)]
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(vocabulary))
    texts = [f"word{i} word{i + 1}" for i in range(ROWS)]
    for encoded in (tokenizer(texts), tokenizer(texts, return_offsets_mapping=True)):
        model.fit(encoded, labels, epochs=1, verbose=0)
        assert model(encoded)["logits"].shape == (ROWS, 3)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="tf.data is TensorFlow's")
def test_fit_takes_a_tf_data_set():
    import tensorflow as tf

    kind = "AlbertForSequenceClassification"
    data = tf.data.Dataset.from_tensor_slices((inputs_of(kind), labels_of(kind)["logits"]))
    model = make(kind)
    model.compile("adam", sparse())
    assert len(model.fit(data.batch(4), epochs=2, verbose=0).history["loss"]) == 2


@pytest.mark.parametrize("part", ["embeddings", "encoder", "bert"])
def test_frozen_parts_keep_their_weights(part):
    kind = "AlbertForSequenceClassification"
    model = compiled(kind)
    frozen = model.bert if part == "bert" else getattr(model.bert, part)
    frozen.trainable = False
    names = {id(w): n for n, w in modeling.named_weights(model).items()}
    fixed = {names[id(w)] for w in frozen.weights if id(w) in names}
    before = {n: np.array(w) for n, w in modeling.named_weights(model).items()}
    model.fit(inputs_of(kind), labels_of(kind)["logits"], epochs=2, verbose=0)
    after = {n: np.array(w) for n, w in modeling.named_weights(model).items()}
    same = {name for name in before if np.array_equal(before[name], after[name])}
    assert same >= fixed and "output_weights" not in same
    if part != "bert":
        assert same == fixed


# --- Kept and made again ---


@EACH
def test_a_keras_file_is_opened_without_custom_objects(kind, tmp_path):
    model = compiled(kind)
    model.train_on_batch(inputs_of(kind), labels_of(kind))
    model.save(str(tmp_path / "model.keras"))
    again = keras.models.load_model(str(tmp_path / "model.keras"))
    assert type(again) is type(model) and again.config == model.config
    assert_same(predictions(again, kind), predictions(model, kind))
    for copy in (keras.models.clone_model(model), type(model).from_config(model.get_config())):
        copy.set_weights(model.get_weights())
        assert_same(predictions(copy, kind), predictions(model, kind))


@pytest.mark.slow
def test_a_keras_file_keeps_our_optimizers_and_a_functional_model_around_two_encoders(tmp_path):
    def inputs(which):
        return {name: keras.Input((None,), dtype="int32", name=f"{which}_{name}")
                for name in ("input_ids", "input_mask")}

    first, second = make("AlbertModel", name="first"), make("AlbertModel", name="second")
    ask, answer = inputs("ask"), inputs("answer")
    vectors = [one(rows)["pooled_output"] for one, rows in ((first, ask), (second, answer))]
    model = keras.Model([ask, answer], keras.layers.Dot(1)(vectors))
    config = optimization.OptimizerConfig("adamw", 1e-3, 100, num_warmup_steps=10)
    model.compile(optimization.create_optimizer(config), "mse")
    batch = {name: inputs_of("AlbertModel")[name] for name in ("input_ids", "input_mask")}
    model.train_on_batch([batch, batch], np.zeros((ROWS, 1)))
    model.save(str(tmp_path / "two.keras"))
    again = keras.models.load_model(str(tmp_path / "two.keras"))
    expected = model.predict([batch, batch], verbose=0)
    np.testing.assert_allclose(again.predict([batch, batch], verbose=0), expected, atol=1e-6)
    assert isinstance(again.optimizer, optimization.AdamWeightDecay)
    assert again.optimizer._learning_rate.get_config() == dataclasses.asdict(
        model.optimizer._learning_rate
    )
    first.save_pretrained(str(tmp_path / "first"))
    alone = albert.AlbertModel.from_pretrained(str(tmp_path / "first"))
    assert_same(predictions(alone, "AlbertModel"), predictions(first, "AlbertModel"))


@EACH
def test_an_exported_model_gives_the_same(kind, tmp_path):
    if not ON_TENSORFLOW:
        pytest.skip("Keras exports from JAX with jax2tf, which is no dependency of ours")
    import tensorflow as tf

    model, batch = make(kind), inputs_of(kind)
    expected = predictions(model, kind)
    model.export(str(tmp_path / "module"), verbose=False, input_signature=[{
        name: keras.InputSpec(shape=(None, *value.shape[1:]), dtype="int32", name=name)
        for name, value in batch.items()
    }])
    module = tf.saved_model.load(str(tmp_path / "module"))
    served = module.serve({name: tf.constant(x, tf.int32) for name, x in batch.items()})
    assert_same({n: np.asarray(v) for n, v in served.items()}, expected, atol=1e-5)


def test_summary_counts_the_parameters(capsys):
    model = make("AlbertForSequenceClassification")
    model.summary(print_fn=print)
    shown = capsys.readouterr().out
    assert f"Total params: {model.count_params():,}" in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "bert" in shown


# --- Precision, quantization, devices ---


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "float32"])
def test_precision_by_argument_is_that_by_policy(policy):
    kind = "AlbertForSequenceClassification"
    keras.config.set_dtype_policy(policy)
    try:
        by_policy = make(kind)
    finally:
        keras.config.set_dtype_policy("float32")
    by_argument = make(kind, dtype=policy)
    assert keras.config.dtype_policy().name == "float32"
    found, expected = (m(inputs_of(kind))["logits"] for m in (by_argument, by_policy))
    assert keras.backend.standardize_dtype(found.dtype) == by_policy.compute_dtype
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(keras.ops.cast(found, "float32")),
        keras.ops.convert_to_numpy(keras.ops.cast(expected, "float32")),
    )
    assert {w.dtype for w in by_argument.weights} == {by_argument.variable_dtype}
    again = type(by_argument).from_config(by_argument.get_config())
    assert again.dtype_policy.name == policy


@pytest.mark.parametrize("kind", [
    pytest.param(k, marks=[] if k in (FAST, "AlbertForBeamQuestionAnswering") else pytest.mark.slow)
    for k in KINDS
])
def test_int8_stays_near_and_is_saved_whole(kind, tmp_path):
    model, batch = make(kind), inputs_of(kind)
    rng = np.random.default_rng(4)
    for weight in model.weights:  # biases too
        weight.assign(weight + rng.normal(0, 0.1, weight.shape))
    expected = predictions(model, kind)
    model.quantize("int8")
    found = predictions(model, kind)
    for name, value in expected.items():
        known = value > -1e29
        error = np.abs(found[name] - value)[known].max()
        assert 0 < error < 0.1 * np.abs(value[known]).max(), name
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_same({name: np.asarray(value) for name, value in again(batch).items()}, found)
    with pytest.raises(UserError, match="the model is quantized: save it by"):
        model.save_pretrained(tmp_path / "directory")
    assert not (tmp_path / "directory").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", [
    {"mode": "int4", "filters": "query|value"},
    {"mode": "float8"},
    {"config": keras.quantizers.Int8QuantizationConfig(
        weight_quantizer=keras.quantizers.AbsMaxQuantizer(axis=0), activation_quantizer=None)},
])
def test_other_quantizations_are_saved_whole(how, tmp_path):
    model = make(FAST)
    model.quantize(**how)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(predictions(again, FAST), predictions(model, FAST))


def test_several_devices_of_keras_distribution_give_the_same():
    if ON_TENSORFLOW:
        pytest.skip("Keras distributes over devices on JAX alone")
    import jax

    assert len(jax.devices()) == 4
    kind = "AlbertForSequenceClassification"
    losses = []
    for devices in (jax.devices(), jax.devices()[:1]):
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=[
            f"cpu:{device.id}" for device in devices]))
        try:
            model = compiled(kind)
            x, y = inputs_of(kind), labels_of(kind)["logits"]
            model.fit(x, y, verbose=0, batch_size=ROWS)
            losses.append(model.evaluate(x, y, verbose=0))
        finally:
            keras.distribution.set_distribution(None)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


# --- More than the head's outputs ---


@EACH
def test_hidden_states_and_attentions_come_when_asked_for(kind):
    model, batch = make(kind), inputs_of(kind)
    plain = predictions(model, kind)
    more = model(batch, output_hidden_states=True, output_attentions=True)
    rows = ROWS * (2 if kind == "AlbertForMultipleChoice" else 1)
    blocks = CONFIG.num_hidden_layers
    assert len(more["encoder_outputs"]) == len(more["attentions"]) == blocks
    assert more["pooled_output"].shape == (rows, CONFIG.hidden_size)
    mask = batch["input_mask"].reshape(rows, LENGTH)
    for probabilities in map(np.asarray, more["attentions"]):
        assert probabilities.shape == (rows, CONFIG.num_attention_heads, LENGTH, LENGTH)
        np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)
        assert np.max(probabilities * (1 - mask[:, None, None])) < 1e-30
    assert_same({name: np.asarray(more[name]) for name in plain}, plain)
    assert not {"encoder_outputs", "attentions"} & plain.keys()


def test_attentions_that_are_not_kept_are_refused():
    options = modeling.EncoderOptions(remat=True)
    model = make("AlbertModel", encoder_options=options)
    with pytest.raises(ValueError, match="output_attentions does not go with remat"):
        model(inputs_of("AlbertModel"), output_attentions=True)


# --- The other backend ---


@NEEDS_JAX
@pytest.mark.slow
@pytest.mark.skipif(not ON_TENSORFLOW, reason="this is the process of the other backend")
def test_all_of_it_holds_on_jax():
    environment = os.environ | {
        "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--jobs=1",
         "-m", "slow or not slow",
         str(pathlib.Path(__file__))],
        env=environment, capture_output=True, text=True, cwd=REPO,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 36


# --- Called as it stands, and compiled ---


ids = np.full((2, 6), 7)


def test_a_call_follows_what_was_changed_on_the_model_since_the_last_one():
    model = make("AlbertForBeamQuestionAnswering")
    assert model(ids)["start_top_index"].shape == (2, 2)
    model.start_n_top = 3
    assert model(ids)["start_top_index"].shape == (2, 3)
    model.encoder_options = dataclasses.replace(model.encoder_options, output_hidden_states=True)
    assert "encoder_outputs" in model(ids)
    feed_forward = model.bert.encoder.groups[0][0].feed_forward
    before = np.asarray(model(ids)["cls_logits"])
    feed_forward.inner.activation = keras.activations.relu
    assert not np.allclose(model(ids)["cls_logits"], before)


def test_a_call_takes_the_values_of_a_scope_for_some_of_the_weights():
    model = make("AlbertModel")
    bias = modeling.named_weights(model)["bert/pooler/dense/bias"]
    with keras.StatelessScope([(bias, keras.ops.full(bias.shape, 9.0))]):
        np.testing.assert_allclose(model(ids)["pooled_output"], 1, atol=1e-4)
    assert np.abs(model(ids)["pooled_output"]).max() < 0.999


@pytest.mark.skipif(not ON_TENSORFLOW, reason="TensorFlow's switch")
def test_models_and_compiled_calls_run_eagerly_where_tensorflow_is_told_to(tmp_path):
    import tensorflow as tf

    model = make("AlbertModel")
    expected = np.asarray(model(ids)["pooled_output"])
    tf.config.run_functions_eagerly(True)
    try:
        for call in (model, albert.compiled(model)):
            np.testing.assert_allclose(call(ids)["pooled_output"], expected, atol=1e-6)
    finally:
        tf.config.run_functions_eagerly(False)


def test_a_compiled_call_gives_what_the_call_gives(monkeypatch):
    for kind in KINDS:
        model, batch = make(kind), inputs_of(kind)
        found = {k: np.asarray(v) for k, v in albert.compiled(model)(batch).items()}
        assert_same(found, predictions(model, kind), atol=1e-5)
    model = make("AlbertForMaskedLM")
    batch = {"input_ids": ids, "masked_lm_positions": np.array([[1, 2], [0, 5]])}  # int64
    call = albert.compiled(model, output_hidden_states=True)
    found = call(batch)
    assert "encoder_outputs" in found
    np.testing.assert_allclose(
        found["prediction_logits"], model(batch)["prediction_logits"], atol=1e-5
    )
    model.set_weights([weight * 0.5 for weight in model.get_weights()])
    np.testing.assert_allclose(
        call(batch)["prediction_logits"], model(batch)["prediction_logits"], atol=1e-5
    )


@pytest.mark.skipif(not ON_TENSORFLOW, reason="JAX compiles each shape")
def test_a_call_is_compiled_once_for_all_lengths(monkeypatch):
    model, passes = make("AlbertModel"), []
    outputs = albert.AlbertModel._outputs
    monkeypatch.setattr(
        albert.AlbertModel, "_outputs",
        lambda self, *arguments: passes.append(1) or outputs(self, *arguments),
    )
    call = albert.compiled(model)
    for rows, length in ((1, 6), (1, 5), (3, 4), (2, 6)):
        assert call(np.full((rows, length), 7))["pooled_output"].shape[0] == rows
    assert len(passes) == 1


@pytest.mark.skipif(not ON_TENSORFLOW, reason="JAX runs it as it stands")
def test_a_call_outside_of_a_graph_has_gradients():
    import tensorflow as tf

    model = albert.AlbertModel(CONFIG)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model({"input_ids": np.full((2, 6), 7)})["pooled_output"])
    found = tape.gradient(loss, [v.value for v in model.trainable_variables])
    assert all(gradient is not None for gradient in found)


def test_public_layers_and_shapes_answer_as_keras_asks():
    for kind in (modeling.FactorizedEmbedding, modeling.AlbertEncoder):
        again = kind.from_config(kind(CONFIG, name="mine").get_config())
        assert again.config == CONFIG and again.name == "mine"
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = modeling.AlbertForSequenceClassification(CONFIG, num_labels=3)
    ids = keras.KerasTensor((None, 6), "int32")
    assert model.compute_output_spec({"input_ids": ids})["logits"].dtype == "bfloat16"
    assert model.compute_output_shape((4, 6)) == {"logits": (4, 3)}


def test_models_train_in_a_remat_scope_and_eagerly_and_export_without_a_signature(tmp_path):
    ids, labels = np.full((4, 6), 7, "int32"), {"logits": np.zeros(4, int)}
    loss = {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    with keras.RematScope(mode="full"):
        model = modeling.AlbertForSequenceClassification(CONFIG, num_labels=3)
    assert model.encoder_options.remat
    for is_eager in (False, keras.backend.backend() == "tensorflow"):
        model.compile("sgd", loss=loss, run_eagerly=is_eager)
        model.fit({"input_ids": ids}, labels, verbose=0)
    model.export(tmp_path / "served")
    assert (tmp_path / "served" / "saved_model.pb").exists()


def test_a_functional_model_may_return_all_outputs():
    ids = keras.Input((None,), dtype="int32")
    encoder = modeling.AlbertModel(CONFIG)
    whole = keras.Model(ids, encoder(input_ids=ids))
    x = np.full((2, 5), 7, "int32")
    np.testing.assert_allclose(whole(x)["pooled_output"], encoder(x).pooled_output, rtol=1e-5)
