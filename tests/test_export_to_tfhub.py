"""TF-Hub modules: loaded by strangers, read back as data, refused in one line."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from helpers import assert_one_clear_line, write_config

from albert import checkpoints, export_to_tfhub, flags, hub
from albert.config import AlbertConfig
from albert.errors import CheckpointError
from albert.modeling import AlbertForPreTraining, named_weights


def command(*arguments: str) -> int:
    return flags.run_command(
        export_to_tfhub.__doc__, export_to_tfhub.define_flags, export_to_tfhub.main,
        ["export_to_tfhub", *arguments],
    )


@pytest.fixture
def source(tmp_path):
    """A directory like a released archive: config, checkpoint with slots, SentencePiece model."""
    folder = tmp_path / "albert"
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
    checkpoints.write_bundle(
        str(folder / "model.ckpt-best"), tensors | slots | {"global_step": np.int64(3)}
    )
    return folder


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


def test_a_process_that_knows_nothing_of_us_loads_and_trains_the_module(source, tmp_path):
    assert 0 == command(f"--albert_directory={source}", f"--export_path={tmp_path / 'module'}")
    result = subprocess.run(
        [sys.executable, "-c", STRANGER, str(tmp_path / "module")],
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


def test_a_module_is_read_back_as_data_with_every_weight(source, tmp_path):
    assert 0 == command(
        f"--albert_directory={source}", f"--export_path={tmp_path / 'module'}", "--nodo_lower_case"
    )
    module = hub.resolve(str(tmp_path / "module"))
    assert not module.do_lower_case
    assert os.path.basename(module.spm_model_file) == "30k-clean.model"
    ours, theirs = module.weights(), checkpoints.open_weights(str(source))
    assert set(ours.shapes) == {
        n for n in theirs.shapes if not n.endswith("/adam_m") and n != "global_step"
    }
    for name in ours.shapes:
        np.testing.assert_array_equal(ours.read(name), theirs.read(name))


def test_a_module_of_the_original_is_read_by_the_same_names(shared):
    module = hub.resolve(str(shared / "golden/open/hub_tf1/module"))
    checkpoint = checkpoints.open_weights(str(shared / "golden/open/tf1_ckpt_tiny"))
    weights = module.weights()
    assert module.config.hidden_size == 48
    assert set(weights.shapes) == set(checkpoint.shapes) - {"global_step"}
    for name in weights.shapes:
        np.testing.assert_array_equal(weights.read(name), checkpoint.read(name))


def test_the_signatures_give_the_originals_numbers(shared, tmp_path):
    from albert.hub_export import export_module

    folder = shared / "golden/open/tf1_ckpt_tiny"
    golden = np.load(shared / "golden/open/hub_tf1/io.npz")
    config = AlbertConfig.from_json_file(str(folder / "albert_config.json"))
    asset = tmp_path / "asset.model"
    asset.write_bytes(b"x")
    path = str(tmp_path / "module")
    weights = checkpoints.open_weights(str(folder))
    export_module(config, weights, [str(asset)], path, do_lower_case=True)
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
    assert f"{pieces} pieces" in assert_one_clear_line(capsys.readouterr().err)


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
        hub.resolve(str(folder)).weights()


def test_a_handle_that_cannot_be_fetched_is_a_clear_error(monkeypatch):
    # A closed port of this machine stands for a network that is not there.
    with pytest.raises(CheckpointError, match="cannot fetch https://127.0.0.1:9/albert"):
        hub.resolve("https://127.0.0.1:9/albert")
