"""Growing: a deep model starts from a shallow one."""

import jobs
import numpy as np
import pytest
from helpers import write_config

from albert.formats import checkpoints
from albert.modeling import AlbertForPreTraining, parameter_shapes


@pytest.fixture
def job(tmp_path):
    """The flags of the fixture `whole`, for two layers that share their weights."""
    flags = jobs.pretraining_flags(tmp_path)
    write_config(tmp_path, num_hidden_layers=2)
    return flags


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
