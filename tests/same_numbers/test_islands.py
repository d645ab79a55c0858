"""Chains that XLA compiles inside TensorFlow's graph give the same results as plain operations."""

import dataclasses

import forked
import jobs
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_same_gradients, metrics
from test_cost import TASK
from test_layer_loop import CONFIG, loss_and_gradients

from albert.model import islands
from albert.model.dropout import Dropout
from albert.model.encoder import EncoderOptions
from albert.model.layers import gelu, normalized


def dropout_of_a_step():
    return Dropout(tf.constant([3, 4], tf.int64))


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(islands, "MIN_ELEMENTS", 0)


@pytest.mark.parametrize("options, changes", [
    ({"has_loop": True, "remat": True, "needed_outputs_only": True}, {}),
    ({}, {
        "num_hidden_layers": 2, "parameter_sharing": "attention", "hidden_act": "relu",
        "hidden_dropout_prob": 0.0,
    }),
])
def test_loss_and_gradients_are_those_of_plain_operations(options, changes):
    config = dataclasses.replace(CONFIG, attention_probs_dropout_prob=0.1, **changes)
    model = TASK.build_model(config, EncoderOptions(**options))
    loss, expected = loss_and_gradients(model)
    with islands.islands():
        mine, gradients = loss_and_gradients(model)
    assert mine == pytest.approx(loss, rel=1e-5)
    assert_same_gradients(gradients, expected, noise=1e-6)


def test_a_run_with_chains_computes_what_a_plain_one_does(whole, tmp_path, monkeypatch):
    counts, padded_count = [], islands.padded_count
    monkeypatch.setattr(islands, "padded_count", lambda n: counts.append(n) or padded_count(n))
    forked.use_plain_graphs(False)
    try:
        flags = [*whole.flags, f"--output_dir={tmp_path}", "--until_step=4"]
        assert jobs.pretrain(*flags) == 0
        trained = len(counts)
        assert jobs.pretrain(*flags, "--nodo_train", "--do_eval") == 0
    finally:
        forked.use_plain_graphs()
    compiled, plain = (metrics(folder)[3] for folder in (tmp_path, whole.out))
    assert compiled["step"] == plain["step"] == 4 and 0 < trained < len(counts)
    for name in ("loss", "gradient_norm", "masked_lm_loss"):
        assert compiled[name] == pytest.approx(plain[name], rel=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("plain, compiled", [
    (lambda x, residual, bias: keras.ops.gelu(x + bias, approximate=True),
     lambda x, residual, bias: islands.activated(x, bias, gelu)),
    (lambda x, residual, bias: normalized(x + bias + residual, tf.ones_like(bias), tf.zeros_like(bias)),
     lambda x, residual, bias: islands.added_and_normalized(
         x, bias, residual, tf.ones_like(bias), tf.zeros_like(bias), dropout_of_a_step(), 0.0)),
])
def test_in_half_precision_a_chain_and_its_gradient_are_nearer_to_float32(dtype, plain, compiled):
    # No matrix products: their rounding differs between processors, and hides that of the chain.
    rng = np.random.default_rng(0)
    x, residual, upstream = (tf.constant(rng.normal(size=(64, 128)), tf.float32) for _ in range(3))
    inputs = [tf.cast(value, dtype) for value in (x, residual, tf.constant(rng.normal(size=128)), upstream)]

    @tf.function
    def results(chain, x, residual, bias, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = chain(x, residual, bias)
        return [tf.cast(value, tf.float32) for value in (y, tape.gradient(y, x, upstream))]

    expected = results(plain, *(tf.cast(value, tf.float32) for value in inputs))
    for exact, mine, theirs in zip(
            expected, results(compiled, *inputs), results(plain, *inputs), strict=True):
        assert np.linalg.norm(mine - exact) < 0.8 * np.linalg.norm(theirs - exact)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_extremes_pass_through_as_in_plain_operations(dtype):
    values = [0.0, 1e-4, -3.0, 50.0, -50.0, 6e4, -6e4, np.inf, -np.inf, np.nan]
    x = tf.cast(tf.constant([values] * 2, tf.float32), dtype)
    bias = tf.zeros(len(values))

    def chain(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = islands.activated(x, bias, gelu)
        return y, tape.gradient(y, x)

    y, slope = (tf.cast(v, tf.float32).numpy()[0] for v in tf.function(chain)(x))
    # The formula, in double precision.
    exact = x[0].numpy().astype(np.float64)
    cut, (scale, cubic) = np.clip(exact, -100, 100), (np.sqrt(2 / np.pi), 0.044715)
    u = scale * (cut + cubic * cut**3)
    expected = np.nan_to_num(exact) * 0.5 * (1 + np.tanh(u))
    slopes = 0.5 * (1 + np.tanh(u)) + 0.5 * cut / np.cosh(np.clip(u, -300, 300)) ** 2 * scale * (
        1 + 3 * cubic * cut**2
    )
    finite = np.isfinite(exact)
    for found, values in ((y, expected), (slope, slopes)):
        rtol = {"float32": 1e-6, "bfloat16": 8e-3, "float16": 1e-3}[dtype]
        np.testing.assert_allclose(found[finite], values[finite], rtol=rtol, atol=1e-6)
    # For a non-finite input, the output is also non-finite, or the limit.
    assert y[7] == np.inf and (np.isnan(y[8]) or y[8] == 0.0) and np.isnan(y[9])


def test_random_bits_are_uniform_and_their_own_for_each_draw():
    dropout = dropout_of_a_step()
    first, second = (dropout.bits(tf.constant([301, 401])).numpy() for _ in range(2))
    assert first.dtype == np.uint16 and first.shape == (301, 401)
    for bits in (first, second):
        counts = np.histogram(bits, bins=16, range=(0, 65536))[0]
        chance = np.sqrt(bits.size / 16)
        assert np.abs(counts - bits.size / 16).max() < 5 * chance
    assert (first == second).mean() < 0.001
    kept = dropout_of_a_step()(tf.ones([4000]), 0.1).numpy()
    assert set(np.unique(kept)) <= {np.float32(0), kept.max()}
    assert kept.mean() == pytest.approx(1, abs=0.03) and (kept == 0).mean() == pytest.approx(0.1, abs=0.03)
