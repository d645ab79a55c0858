"""Checkpoints: the original's format, nothing half-written, nothing silently wrong."""

import dataclasses
import os

import jobs
import ml_dtypes
import numpy as np
import pytest
import stores
import tensorflow as tf
from damage import flipped
from helpers import REPO, SIZES, write_config
from invariants import untouched
from stores import save

from albert.config import AlbertConfig
from albert.errors import CheckpointError
from albert.formats import checkpoints
from albert.formats.tensor_bundle import BundleReader
from albert.modeling import AlbertForPreTraining, named_weights
from albert.training import store

DATA = ".data-00000-of-00001"


def shapes_of(model):
    return {name: tuple(w.shape) for name, w in named_weights(model).items()}


def weights_of(path, **tensors):
    """Writes tensors, of zeros if only a shape is given, and opens them."""
    checkpoints.write(str(path), {
        name.replace("__", "/"): np.zeros(value, "f4") if isinstance(value, tuple) else value
        for name, value in tensors.items()
    })
    return checkpoints.open_weights(str(path))


def test_a_checkpoint_is_named_by_any_of_its_files_or_by_its_directory(tmp_path):
    save(tmp_path, 9)
    newest = save(tmp_path, 100)
    for ending in ("", ".index", DATA, ".meta"):
        assert checkpoints.resolve_prefix(newest + ending) == newest
    assert checkpoints.resolve_prefix(str(tmp_path)) == newest
    best = store.publish_best(os.path.join(tmp_path, "model.ckpt-9"))
    assert checkpoints.resolve_prefix(str(tmp_path)) == best
    with pytest.raises(CheckpointError, match=r"^init_checkpoint.*there are: model\.ckpt-100"):
        checkpoints.open_weights(str(tmp_path / "model.ckpt-10"))


def test_the_newest_k_checkpoints_are_kept_and_the_best_beside_them(tmp_path):
    for step in (1, 2, 3):
        prefix = save(tmp_path, step, keep=2)
        if step == 1:
            store.publish_best(prefix)
    assert list(checkpoints.list_steps(str(tmp_path))) == [2, 3]
    assert checkpoints.open_weights(str(tmp_path / "model.ckpt-best")).read("global_step") == 1
    assert not (tmp_path / "model.ckpt-1.json").exists()


def flip_bit(path):
    path.write_bytes(flipped(path.read_bytes(), 3, 1))


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_is_used(tmp_path):
    for name, ending, damage in (
        ("cut", DATA, lambda path: os.truncate(path, 10)), ("flipped", DATA, flip_bit),
        ("lost", DATA, os.unlink), ("index cut", ".index", lambda path: os.truncate(path, 20)),
        ("index flipped", ".index", flip_bit),
        ("state cut", ".json", lambda path: os.truncate(path, 20)),
        ("state changed", ".json",
         lambda path: path.write_text(path.read_text().replace("160", "164"))),
    ):
        folder = tmp_path / name
        folder.mkdir()
        save(folder, 30)
        damage(folder / f"{os.path.basename(save(folder, 40))}{ending}")
        (folder / "checkpoint").write_text("garbage")
        assert stores.newest(folder) == 30
        assert list(checkpoints.list_steps(str(folder))) == [30]
        assert (folder / "model.ckpt-40.json.corrupt").exists()
        save(folder, 40)
        for step in (30, 40):
            os.truncate(folder / f"model.ckpt-{step}{DATA}", 10)
        with untouched(folder), pytest.raises(CheckpointError, match="no checkpoint .* is readable"):
            stores.newest(folder)


