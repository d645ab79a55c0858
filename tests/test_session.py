"""A session opens a model once and answers texts, from Python."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from helpers import SIZES

import albert
from albert import modeling
from albert.errors import DataError, UserError
from albert.inference import session as inference_session

WORDS = [f"w{i}" for i in range(35)]
TEXTS = [" ".join(WORDS[i % 35] for i in range(n, n + 1 + n % 7)) for n in range(20)]
CONFIG = modeling.AlbertConfig(
    **SIZES | {"max_position_embeddings": 64, "initializer_range": 0.4}
)


def saved(folder, kind, *arguments, **facts):
    model = getattr(albert, kind)(CONFIG, *arguments)
    for name, value in facts.items():
        setattr(model, name, value)
    model.save_pretrained(str(folder))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]))
    return model, albert.open_session(str(folder), batch_size=4)


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


def test_a_model_is_loaded_and_compiled_once(tmp_path, monkeypatch):
    _, session = saved(tmp_path, "AlbertForSequenceClassification", 2)
    loads, compilations = [], []
    compiled = inference_session.compiled
    monkeypatch.setattr(
        inference_session, "compiled",
        lambda *arguments: compilations.append(1) or compiled(*arguments),
    )
    load = type(session).load
    monkeypatch.setattr(
        type(session), "load", lambda *args, **options: loads.append(1) or load(*args, **options)
    )
    first = session.classify(TEXTS[0])
    assert [session.classify(TEXTS[0]) for _ in range(3)] == [first] * 3
    assert len(loads) == 1 and len(compilations) == 1


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


def test_a_session_needs_no_absl(tmp_path):
    code = "import sys, albert.inference.answers; assert not any('absl' in m for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
