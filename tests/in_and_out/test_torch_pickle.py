"""`pytorch_model.bin` yields its numbers and executes nothing, whatever it contains."""

import pickle
import random
import shutil

import numpy as np
import pytest

import albert
from albert.errors import CheckpointError
from albert.formats import torch_pickle


@pytest.mark.parametrize("form", ["odd_zip", "odd_older"])
def test_views_and_precisions_are_what_torch_saved(form, golden_path):
    shapes, read = torch_pickle.open_tensors(str(golden_path(f"hf/torch/{form}.bin")))
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
    folder = golden_path("hf/torch")
    outputs = []
    for name, file in (("pytorch_model.bin", "pytorch_model.bin"), ("model.safetensors", "same.safetensors")):
        (tmp_path / name).mkdir()
        shutil.copy(folder / "config.json", tmp_path / name)
        shutil.copy(folder / file, tmp_path / name / name)
        model = albert.from_pretrained(tmp_path / name)
        outputs.append(model(input_ids=[[2, 7, 4, 9, 3]]).logits)
    np.testing.assert_array_equal(*outputs)


def test_what_is_no_array_of_numbers_is_refused_by_name_and_not_run(golden_path, tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "owned"), "w")

    bomb = tmp_path / "pytorch_model.bin"
    for content in (pickle.dumps(Bomb()), pickle.dumps(0x1950A86A20F9469CFC6C) + pickle.dumps(Bomb())):
        bomb.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"asks for (io|_io)\.open"):
            torch_pickle.open_tensors(str(bomb))
    with pytest.raises(CheckpointError, match=r"asks for torch\.nn\.modules\.linear\.Linear"):
        torch_pickle.open_tensors(str(golden_path("hf/torch/module.bin")))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("form", ["odd_zip", "odd_older"])
def test_damage_gives_an_error_or_arrays_of_the_told_shape(form, golden_path, tmp_path):
    content, rng = golden_path(f"hf/torch/{form}.bin").read_bytes(), random.Random(0)
    path = tmp_path / "a.bin"
    damaged = [content[:at] for at in range(0, len(content), 37)]
    for _ in range(300):
        at = rng.randrange(len(content))
        damaged.append(content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :])
    for data in damaged:
        path.write_bytes(data)
        try:
            shapes, read = torch_pickle.open_tensors(str(path))
            for name, shape in shapes.items():
                assert read(name).shape == shape
        except CheckpointError as error:
            assert str(path) in str(error)
