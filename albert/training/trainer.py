"""The only training loop in the repository, for any `Task`."""

import contextlib
import dataclasses
import logging
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert import __version__, modeling
from albert.config import AlbertConfig
from albert.data import files, input_pipeline, temporaries
from albert.data.examples import FeatureSpec
from albert.data.record_files import RecordFiles
from albert.errors import Preempted, TrainingDivergedError, some
from albert.formats import checkpoints, tensor_bundle
from albert.optimization import OptimizerConfig, create_optimizer
from albert.tasks.task import Task
from albert.training import checkpoint_store, distribution, evaluation, steps, summaries
from albert.training.guards import DivergenceGuard, PreemptionLatch
from albert.training.pace import Averages, NoWriter, Pace
from albert.training.run_settings import RunConfig, build_model, row_options

log = logging.getLogger("albert")


class TrainState:
    """Model, optimizer and step, each under its name in a checkpoint."""

    def __init__(
        self, task: Task, config: AlbertConfig, run: RunConfig, optimizer: OptimizerConfig
    ):
        self.model = build_model(task, config, run)
        self.weights = modeling.named_weights(self.model)
        # The step sums over replicas itself: it needs the norm of the sum.
        self.optimizer = create_optimizer(optimizer, sums_over_replicas=False)
        # Everything exists before anything is restored into it.
        self.optimizer.build(list(self.weights.values()))
        self.slots = self.optimizer.named_slots(self.weights)
        # Scale of the loss in half precision, whose gradients underflow without it.
        half = run.mixed_precision == "float16"
        self.loss_scale = tf.Variable(
            [2.0**15 if half else 1.0, 0.0],
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        # Oldest first; not a number where there was none yet.
        self.recent_losses = tf.Variable(
            [float("nan")] * steps.SPIKE_WINDOW,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    @property
    def step(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        named = self.weights | self.slots
        return {name: tuple(v.shape) for name, v in named.items()} | {"global_step": ()}

    def tensors(self) -> dict[str, Any]:
        named = {name: v.value for name, v in (self.weights | self.slots).items()}
        return named | {"global_step": np.int64(self.step)}

    def not_finite(self) -> list[str]:
        """Returns the names of weights and moments that hold an infinity or no number."""
        named = self.weights | self.slots
        return [n for n, v in named.items() if not tf.reduce_all(tf.math.is_finite(v.value))]

    def assign(self, tensors: Mapping[str, np.ndarray]) -> None:
        named = self.weights | self.slots | {"global_step": self.optimizer.iterations}
        for name, value in tensors.items():
            named[name].assign(value)


def train(
    task: Task,
    config: AlbertConfig,
    run: RunConfig,
    optimizer: OptimizerConfig,
    train_files: RecordFiles,
    *,
    eval_files: RecordFiles | None = None,
    init: tensor_bundle.Weights | None = None,
    warm_start_options: Mapping[str, bool] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> evaluation.Evaluated:
    """Trains to `run.last_step` and returns what it evaluated.

    With `eval_files` every checkpoint is evaluated, and the best by
    `task.best_metric` is kept as `model.ckpt-best`.

    Raises:
      DataError, CheckpointError, RunDirBusyError: nothing was written.
      TrainingDivergedError: the last good checkpoint is kept.
      Preempted: a signal came; everything is saved.
    """
    if run.use_xla is None:
        run = dataclasses.replace(run, use_xla=distribution.has_gpu())
    spec = task.feature_spec()
    distribution.check_batch_size(run.train_batch_size, run.gradient_accumulation_steps)
    train_files.check(spec, config.vocab_size)
    if eval_files:
        eval_files.check(task.for_evaluation().feature_spec(), config.vocab_size)
    chief = distribution.is_chief()
    own = temporaries.lock_run_dir(run.output_dir) if chief else contextlib.nullcontext()
    with own, PreemptionLatch() as latch:
        loop = _Loop(task, config, run, optimizer, eval_files, flags or {}, train_files.count)
        loop.start(init, warm_start_options or {})
        sizes = {os.path.basename(path): os.path.getsize(path) for path in train_files.paths}
        facts = {f"--{name}": value for name, value in (flags or {}).items()}
        distribution.check_agreement(
            facts | {"input files": sizes, f"step in {run.output_dir}": loop.state.step}
        )
        batches = _batches(run, spec, train_files, config.vocab_size, loop.records_seen)
        with (
            input_pipeline.blame_data(*filter(None, (train_files, eval_files))),
            distribution.blame_workers(lambda: loop.last_checkpoint or "the start"),
        ):
            loop.run_to_end(iter(batches), latch)
        return loop.evaluated


def _batches(
    run: RunConfig, spec: FeatureSpec, source: RecordFiles, vocab_size: int, position: int
):
    """Returns the strategy's view of the batches that come after `position` records."""
    options = row_options(run, spec, source, run.train_batch_size)
    log.info(
        "rows: %s",
        "packed" if "packed_rows" in options else "cut" if options["is_cut"] else "whole",
    )
    return distribution.distributed(
        lambda share: input_pipeline.train_batches(
            source, spec, batch_size=run.train_batch_size, vocab_size=vocab_size, seed=run.seed,
            position=position, **options, share=share,
        )
    )


class _Loop:
    """One training run: state, its position in the data, and what it tells."""

    def __init__(self, task, config, run, optimizer, eval_files, flags, num_records):
        self.task, self.config, self.run = task, config, run
        self.num_records = num_records  # of an epoch
        self.eval_files, self.flags = eval_files, flags
        self.state = TrainState(task, config, run, optimizer)
        self.is_chief = distribution.is_chief()
        self.guard = DivergenceGuard()
        self.records_seen = 0
        self.evaluated = evaluation.Evaluated()
        self.last_checkpoint: str | None = None
        self.averages = self._new_averages(None)
        self._evaluator: steps.EvalStep | None = None
        self._depth: int | None = None  # layers that the next step has; None: all
        self._eval_batches = None

    def start(self, init: tensor_bundle.Weights | None, options: Mapping[str, bool]) -> None:
        # Where training starts, first that applies:
        #   1. the newest sound checkpoint of output_dir (same command = go on)
        #   2. --init_checkpoint or a hub module: weights only, with an account
        #   3. random weights
        run, state = self.run, self.state
        found = checkpoint_store.read_newest(
            run.output_dir, state.shapes(), self.config, self.task.name,
            may_set_aside=self.is_chief,
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
            if self.is_chief:
                files.write_json(os.path.join(run.output_dir, "warm_start.json"), account)
            origin = checkpoints.describe_start(account)
        else:
            origin = "random weights"
        if self.is_chief:
            path = os.path.join(run.output_dir, "albert_config.json")
            with files.atomic_write(path) as stream:
                stream.write(self.config.to_json_string())
        size = sum(int(np.prod(v.shape)) for v in state.weights.values())
        log.info(
            "%s: %s parameters, steps %d to %d of %d sequences, %s, %s, into %s",
            self.task.name, f"{size:,}", state.step, run.last_step, run.train_batch_size,
            "compiled by XLA" if run.use_xla else "not compiled", run.mixed_precision,
            run.output_dir,
        )
        log.info("start: %s", origin)

    def _restore_sidecar(self, sidecar: Mapping[str, Any]) -> None:
        step = self.state.step
        if not sidecar:  # a checkpoint of the original toolkit, or its sidecar was lost
            log.warning(
                "no model.ckpt-%d.json: data position and averages are taken from the step", step
            )
        self.records_seen = sidecar.get("records_seen", step * self.run.train_batch_size)
        self.averages = self._new_averages(sidecar.get("window"))
        before = sidecar.get("flags", {})
        # In the other precisions the scale is 1, and no start for this one.
        had_scale = before.get("mixed_precision", "float16") == "float16"
        if "loss_scale" in sidecar and had_scale and self.run.mixed_precision == "float16":
            self.state.loss_scale.assign(sidecar["loss_scale"])
        losses = sidecar.get("recent_losses", [])[-steps.SPIKE_WINDOW :]
        missing = steps.SPIKE_WINDOW - len(losses)
        self.state.recent_losses.assign([float("nan")] * missing + losses)
        self.guard.restore(sidecar.get("skipped", {}))
        for name in sorted(set(before) & set(self.flags)):
            if not files.is_same_json(before[name], self.flags[name]):
                log.warning(
                    "--%s changed from %s to %s since step %d",
                    name, before[name], self.flags[name], step,
                )

    def run_to_end(self, iterator, latch: PreemptionLatch) -> None:
        run, state = self.run, self.state
        train_steps: steps.TrainSteps | None = None
        chief = self.is_chief
        writer = summaries.MetricsWriter(run.output_dir, state.step) if chief else NoWriter()
        progress = summaries.Progress(self.task.name, state.step, run.last_step)
        if state.step >= run.last_step:
            log.info("already trained to step %d", state.step)
        pace = Pace(run.iterations_per_loop)
        try:
            if self._is_due(state.step) and not writer.has(state.step, "eval"):
                # The last process was stopped between the checkpoint and its evaluation.
                self._set_depth(state.step - 1)  # of `RunConfig.depth_before`
                self._evaluate(state.step, writer, latch)
            window_start = time.monotonic()
            has_stalled = self._has_stalled(state.step, writer)
            while state.step < run.last_step and not has_stalled:
                step = state.step
                if self._set_depth(step) or train_steps is None:
                    train_steps = steps.TrainSteps(self.task, state, run, self._depth)
                count = min(pace.count, _until(step, run))
                started = time.monotonic()
                control = pace.control(latch.raised, chief)
                rows, agreed = train_steps(iterator, tf.constant(count), tf.constant(control))
                rows = rows.numpy()
                must_stop = pace.update(count, time.monotonic() - started, agreed.numpy(), latch)
                self._take_note(step, rows)
                step += count
                progress.update(step, f", loss {rows[-1][steps.LOSS]:.3f}")
                if step % run.log_steps == 0 or step == run.last_step:
                    progress.clear()
                    ended = time.monotonic()
                    self._tell(step, ended - window_start, writer)
                    window_start = ended
                # Not in the middle of bad steps, where it might push out a good one.
                due = self._is_due(step) and (
                    not self.guard.in_bad_streak or step == run.last_step
                )
                if due or must_stop:
                    progress.clear()
                    self._save()
                if must_stop:
                    raise self._preempted(latch, step)
                if due:
                    started = time.monotonic()
                    self._evaluate(step, writer, latch)
                    has_stalled = self._has_stalled(step, writer)
                    window_start += time.monotonic() - started
        finally:
            progress.clear()
            writer.close()

    def _tell(self, step: int, seconds: float, writer: summaries.MetricsWriter) -> None:
        """Writes the averages since the last time, which was so long ago."""
        seconds = max(seconds, 1e-6)
        values = self.averages.flush()
        values["tokens_per_second"] = round(self.averages.tokens / seconds, 1)
        values["seconds"] = round(seconds, 3)
        _log_step(step, values)
        writer.write(step, "train", values)

    def _new_averages(self, state: Mapping[str, Any] | None) -> Averages:
        names = sorted(self.task.statistic_names)
        return Averages(names, state, self.run.mixed_precision == "float16")

    def _measured(self, step: int) -> dict[str, Any]:
        """Returns what the evaluation of `step` is an evaluation of."""
        return evaluation.what_is_measured(
            self.task, self.config, self.run, self.eval_files, step
        )

    def _set_depth(self, step: int) -> bool:
        """Sets how many layers the step after `step` has; returns whether there are others."""
        depth = self.run.depth_at(step)
        if self._depth == depth:
            return False
        self._depth = depth
        self._evaluator = None  # it is traced with the layers of before
        log.info("step %d: %d layers", step, depth or self.config.num_hidden_layers)
        return True

    def _preempted(self, latch: PreemptionLatch, step: int) -> Preempted:
        """Returns what ends the run when everything of `step` is saved."""
        message = f"preempted at step {step}, saved {self.last_checkpoint}"
        return Preempted(message, latch.raised or signal.SIGTERM)

    def _is_due(self, step: int) -> bool:
        """Whether a checkpoint, and its evaluation, belongs to this step."""
        return step > 0 and (
            step % self.run.save_checkpoints_steps == 0 or step == self.run.last_step
        )

    def _has_stalled(self, step: int, writer: summaries.MetricsWriter) -> bool:
        """Whether the last evaluations brought nothing; depends on the run's files alone."""
        if not self.run.early_stopping_patience:
            return False
        return distribution.any_worker(self.is_chief and self._is_out_of_patience(step, writer))

    def _is_out_of_patience(self, step: int, writer: summaries.MetricsWriter) -> bool:
        patience = self.run.early_stopping_patience
        if not writer.has(step, "eval"):
            return False
        best = evaluation.read_best(self.run.output_dir)
        if best and not evaluation.is_comparable(best, self._measured(step)):
            return False
        best_step = best["step"] if best else 0
        if sum(evaluated > best_step for evaluated in writer.steps("eval")) < patience:
            return False
        log.info(
            "stopped early at step %d: %s has not risen in %d evaluations, best at step %d",
            step, self.task.best_metric, patience, best_step,
        )
        return True

    def _take_note(self, step: int, rows: np.ndarray) -> None:
        for i, row in enumerate(rows):
            self.averages.add(row)
            first = self.records_seen
            self.records_seen += self.run.train_batch_size
            if row[steps.BAD]:
                log.warning("step %d skipped: loss %s, gradient norm %s, %s", step + i + 1,
                            row[steps.LOSS], row[steps.NORM], self._describe_batch(first))
            elif row[steps.OVERFLOW]:
                log.info("step %d skipped: its gradient overflows float16; the loss scale is "
                         "halved", step + i + 1)
            try:
                self.guard.check(step + i + 1, row[steps.BAD] > 0, row[steps.LOSS], row[steps.NORM])
            except TrainingDivergedError as error:
                raise self._diverged(f"{error}; {self._describe_batch(first)}") from error

    def _diverged(self, what: str) -> TrainingDivergedError:
        kept = self.last_checkpoint or "none was written"
        return TrainingDivergedError(f"{what}; last good checkpoint: {kept}")

    def _describe_batch(self, first: int) -> str:
        """Returns which records a batch is made of, in the shuffled order of their epoch."""
        epoch, start = divmod(first, self.num_records)
        return f"records {start:,} to {start + self.run.train_batch_size - 1:,} of epoch {epoch:,}"

    def _save(self) -> None:
        """Saves everything of this step.

        Raises:
          TrainingDivergedError: a weight is no number; nothing was written.
        """
        # Finite gradients may still lead beyond the largest number, at a high rate.
        lost = self.state.not_finite()
        if lost:
            raise self._diverged(
                f"training diverged at step {self.state.step}: not finite: "
                f"{some(lost)}. A lower --learning_rate may help"
            )
        sidecar = {
            "task": self.task.name,
            "architecture": type(self.state.model).__name__,
            "config": self.config.to_dict(),
            "records_seen": self.records_seen,
            "window": self.averages.state(),
            "loss_scale": self.state.loss_scale.numpy().tolist(),
            "recent_losses": [x for x in self.state.recent_losses.numpy().tolist() if x == x],
            "skipped": self.guard.state(),
            "flags": dict(self.flags),
            "version": __version__,
        }
        run, state = self.run, self.state
        if not self.is_chief:
            self.last_checkpoint = os.path.join(run.output_dir, f"model.ckpt-{state.step}")
            return
        self.last_checkpoint = checkpoint_store.save(
            run.output_dir, state.step, state.tensors(), sidecar, run.keep_checkpoint_max
        )
        log.info("saved %s", self.last_checkpoint)

    def _evaluate(
        self, step: int, writer: summaries.MetricsWriter, latch: PreemptionLatch
    ) -> None:
        if not self.eval_files or not self.is_chief:
            return
        if self._evaluator is None:
            self._evaluator = steps.EvalStep(
                self.task.for_evaluation(), self.state.model, self._depth
            )
            self._eval_batches = evaluation.batches_of(self._evaluator, self.run, self.eval_files)
        started = time.monotonic()

        def end_if_asked() -> None:
            # Several workers stop together, at the next step.
            if latch.raised and not distribution.is_multi_worker():
                raise self._preempted(latch, step)

        # It may last long. What was begun is done again by the next process.
        last = evaluation.measure(
            self._evaluator, self._eval_batches, self.eval_files, step, end_if_asked
        )
        # The line comes last: without it, the next process evaluates once more.
        is_best = evaluation.keep_if_best(
            self.task, self.last_checkpoint, last.results, self._measured(step)
        )
        self.evaluated = evaluation.Evaluated(last, last if is_best else self.evaluated.best)
        writer.write(step, "eval", _scalars(last.results))
        summaries.log_results(last.results)
        log.info("evaluated in %s", summaries.duration(time.monotonic() - started))


def _until(step: int, run: RunConfig) -> int:
    """Returns the steps left until something is due."""
    due = [run.last_step - step]
    due += [until - step for _, until in run.depth_schedule if until > step]
    due += [every - step % every for every in (run.save_checkpoints_steps, run.log_steps)]
    return min(due)


def _log_step(step: int, values: Mapping[str, float]) -> None:
    shown = ", ".join(f"{k} {v:.4g}" for k, v in values.items() if k not in ("skipped_steps", "seconds"))
    log.info("step %d: %s", step, shown)


def _scalars(results: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in results.items() if isinstance(v, int | float) and k != "global_step"}
