"""Evaluates and predicts, for any `Task`, and keeps the best checkpoint.

Legend: B batch.
"""

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from albert import checkpoints, distribution, files, input_pipeline, modeling, records, steps
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError
from albert.run_config import RunConfig, build_model, row_options
from albert.tasks.task import Task

log = logging.getLogger("albert")

BEST_FILE = "best.json"


def keep_if_best(task: Task, prefix: str, results: Mapping[str, Any]) -> bool:
    """Publishes a checkpoint as the best if it beats the best so far, of earlier processes too."""
    directory = os.path.dirname(prefix)
    value = float(results[task.best_metric])
    if math.isnan(value):
        log.warning("%s is not a number at step %s", task.best_metric, results["global_step"])
        return False
    best = read_best(directory)
    if best and value <= best["value"]:
        return False
    checkpoints.publish_best(prefix)
    files.write_sealed_json(
        os.path.join(directory, BEST_FILE),
        {"metric": task.best_metric, "step": int(results["global_step"]), "value": value},
    )
    return True


def read_best(directory: str) -> dict[str, Any] | None:
    """Returns metric, step and value of a run's best checkpoint, or None if none was evaluated."""
    path = os.path.join(directory, BEST_FILE)
    if not os.path.lexists(path):
        return None
    best = files.read_sealed_json(path)
    if not all(isinstance(best.get(key), int | float) for key in ("step", "value")):
        raise DataError(f"{path}: no step and value of the best checkpoint: remove it")
    return {key: best.get(key) for key in ("metric", "step", "value")}


def batches_of(
    eval_step: steps.EvalStep, run: RunConfig, paths: Sequence[str], full_pass: bool = False
):
    """Returns batches that can be gone through again and again.

    Each pipeline that is made leaves some memory behind in TensorFlow, so a run makes one.
    """
    replicas = distribution.num_evaluating_replicas()
    batch_size = math.ceil(run.eval_batch_size / replicas) * replicas

    spec = eval_step.task.feature_spec()
    run = dataclasses.replace(run, use_xla=False)  # evaluation is a graph
    options = row_options(run, spec, paths, batch_size)

    def make(share):
        return input_pipeline.eval_batches(
            paths,
            spec,
            batch_size=batch_size,
            vocab_size=eval_step.model.config.vocab_size,
            num_batches=0 if full_pass else run.max_eval_steps,
            **options,
            share=share,
        )

    return distribution.distributed(make) if replicas > 1 else make(None)


def measure(
    eval_step: steps.EvalStep,
    batches,
    paths: Sequence[str],
    before_batch: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns (results, predictions [all rows, ...])."""
    task = eval_step.task
    losses: list[float | None] = []
    sums: dict[str, tuple[float, float]] = {}
    collected: dict[str, list[np.ndarray]] = {}
    with input_pipeline.blame_data(paths):
        for batch in batches:
            before_batch()
            loss, pairs, predictions = eval_step(batch)
            losses.append(loss)
            for name, (total, weight) in pairs.items():
                old = sums.get(name, (0.0, 0.0))
                sums[name] = (old[0] + total, old[1] + weight)
            for name, value in predictions.items():
                collected.setdefault(name, []).append(value)
    if not losses:
        raise DataError(f"no records to evaluate in {', '.join(paths)}")
    results = {name: total / weight if weight else 0.0 for name, (total, weight) in sums.items()}
    if None not in losses:  # without labels there is none
        results["loss"] = float(np.mean(losses))
    arrays = {name: np.concatenate(parts) for name, parts in collected.items()}
    return results | task.score(arrays), arrays


def task_of(task: Task) -> Task:
    """Returns the task over the records of an evaluation, which may lack labels."""
    return task.for_evaluation() if hasattr(task, "for_evaluation") else task


def load_model(
    task: Task, config: AlbertConfig, run: RunConfig, weights: checkpoints.Weights
) -> tuple[keras.Model, int]:
    """Returns the task's model with every weight from a checkpoint, and the checkpoint's step.

    Raises:
      CheckpointError: a weight is absent or of another shape.
    """
    checkpoints.check_architecture(checkpoints.read_sidecar(weights.origin), config, weights.origin)
    model = build_model(task, config, run)
    named = modeling.named_weights(model)
    shapes = {name: tuple(v.shape) for name, v in named.items()}
    absent = [name for name in shapes if name not in weights.shapes]
    if absent:
        raise CheckpointError(
            f"{weights.origin} has no {', '.join(absent[:6])}: was it trained for this task?"
        )
    for name, value in checkpoints.warm_start(shapes, weights)[0].items():
        named[name].assign(value)
    step = int(weights.read("global_step")) if "global_step" in weights.shapes else 0
    return model, step


def evaluate(
    task: Task,
    config: AlbertConfig,
    run: RunConfig,
    paths: Sequence[str],
    weights: checkpoints.Weights,
) -> dict[str, Any]:
    """Returns the metrics of a checkpoint, with `loss` and `global_step`."""
    spec = task_of(task).feature_spec()
    records.check_records(paths, spec, vocab_size=config.vocab_size)
    model, step = load_model(task, config, run, weights)
    eval_step = steps.EvalStep(task_of(task), model)
    results = measure(eval_step, batches_of(eval_step, run, paths), paths)[0]
    return results | {"global_step": step}


def predict(
    task: Task,
    config: AlbertConfig,
    run: RunConfig,
    paths: Sequence[str],
    weights: checkpoints.Weights,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the task's predictions for every record, in order, and the results of `evaluate`.

    Padding rows are in neither. The results mean nothing where the records have no labels.
    """
    model, step = load_model(task, config, run, weights)
    eval_step = steps.EvalStep(task_of(task), model)
    batches = batches_of(eval_step, run, paths, full_pass=True)
    results, arrays = measure(eval_step, batches, paths)
    real = arrays["is_real_example"] > 0
    predictions = {name: values[real] for name, values in arrays.items()}
    return predictions, results | {"global_step": step}
