"""The forms in which the encoder computes, and the causes of speed: none changes the model.

Equal layers in a graph loop, chains that XLA compiles inside TensorFlow's graph, half precision, the
kernel of NVIDIA GPUs, micro-batches and packed rows. Nothing is timed here;
`scripts/maintainers/benchmark.py` does that.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import types

import forked
import jobs
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LENGTH, PREDICTIONS, VOCAB, assert_same_gradients, gradients_of, metrics, pretraining_rows
from keras import ops
from record_files_made import write_records

from albert import modeling
from albert.config import AlbertConfig
from albert.model import islands, layer_loop
from albert.model.dropout import Dropout
from albert.model.encoder import EncoderOptions
from albert.model.layers import gelu
from albert.optimization import OptimizerConfig
from albert.records import batches, packing
from albert.records.record_files import RecordFiles
from albert.tasks.pretraining import PretrainingTask
from albert.training import steps
from albert.training.run import RunConfig, TrainState, build_model, current, row_options

TASK = PretrainingTask(LENGTH, PREDICTIONS)
CONFIG = AlbertConfig(
    VOCAB, 9, 16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=LENGTH, initializer_range=0.3, hidden_dropout_prob=0.1,
)


def batch_of(rows) -> dict[str, np.ndarray]:
    rows = list(rows)
    batch = {
        name: np.stack([row[name] for row in rows]).astype(
            np.float32 if dtype == "float32" else np.int32
        )
        for name, (dtype, _) in TASK.feature_spec().features.items()
    }
    return batch | {"is_real_example": np.ones(len(rows), np.int32)}


def loss_and_gradients(model):
    """Returns the loss of a training step, with dropout, and its gradients by name."""
    batch = {name: tf.constant(v) for name, v in batch_of(pretraining_rows(4)).items()}

    @tf.function(autograph=False)
    def compute():
        def loss():
            outputs = TASK.outputs(model, batch, training=True, dropout_seed=tf.constant([3, 4], tf.int64))
            return tf.add_n(list(TASK.loss_sums(batch, outputs).values())), tf.constant(0)

        return gradients_of(model, loss)

    loss, _, gradients = compute()
    return float(loss), {name: gradient.numpy() for name, gradient in gradients.items()}


# --- Layers in a loop ---


@pytest.mark.parametrize("changes, remat, is_short", [
    ({"num_hidden_layers": 3}, True, True),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ({}, False, False), ({"inner_group_num": 2}, True, True), ({"num_hidden_groups": 2}, True, False),
        ({"parameter_sharing": "attention"}, True, True),
    )),
])
def test_loss_and_gradients_of_a_loop_are_those_of_unrolled_layers(changes, remat, is_short):
    config = dataclasses.replace(CONFIG, **changes)
    unrolled, looped = (TASK.build_model(
        config, EncoderOptions(has_loop=has_loop, remat=remat, needed_outputs_only=is_short)
    ) for has_loop in (False, True))
    looped.set_weights(unrolled.get_weights())
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

    unrolled, looped = ([drawn(has_loop, layers) for layers in (1, 2)] for has_loop in (False, True))
    np.testing.assert_array_equal(unrolled, looped)
    assert 0.3 < (unrolled[0] != unrolled[1]).mean() < 0.7


class SumOfProducts(keras.layers.Layer):
    """Adds 64 equal products x W in a loop."""

    def build(self, shape):
        self.dense = keras.layers.Dense(2)
        self.dense.build(shape)

    def call(self, x, remat):
        def layer(total, number):
            return total + ops.matmul(x, ops.cast(self.dense.kernel, x.dtype))

        total = ops.zeros((x.shape[0], 2), x.dtype)
        return layer_loop.repeat(layer, total, 0, 64, self.weights, remat=remat)


@pytest.mark.parametrize("remat", [False, True])
def test_in_half_precision_gradients_of_shared_layers_are_added_in_float32(remat):
    layer = SumOfProducts(dtype="mixed_bfloat16")
    layer.build((256, 3))

    @tf.function(autograph=False)
    def gradient():
        with tf.GradientTape() as tape:
            outputs = layer(tf.ones((256, 3)), remat=remat)
            total = tf.reduce_sum(outputs)
        assert outputs.dtype == tf.bfloat16
        return tape.gradient(total, layer.dense.kernel.value)

    # In bfloat16, the sum would stay at 256 * 256 after the first few of 64 layers.
    np.testing.assert_array_equal(gradient(), np.full((3, 2), 64 * 256.0))


# --- Chains that are compiled ---


@pytest.fixture
def of_any_size(monkeypatch):
    monkeypatch.setattr(islands, "MIN_ELEMENTS", 0)


@pytest.mark.parametrize("options, changes", [
    ({"needed_outputs_only": True}, {"num_hidden_layers": 1}),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ({"has_loop": True, "remat": True, "needed_outputs_only": True}, {}),
        ({}, {
            "num_hidden_layers": 2, "parameter_sharing": "attention", "hidden_act": "relu",
            "hidden_dropout_prob": 0.0,
        }),
    )),
])
def test_loss_and_gradients_of_chains_are_those_of_plain_operations(options, changes, of_any_size):
    config = dataclasses.replace(CONFIG, attention_probs_dropout_prob=0.1, **changes)
    model = TASK.build_model(config, EncoderOptions(**options))
    loss, expected = loss_and_gradients(model)
    with islands.islands():
        mine, gradients = loss_and_gradients(model)
    assert mine == pytest.approx(loss, rel=1e-5)
    assert_same_gradients(gradients, expected, noise=1e-6)


def test_a_run_with_chains_computes_what_a_plain_one_does(whole, tmp_path, monkeypatch, of_any_size):
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


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-6), ("bfloat16", 8e-3), ("float16", 1e-3)])
def test_extremes_pass_through_as_in_plain_operations_of_float32(dtype, rtol, of_any_size):
    values = [0.0, 1e-4, -3.0, 50.0, -50.0, 6e4, -6e4, np.inf, -np.inf, np.nan]
    x = tf.cast(tf.constant([values] * 2, tf.float32), dtype)

    @tf.function
    def with_gradient(chain, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = chain(x)
        return [tf.cast(value, tf.float32) for value in (y, tape.gradient(y, x))]

    found = with_gradient(lambda x: islands.activated(x, tf.zeros(len(values)), gelu), x)
    expected = with_gradient(gelu, tf.cast(x, tf.float32))
    for mine, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine[0][:7], exact[0][:7], rtol=rtol, atol=1e-6)
    # For a non-finite input, the output is also non-finite, or the limit.
    y = found[0].numpy()[0]
    assert y[7] == np.inf and (np.isnan(y[8]) or y[8] == 0.0) and np.isnan(y[9])


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-5), ("bfloat16", 8e-3), ("float16", 4e-3)])
def test_softmax_and_cross_entropy_are_computed_in_float32(dtype, rtol, of_any_size):
    rng = np.random.default_rng(0)
    scores, labels = tf.cast(rng.normal(0, 3, (5, 2, 4, 300)), dtype), rng.integers(0, 300, (5, 2, 4))
    upstream = rng.normal(size=scores.shape)

    def computed(functions, x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            probabilities, losses = functions.softmax(x), functions.cross_entropy(labels, x)
            total = tf.reduce_sum(probabilities * tf.cast(upstream, x.dtype))
        return probabilities, losses, tape.gradient(total, x), tape.gradient(losses, x)

    found = tf.function(lambda x: computed(islands, x), autograph=False)(scores)
    assert found[1].dtype == tf.float32
    plain = types.SimpleNamespace(
        softmax=tf.nn.softmax,
        cross_entropy=tf.nn.sparse_softmax_cross_entropy_with_logits,
    )
    for value, expected in zip(found, computed(plain, tf.cast(scores, tf.float64)), strict=True):
        np.testing.assert_allclose(tf.cast(value, tf.float64), expected, rtol=rtol, atol=rtol * 0.02)


def test_random_bits_are_uniform_and_their_own_for_each_draw():
    dropout = Dropout(tf.constant([3, 4], tf.int64))
    first, second = (dropout.bits(tf.constant([301, 401])).numpy() for _ in range(2))
    assert first.dtype == np.uint16 and first.shape == (301, 401)
    for bits in (first, second):
        counts = np.histogram(bits, bins=16, range=(0, 65536))[0]
        chance = np.sqrt(bits.size / 16)
        assert np.abs(counts - bits.size / 16).max() < 5 * chance
    assert (first == second).mean() < 0.001
    kept = dropout(tf.ones([4000]), 0.1).numpy()
    assert set(np.unique(kept)) <= {np.float32(0), kept.max()}
    assert kept.mean() == pytest.approx(1, abs=0.03) and (kept == 0).mean() == pytest.approx(0.1, abs=0.03)


# --- Half precision, and the kernel of GPUs ---


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_near_the_full_one(policy):
    config = dataclasses.replace(CONFIG, num_hidden_layers=1, max_position_embeddings=150)
    mask = (np.arange(150) < np.array([150, 130, 20])[:, None]).astype(np.int32)
    ids = np.random.default_rng(0).integers(5, VOCAB, mask.shape, np.int32) * mask
    full = modeling.AlbertModel(config)
    keras.config.set_dtype_policy(policy)
    half = modeling.AlbertModel(config)
    half.set_weights(full.get_weights())
    inputs = {"input_ids": ids, "input_mask": mask}
    expected, found = (
        np.asarray(model(inputs)["sequence_output"], np.float32)[mask > 0] for model in (full, half)
    )
    assert {weight.dtype for weight in half.weights} == {"float32"}
    assert 0 < np.abs(found - expected).max() < 0.15
    assert np.abs(found - expected).mean() < 0.02


@pytest.mark.slow
def test_gpus_compute_attention_by_the_kernel_of_cudnn_where_that_can(pytestconfig):
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


# --- Micro-batches and packed rows ---


def state_of(run: RunConfig) -> TrainState:
    config = dataclasses.replace(CONFIG, num_hidden_layers=1, hidden_dropout_prob=0.3)
    return TrainState(TASK, config, run, OptimizerConfig("lamb", 1e-3, 10, 0))


def test_all_positions_are_computed_only_if_sequences_are_padded_to_their_full_length():
    for is_padded in (False, True):
        model = build_model(TASK, CONFIG, RunConfig("", pad_to_max_seq_length=is_padded))
        assert model.encoder_options.needed_outputs_only != is_padded


def test_each_micro_batch_draws_its_own_dropout():
    # With equal rows, two parts have the loss of one alone only if they draw the same dropout.
    row, found = next(pretraining_rows(1)), []
    for count in (1, 2):
        run = RunConfig("", gradient_accumulation_steps=count)
        keras.utils.set_random_seed(1)
        batch = {name: tf.constant(v) for name, v in batch_of([row] * (2 * count)).items()}
        numbers = steps.train_step(batch, 0.0, TASK, state_of(run), run, current())
        found.append(float(numbers[steps.LOSS]))
    assert found[0] == pytest.approx(found[1], abs=0.5)
    assert found[0] != pytest.approx(found[1], abs=1e-4)


def test_steps_are_traced_once_however_many_packed_rows_a_batch_has():
    rows = [
        packing.pack_rows(batch_of(pretraining_rows(4, number, least=5, most=most)), 1, [LENGTH])
        for number, most in enumerate((5, 12, 6))
    ]
    assert len({row["input_ids"].shape for row in rows}) > 1
    vary = {*packing.OF_ROWS, *packing.OF_EXAMPLES}
    spec = {
        name: tf.TensorSpec([None, None] if name in vary else value.shape, value.dtype)
        for name, value in rows[0].items()
    }
    made = iter(tf.data.Dataset.from_generator(lambda: rows, output_signature=spec))
    run = RunConfig("", num_train_steps=10, pack_rows=True)
    train = current().train_step(TASK, state_of(run), run, made)
    for batch in made:
        train(batch)
    assert train.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("size, rows, most_shapes, least_filled", [
    # A quarter of them are long, so that the number of rows varies between batches.
    (16, [*pretraining_rows(240, least=5, most=6), *pretraining_rows(80, least=LENGTH)], 8, 0.5),
    # Multiples of an eighth of the batch's size would leave a quarter of the positions empty.
    (1024, [*pretraining_rows(2048, least=4, most=5)], 3, 0.8),
], ids=["small", "large"])
def test_packed_batches_have_few_shapes_and_little_padding_where_each_is_compiled(
    size, rows, most_shapes, least_filled, tmp_path
):
    write_records(str(tmp_path / "rows.tfrecord"), rows, TASK.feature_spec(), {"vocab_size": VOCAB})
    source = RecordFiles([str(tmp_path / "rows.tfrecord")])

    def made(use_xla):
        run = RunConfig("", pack_rows=True, use_xla=use_xla)
        found = batches.train_batches(
            source, TASK.feature_spec(), batch_size=size, vocab_size=VOCAB, seed=1,
            **row_options(run, TASK.feature_spec(), source, size),
        )
        return list(itertools.islice(found, 40 if size < 100 else 12))

    shapes = {batch["input_ids"].shape for batch in made(use_xla=True)}
    assert len(shapes) <= most_shapes and all(rows < size for rows, _ in shapes)
    assert np.mean([batch["input_mask"].mean() for batch in made(use_xla=True)]) > least_filled
    assert len({batch["input_ids"].shape for batch in made(use_xla=False)}) > 1
