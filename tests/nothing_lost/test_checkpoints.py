"""Checkpoints: the original's format, nothing half-written, nothing silently wrong."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from albert.config import AlbertConfig
from albert.errors import CheckpointError
from albert.formats import checkpoint_files, checkpoints
from albert.modeling import AlbertForPreTraining, AlbertForSequenceClassification, named_weights
from albert.training import checkpoint_store

CONFIG = AlbertConfig(
    1000, 16, 48, 3, num_attention_heads=4, intermediate_size=96, max_position_embeddings=64
)
TENSORS = {"bert/a": np.arange(6, dtype="float32").reshape(2, 3), "global_step": np.int64(7)}
SHAPES = {"bert/a": (2, 3), "global_step": ()}


def save(directory, step, value=0.0, keep=0):
    tensors = {"bert/a": np.full((2, 3), value, "float32"), "global_step": np.int64(step)}
    return checkpoint_store.save(str(directory), step, tensors, {"records_seen": step * 2}, keep)


def shapes_of(model):
    return {name: tuple(w.shape) for name, w in named_weights(model).items()}


def test_a_saved_bundle_is_a_name_based_checkpoint_that_tensorflow_reads(tmp_path):
    checkpoint_files.write(str(tmp_path / "model.ckpt-7"), TENSORS)
    assert sorted(os.listdir(tmp_path)) == [
        "model.ckpt-7.data-00000-of-00001", "model.ckpt-7.index",
    ]
    reader = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-7"))
    assert reader.get_variable_to_shape_map() == {"bert/a": [2, 3], "global_step": []}
    np.testing.assert_array_equal(reader.get_tensor("bert/a"), TENSORS["bert/a"])


@pytest.mark.parametrize("ending", ["", ".index", ".data-00000-of-00001", ".meta"])
def test_any_file_of_a_checkpoint_names_it(ending, tmp_path):
    prefix = save(tmp_path, 7)
    assert checkpoints.resolve_prefix(prefix + ending) == prefix


def test_a_directory_means_its_best_checkpoint_else_its_newest(tmp_path):
    save(tmp_path, 9)
    newest = save(tmp_path, 10)
    assert checkpoints.resolve_prefix(str(tmp_path)) == newest
    best = checkpoint_store.publish_best(os.path.join(tmp_path, "model.ckpt-9"))
    assert checkpoints.resolve_prefix(str(tmp_path)) == best


def test_an_absent_checkpoint_is_refused_with_the_nearest_names(tmp_path):
    save(tmp_path, 100)
    with pytest.raises(CheckpointError, match=r"--init_checkpoint.*there are: model\.ckpt-100"):
        checkpoints.open_weights(str(tmp_path / "model.ckpt-10"))


@pytest.mark.parametrize("name", ["weights.pkl", "model.h5", "model.bin", "notes.txt"])
def test_a_file_that_is_no_checkpoint_is_refused_without_being_opened(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    with pytest.raises(CheckpointError, match="not a TensorFlow checkpoint"):
        checkpoints.open_weights(str(path))


def test_an_object_based_checkpoint_is_refused_and_named_as_such(tmp_path):
    path = tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / "ckpt"))
    with pytest.raises(CheckpointError, match="object-based"):
        checkpoints.open_weights(path)


def test_the_newest_k_checkpoints_are_kept_and_the_best_beside_them(tmp_path):
    for step in (1, 2, 3):
        prefix = save(tmp_path, step, keep=2)
        if step == 1:
            checkpoint_store.publish_best(prefix)
    assert list(checkpoints.list_steps(str(tmp_path))) == [2, 3]
    assert checkpoints.open_weights(str(tmp_path / "model.ckpt-best")).read("global_step") == 1
    assert not (tmp_path / "model.ckpt-1.json").exists()


def damage_cut_data(prefix):
    path = prefix + ".data-00000-of-00001"
    os.truncate(path, os.path.getsize(path) // 2)


def damage_flip_bit(prefix):
    path = prefix + ".data-00000-of-00001"
    with open(path, "r+b") as stream:
        stream.seek(3)
        byte = stream.read(1)
        stream.seek(3)
        stream.write(bytes([byte[0] ^ 1]))


def damage_cut_index(prefix):
    os.truncate(prefix + ".index", 20)


def damage_lose_data(prefix):
    os.unlink(prefix + ".data-00000-of-00001")


@pytest.mark.parametrize(
    "damage", [damage_cut_data, damage_flip_bit, damage_cut_index, damage_lose_data]
)
def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_is_used(damage, tmp_path):
    good = save(tmp_path, 30, 3.0)
    damage(save(tmp_path, 40, 4.0))
    (tmp_path / "checkpoint").write_text("garbage")
    prefix, tensors, run_state = checkpoint_store.read_newest(str(tmp_path), SHAPES, CONFIG, "task")
    assert (prefix, run_state["records_seen"]) == (good, 60)
    assert tensors["bert/a"][0, 0] == 3.0
    assert list(checkpoints.list_steps(str(tmp_path))) == [30]
    assert any(name.endswith(".corrupt") for name in os.listdir(tmp_path))


def test_when_every_checkpoint_is_damaged_nothing_is_touched(tmp_path):
    for step in (30, 40):
        damage_cut_data(save(tmp_path, step))
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(CheckpointError, match="no checkpoint in .* is readable"):
        checkpoint_store.read_newest(str(tmp_path), SHAPES, CONFIG, "task")
    assert sorted(os.listdir(tmp_path)) == before


def test_another_architecture_or_task_is_refused_with_both_values(tmp_path):
    other = {"config": CONFIG.to_dict() | {"hidden_size": 96}, "task": "pretraining"}
    checkpoint_store.save(str(tmp_path), 5, TENSORS, other, 5)
    with pytest.raises(CheckpointError, match="hidden_size: checkpoint 96, config 48"):
        checkpoint_store.read_newest(str(tmp_path), SHAPES, CONFIG, "pretraining")
    with pytest.raises(CheckpointError, match="of task pretraining, not rte"):
        checkpoint_store.read_newest(str(tmp_path), SHAPES, CONFIG, "rte")


def test_a_failed_write_leaves_no_file_behind(tmp_path):
    target = tmp_path / "readonly"
    target.mkdir()
    (target / "model.ckpt-1.tmp-0").mkdir()
    with pytest.raises(CheckpointError, match="cannot write"):
        # The scratch directory cannot be made below a file.
        (target / "file").write_text("")
        checkpoint_files.write(str(target / "file" / "model.ckpt-1"), TENSORS)
    assert sorted(os.listdir(target)) == ["file", "model.ckpt-1.tmp-0"]


def test_a_warm_start_accounts_for_every_variable(golden_path):
    path = str(golden_path("tf1_ckpt_tiny_groups"))
    config = AlbertConfig.from_json_file(path + "/albert_config.json")
    model = AlbertForSequenceClassification(config, 3)
    weights = checkpoints.open_weights(path)
    tensors, account = checkpoints.warm_start(shapes_of(model), weights)
    assert account["new"] == ["output_weights", "output_bias"]
    assert set(account["loaded"]) == set(tensors) == {
        n for n in weights.shapes if n.startswith("bert/") and "/adam_" not in n
    }
    assert set(account["ignored"]) == set(weights.shapes) - set(tensors)
    assert "adam_m" in checkpoints.describe_start(account)


def test_an_encoder_variable_that_is_absent_or_of_another_shape_is_an_error(tmp_path):
    shapes = {"bert/a": (2, 3), "bert/b": (4,), "head": (1,)}
    checkpoint_files.write(str(tmp_path / "c"), {"bert/a": np.zeros((2, 4), "f4")})
    weights = checkpoints.open_weights(str(tmp_path / "c"))
    with pytest.raises(CheckpointError) as error:
        checkpoints.warm_start(shapes, weights)
    assert "bert/a: checkpoint [2, 4], model [2, 3]" in str(error.value)
    assert "bert/b [4]: not in the checkpoint" in str(error.value)
    checkpoint_files.write(str(tmp_path / "d"), {"bert/a": np.zeros((2, 3), "f4")})
    tensors, account = checkpoints.warm_start(
        shapes, checkpoints.open_weights(str(tmp_path / "d")), allow_partial_init=True
    )
    assert (list(tensors), account["new"]) == (["bert/a"], ["bert/b", "head"])


def test_a_model_without_a_pooler_starts_a_training_and_is_no_whole_model(tmp_path, caplog):
    pooler = {"bert/pooler/dense/kernel": (2, 2), "bert/pooler/dense/bias": (2,)}
    checkpoint_files.write(str(tmp_path / "c"), {"bert/a": np.zeros((2, 3), "f4")})
    weights = checkpoints.open_weights(str(tmp_path / "c"))
    shapes = {"bert/a": (2, 3)} | pooler
    with pytest.raises(CheckpointError, match="bert/pooler/dense/kernel.*not in the checkpoint"):
        checkpoints.warm_start(shapes, weights)
    tensors, account = checkpoints.warm_start(shapes, weights, may_lack_pooler=True)
    assert (list(tensors), account["new"]) == (["bert/a"], list(pooler))
    assert "has no pooler" in caplog.text
    with pytest.raises(CheckpointError, match="bert/b"):
        checkpoints.warm_start(shapes | {"bert/b": (4,)}, weights, may_lack_pooler=True)


def test_an_encoder_that_got_no_weights_is_an_error_even_when_partial(tmp_path):
    checkpoint_files.write(str(tmp_path / "c"), {"other/x": np.zeros(3, "f4")})
    with pytest.raises(CheckpointError, match="does not fit the model"):
        checkpoints.warm_start(
            {"bert/a": (2, 3)}, checkpoints.open_weights(str(tmp_path / "c")),
            allow_partial_init=True,
        )


def test_the_module_prefix_of_hub_fine_tuning_is_dropped(tmp_path):
    checkpoint_files.write(str(tmp_path / "c"), {"module/bert/a": TENSORS["bert/a"]})
    np.testing.assert_array_equal(
        checkpoints.open_weights(str(tmp_path / "c")).read("bert/a"), TENSORS["bert/a"]
    )


def test_init_from_group0_gives_every_group_the_weights_of_group_0(golden_path):
    path = str(golden_path("tf1_ckpt_tiny"))
    config = AlbertConfig.from_json_file(path + "/albert_config.json")
    grouped = AlbertConfig(**config.to_dict() | {"num_hidden_groups": 3})
    weights = checkpoints.open_weights(path)
    shapes = shapes_of(AlbertForPreTraining(grouped))
    tensors, account = checkpoints.warm_start(shapes, weights, init_from_group0=True)
    assert not account["new"]
    first = {name for name in shapes if "/group_0/" in name}
    assert len(first) == 16
    for name in first:
        for group in (0, 1, 2):
            np.testing.assert_array_equal(
                tensors[name.replace("/group_0/", f"/group_{group}/")], weights.read(name)
            )


def test_the_sidecar_is_json_that_a_person_can_read(tmp_path):
    prefix = save(tmp_path, 7)
    assert json.loads(open(prefix + ".json", encoding="utf-8").read())["step"] == 7


def test_older_scopes_are_read_under_the_released_names(golden_path, tmp_path):
    # Code before the release counted attention and feed-forward; hub modules add module/.
    path = str(golden_path("tf1_ckpt_tiny"))
    released = checkpoints.open_weights(path)
    names = [n for n in released.shapes if not checkpoints.is_slot(n)]
    renamed = {
        n: "module/" + n.replace("/attention_1/", "/attention_0/").replace("/ffn_1/", "/ffn_0/")
        for n in names
    }
    tensors = {renamed[n]: released.read(n) for n in names}
    checkpoint_files.write(str(tmp_path / "old"), tensors)
    older = checkpoints.open_weights(str(tmp_path / "old"))
    assert set(older.shapes) == set(names)
    for name in names:
        np.testing.assert_array_equal(older.read(name), released.read(name))


def test_the_released_chinese_base_is_accepted_name_by_name(golden_path, tmp_path):
    # Its index is real; the data, which is not at hand, is zeros.
    index = golden_path("tf1_index") / "albert_base_model.ckpt-best"
    shapes = tf.train.load_checkpoint(str(index)).get_variable_to_shape_map()
    zeros = {n: np.zeros(s, "int64" if n == "global_step" else "f4") for n, s in shapes.items()}
    checkpoint_files.write(str(tmp_path / "model.ckpt-best"), zeros)
    config = AlbertConfig(
        21128, 128, 768, 12, num_attention_heads=12, intermediate_size=3072
    )
    model = AlbertForPreTraining(config)
    tensors, account = checkpoints.warm_start(
        shapes_of(model), checkpoints.open_weights(str(tmp_path))
    )
    assert set(tensors) == set(shapes_of(model)) and not account["new"]
    assert account["ignored"] == ["global_step"]


@pytest.mark.parametrize("with_data", [False, True])
def test_the_third_party_albert_tiny_is_refused_by_its_name(with_data, golden_path, tmp_path):
    name = "albert_zh_albert_tiny_albert_model.ckpt"
    index = golden_path(f"tf1_index/{name}.index")
    (tmp_path / f"{name}.index").write_bytes(index.read_bytes())
    if with_data:
        (tmp_path / f"{name}.data-00000-of-00001").write_bytes(b"\0" * 64)
    with pytest.raises(CheckpointError, match="third-party albert_zh layout.*layer_shared"):
        checkpoints.open_weights(str(tmp_path / name))


def test_a_bert_is_refused_as_one(tmp_path):
    tensors = {"bert/encoder/layer_0/attention/self/query/kernel": np.zeros((2, 2), "f4")}
    checkpoint_files.write(str(tmp_path / "bert"), tensors)
    with pytest.raises(CheckpointError, match="a BERT .* not an ALBERT"):
        checkpoints.open_weights(str(tmp_path / "bert"))


def test_a_mismatch_lists_both_sides(tmp_path):
    checkpoint_files.write(str(tmp_path / "c"), {"other/x": np.zeros(3, "f4")})
    with pytest.raises(CheckpointError) as error:
        checkpoints.warm_start({"bert/a": (2, 3)}, checkpoints.open_weights(str(tmp_path / "c")))
    assert "bert/a [2, 3]: not in the checkpoint" in str(error.value)
    assert "unused in the checkpoint: other/x [3]" in str(error.value)
