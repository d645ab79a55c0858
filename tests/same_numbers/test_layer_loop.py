"""Equal layers in a graph loop: the same model as unrolled layers."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_same_gradients, gradients_of, pretraining_rows
from keras import ops
from test_cost import BATCH, TASK, batch_of

from albert import modeling
from albert.config import AlbertConfig
from albert.model import layer_loop
from albert.model.encoder import EncoderOptions

CONFIG = AlbertConfig(
    61, 9, 16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=12, initializer_range=0.3, hidden_dropout_prob=0.1,
)


def twins(make):
    """Returns `make`'s models with unrolled and with looped layers, with equal weights."""
    models = [make(has_loop) for has_loop in (False, True)]
    models[1].set_weights(models[0].get_weights())
    return models


def loss_and_gradients(model):
    """Returns the loss of a training step, with dropout, and its gradients by name."""
    batch = {name: tf.constant(v) for name, v in batch_of(pretraining_rows(BATCH)).items()}

    @tf.function(autograph=False)
    def compute():
        def loss():
            outputs = model.of_batch(batch, training=True, dropout_seed=tf.constant([3, 4], tf.int64))
            return tf.add_n(list(TASK.loss_sums(batch, outputs).values())), tf.constant(0)

        return gradients_of(model, loss)

    loss, _, gradients = compute()
    return float(loss), {name: gradient.numpy() for name, gradient in gradients.items()}


@pytest.mark.parametrize("changes, remat, is_short", [
    ({"num_hidden_layers": 3}, True, True),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ({}, False, False), ({"inner_group_num": 2}, True, True), ({"num_hidden_groups": 2}, True, False),
        ({"parameter_sharing": "attention"}, True, True),
    )),
])
def test_loss_and_gradients_are_those_of_unrolled_layers(changes, remat, is_short):
    config = dataclasses.replace(CONFIG, **changes)
    unrolled, looped = twins(lambda has_loop: TASK.build_model(
        config, EncoderOptions(has_loop=has_loop, remat=remat, needed_outputs_only=is_short)
    ))
    loss, expected = loss_and_gradients(unrolled)
    mine, gradients = loss_and_gradients(looped)
    assert mine == pytest.approx(loss, rel=1e-6)
    assert all(np.abs(gradient).max() > 0 for gradient in expected.values())
    assert_same_gradients(gradients, expected, noise=1e-7)


def test_each_layer_draws_its_own_dropout_in_a_loop_as_unrolled():
    def drawn(has_loop, layers):
        config = dataclasses.replace(CONFIG.with_dropout(0.5), num_hidden_layers=layers)
        model = modeling.AlbertModel(config, encoder_options=EncoderOptions(has_loop=has_loop))
        # A layer that adds a large number after dropout: the sign shows the kept elements.
        for name, weight in modeling.named_weights(model).items():
            if name.endswith("output/dense/kernel"):
                weight.assign(0 * weight)
            elif name.endswith("intermediate/output/dense/bias"):
                weight.assign(0 * weight + 1000.0)
        outputs = model({"input_ids": np.full((2, 6), 7)}, training=True,
                        dropout_seed=tf.constant([3, 4], tf.int64))
        return outputs["sequence_output"].numpy() > 0

    unrolled, looped = (
        [drawn(has_loop, layers) for layers in (1, 2, 3)] for has_loop in (False, True)
    )
    np.testing.assert_array_equal(unrolled, looped)
    first, second, third = unrolled
    for one, other in ((first, second), (first, third), (second, third)):
        assert 0.3 < (one != other).mean() < 0.7


class SumOfProducts(keras.layers.Layer):
    """Adds 64 equal products x W, in the ways that the encoder applies layers."""

    def build(self, shape):
        self.dense = keras.layers.Dense(2)
        self.dense.build(shape)

    def call(self, x, way):
        def layer(total, number):
            return total + ops.matmul(x, ops.cast(self.dense.kernel, x.dtype))

        total = ops.zeros((x.shape[0], 2), x.dtype)
        if way == "unrolled":
            for number in range(64):
                total = layer(total, number)
            return total
        return layer_loop.repeat(layer, total, 0, 64, self.weights, remat=way == "loop and remat")


@pytest.mark.parametrize("way", ["unrolled", "loop", "loop and remat"])
def test_in_half_precision_gradients_of_shared_layers_are_added_in_float32(way):
    layer = SumOfProducts(dtype="mixed_bfloat16")
    layer.build((256, 3))

    @tf.function(autograph=False)
    def gradient():
        with tf.GradientTape() as tape:
            outputs = layer(tf.ones((256, 3)), way=way)
            total = tf.reduce_sum(outputs)
        assert outputs.dtype == tf.bfloat16
        return tape.gradient(total, layer.dense.kernel.value)

    # In bfloat16, the sum would stay at 256 * 256 after the first few of 64 layers.
    np.testing.assert_array_equal(gradient(), np.full((3, 2), 64 * 256.0))
