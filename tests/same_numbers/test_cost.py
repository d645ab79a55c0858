"""The causes of speed: what a training step computes, and how often it is compiled.

Nothing here is timed; `scripts/maintainers/benchmark.py` does that.
"""

import collections
import dataclasses
import itertools
import os
import platform
import subprocess
import sys
import time

import helpers
import numpy as np
import pytest
import tensorflow as tf
from helpers import pretraining_rows
from tensorflow.python.eager import context

from albert.config import AlbertConfig
from albert.optimization import OptimizerConfig
from albert.records import batches, examples, packing, records
from albert.records.record_files import RecordFiles
from albert.tasks.pretraining import PretrainingTask
from albert.training import run_settings, steps, train_state
from albert.training.tensorflow_engine import TensorFlowEngine

# All different, so that a shape tells what a tensor is.
VOCAB, EMBEDDING, LAYERS, BATCH, LENGTH, PREDICTIONS = 61, 9, 3, 4, 12, 3
TASK = PretrainingTask(LENGTH, PREDICTIONS)
CONFIG = AlbertConfig(
    VOCAB, EMBEDDING, 20, LAYERS, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=LENGTH,
)


@pytest.fixture(scope="module", autouse=True)
def optimised_graphs():
    """What TensorFlow makes of a graph belongs to its cost."""
    helpers.optimise_graphs(True)
    yield
    helpers.optimise_graphs(False)


def train_steps(config: AlbertConfig = CONFIG, **options):
    run = run_settings.RunConfig("", num_train_steps=10, **options)
    state = train_state.TrainState(TASK, config, run, OptimizerConfig("lamb", 1e-3, 10, 0))
    return steps.train_steps(TASK, state, run)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is set on x86 alone")
@pytest.mark.parametrize("chosen, is_on", [(None, True), ("0", False)])
def test_commands_multiply_with_onednn_unless_the_user_said_otherwise(chosen, is_on):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "0"}
    if chosen is not None:
        environment["TF_ENABLE_ONEDNN_OPTS"] = chosen
    # Nothing is held back of what TensorFlow says of itself.
    program = (
        "from albert.cli import flags, engine_start as start;"
        "start._START_UP_NOISE = ['never said'];"
        "flags.set_up_logging(); flags.import_tensorflow()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        timeout=300, check=True,
    )
    assert ("oneDNN custom operations are on" in result.stderr) == is_on


