"""LAMB, AdamW, the schedule and the first steps of training, compared with the original's traces."""

import contextlib
import functools

import keras
import numpy as np
import pytest

from albert.config import AlbertConfig
from albert.formats import checkpoints
from albert.model import islands
from albert.modeling import AlbertForPreTraining, named_weights
from albert.optimization import (
    EXCLUDED, AdamWeightDecay, Lamb, Muon, OptimizerConfig, WarmupPolynomialDecay, create_optimizer,
)
from albert.tasks.pretraining import PretrainingTask
from albert.training.run import RunConfig, TrainState, current

SCOPES = ("LayerNorm", "layer_norm", "bias")


def create(name: str, **options):
    return create_optimizer(OptimizerConfig(name, 0.02, num_train_steps=10, **options))


def variable_at(path, value):
    """A trainable variable with the path `path`, like a layer's weight."""
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, name=name)


def trace(optimizer, golden):
    names = [str(n) for n in golden["meta/variable_names"]]
    variables = [variable_at(n, golden[f"init/{n}"]) for n in names]
    optimizer.build(variables)
    for step in range(6):
        gradients = [keras.ops.convert_to_tensor(golden[f"grad/{n}"][step]) for n in names]
        optimizer.apply(gradients, variables)
        yield step + 1, dict(zip(names, [v.numpy() for v in variables], strict=True))
    yield "final", {
        name: slot.numpy()
        for name, slot in optimizer.named_slots(dict(zip(names, variables, strict=True))).items()
    }


OPTIMIZERS = {
    "adamw_class": lambda: AdamWeightDecay(0.01, 0.01, exclude_from_weight_decay=SCOPES),
    "lamb_class": lambda: Lamb(0.01, weight_decay_rate=0.01, exclude_from_weight_decay=SCOPES),
    "lamb_class_adapt_list": lambda: Lamb(
        0.01, weight_decay_rate=0.1, beta_1=0.8, beta_2=0.99, epsilon=1e-5,
        exclude_from_weight_decay=SCOPES, exclude_from_layer_adaptation=("embeddings",),
    ),
    "adamw_class_no_decay": lambda: AdamWeightDecay(0.2),
    "create_adamw": lambda: create("adamw", num_warmup_steps=3),
    "create_lamb": lambda: create("lamb", num_warmup_steps=3),
    "create_lamb_poly2_nowarmup": lambda: create("lamb", poly_power=2.0),
}


@pytest.mark.parametrize("run, is_compiled", [
    *((run, False) for run in OPTIMIZERS), ("adamw_class", True), ("lamb_class_adapt_list", True),
])
def test_every_step_and_moment_equals_the_originals(run, is_compiled, golden_path, monkeypatch):
    golden = np.load(golden_path("optimizer.npz"))
    monkeypatch.setattr(islands, "MIN_ELEMENTS", 0)
    with islands.islands(is_compiled):
        steps = list(trace(OPTIMIZERS[run](), golden))
    for step, values in steps:
        for name, value in values.items():
            moment = step == "final"
            key = f"{run}/final/{name}" if moment else f"{run}/step{step}/{name}"
            # A weight near zero is a small difference of large updates; moments never are.
            floor = 0 if moment else 1e-6 * np.abs(golden[key]).max()
            np.testing.assert_allclose(value, golden[key], rtol=1e-6, atol=floor, err_msg=key)


def test_the_schedule_equals_the_originals_and_is_never_negative(golden_path):
    golden = np.load(golden_path("optimizer.npz"))
    for run in "abcdef":
        key = f"schedule/{run}/args_initlr_total_warmup_power_startwarmup"
        rate, total, warmup, power, start = golden[key]
        schedule = WarmupPolynomialDecay(rate, int(total), int(warmup), power, int(start))
        ours = np.array([schedule(step) for step in golden[f"schedule/{run}/step"]])
        theirs = np.maximum(golden[f"schedule/{run}/lr"], 0.0)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-9, err_msg=run)


@pytest.mark.parametrize("name, bad", [("lamb", np.nan), ("muon", np.inf)])
def test_a_gradient_that_is_not_finite_changes_no_weight_and_no_moment(name, bad):
    optimizer = create_optimizer(OptimizerConfig(name, learning_rate=0.1))
    variables = [keras.Variable(np.ones((2, 3), "float32"), name=n) for n in ("kernel", "bias")]
    optimizer.build(variables)

    def state_after(last) -> list:
        kernel = np.array([[1, 0, 0], [0, 1, last]], "float32")
        optimizer.apply([keras.ops.convert_to_tensor(kernel), keras.ops.ones((2, 3))], variables)
        return [v.numpy() for v in (*variables, *optimizer.variables[2:])]

    state = state_after(0)
    for old, new in zip(state, state_after(bad), strict=True):
        np.testing.assert_array_equal(old, new)
    assert not np.array_equal(state_after(0)[0], state[0])


