"""Evaluates and predicts, for any `Task`; keeps the best checkpoint.

Legend: B batch.
"""

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from albert import modeling
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError
from albert.formats import checkpoints
from albert.formats.metadata import read_run_state, record_results
from albert.formats.weights import Weights
from albert.records import record_files
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tasks.task import Task
from albert.training import store
from albert.training.run import RunConfig, build_model, current, row_options

log = logging.getLogger("albert")

BEST_FILE = "best.json"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of evaluating one checkpoint."""

    results: dict[str, Any]  # metrics, `global_step`, and `loss` where there are labels
    predictions: dict[str, np.ndarray]  # [records, ...], in order, without padding


def keep_if_best(
    task: Task, run: RunConfig, source: RecordFiles, prefix: str, results: Mapping[str, Any]
) -> bool:
    """Publishes a checkpoint as the best one if it beats the best so far. Returns whether it did.

    The best of earlier processes counts, too, unless something else was measured. With
    `run.keep_last`, the checkpoint replaces any earlier one.
    """
    record_results(prefix, results)
    directory, step = os.path.dirname(prefix), int(results["global_step"])
    value = float(results[task.best_metric])
    if not math.isfinite(value):
        log.warning("%s is not a finite number at step %d", task.best_metric, step)
        return False
    best = read_best(directory)
    if best and (changed := differences(best, task, source)):
        log.warning("the best checkpoint so far, of step %s, was evaluated differently (%s): the search "
                    "for the best starts again at step %d", best["step"], changed, step)
    elif best and value <= best["value"] and not run.keep_last:
        return False
    if os.path.basename(prefix) != checkpoints.BEST:
        store.publish_best(prefix)
    files.write_sealed_json(os.path.join(directory, BEST_FILE),
                            _measured(task, source) | {"step": step, "value": value})
    return True


def _measured(task: Task, source: RecordFiles) -> dict[str, Any]:
    """Returns what two evaluations must share for their results to be compared (as JSON)."""
    files_of = sorted(fingerprint[1:] for fingerprint in source.fingerprints())
    return {"task": task.name, "metric": task.best_metric, "files": files_of}


def differences(best: Mapping[str, Any], task: Task, source: RecordFiles) -> str:
    """Returns the names of what a result of `read_best` does not share with other evaluations."""
    return ", ".join(name for name, value in _measured(task, source).items()
                     if not files.is_same_json(best.get(name), value))


def read_best(directory: str) -> dict[str, Any] | None:
    """Returns step and value of a run's best checkpoint, and what was measured; None if nothing was."""
    path = os.path.join(directory, BEST_FILE)
    if not os.path.lexists(path):
        return None
    best = files.read_sealed_json(path)
    if not all(isinstance(best.get(name), int | float) for name in ("step", "value")):
        raise DataError(f"{path}: no step and value of the best checkpoint: remove it")
    return best


def batches_of(task: Task, config: AlbertConfig, run: RunConfig, source: RecordFiles):
    """Returns batches that can be iterated over repeatedly.

    TensorFlow leaks memory with each pipeline, so a run makes only one.
    """
    replicas, spec = current().num_evaluating_replicas, task.feature_spec()
    run = dataclasses.replace(run, use_xla=False)  # evaluation is a plain graph
    examples = math.ceil(run.eval_batch_size / replicas)  # of each
    return current().eval_batches(
        source, spec, batch_size=examples * replicas, vocab_size=config.vocab_size,
        num_batches=run.max_eval_steps, **row_options(run, spec, source, examples),
    )


def measure(
    task: Task,
    eval_step: Callable[[Any], Any],
    batches: Iterable[Any],
    source: RecordFiles,
    step: int,
    before_batch: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Evaluates a model in its current state; `step` is the training step of its weights.

    Args:
      eval_step: of the engine, with the model.
    """
    losses: list[float] = []
    sums: dict[str, tuple[float, float]] = {}
    collected: dict[str, list[np.ndarray]] = {}
    with record_files.original_errors(source):
        for batch in batches:
            before_batch()
            terms, weights, pairs, predictions = eval_step(batch)
            losses.append(sum(float(terms[name]) / float(weights[name]) for name in terms))
            for name, (total, weight) in pairs.items():
                old = sums.get(name, (0.0, 0.0))
                sums[name] = (old[0] + float(total), old[1] + float(weight))
            for name, value in predictions.items():
                collected.setdefault(name, []).append(np.asarray(value))
    if not losses:
        raise DataError(f"no records to evaluate in {source}")
    results = {name: total / weight if weight else 0.0 for name, (total, weight) in sums.items()}
    if terms:  # else the records have no labels
        results["loss"] = float(np.mean(losses))
    predictions = {name: np.concatenate(parts) for name, parts in collected.items()}
    if "is_real_example" in predictions:
        real = predictions.pop("is_real_example") > 0
        predictions = {name: values[real] for name, values in predictions.items()}
    results |= task.score(predictions)
    return Evaluation(results | {"global_step": step}, predictions)


def load_model(
    task: Task, config: AlbertConfig, run: RunConfig, weights: Weights
) -> tuple[keras.Model, int]:
    """Returns the task's model with all weights from a checkpoint, and the checkpoint's step.

    Raises:
      CheckpointError: a weight is missing or has another shape.
    """
    checkpoints.check_architecture(read_run_state(weights.origin), config, weights.origin)
    model = build_model(task, config, run)
    named = modeling.named_weights(model)
    shapes = {name: tuple(v.shape) for name, v in named.items()}
    tensors, summary = checkpoints.warm_start(shapes, weights)
    if absent := summary["new"]:
        raise CheckpointError(
            f"{weights.origin} has no {', '.join(absent[:6])}: was it trained for this task?"
        )
    for name, value in tensors.items():
        named[name].assign(value)
    step = int(weights.read("global_step")) if "global_step" in weights.shapes else 0
    return model, step


def evaluate(
    task: Task, config: AlbertConfig, run: RunConfig, source: RecordFiles, weights: Weights
) -> Evaluation:
    """Evaluates a checkpoint.

    Without labels in the records, only the predictions are meaningful.
    """
    task = task.for_evaluation()
    source.check(task.feature_spec(), config.vocab_size)
    model, step = load_model(task, config, run, weights)
    batches = batches_of(task, config, run, source)
    return measure(task, current().eval_step(task, model, batches), batches, source, step)
