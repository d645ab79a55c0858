"""A model accepts the usual ways to call it, and a wrong name is refused, never ignored."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import albert
from albert import modeling
from albert.config import AlbertConfig
from albert.model.encoder_options import loop_engine

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
        "tensors": classifier(tensors),
        "lists of tensors": classifier({name: [*value] for name, value in tensors.items()}),
        "ids first": classifier(IDS, attention_mask=MASK, token_type_ids=TYPES),
        "tuples": classifier(tuple(map(tuple, IDS)), input_mask=MASK, segment_ids=TYPES),
        "a tokenizer's offsets": classifier(theirs, offset_mapping=np.zeros((2, 5, 2), int)),
        "a list in Keras's order": classifier([ours["input_ids"], ours["input_mask"], ours["segment_ids"]]),
        "a list of lists": classifier([IDS, MASK, TYPES]),
        "an input that is None": classifier(theirs, labels=None),
        "positions": classifier(theirs, position_ids=[[0, 1, 2, 3, 4]]),
    }
    for way, outputs in ways.items():
        np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5, err_msg=way)
    assert classifier(ours, return_dict=True).keys() == {"logits"}
    (logits,) = classifier(ours, return_dict=False)
    np.testing.assert_array_equal(logits, expected)
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


def test_outputs_have_attributes(classifier, encoder):
    outputs = classifier(IDS)
    assert outputs.logits is outputs["logits"] and list(outputs) == ["logits"]
    encoded = encoder(IDS)
    assert encoded.last_hidden_state is encoded["last_hidden_state"] is encoded["sequence_output"]
    assert encoded.pooler_output is encoded.pooled_output
    with pytest.raises(AttributeError, match="'loss' among logits"):
        outputs.loss  # noqa: B018
    with pytest.raises(ValueError, match="AlbertModel has no loss"):
        encoder(IDS, labels=[1, 0])


@pytest.mark.parametrize("call, what", [
    (lambda m: m(IDS, attention_maks=MASK), "unknown input 'attention_maks'; known are input_ids"),
    (lambda m: m({"input_ids": IDS, "token_type_id": TYPES}), "known are .*, token_type_ids, labels"),
    (lambda m: m(IDS, colour=1), "unknown input 'colour'; known are input_ids"),
    (lambda m: m(IDS, inputs_embeds=1), "inputs_embeds isn't supported"),
    (lambda m: m(IDS, attention_mask=MASK, input_mask=MASK), r"input_mask \(also called attention_mask\) is given twice"),
    (lambda m: m([[2, 3], [2, 7, 3]]), "several lengths: pad them"),
    (lambda m: m(["a text"]), "isn't a list of numbers"),
    (lambda m: m(), "no input_ids"),
    (lambda m: m(attention_mask=MASK), "no input_ids"),
    (lambda m: m([IDS] * 5), r"input_ids has the shape \(5, 2, 5\), at most 2 dimensions"),
    (lambda m: m([list(range(13))]), "sequences have 13 tokens, the model reads at most 12"),
])
def test_a_wrong_call_says_what_is_wrong(call, what, classifier):
    with pytest.raises(ValueError, match=what):
        call(classifier)


OUT_OF_RANGE = {
    "a negative id": ({"input_ids": [[2, -1]]}, r"input_ids\[0, 1\] is -1: the vocabulary has 61 tokens"),
    "an id beyond the table": ({"input_ids": [[2, 3], [61, 3]]}, r"input_ids\[1, 0\] is 61"),
    "int64": ({"input_ids": [[2, 2**32 + 5]]}, "4294967301"),
    "a negative segment": ({"input_ids": [[2, 3]], "segment_ids": [[0, -1]]}, "has 2 segments"),
    "a third segment": ({"input_ids": [[2, 3]], "token_type_ids": [[2, 0]]}, r"segment_ids\[0, 0\] is 2"),
    "a mask of 2": ({"input_ids": [[2, 3]], "attention_mask": [[1, 2]]}, "masks are 0 or 1"),
    "a position": ({"input_ids": [[2, 3]], "position_ids": [[0, 12]]}, "the model has 12 positions"),
    "a label": ({"input_ids": [[2, 3]], "labels": [3]}, r"labels\[0\] is 3: labels are 0 to 2"),
    "a negative label": ({"input_ids": [[2, 3]], "labels": [[-1]]}, r"labels\[0, 0\] is -1"),
}


@pytest.mark.parametrize("how", ["arrays", "int64 arrays", "tensors", "fit", "predict"])
@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_values_out_of_range_are_refused_wherever_they_are_known(case, how, classifier):
    inputs, what = OUT_OF_RANGE[case]
    arrays = {name: np.array(values) for name, values in inputs.items()}
    classifier.compile("sgd")
    if how == "tensors":
        if case == "int64" and keras.backend.backend() == "jax":
            pytest.skip("JAX has no such tensor")
        arrays = {name: ops.convert_to_tensor(array) for name, array in arrays.items()}
    call = {
        "arrays": lambda: classifier(inputs), "int64 arrays": lambda: classifier(arrays),
        "tensors": lambda: classifier(arrays), "fit": lambda: classifier.fit(arrays, verbose=0),
        "predict": lambda: classifier.predict(arrays, verbose=0),
    }[how]
    with pytest.raises(ValueError, match=what):
        call()


def test_labels_that_keras_gets_are_in_range_too(classifier):
    classifier.compile("sgd", {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)})
    for labels in (np.array([3, 0]), np.array([[3], [0]]), {"logits": np.array([3, 0])}):
        with pytest.raises(ValueError, match="is 3: labels are 0 to 2"):
            classifier.fit(np.array(IDS), labels, verbose=0)
    model = modeling.AlbertForMaskedLM(CONFIG)
    with pytest.raises(ValueError, match=r"labels\[0, 1\] is 61"):
        model(IDS, labels=[[-100, 61, -100, -100, -100], [-100] * 5])
    with pytest.raises(ValueError, match=r"masked_lm_positions\[0, 0\] is 5: sequences have 5 tokens"):
        model(IDS, masked_lm_positions=[[5], [0]])


def test_hidden_states_are_all_there_or_refused():
    for options in ({"engine": loop_engine()}, {"needed_outputs_only": True}):
        model = modeling.AlbertModel(CONFIG, encoder_options=modeling.EncoderOptions(**options))
        for name in ("output_hidden_states", "output_attentions"):
            with pytest.raises(ValueError, match=f"{name} does not go with {next(iter(options))}"):
                model(IDS, **{name: True})


def test_hidden_states_begin_with_what_enters_the_first_layer(encoder):
    outputs = encoder(IDS, output_hidden_states=True)
    assert len(outputs.hidden_states) == 1 + CONFIG.num_hidden_layers
    projected = encoder.encoder.embedding_projection(outputs.embedding_output)
    np.testing.assert_allclose(outputs.hidden_states[0], projected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(outputs.encoder_outputs, outputs.hidden_states[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def of_classes(logits, labels):
    """Returns the mean cross-entropy over the labels other than -100."""
    logits = np.asarray(logits, np.float64)
    rows, labels = logits.reshape(-1, logits.shape[-1]), np.ravel(labels)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    return -np.mean([x[y] for x, y in zip(rows, labels, strict=True) if y != -100])


def of_several(logits, labels):
    logits = np.asarray(logits, np.float64)
    return np.mean(np.log1p(np.exp(logits)) - labels * logits)


CHOICES = [IDS, IDS[::-1], IDS]
WORDS = [[-100, 11, -100, -100, -100], [-100, -100, 12, -100, -100]]
TAGS = [[-100, 1, 2, -100, -100], [-100, 3, -100, -100, -100]]
SEVERAL = np.array([[1.0, 0, 1], [0, 0, 1]])


@pytest.mark.parametrize("kind, size, ids, labels, loss", [
    ("SequenceClassification", {"num_labels": 3}, IDS, {"labels": [2, 0]},
     lambda out: of_classes(out.logits, [2, 0])),
    *(("SequenceClassification", {"num_labels": 3}, IDS, {"labels": labels},
       lambda out: of_several(out.logits, SEVERAL))
      for labels in (SEVERAL.astype(int).tolist(), SEVERAL.tolist())),
    ("SequenceClassification", {"num_labels": 3}, IDS, {"labels": [[2], [0]]},
     lambda out: of_classes(out.logits, [2, 0])),
    ("SequenceClassification", {"num_labels": 1}, IDS, {"labels": [0.5, 2]},
     lambda out: np.mean((np.asarray(out.logits)[:, 0] - [0.5, 2]) ** 2)),
    ("TokenClassification", {"num_labels": 4}, IDS, {"labels": TAGS},
     lambda out: of_classes(out.logits, TAGS)),
    ("MultipleChoice", {"num_choices": 2}, CHOICES, {"labels": [0, 1, 1]},
     lambda out: of_classes(out.logits, [0, 1, 1])),
    ("MaskedLM", {}, IDS, {"labels": WORDS}, lambda out: of_classes(out.prediction_logits, WORDS)),
    # No row has a position 9.
    ("QuestionAnswering", {}, IDS, {"start_positions": [1, 9], "end_positions": [2, 1]},
     lambda out: (of_classes(out.start_logits[:1], [1]) + of_classes(out.end_logits, [2, 1])) / 2),
    ("PreTraining", {}, IDS, {"labels": WORDS, "sentence_order_label": [0, 1]},
     lambda out: of_classes(out.prediction_logits, WORDS) + of_classes(out.sop_logits, [0, 1])),
])
def test_labels_give_the_loss_that_hugging_face_computes(kind, size, ids, labels, loss):
    outputs = getattr(modeling, f"AlbertFor{kind}")(CONFIG, **size)(ids, **labels)
    assert float(outputs.loss) == pytest.approx(loss(outputs), rel=1e-5)


def test_outputs_are_counted_as_hugging_face_counts_them(encoder, classifier):
    outputs = encoder(IDS, attention_mask=MASK)
    assert outputs[0] is outputs.last_hidden_state and outputs[1] is outputs.pooler_output
    outputs = classifier(IDS, labels=[1, 0], output_hidden_states=True)
    assert outputs[0] is outputs.loss and outputs[1] is outputs.logits
    assert outputs[2] is outputs.hidden_states
    with pytest.raises(IndexError, match="3 outputs: loss, logits, hidden_states"):
        outputs[3]
    pretraining = modeling.AlbertForPreTraining(CONFIG)(IDS)
    assert pretraining[0] is pretraining.prediction_logits and pretraining[1] is pretraining.sop_logits


def test_a_batch_without_any_label_that_counts_has_a_loss_of_zero():
    model = modeling.AlbertForTokenClassification(CONFIG, num_labels=4)
    assert float(model(IDS, labels=np.full((2, 5), -100)).loss) == 0
    reader = modeling.AlbertForQuestionAnswering(CONFIG)
    outside = reader(IDS, start_positions=[5, -1], end_positions=[5, 9])  # sequences have 5 tokens
    assert float(outside.loss) == 0
    last = reader(IDS, start_positions=[4, 5], end_positions=[5, 5])
    assert float(last.loss) == pytest.approx(of_classes(last.start_logits[:1], [4]) / 2, rel=1e-5)


def labelled(kind, size, labels, ids=IDS):
    keras.utils.set_random_seed(1)
    # A copy: no dropout, so that a step is determined by the loss.
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    dropout = {} if kind in ("MaskedLM", "QuestionAnswering") else {"classifier_dropout": 0.0}
    model = getattr(modeling, f"AlbertFor{kind}")(config, **size, **dropout)
    return model, {"input_ids": np.array(ids)} | {n: np.array(v) for n, v in labels.items()}


@pytest.mark.parametrize("kind, size, labels", [
    ("SequenceClassification", {"num_labels": 3}, {"labels": [2, 0]}),
    ("MaskedLM", {}, {"labels": WORDS}),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("SequenceClassification", {"num_labels": 1}, {"labels": [0.5, 2]}),
        ("SequenceClassification", {"num_labels": 3}, {"labels": SEVERAL}),
        ("TokenClassification", {"num_labels": 4}, {"labels": TAGS}),
        ("QuestionAnswering", {}, {"start_positions": [1, 2], "end_positions": [2, 1]}),
    )),
])
def test_sample_weights_weigh_the_loss_of_labels_among_the_inputs(kind, size, labels):
    model, inputs = labelled(kind, size, labels)
    model.compile("sgd")
    losses = [float(model({n: v[i : i + 1] for n, v in inputs.items()}).loss) for i in range(2)]
    counts = [1, 1]
    if kind in ("TokenClassification", "MaskedLM"):
        counts = [np.sum(v != -100) for v in inputs["labels"]]
    expected = (3.0 * losses[0] * counts[0] + 0.5 * losses[1] * counts[1]) / sum(counts)
    weights = np.array([3.0, 0.5])
    assert model.evaluate(inputs, sample_weight=weights, verbose=0) == pytest.approx(expected, rel=1e-4)
    assert model.fit(inputs, sample_weight=weights, verbose=0).history["loss"][0] == (
        pytest.approx(expected, rel=1e-4)
    )


def test_class_weights_with_labels_among_the_inputs_are_refused():
    model, inputs = labelled("SequenceClassification", {"num_labels": 3}, {"labels": [2, 0]})
    model.compile("sgd")
    with pytest.raises(ValueError, match="class_weight needs the labels as `y`"):
        model.fit(inputs, class_weight={0: 1.0, 1: 2.0, 2: 1.0})


def test_metrics_see_the_labels_among_the_inputs():
    model, inputs = labelled("SequenceClassification", {"num_labels": 3}, {"labels": [2, 0]})
    predicted = np.argmax(model(inputs["input_ids"]).logits, -1)
    others = (predicted + 1) % 3
    for labels, accuracy in ((predicted, 1.0), (others, 0.0), ([predicted[0], others[1]], 0.5)):
        model.compile("sgd", metrics=["accuracy"])
        found = model.evaluate({**inputs, "labels": np.array(labels)}, verbose=0, return_dict=True)
        assert found["accuracy"] == accuracy
    assert set(model.fit(inputs, verbose=0).history) == {"accuracy", "loss"}
    model, inputs = labelled("TokenClassification", {"num_labels": 4}, {"labels": TAGS})
    predicted = np.argmax(model(inputs["input_ids"]).logits, -1)
    labels = np.where(np.array(TAGS) < 0, -100, predicted)
    model.compile("sgd", weighted_metrics=["accuracy"])
    assert model.evaluate({**inputs, "labels": labels}, verbose=0, return_dict=True)["accuracy"] == 1.0
    model, inputs = labelled("QuestionAnswering", {}, {"start_positions": [1, 2], "end_positions": [2, 1]})
    model.compile("sgd", metrics={"start_logits": ["accuracy"]})
    assert "start_logits_accuracy" in model.fit(inputs, verbose=0).history


def test_labels_among_the_inputs_are_all_that_fit_needs(classifier):
    model = modeling.AlbertForSequenceClassification(CONFIG, num_labels=3, classifier_dropout=0.0)
    model.compile(keras.optimizers.SGD(0.5))
    inputs = {"input_ids": np.array(IDS), "attention_mask": np.array(MASK), "labels": np.array([1, 0])}
    before = float(model(inputs).loss)
    losses = model.fit(inputs, epochs=3, verbose=0).history["loss"]
    assert losses[0] == pytest.approx(before, rel=0.2) and losses[-1] < losses[0]
    assert model.evaluate(inputs, verbose=0) == pytest.approx(float(model(inputs).loss), rel=1e-5)
    assert model.predict({n: v for n, v in inputs.items() if n != "labels"}, verbose=0)["logits"].shape == (2, 3)


@pytest.mark.parametrize("shape", [(2, 6), (4, 3), (8,), (1, 2, 4, 3)])
def test_choices_are_an_axis_of_their_own(shape):
    model = albert.AlbertForMultipleChoice(CONFIG, num_choices=4)
    with pytest.raises(ValueError, match="^input_ids "):
        model(np.ones(shape, "int32"))
    assert model(np.ones((2, 4, 3), "int32"))["logits"].shape == (2, 4)
