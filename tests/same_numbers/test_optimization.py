"""LAMB, AdamW and the schedule against the original's own traces."""

import contextlib

import keras
import numpy as np
import pytest

from albert.optimization import (
    EXCLUDED,
    AdamWeightDecay,
    Lamb,
    Muon,
    OptimizerConfig,
    WarmupPolynomialDecay,
    create_optimizer,
    orthogonal,
)

SCOPES = ("LayerNorm", "layer_norm", "bias")


def create(name: str, **options):
    return create_optimizer(OptimizerConfig(name, 0.02, num_train_steps=10, **options))


def variable_at(path, value):
    """A trainable variable whose path is `path`, as a layer's weight has."""
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


@pytest.mark.parametrize("run", OPTIMIZERS)
def test_every_step_and_moment_equals_the_originals(run, golden_path):
    golden = np.load(golden_path("optimizer.npz"))
    for step, values in trace(OPTIMIZERS[run](), golden):
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
    good = [keras.ops.convert_to_tensor(np.eye(2, 3, dtype="float32")), keras.ops.ones((2, 3))]
    optimizer.apply(good, variables)
    state = [v.numpy() for v in (*variables, *optimizer.variables[2:])]
    # The bad value stands in the last place of one variable only.
    spoilt = np.ones((2, 3), "float32")
    spoilt[1, 2] = bad
    optimizer.apply([keras.ops.convert_to_tensor(spoilt), good[1]], variables)
    after = [v.numpy() for v in (*variables, *optimizer.variables[2:])]
    for old, new in zip(state, after, strict=True):
        np.testing.assert_array_equal(old, new)
    optimizer.apply(good, variables)
    assert not np.array_equal(variables[0].numpy(), state[0])


def test_an_embedding_gradient_is_clipped_by_the_norm_of_its_sum():
    import tensorflow as tf

    table = keras.Variable(np.zeros((4, 1), "float32"), name="word_embeddings")
    optimizer = AdamWeightDecay(1.0, clip_norm=1.0)
    optimizer.build([table])
    # Four slices of the same row: the sum has norm 4, the slices on their own norm 2.
    slices = tf.IndexedSlices(tf.ones((4, 1)), tf.constant([2, 2, 2, 2]), tf.constant([4, 1]))
    optimizer.apply([slices], [table])
    first = optimizer.named_slots({"t": table})["t/adam_m"].numpy()
    np.testing.assert_allclose(first[:, 0], [0, 0, 0.1, 0], rtol=1e-6)


def test_every_weight_of_a_model_is_decayed_or_excluded_as_in_the_original():
    from albert.modeling import AlbertConfig, AlbertForPreTraining, named_weights

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


def test_an_orthogonal_matrix_is_near_to_u_v_of_the_singular_values():
    for shape in ((6, 4), (4, 6), (5, 5)):
        matrix = np.random.default_rng(1).normal(size=shape).astype("float32")
        u, _, v = np.linalg.svd(matrix, full_matrices=False)
        found = np.asarray(orthogonal(keras.ops.convert_to_tensor(matrix)))
        within = u.T @ found @ v.T  # diagonal, if the singular vectors are the same
        assert np.abs(within - np.diag(np.diag(within))).max() < 1e-4
        assert 0.6 < np.diag(within).min() <= np.diag(within).max() < 1.3


def test_muon_moves_matrices_along_the_orthogonal_sum_and_all_else_as_lamb():
    rng = np.random.default_rng(2)
    paths = ("encoder/dense/kernel", "encoder/dense/bias", "embeddings/word_embeddings")
    start = [rng.normal(size=s).astype("float32") for s in ((4, 6), (6,), (7, 4))]
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
    for i in (1, 2):
        np.testing.assert_array_equal(ends[Muon][i], ends[Lamb][i])
    assert f"{paths[0]}/momentum" in slots[Muon] and f"{paths[0]}/adam_v" not in slots[Muon]
    assert f"{paths[2]}/adam_v" in slots[Muon]
    # The same in NumPy; five steps of Newton and Schulz.
    weight, total = start[0].astype("float64"), 0
    for gradient, _, _ in gradients:
        total = 0.95 * total + gradient
        x = gradient + 0.95 * total
        x = x / np.linalg.norm(x)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        update = x + 0.01 * weight
        weight = weight - 0.1 * np.linalg.norm(weight) / np.linalg.norm(update) * update
    np.testing.assert_allclose(ends[Muon][0], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_twenty_steps_equal_those_of_optax(name):
    optax = pytest.importorskip("optax")
    from jax import numpy as jnp

    rng = np.random.default_rng(3)
    shapes = {"encoder/dense/kernel": (5, 7), "encoder/dense/bias": (7,), "word_embeddings": (9, 5)}
    start = {path: rng.normal(size=shape).astype("float32") for path, shape in shapes.items()}
    steps = [
        {path: (3 * rng.normal(size=w.shape)).astype("float32") for path, w in start.items()}
        for _ in range(20)
    ]
    ours = create_optimizer(OptimizerConfig(name, 0.05, num_train_steps=25, num_warmup_steps=4))
    variables = [variable_at(path, w) for path, w in start.items()]
    ours.build(variables)
    for gradients in steps:
        ours.apply([keras.ops.convert_to_tensor(g) for g in gradients.values()], variables)

    def of_moments(gradients, state, weights=None):
        # The released optimizers correct no bias.
        first, second = (optax.tree.update_moment(gradients, state[0], 0.9, 1),
                         optax.tree.update_moment(gradients, state[1], 0.999, 2))
        return {p: first[p] / (second[p] ** 0.5 + 1e-6) for p in first}, (first, second)

    matrices = {path: not path.endswith("bias") for path in shapes}
    zeros = {path: np.zeros_like(w) for path, w in start.items()}
    stages = [
        optax.clip_by_global_norm(1.0),
        optax.GradientTransformation(lambda weights: (zeros, zeros), of_moments),
        optax.add_decayed_weights(0.01, matrices),
    ]
    if name == "lamb":
        stages.append(optax.masked(optax.scale_by_trust_ratio(), matrices))
    rate = WarmupPolynomialDecay(0.05, 25, 4)
    theirs = optax.chain(*stages, optax.scale_by_learning_rate(lambda step: float(rate(int(step)))))
    weights = {path: jnp.asarray(w) for path, w in start.items()}
    state = theirs.init(weights)
    for gradients in steps:
        updates, state = theirs.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
    for variable, path in zip(variables, shapes, strict=True):
        expected = np.asarray(weights[path])
        np.testing.assert_allclose(
            variable.numpy(), expected, rtol=0, atol=1e-6 * np.abs(expected).max(), err_msg=path
        )
