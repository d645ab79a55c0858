"""Checkpoint files are TensorFlow's, and read and written alike where it is absent."""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import stores
import tensorflow as tf
from helpers import REPO

from albert.errors import CheckpointError
from albert.formats import checkpoints
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


def test_a_damaged_index_is_refused(tmp_path):
    write_bundle(tmp_path / "c", {"w": np.zeros(3, "f4"), "v": np.ones(2, "f4")})
    whole = (tmp_path / "c.index").read_bytes()
    for at in (0, 60, -60, -45, -1):
        content = bytearray(whole)
        content[at] ^= 0x41
        (tmp_path / "c.index").write_bytes(content)
        with pytest.raises(CheckpointError, match="c is not a readable checkpoint: "):
            checkpoints.open_weights(str(tmp_path / "c"))


def run_without_tensorflow(folder, code) -> None:
    """Runs code that uses `stores` in a directory, where TensorFlow cannot be imported."""
    start = "import sys; sys.modules['tensorflow'] = None\nimport stores\n"
    done = subprocess.run(
        [sys.executable, "-c", start + code], cwd=folder, text=True, capture_output=True, check=False,
        env=os.environ | {"PYTHONPATH": f"{REPO}:{REPO / 'tests/support'}"},
    )
    assert done.returncode == 0, done.stderr


def test_without_tensorflow_checkpoints_are_its_own_and_a_damaged_one_is_set_aside(tmp_path):
    run_without_tensorflow(tmp_path, "stores.save('.', 7)\nassert stores.newest('.') == 7")
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint", "model.ckpt-7.data-00000-of-00001", "model.ckpt-7.index",
        "model.ckpt-7.json",
    ]
    theirs = tf.train.load_checkpoint(str(tmp_path))
    np.testing.assert_array_equal(theirs.get_tensor("bert/a"), np.full((2, 3), 7, "f4"))
    assert theirs.get_tensor("global_step") == 7
    for step in (8, 9):
        stores.save(tmp_path, step)
    for step, damage in ((8, slice(-2, None)), (9, slice(-20, -19))):
        path = tmp_path / f"model.ckpt-{step}.data-00000-of-00001"
        content = bytearray(path.read_bytes())
        content[damage] = b"" if step == 8 else bytes([content[-20] ^ 1])
        path.write_bytes(content)
    run_without_tensorflow(tmp_path, "assert stores.newest('.') == 7")
    for step in (8, 9):
        assert (tmp_path / f"model.ckpt-{step}.index.corrupt").exists()


def test_a_run_of_0_2_without_tensorflow_is_refused_and_does_not_start_over(tmp_path):
    (tmp_path / "model.ckpt-7.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="convert it with the export_checkpoints of 0.2"):
        checkpoint_store.read_newest(str(tmp_path), {}, None, "t")
