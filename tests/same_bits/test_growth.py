"""Growing: a shallow model becomes a deep one, in one run or in two."""

import json

import numpy as np
import pytest
from helpers import metrics, write_config, write_pretraining_records
from jobs import Run, pretrain, tensors

NO_DROPOUT = dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0)


@pytest.fixture
def job(tmp_path):
    """Function from changes to the flags of a run of 4 steps and 2 layers, saved every 2."""
    write_pretraining_records(tmp_path / "train.tfrecord", 16)

    def flags_of(out="out", layers=2, groups=1, **changes):
        (tmp_path / f"{layers}-{groups}").mkdir(exist_ok=True)
        values = dict(
            albert_config_file=write_config(
                tmp_path / f"{layers}-{groups}", num_hidden_layers=layers,
                num_hidden_groups=groups, **NO_DROPOUT,
            ),
            input_file=tmp_path / "train.tfrecord", output_dir=tmp_path / out, max_seq_length=12,
            max_predictions_per_seq=3, train_batch_size=4, eval_batch_size=4, max_eval_steps=1,
            num_train_steps=4, num_warmup_steps=1, save_checkpoints_steps=2, log_steps=1,
            learning_rate=0.01,
        ) | changes
        return [f"--{name}={value}" for name, value in values.items()]

    return flags_of


def losses(folder, kind: str) -> list[float]:
    return [line["loss"] for line in metrics(folder) if line["kind"] == kind]


@pytest.mark.parametrize("use_xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_stage_of_a_depth_schedule_is_the_model_of_that_depth_and_resumes_to_the_same_bits(
    job, tmp_path, use_xla
):
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    growing = job("whole", depth_schedule="1:2", use_xla=use_xla, do_eval=True)
    assert pretrain(*growing) == 0
    # Up to the second step it is the run of a model of one layer, then it is not.
    assert pretrain(*job("shallow", layers=1, do_eval=True, use_xla=use_xla)) == 0
    for kind, count in (("train", 2), ("eval", 1)):
        one, grown = losses(shallow, kind), losses(whole, kind)
        assert one[:count] == pytest.approx(grown[:count], rel=1e-5)
        assert max(abs(a - b) for a, b in zip(one[count:], grown[count:], strict=True)) > 1e-5
    expected = tensors(shallow / "model.ckpt-2")
    for name, value in tensors(whole / "model.ckpt-2").items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=name)
    # Cut off after the first stage, the same command resumes it.
    parts = Run(whole, growing).copy(tmp_path / "parts", step=2)
    assert pretrain(*parts.flags, "--nodo_eval") == 0
    assert losses(parts.out, "train") == losses(whole, "train")
    found, expected = (tensors(folder / "model.ckpt-4") for folder in (parts.out, whole))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_deeper_model_starts_from_a_shallower_one(job, whole, tmp_path):
    shallow = whole.out / "model.ckpt-23"
    assert pretrain(*job(init_checkpoint=shallow, until_step=1)) == 0
    assert [line["step"] for line in metrics(tmp_path / "out")] == [1]
    assert not json.loads((tmp_path / "out/warm_start.json").read_text())["new"]
    # At the first step, of a rate of 0, it has the shallow one's weights.
    found, expected = tensors(tmp_path / "out/model.ckpt-1"), tensors(shallow)
    for name in (name for name in found if "adam" not in name and name.startswith("bert/encoder")):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("changes,said", [
    ({"depth_schedule": "1"}, "give LAYERS:STEP"),
    ({"depth_schedule": "1:2:3"}, "give LAYERS:STEP"),
    ({"depth_schedule": "1:4,2:2"}, "steps must rise"),
    ({"depth_schedule": "4:2"}, "the model has 2 layers"),
    ({"depth_schedule": "1:2", "groups": 2}, "only layers that share all their weights"),
    ({"until_step": -1}, "--until_step=-1: must be a whole number, at least 0"),
])
def test_schedules_that_cannot_be_are_refused(changes, said, job, tmp_path, capsys):
    assert pretrain(*job(**changes)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