def test_an_encoder_variable_that_is_absent_or_of_another_shape_is_an_error(tmp_path):
    shapes = {"bert/a": (2, 3), "bert/b": (4,), "head": (1,)}
    with pytest.raises(CheckpointError) as error:
        checkpoints.warm_start(shapes, weights_of(tmp_path / "c", bert__a=(2, 4), other__x=(3,)))
    for message in ("bert/a: checkpoint [2, 4], model [2, 3]", "bert/b [4]: not in the checkpoint",
                    "unused in the checkpoint: other/x [3]"):
        assert message in str(error.value)
    tensors, account = checkpoints.warm_start(
        shapes, weights_of(tmp_path / "d", bert__a=(2, 3)), "partial"
    )
    assert (list(tensors), account["new"]) == (["bert/a"], ["bert/b", "head"])
    for name, theirs in (("e", {"other__x": (3,)}), ("f", {"head": (1,)})):  # no match of the encoder
        with pytest.raises(CheckpointError, match="does not fit the model: bert/a"):
            checkpoints.warm_start(shapes, weights_of(tmp_path / name, **theirs), "partial")


def test_another_initial_deviation_or_dropout_is_the_same_architecture():
    config = AlbertConfig(**SIZES)
    changed = dataclasses.replace(config.with_dropout(0.3), initializer_range=0.5)
    checkpoints.check_architecture({"config": config.to_dict()}, changed, "x")
    with pytest.raises(checkpoints.MismatchError, match="hidden_act"):
        checkpoints.check_architecture(
            {"config": config.to_dict()}, dataclasses.replace(config, hidden_act="relu"), "x")


def test_a_model_without_a_pooler_starts_a_training(tmp_path, caplog):
    pooler = {"bert/pooler/dense/kernel": (2, 2), "bert/pooler/dense/bias": (2,)}
    weights = weights_of(tmp_path / "c", bert__a=(2, 3))
    shapes = {"bert/a": (2, 3)} | pooler
    tensors, account = checkpoints.warm_start(shapes, weights)
    assert (list(tensors), account["new"]) == (["bert/a"], list(pooler))
    assert "has no pooler" in caplog.text
    with pytest.raises(CheckpointError, match="bert/b"):
        checkpoints.warm_start(shapes | {"bert/b": (4,)}, weights)


def test_init_from_group0_gives_every_group_the_weights_of_group_0(golden_path):
    path = str(golden_path("tf1_ckpt_tiny"))
    config = AlbertConfig.from_json_file(path + "/albert_config.json")
    grouped = AlbertConfig(**config.to_dict() | {"num_hidden_groups": 3})
    weights = checkpoints.open_weights(path)
    shapes = shapes_of(AlbertForPreTraining(grouped))
    tensors, account = checkpoints.warm_start(shapes, weights, "group0")
    assert not account["new"]
    first = {name for name in shapes if "/group_0/" in name}
    assert len(first) == 16
    for name in first:
        for group in (0, 1, 2):
            np.testing.assert_array_equal(
                tensors[name.replace("/group_0/", f"/group_{group}/")], weights.read(name)
            )


def test_a_deeper_model_starts_from_a_shallower_one(tmp_path, whole, begin):
    job, shallow = jobs.pretraining_flags(tmp_path), whole.out / "model.ckpt-23"
    write_config(tmp_path, num_hidden_layers=2)
    (_, config, *_), options = begin(jobs.pretrain, *job, f"--init_checkpoint={shallow}")
    assert config.num_hidden_layers == 2
    shapes = shapes_of(AlbertForPreTraining(config))
    found, account = checkpoints.warm_start(shapes, options["init"])
    assert found.keys() == shapes.keys() and not account["new"]
    expected = jobs.tensors(shallow)
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


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
    checkpoints.write(str(tmp_path / "old"), tensors)
    older = checkpoints.open_weights(str(tmp_path / "old"))
    assert set(older.shapes) == set(names)
    for name in names:
        np.testing.assert_array_equal(older.read(name), released.read(name))


def test_the_released_chinese_base_is_accepted_name_by_name(golden_path, tmp_path):
    # Its index is real; its data is not available, so zeros replace it.
    index = golden_path("tf1_index") / "albert_base_model.ckpt-best"
    shapes = tf.train.load_checkpoint(str(index)).get_variable_to_shape_map()
    zeros = {n: np.zeros(s, "int64" if n == "global_step" else "f4") for n, s in shapes.items()}
    checkpoints.write(str(tmp_path / "model.ckpt-best"), zeros)
    config = AlbertConfig(21128, 128, 768, 12, num_attention_heads=12, intermediate_size=3072)
    model = AlbertForPreTraining(config)
    tensors, account = checkpoints.warm_start(
        shapes_of(model), checkpoints.open_weights(str(tmp_path))
    )
    assert set(tensors) == set(shapes_of(model)) and not account["new"]
    assert account["ignored"] == ["global_step"]


