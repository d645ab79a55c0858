"""Each of our model classes keeps Keras's promises, on TensorFlow and on JAX.

For JAX, this module runs again in a separate process.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
from copy import deepcopy

import keras
import numpy as np
import pytest
from helpers import NEEDS_JAX, REPO, SIZES

import albert
from albert import modeling, optimization

ROWS, LENGTH, VOCAB = 8, 12, SIZES["vocab_size"]
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
CONFIG = modeling.AlbertConfig(**SIZES | {
    "initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "num_hidden_layers": 1,
})
IDS = np.full((2, 6), 7)
ONLY_TENSORFLOW = pytest.mark.skipif(not ON_TENSORFLOW, reason="of TensorFlow alone")


def sparse():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def binary():
    return keras.losses.BinaryCrossentropy(from_logits=True)


# For each class: its arguments, losses by output, and labels [B, ...] below these numbers.
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
# The fast tests use this class; the others are slow, and all run on JAX.
FAST = "AlbertForSequenceClassification"
EACH = pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k == FAST else pytest.mark.slow) for k in KINDS]
)


def make(kind, layers=1, **options):
    keras.utils.set_random_seed(1)
    config = dataclasses.replace(CONFIG, num_hidden_layers=layers)
    return getattr(albert, kind)(config, *KINDS[kind][0], **options)


def inputs_of(kind):
    rng = np.random.default_rng(2)
    shape = (ROWS, 2, LENGTH) if kind == "AlbertForMultipleChoice" else (ROWS, LENGTH)
    ids = rng.integers(5, VOCAB, shape).astype("int32")
    used = rng.integers(9, LENGTH + 1, shape[:-1])[..., None]
    mask = (np.arange(LENGTH) < used).astype("int32")
    batch = {"input_ids": ids * mask, "input_mask": mask, "segment_ids": (np.arange(LENGTH) > 4) * mask}
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
    model = make(kind)
    losses = {n: one if isinstance(one, str) else one() for n, one in KINDS[kind][1].items()}
    optimizer = optimization.create_optimizer(
        optimization.OptimizerConfig("adamw", 0.002, num_train_steps=100)
    )
    model.compile(optimizer=optimizer, loss=losses, jit_compile=False, **options)
    return model


def arrays(outputs):
    return {name: np.asarray(value) for name, value in outputs.items()}


def predictions(model, kind):
    return arrays(model(inputs_of(kind)))


def assert_same(found, expected, atol=0.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=atol, err_msg=name)


# --- Trained by Keras, saved, and rebuilt ---


@EACH
def test_fit_learns_and_what_it_learned_is_predicted_saved_and_exported(kind, tmp_path):
    model, x, y = compiled(kind), inputs_of(kind), labels_of(kind)
    first = model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    history = model.fit(x, y, epochs=15, batch_size=ROWS, verbose=0).history["loss"]
    last = model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    assert history[-1] < history[0] and last < 0.9 * first
    assert np.all(np.isfinite(model.train_on_batch(x, y)))
    expected = predictions(model, kind)
    assert_same(model.predict(x, verbose=0), expected, atol=1e-5)
    # No custom objects are needed, not even for our optimizer.
    model.save(str(tmp_path / "model.keras"))
    again = keras.models.load_model(str(tmp_path / "model.keras"))
    assert type(again) is type(model) and again.config == model.config
    assert_same(predictions(again, kind), expected)
    assert isinstance(again.optimizer, optimization.AdamWeightDecay)
    assert again.optimizer._learning_rate.get_config() == dataclasses.asdict(model.optimizer._learning_rate)
    copy = keras.models.clone_model(model)  # by from_config
    copy.set_weights(model.get_weights())
    assert_same(predictions(copy, kind), expected)
    if ON_TENSORFLOW:  # Keras exports from JAX with jax2tf, which is not one of our dependencies
        import tensorflow as tf

        model.export(str(tmp_path / "module"), verbose=False)
        module = tf.saved_model.load(str(tmp_path / "module"))
        # A module has no start positions: it searches for the best ones itself.
        served = {name: value for name, value in x.items() if name != "start_positions"}
        found = module.serve({name: tf.constant(value, tf.int32) for name, value in served.items()})
        assert_same(arrays(found), arrays(model(served)), atol=1e-5)


def test_fit_takes_bare_arrays_what_the_tokenizer_makes_and_a_tf_data_set(tmp_path):
    model = make(FAST)
    model.compile("adam", sparse(), metrics=["accuracy"], jit_compile=False, run_eagerly=ON_TENSORFLOW)
    ids, labels = inputs_of(FAST)["input_ids"], labels_of(FAST)["logits"]
    assert set(model.fit(ids, labels, verbose=0).history) == {"loss", "accuracy"}
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(VOCAB - 5))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(tmp_path / "vocab.txt"))
    texts = [f"word{i} word{i + 1}" for i in range(ROWS)]
    encoded = tokenizer(texts, padding=True, return_tensors="np", return_offsets_mapping=True)
    used = make(FAST)  # not yet built by Keras
    used.compile("adam", sparse(), jit_compile=False, run_eagerly=ON_TENSORFLOW)
    used.fit(encoded, labels, verbose=0)
    expected = np.asarray(used(encoded)["logits"])
    np.testing.assert_allclose(used.predict(encoded, verbose=0)["logits"], expected, atol=1e-5)
    if ON_TENSORFLOW:
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((inputs_of(FAST), labels))
        assert np.isfinite(model.fit(data.batch(4), verbose=0).history["loss"]).all()


@ONLY_TENSORFLOW
def test_the_first_fit_traces_the_step_only_once(monkeypatch):
    kind = "AlbertForSequenceClassification"
    model, calls = compiled(kind), []
    call = type(model).call
    monkeypatch.setattr(type(model), "call", lambda self, *a, **k: (calls.append(1), call(self, *a, **k))[1])
    model.fit(inputs_of(kind), labels_of(kind), batch_size=ROWS, epochs=2, verbose=0)
    assert len(calls) == 1


def test_frozen_parts_keep_their_weights():
    for part in ("embeddings", "encoder", "bert"):
        model = compiled(FAST, run_eagerly=True)
        frozen = model.bert if part == "bert" else getattr(model.bert, part)
        frozen.trainable = False
        named = modeling.named_weights(model)
        fixed = {name for name, w in named.items() if any(w is one for one in frozen.weights)}
        before = {name: np.array(w) for name, w in named.items()}
        model.train_on_batch(inputs_of(FAST), labels_of(FAST)["logits"])
        same = {name for name, w in named.items() if np.array_equal(before[name], w)}
        assert same == fixed and 0 < len(fixed) < len(named)


def test_a_model_made_of_several_of_ours_is_saved_and_may_return_all_outputs(tmp_path):
    first, second = make("AlbertModel"), make("AlbertModel")
    second.set_weights([weight * 0.5 for weight in second.get_weights()])
    ask, answer = (keras.Input((None,), dtype="int32", name=name) for name in ("ask", "answer"))
    outputs = {"first": first(input_ids=ask), "second": second({"input_ids": answer})}
    model = keras.Model([ask, answer], outputs)
    model.save(str(tmp_path / "two.keras"))
    for one in (model, keras.models.load_model(str(tmp_path / "two.keras"))):
        found = one([IDS, IDS + 1])
        for name, part, ids in (("first", first, IDS), ("second", second, IDS + 1)):
            assert_same(arrays(found[name]), arrays(part(ids)), atol=1e-5)


@pytest.mark.parametrize("copy", [
    "save", "clone_model", pytest.param("deepcopy", marks=pytest.mark.slow),
])
def test_what_was_frozen_is_frozen_in_every_copy(copy, tmp_path):
    def freeze_bert(model):
        model.bert.trainable = False

    def freeze_some(model):
        model.bert.embeddings.trainable = False
        model.bert.encoder.groups[0][0].attention.key.trainable = False
        model.classifier.output_bias.trainable = False

    def thaw_some(model):
        model.trainable = False
        model.bert.encoder.groups[0][0].feed_forward.trainable = True

    for freeze, count in ((freeze_bert, 2), (freeze_some, None), (thaw_some, 0)):
        model = make(FAST)
        freeze(model)
        names = {v.path for v in model.trainable_variables}
        assert count is None or len(names) == count
        is_trained = copy == "save" and freeze is freeze_bert
        batch, labels = inputs_of(FAST), labels_of(FAST)["logits"]
        if is_trained:
            model.compile("adam", sparse(), run_eagerly=ON_TENSORFLOW)
            model.train_on_batch(batch, labels)
        if copy == "save":
            model.save(tmp_path / "model.keras")
            again = keras.models.load_model(tmp_path / "model.keras")
        elif copy == "deepcopy":
            again = deepcopy(model)
        else:
            again = keras.models.clone_model(model)
        assert {v.path for v in again.trainable_variables} == names
        assert [p.trainable for p in again._parts().values()] == [
            p.trainable for p in model._parts().values()]
        if is_trained:
            for slot, expected in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
                np.testing.assert_array_equal(slot, expected, err_msg=slot.path)
            before = {name: np.array(w) for name, w in modeling.named_weights(again).items()}
            again.train_on_batch(batch, labels)
            moved = {n for n, w in modeling.named_weights(again).items() if not np.array_equal(before[n], w)}
            assert moved == {"output_weights", "output_bias"}


@pytest.mark.parametrize("copy", [
    "save", "save_pretrained", *(pytest.param(c, marks=pytest.mark.slow) for c in ("deepcopy", "clone_model")),
])
def test_lora_is_merged_in_every_copy_whose_weights_are_all_trained_again(copy, tmp_path):
    model = make(FAST)
    count = len(model.trainable_variables)
    attention = model.bert.encoder.groups[0][0].attention
    attention.query.enable_lora(2)
    attention.query.lora_kernel_b.assign(keras.ops.ones(attention.query.lora_kernel_b.shape))
    attention.value.trainable = False
    attention.value.enable_lora(2)
    expected = predictions(model, FAST)
    if copy == "save":
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
    elif copy == "save_pretrained":
        model.save_pretrained(tmp_path / "model")
        again = albert.from_pretrained(tmp_path / "model")
    else:
        again = deepcopy(model) if copy == "deepcopy" else keras.models.clone_model(model)
    if copy != "clone_model":  # which has new weights
        assert_same(predictions(again, FAST), expected, atol=1e-5)
    assert len(again.variables) == len(make(FAST).variables)
    frozen = 0 if copy == "save_pretrained" else 2  # of `value`, by the user
    assert len(again.trainable_variables) == count - frozen


def test_a_file_that_keras_could_not_load_is_refused(tmp_path):
    with pytest.raises(ValueError, match="HDF5 holds weights alone: save a file that ends in .keras"):
        make(FAST).save(tmp_path / "model.h5")
    assert not list(tmp_path.iterdir())


@keras.saving.register_keras_serializable("tests")
class Weighed(albert.AlbertForSequenceClassification):
    """A user's own class, which passes on whatever it is given."""

    def __init__(self, *args, factor=2.0, **kwargs):
        self.factor = factor
        super().__init__(*args, **kwargs)