def test_a_command_does_not_wait_for_what_keras_alone_would_import():
    program = (
        "import sys; from albert.cli import flags; flags.import_tensorflow();"
        "assert 'keras.src.layers' in sys.modules;"
        "print(*[m for m in ('sklearn', 'matplotlib', 'scipy.stats') if m in sys.modules]);"
        "import matplotlib.pyplot"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert result.stdout.strip() == ""


def test_no_garbage_is_looked_for_in_what_a_command_imports():
    program = (
        "import gc; from albert.cli import flags; runs = [];"
        "gc.callbacks.append(lambda phase, info: phase == 'start' and runs.append(info));"
        "flags.import_tensorflow(); assert len(runs) < 3, len(runs);"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000;"
        "frozen = gc.get_freeze_count(); flags.import_tensorflow();"
        "assert gc.get_freeze_count() <= frozen"
    )
    subprocess.run([sys.executable, "-c", program], timeout=300, check=True)


@pytest.mark.slow
def test_nothing_of_a_step_is_converted_by_autograph(monkeypatch):
    from tensorflow.python.autograph.pyct import transpiler

    converted, convert = [], transpiler.PyToPy.transform_function

    def note(self, function, context):
        converted.append(function.__qualname__)
        return convert(self, function, context)

    monkeypatch.setattr(transpiler.PyToPy, "transform_function", note)
    train = train_steps(gradient_accumulation_steps=2)
    batch = batch_of(pretraining_rows(BATCH))
    rows = tf.data.Dataset.from_tensors(batch).repeat()
    train(iter(rows), 1, [0.0, 0.0])
    steps.EvalStep(TASK, train.state.model)(batch)
    assert not converted


def batch_of(rows) -> dict[str, np.ndarray]:
    rows = list(rows)
    batch = {
        name: np.stack([row[name] for row in rows]).astype(
            np.float32 if dtype == "float32" else np.int32
        )
        for name, (dtype, _) in TASK.feature_spec().features.items()
    }
    return batch | {"is_real_example": np.ones(len(rows), np.int32)}


def take_steps(train, batches: tf.data.Dataset, count: int) -> None:
    train(iter(batches), count, [0.0, 0.0])


def same_batch() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(batch_of(pretraining_rows(BATCH))).repeat()


class StepGraph:
    """The graph of a training step, as traced and as TensorFlow runs it."""

    def __init__(self, config: AlbertConfig = CONFIG, **options):
        train = train_steps(config, **options)
        context.context().enable_graph_collection()
        try:
            take_steps(train, same_batch(), 2)
            metadata = context.context().export_run_metadata()
        finally:
            context.context().disable_graph_collection()
        [step] = train._step._list_all_concrete_functions()
        graphs = [f.graph for f in step.graph._functions.values() if f.graph]
        self.traced = max((g.get_operations() for g in graphs), key=len)  # of the gradients
        graphs = [g.post_optimization_graph for g in metadata.function_graphs]
        self.run = max((g.node for g in graphs), key=len)
        self.counts = collections.Counter(node.op for node in self.run)


@pytest.fixture(
    scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)]
)
def graph(request):
    return StepGraph(mixed_precision=request.param), request.param


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_micro_batches_are_computed_one_after_another(count, monkeypatch):
    # Not all at a time, with the activations of all of them.
    seen, grad = [], TensorFlowEngine.grad

    def note(what, value):
        def tell(x):
            seen.append(what)
            time.sleep(0.02)
            return x

        # Without a state: TensorFlow keeps those with one in order by itself.
        told = tf.numpy_function(tell, [value], value.dtype, stateful=False)
        return tf.ensure_shape(told, value.shape)

    def noting(engine, *arguments):
        compute = grad(engine, *arguments)

        def gradients(batch, *others):
            first = {"input_ids": note("begin", batch["input_ids"])}
            sums, found = compute(batch | first, *others)
            return note("end", sums), found

        return gradients

    monkeypatch.setattr(TensorFlowEngine, "grad", noting)
    train = train_steps(gradient_accumulation_steps=count)
    take_steps(train, same_batch(), 2)
    assert seen == ["begin", "end"] * (2 * count)


def test_a_step_holds_a_layer_once_and_the_last_by_itself(graph):
    assert graph[0].counts["Softmax"] == 2


def test_the_last_layer_is_computed_where_it_is_read_alone(graph):
    products = [op.outputs[0].shape for op in graph[0].traced if op.type == "MatMul"]
    inner = collections.Counter(
        shape[0] for shape in products if shape[-1] == CONFIG.intermediate_size
    )
    # Forward, the gradient of what follows and that of the inner weights; loops are graphs
    # of their own.
    assert inner == {BATCH * (1 + PREDICTIONS): 2, CONFIG.hidden_size: 1}


def test_the_graph_of_a_step_does_not_grow_with_depth(graph):
    step, precision = graph
    deep = StepGraph(
        dataclasses.replace(CONFIG, num_hidden_layers=4 * LAYERS), mixed_precision=precision
    )
    # Equal constants become one, and the last layer's number is another one.
    counts, expected = (
        {kind: count for kind, count in one.counts.items() if kind != "Const"}
        for one in (deep, step)
    )
    assert counts == expected
    assert abs(deep.counts["Const"] - step.counts["Const"]) <= 1


def test_each_cross_entropy_is_computed_once_for_loss_and_metrics(graph):
    assert graph[0].counts["SparseSoftmaxCrossEntropyWithLogits"] == 2


def test_the_vocabulary_is_scored_at_masked_positions_only(graph):
    products = [op.outputs[0].shape for op in graph[0].traced if op.type == "MatMul"]
    rows = {shape[0] for shape in products if shape[-1] == VOCAB}
    # The scores of as many positions as have a weight, and the table's gradient.
    assert rows == {None, EMBEDDING}
    assert [op for op in graph[0].traced if op.type == "Where"]