def test_an_object_based_checkpoint_is_refused_as_such(tmp_path):
    path = tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / "ckpt"))
    with pytest.raises(CheckpointError, match="object-based"):
        checkpoints.open_weights(path)


# --- Files in TensorFlow's format, read and written the same without TensorFlow ---

DTYPES = [
    "float32", "float64", "float16", ml_dtypes.bfloat16, "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
]


def write_bundle(prefix, tensors):
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=list(tensors), shape_and_slices=[""] * len(tensors),
        tensors=[tf.convert_to_tensor(value) for value in tensors.values()],
    )


def test_every_kind_of_tensor_is_read_as_tensorflow_reads_it(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {f"bert/{i}": rng.integers(0, 2, (2, 3)).astype(d) for i, d in enumerate(DTYPES)}
    tensors |= {"scalar": np.int64(1 << 40), "empty": np.zeros((0, 4), "f4")}
    # Enough names for several index blocks.
    tensors |= {f"module/layer_{i}/attention/output/kernel": np.full(i, i, "f4") for i in range(300)}
    write_bundle(tmp_path / "c", tensors)
    theirs, ours = tf.train.load_checkpoint(str(tmp_path / "c")), BundleReader(str(tmp_path / "c"))
    shapes = theirs.get_variable_to_shape_map()
    assert {name: list(shape) for name, shape in ours.shapes.items()} == shapes
    for name in shapes:
        expected, found = theirs.get_tensor(name), ours.read(name)
        assert found.dtype == np.asarray(expected).dtype, name
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_a_checkpoint_of_several_data_files_is_read_and_a_missing_one_named(tmp_path):
    parts = [{f"part_{i}/w": np.full((3, i + 1), i, "f4")} for i in range(3)]
    for i, part in enumerate(parts):
        write_bundle(tmp_path / f"part{i}", part)
    prefix = str(tmp_path / "model.ckpt-7")
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(tmp_path / f"part{i}") for i in range(3)],
        destination_prefix=prefix, delete_old_dirs=False,
    )
    weights = checkpoints.open_weights(prefix)
    for part in parts:
        for name, value in part.items():
            np.testing.assert_array_equal(weights.read(name), value)
    os.unlink(prefix + ".data-00001-of-00003")
    with pytest.raises(CheckpointError, match=r"lacks model\.ckpt-7\.data-00001-of-00003: a"):
        checkpoints.open_weights(prefix)


def test_a_partitioned_variable_is_refused_by_name(tmp_path):
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "c"), tensor_names=["w", "w"],
        shape_and_slices=["4 2 0,2:0,2", "4 2 2,2:0,2"], tensors=[tf.zeros((2, 2))] * 2,
    )
    weights = checkpoints.open_weights(str(tmp_path / "c"))
    with pytest.raises(CheckpointError, match="cannot read w: it is partitioned"):
        weights.read("w")


def test_without_tensorflow_checkpoints_are_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{REPO}:{REPO / 'tests/support'}")
    jobs.python(
        f"import sys; sys.modules['tensorflow'] = None\nimport stores\nfolder = {str(tmp_path)!r}\n"
        "stores.save(folder, 7)\nassert stores.newest(folder) == 7"
    )
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint", "model.ckpt-7.data-00000-of-00001", "model.ckpt-7.index",
        "model.ckpt-7.json",
    ]
    theirs = tf.train.load_checkpoint(str(tmp_path))
    np.testing.assert_array_equal(theirs.get_tensor("bert/a"), np.full((2, 3), 7, "f4"))
    assert theirs.get_tensor("global_step") == 7
