"""The training step of TensorFlow, compiled by XLA on a CPU."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from helpers import LENGTH, PREDICTIONS, SIZES, pretraining_rows  # noqa: E402

from albert.config import AlbertConfig  # noqa: E402
from albert.optimization import OptimizerConfig  # noqa: E402
from albert.tasks.pretraining import PretrainingTask  # noqa: E402
from albert.training import (
    run_settings,  # noqa: E402
    steps,
    train_state,
)

BATCH, STEPS = 4, 3
TASK = PretrainingTask(LENGTH, PREDICTIONS)
# Without dropout: XLA draws other numbers from the same seed.
CONFIG = AlbertConfig(**SIZES | {
    "num_hidden_layers": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
})


@pytest.fixture(scope="module")
def batch():
    rows = list(pretraining_rows(BATCH))
    arrays = {name: np.stack([row[name] for row in rows]) for name in TASK.feature_spec().features}
    arrays = {
        k: v.astype(np.int32 if v.dtype.kind == "i" else np.float32) for k, v in arrays.items()
    }
    return {k: tf.constant(v) for k, v in arrays.items()} | {
        "is_real_example": tf.ones([BATCH], tf.int32)
    }


def train(batch, **options):
    """Returns (rows of statistics, the training function)."""
    run = run_settings.RunConfig("", num_train_steps=STEPS, seed=3, **options)
    state = train_state.TrainState(TASK, CONFIG, run, OptimizerConfig("lamb", 1e-2, STEPS, 0))
    train_steps = steps.train_steps(TASK, state, run)
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    # One call for a step and one for several, which must not trace the step anew.
    rows = [train_steps(iterator, count, [0.0, 0.0])[0] for count in (1, STEPS - 1)]
    return np.concatenate(rows), train_steps


@pytest.fixture(scope="module")
def compiled(batch):
    return train(batch, use_xla=True)


def test_a_compiled_step_computes_what_the_graph_does(batch, compiled):
    plain, _ = train(batch, use_xla=False)
    np.testing.assert_allclose(compiled[0], plain, rtol=2e-4, atol=1e-6)
    assert (plain[:, steps.BAD] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"remat": True}, {"gradient_accumulation_steps": 2}], ids=str)
def test_so_it_does_when_it_saves_memory(options, batch):
    mine, _ = train(batch, use_xla=True, **options)
    plain, _ = train(batch, use_xla=False, **options)
    np.testing.assert_allclose(mine, plain, rtol=2e-4, atol=1e-6)


def graph_of(train_steps):
    """Returns the step's graph; that there is one means that it was traced once."""
    [concrete] = train_steps._step._list_all_concrete_functions()
    return concrete.graph


def test_every_shape_of_the_step_is_static_and_it_is_traced_once(compiled):
    for operation in graph_of(compiled[1]).get_operations():
        for value in operation.outputs:
            assert value.shape.is_fully_defined(), operation.name


def test_the_step_holds_no_python_and_no_host_work(compiled):
    definition = graph_of(compiled[1]).as_graph_def()
    kinds = {node.op for node in definition.node}
    for function in definition.library.function:
        kinds |= {node.op for node in function.node_def}
    assert len(kinds) > 20
    host = {"PyFunc", "EagerPyFunc", "PyFuncStateless", "Print", "PrintV2", "Where", "Unique",
            "WriteSummary", "ReadFile"}
    assert not kinds & host
    assert not any("Dataset" in kind or "String" in kind for kind in kinds)