def test_the_word_table_is_cast_for_the_projection_alone_and_never_transposed(graph):
    step, precision = graph
    casts = [
        op for op in step.traced
        if op.type == "Cast" and op.inputs[0].shape == (VOCAB, EMBEDDING)
        and op.inputs[0].dtype == tf.float32
    ]
    assert len(casts) == (precision == "bfloat16")
    # A product takes its factor as it lies.
    turned = [node.name for node in step.run if node.op == "Transpose"]
    assert turned and not [
        name for name in turned if "predictions" in name and "gradient_tape" not in name
    ]


def test_steps_are_traced_once_however_many_packed_rows_a_batch_has():
    train = train_steps(pack_rows=True)
    shapes = set()

    def batches():
        for number, most in enumerate((5, 12, 6, 9)):
            batch = batch_of(pretraining_rows(BATCH, number, least=5, most=most))
            packed = packing.pack_rows(batch, 1, [LENGTH])
            shapes.add(tuple(packed["input_ids"].shape))
            yield packed

    first = next(batches())
    spec = {
        name: tf.TensorSpec([None, None] if name in packing.FEATURES else value.shape, value.dtype)
        for name, value in first.items()
    }
    take_steps(train, tf.data.Dataset.from_generator(batches, output_signature=spec), 4)
    assert len(shapes) > 1
    assert train._step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("use_xla", [False, True])
def test_packed_batches_have_few_shapes_where_each_is_compiled(use_xla, tmp_path):
    size = 16
    # A quarter of them long, so that the number of rows differs from batch to batch.
    rows = [*pretraining_rows(240, least=5, most=6), *pretraining_rows(80, least=LENGTH)]
    path = str(tmp_path / "rows.tfrecord")
    records.write_records(path, rows, TASK.feature_spec(), {"vocab_size": VOCAB})
    run = run_settings.RunConfig("", pack_rows=True, use_xla=use_xla)
    options = run_settings.row_options(run, TASK.feature_spec(), RecordFiles([path]), size)
    found = batches.train_batches(
        RecordFiles([path]), TASK.feature_spec(), batch_size=size, vocab_size=VOCAB, seed=1,
        **options,
    )
    shapes = {batch["input_ids"].shape for batch in itertools.islice(found, 60)}
    assert len(shapes) <= 8 if use_xla else len(shapes) > 1
    assert all(rows < size for rows, _ in shapes)


def test_the_records_of_a_block_are_parsed_together(tmp_path, monkeypatch):
    parsed, parse = [], examples._features_of
    monkeypatch.setattr(
        examples, "_features_of", lambda *message: parsed.append(1) or parse(*message)
    )
    path = str(tmp_path / "records")
    rows = list(pretraining_rows(200, least=LENGTH))
    records.write_records(path, rows, TASK.feature_spec(), {"vocab_size": VOCAB})
    found = batches.train_batches(
        RecordFiles([path]), TASK.feature_spec(), batch_size=8, vocab_size=VOCAB, seed=1
    )
    next(found)
    assert len(parsed) <= 2  # the first one, whose layout the others have


def test_a_record_of_the_originals_format_takes_the_bytes_it_must(tmp_path):
    length = 128
    spec = PretrainingTask(length, 20).feature_spec()
    rng = np.random.default_rng(0)
    rows = {
        name: rng.integers(0, 2, (100, size)) for name, (_, size) in spec.features.items()
    } | {"input_ids": rng.integers(5, 30000, (100, length)),
         "masked_lm_ids": rng.integers(5, 30000, (100, 20))}
    messages = examples.encode_examples(rows, spec)
    # Ids take up to three bytes as variable-length numbers, flags one, weights four.
    numbers = (3 + 2) * length + 20 * (2 + 3 + 4) + 1
    names = sum(len(name) + 16 for name in spec.features)
    assert max(map(len, messages)) <= numbers + names
