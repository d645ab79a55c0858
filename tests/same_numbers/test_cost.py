"""The causes of speed: the computations of a training step, and how often it is compiled.

Nothing here is timed; `scripts/maintainers/benchmark.py` does that.
"""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import pretraining_rows
from record_files_made import write_records

from albert.config import AlbertConfig
from albert.optimization import OptimizerConfig
from albert.records import batches, packing
from albert.records.record_files import RecordFiles
from albert.tasks.pretraining import PretrainingTask
from albert.training import steps
from albert.training.run import RunConfig, TrainState, build_model, current, row_options

# All different, so that a shape identifies its tensor.
VOCAB, EMBEDDING, LAYERS, BATCH, LENGTH, PREDICTIONS = 61, 9, 3, 4, 12, 3
TASK = PretrainingTask(LENGTH, PREDICTIONS)
CONFIG = AlbertConfig(
    VOCAB, EMBEDDING, 20, LAYERS, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=LENGTH,
)


def train_step(config: AlbertConfig = CONFIG, batches=None, **options):
    run = RunConfig("", num_train_steps=10, **options)
    state = TrainState(TASK, config, run, OptimizerConfig("lamb", 1e-3, 10, 0))
    return current().train_step(TASK, state, run, batches)


def batch_of(rows) -> dict[str, np.ndarray]:
    rows = list(rows)
    batch = {
        name: np.stack([row[name] for row in rows]).astype(
            np.float32 if dtype == "float32" else np.int32
        )
        for name, (dtype, _) in TASK.feature_spec().features.items()
    }
    return batch | {"is_real_example": np.ones(len(rows), np.int32)}


def take_steps(train, rows: tf.data.Dataset, count: int) -> None:
    batches = iter(rows)
    for _ in range(count):
        train(next(batches))


def test_all_positions_are_computed_only_if_sequences_are_padded_to_their_full_length():
    for is_padded in (False, True):
        model = build_model(TASK, CONFIG, RunConfig("", pad_to_max_seq_length=is_padded))
        assert model.encoder_options.needed_outputs_only != is_padded


def test_each_micro_batch_draws_its_own_dropout():
    # With equal rows, two parts have the loss of one alone only if they draw the same dropout.
    row, found = next(pretraining_rows(1)), []
    for count in (1, 2):
        run = RunConfig("", gradient_accumulation_steps=count)
        config = dataclasses.replace(CONFIG, num_hidden_layers=1, hidden_dropout_prob=0.3)
        keras.utils.set_random_seed(1)
        state = TrainState(TASK, config, run, OptimizerConfig("lamb", 1e-3, 10, 0))
        batch = {name: tf.constant(v) for name, v in batch_of([row] * (2 * count)).items()}
        numbers = steps.train_step(batch, 0.0, TASK, state, run, current())
        found.append(float(numbers[steps.LOSS]))
    assert found[0] == pytest.approx(found[1], abs=0.5)
    assert found[0] != pytest.approx(found[1], abs=1e-4)


def test_steps_are_traced_once_however_many_packed_rows_a_batch_has():
    shapes = set()

    def batches():
        for number, most in enumerate((5, 12, 6, 9)):
            batch = batch_of(pretraining_rows(BATCH, number, least=5, most=most))
            packed = packing.pack_rows(batch, 1, [LENGTH])
            shapes.add(tuple(packed["input_ids"].shape))
            yield packed

    first = next(batches())
    spec = {
        name: tf.TensorSpec([None, None] if name in (*packing.OF_ROWS, *packing.OF_EXAMPLES) else value.shape, value.dtype)
        for name, value in first.items()
    }
    made = iter(tf.data.Dataset.from_generator(batches, output_signature=spec))
    train = train_step(dataclasses.replace(CONFIG, num_hidden_layers=1), made, pack_rows=True)
    take_steps(train, made, 4)
    assert len(shapes) > 1
    assert train.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("use_xla", [False, True])
def test_packed_batches_have_few_shapes_where_each_is_compiled(use_xla, tmp_path):
    size = 16
    # A quarter of them are long, so that the number of rows varies between batches.
    rows = [*pretraining_rows(240, least=5, most=6), *pretraining_rows(80, least=LENGTH)]
    path = str(tmp_path / "rows.tfrecord")
    write_records(path, rows, TASK.feature_spec(), {"vocab_size": VOCAB})
    run = RunConfig("", pack_rows=True, use_xla=use_xla)
    options = row_options(run, TASK.feature_spec(), RecordFiles([path]), size)
    found = batches.train_batches(
        RecordFiles([path]), TASK.feature_spec(), batch_size=size, vocab_size=VOCAB, seed=1,
        **options,
    )
    shapes = {batch["input_ids"].shape for batch in itertools.islice(found, 60)}
    assert len(shapes) <= 8 if use_xla else len(shapes) > 1
    assert all(rows < size for rows, _ in shapes)


def test_large_packed_batches_have_few_shapes_and_little_padding(tmp_path):
    # Multiples of an eighth of the batch's size would leave a quarter of the positions empty.
    size, path = 1024, str(tmp_path / "rows.tfrecord")
    rows = pretraining_rows(2048, least=4, most=5)
    write_records(path, rows, TASK.feature_spec(), {"vocab_size": VOCAB})
    run = RunConfig("", pack_rows=True, use_xla=True)
    source = RecordFiles([path])
    found = batches.train_batches(
        source, TASK.feature_spec(), batch_size=size, vocab_size=VOCAB, seed=1,
        **row_options(run, TASK.feature_spec(), source, size),
    )
    made = list(itertools.islice(found, 12))
    assert len({batch["input_ids"].shape for batch in made}) <= 3
    assert np.mean([batch["input_mask"].mean() for batch in made]) > 0.8
