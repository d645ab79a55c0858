"""Checkpoint files are TensorFlow's, and read and written alike where it is absent."""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from helpers import REPO

from albert.errors import CheckpointError
from albert.formats import checkpoint_files, checkpoints, tensor_bundle
from albert.formats.tensor_bundle import BundleReader
from albert.training import checkpoint_store

DTYPES = [
    "float32", "float64", "float16", ml_dtypes.bfloat16, "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
]


def write_bundle(prefix, tensors):
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=list(tensors), shape_and_slices=[""] * len(tensors),
        tensors=[tf.convert_to_tensor(value) for value in tensors.values()],
    )


def write_shards(folder, count):
    """Writes a bundle of several data files; returns its prefix and what is in it."""
    rng = np.random.default_rng(0)
    parts = [{f"part_{i}/w": rng.normal(size=(3, i + 1)).astype("f4")} for i in range(count)]
    for i, part in enumerate(parts):
        write_bundle(folder / f"part{i}", part)
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(folder / f"part{i}") for i in range(count)],
        destination_prefix=str(folder / "model.ckpt-7"), delete_old_dirs=False,
    )
    return str(folder / "model.ckpt-7"), {n: value for part in parts for n, value in part.items()}


def test_every_kind_of_tensor_is_read_as_tensorflow_reads_it(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {f"bert/{i}": rng.integers(0, 2, (2, 3)).astype(d) for i, d in enumerate(DTYPES)}
    tensors |= {"scalar": np.int64(1 << 40), "empty": np.zeros((0, 4), "f4"), "text": b"caf\xc3\xa9"}
    # Enough names for several blocks of the index.
    tensors |= {f"module/layer_{i}/attention/output/kernel": np.full(i, i, "f4") for i in range(300)}
    write_bundle(tmp_path / "c", tensors)
    theirs, ours = tf.train.load_checkpoint(str(tmp_path / "c")), BundleReader(str(tmp_path / "c"))
    shapes = theirs.get_variable_to_shape_map()
    assert {name: list(shape) for name, shape in ours.shapes.items()} == shapes
    for name in shapes:
        expected, found = theirs.get_tensor(name), ours.read(name)
        if name == "text":
            assert found.item() == expected
            continue
        assert found.dtype == np.asarray(expected).dtype, name
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_a_checkpoint_of_several_data_files_is_read(tmp_path):
    prefix, tensors = write_shards(tmp_path, 3)
    weights = checkpoints.open_weights(prefix)
    for name, value in tensors.items():
        np.testing.assert_array_equal(weights.read(name), value)


def test_a_missing_data_file_is_named(tmp_path):
    prefix, _ = write_shards(tmp_path, 3)
    os.unlink(prefix + ".data-00001-of-00003")
    with pytest.raises(CheckpointError, match=r"not model\.ckpt-7\.data-00001-of-00003: a"):
        checkpoints.open_weights(prefix)


def test_a_partitioned_variable_is_refused_by_name(tmp_path):
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "c"), tensor_names=["w", "w"],
        shape_and_slices=["4 2 0,2:0,2", "4 2 2,2:0,2"], tensors=[tf.zeros((2, 2))] * 2,
    )
    weights = checkpoints.open_weights(str(tmp_path / "c"))
    with pytest.raises(CheckpointError, match="cannot read w: it is stored in parts"):
        weights.read("w")


@pytest.mark.parametrize("at", [0, 60, -60, -45, -1], ids=str)
def test_a_damaged_index_is_refused(at, tmp_path):
    write_bundle(tmp_path / "c", {"w": np.zeros(3, "f4"), "v": np.ones(2, "f4")})
    content = bytearray((tmp_path / "c.index").read_bytes())
    content[at] ^= 0x41
    (tmp_path / "c.index").write_bytes(content)
    with pytest.raises(CheckpointError, match="c is not a readable checkpoint: "):
        checkpoints.open_weights(str(tmp_path / "c"))


# === Where TensorFlow is absent ===

WITHOUT_TENSORFLOW = "import sys; sys.modules['tensorflow'] = None\n"
TENSORS = """
import logging
import numpy as np
from albert.config import AlbertConfig
from albert.formats import checkpoint_files, checkpoints
from albert.training import checkpoint_store
logging.basicConfig(level=logging.INFO, format="%(message)s")
CONFIG = AlbertConfig(99, 16, 48, 3, num_attention_heads=4, intermediate_size=96)
SHAPES = {"bert/a": (2, 3), "global_step": ()}

def save(step, keep=0):
    tensors = {"bert/a": np.full((2, 3), step, "float32"), "global_step": np.int64(step)}
    return checkpoint_store.save(".", step, tensors, {"records_seen": step * 2}, keep)

def newest():
    prefix, tensors, run_state = checkpoint_store.read_newest(".", SHAPES, CONFIG, "t")
    print(prefix, tensors["bert/a"][0, 0], run_state["records_seen"])
"""


def run(folder, code):
    """Runs Python code in a directory, in a process where TensorFlow cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW + TENSORS + code], cwd=folder, text=True,
        capture_output=True, env=os.environ | {"PYTHONPATH": str(REPO)}, check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_without_tensorflow_a_checkpoint_is_what_tensorflow_reads(tmp_path):
    assert "./model.ckpt-7 7.0 14" in run(tmp_path, "save(7); newest()")
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint", "model.ckpt-7.data-00000-of-00001", "model.ckpt-7.index",
        "model.ckpt-7.json",
    ]
    theirs = tf.train.load_checkpoint(str(tmp_path))
    np.testing.assert_array_equal(theirs.get_tensor("bert/a"), np.full((2, 3), 7, "f4"))
    assert theirs.get_tensor("global_step") == 7


def test_without_tensorflow_its_own_checkpoints_are_read(tmp_path):
    tensors = {"bert/a": np.full((2, 3), 5, "f4"), "global_step": np.int64(5)}
    checkpoint_store.save(str(tmp_path), 5, tensors, {"records_seen": 9}, 0)
    assert (tmp_path / "model.ckpt-5.index").exists()
    assert "./model.ckpt-5 5.0 9" in run(tmp_path, "newest()")


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_without_tensorflow_a_damaged_checkpoint_is_set_aside(damage, tmp_path):
    run(tmp_path, "save(1); save(2)")
    path = tmp_path / "model.ckpt-2.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[-2:]
    else:
        content[-20] ^= 1
    path.write_bytes(content)
    told = run(tmp_path, "newest()")
    assert "./model.ckpt-1 1.0 2" in told and "model.ckpt-2 unreadable" in told
    assert (tmp_path / "model.ckpt-2.index.corrupt").exists()


def test_a_run_of_0_2_without_tensorflow_is_refused_and_does_not_start_over(tmp_path):
    (tmp_path / "model.ckpt-7.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="convert it with the export_checkpoints of 0.2"):
        checkpoint_store.read_newest(str(tmp_path), {}, None, "t")


def test_a_full_disk_leaves_no_part_of_a_checkpoint(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_bundle, "_table", fail)
    with pytest.raises(CheckpointError, match=r"cannot write .*No space left .* full\?"):
        checkpoint_files.write(str(tmp_path / "c"), {"w": np.zeros(3, "f4")})
    assert not os.listdir(tmp_path)
