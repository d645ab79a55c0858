"""A session on an exported ONNX file: the same answers, without TensorFlow or JAX."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
from answers import FINE_TUNED, LENGTHS, TEXTS, assert_same_answer, method_of, passage, saved
from apart import needs
from helpers import assert_one_clear_line, run_here

import albert
from albert import export_model, predict
from albert.errors import UserError
from albert.inference import session

# Not imported here: onnxruntime starts a thread, which the forks of tests/support/parallel.py would lose.
needs("tf2onnx", "onnxruntime", extra="onnx")

# Answers where no backend can be imported.
WITHOUT_ENGINE = """
import json, sys, albert
session = albert.open_session(sys.argv[1], onnx_file=sys.argv[2])
print(json.dumps(session.classify("w1 w2")))
assert not {"tensorflow", "keras", "jax"} & set(sys.modules)
"""


def exported(folder, path, *more):
    assert 0 == run_here(export_model, f"--model_dir={folder}", f"--export_path={path}", *more)
    return albert.open_session(str(folder), batch_size=4, onnx_file=str(path))


@pytest.mark.parametrize("name", FINE_TUNED)
def test_every_method_answers_the_same_and_the_metadata_name_the_labels(name, tmp_path):
    kind, arguments, facts, text_of = FINE_TUNED[name]
    _, opened = saved(tmp_path / "model", kind, *arguments, **facts)
    other = exported(tmp_path / "model", tmp_path / "model.onnx")
    inputs = [text_of(n) for n in LENGTHS]
    if name.startswith("answer"):
        inputs += [("w1 w2", passage(99)),  # of several windows
                   ("w1", "w2"), ("w9 w9", "w3 w4")]  # of fewer tokens than the beam is wide
    answers = list(method_of(opened, name)(inputs))
    assert_same_answer(list(method_of(other, name)(inputs)), answers)
    import onnxruntime

    runner = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    told = runner.get_modelmeta().custom_metadata_map.get("albert_label_names", "null")
    assert tuple(json.loads(told) or ()) == facts.get("label_names", ())


def test_a_classifier_answers_without_an_engine_and_by_command(tmp_path, capsys):
    model, path, texts = tmp_path / "model", tmp_path / "model.onnx", tmp_path / "texts.txt"
    _, opened = saved(model, "AlbertForSequenceClassification", 2, label_names=("nö", "yes, yes"))
    exported(model, path)
    expected = list(opened.classify(TEXTS))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE, str(model), str(path)],
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    assert_same_answer(json.loads(done.stdout), opened.classify("w1 w2"))
    texts.write_text("\n".join(TEXTS))
    flags = f"--model={model}", f"--input_file={texts}"
    capsys.readouterr()
    assert run_here(predict, *flags, f"--onnx_file={path}") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert_same_answer(answers, expected)
    (tmp_path / "wrong.onnx").write_bytes(b"no model")
    for name, message in {"wrong": "is not an ONNX model", "nowhere": "no such file"}.items():
        assert run_here(predict, *flags, f"--onnx_file={tmp_path}/{name}.onnx") == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)


def test_vectors_are_the_same_and_int8_is_near(tmp_path):
    keras.utils.set_random_seed(1)  # int8 keeps some random weights better than others
    _, opened = saved(tmp_path / "model", "AlbertModel", layers=2)
    other = exported(tmp_path / "model", tmp_path / "m.onnx")
    for pooling in ("weighted", "mean", "cls", "pooled"):
        expected = opened.embed(TEXTS, pooling=pooling)
        np.testing.assert_allclose(other.embed(TEXTS, pooling=pooling), expected, atol=1e-5)
    small = exported(tmp_path / "model", tmp_path / "int8.onnx", "--quantize")
    found = small.embed(TEXTS, pooling="pooled")
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99
    assert not np.allclose(found, expected, atol=1e-5)


def test_a_file_of_another_model_is_refused_with_what_helps(tmp_path):
    model, _ = saved(tmp_path / "model", "AlbertForSequenceClassification", 2)
    opened = exported(tmp_path / "model", tmp_path / "m.onnx", "--head=encoder")
    with pytest.raises(UserError, match="write it with .*--head=sequence_classification"):
        opened.classify("w1")
    with pytest.raises(UserError, match="onnxruntime does not compute what"):
        opened.fill_mask("[MASK]")
    bias = np.array(model.output_bias)
    bias[-1] += 1e-3
    model.output_bias.assign(bias)  # as if trained further
    model.save_pretrained(str(tmp_path / "model"))
    opened = albert.open_session(str(tmp_path / "model"), onnx_file=str(tmp_path / "m.onnx"))
    with pytest.raises(UserError, match="was made of other weights"):
        opened.embed("w1")


def test_probabilities_are_those_of_keras():
    from keras import ops

    values = np.array([[-1000.0, -3, 0, 2], [80, -80, 1000, 0]], np.float32)
    for name in ("softmax", "sigmoid"):
        np.testing.assert_allclose(
            getattr(session, name)(values), getattr(ops, name)(values), rtol=1e-6, atol=1e-30
        )
