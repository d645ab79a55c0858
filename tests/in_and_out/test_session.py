"""A session opens a model once and answers texts, from Python."""

import concurrent.futures
import dataclasses
import functools
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import SIZES

import albert
from albert import modeling
from albert.errors import DataError, UserError

WORDS = [f"w{i}" for i in range(35)]
TEXTS = [" ".join(WORDS[i % 35] for i in range(n, n + 1 + n % 7)) for n in range(20)]
CONFIG = modeling.AlbertConfig(
    **SIZES | {"max_position_embeddings": 64, "initializer_range": 0.4}
)


def saved(folder, kind, *arguments, layers=CONFIG.num_hidden_layers, **facts):
    config = dataclasses.replace(CONFIG, num_hidden_layers=layers)
    model = getattr(albert, kind)(config, *arguments)
    for name, value in facts.items():
        setattr(model, name, value)
    model.save_pretrained(str(folder))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]))
    return model, albert.open_session(str(folder), batch_size=4)


def passage(n):
    return " ".join(WORDS[(3 * i + n) % 35] for i in range(n))


# Texts of ten lengths, not sorted, so that each next one may be longer or shorter.
LENGTHS = (2, 10, 20, 30, 40, 1, 37, 5, 24, 50)
# Of each method of a session: the model's class, its arguments and facts, and an input of n words.
METHODS = {
    "classify": ("AlbertForSequenceClassification", (2,), {}, passage),
    "classify pairs": (
        "AlbertForSequenceClassification", (2,), {}, lambda n: (passage(n), passage(3)),
    ),
    "classify, several labels": (
        "AlbertForSequenceClassification", (3,), {"problem_type": "multi_label_classification"},
        passage,
    ),
    "classify, a number": (
        "AlbertForSequenceClassification", (1,), {"problem_type": "regression"}, passage,
    ),
    "tag": ("AlbertForTokenClassification", (3,), {"label_names": ("O", "B-X", "I-X")}, passage),
    "answer": ("AlbertForQuestionAnswering", (), {}, lambda n: ("w1 w2", passage(n))),
    "answer, SQuAD 2.0": (
        "AlbertForBeamQuestionAnswering", (), {}, lambda n: ("w1 w2", passage(n)),
    ),
    "choose": (
        "AlbertForMultipleChoice", (4,), {}, lambda n: (passage(n), "w3", *WORDS[n % 9:][:4]),
    ),
    "fill_mask": ("AlbertForPreTraining", (), {}, lambda n: passage(n) + " [MASK]" * (1 + n % 3)),
    "embed": ("AlbertForPreTraining", (), {}, passage),
    "embed, two layers": ("AlbertForPreTraining", (), {}, passage),
    "score": ("AlbertForPreTraining", (), {}, passage),
}
EACH_METHOD = pytest.mark.parametrize("name", METHODS)


def opened_method(folder, name, layers=2):
    """Returns a session's method, and its inputs of ten lengths."""
    kind, arguments, facts, text_of = METHODS[name]
    if not os.listdir(folder):
        saved(folder, kind, *arguments, layers=layers, **facts)
    session = albert.open_session(str(folder), batch_size=4)
    method = getattr(session, name.partition(",")[0].partition(" ")[0])
    options = {"layers": (1, 2)} if "two layers" in name else {}
    return functools.partial(method, **options), [text_of(n) for n in LENGTHS]


