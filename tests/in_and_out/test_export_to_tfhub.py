"""TF-Hub modules: loaded by strangers, read back as data, refused in one line."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from helpers import assert_one_clear_line, run_here, write_config

from albert import convert_hf, export_to_tfhub
from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import CheckpointError
from albert.formats import checkpoint_files, checkpoints, pretrained
from albert.modeling import AlbertForPreTraining, named_weights
from albert.storage import files


def command(*arguments: str) -> int:
    return flags.run_command(
        export_to_tfhub.__doc__, export_to_tfhub.define_flags, export_to_tfhub.main,
        ["export_to_tfhub", *arguments],
    )


def write_source(folder: pathlib.Path) -> pathlib.Path:
    """A directory like a released archive: config, checkpoint with slots, SentencePiece model."""
    folder.mkdir()
    text = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen jugs"] * 9
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(folder / "30k-clean"), vocab_size=60,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        hard_vocab_limit=False, minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "30k-clean.model"))
    config = AlbertConfig.from_json_file(write_config(folder, vocab_size=model.get_piece_size()))
    weights = named_weights(AlbertForPreTraining(config))
    tensors = {name: w.numpy() for name, w in weights.items()}
    slots = {f"{name}/adam_m": np.zeros_like(value) for name, value in tensors.items()}
    checkpoint_files.write(
        str(folder / "model.ckpt-best"), tensors | slots | {"global_step": np.int64(3)}
    )
    return folder


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "albert")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A source and the module made of it, both only to be read."""
    folder = tmp_path_factory.mktemp("exported")
    source = write_source(folder / "albert")
    assert 0 == command(f"--albert_directory={source}", f"--export_path={folder / 'module'}")
    return source, folder / "module"


STRANGER = """
import json, sys
import numpy as np, tensorflow as tf, tensorflow_hub as hub
assert not any(n.split(".")[0] == "albert" for n in sys.modules)
module = hub.load(sys.argv[1])
ids = tf.constant([[2, 9, 11, 3], [2, 12, 3, 0]])
inputs = {"input_word_ids": ids, "input_mask": tf.sign(ids), "input_type_ids": ids * 0}
plain = module(inputs)
first = module(inputs, training=True)["pooled_output"]
optimizer = tf.keras.optimizers.SGD(0.1)
losses = []
for _ in range(5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(module(inputs)["pooled_output"] - 0.5))
    grads = tape.gradient(loss, module.trainable_variables)
    pairs = [(g, v) for g, v in zip(grads, module.trainable_variables) if g is not None]
    for g, v in pairs:
        v.assign_sub(0.1 * tf.convert_to_tensor(g))
    losses.append(float(loss))
info = module.signatures["tokenization_info"]()
print(json.dumps({
    "pooled": plain["pooled_output"].numpy().tolist(),
    "layers": len(plain["encoder_outputs"]),
    "dropout": float(tf.reduce_max(tf.abs(first - plain["pooled_output"]))),
    "losses": losses, "moved": len(pairs), "signatures": sorted(module.signatures),
    "lower": bool(info["do_lower_case"]), "vocab": info["vocab_file"].numpy().decode(),
    "default": bool(np.all(plain["default"] == plain["pooled_output"])),
}))
"""


