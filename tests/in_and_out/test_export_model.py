"""Models for other runtimes: what is written computes what the model computes."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from helpers import NEEDS_JAX, assert_one_clear_line, run, write_config

from albert import export_model, modeling
from albert.cli import flags
from albert.config import AlbertConfig
from albert.export import model_conversion
from albert.formats import checkpoint_files, checkpoints, huggingface, pretrained
from albert.formats.model_classes import EXPORT_HEADS
from albert.formats.model_metadata import Metadata
from albert.modeling import AlbertForPreTraining, AlbertModel, named_weights

LENGTH = 12


def command(*arguments: str) -> int:
    return flags.run_command(
        export_model.__doc__, export_model.define_flags, export_model.main,
        ["export_model", *arguments],
    )


def write_model(folder, model) -> None:
    rng = np.random.default_rng(3)
    named = named_weights(model).items()
    tensors = {n: w.numpy() + rng.normal(0, 0.2, w.shape).astype("f4") for n, w in named}
    checkpoint_files.write(str(folder / "model.ckpt-best"), tensors)


@pytest.fixture
def source(tmp_path):
    """A pretrained directory whose matrices are large enough to be quantized."""
    folder = tmp_path / "albert"
    folder.mkdir()
    write_config(folder, vocab_size=200, embedding_size=32, hidden_size=64, intermediate_size=128)
    config = AlbertConfig.from_json_file(str(folder / "albert_config.json"))
    write_model(folder, AlbertForPreTraining(config))
    return folder


def rows(length: int, count: int = 1) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(5).integers(5, 200, (count, length)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[:, length // 2 :] = 0
    return {"input_ids": ids, "input_mask": mask, "segment_ids": 0 * ids}


LITERT = """
import sys, numpy as np, tensorflow as tf
run = tf.lite.Interpreter(sys.argv[1]).get_signature_runner()
outputs = run(**np.load(sys.argv[2]))
assert not any(n.split(".")[0] == "albert" for n in sys.modules)
np.savez(sys.argv[3], **outputs)
"""


def run_as_a_stranger(path, inputs, folder) -> dict[str, np.ndarray]:
    np.savez(folder / "in.npz", **inputs)
    result = subprocess.run(
        [sys.executable, "-c", LITERT, str(path), "in.npz", "out.npz"],
        capture_output=True, text=True, cwd=folder, timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return dict(np.load(folder / "out.npz"))


def test_a_model_of_hugging_faces_layout_is_exported_with_its_card(source, tmp_path):
    model = AlbertModel.from_pretrained(str(source))
    weights = {name: weight.numpy() for name, weight in named_weights(model).items()}
    folder = tmp_path / "theirs"
    folder.mkdir()
    values = huggingface.config_to_theirs(
        model.config, Metadata("AlbertModel"), {"pad": 0, "cls": 2, "sep": 3}, None
    )
    (folder / "config.json").write_text(json.dumps(values))
    huggingface.serialize(
        huggingface.tensors_to_theirs(model.config, weights, "AlbertModel"),
        str(folder / "model.safetensors"),
    )
    assert 0 == command(
        f"--model_dir={folder}", f"--export_path={tmp_path}/encoder.tflite", "--max_seq_length=4"
    )
    assert "hidden size | 64" in (tmp_path / "encoder.README.md").read_text()


def test_a_litert_model_gives_the_models_outputs(source, tmp_path):
    path = tmp_path / "encoder.tflite"
    assert 0 == command(
        f"--model_dir={source}", f"--export_path={path}", f"--max_seq_length={LENGTH}"
    )
    inputs = rows(LENGTH)
    expected = AlbertModel.from_pretrained(str(source))(inputs)
    found = run_as_a_stranger(path, inputs, tmp_path)
    assert set(found) == {"pooled_output", "sequence_output"}
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], atol=2e-5)


@pytest.mark.slow
def test_quantization_makes_it_small_and_keeps_it_near(source, tmp_path):
    for name, more in (("whole", []), ("small", ["--quantize"])):
        path = f"--export_path={tmp_path / name}.tflite"
        assert 0 == command(f"--model_dir={source}", path, *more)
    sizes = [(tmp_path / f"{name}.tflite").stat().st_size for name in ("whole", "small")]
    assert sizes[1] < 0.5 * sizes[0]
    inputs = rows(16)
    expected = np.ravel(AlbertModel.from_pretrained(str(source))(inputs)["sequence_output"])
    found = run_as_a_stranger(tmp_path / "small.tflite", inputs, tmp_path)
    small = np.ravel(found["sequence_output"])
    assert not np.array_equal(small, expected)
    assert np.corrcoef(small, expected)[0, 1] > 0.99


FINE_TUNED = {
    "AlbertForSequenceClassification": {"num_labels": 3},
    "AlbertForTokenClassification": {"num_labels": 3},
    "AlbertForMultipleChoice": {"num_choices": 2},
    "AlbertForQuestionAnswering": {},
    "AlbertForBeamQuestionAnswering": {"start_n_top": 3, "end_n_top": 2},
}


@pytest.mark.parametrize("kind", FINE_TUNED)
def test_a_fine_tuned_model_is_exported_with_its_head_and_its_labels(kind, source, tmp_path):
    config = AlbertConfig.from_json_file(str(source / "albert_config.json"))
    model = getattr(modeling, kind)(config, **FINE_TUNED[kind])
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(weight + rng.normal(0, 0.2, weight.shape))
    labels = ["bad", "so, so", "très bon"]
    if "num_labels" in FINE_TUNED[kind]:
        model.label_names = labels
    model.save_pretrained(str(tmp_path / "trained"))
    path = tmp_path / "trained.tflite"
    arguments = f"--model_dir={tmp_path}/trained", f"--export_path={path}"
    assert 0 == command(*arguments, f"--max_seq_length={LENGTH}")
    shape = (1, 2, LENGTH) if "num_choices" in FINE_TUNED[kind] else (1, LENGTH)
    inputs = {name: x.reshape(shape) for name, x in rows(LENGTH, np.prod(shape[:-1])).items()}
    inputs["segment_ids"][..., 2:5] = 1
    expected = model(inputs)
    found = tf.lite.Interpreter(str(path)).get_signature_runner()(**inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, rtol=1e-6)
    card = (tmp_path / "trained.README.md").read_text()
    assert ("très bon" in card) == ("num_labels" in FINE_TUNED[kind])
    if "num_labels" in FINE_TUNED[kind]:
        assert zipfile.ZipFile(path).read("labels.txt").decode().splitlines() == labels


@pytest.mark.parametrize("head", ["encoder", "masked_lm"])
def test_an_onnx_model_takes_any_batch_and_length(head, source, tmp_path):
    pytest.importorskip("tf2onnx", reason="the [onnx] extra is not installed")
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "encoder.onnx"
    assert 0 == command(f"--model_dir={source}", f"--export_path={path}", f"--head={head}")
    kind = EXPORT_HEADS[head]
    model = getattr(modeling, kind.name).from_pretrained(str(source))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for length, count in ((16, 1), (5, 3), (11, 2)):
        inputs = rows(length, count)
        expected = model(inputs)
        for name, value in zip(kind.outputs, session.run(kind.outputs, inputs), strict=True):
            np.testing.assert_allclose(value, expected[name], atol=5e-5)


def test_nan_and_masked_values_are_differences(monkeypatch):
    model = AlbertModel(AlbertConfig(vocab_size=40, hidden_size=8, num_hidden_layers=1,
                                     num_attention_heads=2, intermediate_size=8))

    def difference(expected, found):
        monkeypatch.setattr(AlbertModel, "__call__", lambda *_, **__: {"x": np.float32(expected)})
        run = lambda _: {"x": np.float32(found)}  # noqa: E731
        return model_conversion.largest_difference(model, ["x"], run, 4)["x"]

    assert difference([1.0, -1e30], [1.5, -2e30]) == (0.5, 1.0)
    assert difference([1.0, 2.0], [1.0, -1e30])[0] > 1e28
    assert np.isnan(difference([1.0, 2.0], [1.0, np.nan])[0])


def test_outputs_that_differ_are_never_published(source, tmp_path, monkeypatch, capsys):
    real = model_conversion.to_tflite

    def of_another_model(model, *arguments):
        pooler_bias = model.weights[-1]
        pooler_bias.assign(pooler_bias + 0.1)
        content = real(model, *arguments)
        pooler_bias.assign(pooler_bias - 0.1)
        return content

    monkeypatch.setattr(model_conversion, "to_tflite", of_another_model)
    assert 2 == command(f"--model_dir={source}", f"--export_path={tmp_path / 'e.tflite'}")
    assert "another pooled_output" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "e.tflite").exists()


def test_a_head_of_another_task_is_refused_where_the_task_is_known(source, tmp_path, capsys):
    config = AlbertConfig.from_json_file(str(source / "albert_config.json"))
    folder = tmp_path / "classifier"
    folder.mkdir()
    pretrained.write_archive(str(folder), modeling.AlbertForSequenceClassification(config, 3))
    path = tmp_path / "m.tflite"
    arguments = f"--model_dir={folder}", f"--export_path={path}", "--head=token_classification"
    assert 2 == command(*arguments)
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "was fine-tuned for sequence_classification" in line and not path.exists()
    (folder / "model.ckpt-best.json").unlink()  # as the original wrote it
    assert 0 == command(*arguments)


def test_a_model_without_pooler_is_exported_as_masked_lm(source, tmp_path):
    weights = checkpoints.open_weights(str(source))
    tensors = {n: weights.read(n) for n in weights.shapes if "pooler" not in n}
    checkpoint_files.write(str(source / "model.ckpt-best"), tensors)
    path = tmp_path / "m.tflite"
    arguments = f"--model_dir={source}", f"--export_path={path}", "--max_seq_length=4"
    assert 0 == command(*arguments)
    found = tf.lite.Interpreter(str(path)).get_signature_runner()(**rows(4))
    assert found["prediction_logits"].shape == (1, 4, 200)


@pytest.mark.parametrize("arguments, message", [
    (["--export_path=m.h5"], ".h5 is not a format that this command writes"),
    (["--export_path=m.PB"], "ends in .tflite or .onnx, or a directory"),
    (["--export_path=served_1.0"], "has no vocabulary"),  # what a directory lacks
    (["--export_path=m.onnx", "--max_seq_length=4"], "is not for .onnx"),
    (["--export_path=m.tflite", "--max_seq_length=17"], "exceeds max_position_embeddings 16"),
    (["--export_path=m.tflite", "--head=sequence_classification"], "no classifier yet"),
    (["--export_path=m.tflite", "--head=question_answering"], "has no trained cls/squad"),
    (["--export_path=m.tflite", "--model_dir=nowhere"], "no such directory, checkpoint or archive"),
])
def test_what_cannot_be_is_refused(arguments, message, source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert 2 == command(f"--model_dir={source}", *arguments)
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert [p.name for p in tmp_path.iterdir()] == ["albert"]


@NEEDS_JAX
def test_keras_backend_jax_is_no_obstacle_and_torch_is_refused(source, tmp_path):
    arguments = f"--model_dir={source}", f"--export_path={tmp_path / 'e.tflite'}"
    done = run("albert.export_model", *arguments, env={"KERAS_BACKEND": "torch"})
    assert done.returncode == 2
    assert "KERAS_BACKEND=torch: albert runs on" in assert_one_clear_line(done.stderr)
    done = run("albert.export_model", *arguments, env={"KERAS_BACKEND": "jax"})
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr and done.stderr.count("pooled_output: ") == 1


def test_without_the_onnx_packages_the_remedy_is_named(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)  # as if not installed
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert 2 == command(f"--model_dir={source}", f"--export_path={tmp_path / 'e.onnx'}")
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "pip install onnx tf2onnx onnxruntime" in line
