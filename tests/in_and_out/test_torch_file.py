"""`pytorch_model.bin` yields its numbers; it runs nothing and reads nothing else, whatever it contains."""

import pickle
import shutil
import sys

import apart
import jobs
import numpy as np
import pytest
import safetensors.numpy
from helpers import REPO, assert_one_clear_line, program, run_here

import albert
from albert import convert_hf
from albert.errors import CheckpointError
from albert.formats import hf_tensors

apart.needs("torch", extra="torch")
FUZZER = "scripts/maintainers/fuzz_readers.py"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))


def test_views_and_precisions_are_what_torch_saved(golden_path):
    shapes, read = hf_tensors.open_tensors(str(golden_path("hf/torch/odd_zip.bin")))
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
    fuzzer, golden = jobs.script("fuzz_readers"), golden_path("hf/torch")
    shutil.copytree(golden, tmp_path / "same")
    shutil.copytree(golden, tmp_path / "pickled")
    (tmp_path / "same/same.safetensors").rename(tmp_path / "same/model.safetensors")
    tensors = safetensors.numpy.load_file(golden / "same.safetensors")
    pickle, parts = {}, {}
    for key, (name, value) in enumerate(tensors.items()):
        strides = [stride // value.itemsize for stride in value.strides]
        storage = fuzzer.Storage(str(key), value.size)
        pickle[name] = fuzzer.tensor(value.shape, strides, 0, storage)
        parts[str(key)] = value.tobytes()
    content = fuzzer.torch_zip(fuzzer.pickled(pickle), parts)
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
    bomb.write_bytes(jobs.script("fuzz_readers").torch_zip(pickle.dumps({"a": Bomb()}, protocol=2)))
    with pytest.raises(CheckpointError, match=r"GLOBAL (io|_io)\.open$"):
        hf_tensors.open_tensors(str(bomb))
    with pytest.raises(CheckpointError, match=r"GLOBAL torch\.nn\.modules\.linear\.Linear$"):
        hf_tensors.open_tensors(str(golden_path("hf/torch/module.bin")))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("file", ["older format", "no PyTorch", "old PyTorch"])
def test_a_file_that_cannot_be_read_here_is_refused_with_the_command_that_converts_it(
    file, golden_path, tmp_path, monkeypatch, capsys
):
    shutil.copytree(golden_path("hf/torch"), tmp_path / "in")
    older = tmp_path / "in/odd_older.bin"
    (older if file == "older format" else older.with_name("odd_zip.bin")).rename(
        tmp_path / "in/pytorch_model.bin")
    if file != "older format":
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch/__init__.py").write_text(
            "raise ImportError" if file == "no PyTorch" else "__version__ = '2.9.1'")
        (tmp_path / "torch/nn.py").touch()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run_here(convert_hf, f"--hf_directory={tmp_path / 'in'}", f"--output_dir={tmp_path / 'out'}") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"{tmp_path / 'in/pytorch_model.bin'}: " in line
    assert ("'torch>=2.10'" if file == "old PyTorch" else "'model.safetensors')\"") in line
    assert not (tmp_path / "out").exists()


def test_two_hundred_hostile_files_neither_crash_nor_give_a_number_that_they_do_not_hold():
    # Freed and new memory is filled with a byte that no file contains.
    done = program(REPO / FUZZER, "torch", "--generated=200", MALLOC_PERTURB_="165")
    assert done.returncode == 0, done.stdout[-100:] + done.stderr[-2000:]
    assert done.stdout.endswith("passed: 200 inputs\n")


def test_a_crash_of_pytorch_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "a.bin").write_bytes(jobs.script("fuzz_readers").seeds("torch")[0])
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"a\.bin: PyTorch crashed \(SIGSEGV\)$"):
        hf_tensors.open_tensors(str(tmp_path / "a.bin"))
    assert sys.modules.get("torch") is None
