"""`export_checkpoints`: the original's names, nothing of the optimizer, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_one_clear_line, write_config

from albert import export_checkpoints
from albert.cli import flags
from albert.config import AlbertConfig
from albert.formats import checkpoint_files, checkpoints
from albert.modeling import AlbertForPreTraining, named_weights


def command(*arguments) -> int:
    return flags.run_command(
        export_checkpoints.__doc__, export_checkpoints.define_flags, export_checkpoints.main,
        ["export_checkpoints", *map(str, arguments)],
    )


@pytest.mark.parametrize(
    "case", ["tf1_ckpt_tiny_groups", "heads/classifier_3way", "heads/squad_v2"]
)
def test_the_originals_checkpoint_comes_out_as_it_went_in_but_for_slots(
    case, golden_path, tmp_path
):
    folder = golden_path(case)
    name = "model.ckpt" if case.startswith("heads") else "model.ckpt-best"
    out = tmp_path / "clean/model.ckpt-best"
    arguments = f"--albert_directory={folder}", f"--checkpoint_name={name}", f"--export_path={out}"
    assert command(*arguments) == 0
    before = tf.train.load_checkpoint(str(folder / name))
    after = tf.train.load_checkpoint(str(out))
    kept = {n for n in before.get_variable_to_shape_map() if "/adam_" not in n}
    assert set(after.get_variable_to_shape_map()) == kept | {"global_step"}
    for variable in kept - {"global_step"}:
        np.testing.assert_array_equal(after.get_tensor(variable), before.get_tensor(variable))
    assert after.get_tensor("global_step") == 0


@pytest.fixture
def ours(tmp_path):
    config = AlbertConfig.from_json_file(write_config(tmp_path))
    weights = {n: w.numpy() for n, w in named_weights(AlbertForPreTraining(config)).items()}
    extra = {
        "bert/pooler/dense/bias/lamb_m": np.zeros(16, "f4"), "global_step": np.int64(9),
        "bert/pooler/dense/bias/adam_v": np.zeros(16, "f4"), "somebody/else": np.ones(2, "f4"),
    }
    checkpoint_files.write(str(tmp_path / "model.ckpt-9"), weights | extra)
    return tmp_path, weights


def test_slots_and_strangers_are_left_out_and_told(ours, tmp_path, capsys):
    folder, weights = ours
    out = folder / "clean"
    arguments = f"--albert_directory={folder}", "--checkpoint_name=model.ckpt-9"
    assert command(*arguments, f"--export_path={out}") == 0
    assert set(checkpoints.open_weights(str(out)).shapes) == set(weights) | {"global_step"}
    assert "somebody/else" in capsys.readouterr().err
    # Once more: nothing is overwritten.
    assert command(*arguments, f"--export_path={out}") == 2
    assert "exists" in assert_one_clear_line(capsys.readouterr().err)


def test_somebodys_file_beside_the_prefix_is_not_overwritten(ours, capsys):
    folder, _ = ours
    (folder / "clean.json").write_text('{"mine": 1}')
    arguments = f"--albert_directory={folder}", "--checkpoint_name=model.ckpt-9"
    assert command(*arguments, f"--export_path={folder / 'clean'}") == 2
    assert "clean.json is a file of another kind" in assert_one_clear_line(capsys.readouterr().err)
    assert (folder / "clean.json").read_text() == '{"mine": 1}'


def test_an_encoder_that_does_not_fit_the_config_is_refused(ours, capsys):
    folder, _ = ours
    write_config(folder, num_hidden_layers=1, hidden_size=32)
    arguments = f"--albert_directory={folder}", "--checkpoint_name=model.ckpt-9"
    assert command(*arguments, f"--export_path={folder / 'clean'}") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "checkpoint [16], model [32]" in line
    assert not (folder / "clean.index").exists()