def assert_same_answer(found, expected):
    """Compares two answers: texts exactly, numbers to 1e-5."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same_answer(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_answer(one, other)
    elif isinstance(expected, str):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", [
    pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(12, marks=pytest.mark.slow)
])
@EACH_METHOD
def test_single_texts_of_ten_lengths_get_the_answers_of_a_list(name, layers, tmp_path):
    method, inputs = opened_method(tmp_path, name, layers)
    singles = [method(one) for one in inputs]
    assert_same_answer(singles, list(method(inputs)))
    assert_same_answer(list(method(inputs[::-1])), singles[::-1])


@EACH_METHOD
def test_four_threads_get_each_their_own_answers(name, tmp_path):
    method, inputs = opened_method(tmp_path, name)
    expected = [method(one) for one in inputs]
    fresh, _ = opened_method(tmp_path, name)  # so that the threads load and compile too
    numbers = [(7 * i) % len(inputs) for i in range(288)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: fresh(inputs[i]), numbers))
    assert_same_answer(found, [expected[i] for i in numbers])


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_classify_takes_a_text_a_pair_or_any_iterable_and_is_lazy(tmp_path):
    model, session = saved(
        tmp_path, "AlbertForSequenceClassification", 2, label_names=("no", "yes")
    )
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(tmp_path))
    expected = softmax(np.asarray(model(tokenizer(TEXTS))["logits"]))
    answers = list(session.classify(TEXTS))
    found = [[answer["probabilities"][label] for label in ("no", "yes")] for answer in answers]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert [answer["label"] for answer in answers] == [("no", "yes")[i] for i in expected.argmax(1)]
    assert session.classify(TEXTS[3])["label"] == answers[3]["label"]
    pair = session.classify((TEXTS[3], TEXTS[4]))
    logits = np.asarray(model(tokenizer(TEXTS[3], TEXTS[4]))["logits"])
    assert pair["probability"] == pytest.approx(softmax(logits).max(), abs=1e-5)
    endless = session.classify(itertools.cycle(TEXTS))
    assert next(endless)["label"] == answers[0]["label"]
    assert list(session.classify([])) == list(session.classify(())) == []


def test_texts_that_were_cut_are_told(tmp_path, caplog):
    saved(tmp_path, "AlbertForSequenceClassification", 2)
    session = albert.open_session(str(tmp_path), max_seq_length=6)
    session.classify("w1 w2 w3 w4")
    assert "cut" not in caplog.text
    for cut in (session.classify, session.embed):
        caplog.clear()
        cut("w1 w2 w3 w4 w5")
        assert "1 inputs are longer than --max_seq_length=6 and were cut" in caplog.text


def test_a_model_is_loaded_and_compiled_once_for_all_threads_and_lengths(tmp_path, monkeypatch):
    _, session = saved(tmp_path, "AlbertForSequenceClassification", 2)
    loads, passes = [], []
    load = type(session).load
    monkeypatch.setattr(
        type(session), "load", lambda *args, **options: loads.append(1) or load(*args, **options)
    )
    outputs = albert.AlbertForSequenceClassification._outputs
    monkeypatch.setattr(
        albert.AlbertForSequenceClassification, "_outputs",
        lambda *arguments: passes.append(1) or outputs(*arguments),
    )
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(session.classify, TEXTS))
    list(session.classify(TEXTS))
    assert len(loads) == 1 and len(passes) == 1


def test_answer_choose_and_tag_are_of_models_trained_for_them(tmp_path):
    _, session = saved(tmp_path / "answers", "AlbertForQuestionAnswering")
    passage = " ".join(WORDS)
    told = session.answer(("w1 w2", passage))
    assert set(told) == {"answer", "probability"} and told["answer"] in passage
    assert list(session.answer([("w1 w2", passage)] * 2)) == [told] * 2
    _, session = saved(tmp_path / "choice", "AlbertForMultipleChoice", 4)
    assert session.choose((passage, "w3", *WORDS[:4]))["label"] in "ABCD"
    with pytest.raises(UserError, match="was fine-tuned for multiple_choice, not for"):
        session.classify("w1")
    _, session = saved(
        tmp_path / "tags", "AlbertForTokenClassification", 3, label_names=("O", "B-X", "I-X")
    )
    told = session.tag("w1 w2, w3")
    assert told["words"] == ["w1", "w2", ",", "w3"]
    assert len(told["labels"]) == 4


def test_fill_mask_and_embed_are_of_any_pretrained_model(tmp_path):
    model, session = saved(tmp_path, "AlbertForPreTraining")
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(tmp_path))
    [found] = session.fill_mask("w1 [MASK] w3", top_k=3)
    rows = tokenizer("w1 [MASK] w3")
    logits = np.asarray(model(rows)["prediction_logits"])[0, 2]
    assert [piece["id"] for piece in found] == np.argsort(-logits)[:3].tolist()
    assert [len(masks) for masks in session.fill_mask(["[MASK]", "w1 [MASK] [MASK]"])] == [1, 2]
    with pytest.raises(DataError, match=r"text 2: no \[MASK\]"):
        list(session.fill_mask(["[MASK]", "w1"]))
    rows = tokenizer(TEXTS)
    states = np.asarray(model(rows, output_hidden_states=True)["sequence_output"])
    mask = rows["input_mask"][:, :, None]
    expected = (states * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(session.embed(TEXTS), expected, atol=1e-5)
    assert session.embed(TEXTS[0]).shape == (CONFIG.hidden_size,)
    np.testing.assert_allclose(next(session.embed(iter(TEXTS))), expected[0], atol=1e-5)
    assert session.embed(TEXTS, pooling="cls", layers=(1, 2)).shape == (20, 2 * CONFIG.hidden_size)
    np.testing.assert_allclose(session.embed(tuple(TEXTS[:2])), expected[:2], atol=1e-5)
    assert session.embed([], layers=(1, 2)).shape == (0, 2 * CONFIG.hidden_size)
    with pytest.raises(UserError, match="is pretrained, not fine-tuned"):
        session.classify("w1")


@pytest.mark.parametrize("wrong, message", [
    ([3], "input 1 is neither a text nor several"), (3, "neither text nor texts"),
    (["w1", ("w1", 2)], "input 2 is neither"),
    ([("w1", "w2", "w3")], "input 1: 3 texts, expected 1 or 2"),
])
def test_inputs_that_do_not_fit_are_refused_by_their_number(wrong, message, tmp_path):
    _, session = saved(tmp_path, "AlbertForSequenceClassification", 2)
    with pytest.raises(DataError, match=message):
        list(session.classify(wrong))
    with pytest.raises(DataError, match="input 1 is not a text: "):
        session.embed([("w1", "w2")])
    with pytest.raises(UserError, match="max_seq_length=100 exceeds"):
        albert.open_session(str(tmp_path), max_seq_length=100)


@pytest.mark.parametrize("ask, message", [
    (lambda s: s.fill_mask("[MASK]", top_k=0), "top_k=0: the vocabulary has 40 tokens"),
    (lambda s: s.fill_mask("[MASK]", top_k=41), "top_k=41: the vocabulary has 40 tokens"),
    (lambda s: s.fill_mask(b"[MASK]"), "neither text nor texts: b'"),
    (lambda s: s.embed("w1", layers=(0,)), "layers=0: .* has 2 layers"),
    (lambda s: s.embed("w1", layers=()), "has 2 layers"),
    (lambda s: s.embed(b"w1"), "neither text nor texts: b'"),
])
def test_what_no_model_can_compute_is_refused(ask, message, tmp_path):
    _, session = saved(tmp_path, "AlbertForPreTraining", layers=2)
    with pytest.raises(UserError, match=message):
        ask(session)


def test_a_model_is_loaded_once_for_masks_of_any_number_and_for_scores(tmp_path, monkeypatch):
    _, session = saved(tmp_path, "AlbertForPreTraining")
    loads, load = [], type(session).load
    monkeypatch.setattr(
        type(session), "load", lambda *args, **options: loads.append(1) or load(*args, **options)
    )
    one, two = session.fill_mask("w1 [MASK]", top_k=1), session.fill_mask("w1 [MASK]", top_k=2)
    assert one[0][0]["id"] == two[0][0]["id"]
    session.score("w1 w2")
    assert len(loads) == 1


def test_many_masks_are_no_reason_for_warnings_of_the_compiler(tmp_path):
    saved(tmp_path, "AlbertForPreTraining")
    code = "import sys, albert; session = albert.open_session(sys.argv[1])\n" \
        "for n in range(7): session.fill_mask('[MASK] ' * 2**(n % 6), top_k=1 + n % 2)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert "retracing" not in done.stderr


def test_a_session_needs_no_absl(tmp_path):
    code = "import sys, albert.inference.answering_session; assert not any('absl' in m for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_session_in_bfloat16_gives_nearly_the_same_answers_in_half_of_the_memory(tmp_path):
    _, exact = saved(tmp_path, "AlbertForSequenceClassification", 3)
    session = albert.open_session(tmp_path, dtype="bfloat16")  # a Path
    answers = list(zip(session.classify(TEXTS), exact.classify(TEXTS), strict=True))
    for mine, expected in answers:
        assert mine["probabilities"] == pytest.approx(expected["probabilities"], abs=0.03)
    assert any(mine != expected for mine, expected in answers)
    assert session.embed("w1 w2").dtype == np.float32
    assert {w.dtype for w in session.load("AlbertForSequenceClassification").weights} == {"bfloat16"}
    with pytest.raises(UserError, match="dtype must be one of float32, bfloat16, got 'float16'"):
        albert.open_session(tmp_path, dtype="float16")
