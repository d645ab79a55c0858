"""A session loads a model once and answers texts, from Python."""

import concurrent.futures
import functools
import http.client
import http.server
import itertools
import json
import os
import pickle
import re
import shutil
import socket
import threading
import types

import numpy as np
import pytest
from answers import (
    CONFIG, LENGTHS, METHODS, TEXTS, assert_same_answer, by_keras, method_of, passage, saved,
)
from apart import needs
from helpers import REPO

import albert
from albert.errors import DataError, UserError
from albert.inference.predictors import batches

try:
    import pandas
except ImportError:
    pandas = None


def count_loads(session, monkeypatch) -> list:
    loads, load = [], type(session).load
    monkeypatch.setattr(
        type(session), "load", lambda *args, **options: loads.append(1) or load(*args, **options)
    )
    return loads


# === Each method ===


@pytest.fixture(scope="module", params=METHODS)
def asked(request, tmp_path_factory):
    """A method's name, its model and directory, and a function that makes an input of n words."""
    kind, arguments, facts, text_of = METHODS[request.param]
    folder = tmp_path_factory.mktemp("model")
    model, _ = saved(folder, kind, *arguments, layers=2, **facts)
    return request.param, model, folder, text_of


def test_every_method_gives_the_answers_of_keras_to_threads_as_to_one(asked, monkeypatch):
    name, model, folder, text_of = asked
    session, inputs = albert.open_session(folder, batch_size=4), [text_of(n) for n in LENGTHS]
    if name.startswith("answer"):
        inputs += [("w1 w2", passage(99)),  # of several windows
                   ("w1", "w2"), ("w9 w9", "w3 w4")]  # of fewer tokens than the beam is wide
    loads, method = count_loads(session, monkeypatch), method_of(session, name)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # while it loads, too
        found = list(pool.map(method, inputs * 2))
    answers = list(method(inputs))
    assert_same_answer(found, answers * 2)
    assert_same_answer(list(method(inputs[::-1])), answers[::-1])
    assert len(loads) == 1
    by_keras(monkeypatch)
    assert_same_answer(answers, list(method_of(albert.open_session(folder), name)(inputs)))


def numbers(answer) -> list:
    """Returns the probabilities, or the other numbers, of an answer, however its texts are ordered."""
    for key in ("probabilities", "probability", "value"):
        if key in answer:
            return np.array([*answer[key].values()] if isinstance(answer[key], dict) else answer[key])
    return answer


