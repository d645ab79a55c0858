"""The only loop in the repository: train, evaluate, predict, for any `Task`.

Legend: B batch.
"""

import dataclasses
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert import __version__, checkpoints, files, input_pipeline, records, summaries
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError, Preempted, TrainingDivergedError
from albert.guards import DivergenceGuard, PreemptionLatch
from albert.modeling import named_weights
from albert.optimization import OptimizerConfig, create_optimizer, global_norm
from albert.tasks.task import Task

log = logging.getLogger("albert")

# One call into TensorFlow lasts about this long at most, so that a signal is
# answered soon whatever --iterations_per_loop says.
SECONDS_PER_CALL = 1.0
# Columns of a training step's row before the task's (sum, weight) pairs.
_LOSS, _NORM, _RATE, _BAD, _TOKENS, _PAIRS = range(6)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """How a run goes, apart from what is trained; every value comes from a flag."""

    output_dir: str
    num_train_steps: int = 1000  # the step at which training is done
    train_batch_size: int = 32  # sequences of a step
    eval_batch_size: int = 8  # sequences of an evaluation or prediction batch
    save_checkpoints_steps: int = 1000  # steps between checkpoints
    keep_checkpoint_max: int = 5  # newest checkpoints kept; 0 keeps all
    iterations_per_loop: int = 1000  # most steps in one call into TensorFlow
    log_steps: int = 100  # steps between lines of metrics
    seed: int = 12345  # everything random derives from it
    max_eval_steps: int = 0  # evaluation batches; 0 is one full pass
    use_xla: bool = False  # compile the step
    mixed_precision: str = "float32"  # of the matrix products


