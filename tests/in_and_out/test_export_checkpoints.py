"""`export_checkpoints`: the original's names, no optimizer state, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import SIZES, assert_one_clear_line, run_here, write_config, write_weights

from albert import export_checkpoints
from albert.formats import checkpoints


@pytest.mark.parametrize("case", ["tf1_ckpt_tiny_groups", "heads/classifier_3way", "heads/squad_v2"])
def test_the_originals_checkpoint_comes_out_as_it_went_in_but_for_slots(case, golden_path, tmp_path):
    folder, out = golden_path(case), tmp_path / "clean/model.ckpt-best"
    name = "model.ckpt" if case.startswith("heads") else "model.ckpt-best"
    arguments = f"--albert_directory={folder}", f"--checkpoint_name={name}", f"--export_path={out}"
    assert run_here(export_checkpoints, *arguments) == 0
    before = tf.train.load_checkpoint(str(folder / name))
    after = tf.train.load_checkpoint(str(out))
    kept = {n for n in before.get_variable_to_shape_map() if "/adam_" not in n}
    assert set(after.get_variable_to_shape_map()) == kept | {"global_step"}
    for variable in kept - {"global_step"}:
        np.testing.assert_array_equal(after.get_tensor(variable), before.get_tensor(variable))
    assert after.get_tensor("global_step") == 0


def test_slots_and_strangers_are_left_out_and_nothing_is_overwritten(tmp_path, capsys):
    write_config(tmp_path)
    made = checkpoints.open_weights(write_weights(tmp_path / "made", SIZES))
    weights = {name: made.read(name) for name in made.shapes}
    extra = {
        "bert/pooler/dense/bias/lamb_m": np.zeros(16, "f4"), "global_step": np.int64(9),
        "bert/pooler/dense/bias/adam_v": np.zeros(16, "f4"), "somebody/else": np.ones(2, "f4"),
    }
    checkpoints.write(str(tmp_path / "model.ckpt-9"), weights | extra)
    (tmp_path / "mine.json").write_text('{"mine": 1}')

    def export(name: str) -> int:
        arguments = f"--albert_directory={tmp_path}", "--checkpoint_name=model.ckpt-9"
        return run_here(export_checkpoints, *arguments, f"--export_path={tmp_path / name}")

    assert export("clean") == 0
    found = checkpoints.open_weights(str(tmp_path / "clean")).shapes
    assert set(found) == set(weights) | {"global_step"}
    assert "somebody/else" in capsys.readouterr().err
    another = {"bert/encoder/transformer/group_1/inner_group_0/LayerNorm/beta": np.ones(16, "f4")}
    checkpoints.write(str(tmp_path / "model.ckpt-9"), weights | another)
    assert export("more") == 2
    assert "variables that the config does not imply: " in assert_one_clear_line(capsys.readouterr().err)
    for name, message in {
        "clean": "exists", "mine": "mine.json is a file of another kind",
        "other": "checkpoint [16, 16], model [32, 32]",
    }.items():
        if name == "other":
            write_config(tmp_path, hidden_size=32)
        assert export(name) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert name == "clean" or not (tmp_path / f"{name}.index").exists()
    assert (tmp_path / "mine.json").read_text() == '{"mine": 1}'