def test_a_gradient_is_clipped_by_the_norm_of_its_sum_if_that_is_too_large():
    import tensorflow as tf

    # Four slices of the same row: the sum has norm 4, the slices on their own norm 2.
    slices = tf.IndexedSlices(tf.ones((4, 1)), tf.constant([2, 2, 2, 2]), tf.constant([4, 1]))
    for limit, expected in ((1.0, 0.1), (2.0, 0.2), (8.0, 0.4)):
        table = keras.Variable(np.zeros((4, 1), "float32"), name="word_embeddings")
        optimizer = AdamWeightDecay(1.0, clip_norm=limit)
        optimizer.build([table])
        optimizer.apply([slices], [table])
        first = optimizer.named_slots({"t": table})["t/adam_m"].numpy()
        np.testing.assert_allclose(first[:, 0], [0, 0, expected, 0], rtol=1e-6)


def test_every_weight_of_a_model_is_decayed_or_excluded_as_in_the_original():
    config = AlbertConfig(50, 8, 16, 2, num_attention_heads=2, intermediate_size=24)
    weights = named_weights(AlbertForPreTraining(config))
    optimizer = create_optimizer(OptimizerConfig("lamb"))
    optimizer.build(list(weights.values()))
    decayed = {n for n, weight in weights.items() if optimizer.rule(weight).keywords["decay"]}
    assert decayed == {
        n for n in weights if n.endswith(("kernel", "embeddings", "output_weights"))
    }
    assert all(any(e in n for e in EXCLUDED) for n in set(weights) - decayed)


def test_with_decay_steps_the_rate_stays_until_they_begin():
    schedule = WarmupPolynomialDecay(0.1, 100, 10, num_decay_steps=20)
    found = [float(schedule(step)) for step in (0, 5, 10, 79, 80, 90, 95, 100, 120)]
    assert found == pytest.approx([0, 0.05, 0.1, 0.1, 0.1, 0.05, 0.025, 0, 0])
    prolonged = WarmupPolynomialDecay(0.1, 300, 10, num_decay_steps=20)
    assert all(float(prolonged(step)) == float(schedule(step)) for step in range(0, 80, 7))


def test_muon_moves_matrices_along_the_orthogonal_sum_and_all_else_as_lamb():
    rng = np.random.default_rng(2)
    paths = ("a/dense/kernel", "b/dense/kernel", "a/dense/bias", "embeddings/word_embeddings")
    start = [rng.normal(size=s).astype("float32") for s in ((4, 6), (7, 5), (6,), (7, 4))]
    gradients = [[rng.normal(size=w.shape).astype("float32") for w in start] for _ in range(3)]
    ends, slots = {}, {}
    for kind in (Lamb, Muon):
        variables = [variable_at(path, w) for path, w in zip(paths, start, strict=True)]
        optimizer = kind(0.1, weight_decay_rate=0.01, exclude_from_weight_decay=SCOPES)
        optimizer.build(variables)
        for some in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(g) for g in some], variables)
        ends[kind] = [v.numpy() for v in variables]
        slots[kind] = optimizer.named_slots(dict(zip(paths, variables, strict=True)))
    for i in (2, 3):
        np.testing.assert_array_equal(ends[Muon][i], ends[Lamb][i])
    assert f"{paths[0]}/momentum" in slots[Muon] and f"{paths[0]}/adam_v" not in slots[Muon]
    assert f"{paths[3]}/adam_v" in slots[Muon]
    # The same in NumPy: five Newton-Schulz steps on a wide matrix and on a tall one.
    for i in (0, 1):
        weight, total = start[i].astype("float64"), 0
        for gradient in (some[i] for some in gradients):
            total = 0.95 * total + gradient
            x = gradient + 0.95 * total
            x = x / np.linalg.norm(x)
            for _ in range(5):
                square = x @ x.T
                x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
            assert 0.6 < np.linalg.svd(x)[1].min() and np.linalg.svd(x)[1].max() < 1.3
            update = x + 0.01 * weight
            weight = weight - 0.1 * np.linalg.norm(weight) / np.linalg.norm(update) * update
        np.testing.assert_allclose(ends[Muon][i], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [AdamWeightDecay, Lamb, Muon])
@pytest.mark.parametrize("name, ours", [
    ("weight_decay", "weight_decay_rate"), ("global_clipnorm", "clip_norm"), ("clipnorm", "clip_norm"),
    ("clipvalue", "clip_norm"),
])
def test_arguments_of_keras_that_do_something_else_are_refused(kind, name, ours):
    with pytest.raises(ValueError, match=f"{name} is Keras's argument: use {ours}"):
        kind(1e-3, **{name: 0.1})
    kind.from_config(kind(1e-3).get_config())  # which has them as None


