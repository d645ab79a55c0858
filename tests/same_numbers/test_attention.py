"""Attention in half precision, and by the kernel of NVIDIA GPUs."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from albert import modeling
from albert.config import AlbertConfig

CONFIG = AlbertConfig(
    vocab_size=40, embedding_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=24, max_position_embeddings=150, initializer_range=0.3,
)


def make_batch():
    mask = (np.arange(150) < np.array([150, 130, 20])[:, None]).astype(np.int32)
    ids = np.random.default_rng(0).integers(5, 40, mask.shape, np.int32) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": 0 * mask}


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_near_the_full_one(policy):
    full = modeling.AlbertModel(CONFIG)
    keras.config.set_dtype_policy(policy)
    half = modeling.AlbertModel(CONFIG)
    half.set_weights(full.get_weights())
    expected, found = (
        np.asarray(model(make_batch())["sequence_output"], np.float32) * make_batch()["input_mask"][..., None]
        for model in (full, half)
    )
    assert {weight.dtype for weight in half.weights} == {"float32"}
    assert 0 < np.abs(found - expected).max() < 0.15
    assert np.abs(found - expected).mean() < 0.02


@pytest.mark.slow
def test_gpus_compute_it_by_the_kernel_of_cudnn_where_that_can(pytestconfig):
    program = pytestconfig.rootpath / "tests/support/on_a_gpu.py"
    done = subprocess.run(
        [sys.executable, program, "NVIDIA A100:8.0", "NVIDIA T4:7.5", "AMD Instinct MI300X:gfx942"],
        capture_output=True, text=True, env=os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        check=True,
    )
    found, *others, layers = map(json.loads, done.stdout.splitlines())
    assert layers == [False, True]
    kernel = {name for name, (implementation, _) in found.items() if implementation == "cudnn"}
    assert kernel == {"padding", "packed", "float16", "few queries"}
    assert all(difference < 0.03 for name, (_, difference) in found.items() if name != "dropout")
    assert found["dropout"][1] > 0.1
    assert len(others) == 2
    for other in others:
        assert {implementation for implementation, _ in other.values()} == {None}
