"""Sessions and exported ONNX files give the answers of the Keras models, without TensorFlow or JAX."""

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from answers import CONFIG, FINE_TUNED, TEXTS, assert_same_answer, by_keras, saved
from apart import needs
from helpers import assert_one_clear_line, run_here

import albert
from albert import engines, export_model, predict
from albert.errors import UserError
from albert.inference import fine_tuned, onnx_model, precision, predictors
from albert.runtime import workers

# Not imported here: onnxruntime starts a thread, which the forks of tests/support/parallel.py would lose.
# Answers where no backend can be imported.
WITHOUT_ENGINE = """
import json, sys, albert
session = albert.open_session(sys.argv[1])
print(json.dumps(session.classify("w1 w2")))
assert not {"tensorflow", "keras", "jax", "onnx"} & set(sys.modules)
"""


ARCHITECTURES = {
    "groups": {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
    "attention shared": {"num_hidden_layers": 3, "parameter_sharing": "attention"},
    "nothing shared": {"num_hidden_layers": 2, "parameter_sharing": "none"},
    "no projection": {"embedding_size": CONFIG.hidden_size},
    **{str(name): {"hidden_act": name} for name in ("gelu_erf", "relu", "tanh", None)},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gives_the_vectors_and_predictions_of_keras(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["answers"], "CONFIG", dataclasses.replace(CONFIG, **ARCHITECTURES[name]))
    layers = ARCHITECTURES[name].get("num_hidden_layers", 1)
    _, quick = saved(tmp_path, "AlbertForPreTraining", layers=layers)
    found, masks = quick.embed(TEXTS, pooling="mean"), quick.fill_mask("w1 [MASK] [MASK]")
    by_keras(monkeypatch)
    other = albert.open_session(tmp_path, batch_size=4)
    np.testing.assert_allclose(found, other.embed(TEXTS, pooling="mean"), atol=1e-5)
    assert_same_answer(masks, other.fill_mask("w1 [MASK] [MASK]"))


def test_a_model_too_large_for_the_format_is_refused_with_what_to_do(tmp_path, monkeypatch):
    _, quick = saved(tmp_path, "AlbertForSequenceClassification", 2)
    monkeypatch.setattr(onnx_model, "_MAX_BYTES", 10_000)
    with pytest.raises(UserError, match=r"ONNX files.*hold 2: choose int8.*from_pretrained\(.*\)\.predict"):
        quick.classify("w1")
    monkeypatch.setattr(onnx_model, "_MAX_BYTES", 100)
    with pytest.raises(UserError, match="hold 2: compute with the Keras model"):
        albert.open_session(tmp_path, dtype="int8").classify("w1")


def test_a_directory_that_cannot_be_written_is_answered_without_an_engine(tmp_path, capsys):
    model, texts = tmp_path / "model", tmp_path / "texts.txt"
    _, opened = saved(model, "AlbertForSequenceClassification", 2, label_names=("nö", "yes, yes"))
    expected, files = list(opened.classify(TEXTS)), sorted(model.iterdir())
    model.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE, str(model)], capture_output=True, text=True,
        env={name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"},
    )
    assert done.returncode == 0, done.stderr
    assert_same_answer(json.loads(done.stdout), opened.classify("w1 w2"))
    texts.write_text("\n".join(TEXTS))
    capsys.readouterr()
    assert run_here(predict, f"--model={model}", f"--input_file={texts}") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert_same_answer(answers, expected)
    assert sorted(model.iterdir()) == files


@pytest.mark.parametrize(("dtype", "tolerance"), [("int8", 0.05), ("bfloat16", 0.01)])
def test_other_precisions_answer_nearly_the_same(dtype, tolerance):
    if dtype == "bfloat16":
        needs("openvino", extra="openvino")
    texts = ["The ship left the harbour at dawn.", "She was born in Paris in 1912.", "a day"]
    quick, small = albert.open_session("small_en"), albert.open_session("small_en", dtype=dtype)
    found, expected = (one.embed(texts, pooling="pooled") for one in (small, quick))
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.995
    has_gain = dtype == "int8" or workers.bfloat16_gain()
    assert np.allclose(found, expected, atol=1e-5) != bool(has_gain)
    masked = ["She was born [MASK] Paris in 1912.", "The boys [MASK] playing in the garden.", "the king [MASK] england"]
    for [mine], [other] in zip(*(one.fill_mask(masked, top_k=1) for one in (small, quick)), strict=True):
        assert [one["piece"] for one in mine] == [one["piece"] for one in other]
        assert mine[0]["probability"] == pytest.approx(other[0]["probability"], abs=tolerance)


def test_bfloat16_without_openvino_is_refused_with_its_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(engines, "is_installed", lambda package: package != "openvino")
    (tmp_path / "texts.txt").write_text("a day")
    command = predict, "--model=small_en", f"--input_file={tmp_path}/texts.txt", "--mixed_precision=bfloat16"
    assert run_here(*command) == 2
    assert assert_one_clear_line(capsys.readouterr().err).endswith(
        "bfloat16 needs OpenVINO: pip install 'albert-keras[openvino]'")


def test_precisions_are_compared_on_as_many_inputs_as_the_time_allows(tmp_path, monkeypatch):
    _, opened = saved(tmp_path, "AlbertForSequenceClassification", 2)
    predictor = fine_tuned.predictor_of(opened)
    inputs = [(text,) for text in TEXTS * 40]
    monkeypatch.setattr(workers, "bfloat16_gain", lambda: 2.0)
    monkeypatch.setattr(engines, "is_installed", lambda package: False)
    found = precision.compare(predictor, inputs, seconds=0.0)
    assert list(found) == ["float32", "int8"] and found["float32"][0] == 1.0
    assert_same_answer(found["float32"][1], opened.classify([text for text, in inputs[: precision.FEWEST]]))
    assert len(precision.compare(predictor, inputs, seconds=60.0)["int8"][1]) == len(inputs)
    monkeypatch.setattr(workers, "bfloat16_gain", lambda: None)
    assert precision.compare(predictor, inputs, seconds=60.0) == {}


@pytest.mark.parametrize("name", FINE_TUNED)
def test_an_exported_file_is_valid_and_names_the_labels(name, tmp_path):
    onnx = pytest.importorskip("onnx")
    kind, arguments, facts, _ = FINE_TUNED[name]
    saved(tmp_path / "model", kind, *arguments, **facts)
    for quantize in ((), ("--quantize",)):
        path = tmp_path / f"model{len(quantize)}.onnx"
        # It compares the file's outputs with the model's.
        assert 0 == run_here(export_model, f"--model_dir={tmp_path}/model", f"--export_path={path}", *quantize)
        onnx.checker.check_model(str(path), full_check=True)
    found = {one.key: one.value for one in onnx.load(path).metadata_props}
    assert tuple(json.loads(found.get("albert_label_names", "[]"))) == facts.get("label_names", ())


CARD = """
import sys
exec(sys.argv[1])
assert not {"albert", "tensorflow", "jax", "keras", "transformers"} & set(sys.modules)
"""


@pytest.mark.parametrize("name", ["classify", "classify, pairs", "classify, several labels", "tag", "choose"])
def test_the_lines_of_the_card_give_predicts_labels_without_albert(name, tmp_path):
    needs("tokenizers", extra="test")
    kind, arguments, facts, text_of = FINE_TUNED[name]
    facts = facts | ({"label_names": ("no", "yes", "ä, b")[: arguments[0]]} if "classify" in name else {})
    _, opened = saved(tmp_path / "model", kind, *arguments, **facts)
    path = tmp_path / "model.onnx"
    assert run_here(export_model, f"--model_dir={tmp_path}/model", f"--export_path={path}") == 0
    code = (tmp_path / "model.onnx.README.md").read_text().split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) < 16
    inputs = [text_of(n) for n in (3, 90, 7)]  # one is truncated
    if name == "choose":
        inputs = [("w1 w2", f"w3 w{n}") for n in range(4)]
    done = subprocess.run(
        [sys.executable, "-c", CARD, re.sub(r"encode_batch\(.*\)", lambda _: f"encode_batch({inputs})", code)],
        cwd=tmp_path, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    if name == "choose":
        [answer] = opened.choose([("w1 w2", "w3", *(f"w{n}" for n in range(4)))])
        return assert_same_answer("ABCD"[int(done.stdout.strip("[]\n"))], answer["label"])
    found = ast.literal_eval(done.stdout)
    if name == "tag":  # the card labels tokens, of which each word here has one
        expected = [answer["labels"] for answer in opened.tag(inputs)]
        limit = opened.max_seq_length - 2
        assert [row[1 : 1 + min(len(e), limit)] for row, e in zip(found, expected)] == [e[:limit] for e in expected]
    else:
        answers = opened.classify(inputs)
        assert found == [answer.get("label", answer.get("labels")) for answer in answers]


def test_probabilities_are_those_of_keras():
    from keras import ops

    values = np.array([[-1000.0, -3, 0, 2], [80, -80, 1000, 0]], np.float32)
    for name in ("softmax", "sigmoid"):
        np.testing.assert_allclose(
            getattr(predictors, name)(values), getattr(ops, name)(values), rtol=1e-6, atol=1e-30
        )
