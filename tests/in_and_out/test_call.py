"""A model accepts the usual ways to call it, and a wrong call is refused, never ignored."""

import keras
import numpy as np
import pytest
from keras import ops

import albert
from albert import modeling
from albert.config import AlbertConfig

CONFIG = AlbertConfig(
    61, 9, 16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=12, initializer_range=0.3,
)
IDS = [[2, 7, 8, 3, 0], [2, 9, 3, 0, 0]]
MASK = [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
TYPES = [[0, 0, 1, 1, 0], [0, 0, 0, 0, 0]]


@pytest.fixture(scope="module")
def classifier():
    keras.utils.set_random_seed(1)
    return modeling.AlbertForSequenceClassification(CONFIG, num_labels=3)


@pytest.fixture(scope="module")
def encoder():
    return modeling.AlbertModel(CONFIG)


def test_every_way_of_calling_gives_the_same(classifier):
    ours = {"input_ids": np.array(IDS, np.int32), "input_mask": np.array(MASK, np.int32),
            "segment_ids": np.array(TYPES, np.int32)}
    expected = np.asarray(classifier(ours)["logits"])
    theirs = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES}
    tensors = {name: ops.convert_to_tensor(value) for name, value in ours.items()}
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
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        compiled = tf.function(lambda ids: classifier(ids).logits)
    else:
        import jax

        compiled = jax.jit(lambda ids: classifier(ids).logits)
    np.testing.assert_allclose(compiled(ops.convert_to_tensor(IDS)), outputs.logits, rtol=1e-5)
    ids = keras.Input((None,), dtype="int32")
    functional = keras.Model(ids, classifier(input_ids=ids).logits)
    np.testing.assert_allclose(functional(np.array(IDS)), outputs.logits, rtol=1e-5)


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
    (lambda m: m([list(range(13))]), "sequences have 13 tokens, the model reads at most 12"),
    *((lambda m, texts=texts: m(texts), r"call it with tokenizer\(texts, padding=True")
      for texts in ("a text", ["a text"], np.array(["a text"]), {"input_ids": ["a text"]})),
    (lambda m: m.predict(["a text"]), r"call it with tokenizer\(texts, padding=True"),
    *((lambda m, name=name: m(IDS, **{name: [1, 0]}), f"{name}: labels are no inputs: .*fit")
      for name in ("labels", "start_positions", "sentence_order_label", "label_ids")),
    *((lambda m, ids=ids: m(ids), f"input_ids has {value}: the model has 0 to 60") for ids, value in (
        ([[2, -1]], -1), ([[2, 3], [61, 3]], 61), ([[2, 2**32 + 5]], 2**32 + 5), ([[2, 3.5]], 3.5),
        (np.array([[np.nan]]), "nan"),
    )),
    (lambda m: m([[2, 3]], token_type_ids=[[2, 0]]), "segment_ids has 2: the model has 0 to 1"),
    (lambda m: m([[2, 3]], position_ids=[[0, 12]]), "position_ids has 12: the model has 0 to 11"),
])
def test_a_wrong_call_says_what_is_wrong(call, what, classifier):
    with pytest.raises(ValueError, match=what):
        call(classifier)


def test_labels_among_the_inputs_are_refused_by_fit_too(classifier):
    classifier.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="labels are no inputs"):
        classifier.fit({"input_ids": np.array(IDS), "labels": np.array([1, 0])}, verbose=0)


@pytest.mark.parametrize("options", [
    {"has_loop": True, "remat": True}, {"needed_outputs_only": True},
])
def test_hidden_states_are_all_there_however_the_encoder_computes(options, encoder):
    expected = encoder(IDS, output_hidden_states=True)
    assert len(expected.hidden_states) == 1 + CONFIG.num_hidden_layers
    projected = encoder.encoder.embedding_projection(expected.embedding_output)
    np.testing.assert_allclose(expected.hidden_states[0], projected, rtol=1e-5, atol=1e-6)
    assert expected.hidden_states[-1] is expected.sequence_output
    model = modeling.AlbertModel(CONFIG, encoder_options=modeling.EncoderOptions(**options))
    model.set_weights(encoder.get_weights())
    found = model(IDS, output_hidden_states=True)
    assert list(found) == list(expected)
    for ours, theirs in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_labels_of_minus_100_count_neither_in_the_loss_nor_in_the_accuracy():
    model = modeling.AlbertForTokenClassification(CONFIG, num_labels=4)
    predicted = np.argmax(model(IDS).logits, -1)
    labels = np.full_like(predicted, -100)
    labels[0, 1:3], labels[1, 1] = predicted[0, 1:3], (predicted[1, 1] + 1) % 4
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)
    model.compile("sgd", loss, metrics=[modeling.LabelAccuracy()])
    found = model.evaluate(np.array(IDS), labels, verbose=0, return_dict=True)
    log_probabilities = np.asarray(ops.log_softmax(model(IDS).logits))
    where = np.nonzero(labels >= 0)
    expected = -np.mean(log_probabilities[(*where, labels[where])])
    assert found == pytest.approx({"loss": expected, "accuracy": 2 / 3}, rel=1e-5)


def test_a_model_is_trained_with_the_outputs_of_another():
    keras.utils.set_random_seed(2)
    teacher, student = (modeling.AlbertForQuestionAnswering(CONFIG) for _ in range(2))
    student.compile(keras.optimizers.Adam(0.01), {"start_logits": "mse", "end_logits": "mse"})
    losses = student.fit(np.array(IDS), teacher(IDS), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_choices_are_an_axis_of_their_own():
    model = albert.AlbertForMultipleChoice(CONFIG, num_choices=4)
    for shape in ((2, 6), (4, 3), (8,), (1, 2, 4, 3)):
        with pytest.raises(ValueError, match=r"^input_ids must be \[examples, choices, tokens\]"):
            model(np.ones(shape, "int32"))
    assert model(np.ones((2, 4, 3), "int32"))["logits"].shape == (2, 4)
