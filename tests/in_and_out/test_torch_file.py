"""`pytorch_model.bin` yields its numbers; it runs nothing and reads nothing else, whatever it contains."""

import pickle
import shutil
import sys

import apart
import numpy as np
import pytest
import safetensors.numpy
import torch_pickles
from helpers import assert_one_clear_line, run_here

import albert
from albert import convert_hf
from albert.errors import CheckpointError
from albert.formats import hf_weights

apart.needs("torch", extra="torch")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))


def test_views_and_precisions_are_what_torch_saved(golden_path):
    shapes, read = hf_weights.open_tensors(str(golden_path("hf/torch/odd_zip.bin")))
    base = np.arange(24, dtype=np.float32)
    expected = {
        "turned": base.reshape(4, 6).T, "part": base[5:9], "half": base.astype(np.float16),
        "bf16": base[:3], "ids": np.arange(3), "none": np.zeros((0, 4)), "one": np.array(2.5),
    }
    assert shapes == {name: value.shape for name, value in expected.items()}
    for name, value in expected.items():
        np.testing.assert_array_equal(read(name).astype(value.dtype), value, err_msg=name)
    assert [str(read(name).dtype) for name in ("half", "bf16", "ids")] == ["float16", "bfloat16", "int64"]


def test_a_model_of_such_a_file_is_that_of_its_safetensors(golden_path, tmp_path):
    golden = golden_path("hf/torch")
    shutil.copytree(golden, tmp_path / "same")
    shutil.copytree(golden, tmp_path / "pickled")
    (tmp_path / "same/same.safetensors").rename(tmp_path / "same/model.safetensors")
    tensors = safetensors.numpy.load_file(golden / "same.safetensors")
    pickle, parts = {}, {}
    for key, (name, value) in enumerate(tensors.items()):
        strides = [stride // value.itemsize for stride in value.strides]
        storage = torch_pickles.Storage(str(key), value.size)
        pickle[name] = torch_pickles.tensor(value.shape, strides, 0, storage)
        parts[str(key)] = value.tobytes()
    content = torch_pickles.torch_zip(torch_pickles.pickled(pickle), parts)
    (tmp_path / "pickled/pytorch_model.bin").write_bytes(content)
    outputs = [
        albert.from_pretrained(tmp_path / name)(input_ids=[[2, 7, 4, 9, 3]]).logits
        for name in ("same", "pickled")
    ]
    np.testing.assert_array_equal(*outputs)


def test_what_is_no_array_of_numbers_is_refused_by_name_and_not_run(golden_path, tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "owned"), "w")

    bomb = tmp_path / "pytorch_model.bin"
    bomb.write_bytes(torch_pickles.torch_zip(pickle.dumps({"a": Bomb()}, protocol=2)))
    with pytest.raises(CheckpointError, match=r"GLOBAL (io|_io)\.open: convert it"):
        hf_weights.open_tensors(str(bomb))
    with pytest.raises(CheckpointError, match=r"GLOBAL torch\.nn\.modules\.linear\.Linear: convert it"):
        hf_weights.open_tensors(str(golden_path("hf/torch/module.bin")))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("file", ["no PyTorch", "old PyTorch"])
def test_a_file_that_cannot_be_read_here_is_refused_with_the_command_that_converts_it(
    file, golden_path, tmp_path, monkeypatch, capsys
):
    shutil.copytree(golden_path("hf/torch"), tmp_path / "in")
    (tmp_path / "in/odd_zip.bin").rename(tmp_path / "in/pytorch_model.bin")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        "raise ImportError('none')" if file == "no PyTorch" else "__version__ = (2, 9, 1)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run_here(convert_hf, f"--hf_directory={tmp_path / 'in'}", f"--output_dir={tmp_path / 'out'}") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"{tmp_path / 'in/pytorch_model.bin'}: " in line
    assert ("older than 2.10" if file == "old PyTorch" else "ImportError: none") in line
    assert line.endswith('" pytorch_model.bin model.safetensors')
    assert not (tmp_path / "out").exists()


def test_a_tensor_that_claims_more_than_the_memory_is_one_line(tmp_path):
    claim = torch_pickles.tensor((1 << 45,), (0,))
    path = tmp_path / "a.bin"
    path.write_bytes(torch_pickles.torch_zip(torch_pickles.pickled({"a": claim})))
    with pytest.raises(CheckpointError, match=r"a\.bin: \w+Error: [^\n]*$"):
        hf_weights.open_tensors(str(path))


def test_a_crash_of_pytorch_is_one_line(tmp_path, monkeypatch):
    pickled = torch_pickles.pickled({"a": torch_pickles.tensor()})
    (tmp_path / "a.bin").write_bytes(torch_pickles.torch_zip(pickled))
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"a\.bin: PyTorch ended with -11: convert it"):
        hf_weights.open_tensors(str(tmp_path / "a.bin"))
    assert sys.modules.get("torch") is None
