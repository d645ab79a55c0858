"""`fit` in a scope of one's own `tf.distribute` strategy trains as on one device."""

import json

import helpers

PROGRAM = """
import json, sys
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
import keras, numpy as np, albert

ids = np.random.default_rng(0).integers(5, 40, (16, 8))
config = albert.AlbertConfig(**json.loads(sys.argv[1]))
strategies = [tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])]
for strategy in strategies:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = albert.AlbertForSequenceClassification(config, 2, classifier_dropout=0.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss={"logits": loss})
    done = model.fit({"input_ids": ids}, {"logits": ids[:, 0] % 2}, batch_size=8, epochs=2,
                     verbose=0, shuffle=False)
    print(json.dumps([strategy.num_replicas_in_sync, *done.history["loss"]]))
"""


def test_two_devices_give_the_losses_of_one(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    sizes = helpers.SIZES | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    done = helpers.run("program", json.dumps(sizes), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    one, two = map(json.loads, done.stdout.splitlines())
    assert (one[0], two[0]) == (1, 2) and one[1] > one[2]
    assert max(abs(a - b) for a, b in zip(one[1:], two[1:], strict=True)) < 1e-5
