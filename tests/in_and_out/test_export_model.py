"""Models for other runtimes: an exported file computes the same as the model."""

import dataclasses
import os
import pathlib
import shutil
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from helpers import NEEDS_JAX, assert_one_clear_line, run_here, write_config, write_weights

from albert import engines, export_model, modeling
from albert.config import AlbertConfig
from albert.export import model_conversion
from albert.formats import checkpoints, pretrained
from albert.formats.model_classes import EXPORT_HEADS

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
    words = {"a.tflite": "int32 [1, 7]"}
    words["a.onnx"] = "onnxruntime"
    for name in words:
        assert export(tmp_path / "trained", tmp_path / name) == 0
    for name, word in words.items():
        card = (tmp_path / f"{name}.README.md").read_text()
        assert word in card and f"\n# {name}\n" in card
    [details, *_] = tf.lite.Interpreter(str(tmp_path / "a.tflite")).get_input_details()
    assert list(details["shape"]) == [1, 7]


FINE_TUNED = {
    "AlbertForSequenceClassification": {"num_labels": 3},
    "AlbertForTokenClassification": {"num_labels": 3},
    "AlbertForMultipleChoice": {"num_choices": 2},
    "AlbertForQuestionAnswering": {},
    "AlbertForBeamQuestionAnswering": {"start_n_top": 3, "end_n_top": 2},
}
FAST = ("AlbertForSequenceClassification", "AlbertForMultipleChoice")


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in FINE_TUNED
])
def test_a_fine_tuned_model_is_exported_with_its_head_and_its_labels(kind, tmp_path):
    model = getattr(modeling, kind)(AlbertConfig(**SIZES), **FINE_TUNED[kind])
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(weight + rng.normal(0, 0.2, weight.shape))
    labels = ["bad", "so, so", "très bon"]
    if "num_labels" in FINE_TUNED[kind]:
        model.label_names = labels
    model.save_pretrained(str(tmp_path / "trained"))
    path = tmp_path / "trained.tflite"
    assert export(tmp_path / "trained", path, f"--max_seq_length={LENGTH}") == 0
    shape = (1, 2, LENGTH) if "num_choices" in FINE_TUNED[kind] else (1, LENGTH)
    inputs = {name: x.reshape(shape) for name, x in rows(LENGTH, np.prod(shape[:-1])).items()}
    expected, found = model(inputs), run_tflite(path, inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, rtol=1e-6)
    card = (tmp_path / "trained.tflite.README.md").read_text()
    assert ("très bon" in card) == ("num_labels" in FINE_TUNED[kind])
    if "num_labels" in FINE_TUNED[kind]:
        assert zipfile.ZipFile(path).read("labels.txt").decode().splitlines() == labels


@pytest.mark.parametrize("head", ["masked_lm", pytest.param("encoder", marks=pytest.mark.slow)])
def test_an_onnx_model_takes_any_batch_and_length(head, source, tmp_path):
    import onnxruntime  # not at the top: it starts a thread, which forks would lose

    path = tmp_path / "encoder.onnx"
    assert export(source, path, f"--head={head}") == 0
    kind = EXPORT_HEADS[head]
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
        ("m.h5", [], "m.h5: give a *.tflite or *.onnx file"),
        ("served", [], "served: give a *.tflite or *.onnx file"),
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
