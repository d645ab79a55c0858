"""Growing: a shallow model becomes a deep one, in one run or in two."""

import jobs
import numpy as np
import pytest
from helpers import metrics, write_config

from albert.formats import checkpoints
from albert.modeling import AlbertForPreTraining, parameter_shapes


@pytest.fixture
def job(tmp_path):
    """The flags of the fixture `whole`, for two layers that share their weights."""
    flags = jobs.pretraining_flags(tmp_path)
    write_config(tmp_path, num_hidden_layers=2)
    return flags


def losses(folder, kind: str) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in metrics(folder) if line["kind"] == kind}


@pytest.mark.parametrize("use_xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_stage_of_a_depth_schedule_is_the_model_of_that_depth_and_resumes_to_the_same_bits(
    job, whole, tmp_path, use_xla
):
    growing = [*job, "--depth_schedule=1:10", "--until_step=12", "--do_eval", f"--use_xla={use_xla}"]
    grown, shallow = jobs.Run(tmp_path / "out", growing), whole.out
    assert jobs.pretrain(*growing) == 0
    if use_xla:
        shallow = tmp_path / "shallow"
        more = ("--until_step=12", "--use_xla", f"--output_dir={shallow}")
        assert jobs.pretrain(*whole.flags, "--do_eval", *more) == 0
    # Up to the tenth step the run equals that of a one-layer model, and then it differs.
    for kind, step in (("train", 4), ("train", 8), ("eval", 10)):
        expected = pytest.approx(losses(shallow, kind)[step], rel=1e-5)
        assert losses(grown.out, kind)[step] == expected
    assert abs(losses(grown.out, "train")[12] - losses(shallow, "train")[12]) > 1e-5
    expected = jobs.tensors(shallow / "model.ckpt-10")
    for name, value in jobs.tensors(grown.out / "model.ckpt-10").items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=name)
    # If it is stopped after the first stage, rerunning the command resumes it.
    parts = grown.copy(tmp_path / "parts", step=10)
    assert jobs.pretrain(*parts.flags, "--nodo_eval") == 0
    assert losses(parts.out, "train") == losses(grown.out, "train")
    expected = jobs.tensors(grown.out / "model.ckpt-12")
    for name, value in jobs.tensors(parts.out / "model.ckpt-12").items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_a_deeper_model_starts_from_a_shallower_one(job, whole, begin):
    shallow = whole.out / "model.ckpt-23"
    (_, config, *_), options = begin(jobs.pretrain, *job, f"--init_checkpoint={shallow}")
    assert config.num_hidden_layers == 2
    shapes = parameter_shapes(AlbertForPreTraining(config))
    found, account = checkpoints.warm_start(shapes, options["init"])
    assert found.keys() == shapes.keys() and not account["new"]
    expected = jobs.tensors(shallow)
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.parametrize("flag, said", [
    ("--depth_schedule=1", "give LAYERS:STEP"),
    ("--depth_schedule=1:2:3", "give LAYERS:STEP"),
    ("--depth_schedule=1:4,2:2", "steps must increase"),
    ("--depth_schedule=4:2", "the model has 2 layers"),
    ("--depth_schedule=1:2", "needs layers that share all their weights"),
    ("--until_step=-1", "--until_step=-1: must be a whole number, at least 0"),
])
def test_schedules_that_cannot_be_are_refused(flag, said, job, tmp_path, capsys):
    if "share" in said:
        write_config(tmp_path, num_hidden_layers=2, num_hidden_groups=2)
    assert jobs.pretrain(*job, flag) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