class TrainState:
    """Model, optimizer and step, each under its name in a checkpoint."""

    def __init__(
        self, task: Task, config: AlbertConfig, run: RunConfig, optimizer: OptimizerConfig
    ):
        self.model = build_model(task, config, run)
        self.weights = named_weights(self.model)
        self.optimizer = create_optimizer(optimizer)
        # Everything exists before anything is restored into it.
        self.optimizer.build(list(self.weights.values()))
        self.slots = self.optimizer.named_slots(self.weights)
        # Scale of the loss in half precision, whose gradients underflow without it.
        half = run.mixed_precision == "float16"
        self.loss_scale = tf.Variable([2.0**15 if half else 1.0, 0.0], trainable=False)

    @property
    def step(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        named = self.weights | self.slots
        return {name: tuple(v.shape) for name, v in named.items()} | {"global_step": ()}

    def tensors(self) -> dict[str, Any]:
        named = {name: v.value for name, v in (self.weights | self.slots).items()}
        return named | {"global_step": np.int64(self.step)}

    def assign(self, tensors: Mapping[str, np.ndarray]) -> None:
        named = self.weights | self.slots | {"global_step": self.optimizer.iterations}
        for name, value in tensors.items():
            named[name].assign(value)


class _Window:
    """Averages since the last line of metrics, step by step in the same order on every run."""

    def __init__(self, names: Sequence[str], state: Mapping[str, Any] | None = None):
        self._names = names
        self._sums = list(state["sums"]) if state else [0.0] * (_PAIRS + 2 * len(names))
        self.steps = state["steps"] if state else 0

    def add(self, row: np.ndarray) -> None:
        self._sums = [total + float(x) for total, x in zip(self._sums, row, strict=True)]
        self.steps += 1
        self._last_rate = float(row[_RATE])

    def state(self) -> dict[str, Any]:
        return {"sums": self._sums, "steps": self.steps}

    def flush(self) -> dict[str, float]:
        """Returns the averages and starts anew."""
        values = {
            "loss": self._sums[_LOSS] / self.steps,
            "gradient_norm": self._sums[_NORM] / self.steps,
            "learning_rate": self._last_rate,
            "skipped_steps": self._sums[_BAD],
        }
        for i, name in enumerate(self._names):
            total, weight = self._sums[_PAIRS + 2 * i : _PAIRS + 2 * i + 2]
            values[name] = total / weight if weight else 0.0
        self.tokens = self._sums[_TOKENS]
        self._sums, self.steps = [0.0] * len(self._sums), 0
        return values


def build_model(task: Task, config: AlbertConfig, run: RunConfig) -> keras.Model:
    """Returns the task's model, initialised from the seed, in the run's precision."""
    policy = run.mixed_precision
    keras.config.set_dtype_policy(policy if policy == "float32" else f"mixed_{policy}")
    keras.utils.set_random_seed(run.seed)
    return task.build_model(config)


def _loss(task: Task, batch, outputs) -> tf.Tensor:
    weights, sums = task.loss_weights(batch), task.loss_sums(batch, outputs)
    return tf.add_n([sums[name] / weights[name] for name in sums])


def _make_train_steps(task: Task, state: TrainState, run: RunConfig):
    """Returns (train_steps, names of the statistics).

    `train_steps(iterator, count)` makes `count` steps in one graph and returns
    a row [columns] for each; the names are known after its first call.
    """
    names: list[str] = []
    variables = [v.value for v in state.weights.values()]
    dynamic_scale = run.mixed_precision == "float16"
    schedule = state.optimizer._learning_rate

    def gradients(batch, step, scale):
        with tf.GradientTape() as tape:
            seed = tf.stack([tf.constant(run.seed, tf.int64), step])
            outputs = state.model(batch, training=True, dropout_seed=seed)
            loss = _loss(task, batch, outputs)
            scaled = loss * scale
        # Dense: a sum over the slices of an embedding gradient is not its norm.
        grads = [
            None if g is None else tf.convert_to_tensor(g) / scale
            for g in tape.gradient(scaled, variables)
        ]
        norm = global_norm(grads)
        pairs = task.statistics(batch, outputs)
        names[:] = sorted(pairs)
        flat = [tf.cast(x, tf.float32) for name in names for x in pairs[name]]
        return loss, norm, grads, flat

    # With XLA the update is compiled too: on small models half the time is its small ops.
    @tf.function(jit_compile=run.use_xla, reduce_retracing=True)
    def train_step(batch):
        step = tf.cast(state.optimizer.iterations.value, tf.int64)
        scale = state.loss_scale[0]
        loss, norm, grads, flat = gradients(batch, step, scale)
        finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        # The optimizer skips the update when a gradient is not finite.
        poison = tf.where(finite, 1.0, float("nan"))
        rate = schedule(step)
        kept = [(g, v) for g, v in zip(grads, state.weights.values(), strict=True) if g is not None]
        state.optimizer.apply([g * poison for g, _ in kept], [v for _, v in kept])
        bad = ~finite
        if dynamic_scale:
            bad &= scale <= 1.0
            _update_loss_scale(state.loss_scale, finite)
        tokens = tf.reduce_sum(batch["input_mask"])
        head = [loss, norm, rate, tf.cast(bad, tf.float32), tf.cast(tokens, tf.float32)]
        return tf.stack([*head, *flat])

    @tf.function(reduce_retracing=True)
    def train_steps(iterator, count):
        rows = tf.TensorArray(tf.float32, size=count)
        for i in tf.range(count):
            rows = rows.write(i, train_step(next(iterator)))
        return rows.stack()

    return train_steps, names


def _update_loss_scale(loss_scale: tf.Variable, finite: tf.Tensor) -> None:
    """Halves the scale after an overflow, doubles it after 2,000 steps without one."""
    scale, good = loss_scale[0], loss_scale[1]
    grow = finite & (good >= 1999.0)
    scale = tf.where(finite, tf.where(grow, scale * 2.0, scale), tf.maximum(scale / 2.0, 1.0))
    good = tf.where(finite & ~grow, good + 1.0, 0.0)
    loss_scale.assign([scale, good])


def train(
    task: Task,
    config: AlbertConfig,
    run: RunConfig,
    optimizer: OptimizerConfig,
    train_files: Sequence[str],
    *,
    eval_files: Sequence[str] = (),
    init: checkpoints.Weights | None = None,
    warm_start_options: Mapping[str, bool] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains to `run.num_train_steps` and returns the last evaluation's results.

    With `eval_files` every checkpoint is evaluated, and the best by
    `task.best_metric` is kept as `model.ckpt-best`.

    Raises:
      DataError, CheckpointError, RunDirBusyError: nothing was written.
      TrainingDivergedError: the last good checkpoint is kept.
      Preempted: a signal came; everything is saved.
    """
    spec = task.feature_spec()
    num_records = sum(records.check_records(train_files, spec, vocab_size=config.vocab_size))
    with files.lock_run_dir(run.output_dir), PreemptionLatch() as latch:
        loop = _Loop(task, config, run, optimizer, eval_files, flags or {})
        loop.start(init, warm_start_options or {})
        batches = input_pipeline.train_batches(
            train_files,
            spec,
            num_records=num_records,
            batch_size=run.train_batch_size,
            vocab_size=config.vocab_size,
            seed=run.seed,
            position=loop.records_seen,
        )
        try:
            loop.run_to_end(iter(batches), latch)
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise DataError(input_pipeline.explain_failure(train_files, error)) from error
        return loop.results


class _Loop:
    """One training run: state, its position in the data, and what it tells."""

    def __init__(self, task, config, run, optimizer, eval_files, flags):
        self.task, self.config, self.run = task, config, run
        self.eval_files, self.flags = eval_files, flags
        self.state = TrainState(task, config, run, optimizer)
        self.guard = DivergenceGuard()
        self.records_seen = 0
        self.results: dict[str, Any] = {}
        self.last_checkpoint: str | None = None
        self.window: _Window | None = None
        self._window_state: dict[str, Any] | None = None
        self._evaluator = None

    def start(self, init: checkpoints.Weights | None, options: Mapping[str, bool]) -> None:
        # Where training starts, first that applies:
        #   1. the newest sound checkpoint of output_dir (same command = go on)
        #   2. --init_checkpoint or a hub module: weights only, with an account
        #   3. random weights
        run, state = self.run, self.state
        found = checkpoints.read_newest(
            run.output_dir, state.shapes(), self.config, self.task.name
        )
        if found:
            prefix, tensors, sidecar = found
            state.assign(tensors)
            self._restore_sidecar(sidecar)
            self.last_checkpoint = prefix
            origin = f"where {prefix} left off"
        elif init is not None:
            shapes = {name: tuple(v.shape) for name, v in state.weights.items()}
            tensors, account = checkpoints.warm_start(shapes, init, **options)
            state.assign(tensors)
            files.write_json(os.path.join(run.output_dir, "warm_start.json"), account)
            origin = checkpoints.describe(account)
        else:
            origin = "random weights"
        path = os.path.join(run.output_dir, "albert_config.json")
        with files.atomic_write(path) as stream:
            stream.write(self.config.to_json_string())
        size = sum(int(np.prod(v.shape)) for v in state.weights.values())
        log.info(
            "%s: %s parameters, steps %d to %d of %d sequences, %s, %s, into %s",
            self.task.name, f"{size:,}", state.step, run.num_train_steps, run.train_batch_size,
            "XLA" if run.use_xla else "graph", run.mixed_precision, run.output_dir,
        )
        log.info("start: %s", origin)

    def _restore_sidecar(self, sidecar: Mapping[str, Any]) -> None:
        step = self.state.step
        # A checkpoint of the original toolkit has no sidecar.
        self.records_seen = sidecar.get("records_seen", step * self.run.train_batch_size)
        self._window_state = sidecar.get("window")
        if "loss_scale" in sidecar and self.run.mixed_precision == "float16":
            self.state.loss_scale.assign(sidecar["loss_scale"])
        before = sidecar.get("flags", {})
        for name in sorted(set(before) & set(self.flags)):
            if before[name] != self.flags[name]:
                log.warning(
                    "--%s changed from %s to %s since step %d",
                    name, before[name], self.flags[name], step,
                )

    def run_to_end(self, iterator, latch: PreemptionLatch) -> None:
        run, state = self.run, self.state
        train_steps, names = _make_train_steps(self.task, state, run)
        writer = summaries.MetricsWriter(run.output_dir, state.step)
        progress = summaries.Progress(self.task.name, state.step, run.num_train_steps)
        if state.step >= run.num_train_steps:
            log.info("already trained to step %d", state.step)
        chunk = 1
        try:
            if self._is_due(state.step) and not writer.has(state.step, "eval"):
                # The last process was stopped between the checkpoint and its evaluation.
                self._evaluate(state.step, writer)
            window_start = time.monotonic()
            while state.step < run.num_train_steps:
                step = state.step
                count = min(chunk, _until(step, run))
                started = time.monotonic()
                rows = train_steps(iterator, tf.constant(count)).numpy()
                seconds = max(time.monotonic() - started, 1e-6)
                chunk = max(1, min(run.iterations_per_loop, int(SECONDS_PER_CALL * count / seconds)))
                if self.window is None:
                    self.window = _Window(names, self._window_state)
                self._take_note(step, rows)
                step += count
                progress.update(step, f", loss {rows[-1][_LOSS]:.3f}")
                if step % run.log_steps == 0 or step == run.num_train_steps:
                    values = self.window.flush()
                    elapsed = max(time.monotonic() - window_start, 1e-6)
                    values["tokens_per_second"] = round(self.window.tokens / elapsed, 1)
                    window_start = time.monotonic()
                    progress.clear()
                    _log_step(step, values)
                    writer.write(step, "train", values)
                # Not in the middle of bad steps, where it might push out a good one.
                due = self._is_due(step) and (
                    not self.guard.in_bad_streak or step == run.num_train_steps
                )
                if due or latch.raised:
                    progress.clear()
                    self._save()
                if latch.raised:
                    message = f"preempted at step {step}, saved {self.last_checkpoint}"
                    raise Preempted(message, latch.raised)
                if due:
                    started = time.monotonic()
                    self._evaluate(step, writer)
                    window_start += time.monotonic() - started
        finally:
            progress.clear()
            writer.close()

    def _is_due(self, step: int) -> bool:
        """Whether a checkpoint, and its evaluation, belongs to this step."""
        return step > 0 and (
            step % self.run.save_checkpoints_steps == 0 or step == self.run.num_train_steps
        )

    def _take_note(self, step: int, rows: np.ndarray) -> None:
        for i, row in enumerate(rows):
            self.window.add(row)
            self.records_seen += self.run.train_batch_size
            if row[_BAD]:
                log.warning("step %d skipped: loss %s, gradient norm %s",
                            step + i + 1, row[_LOSS], row[_NORM])
            try:
                self.guard.check(step + i + 1, row[_BAD] > 0, row[_LOSS], row[_NORM])
            except TrainingDivergedError as error:
                kept = self.last_checkpoint or "none was written"
                raise TrainingDivergedError(f"{error}; last good checkpoint: {kept}") from error

    def _save(self) -> None:
        sidecar = {
            "task": self.task.name,
            "config": self.config.to_dict(),
            "records_seen": self.records_seen,
            "window": self.window.state(),
            "loss_scale": self.state.loss_scale.numpy().tolist(),
            "flags": dict(self.flags),
            "version": __version__,
        }
        run, state = self.run, self.state
        self.last_checkpoint = checkpoints.save(
            run.output_dir, state.step, state.tensors(), sidecar, run.keep_checkpoint_max
        )
        log.info("saved %s", self.last_checkpoint)

    def _evaluate(self, step: int, writer: summaries.MetricsWriter) -> None:
        if not self.eval_files:
            return
        if self._evaluator is None:
            self._evaluator = _make_eval_step(self.task, self.state.model)
        started = time.monotonic()
        self.results = _evaluate(
            self._evaluator, self.state.model, self.task, self.run, self.eval_files
        )[0]
        self.results["global_step"] = step
        writer.write(step, "eval", _scalars(self.results))
        summaries.log_results(self.results)
        log.info("evaluated in %s", summaries.duration(time.monotonic() - started))
        keep_if_best(self.task, self.last_checkpoint, self.results)


def _until(step: int, run: RunConfig) -> int:
    """Returns the steps left until something is due."""
    due = [run.num_train_steps - step]
    due += [every - step % every for every in (run.save_checkpoints_steps, run.log_steps)]
    return min(due)


def _log_step(step: int, values: Mapping[str, float]) -> None:
    shown = ", ".join(f"{k} {v:.4g}" for k, v in values.items() if k != "skipped_steps")
    log.info("step %d: %s", step, shown)


def keep_if_best(task: Task, prefix: str, results: Mapping[str, Any]) -> bool:
    """Publishes a checkpoint as the best if it beats the best so far, which outlives the process."""
    path = os.path.join(os.path.dirname(prefix), "best.json")
    value = float(results[task.best_metric])
    if os.path.exists(path) and value <= files.read_json(path)["value"]:
        return False
    checkpoints.publish_best(prefix)
    files.write_json(
        path, {"metric": task.best_metric, "step": int(results["global_step"]), "value": value}
    )
    return True


def _scalars(results: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in results.items() if isinstance(v, int | float) and k != "global_step"}


def _make_eval_step(task: Task, model: keras.Model):
    @tf.function(reduce_retracing=True)
    def eval_step(batch):
        outputs = model(batch, training=False)
        pairs = task.statistics(batch, outputs)
        return _loss(task, batch, outputs), pairs, task.predictions(batch, outputs)

    return eval_step


def _evaluate(
    eval_step, model: keras.Model, task: Task, run: RunConfig, paths: Sequence[str], full_pass: bool = False
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns (results, predictions [all rows, ...])."""
    batches = input_pipeline.eval_batches(
        paths,
        task.feature_spec(),
        batch_size=run.eval_batch_size,
        vocab_size=model.config.vocab_size,
        num_batches=0 if full_pass else run.max_eval_steps,
    )
    losses, sums, collected = [], {}, {}
    try:
        for batch in batches:
            loss, pairs, predictions = eval_step(batch)
            losses.append(float(loss))
            for name, (total, weight) in pairs.items():
                old = sums.get(name, (0.0, 0.0))
                sums[name] = (old[0] + float(total), old[1] + float(weight))
            for name, value in predictions.items():
                collected.setdefault(name, []).append(value.numpy())
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        raise DataError(input_pipeline.explain_failure(paths, error)) from error
    if not losses:
        raise DataError(f"no records to evaluate in {', '.join(paths)}")
    results = {name: total / weight if weight else 0.0 for name, (total, weight) in sums.items()}
    results["loss"] = float(np.mean(losses))
    arrays = {name: np.concatenate(parts) for name, parts in collected.items()}
    return results | task.score(arrays), arrays


def load_model(
    task: Task, config: AlbertConfig, run: RunConfig, weights: checkpoints.Weights
) -> tuple[keras.Model, int]:
    """Returns the task's model with every weight from a checkpoint, and the checkpoint's step.

    Raises:
      CheckpointError: a weight is absent or of another shape.
    """
    checkpoints.check_architecture(checkpoints.read_sidecar(weights.origin), config, weights.origin)
    model = build_model(task, config, run)
    named = named_weights(model)
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
    records.check_records(paths, task.feature_spec(), vocab_size=config.vocab_size)
    model, step = load_model(task, config, run, weights)
    results = _evaluate(_make_eval_step(task, model), model, task, run, paths)[0]
    return results | {"global_step": step}


def predict(
    task: Task,
    config: AlbertConfig,
    run: RunConfig,
    paths: Sequence[str],
    weights: checkpoints.Weights,
) -> dict[str, np.ndarray]:
    """Returns the task's predictions for every record, in order, without padding rows."""
    model, _ = load_model(task, config, run, weights)
    arrays = _evaluate(_make_eval_step(task, model), model, task, run, paths, full_pass=True)[1]
    real = arrays["is_real_example"] > 0
    return {name: values[real] for name, values in arrays.items()}
