"""A session that computes with an exported ONNX file: the same answers, without an engine."""

import json
import subprocess
import sys

import numpy as np
import pytest
from apart import needs
from helpers import SIZES, assert_one_clear_line, run, run_here

import albert
from albert import export_model, modeling
from albert.errors import UserError
from albert.inference import onnx_file

# Not imported here: onnxruntime starts a thread, which the forks of tests/support/parallel.py would lose.
needs("tf2onnx", "onnxruntime", extra="onnx")

WORDS = [f"w{i}" for i in range(35)]
TEXTS = [" ".join(WORDS[i % 35] for i in range(n, n + 1 + n % 7)) for n in range(12)]
CONFIG = modeling.AlbertConfig(
    **SIZES | {"max_position_embeddings": 64, "initializer_range": 0.4}
)
# Answers where no engine may be imported.
WITHOUT_ENGINE = """
import json, sys, albert
session = albert.open_session(sys.argv[1], onnx_file=sys.argv[2])
print(json.dumps(session.classify("w1 w2")))
assert not {"tensorflow", "keras", "jax"} & set(sys.modules)
"""


def saved(folder, kind, *arguments, **facts):
    model = getattr(albert, kind)(CONFIG, *arguments)
    for name, value in facts.items():
        setattr(model, name, value)
    rng = np.random.default_rng(1)
    for weight in model.trainable_variables:  # biases too
        weight.assign(weight + rng.normal(0, 0.1, weight.shape))
    model.save_pretrained(str(folder))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]))
    return albert.open_session(str(folder), batch_size=4)


def exported(folder, path, *more):
    assert 0 == run_here(export_model, f"--model_dir={folder}", f"--export_path={path}", *more)
    return albert.open_session(str(folder), batch_size=4, onnx_file=str(path))


