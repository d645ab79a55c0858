"""Growing: a shallow model becomes a deep one, and short rows long ones, in one run or two."""

import json
import pathlib

import numpy as np
import pytest
from helpers import metrics, run_here, write_config, write_pretraining_records

from albert import run_pretraining
from albert.formats import checkpoints


def command(*arguments: str) -> int:
    return run_here(run_pretraining, *arguments)


@pytest.fixture
def job(tmp_path):
    """Flags of a tiny run of 6 steps and 3 layers without dropout, saved every 3."""
    write_pretraining_records(tmp_path / "train.tfrecord")
    config = write_config(
        tmp_path, num_hidden_layers=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0
    )

    def flags_of(out="out", **changes):
        given = dict(
            albert_config_file=config, input_file=tmp_path / "train.tfrecord",
            output_dir=tmp_path / out, max_seq_length=12, max_predictions_per_seq=3,
            train_batch_size=4, eval_batch_size=4, max_eval_steps=2, num_train_steps=6,
            num_warmup_steps=1, save_checkpoints_steps=3, log_steps=1, learning_rate=0.01,
            do_eval=True,
        ) | changes
        return [f"--{name}={value}" for name, value in given.items()]

    return flags_of


def weights(prefix: pathlib.Path) -> dict[str, np.ndarray]:
    opened = checkpoints.open_weights(str(prefix))
    return {name: opened.read(name) for name in opened.shapes}


def losses(folder: pathlib.Path, kind: str) -> list[float]:
    return [line["loss"] for line in metrics(folder) if line["kind"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("use_xla", [False, True])
def test_each_stage_of_a_depth_schedule_is_the_model_of_that_depth(job, tmp_path, use_xla):
    assert command(*job(depth_schedule="1:2,2:4", save_checkpoints_steps=2, use_xla=use_xla)) == 0
    grown = losses(tmp_path / "out", "eval")
    # Each checkpoint evaluated as a model of the depth that its stage had.
    for step, layers, loss in zip((2, 4, 6), (1, 2, 3), grown, strict=True):
        (tmp_path / str(step)).mkdir()
        config = write_config(
            tmp_path / str(step), num_hidden_layers=layers, hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
        )
        # What tells that it is on the way to a deeper one, which evaluation heeds.
        (tmp_path / f"out/model.ckpt-{step}.json").unlink()
        assert 0 == command(*job(
            f"eval-{step}", do_train=False, albert_config_file=config,
            init_checkpoint=tmp_path / f"out/model.ckpt-{step}",
        ))
        found = json.loads((tmp_path / f"eval-{step}/eval_results.json").read_text())
        assert found["loss"] == pytest.approx(loss, rel=1e-5)
    # And with all layers at once it is another model from the start.
    assert command(*job("deep", save_checkpoints_steps=2, use_xla=use_xla)) == 0
    deep = losses(tmp_path / "deep", "train")
    assert deep[0] != pytest.approx(losses(tmp_path / "out", "train")[0], rel=1e-6)


@pytest.mark.slow
def test_a_growing_run_that_is_stopped_goes_on_bit_exactly(job, tmp_path):
    for step in (6, 3, 6):
        name = "whole" if step == 6 and not (tmp_path / "whole").exists() else "parts"
        assert command(*job(name, depth_schedule="1:3,2:5", until_step=step)) == 0
    assert_same(tmp_path)


def assert_same(folder: pathlib.Path) -> None:
    one, two = (weights(folder / f"{name}/model.ckpt-6") for name in ("whole", "parts"))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def test_until_step_ends_where_the_same_command_goes_on_bit_exactly(job, tmp_path):
    assert command(*job("whole")) == 0
    assert command(*job("parts", until_step=3)) == 0
    assert not (tmp_path / "parts/model.ckpt-6.index").exists()
    assert json.loads((tmp_path / "parts/eval_results.json").read_text())["global_step"] == 3
    assert command(*job("parts")) == 0
    assert_same(tmp_path)


def test_a_deeper_model_starts_from_a_shallower_one(job, tmp_path):
    shallow = tmp_path / "shallow"
    shallow.mkdir()
    config = write_config(shallow, num_hidden_layers=1)
    assert command(*job("one", albert_config_file=config)) == 0
    assert command(*job("three", init_checkpoint=tmp_path / "one/model.ckpt-6")) == 0
    account = json.loads((tmp_path / "three/warm_start.json").read_text())
    assert not account["new"]


@pytest.mark.parametrize("more,said", [
    ({"depth_schedule": "1"}, "give LAYERS:STEP"),
    ({"depth_schedule": "1:2:3"}, "give LAYERS:STEP"),
    ({"depth_schedule": "1:4,2:2"}, "steps must rise"),
    ({"depth_schedule": "4:2"}, "the model has 3 layers"),
    ({"until_step": -1}, "--until_step=-1: must be a whole number, at least 0"),
])
def test_schedules_that_cannot_be_are_refused(job, tmp_path, more, said, capsys):
    assert command(*job(**more)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_layers_with_weights_of_their_own_cannot_be_added(job, tmp_path, capsys):
    config = write_config(tmp_path, num_hidden_layers=3, num_hidden_groups=3)
    assert command(*job(albert_config_file=config, depth_schedule="1:2")) == 2
    assert "only layers that share all their weights" in capsys.readouterr().err