def test_a_process_that_knows_nothing_of_us_loads_and_trains_the_module(exported, tmp_path):
    source, path = exported
    result = subprocess.run(
        [sys.executable, "-c", STRANGER, str(path)],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    model = AlbertForPreTraining(AlbertConfig.from_json_file(str(source / "albert_config.json")))
    weights = checkpoints.open_weights(str(source))
    for name, weight in named_weights(model).items():
        weight.assign(weights.read(name))
    ids = tf.constant([[2, 9, 11, 3], [2, 12, 3, 0]])
    expected = model.bert({"input_ids": ids, "input_mask": tf.sign(ids)})["pooled_output"]
    np.testing.assert_allclose(seen["pooled"], expected, atol=1e-5)
    assert seen["layers"] == 2 and seen["dropout"] > 1e-4 and seen["default"]
    assert seen["losses"][-1] < seen["losses"][0]
    # Every encoder variable but the heads' seven takes part.
    assert seen["moved"] == len(named_weights(model)) - 7
    assert seen["signatures"] == ["mlm", "serving_default", "sop", "tokenization_info", "tokens"]
    assert seen["lower"] and seen["vocab"].endswith("30k-clean.model")


KERAS_2 = """
import json, sys
import numpy as np, tensorflow as tf, tf_keras, tensorflow_hub as hub
names = ("input_word_ids", "input_mask", "input_type_ids")
inputs = {n: tf_keras.layers.Input([None], dtype=tf.int32, name=n) for n in names}
layer = hub.KerasLayer(sys.argv[1], trainable=True)
outputs = tf_keras.layers.Dense(2)(layer(inputs)["pooled_output"])
model = tf_keras.Model(inputs, outputs)
loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf_keras.optimizers.Adam(0.01), loss)
ids = np.random.default_rng(0).integers(5, 20, (64, 8))
before = [v.numpy().copy() for v in layer.trainable_weights]
data = dict(zip(names, (ids, ids * 0 + 1, ids * 0)))
# One label for all: learned from any start, on any processor, by a wide margin.
history = model.fit(data, ids[:, 0] * 0 + 1, epochs=5, verbose=0).history["loss"]
moved = [bool(np.any(a != b.numpy())) for a, b in zip(before, layer.trainable_weights)]
mlm = hub.KerasLayer(hub.load(sys.argv[1]).mlm, trainable=True)
data["masked_lm_positions"] = ids[:, :2] * 0 + 1
positions = {k: tf.constant(v, tf.int32) for k, v in data.items()}
assert not any(n.split(".")[0] == "albert" for n in sys.modules)
print(json.dumps({"losses": history, "moved": moved, "mlm weights": len(mlm.trainable_weights),
                  "mlm": list(mlm(positions)["mlm_logits"].shape)}))
"""


@pytest.mark.slow
def test_hub_keras_layer_trains_the_module_in_a_tf_keras_fit(exported, tmp_path):
    source, path = exported
    result = subprocess.run(
        [sys.executable, "-c", KERAS_2, str(path)],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    assert seen["losses"][-1] < 0.7 * seen["losses"][0]
    assert len(seen["moved"]) == 25 and all(seen["moved"])
    pieces = AlbertConfig.from_json_file(str(source / "albert_config.json")).vocab_size
    assert seen["mlm weights"] == 25 + 5 and seen["mlm"] == [64, 2, pieces]


@pytest.mark.slow
def test_the_servings_signatures_are_seen_and_run_by_tensorflows_own_tool(exported, tmp_path):
    _, path = exported

    def tool(verb: str, *arguments: str) -> str:
        line = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli", verb,
                "--dir", str(path), "--tag_set", "serve", *arguments]
        result = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert result.returncode == 0, result.stderr[-3000:]
        return result.stdout

    shown = tool("show", "--signature_def", "mlm")
    for name in ("input_ids", "input_mask", "segment_ids", "mlm_positions", "mlm_logits",
                 "sequence_output", "pooled_output"):
        assert f"['{name}']" in shown, shown
    ids = np.array([[2, 9, 11, 3], [2, 12, 3, 0]], np.int32)
    inputs = {"input_ids": ids, "input_mask": np.sign(ids), "segment_ids": 0 * ids}
    np.savez(tmp_path / "in.npz", **inputs)
    given = ";".join(f"{name}={tmp_path / 'in.npz'}[{name}]" for name in inputs)
    tool("run", "--signature_def", "serving_default", "--inputs", given,
         "--outdir", str(tmp_path / "out"))
    module = tf.saved_model.load(str(path))
    expected = module({
        "input_word_ids": tf.constant(ids), "input_mask": tf.sign(ids),
        "input_type_ids": tf.zeros([2, 4], tf.int32),
    })
    for name in ("pooled_output", "sequence_output"):
        found = np.load(tmp_path / f"out/{name}.npy")
        np.testing.assert_allclose(found, expected[name], atol=1e-6)


def test_too_long_a_sequence_is_named_by_every_way_in(exported):
    _, path = exported
    module, ids = tf.saved_model.load(str(path)), tf.ones([1, 17], tf.int32)
    hub_inputs = {"input_word_ids": ids, "input_mask": ids, "input_type_ids": 0 * ids}
    inputs = {"input_ids": ids, "input_mask": ids, "segment_ids": 0 * ids}
    ways = [
        lambda: module(hub_inputs), lambda: module(hub_inputs, training=True),
        lambda: module.mlm(hub_inputs | {"masked_lm_positions": ids[:, :1]}),
        lambda: module.sop(hub_inputs), lambda: module.signatures["tokens"](**inputs),
    ]
    for way in ways:
        with pytest.raises(tf.errors.InvalidArgumentError, match="at most 16 ids"):
            way()


def test_the_parts_give_what_the_signatures_give(exported):
    _, path = exported
    module, ids = tf.saved_model.load(str(path)), tf.constant([[2, 9, 11, 3]] * 2)
    hub_inputs = {"input_word_ids": ids, "input_mask": tf.sign(ids), "input_type_ids": 0 * ids}
    inputs = {"input_ids": ids, "input_mask": tf.sign(ids), "segment_ids": 0 * ids}
    positions = tf.constant([[1, 2, 1], [2, 1, 0]])
    logits = module.mlm(hub_inputs | {"masked_lm_positions": positions})["mlm_logits"]
    flat = module.signatures["mlm"](**inputs, mlm_positions=positions)["mlm_logits"]
    np.testing.assert_allclose(tf.reshape(logits, flat.shape), flat, atol=1e-6)
    sop = tf.nn.log_softmax(module.sop(hub_inputs)["sop_logits"])
    expected = module.signatures["sop"](**inputs)["sop_log_probs"]
    np.testing.assert_allclose(sop, expected, atol=1e-6)
    assert float(tf.reduce_max(tf.abs(module.mlm.trainable_variables[0]))) > 0


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A cased source with all that may lie beside its weights, and the module made of it."""
    folder = tmp_path_factory.mktemp("complete")
    source = write_source(folder / "albert")
    (source / "30k-clean.vocab").write_text("<pad>\t0\n")
    files.write_json(str(source / "model.ckpt-best.json"), {
        "step": 3, "task": "pretraining", "version": "0.1.0", "records_seen": 12,
        "flags": {"input_file": "text.tfrecord", "learning_rate": 0.01, "do_eval": False},
    })
    files.write_json(
        str(source / "eval_results.json"), {"global_step": 3, "masked_lm_accuracy": 0.25}
    )
    assert 0 == command(
        f"--albert_directory={source}", f"--export_path={folder / 'module'}", "--nodo_lower_case"
    )
    return source, folder / "module"


def test_every_asset_and_a_model_card_go_with_the_module(complete):
    source, path = complete
    assert sorted(os.listdir(path / "assets")) == [
        "30k-clean.model", "30k-clean.vocab", "albert_config.json", "tokenization.json"
    ]
    vocabulary = pretrained.open_module(str(path)).vocabulary
    assert vocabulary.spm_model_file.endswith("30k-clean.model")
    card = (path / "README.md").read_text()
    count = sum(np.prod(s) for n, s in checkpoints.open_weights(str(source)).shapes.items()
                if not n.endswith("adam_m") and n != "global_step")
    for fact in ("| hidden size | 16 |", f"| parameters | {int(count):,} |", "SentencePiece",
                 "--input_file=text.tfrecord", "--learning_rate=0.01",
                 "| masked_lm_accuracy | 0.2500 |", "Limitations", "1909.11942", 'load("module")'):
        assert fact in card, fact
    assert "do_eval" not in card


@pytest.mark.slow
def test_results_of_another_step_are_not_claimed_and_no_record_is_said(source, tmp_path):
    files.write_json(str(source / "eval_results.json"), {"global_step": 4, "accuracy": 0.9})
    assert 0 == command(f"--albert_directory={source}", f"--export_path={tmp_path / 'module'}")
    card = (tmp_path / "module/README.md").read_text()
    assert "0.9" not in card and "No evaluation" in card
    assert "are not known" in card


@pytest.mark.slow
def test_the_use_in_a_model_card_runs(exported):
    _, path = exported
    card = (path / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].replace("40, 41", "9, 11")
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=path.parent, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "tf.Tensor" in result.stdout


@pytest.mark.slow
def test_a_module_in_the_originals_format_becomes_one_of_ours(golden_path, tmp_path):
    """The asset of 30,000 pieces is left out of the data."""
    golden = golden_path("hub_tf1")
    (tmp_path / "vocab.txt").write_text(
        "".join(f"{t}\n" for t in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *range(995)])
    )
    assert 0 == command(
        f"--albert_directory={golden / 'module'}", f"--vocab_file={tmp_path / 'vocab.txt'}",
        f"--export_path={tmp_path / 'module'}",
    )
    values = np.load(golden / "io.npz")
    inputs = {k: tf.constant(values[f"in/{k}"])
              for k in ("input_ids", "input_mask", "segment_ids")}
    module = tf.saved_model.load(str(tmp_path / "module"))
    found = module.signatures["tokens"](**inputs)
    np.testing.assert_allclose(found["pooled_output"], values["tokens/pooled_output"], atol=2e-5)


@pytest.mark.slow
def test_a_hugging_face_directory_becomes_a_module(source, tmp_path):
    folder = tmp_path / "hf"
    arguments = (f"--albert_directory={source}", f"--output_dir={folder}")
    assert 0 == run_here(convert_hf, *arguments)
    weights = checkpoints.open_weights(str(source))
    names = [n for n in weights.shapes if not n.endswith("adam_m") and n != "global_step"]
    assert 0 == command(f"--albert_directory={folder}", f"--export_path={tmp_path / 'module'}")
    module = pretrained.open_module(str(tmp_path / "module"))
    assert module.vocabulary.spm_model_file is not None
    for name in names:
        np.testing.assert_array_equal(module.weights().read(name), weights.read(name))


def test_a_module_is_read_back_as_data_with_every_weight(complete):
    source, path = complete
    module = pretrained.open_module(str(path))
    assert not module.vocabulary.text.do_lower_case
    assert os.path.basename(module.vocabulary.spm_model_file) == "30k-clean.model"
    ours, theirs = module.weights(), checkpoints.open_weights(str(source))
    assert set(ours.shapes) == {
        n for n in theirs.shapes if not n.endswith("/adam_m") and n != "global_step"
    }
    for name in ours.shapes:
        np.testing.assert_array_equal(ours.read(name), theirs.read(name))


def test_a_module_of_the_original_is_read_by_the_same_names(golden_path):
    module = pretrained.open_module(str(golden_path("hub_tf1/module")))
    checkpoint = checkpoints.open_weights(str(golden_path("tf1_ckpt_tiny")))
    weights = module.weights()
    assert module.config.hidden_size == 48
    assert set(weights.shapes) == set(checkpoint.shapes) - {"global_step"}
    for name in weights.shapes:
        np.testing.assert_array_equal(weights.read(name), checkpoint.read(name))


def test_the_signatures_give_the_originals_numbers(golden_path, tmp_path):
    from albert.export.hub_export import export_module, load_model

    folder = golden_path("tf1_ckpt_tiny")
    golden = np.load(golden_path("hub_tf1/io.npz"))
    asset = tmp_path / "asset.model"
    asset.write_bytes(b"x")
    path = str(tmp_path / "module")
    model = load_model(pretrained.open_path(str(folder)))
    export_module(model, [str(asset)], path, do_lower_case=True)
    signatures = tf.saved_model.load(path).signatures
    base = {k: tf.constant(golden[f"in/{k}"]) for k in ("input_ids", "input_mask", "segment_ids")}
    positions = {"mlm_positions": tf.constant(golden["in/mlm_positions"])}
    for name, inputs in (("tokens", base), ("sop", base), ("mlm", base | positions)):
        outputs = signatures[name](**inputs)
        expected = {k.split("/")[1]: golden[k] for k in golden.files if k.startswith(name + "/")}
        assert set(outputs) == set(expected)
        for key, value in expected.items():
            np.testing.assert_allclose(outputs[key], value, atol=2e-5, err_msg=f"{name}/{key}")


def test_nothing_is_overwritten_and_nothing_is_left_after_a_failure(source, tmp_path, capsys):
    target = tmp_path / "module"
    target.mkdir()
    assert 2 == command(f"--albert_directory={source}", f"--export_path={target}")
    assert "exists" in assert_one_clear_line(capsys.readouterr().err)
    os.unlink(source / "model.ckpt-best.index")
    other = tmp_path / "other"
    assert 2 == command(f"--albert_directory={source}", f"--export_path={other}")
    assert "--checkpoint_name: no checkpoint at" in assert_one_clear_line(capsys.readouterr().err)
    assert not [n for n in os.listdir(tmp_path) if n.startswith("other")]


def test_a_vocabulary_of_another_size_is_refused(source, tmp_path, capsys):
    pieces = AlbertConfig.from_json_file(str(source / "albert_config.json")).vocab_size
    write_config(source, vocab_size=pieces + 1)
    assert 2 == command(f"--albert_directory={source}", f"--export_path={tmp_path / 'm'}")
    assert f"{pieces} tokens" in assert_one_clear_line(capsys.readouterr().err)


@pytest.mark.parametrize("content", ["nothing", "no config", "foreign"])
def test_a_directory_that_is_no_module_of_ours_is_refused(content, tmp_path):
    folder = tmp_path / "m"
    (folder / "assets").mkdir(parents=True)
    if content != "nothing":
        (folder / "variables").mkdir()
    if content == "foreign":
        write_config(folder / "assets")
        tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(folder / "variables/variables"))
    with pytest.raises(CheckpointError, match=str(folder)):
        pretrained.open_module(str(folder)).weights()


def test_a_handle_that_cannot_be_fetched_is_a_clear_error(monkeypatch):
    # A closed port of this machine stands for a network that is not there.
    with pytest.raises(CheckpointError, match="cannot fetch https://127.0.0.1:9/albert"):
        pretrained.open_module("https://127.0.0.1:9/albert")
