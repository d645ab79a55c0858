"""Models for other runtimes: exported files, and sessions, which need no engine, compute the same."""

import ast
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import answers
import numpy as np
import pytest
import tensorflow as tf
from answers import FINE_TUNED, TEXTS, assert_same_answer, by_keras, saved
from apart import needs
from helpers import NEEDS_JAX, assert_one_clear_line, run_here, write_config, write_weights

import albert
from albert import engines, export_model, modeling, predict
from albert.config import AlbertConfig
from albert.errors import UserError
from albert.export import model_conversion
from albert.formats import checkpoints, pretrained
from albert.formats.model_classes import EXPORT_HEADS
from albert.inference import fine_tuned, onnx_model, precision, predictors
from albert.runtime import workers

LENGTH, VOCAB = 12, 200
# Matrices large enough to be quantized.
SIZES = {"vocab_size": VOCAB, "embedding_size": 32, "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}


def export(folder, path, *arguments) -> int:
    return run_here(export_model, f"--model_dir={folder}", f"--export_path={path}", *arguments)


def write_source(folder: pathlib.Path) -> None:
    """Writes a pretrained directory."""
    write_config(folder, **SIZES)
    write_weights(folder / "model.ckpt-best", SIZES)


@pytest.fixture
def source(tmp_path):
    (tmp_path / "albert").mkdir()
    write_source(tmp_path / "albert")
    return tmp_path / "albert"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A pretrained directory, and next to it the LiteRT file of its encoder."""
    folder = tmp_path_factory.mktemp("exported") / "albert"
    folder.mkdir()
    write_source(folder)
    assert export(folder, folder.with_name("encoder.tflite"), f"--max_seq_length={LENGTH}") == 0
    return folder


def rows(length: int, count: int = 1) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(5).integers(5, VOCAB, (count, length)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[:, length // 2 :] = 0
    second = np.zeros_like(ids)
    second[:, length // 4 : length // 2] = 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": second}


def run_tflite(path, inputs):
    return tf.lite.Interpreter(str(path)).get_signature_runner()(**inputs)


def test_a_litert_file_gives_the_models_outputs_and_int8_is_small_and_near(exported, tmp_path):
    path, small = exported.with_name("encoder.tflite"), tmp_path / "small.tflite"
    assert export(exported, small, f"--max_seq_length={LENGTH}", "--quantize") == 0
    inputs = rows(LENGTH)
    found = run_tflite(path, inputs)
    expected = modeling.AlbertModel.from_pretrained(str(exported))(inputs)
    assert set(found) == {"pooled_output", "sequence_output"}
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], atol=2e-5)
    assert small.stat().st_size < 0.5 * path.stat().st_size
    near, exact = np.ravel(run_tflite(small, inputs)["sequence_output"]), found["sequence_output"]
    assert not np.array_equal(near, np.ravel(exact))
    assert np.corrcoef(near, np.ravel(exact))[0, 1] > 0.99


def test_a_litert_file_has_a_card_that_says_how_near_it_is_and_how_to_use_it(exported, monkeypatch):
    card = exported.with_name("encoder.tflite.README.md").read_text()
    for fact in ("pooled_output` (differs by up to", f"int32 [1, {LENGTH}]", "hidden size | 64"):
        assert fact in card
    monkeypatch.chdir(exported.parent)
    found = {name: np.ones((1, LENGTH), np.int32) for name in ("ids", "mask", "segments")}
    exec(card.split("```python\n")[1].split("```")[0], found)
    assert sorted(found["outputs"]) == ["pooled_output", "sequence_output"]


def test_every_file_has_a_card_of_its_own_and_the_length_of_the_training(tmp_path):
    model = modeling.AlbertForSequenceClassification(AlbertConfig(**SIZES), 2)
    model.metadata = dataclasses.replace(model.metadata, max_seq_length=7)
    model.save_pretrained(str(tmp_path / "trained"))
    for name, word in (("a.tflite", "int32 [1, 7]"), ("a.onnx", "onnxruntime")):
        assert export(tmp_path / "trained", tmp_path / name) == 0
        card = (tmp_path / f"{name}.README.md").read_text()
        assert word in card and f"\n# {name}\n" in card
    [details, *_] = tf.lite.Interpreter(str(tmp_path / "a.tflite")).get_input_details()
    assert list(details["shape"]) == [1, 7]


EXPORTED = {
    "AlbertForSequenceClassification": {"num_labels": 3},
    "AlbertForTokenClassification": {"num_labels": 3},
    "AlbertForMultipleChoice": {"num_choices": 2},
    "AlbertForQuestionAnswering": {},
    "AlbertForBeamQuestionAnswering": {"start_n_top": 3, "end_n_top": 2},
}
FAST = ("AlbertForSequenceClassification", "AlbertForMultipleChoice")


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in EXPORTED
])
def test_a_fine_tuned_model_is_exported_with_its_head_and_its_labels(kind, tmp_path):
    model = getattr(modeling, kind)(AlbertConfig(**SIZES), **EXPORTED[kind])
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(weight + rng.normal(0, 0.2, weight.shape))
    labels = ["bad", "so, so", "très bon"]
    if "num_labels" in EXPORTED[kind]:
        model.label_names = labels
    model.save_pretrained(str(tmp_path / "trained"))
    path = tmp_path / "trained.tflite"
    assert export(tmp_path / "trained", path, f"--max_seq_length={LENGTH}") == 0
    shape = (1, 2, LENGTH) if "num_choices" in EXPORTED[kind] else (1, LENGTH)
    inputs = {name: x.reshape(shape) for name, x in rows(LENGTH, np.prod(shape[:-1])).items()}
    expected, found = model(inputs), run_tflite(path, inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, rtol=1e-6)
    card = (tmp_path / "trained.tflite.README.md").read_text()
    assert ("très bon" in card) == ("num_labels" in EXPORTED[kind])
    if "num_labels" in EXPORTED[kind]:
        assert zipfile.ZipFile(path).read("labels.txt").decode().splitlines() == labels


def test_an_onnx_model_takes_any_batch_and_length(source, tmp_path):
    import onnxruntime  # not at the top: it starts a thread, which forks would lose

    path = tmp_path / "encoder.onnx"
    assert export(source, path, "--head=masked_lm") == 0
    kind = EXPORT_HEADS["masked_lm"]
    model = getattr(modeling, kind.name).from_pretrained(str(source))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for length, count in ((16, 1), (5, 3), (11, 2)):
        inputs = rows(length, count)
        expected = model(inputs)
        for name, value in zip(kind.outputs, session.run(kind.outputs, inputs), strict=True):
            np.testing.assert_allclose(value, expected[name], atol=5e-5)


def test_nan_and_masked_values_are_differences(monkeypatch):
    model = modeling.AlbertModel(AlbertConfig(**SIZES))

    def difference(expected, found):
        monkeypatch.setattr(modeling.AlbertModel, "__call__", lambda *_, **__: {"x": np.float32(expected)})
        run = lambda _: {"x": np.float32(found)}  # noqa: E731
        return model_conversion.largest_difference(model, ["x"], run, 4)["x"]

    assert difference([1.0, -1e30], [1.5, -2e30]) == (0.5, 1.0)
    assert difference([1.0, 2.0], [1.0, -1e30])[0] > 1e28
    assert np.isnan(difference([1.0, 2.0], [1.0, np.nan])[0])


def test_outputs_that_differ_are_never_published(exported, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(exported, tmp_path / "albert")
    weights = checkpoints.open_weights(str(folder))
    tensors = {name: weights.read(name) for name in weights.shapes}
    tensors["bert/pooler/dense/bias"] += 0.1
    checkpoints.write(str(folder / "model.ckpt-best"), tensors)
    of_another_model = exported.with_name("encoder.tflite").read_bytes()
    monkeypatch.setattr(model_conversion, "to_tflite", lambda *_: of_another_model)
    assert export(folder, tmp_path / "e.tflite", f"--max_seq_length={LENGTH}") == 2
    assert "pooled_output of the .tflite file differs" in assert_one_clear_line(capsys.readouterr().err)
    monkeypatch.setattr(model_conversion, "largest_difference", lambda *_: {"pooled_output": (np.nan, 1.0)})
    assert export(folder, tmp_path / "e.tflite", f"--max_seq_length={LENGTH}") == 2
    assert "differs from the model's by nan" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "e.tflite").exists()


def test_a_head_of_another_task_is_refused_where_the_task_is_known(tmp_path, capsys):
    folder, path = tmp_path / "classifier", tmp_path / "m.tflite"
    folder.mkdir()
    model = modeling.AlbertForSequenceClassification(AlbertConfig(**SIZES), 3)
    pretrained.save(model, str(folder), is_archive=True)
    arguments = folder, path, "--head=token_classification", "--max_seq_length=4"
    assert export(*arguments) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "was fine-tuned for sequence_classification" in line and not path.exists()
    (folder / "model.ckpt-best.json").unlink()  # as written by the original
    assert export(*arguments) == 0


@pytest.mark.slow
def test_a_model_without_pooler_is_exported_as_masked_lm(source, tmp_path):
    weights = checkpoints.open_weights(str(source))
    tensors = {n: weights.read(n) for n in weights.shapes if "pooler" not in n}
    checkpoints.write(str(source / "model.ckpt-best"), tensors)
    assert export(source, tmp_path / "m.tflite", "--max_seq_length=4") == 0
    found = run_tflite(tmp_path / "m.tflite", rows(4))
    assert found["prediction_logits"].shape == (1, 4, VOCAB)


def test_what_cannot_be_is_refused(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for path, more, message in (
        ("m.h5", [], "m.h5: name a *.tflite or *.onnx file"),
        ("served", [], "served: name a *.tflite or *.onnx file"),
        ("m.onnx", ["--max_seq_length=4"], "--max_seq_length has no effect on .onnx"),
        ("m.tflite", ["--max_seq_length=17"], "exceeds max_position_embeddings 16"),
        ("m.tflite", ["--head=sequence_classification"], "no classifier yet"),
        ("m.tflite", ["--head=question_answering"], "has no trained cls/squad"),
        ("m.tflite", ["--model_dir=nowhere"], "no directory or checkpoint"),
    ):
        assert export(source, path, *more) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert [p.name for p in tmp_path.iterdir()] == ["albert"]


@NEEDS_JAX
def test_tensorflow_exports_whatever_keras_backend_says(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    engines.start("tensorflow")
    assert os.environ["KERAS_BACKEND"] == "tensorflow"


# --- Sessions ---

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
    "no projection": {"embedding_size": answers.CONFIG.hidden_size},
    **{str(name): {"hidden_act": name} for name in ("gelu_erf", "relu", "tanh", None)},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gives_the_vectors_and_predictions_of_keras(name, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "CONFIG", dataclasses.replace(answers.CONFIG, **ARCHITECTURES[name]))
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
    assert_same_answer([json.loads(line) for line in capsys.readouterr().out.splitlines()], expected)
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
    masked = ["She was born [MASK] Paris in 1912.", "The boys [MASK] playing in the garden.",
              "the king [MASK] england"]
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
        given = f"--model_dir={tmp_path}/model", f"--export_path={path}", *quantize
        assert run_here(export_model, *given) == 0
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
        [sys.executable, "-c", CARD,
         re.sub(r"encode_batch\(.*\)", lambda _: f"encode_batch({inputs})", code)],
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
        found = [row[1 : 1 + min(len(ids), limit)] for row, ids in zip(found, expected)]
        assert found == [ids[:limit] for ids in expected]
    else:
        assert found == [answer.get("label", answer.get("labels")) for answer in opened.classify(inputs)]


def test_probabilities_are_those_of_keras():
    from keras import ops

    values = np.array([[-1000.0, -3, 0, 2], [80, -80, 1000, 0]], np.float32)
    for name in ("softmax", "sigmoid"):
        np.testing.assert_allclose(
            getattr(predictors, name)(values), getattr(ops, name)(values), rtol=1e-6, atol=1e-30
        )
