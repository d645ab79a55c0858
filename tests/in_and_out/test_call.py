"""A model is called as people call it, and a wrong name is refused, never ignored."""

import keras
import numpy as np
import pytest
from keras import ops

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


def test_every_way_of_calling_gives_the_same(classifier):
    ours = {"input_ids": np.array(IDS, np.int32), "input_mask": np.array(MASK, np.int32),
            "segment_ids": np.array(TYPES, np.int32)}
    expected = np.asarray(classifier(ours)["logits"])
    theirs = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES}
    long = {name: np.array(value, np.int64) for name, value in theirs.items()}
    tensors = {name: ops.convert_to_tensor(value) for name, value in ours.items()}
    ways = {
        "keywords": classifier(**ours),
        "keywords of Hugging Face, lists": classifier(**theirs),
        "a dict of Hugging Face, lists": classifier(theirs),
        "int64": classifier(**long),
        "tensors": classifier(tensors),
        "ids first": classifier(IDS, attention_mask=MASK, token_type_ids=TYPES),
        "tuples": classifier(tuple(map(tuple, IDS)), input_mask=MASK, segment_ids=TYPES),
        "a tokenizer's offsets": classifier(theirs, offset_mapping=np.zeros((2, 5, 2), int)),
        "an input that is None": classifier(theirs, labels=None),
    }
    for way, outputs in ways.items():
        np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-6, err_msg=way)
    assert np.abs(np.asarray(classifier(IDS).logits) - expected).max() > 1e-3  # the mask counts


def test_outputs_have_attributes(classifier):
    outputs = classifier(IDS)
    assert outputs.logits is outputs["logits"] and list(outputs) == ["logits"]
    encoded = modeling.AlbertModel(CONFIG)(IDS)
    assert encoded.last_hidden_state is encoded["last_hidden_state"] is encoded["sequence_output"]
    assert encoded.pooler_output is encoded.pooled_output
    with pytest.raises(AttributeError, match="'loss' among logits"):
        outputs.loss  # noqa: B018


@pytest.mark.parametrize("call, what", [
    (lambda m: m(IDS, attention_maks=MASK), "'attention_maks'; did you mean attention_mask"),
    (lambda m: m({"input_ids": IDS, "token_type_id": TYPES}), "did you mean token_type_ids"),
    (lambda m: m(IDS, colour=1), "unknown input 'colour'; known are input_ids"),
    (lambda m: m(IDS, inputs_embeds=1), "inputs_embeds isn't supported"),
    (lambda m: m(IDS, attention_mask=MASK, input_mask=MASK), r"input_mask \(also called attention_mask\) is given twice"),
    (lambda m: m([[2, 3], [2, 7, 3]]), "several lengths: pad them"),
    (lambda m: m(["a text"]), "isn't a list of numbers"),
    (lambda m: m(), "no input_ids"),
    (lambda m: m(attention_mask=MASK), "no input_ids"),
])
def test_a_wrong_call_says_what_is_wrong(call, what, classifier):
    with pytest.raises(ValueError, match=what):
        call(classifier)


def test_position_ids_are_honoured():
    model = modeling.AlbertModel(CONFIG)
    plain = model(IDS).sequence_output
    same = model(IDS, position_ids=[[0, 1, 2, 3, 4]]).sequence_output
    np.testing.assert_allclose(same, plain, rtol=1e-6)
    shifted = model(IDS, position_ids=[[4, 5, 6, 7, 8]] * 2).sequence_output
    assert np.abs(np.asarray(shifted) - np.asarray(plain)).max() > 1e-2


def test_hidden_states_begin_with_what_enters_the_first_layer():
    model = modeling.AlbertModel(CONFIG)
    outputs = model(IDS, output_hidden_states=True)
    assert len(outputs.hidden_states) == 1 + CONFIG.num_hidden_layers
    projected = model.encoder.embedding_projection(outputs.embedding_output)
    np.testing.assert_allclose(outputs.hidden_states[0], projected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(outputs.encoder_outputs, outputs.hidden_states[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def log_softmax(x):
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


def of_classes(logits, labels):
    losses = [-log_softmax(x)[y] for x, y in zip(logits, labels, strict=True) if y != -100]
    return np.mean(losses)


def test_labels_give_the_loss_that_hugging_face_computes(classifier):
    outputs = classifier(IDS, labels=[2, 0])
    assert float(outputs.loss) == pytest.approx(of_classes(outputs.logits, [2, 0]), rel=1e-5)
    logits = np.asarray(classifier(IDS, labels=[[1, 0, 1], [0, 0, 1]]).logits, np.float64)
    wanted = np.array([[1, 0, 1], [0, 0, 1]])
    binary = np.mean(np.log1p(np.exp(logits)) - wanted * logits)
    several = classifier(IDS, labels=[[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    assert float(several.loss) == pytest.approx(binary, rel=1e-5)

    number = modeling.AlbertForSequenceClassification(CONFIG, num_labels=1)(IDS, labels=[0.5, 2])
    squares = (np.asarray(number.logits)[:, 0] - [0.5, 2]) ** 2
    assert float(number.loss) == pytest.approx(squares.mean(), rel=1e-5)

    tagger = modeling.AlbertForTokenClassification(CONFIG, num_labels=4)
    tags = [[-100, 1, 2, -100, -100], [-100, 3, -100, -100, -100]]
    outputs = tagger(IDS, labels=tags)
    expected = of_classes(np.reshape(outputs.logits, (-1, 4)), np.reshape(tags, -1))
    assert float(outputs.loss) == pytest.approx(expected, rel=1e-5)

    chooser = modeling.AlbertForMultipleChoice(CONFIG, num_choices=2)
    outputs = chooser([IDS, IDS[::-1], IDS], labels=[0, 1, 1])
    assert float(outputs.loss) == pytest.approx(of_classes(outputs.logits, [0, 1, 1]), rel=1e-5)

    filler = modeling.AlbertForMaskedLM(CONFIG)
    words = [[-100, 11, -100, -100, -100], [-100, -100, 12, -100, -100]]
    outputs = filler(IDS, labels=words)
    expected = of_classes(np.reshape(outputs.prediction_logits, (-1, 61)), np.reshape(words, -1))
    assert float(outputs.loss) == pytest.approx(expected, rel=1e-5)

    answerer = modeling.AlbertForQuestionAnswering(CONFIG)
    outputs = answerer(IDS, start_positions=[1, 9], end_positions=[2, 1])
    starts, ends = of_classes(outputs.start_logits[:1], [1]), of_classes(outputs.end_logits, [2, 1])
    assert float(outputs.loss) == pytest.approx((starts + ends) / 2, rel=1e-5)

    whole = modeling.AlbertForPreTraining(CONFIG)
    outputs = whole(IDS, labels=words, sentence_order_label=[0, 1])
    expected = of_classes(np.reshape(outputs.prediction_logits, (-1, 61)), np.reshape(words, -1))
    expected += of_classes(outputs.sop_logits, [0, 1])
    assert float(outputs.loss) == pytest.approx(expected, rel=1e-5)


def test_a_model_without_a_loss_refuses_labels():
    with pytest.raises(ValueError, match="AlbertModel has no loss"):
        modeling.AlbertModel(CONFIG)(IDS, labels=[1, 0])
