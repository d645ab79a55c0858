"""Fused attention equals eager attention, with masks, dropout and in half precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import gradients_of

from albert import modeling
from albert.config import AlbertConfig
from albert.model import attention
from albert.model.encoder_options import EncoderOptions
from albert.records import packing

LENGTH = 150
CONFIG = AlbertConfig(
    vocab_size=40, embedding_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=24, max_position_embeddings=LENGTH, initializer_range=0.3,
    hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2,
)


def make_batch(is_packed):
    rng = np.random.default_rng(0)
    mask = (np.arange(LENGTH) < np.array([150, 130, 20])[:, None]).astype(np.int32)
    batch = {
        "input_ids": rng.integers(5, 40, mask.shape, np.int32) * mask,
        "input_mask": mask,
        "segment_ids": 0 * mask,
    }
    return packing.pack_rows(batch, 1, [LENGTH]) if is_packed else batch


def twins(config):
    """Returns {implementation: model}, all with the same weights."""
    models = {name: modeling.AlbertModel(config, encoder_options=EncoderOptions(name))
              for name in attention.ATTENTION}
    models["fused"].set_weights(models["eager"].get_weights())
    return models


def outputs_and_gradients(model, batch, training):
    real = tf.cast(make_batch(False)["input_mask"], tf.float32)[..., None]
    # Not the output's square, whose sum LayerNorm keeps constant.
    direction = np.random.default_rng(1).normal(size=CONFIG.hidden_size).astype(np.float32)

    def loss():
        seed = tf.constant([3, 4], tf.int64)
        output = model(batch, training=training, dropout_seed=seed)["sequence_output"]
        output = tf.cast(output, tf.float32) * real
        return tf.reduce_sum(output * direction), output

    _, output, gradients = gradients_of(model, loss)
    return {name: value.numpy() for name, value in (gradients | {"output": output}).items()}


def assert_near(found, expected):
    greatest = max(np.abs(value).max() for value in expected.values())
    for name, value in expected.items():
        # The key bias changes no softmax: its gradient is only rounding error.
        atol = 1e-5 * max(np.abs(value).max(), 1.0) + 1e-7 * greatest
        np.testing.assert_allclose(found[name], value, atol=atol, err_msg=name)


@pytest.mark.parametrize("is_packed", [False, True])
def test_outputs_and_gradients_are_those_of_eager_attention(is_packed):
    models, batch = twins(CONFIG), make_batch(is_packed)
    expected = outputs_and_gradients(models["eager"], batch, True)
    found = outputs_and_gradients(models["fused"], batch, True)
    assert found.keys() == expected.keys()
    assert_near(found, expected)
    calm = outputs_and_gradients(models["fused"], batch, False)
    assert np.abs(calm["output"] - found["output"]).max() > 0.1  # dropout is active


@pytest.mark.parametrize("implementation, policy", [
    ("eager", "mixed_float16"), ("fused", "mixed_bfloat16"),
])
def test_half_precision_is_near_the_full_one(policy, implementation):
    keras.config.set_dtype_policy(policy)
    half = twins(CONFIG)[implementation]
    keras.config.set_dtype_policy("float32")
    full = twins(CONFIG)[implementation]
    half.set_weights(full.get_weights())
    expected = outputs_and_gradients(full, make_batch(False), False)["output"]
    found = outputs_and_gradients(half, make_batch(False), False)["output"]
    assert {weight.dtype for weight in half.weights} == {"float32"}
    assert 0 < np.abs(found - expected).max() < 0.15
    assert np.abs(found - expected).mean() < 0.02


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="attn_implementation 'flash' is not one of eager, fused"):
        EncoderOptions(attn_implementation="flash")
    with pytest.raises(ValueError, match="engine 'flash' is not one of unrolled, graph_loop"):
        EncoderOptions(engine="flash")
