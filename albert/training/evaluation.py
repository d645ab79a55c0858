"""Evaluates and predicts, for any `Task`, and keeps the best checkpoint.

Legend: B batch.
"""

import dataclasses
import functools
import hashlib
import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from albert import modeling
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError
from albert.formats import checkpoints, run_states
from albert.formats.weights import Weights
from albert.model.encoder_options import Depth
from albert.records.record_files import RecordFiles
from albert.storage import files, filesystem
from albert.tasks.task import Task
from albert.training import checkpoint_store, steps
from albert.training.current_engine import current
from albert.training.run_settings import RunConfig, build_model, row_options

log = logging.getLogger("albert")

# From a model, the depth to which it is trained, and what is called now and then and may end the
# run, to further results.
MeasureMore = Callable[[keras.Model, Depth, Callable[[], None]], dict[str, Any]]

BEST_FILE = "best.json"
_FINGERPRINT_BYTES = 64 << 10  # how much of a file's start is read


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of evaluating one checkpoint."""

    results: dict[str, Any]  # metrics, `global_step`, and `loss` where there are labels
    predictions: dict[str, np.ndarray]  # [rows, ...] of the records, in order, without padding


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The last and the best evaluation that this process made."""

    last: Evaluation | None = None
    best: Evaluation | None = None

    def of_step(self, step: int | None) -> Evaluation | None:
        """Returns the evaluation of a checkpoint, if it is kept."""
        kept = (one for one in (self.last, self.best) if one)
        return next((one for one in kept if one.results["global_step"] == step), None)


def what_is_measured(
    task: Task, config: AlbertConfig, run: RunConfig, source: RecordFiles, step: int
) -> dict[str, Any]:
    """Returns everything, besides the weights, on which an evaluation's result depends (as JSON)."""
    spec = task.for_evaluation().feature_spec()
    return {
        "task": task.name,
        "metric": task.best_metric,
        "files": sorted(_fingerprint(path, filesystem.identity(path)) for path in source.paths),
        # A full pass gives the same result for any batch size.
        "batches": [run.max_eval_steps, _batch_size(run)] if run.max_eval_steps else "all",
        "row_length": spec.row_length,
        "masks": spec.complete and repr(spec.complete),
        "layers": run.depth_before(step) or config.num_hidden_layers,
    }


@functools.lru_cache(maxsize=4096)
def _fingerprint(path: str, identity: filesystem.Identity) -> list[Any]:
    """Returns [name, size, digest of the first bytes] of a file, read again if it has changed."""
    size, _ = identity
    [start] = filesystem.read_ranges(path, [(0, min(size, _FINGERPRINT_BYTES))])
    return [os.path.basename(path), size, hashlib.sha256(start).hexdigest()[:16]]


def keep_if_best(
    task: Task, prefix: str, results: Mapping[str, Any], measured: Mapping[str, Any]
) -> bool:
    """Publishes a checkpoint as the best one if it beats the best so far. Returns whether it did.

    The best of earlier processes counts too, if it was evaluated in the same way: see
    `what_is_measured`.
    """
    directory = os.path.dirname(prefix)
    value = float(results[task.best_metric])
    if not math.isfinite(value):
        log.warning("%s is not a finite number at step %s", task.best_metric, results["global_step"])
        return False
    best = read_best(directory)
    changed = best and differences(best, measured)
    if changed:
        log.warning(
            "the best checkpoint so far, of step %s, was evaluated otherwise (%s): the best is "
            "sought anew from step %s on", best["step"], changed, results["global_step"],
        )
    elif best and value <= best["value"]:
        return False
    if os.path.basename(prefix) != checkpoints.BEST:
        checkpoint_store.publish_best(prefix)
    files.write_sealed_json(
        os.path.join(directory, BEST_FILE),
        {
            "metric": task.best_metric, "step": int(results["global_step"]), "value": value,
            "measured": measured,
        },
    )
    return True


def differences(best: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Returns what keeps the values of two evaluations from being compared, or "".

    Args:
      best: what `read_best` returned.
      measured: `what_is_measured` of the other evaluation.
    """
    before = best["measured"]
    names = sorted(set(before) | set(measured))
    return ", ".join(
        name for name in names if not files.is_same_json(before.get(name), measured.get(name))
    )


def read_best(directory: str) -> dict[str, Any] | None:
    """Returns metric, step and value of a run's best checkpoint, or None if none was evaluated.

    `measured` is `what_is_measured`; empty if an earlier version wrote it.
    """
    path = os.path.join(directory, BEST_FILE)
    if not os.path.lexists(path):
        return None
    best = files.read_sealed_json(path)
    if not all(isinstance(best.get(key), int | float) for key in ("step", "value")):
        raise DataError(f"{path}: no step and value of the best checkpoint: remove it")
    measured = best.get("measured") or {}
    if not isinstance(measured, dict):
        raise DataError(f"{path}: unusable measured: remove it")
    return {key: best.get(key) for key in ("metric", "step", "value")} | {"measured": measured}


def batches_of(eval_step: steps.EvalStep, run: RunConfig, source: RecordFiles):
    """Returns batches that can be read again and again. The step's graph is made for them.

    TensorFlow keeps some memory of each pipeline that is made, so a run makes only one.
    """
    batch_size = _batch_size(run)
    spec = eval_step.task.feature_spec()
    run = dataclasses.replace(run, use_xla=False)  # evaluation is a plain graph
    examples = batch_size // current().num_evaluating_replicas
    options = row_options(run, spec, source, examples)
    batches = eval_step.engine.eval_batches(
        source, spec, batch_size=batch_size, vocab_size=eval_step.model.config.vocab_size,
        num_batches=run.max_eval_steps, **options,
    )
    eval_step.prepare(batches)
    return batches


def _batch_size(run: RunConfig) -> int:
    """Returns the rows of an evaluation batch, rounded up so that each replica has equally many."""
    replicas = current().num_evaluating_replicas
    return math.ceil(run.eval_batch_size / replicas) * replicas


def measure(
    eval_step: steps.EvalStep,
    batches,
    source: RecordFiles,
    step: int,
    before_batch: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Evaluates the model as it is. `step` is the training step of its weights."""
    task = eval_step.task
    losses: list[float | None] = []
    sums: dict[str, tuple[float, float]] = {}
    collected: dict[str, list[np.ndarray]] = {}
    with eval_step.engine.blame_data(source):
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
        raise DataError(f"no records to evaluate in {source}")
    results = {name: total / weight if weight else 0.0 for name, (total, weight) in sums.items()}
    if None not in losses:  # without labels there is none
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
    """Returns the task's model with every weight from a checkpoint, and the checkpoint's step.

    Raises:
      CheckpointError: a weight is absent or of another shape.
    """
    checkpoints.check_architecture(run_states.read_run_state(weights.origin), config, weights.origin)
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
    source: RecordFiles,
    weights: Weights,
) -> Evaluation:
    """Evaluates a checkpoint.

    With a `depth_schedule`, the model has as many layers as in the checkpoint's last training
    step. Without labels in the records, only the predictions mean something.
    """
    task = task.for_evaluation()
    source.check(task.feature_spec(), config.vocab_size)
    model, step = load_model(task, config, run, weights)
    eval_step = steps.EvalStep(task, model, run.depth_before(step))
    return measure(eval_step, batches_of(eval_step, run, source), source, step)
