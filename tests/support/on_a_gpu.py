"""Computes attention as on GPUs of each KIND:CAPABILITY among the arguments, on a CPU with JAX.

Prints a line of JSON for each: [implementation that JAX was asked for or null, largest difference
from matrix products] by case. And a last one: whether layers are in a loop, without and with --remat.
"""

import json
import sys
import types

import jax
import numpy as np
from keras import ops

from albert.config import AlbertConfig
from albert.model import attention
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.row_layout import mask_of
from albert.tasks.pretraining import PretrainingTask
from albert.training.jax_engine import JaxEngine
from albert.training.run import RunConfig, build_model

kernel, asked = jax.nn.dot_product_attention, []


def attention_of_jax(*arrays, implementation, **options):
    asked.append(implementation)
    return kernel(*arrays, implementation="xla", **options)


def attend(queries, keys, mask, dtype="bfloat16", dropout=NO_DROPOUT):
    rng = np.random.default_rng(0)
    query, key, value = (ops.cast(rng.normal(size=(2, 3, n, 8)), dtype) for n in (queries, keys, keys))
    adder = mask_of(mask[..., :queries, :keys], dtype)
    asked.clear()
    context = attention.attend(query, key, value, adder, dropout, 0.5)
    scores = ops.matmul(query, ops.swapaxes(key, 2, 3)) + adder
    expected = ops.matmul(ops.cast(ops.softmax(ops.cast(scores, "float32")), dtype), value)
    return [asked[0] if asked else None, float(ops.max(ops.abs(context - expected)))]


jax.nn.dot_product_attention = attention_of_jax
device, devices = types.SimpleNamespace(), jax.devices
jax.devices = lambda: [device]
padding = (np.arange(16) < np.array([16, 9])[:, None])[:, None, None, :]
examples = np.sort(np.random.default_rng(1).integers(0, 4, (2, 16)))
packed = (examples[:, :, None] == examples[:, None, :])[:, None]
for argument in sys.argv[1:]:
    device.device_kind, device.compute_capability = argument.split(":")
    print(json.dumps({
        "padding": attend(16, 16, padding), "packed": attend(16, 16, packed),
        "float16": attend(16, 16, padding, "float16"), "few queries": attend(6, 16, padding),
        "odd": attend(5, 16, padding), "float32": attend(16, 16, padding, "float32"),
        "dropout": attend(16, 16, padding, dropout=Dropout(np.array([1, 2], np.uint32))),
    }))
jax.devices = devices
JaxEngine.has_accelerator, JaxEngine.device_name = True, "NVIDIA H100 80GB HBM3"
task, config = PretrainingTask(8, 2), AlbertConfig(9, 4, 4, num_attention_heads=2, intermediate_size=4)
models = (build_model(task, config, RunConfig("", remat=remat)) for remat in (False, True))
print(json.dumps([model.encoder_options.has_loop for model in models]))
