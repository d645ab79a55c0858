"""`fit` under the user's own distribution over several devices trains as on one device."""

import json

import helpers
import pytest

FIT = """
import json, sys
import keras, numpy as np, albert

def fit(mask_name="attention_mask"):
    keras.utils.set_random_seed(0)
    config = albert.AlbertConfig(**json.loads(sys.argv[1]))
    model = albert.AlbertForSequenceClassification(config, 2, classifier_dropout=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    jit = "auto" if keras.backend.backend() == "jax" else False
    model.compile(keras.optimizers.SGD(0.1), loss={"logits": loss}, jit_compile=jit)
    ids = np.random.default_rng(0).integers(5, 40, (16, 8))
    mask = np.arange(8) < np.arange(1, 17)[:, None] % 7 + 2  # the first of a batch are short
    inputs = {"input_ids": ids, mask_name: mask.astype(int)} if mask_name else ids
    done = model.fit(inputs, {"logits": ids[:, 0] % 2}, batch_size=8, epochs=2, verbose=0,
                     shuffle=False)
    return done.history["loss"], model
"""
MIRRORED = """
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
from fit import *

for strategy in tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]):
    with strategy.scope():
        print(json.dumps([strategy.num_replicas_in_sync, *fit()[0]]))
"""
DATA_PARALLEL = """
from fit import *

for distribution in None, keras.distribution.DataParallel():
    keras.distribution.set_distribution(distribution)
    losses, model = fit()
    devices = len(model.trainable_variables[0].value.sharding.device_set)
    print(json.dumps([devices, *losses]))
for name in "input_mask", None:  # our name of the mask; and ids alone, all of which count
    print(json.dumps(fit(name)[0]))
"""


@pytest.mark.parametrize("program, environment", [
    (MIRRORED, {}),
    pytest.param(DATA_PARALLEL, {
        "KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2 "
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    }, marks=(helpers.NEEDS_JAX, pytest.mark.slow)),
], ids=["tf.distribute", "keras.distribution"])
def test_two_devices_give_the_losses_of_one(program, environment, tmp_path):
    (tmp_path / "fit.py").write_text(FIT)
    (tmp_path / "program.py").write_text(program)
    sizes = helpers.SIZES | {
        "num_hidden_layers": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    done = helpers.run("program", json.dumps(sizes), cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    one, two, *others = map(json.loads, done.stdout.splitlines())
    assert (one[0], two[0]) == (1, 2) and one[1] > one[2]
    assert max(abs(a - b) for a, b in zip(one[1:], two[1:], strict=True)) < 1e-5
    if others:
        assert others[0] == two[1:] and abs(others[1][0] - one[1]) > 1e-6