def test_every_method_gives_nearly_the_same_answers_in_bfloat16_to_threads_as_to_one(asked):
    needs("openvino", extra="openvino")
    name, _, folder, text_of = asked
    inputs = [text_of(n) for n in LENGTHS]
    expected, method = (
        method_of(albert.open_session(folder, batch_size=4, dtype=dtype), name)
        for dtype in ("float32", "bfloat16"))
    found, expected = method(inputs), expected(inputs)
    one_by_one = [method([text]) for text in inputs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert_same_answer(list(pool.map(method, [[text] for text in inputs])), one_by_one)
    # Sums in bfloat16 depend on the shape of a batch, too.
    for one, *others in zip(expected, found, itertools.chain.from_iterable(one_by_one), strict=True):
        for other in others:
            both = [[mask[0] for mask in each] if name == "fill_mask" else each for each in (one, other)]
            for a, b in zip(*both, strict=True) if isinstance(both[0], list) else [both]:
                # An answer's probability is one among those of a list, which may have other entries.
                np.testing.assert_allclose(numbers(a), numbers(b), atol=0.2 if "answer" in name else 0.06)


UNKNOWN = "of the tokens are unknown to the vocabulary (most often 가"


def test_a_session_warns_once_of_texts_that_its_vocabulary_cannot_read(asked, caplog):
    def foreign(value):
        return tuple(map(foreign, value)) if isinstance(value, tuple) else value.replace("w", "가")

    name, _, folder, text_of = asked
    method = method_of(albert.open_session(folder), name)
    assert method(text_of(20)) is not None and "unknown" not in caplog.text
    for _ in range(2):
        method(foreign(text_of(20)))
    assert caplog.text.count(UNKNOWN) == 1


def test_a_model_whose_numbers_overflow_gives_no_answer(asked, tmp_path):
    """Its weights are finite, so that nothing else notices."""
    name, model, folder, text_of = asked
    values = model.get_weights()
    for weight in model.trainable_variables:
        if weight.path.endswith("kernel") or "word_embeddings" in weight.path:
            weight.assign(weight * 0 + 1e38)
    model.save_pretrained(tmp_path)
    model.set_weights(values)
    shutil.copy(folder / "vocab.txt", tmp_path)
    with pytest.raises(DataError, match="the model computes NaN or infinity"):
        method_of(albert.open_session(tmp_path), name)(text_of(20))


# === Inputs and answers ===


def test_a_batch_ends_before_its_padding_costs_more_than_a_call():
    sizes = np.random.default_rng(1).integers(2, 60, 40)
    rows = [{name: np.ones(size, np.int32) for name in ("input_ids", "input_mask")} for size in sizes]
    found = [(indices, batch["input_mask"]) for indices, batch in batches(rows, 8)]
    for indices, mask in found:
        assert list(mask.sum(-1)) == list(sizes[indices]) and 1 <= len(mask) <= 8 and (mask == 0).sum() <= 24
    assert sorted(i for indices, _ in found for i in indices) == list(range(40)) and 5 < len(found) < 20


def test_classify_takes_a_text_a_pair_or_any_iterable_and_is_lazy(tmp_path, caplog):
    _, session = saved(tmp_path, "AlbertForSequenceClassification", 2, label_names=("no", "yes"))
    answers = session.classify(TEXTS)
    assert isinstance(answers, list) and type(answers[0]) is dict
    assert_same_answer(session.classify(TEXTS[3]), answers[3])
    pair = TEXTS[3], TEXTS[4]
    assert_same_answer(session.classify(pair), session.classify([pair])[0])
    assert session.classify(pair)["probabilities"] != answers[3]["probabilities"]
    endless = session.classify(itertools.cycle(TEXTS))
    assert next(endless)["label"] == answers[0]["label"]
    assert session.classify([]) == session.classify(()) == []
    # Truncated texts are reported.
    session = albert.open_session(str(tmp_path), max_seq_length=6)
    session.classify("w1 w2 w3 w4")
    assert "truncated" not in caplog.text
    said = "truncated 1 of 3 inputs (33.3 %) to max_seq_length=6"
    for _ in range(2):  # said once
        session.classify(["w1", "w1 w2 w3 w4 w5", "w2"])
        assert caplog.text.count(said) == caplog.text.count("truncated") == 1


def test_the_best_few_labels_are_a_list_and_several_numbers_have_names(tmp_path):
    _, session = saved(tmp_path / "one", "AlbertForSequenceClassification", 3, label_names=tuple("abc"))
    whole = session.classify("w1 w2")
    few = session.classify(["w1 w2"], top_k=2)
    assert few == [session.classify("w1 w2", top_k=2)] and len(few[0]) == 2
    assert few[0][0] == {"label": whole["label"], "probability": whole["probability"]}
    every = session.classify("w1 w2", top_k=9)
    assert {one["label"]: one["probability"] for one in every} == whole["probabilities"]
    facts = {"problem_type": "regression", "label_names": ("x", "y")}
    model, session = saved(tmp_path / "numbers", "AlbertForSequenceClassification", 2, **facts)
    with pytest.raises(UserError, match="fine-tuned for regression, not for classification"):
        session.classify("w1", top_k=2)
    [logits] = model(albert.AlbertTokenizer.from_pretrained(tmp_path / "numbers")(["w1 w2"])).logits
    assert session.classify("w1 w2")["values"] == pytest.approx(dict(zip("xy", map(float, logits))), abs=1e-5)


def test_an_answer_is_a_place_in_the_passage_and_the_best_few_are_a_list(tmp_path):
    _, session = saved(tmp_path, "AlbertForQuestionAnswering")
    told = session.answer(("w1 w2", passage(9)))
    assert session.answer(question="w1 w2", context=passage(9)) == told
    beside_a_longer_one = session.answer([("w1 w2", passage(9)), ("w1", passage(50))])[0]
    assert_same_answer(beside_a_longer_one, told)  # which has padding in the same batch
    assert set(told) == {"answer", "probability", "start", "end"} and told["answer"]
    assert passage(9)[told["start"] : told["end"]] == told["answer"]
    best = session.answer(("w1 w2", passage(9)), top_k=3)
    assert best[0] == told and len(best) == 3 and best == sorted(best, key=lambda one: -one["probability"])
    assert all(passage(9)[one["start"] : one["end"]] == one["answer"] for one in best)
    assert session.answer([("w1 w2", passage(9))], top_k=1) == [[told]]
    assert session.answer(("w1", " \n"))["answer"] == ""  # not the original's "empty"
    with pytest.raises(UserError, match="top_k must be at least 1"):
        session.answer(("w1 w2", passage(9)), top_k=0)


def test_fill_mask_and_embed_are_of_any_pretrained_model(tmp_path, monkeypatch):
    model, session = saved(tmp_path, "AlbertForPreTraining", layers=2)
    loads = count_loads(session, monkeypatch)
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(tmp_path))
    [found] = session.fill_mask("w1 [MASK] w3", top_k=3)
    ids = [piece["id"] for piece in found]
    assert [piece["piece"] for piece in found] == tokenizer.convert_ids_to_tokens(ids)
    logits = np.asarray(model(tokenizer(["w1 [MASK] w3"]))["prediction_logits"])[0, 2]
    assert ids == np.argsort(-logits)[:3].tolist()
    assert [len(masks) for masks in session.fill_mask(["[MASK]", "w1 [MASK] [MASK]"])] == [1, 2]
    with pytest.raises(DataError, match=r"input 2: no \[MASK\]"):
        list(session.fill_mask(["[MASK]", "w1"]))
    assert len(loads) == 1  # for any number of masks
    rows = tokenizer(TEXTS, padding=True, return_tensors="np")
    states = np.asarray(model(rows, output_hidden_states=True)["encoder_outputs"][-1])
    mask = rows["input_mask"][:, :, None]
    expected = (states * mask).sum(1) / mask.sum(1)
    mean = functools.partial(session.embed, pooling="mean")
    np.testing.assert_allclose(mean(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(next(mean(iter(TEXTS))), expected[0], atol=1e-5)
    np.testing.assert_allclose(session.embed(TEXTS, pooling="cls"), states[:, 0], atol=1e-5)
    np.testing.assert_allclose(mean(tuple(TEXTS[:2])), expected[:2], atol=1e-5)
    assert mean([]).shape == (0, CONFIG.hidden_size) and mean(TEXTS[0]).shape == (CONFIG.hidden_size,)
    assert session.embed(TEXTS, pooling="pooled").shape == expected.shape and len(loads) == 2
    with session:
        pass
    np.testing.assert_allclose(mean(TEXTS), expected, atol=1e-5)  # opened again after `close`
    assert len(loads) == 3


def test_an_embedding_depends_on_no_other_text_and_is_of_length_one():
    session = albert.open_session("small_en", max_seq_length=16)
    near, far = "The ship left the harbour at dawn.", "She was born in Paris in 1912."
    texts = ["The boat sailed out to sea.", near, far, "the king " * 20, ""]
    found = session.embed(texts)
    for text, vector in zip(texts, found, strict=True):
        np.testing.assert_allclose(session.embed(text), vector, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert found[0] @ found[1] > found[0] @ found[2] + 0.3
    assert found.shape == (5, session.source.config.hidden_size)


class Table:
    """What a session sees of a pandas.DataFrame, whose items are the names of its columns."""

    columns = ["text"]

    def __iter__(self):
        return iter(self.columns)


REFUSED = [
    (lambda s: s.fill_mask("[MASK]", top_k=0), "top_k=0: the vocabulary has 40 tokens"),
    (lambda s: s.fill_mask("[MASK]", top_k=41), "top_k=41: the vocabulary has 40 tokens"),
    (lambda s: s.fill_mask(b"[MASK]"), "expected a text or a list of texts, got bytes: b'"),
    (lambda s: s.embed(b"w1"), "expected a text or a list of texts, got bytes: b'"),
    (lambda s: s.embed({"text": "w1"}), "expected a text or a list of texts, got dict"),
    (lambda s: s.embed("w1", pooling="max"), "pooling must be one of mean, cls, pooled"),
    (lambda s: s.embed([("w1", "w2")]), "input 1 is not a text: "),
    (lambda s: s.classify("w1"), "is pretrained, not fine-tuned"),
]
REFUSED_TEXTS = [
    ([3], "input 1 is neither a text nor several"),
    (3, "expected a text or a list of texts, got int: 3"),
    ({"text": "w1"}, "got dict: {'text': 'w1'}"), ({"w1", "w2"}, "got set"),
    (np.array("w1"), "got ndarray"), (Table(), "got Table"),
    (["w1", ("w1", 2)], "input 2 is neither"),
    ([("w1", "w2", "w3")], "input 1: 3 texts, expected 1 or 2"),
]


def test_what_no_model_can_answer_is_refused(tmp_path):
    _, session = saved(tmp_path / "pretrained", "AlbertForPreTraining")
    _, classifier = saved(tmp_path / "classifier", "AlbertForSequenceClassification", 2)
    cases = [(functools.partial(ask, session), message) for ask, message in REFUSED]
    for wrong, message in REFUSED_TEXTS:
        cases.append((lambda wrong=wrong: list(classifier.classify(wrong)), message))
    for options, message in (
        ({"max_seq_length": 100}, "max_seq_length=100 exceeds"),
        ({"dtype": "float16"}, "dtype must be one of float32, bfloat16, int8, got 'float16'"),
    ):
        opened = functools.partial(albert.open_session, str(tmp_path / "pretrained"), **options)
        cases.append((opened, message))
    for ask, message in cases:
        with pytest.raises(UserError, match=message):
            ask()


def test_containers_that_users_bring_get_the_answers_of_a_list(tmp_path):
    _, session = saved(tmp_path, "AlbertForSequenceClassification", 2)
    expected, vectors = session.classify(TEXTS), session.embed(TEXTS)
    arrays = np.array(TEXTS), np.array(TEXTS, dtype=object)
    for texts in (*arrays, *([pandas.Series(TEXTS)] if pandas else [])):
        assert_same_answer(session.classify(texts), expected)
        np.testing.assert_allclose(session.embed(texts), vectors, atol=1e-6)
    for texts in ((text for text in TEXTS), dict.fromkeys(TEXTS).keys(), iter(TEXTS)):
        assert_same_answer(list(session.classify(texts)), expected)
    pairs = [(text, TEXTS[3]) for text in TEXTS]
    assert_same_answer(session.classify(np.array(pairs)), session.classify(pairs))
    assert_same_answer(session.classify(np.str_(TEXTS[1])), expected[1])
    tokenizer = albert.AlbertTokenizer.from_pretrained(tmp_path)
    for array in arrays:
        assert tokenizer(array) == tokenizer(TEXTS)
    for wrong in ({"text": "w1"}, Table(), b"w1", None):
        with pytest.raises(DataError, match="expected a text or a list of texts"):
            tokenizer(wrong)


def test_a_session_is_pickled_as_its_path_and_refused_after_a_fork(tmp_path):
    saved(tmp_path, "AlbertForSequenceClassification", 2)
    session = albert.open_session(tmp_path, max_seq_length=6, batch_size=3)
    expected = session.classify("w1")
    again = pickle.loads(pickle.dumps(session))
    assert (again.max_seq_length, again.batch_size) == (6, 3) and again.classify("w1") == expected
    read, write = os.pipe()
    if not (child := os.fork()):  # a forked multiprocessing.Pool
        try:
            session.classify("w1")
        except UserError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 1000).decode()
    assert said.startswith("a session that was opened before a fork cannot answer after it")


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"\xff", b"1", b'"a"', b"{}", b'{"instances": "a text"}', b'{"instances": [1]}',
    b'{"instances": [null]}', b'{"instances": {"a": 1}}', b'{"instances": ["a", " "]}', b"[" * 100_000,
])
def test_the_server_of_the_guide_answers_every_request(content):
    guide = (REPO / "docs/guides/serve.md").read_text("utf-8")
    [source] = re.findall(r"^class Handler.*?(?=^server = )", guide, re.M | re.S)
    session = types.SimpleNamespace(classify=lambda texts: [{"label": "a"}] * len(texts))
    names = {"http": http, "json": json, "session": session}
    exec(source, names)
    names["Handler"].timeout, names["Handler"].log_message = 0.5, lambda *_: None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), names["Handler"])
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(method, body, headers={}) -> tuple[int, dict]:
        connection = http.client.HTTPConnection(*server.server_address, timeout=10)
        connection.request(method, "/", body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    try:
        assert ask("GET", None) == (200, {"status": "ok"})
        assert ask("POST", b'{"instances": ["a"]}') == (200, {"predictions": [{"label": "a"}]})
        for headers in ({}, {"Content-Length": "-1"}, {"Content-Length": "x"}):
            status, value = ask("POST", content, headers)
            assert status == 400 and "instances" in value["error"]
        # A client that promises more than it sends is disconnected.
        with socket.create_connection(server.server_address, timeout=10) as client:
            client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 99\r\n\r\n{")
            client.settimeout(10)
            while client.recv(1000):
                pass
    finally:
        server.shutdown()
        server.server_close()