def assert_same(found, expected):
    """Answers with the same texts and, to 1e-5, the same numbers."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    else:
        assert found == expected


def test_a_classifier_answers_the_same_without_an_engine_in_python_and_by_command(tmp_path):
    session = saved(
        tmp_path / "model", "AlbertForSequenceClassification", 2, label_names=("no", "yes")
    )
    path = tmp_path / "model.onnx"
    other = exported(tmp_path / "model", path)
    expected = list(session.classify([*TEXTS, ("w1", "w2 w3")]))
    assert_same(list(other.classify([*TEXTS, ("w1", "w2 w3")])), expected)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE, str(tmp_path / "model"), str(path)],
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    assert_same(json.loads(done.stdout), session.classify("w1 w2"))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    done = run("albert.predict", f"--model={tmp_path / 'model'}", f"--onnx_file={path}",
               f"--input_file={tmp_path / 'texts.txt'}")
    assert_same([json.loads(line) for line in done.stdout.splitlines()], expected[: len(TEXTS)])


@pytest.mark.parametrize("problem, count", [("multi_label_classification", 3), ("regression", 1)])
def test_several_labels_and_numbers_are_the_same(problem, count, tmp_path):
    session = saved(
        tmp_path / "model", "AlbertForSequenceClassification", count, problem_type=problem
    )
    other = exported(tmp_path / "model", tmp_path / "m.onnx")
    assert_same(list(other.classify(TEXTS)), list(session.classify(TEXTS)))


def test_words_and_passages_are_answered_the_same(tmp_path):
    session = saved(
        tmp_path / "tags", "AlbertForTokenClassification", 3, label_names=("O", "B-X", "I-X")
    )
    other = exported(tmp_path / "tags", tmp_path / "tags.onnx")
    assert_same(list(other.tag(TEXTS)), list(session.tag(TEXTS)))
    asked = [("w1 w2", " ".join(WORDS * n)) for n in (1, 3)]  # of one window and of several
    asked += [("w1", "w2"), ("w9 w9", "w3 w4")]  # of fewer tokens than a beam has places
    for version, kind in enumerate(["", "Beam"], start=1):
        folder = tmp_path / f"answers_{version}"
        session = saved(folder, f"AlbertFor{kind}QuestionAnswering")
        other = exported(folder, tmp_path / f"answers_{version}.onnx")
        assert_same(list(other.answer(asked)), list(session.answer(asked)))


def test_options_are_chosen_the_same(tmp_path):
    session = saved(tmp_path / "choices", "AlbertForMultipleChoice")
    other = exported(tmp_path / "choices", tmp_path / "choices.onnx")
    asked = [(text, "w1 w2", "w3", "w4 w5", "w6", text) for text in TEXTS]
    assert_same(list(other.choose(asked)), list(session.choose(asked)))


@pytest.mark.parametrize("kind", ["AlbertForSequenceClassification", "AlbertForTokenClassification"])
def test_the_metadata_names_the_labels(kind, tmp_path):
    names = ["O", "B-Ä, b", "I"]
    saved(tmp_path / "model", kind, 3, label_names=names)
    exported(tmp_path / "model", tmp_path / "m.onnx")
    import onnxruntime

    opened = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    metadata = opened.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["albert_label_names"]) == names


def test_vectors_are_the_same_and_int8_is_near(tmp_path):
    session = saved(tmp_path / "model", "AlbertModel")
    other = exported(tmp_path / "model", tmp_path / "m.onnx")
    for pooling in ("mean", "cls", "pooled"):
        expected = session.embed(TEXTS, pooling=pooling)
        np.testing.assert_allclose(other.embed(TEXTS, pooling=pooling), expected, atol=1e-5)
    small = exported(tmp_path / "model", tmp_path / "int8.onnx", "--quantize")
    found = small.embed(TEXTS, pooling="pooled")
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99
    assert not np.allclose(found, expected, atol=1e-5)
    with pytest.raises(UserError, match="the last layer's states alone"):
        other.embed(TEXTS, layers=(1,))


def test_a_file_of_another_model_is_refused_with_what_helps(tmp_path):
    saved(tmp_path / "model", "AlbertForSequenceClassification", 2)
    session = exported(tmp_path / "model", tmp_path / "m.onnx", "--head=encoder")
    with pytest.raises(UserError, match="write it with .*--head=sequence_classification"):
        session.classify("w1")
    with pytest.raises(UserError, match="onnxruntime does not compute what"):
        session.fill_mask("[MASK]")
    saved(tmp_path / "model", "AlbertForSequenceClassification", 2)  # trained on, say
    session = albert.open_session(str(tmp_path / "model"), onnx_file=str(tmp_path / "m.onnx"))
    with pytest.raises(UserError, match="was made of other weights"):
        session.embed("w1")
    (tmp_path / "texts.txt").write_text("w1")
    for content, message in ((b"no model", "is no model of ONNX"), (None, "no such file")):
        path = tmp_path / "wrong.onnx"
        if content:
            path.write_bytes(content)
        else:
            path = tmp_path / "nowhere.onnx"
        done = run("albert.predict", f"--model={tmp_path / 'model'}", f"--onnx_file={path}",
                   f"--input_file={tmp_path / 'texts.txt'}")
        assert done.returncode == 2
        assert message in assert_one_clear_line(done.stderr)


def test_probabilities_are_those_of_keras():
    from keras import ops

    from albert.inference import session

    values = np.array([[-1000.0, -3, 0, 2], [80, -80, 1000, 0]], np.float32)
    for name in ("softmax", "sigmoid"):
        np.testing.assert_allclose(
            getattr(session, name)(values), getattr(ops, name)(values), rtol=1e-6, atol=1e-30
        )


def test_weights_are_told_apart_by_every_number(tmp_path):
    saved(tmp_path, "AlbertModel")
    weights = albert.open_session(str(tmp_path)).source.weights()

    class Changed:
        shapes = weights.shapes

        def read(self, name):
            value = np.array(weights.read(name))
            value.flat[-1] += name == max(weights.shapes)
            return value

    assert onnx_file.digest(weights) != onnx_file.digest(Changed())
