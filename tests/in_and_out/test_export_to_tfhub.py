"""TF-Hub modules: loaded without this package, read back as data, refused in one line."""

import json
import os
import shutil
import subprocess
import sys

import jobs
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import SIZES, assert_one_clear_line, assert_same_records, run_here, write_config
from hf_models import assert_same_weights, load

import albert
from albert import export_to_tfhub
from albert.config import AlbertConfig
from albert.errors import CheckpointError
from albert.export import hub_export
from albert.formats import checkpoints, pretrained
from albert.modeling import named_weights

IDS = np.array([[2, 9, 11, 3], [2, 12, 3, 0]], np.int32)
FLAT = {"input_ids": IDS, "input_mask": np.sign(IDS), "segment_ids": [[0, 0, 1, 1], [0, 1, 1, 0]]}
NAMES = ("input_word_ids", "input_mask", "input_type_ids")  # of TF-Hub's common API


def command(*arguments) -> int:
    return run_here(export_to_tfhub, *arguments)


def of_hub(inputs):
    return {n: tf.constant(x, tf.int32) for n, x in zip(NAMES, inputs.values(), strict=True)}


@pytest.fixture(scope="module")
def module(hub_module):
    return tf.saved_model.load(str(hub_module[1]))


@pytest.fixture
def source(hub_module, tmp_path):
    return shutil.copytree(hub_module[0], tmp_path / "albert")


def run_code(code, *arguments, folder) -> str:
    """Runs code where this package is not imported; returns the last line of output."""
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, cwd=folder, timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()[-1]


STRANGER = """
import json, sys
import numpy as np, tensorflow as tf
exec(sys.argv[1])  # the code of the module's card, which loads it
assert not any(n.split(".")[0] == "albert" for n in sys.modules)
card = outputs["pooled_output"].shape.as_list()
ids = tf.constant([[2, 9, 11, 3], [2, 12, 3, 0]])
types = tf.constant([[0, 0, 1, 1], [0, 1, 1, 0]])
inputs = {"input_word_ids": ids, "input_mask": tf.sign(ids), "input_type_ids": types}
plain = encoder(inputs)
first = encoder(inputs, training=True)["pooled_output"]
losses = []
for _ in range(2):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(encoder(inputs)["pooled_output"] - 0.5))
    grads = tape.gradient(loss, encoder.trainable_variables)
    pairs = [(g, v) for g, v in zip(grads, encoder.trainable_variables) if g is not None]
    for g, v in pairs:
        v.assign_sub(0.1 * tf.convert_to_tensor(g))
    losses.append(float(loss))
info = encoder.signatures["tokenization_info"]()
print(json.dumps({
    "card": card,
    "outputs": {n: plain[n].numpy().tolist() for n in ("pooled_output", "sequence_output")},
    "layers": len(plain["encoder_outputs"]),
    "dropout": float(tf.reduce_max(tf.abs(first - plain["pooled_output"]))),
    "losses": losses, "moved": len(pairs), "signatures": sorted(encoder.signatures),
    "lower": bool(info["do_lower_case"]), "vocab": info["vocab_file"].numpy().decode(),
    "default": bool(np.all(plain["default"] == plain["pooled_output"])),
}))
"""


@pytest.mark.slow
def test_a_process_that_knows_nothing_of_us_loads_and_trains_the_module(hub_module):
    source, path = hub_module
    code = (path / "README.md").read_text().split("```python\n")[1].split("```")[0]
    seen = json.loads(run_code(STRANGER, code.replace("40, 41", "9, 11"), folder=path.parent))
    assert seen["card"] == [1, 16]
    model = load("AlbertForPreTraining", source)
    expected = model.bert(FLAT)
    for name, value in seen["outputs"].items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5)
    assert seen["layers"] == 1 and seen["dropout"] > 1e-4 and seen["default"]
    assert seen["losses"][-1] < seen["losses"][0]
    # Every encoder variable takes part, but not the heads' seven.
    assert seen["moved"] == len(named_weights(model)) - 7
    assert seen["signatures"] == ["mlm", "serving_default", "sop", "tokenization_info", "tokens"]
    assert not seen["lower"] and seen["vocab"].endswith("30k-clean.model")


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
weights = zip(before, layer.trainable_weights)
moved = {b.name: bool(np.any(a != b.numpy())) for a, b in weights}
mlm = hub.KerasLayer(hub.load(sys.argv[1]).mlm, trainable=True)
data["masked_lm_positions"] = ids[:, :2] * 0 + 1
positions = {k: tf.constant(v, tf.int32) for k, v in data.items()}
assert not any(n.split(".")[0] == "albert" for n in sys.modules)
print(json.dumps({"losses": history, "moved": moved, "mlm weights": len(mlm.trainable_weights),
                  "mlm": list(mlm(positions)["mlm_logits"].shape)}))