def test_a_users_subclass_is_saved_with_its_own_arguments(tmp_path):
    model = Weighed(CONFIG, 3, factor=5.0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is Weighed and again.factor == 5.0 and again.num_labels == 3
    np.testing.assert_array_equal(again(IDS)["logits"], model(IDS)["logits"])
    del model.factor
    with pytest.raises(NotImplementedError, match="takes 'factor': keep it as an attribute"):
        model.get_config()


def test_a_model_that_is_built_again_keeps_its_weights():
    for kind in (FAST, "AlbertForPreTraining"):
        model = make(kind)
        before = model.get_weights()
        model.build((None, LENGTH))
        model.build({"input_ids": (None, LENGTH)})
        for weight, expected in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(weight, expected)
    for layer in (modeling.FactorizedEmbedding(CONFIG), modeling.AlbertEncoder(CONFIG)):
        layer.build()
        count = len(layer.weights)
        layer.build((None, LENGTH, 8))
        assert len(layer.weights) == count > 0


# --- Precision, devices ---


@pytest.mark.parametrize("policy", ["mixed_bfloat16", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_precision_by_argument_is_that_by_policy(policy):
    keras.config.set_dtype_policy(policy)
    by_policy = make(FAST)
    keras.config.set_dtype_policy("float32")
    by_argument = make(FAST, dtype=policy)
    assert keras.config.dtype_policy().name == "float32"
    found, expected = (m(inputs_of(FAST))["logits"] for m in (by_argument, by_policy))
    assert keras.backend.standardize_dtype(found.dtype) == by_policy.compute_dtype == "bfloat16"
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(keras.ops.cast(found, "float32")),
        keras.ops.convert_to_numpy(keras.ops.cast(expected, "float32")),
    )
    assert {w.dtype for w in by_argument.weights} == {by_argument.variable_dtype}
    again = type(by_argument).from_config(by_argument.get_config())
    assert again.dtype_policy.name == policy


@NEEDS_JAX
@pytest.mark.slow
@pytest.mark.timeout(1800)  # minutes of two idle cores
@ONLY_TENSORFLOW
def test_all_of_it_holds_on_jax():
    environment = os.environ | {
        "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--jobs=1",
         "-m", "slow or not slow", str(pathlib.Path(__file__))],
        env=environment, capture_output=True, text=True, cwd=REPO,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    # All but the two of TensorFlow alone, of which this is one.
    assert int(re.search(r"(\d+) passed, 2 skipped", done.stdout)[1]) >= 34


# --- Called directly, and compiled ---


@EACH
def test_hidden_states_come_when_asked_for(kind):
    model, batch = make(kind, layers=2), inputs_of(kind)
    plain = predictions(model, kind)
    more = model(batch, output_hidden_states=True)
    rows = ROWS * (2 if kind == "AlbertForMultipleChoice" else 1)
    assert len(more["encoder_outputs"]) == 2
    assert more["pooled_output"].shape == (rows, CONFIG.hidden_size)
    assert_same({name: np.asarray(more[name]) for name in plain}, plain)
    assert "encoder_outputs" not in plain


def test_a_call_follows_what_was_changed_on_the_model_since_the_last_one():
    model = make("AlbertForBeamQuestionAnswering")
    assert model(IDS)["start_top_index"].shape == (2, 2)
    model.start_n_top = 3
    assert model(IDS)["start_top_index"].shape == (2, 3)
    feed_forward = model.bert.encoder.groups[0][0].feed_forward
    before = np.asarray(model(IDS)["cls_logits"])
    feed_forward.inner.activation = keras.activations.relu
    assert not np.allclose(model(IDS)["cls_logits"], before)
    bias = modeling.named_weights(model)["bert/pooler/dense/bias"]
    with keras.StatelessScope([(bias, keras.ops.full(bias.shape, 9.0))]):
        np.testing.assert_allclose(model.bert(IDS)["pooled_output"], 1, atol=1e-4)
    assert np.abs(model.bert(IDS)["pooled_output"]).max() < 0.999


@ONLY_TENSORFLOW
def test_calls_and_fit_run_eagerly_where_tensorflow_is_told_to_and_have_gradients():
    import tensorflow as tf

    model = make("AlbertModel")
    with tf.GradientTape() as tape:
        expected = model({"input_ids": IDS})["pooled_output"]
        loss = tf.reduce_sum(expected) + tf.reduce_sum(model(IDS)["sequence_output"] ** 2)
    found = tape.gradient(loss, [v.value for v in model.trainable_variables])
    assert all(gradient is not None for gradient in found)
    tf.config.run_functions_eagerly(True)
    try:
        np.testing.assert_allclose(model(IDS)["pooled_output"], expected, atol=1e-6)
        history = compiled(FAST).fit(inputs_of(FAST), labels_of(FAST), verbose=0).history
        assert np.isfinite(history["loss"]).all()
    finally:
        tf.config.run_functions_eagerly(False)


def test_layers_and_summaries_are_those_of_keras(capsys):
    for kind in (modeling.FactorizedEmbedding, modeling.AlbertEncoder):
        again = kind.from_config(kind(CONFIG, name="mine").get_config())
        assert again.config == CONFIG and again.name == "mine"
    model = make(FAST)
    model.summary(print_fn=print)
    shown = capsys.readouterr().out
    assert f"Total params: {model.count_params():,}" in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert model.get_input_embeddings().word_embeddings.shape == (VOCAB, CONFIG.embedding_size)


def test_all_layers_but_the_last_are_frozen_as_in_any_keras_model():
    for kind in set(KINDS) - {"AlbertModel", "AlbertForPreTraining", "AlbertForBeamQuestionAnswering"}:
        model = make(kind)
        for layer in model.layers[:-1]:
            layer.trainable = False
        named = {name for name, weight in modeling.named_weights(model).items() if weight.trainable}
        assert named and not [name for name in named if name.startswith("bert/")]
