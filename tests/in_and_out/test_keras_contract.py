"""Each of our model classes keeps Keras's promises and is called in the usual ways, on both engines.

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
IDS = [[2, 7, 8, 3, 0], [2, 9, 3, 0, 0]]
MASK = [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
TYPES = [[0, 0, 1, 1, 0], [0, 0, 0, 0, 0]]
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
    more = arrays({**model(x, output_hidden_states=True), "encoder_outputs": 0})
    assert "encoder_outputs" not in expected and "pooled_output" in more
    assert_same({name: more[name] for name in expected}, expected)
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


def test_a_model_made_of_several_of_ours_is_saved_and_may_return_all_outputs(tmp_path):
    first, second = make("AlbertModel"), make("AlbertModel")
    second.set_weights([weight * 0.5 for weight in second.get_weights()])
    ask, answer = (keras.Input((None,), dtype="int32", name=name) for name in ("ask", "answer"))
    outputs = {"first": first(input_ids=ask), "second": second({"input_ids": answer})}
    model = keras.Model([ask, answer], outputs)
    model.save(str(tmp_path / "two.keras"))
    ids = np.array(IDS)
    for one in (model, keras.models.load_model(str(tmp_path / "two.keras"))):
        found = one([ids, ids + 1])
        for name, part, ids_of in (("first", first, ids), ("second", second, ids + 1)):
            assert_same(arrays(found[name]), arrays(part(ids_of)), atol=1e-5)


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
        is_trained = copy == "save"
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
            named, trained = modeling.named_weights(again), {v.path for v in again.trainable_variables}
            moved = {name for name, weight in named.items() if not np.array_equal(before[name], weight)}
            assert moved == {name for name, weight in named.items() if weight.path in trained}


@pytest.mark.parametrize("copy", [
    "save", "save_pretrained",
    *(pytest.param(copy, marks=pytest.mark.slow) for copy in ("deepcopy", "clone_model")),
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


def test_precision_by_argument_is_that_by_policy():
    policy = "mixed_bfloat16"
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
    # All but the three of TensorFlow alone, of which this is one.
    assert int(re.search(r"(\d+) passed, 3 skipped", done.stdout)[1]) >= 59


# --- Called directly, and compiled ---


@pytest.fixture(scope="module")
def classifier():
    return make(FAST, layers=2)


@pytest.fixture(scope="module")
def encoder():
    return make("AlbertModel", layers=2)


def test_every_way_of_calling_gives_the_same(classifier):
    ours = {"input_ids": np.array(IDS, np.int32), "input_mask": np.array(MASK, np.int32),
            "segment_ids": np.array(TYPES, np.int32)}
    expected = np.asarray(classifier(ours)["logits"])
    theirs = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES}
    tensors = {name: keras.ops.convert_to_tensor(value) for name, value in ours.items()}
    ways = {
        "keywords": classifier(**ours),
        "keywords of Hugging Face, lists": classifier(**theirs),
        "a dict of Hugging Face, lists": classifier(theirs),
        "int64": classifier({name: np.array(value, np.int64) for name, value in theirs.items()}),
        "whole floats": classifier({name: np.array(value, np.float32) for name, value in theirs.items()}),
        "tensors": classifier(tensors),
        "ids first": classifier(IDS, attention_mask=MASK, token_type_ids=TYPES),
        "tuples": classifier(tuple(map(tuple, IDS)), input_mask=MASK, segment_ids=TYPES),
        "a tokenizer's offsets": classifier(theirs, offset_mapping=np.zeros((2, 5, 2), int)),
        "an input that is None": classifier(theirs, labels=None),
        "positions": classifier(theirs, position_ids=[[0, 1, 2, 3, 4]]),
    }
    for way, outputs in ways.items():
        np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5, err_msg=way)
    # Mask, segments and positions matter; by default, all is text of one segment, from position 0.
    ones, zeros = np.ones_like(IDS), np.zeros_like(IDS)
    np.testing.assert_allclose(
        classifier(IDS).logits, classifier(IDS, input_mask=ones, segment_ids=zeros).logits, rtol=1e-5
    )
    for other in (
        classifier(IDS, token_type_ids=TYPES), classifier(IDS, attention_mask=MASK),
        classifier(theirs, position_ids=[[4, 5, 6, 7, 8]] * 2),
    ):
        assert np.abs(np.asarray(other.logits) - expected).max() > 1e-3


def test_outputs_have_attributes_in_graphs_too(classifier, encoder):
    outputs = classifier(IDS)
    assert outputs.logits is outputs["logits"] and list(outputs) == ["logits"]
    encoded = encoder(IDS)
    assert encoded.last_hidden_state is encoded["last_hidden_state"] is encoded["sequence_output"]
    assert encoded.pooler_output is encoded.pooled_output
    with pytest.raises(AttributeError, match="'loss' among logits"):
        outputs.loss  # noqa: B018
    if ON_TENSORFLOW:
        import tensorflow as tf

        compiled = tf.function(lambda ids: classifier(ids).logits)
    else:
        import jax

        compiled = jax.jit(lambda ids: classifier(ids).logits)
    np.testing.assert_allclose(compiled(keras.ops.convert_to_tensor(IDS)), outputs.logits, rtol=1e-5)
    ids = keras.Input((None,), dtype="int32")
    functional = keras.Model(ids, classifier(input_ids=ids).logits)
    np.testing.assert_allclose(functional(np.array(IDS)), outputs.logits, rtol=1e-5)


def fitted(model, inputs):
    model.compile("sgd", sparse())
    model.fit(inputs, verbose=0)


@pytest.mark.parametrize("call, what", [
    (lambda m: m(IDS, attention_maks=MASK), "unknown input 'attention_maks'; known are input_ids"),
    (lambda m: m({"input_ids": IDS, "token_type_id": TYPES}), "known are .*, token_type_ids"),
    (lambda m: m(IDS, inputs_embeds=1), "unknown input 'inputs_embeds'"),
    (lambda m: m(IDS, masked_lm_positions=[[0], [1]]), "unknown input 'masked_lm_positions'"),
    (lambda m: m(IDS, attention_mask=MASK, input_mask=MASK), "input_mask is given twice"),
    (lambda m: m([[2, 3], [2, 7, 3]]), "several lengths: pad them"),
    (lambda m: m(), r"input_ids must be \[examples, tokens\], got \[\]"),
    (lambda m: m(attention_mask=MASK), r"input_ids must be \[examples, tokens\]"),
    (lambda m: m(IDS[0]), r"input_ids must be \[examples, tokens\], got \[5\]"),
    (lambda m: m([IDS, MASK, TYPES]), r"input_ids must be \[examples, tokens\], got \[3, 2, 5\]"),
    (lambda m: m([list(range(17))]), "sequences have 17 tokens, the model reads at most 16"),
    *((lambda m, texts=texts: m(texts), r"call it with tokenizer\(texts, padding=True")
      for texts in ("a text", ["a text"], np.array(["a text"]), {"input_ids": ["a text"]})),
    (lambda m: m.predict(["a text"]), r"call it with tokenizer\(texts, padding=True"),
    *((lambda m, name=name: m(IDS, **{name: [1, 0]}), f"{name}: labels are no inputs: .*fit")
      for name in ("labels", "start_positions", "sentence_order_label", "label_ids")),
    *((lambda m, ids=ids: m(ids), f"input_ids has {value}: the model has 0 to 39") for ids, value in (
        ([[2, -1]], -1), ([[2, 3], [40, 3]], 40), ([[2, 2**32 + 5]], 2**32 + 5), ([[2, 3.5]], 3.5),
        (np.array([[np.nan]]), "nan"),
    )),
    (lambda m: fitted(m, {"input_ids": np.array(IDS), "labels": np.array([1, 0])}), "labels are no inputs"),
    (lambda m: m([[2, 3]], token_type_ids=[[2, 0]]), "segment_ids has 2: the model has 0 to 1"),
    (lambda m: m([[2, 3]], position_ids=[[0, 16]]), "position_ids has 16: the model has 0 to 15"),
])
def test_a_wrong_call_says_what_is_wrong(call, what, classifier):
    with pytest.raises(ValueError, match=what):
        call(classifier)


@pytest.mark.parametrize("options", [
    {"has_loop": True, "remat": True}, {"needed_outputs_only": True},
])
def test_hidden_states_are_all_there_however_the_encoder_computes(options, encoder):
    expected = encoder(IDS, output_hidden_states=True)
    assert len(expected.hidden_states) == 1 + 2
    projected = encoder.encoder.embedding_projection(expected.embedding_output)
    np.testing.assert_allclose(expected.hidden_states[0], projected, rtol=1e-5, atol=1e-6)
    assert expected.hidden_states[-1] is expected.sequence_output
    model = make("AlbertModel", 2, encoder_options=modeling.EncoderOptions(**options))
    model.set_weights(encoder.get_weights())
    found = model(IDS, output_hidden_states=True)
    assert list(found) == list(expected)
    for ours, theirs in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_labels_of_minus_100_count_neither_in_the_loss_nor_in_the_accuracy():
    model = make("AlbertForTokenClassification")
    predicted = np.argmax(model(IDS).logits, -1)
    labels = np.full_like(predicted, -100)
    labels[0, 1:3], labels[1, 1] = predicted[0, 1:3], (predicted[1, 1] + 1) % 3
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)
    model.compile("sgd", loss, metrics=[modeling.LabelAccuracy()])
    found = model.evaluate(np.array(IDS), labels, verbose=0, return_dict=True)
    log_probabilities = np.asarray(keras.ops.log_softmax(model(IDS).logits))
    where = np.nonzero(labels >= 0)
    expected = -np.mean(log_probabilities[(*where, labels[where])])
    assert found == pytest.approx({"loss": expected, "accuracy": 2 / 3}, rel=1e-5)


def test_a_model_is_trained_with_the_outputs_of_another():
    keras.utils.set_random_seed(2)
    teacher, student = (albert.AlbertForQuestionAnswering(CONFIG) for _ in range(2))
    student.compile(keras.optimizers.Adam(0.01), {"start_logits": "mse", "end_logits": "mse"})
    losses = student.fit(np.array(IDS), teacher(IDS), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_choices_are_an_axis_of_their_own():
    model = albert.AlbertForMultipleChoice(CONFIG, num_choices=4)
    for shape in ((2, 6), (4, 3), (8,), (1, 2, 4, 3)):
        with pytest.raises(ValueError, match=r"^input_ids must be \[examples, choices, tokens\]"):
            model(np.ones(shape, "int32"))
    assert model(np.ones((2, 4, 3), "int32"))["logits"].shape == (2, 4)


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
