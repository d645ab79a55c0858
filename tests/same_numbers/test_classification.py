"""Tasks with labels: the original's logits, losses and gradients; padding rows have no effect."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from helpers import LENGTH, PREDICTIONS, VOCAB, assert_same_gradients, gradients_of, pretraining_rows

from albert.config import AlbertConfig
from albert.formats import checkpoints
from albert.tasks.classification import ClassificationTask, MultipleChoiceTask
from albert.tasks.pretraining import PretrainingTask
from albert.training import evaluate
from albert.training.run import RunConfig, current

TASKS = {
    "classifier_3way": ClassificationTask("mnli", 24, ("a", "b", "c")),
    "classifier_regression": ClassificationTask("sts-b", 24, ()),
    "race": MultipleChoiceTask("race", 24, tuple("ABCD")),
}


@pytest.fixture(scope="module", params=TASKS)
def case(request, golden_path):
    """(task, model, batch with a padding row at its end, golden values of the original)."""
    folder = golden_path(f"heads/{request.param}")
    golden, task = np.load(folder / "io.npz"), TASKS[request.param]
    config = AlbertConfig.from_json_file(str(folder / "albert_config.json"))
    weights = checkpoints.open_weights(str(folder))
    model, _ = evaluate.load_model(task, config, RunConfig("unused"), weights)
    batch = {k.removeprefix("in/"): tf.constant(golden[k]) for k in golden if k.startswith("in/")}
    batch = {k: tf.concat([v, tf.zeros_like(v[:1])], axis=0) for k, v in batch.items()}
    rows = len(batch["label_ids"])
    batch["is_real_example"] = tf.constant([1] * (rows - 1) + [0])
    return task, model, batch, golden


def loss_of(task, batch, outputs):
    return task.loss_sums(batch, outputs)["loss"] / task.loss_weights(batch)["loss"]


def test_logits_probabilities_and_losses_are_the_originals(case):
    task, model, batch, golden = case
    outputs = model.of_batch(batch, training=False)
    logits = np.reshape(outputs["logits"][:-1], golden["predict/logits"].shape)
    np.testing.assert_allclose(logits, golden["predict/logits"], atol=1e-5)
    probabilities = task.predictions(batch, outputs)["probabilities"][:-1]
    np.testing.assert_allclose(probabilities, golden["predict/probabilities"], atol=1e-5)
    np.testing.assert_allclose(loss_of(task, batch, outputs), golden["predict/loss"], atol=1e-5)
    total, weight = task.statistics(batch, outputs)["eval_loss"]
    np.testing.assert_allclose(total / weight, golden["predict/loss"], atol=1e-5)
    losses = task._example_loss(batch, outputs)[:-1]
    np.testing.assert_allclose(losses, golden["predict/per_example_loss"], atol=1e-5)


def test_gradients_of_every_variable_are_the_originals(case):
    task, model, batch, golden = case
    _, _, found = gradients_of(
        model, lambda: (loss_of(task, batch, model.of_batch(batch, training=False)), None)
    )
    ours = {name: gradient.numpy() for name, gradient in found.items()}
    prefix = "predict/grad/"
    theirs = {k.removeprefix(prefix): golden[k] for k in golden if k.startswith(prefix)}
    assert len(theirs) == 27
    assert_same_gradients(ours, theirs)


def test_classifier_dropout_falls_on_training_alone(case):
    task, model, batch, _ = case
    plain = model.of_batch(batch, training=False)["logits"].numpy()
    model.classifier_dropout, rate = 0.5, model.classifier_dropout
    try:
        *_, evaluated = current().eval_step(task, model)(batch)
        np.testing.assert_allclose(evaluated["logits"], plain, atol=1e-6)
        seed = tf.constant([1, 2], tf.int64)
        assert not np.allclose(model.of_batch(batch, training=True, dropout_seed=seed)["logits"], plain)
    finally:
        model.classifier_dropout = rate
    np.testing.assert_array_equal(task.build_model(model.config).classifier_dropout, 0.1)


def test_accuracy_of_a_batch_leaves_padding_out(case):
    task, model, batch, golden = case
    found = task.statistics(batch, model.of_batch(batch, training=False))
    assert ("eval_accuracy" in found) != (not task.labels)
    if task.labels:
        want = golden["predict/predictions"] == golden["in/label_ids"]
        assert found["eval_accuracy"] == (want.sum(), len(want))


def test_weights_of_labels_count_in_the_loss_alone():
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    batch = {"label_ids": np.array([0, 2, 1, 2], np.int32), "is_real_example": np.array([1, 1, 1, 0])}
    task = ClassificationTask("x", 8, ("a", "b", "c"), 0.1, (1.0, 2.0, 4.0))
    losses = np.log(np.exp(logits).sum(1)) - logits[range(4), batch["label_ids"]]
    loss = loss_of(task, batch, {"logits": tf.constant(logits)})
    assert float(loss) == pytest.approx((losses[:3] * [1, 4, 2]).sum() / 7, rel=1e-5)
    total, count = task.statistics(batch, {"logits": tf.constant(logits)})["eval_loss"]
    assert (float(total), float(count)) == pytest.approx((losses[:3].sum(), 3), rel=1e-5)


@pytest.mark.parametrize("some_have_no_pair", [False, True])
def test_sentence_order_counts_pairs_of_real_rows_alone(some_have_no_pair):
    rows = list(pretraining_rows(4))
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    batch["next_sentence_labels"] = np.array([[1], [0], [1], [1]])
    batch["is_real_example"] = np.array([1, 1, 1, 0])
    batch["segment_ids"][1] = 0  # a single sentence
    logits = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    known = {"sop_logits": tf.constant(logits), "prediction_logits": tf.zeros([4, PREDICTIONS, VOCAB])}
    labels = batch["next_sentence_labels"][:, 0]
    losses = np.log(np.exp(logits).sum(1)) - logits[range(4), labels]
    real = np.array([1, not some_have_no_pair, 1, 0])
    task = PretrainingTask(LENGTH, PREDICTIONS, some_have_no_pair=some_have_no_pair)
    outputs = task.outputs(mock.Mock(of_batch=lambda batch: known), batch)
    expected = {"accuracy": real * (logits.argmax(1) == labels), "loss": real * losses}
    found = task.statistics(batch, outputs)
    for name, values in expected.items():
        total, count = found[f"sentence_order_{name}"]
        assert (float(total), float(count)) == pytest.approx((values.sum(), real.sum()), rel=1e-5)
    assert float(task.loss_weights(batch)["sentence_order"]) == pytest.approx(real.sum(), rel=1e-4)
    found = float(task.loss_sums(batch, outputs)["sentence_order"])
    assert found == pytest.approx((real * losses).sum(), rel=1e-5)
    answers = task.predictions(batch, outputs)["sentence_order"]
    np.testing.assert_array_equal(answers, np.where(real, labels, -1))