@pytest.mark.parametrize("names", [["gamma"], None])
def test_kerass_method_excludes_variables_from_weight_decay(names):
    gamma, kernel = (keras.Variable(np.ones(3, "float32"), name=name) for name in ("gamma", "kernel"))
    optimizer = AdamWeightDecay(0.1, weight_decay_rate=0.5)
    if names:
        optimizer.exclude_from_weight_decay(names)
    else:
        optimizer.exclude_from_weight_decay(var_list=[gamma])
    optimizer.apply([np.zeros(3, "float32")] * 2, [gamma, kernel])
    np.testing.assert_allclose(gamma, 1)
    np.testing.assert_allclose(kernel, 0.95)
    with pytest.raises(ValueError, match="call it before the optimizer is used"):
        optimizer.exclude_from_weight_decay(["kernel"])


# --- The first steps of training, from the original's own run ---


@functools.cache
def five_steps(folder, golden_file, optimizer: str):
    """Returns (row of metrics, weights) after each of the trainer's steps from the checkpoint."""
    golden = np.load(golden_file)
    config = AlbertConfig.from_json_file(str(folder / "albert_config.json")).with_dropout(0.0)
    task, run = PretrainingTask(20, 4), RunConfig("unused")
    state = TrainState(task, config, run, OptimizerConfig(optimizer, 0.02, 20, 3))
    weights = checkpoints.open_weights(str(folder / "model.ckpt-best"))
    for name, weight in state.weights.items():
        weight.assign(weights.read(name))
    train_step, found = current().train_step(task, state, run), []
    for step in range(5):
        prefix = f"in/step{step}/"
        batch = {k[len(prefix) :]: golden[k] for k in golden.files if k.startswith(prefix)}
        batch["is_real_example"] = np.ones(4, "int32")
        row = train_step(batch)
        found.append((row.numpy(), {n: w.numpy() for n, w in state.weights.items()}))
    return found


def assert_close(ours, golden, scope, rtol):
    for name, value in ours.items():
        expected = golden[scope + name]
        # Relative to the variable: adaptive steps amplify noise in its smallest elements.
        difference = np.abs(value - expected).max() / np.abs(expected).max()
        assert difference < rtol, (name, difference)


@pytest.mark.parametrize("optimizer", ["lamb", pytest.param("adamw", marks=pytest.mark.slow)])
def test_losses_and_weights_follow_the_originals(optimizer, golden_path):
    # `onehot` is the original's form for TPUs, with a dense embedding gradient: like ours, it
    # clips by the norm of the gradient.
    folder = golden_path("tf1_ckpt_tiny")
    path, scope = golden_path("tf1_ckpt_tiny/train5.npz"), f"{optimizer}/onehot/"
    golden = np.load(path)
    for step, (row, weights) in enumerate(five_steps(folder, path, optimizer)):
        loss, norm = row[:2]
        np.testing.assert_allclose(loss, golden[f"{scope}loss_before_step{step}"], rtol=1e-5)
        seen = golden[f"{scope}clip_norm_seen_step{step}"]
        np.testing.assert_allclose(norm, seen, rtol=1e-4)
        if f"{scope}after{step + 1}/bert/pooler/dense/bias" in golden.files:
            assert_close(weights, golden, f"{scope}after{step + 1}/", 1e-4)


@pytest.mark.parametrize(("case", "optimizer"), [
    ("tf1_ckpt_tiny", "lamb"), ("tf1_ckpt_tiny", "adamw"),
    pytest.param("tf1_ckpt_tiny_groups", "adamw", marks=pytest.mark.slow),
])
def test_with_sparse_embedding_gradients_only_the_originals_clip_norm_differs(
    case, optimizer, golden_path
):
    # `lookup`: there the norm of the word table's gradient is of its slices, duplicates not
    # summed (up to 0.4 % off), so the updates differ by as much and the losses by less.
    folder = golden_path(case)
    path, scope = golden_path(f"{case}/train5.npz"), f"{optimizer}/lookup/"
    golden = np.load(path)
    for step, (row, weights) in enumerate(five_steps(folder, path, optimizer)):
        loss, norm = row[:2]
        np.testing.assert_allclose(loss, golden[f"{scope}loss_before_step{step}"], rtol=1e-3)
        if step < 2:  # before the different norms have moved the weights
            dense = golden[f"{scope}dense_global_norm_step{step}"]
            np.testing.assert_allclose(norm, dense, rtol=1e-5)
        if step in (1, 4):
            assert_close(weights, golden, f"{scope}after{step + 1}/", {1: 1e-3, 4: 1e-2}[step])