"""


@pytest.mark.slow
def test_hub_keras_layer_trains_the_module_in_a_tf_keras_fit(hub_module, tmp_path):
    source, path = hub_module
    seen = json.loads(run_code(KERAS_2, path, folder=tmp_path))
    assert seen["losses"][-1] < 0.7 * seen["losses"][0]
    assert len(seen["moved"]) == 25
    # Softmax ignores what a key's bias adds to all scores alike, so its gradient is rounding error.
    assert all(moved for name, moved in seen["moved"].items() if "key/bias" not in name)
    pieces = AlbertConfig.from_json_file(str(source / "albert_config.json")).vocab_size
    assert seen["mlm weights"] == 25 + 5 and seen["mlm"] == [64, 2, pieces]


def test_too_long_a_sequence_is_named_by_every_way_in(module):
    ids = tf.ones([1, 17], tf.int32)
    inputs = dict(zip(FLAT, (ids, ids, 0 * ids), strict=True))
    hub_inputs = of_hub(inputs)
    for way in (
        lambda: module(hub_inputs), lambda: module(hub_inputs, training=True),
        lambda: module.mlm(hub_inputs | {"masked_lm_positions": ids[:, :1]}),
        lambda: module.sop(hub_inputs), lambda: module.signatures["tokens"](**inputs),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="at most 16 ids"):
            way()


def test_the_parts_give_what_the_signatures_give_and_layers_too(hub_module, module):
    hub_inputs = of_hub(FLAT)
    keras_inputs = {name: keras.Input([None], dtype="int32", name=name) for name in NAMES}
    layer = keras.layers.TFSMLayer(str(hub_module[1]))  # no endpoint to name
    found = keras.Model(keras_inputs, layer(keras_inputs)["pooled_output"])(hub_inputs)
    outputs = module(hub_inputs)
    np.testing.assert_allclose(found, outputs["pooled_output"], atol=1e-6)
    np.testing.assert_array_equal(outputs["default"], outputs["pooled_output"])
    inputs = {name: tf.constant(value, tf.int32) for name, value in FLAT.items()}
    positions = tf.constant([[1, 2, 1], [2, 1, 0]])
    logits = module.mlm(hub_inputs | {"masked_lm_positions": positions})["mlm_logits"]
    flat = module.signatures["mlm"](**inputs, mlm_positions=positions)["mlm_logits"]
    np.testing.assert_allclose(tf.reshape(logits, flat.shape), flat, atol=1e-6)
    sop = tf.nn.log_softmax(module.sop(hub_inputs)["sop_logits"])
    expected = module.signatures["sop"](**inputs)["sop_log_probs"]
    np.testing.assert_allclose(sop, expected, atol=1e-6)
    assert float(tf.reduce_max(tf.abs(module.mlm.trainable_variables[0]))) > 0


def test_every_asset_and_a_model_card_go_with_the_module(hub_module):
    source, path = hub_module
    assert sorted(os.listdir(path / "assets")) == [
        "30k-clean.model", "30k-clean.vocab", "albert_config.json", "tokenizer_config.json"
    ]
    card = (path / "README.md").read_text()
    count = sum(np.prod(s) for n, s in checkpoints.open_weights(str(source)).shapes.items()
                if not n.endswith("adam_m") and n != "global_step")
    for fact in (f"| parameters | {int(count):,} |", "| --learning_rate | 0.01 |",
                 "| masked_lm_accuracy | 0.25 |", 'load("module")'):
        assert fact in card, fact
    assert "do_eval" not in card


def test_a_module_is_read_back_as_data_with_every_weight(hub_module):
    source, path = hub_module
    opened = pretrained.open_module(str(path))
    assert not opened.vocabulary.text.do_lower_case
    assert os.path.basename(opened.vocabulary.spm_model_file) == "30k-clean.model"
    ours, theirs = opened.weights(), checkpoints.open_weights(str(source))
    kept = [n for n in theirs.shapes if not n.endswith("/adam_m") and n != "global_step"]
    assert_same_weights({n: ours.read(n) for n in ours.shapes}, {n: theirs.read(n) for n in kept})
    again = albert.from_pretrained(str(path))
    assert type(again).__name__ == "AlbertForPreTraining"
    table = "bert/embeddings/word_embeddings"
    for model in (again, load("AlbertForMaskedLM", path)):
        np.testing.assert_array_equal(named_weights(model)[table], theirs.read(table))
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(path))
    assert tokenizer.tokenizer.settings == opened.vocabulary.text
    assert "[UNK]" in tokenizer.tokenize("The") or "<unk>" in tokenizer.tokenize("The")


def test_a_module_of_the_original_is_read_by_the_same_names(golden_path):
    module = pretrained.open_module(str(golden_path("hub_tf1/module")))
    checkpoint = checkpoints.open_weights(str(golden_path("tf1_ckpt_tiny")))
    weights = module.weights()
    assert module.config.hidden_size == 48
    assert set(weights.shapes) == set(checkpoint.shapes) - {"global_step"}
    for name in weights.shapes:
        np.testing.assert_array_equal(weights.read(name), checkpoint.read(name))


def test_the_signatures_give_the_originals_numbers(golden_path, tmp_path):
    golden = np.load(golden_path("hub_tf1/io.npz"))
    (tmp_path / "asset.model").write_bytes(b"x")
    asset = tf.saved_model.Asset(str(tmp_path / "asset.model"))
    model, _ = hub_export.load_model(pretrained.open_path(str(golden_path("tf1_ckpt_tiny"))))
    base = {k: tf.constant(golden[f"in/{k}"]) for k in ("input_ids", "input_mask", "segment_ids")}
    positions = {"mlm_positions": tf.constant(golden["in/mlm_positions"])}
    tf.config.run_functions_eagerly(True)
    try:
        signatures = hub_export.signatures(hub_export.functions(model), asset, lower=True)
        for name, inputs in (("tokens", base), ("sop", base), ("mlm", base | positions)):
            outputs = signatures[name](**inputs)
            expected = {k.split("/")[1]: golden[k] for k in golden.files if k.startswith(name + "/")}
            assert set(outputs) == set(expected)
            for key, value in expected.items():
                np.testing.assert_allclose(outputs[key], value, atol=2e-5, err_msg=f"{name}/{key}")
    finally:
        tf.config.run_functions_eagerly(False)


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(source, tmp_path, capsys):
    def refused(path="other") -> str:
        before = set(os.listdir(tmp_path))
        arguments = f"--albert_directory={source}", f"--export_path={tmp_path / path}"
        assert command(*arguments) == 2
        assert set(os.listdir(tmp_path)) == before
        return assert_one_clear_line(capsys.readouterr().err)

    (tmp_path / "module").mkdir()
    assert "exists" in refused("module")
    config = source / "albert_config.json"
    content = config.read_text()
    pieces = AlbertConfig.from_json_file(str(config)).vocab_size
    write_config(source, vocab_size=pieces + 1)
    assert f"{pieces} tokens" in refused()
    config.write_text(content)
    (source / "model.ckpt-best.index").unlink()
    assert "--checkpoint_name: no checkpoint at" in refused()


def test_a_handle_that_is_no_module_of_ours_or_cannot_be_fetched_is_a_clear_error(tmp_path):
    for name in ("assets", "variables", ""):
        if name:
            (tmp_path / name).mkdir()
        else:  # another publisher's module
            write_config(tmp_path / "assets")
            tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / "variables/variables"))
        with pytest.raises(CheckpointError, match=str(tmp_path)):
            pretrained.open_module(str(tmp_path)).weights()
    # A closed local port simulates an unreachable network.
    with pytest.raises(CheckpointError, match="cannot fetch https://127.0.0.1:9/albert"):
        pretrained.open_module("https://127.0.0.1:9/albert")


# --- --albert_hub_module_handle ---

def flags_without_model(folder) -> list[str]:
    dropped = ("--vocab_file", "--albert_config_file", "--do_predict")
    return [flag for flag in jobs.classifier_flags(folder) if not flag.startswith(dropped)]


def test_a_module_alone_has_no_classifier(hub_module, tmp_path, capsys):
    flags = f"--albert_hub_module_handle={hub_module[1]}", "--do_predict"
    assert jobs.classify(*flags_without_model(tmp_path), *flags) == 2
    assert "has no output_weights, output_bias" in assert_one_clear_line(capsys.readouterr().err)


def test_a_module_is_fine_tuned_as_its_checkpoint(hub_module, tmp_path, begin):
    source, handle = hub_module
    begun, data = [], flags_without_model(tmp_path)
    for origin in (
        # The original's tutorial passes from_tf_hub instead of a real file.
        [f"--albert_hub_module_handle={handle}", "--spm_model_file=from_tf_hub"],
        [f"--albert_config_file={source}/albert_config.json", "--nodo_lower_case",
         f"--spm_model_file={source}/30k-clean.model", f"--init_checkpoint={source}/model.ckpt-best"],
    ):
        (task, config, _, _, records), options = begin(jobs.classify, *data, "--do_train", *origin)
        shapes = {name: tuple(w.shape) for name, w in named_weights(albert.AlbertModel(config)).items()}
        weights, _ = checkpoints.warm_start(shapes, options["init"])
        begun.append((config, records, weights))
    (config, records, weights), other = begun
    assert config == other[0]
    assert_same_records(records, other[1], task.feature_spec())
    assert_same_weights(weights, other[2])


def test_an_encoder_without_heads_becomes_a_module_without_them(tmp_path):
    model = albert.AlbertModel(AlbertConfig(**SIZES))
    model.save_pretrained(tmp_path / "encoder")
    jobs.write_vocabulary(tmp_path / "encoder")
    assert command(f"--albert_directory={tmp_path / 'encoder'}", f"--export_path={tmp_path / 'm'}") == 0
    module = tf.saved_model.load(str(tmp_path / "m"))
    expected = model(FLAT)
    np.testing.assert_allclose(
        module(of_hub(FLAT))["pooled_output"], expected["pooled_output"], atol=1e-5)
    assert set(module.signatures) == {"serving_default", "tokens", "tokenization_info"}
    again = albert.from_pretrained(tmp_path / "m")
    assert type(again) is albert.AlbertModel
    assert_same_weights(again, model)
