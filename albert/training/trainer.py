"""The only training loop in the repository, for any `Task`."""

import contextlib
import dataclasses
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from albert import __version__
from albert.config import AlbertConfig
from albert.errors import Preempted, TrainingDivergedError, some
from albert.formats import checkpoints
from albert.formats.weights import Weights
from albert.optimization import OptimizerConfig
from albert.records.record_files import RecordFiles
from albert.runtime.progress import Progress, duration
from albert.storage import files, filesystem, locks, scratch
from albert.tasks.task import Task
from albert.training import checkpoint_store, evaluation, steps, summaries
from albert.training.current_engine import current
from albert.training.engine import Engine
from albert.training.guards import DivergenceGuard, PreemptionLatch
from albert.training.pace import Averages, Pace
from albert.training.run_settings import RunConfig, row_options
from albert.training.train_state import TrainState

log = logging.getLogger("albert")


def train(
    task: Task,
    config: AlbertConfig,
    run: RunConfig,
    optimizer: OptimizerConfig,
    train_files: RecordFiles,
    *,
    eval_files: RecordFiles | None = None,
    init: Weights | None = None,
    warm_start_options: Mapping[str, bool] | None = None,
    flags: Mapping[str, Any] | None = None,
    measure_more: evaluation.MeasureMore | None = None,
) -> evaluation.Evaluated:
    """Trains up to `run.last_step`. Returns the evaluations that this process made.

    With `eval_files`, every checkpoint is evaluated. The one with the highest
    `task.best_metric` is kept as `model.ckpt-best`. `measure_more` adds to the results.

    Raises:
      DataError, CheckpointError, RunDirBusyError: the input or the directory is unusable. Nothing
        was written.
      TrainingDivergedError: the numbers are no longer finite. The last good checkpoint is kept.
      Preempted: a signal asked for the end. Everything is saved.
    """
    engine = current()
    if run.use_xla is None:
        run = dataclasses.replace(
            run, use_xla=engine.always_compiles or engine.has_accelerator
        )
    spec = task.feature_spec()
    engine.check_batch_size(run.train_batch_size, run.gradient_accumulation_steps)
    train_files.check(spec, config.vocab_size)
    if eval_files:
        eval_files.check(task.for_evaluation().feature_spec(), config.vocab_size)
    own = (
        locks.hold(run.output_dir) if engine.is_chief else contextlib.nullcontext()
    )
    with own, PreemptionLatch() as latch:
        loop = _Loop(
            engine, task, config, run, optimizer, train_files, eval_files, flags or {}, latch,
            measure_more,
        )
        if engine.is_chief:
            scratch.synchronize(run.output_dir)
        loop.start(init, warm_start_options or {})
        sizes = {os.path.basename(path): filesystem.size(path) for path in train_files.paths}
        facts = {f"--{name}": value for name, value in (flags or {}).items()}
        engine.check_agreement(
            facts | {"input files": sizes, f"step in {run.output_dir}": loop.state.step}
        )
        with (
            engine.blame_data(*filter(None, (train_files, eval_files))),
            engine.blame_workers(lambda: loop.last_checkpoint or "the start"),
        ):
            loop.run_to_end()
        return loop.evaluated


class _Loop:
    """One training run: its weights, its position in the data, its metrics and checkpoints."""

    def __init__(
        self, engine: Engine, task, config, run, optimizer, train_files, eval_files, flags, latch,
        measure_more,
    ):
        self.engine, self.task, self.config, self.run, self.latch = engine, task, config, run, latch
        self.train_files, self.eval_files = train_files, eval_files
        self.flags, self.measure_more = flags, measure_more
        self.state = TrainState(task, config, run, optimizer)
        self.is_chief = engine.is_chief
        self.writer: summaries.MetricsWriter | None = None  # only the chief has one
        self.guard = DivergenceGuard()
        self.records_seen = 0
        self.evaluated = evaluation.Evaluated()
        self.last_checkpoint: str | None = None
        self.averages = self._new_averages(None)
        self._evaluator: steps.EvalStep | None = None
        self._eval_batches = None

    def start(self, init: Weights | None, options: Mapping[str, bool]) -> None:
        # Where training starts, first that applies:
        #   1. the newest sound checkpoint of output_dir (same command = go on)
        #   2. --init_checkpoint or a hub module: weights only; warm_start.json lists them
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
            tensors, account = checkpoints.warm_start(shapes, init, may_lack_pooler=True, **options)
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
        self.records_seen = sidecar.get("records_seen", self.run.train_batch_size * step)
        self.averages = self._new_averages(sidecar.get("window"))
        before = sidecar.get("flags", {})
        # In the other precisions the scale is 1, which float16 cannot start from.
        had_scale = before.get("mixed_precision", "float16") == "float16"
        if "loss_scale" in sidecar and had_scale and self.run.mixed_precision == "float16":
            self.state.loss_scale.assign(sidecar["loss_scale"])
        losses = sidecar.get("recent_losses", [])[-steps.SPIKE_WINDOW :]
        missing = steps.SPIKE_WINDOW - len(losses)
        self.state.recent_losses.assign([float("nan")] * missing + losses)
        self.guard.restore(sidecar.get("skipped", {}))
        for name in sorted(set(before) & set(self.flags)):
            # NaN, the default of some flag, is null in a sidecar.
            if not files.is_same_json(before[name], files.finite(self.flags[name])):
                log.warning(
                    "--%s changed from %s to %s since step %d",
                    name, before[name], self.flags[name], step,
                )

    def run_to_end(self) -> None:
        run, state = self.run, self.state
        batches = train_steps = depth = None
        if self.is_chief:
            self.writer = summaries.MetricsWriter(run.output_dir, state.step)
        progress = Progress(self.task.name, run.last_step, "steps", state.step)
        if state.step >= run.last_step:
            log.info("already trained to step %d", state.step)
        pace = Pace(self.engine, run.iterations_per_loop)
        try:
            if (
                self.writer
                and self._is_due(state.step)
                and state.step not in self.writer.evaluated
            ):
                # The last process was stopped between the checkpoint and its evaluation.
                self._evaluate(state.step)
            window_start = time.monotonic()
            has_stalled = self._has_stalled(state.step)
            while state.step < run.last_step and not has_stalled:
                step = state.step
                if train_steps is None or depth != run.depth_after(step):
                    depth = run.depth_after(step)
                    train_steps = self._train_steps(step, depth)
                batches = batches or self._batches()
                count = min(pace.count, _until(step, run))
                started = time.monotonic()
                control = pace.control(self.latch.raised, self.is_chief)
                rows, agreed = train_steps(batches, count, control)
                must_stop = pace.update(count, time.monotonic() - started, agreed, self.latch)
                self._take_note(step, rows)
                step += count
                progress.update(step, f", loss {rows[-1][steps.LOSS]:.3f}")
                if step % run.log_steps == 0 or step == run.last_step:
                    progress.clear()
                    ended = time.monotonic()
                    self._tell(step, ended - window_start)
                    window_start = ended
                due = self._is_due(step)
                if due or must_stop:
                    progress.clear()
                    self._save()
                if must_stop:
                    raise self._preempted(step)
                if due:
                    started = time.monotonic()
                    self._evaluate(step)
                    has_stalled = self._has_stalled(step)
                    window_start += time.monotonic() - started
        finally:
            progress.clear()
            if self.writer:
                self.writer.close()

    def _tell(self, step: int, seconds: float) -> None:
        """Logs and writes the averages of the last `seconds`."""
        seconds = max(seconds, 1e-6)
        values = self.averages.flush()
        values["tokens_per_second"] = round(self.averages.tokens / seconds, 1)
        values["seconds"] = round(seconds, 3)
        # Without what is NaN, where every step was skipped.
        shown = {k: v for k, v in values.items() if k != "seconds" and v == v}
        if not shown["skipped_steps"]:
            del shown["skipped_steps"]
        log.info("step %d: %s", step, ", ".join(f"{k} {v:.4g}" for k, v in shown.items()))
        if self.writer:
            self.writer.write(step, "train", values)

    def _new_averages(self, state: Mapping[str, Any] | None) -> Averages:
        names = sorted(self.task.statistic_names)
        return Averages(names, state, self.run.mixed_precision == "float16")

    def _measured(self, step: int) -> dict[str, Any]:
        """Returns what the evaluation of `step` depends on, beside the weights."""
        return evaluation.what_is_measured(
            self.task, self.config, self.run, self.eval_files, step
        )

    def _train_steps(self, step: int, depth: int | None):
        """Returns what makes the steps after `step`, with so many layers."""
        if self.run.depth_schedule:
            log.info("step %d: %d layers", step, depth or self.config.num_hidden_layers)
        return steps.train_steps(self.task, self.state, self.run, depth)

    def _batches(self) -> Iterator[Any]:
        """Returns endless batches, from the next record on."""
        engine, run, spec = self.engine, self.run, self.task.feature_spec()
        size = run.train_batch_size
        parts = engine.num_replicas * run.gradient_accumulation_steps
        options = row_options(
            run, spec, self.train_files, size // parts, engine.num_replicas > 1
        )
        log.info(
            "rows: %s",
            "packed" if "packed_rows" in options else "cut" if options["is_cut"] else "whole",
        )
        return engine.train_batches(
            self.train_files, spec, batch_size=size, vocab_size=self.config.vocab_size,
            seed=run.seed, position=self.records_seen,
            micro_batches=run.gradient_accumulation_steps, **options,
        )

    def _preempted(self, step: int) -> Preempted:
        """Returns the exception that ends the run after `step` was saved."""
        message = f"preempted at step {step}, saved {self.last_checkpoint}"
        return Preempted(message, self.latch.raised or signal.SIGTERM)

    def _is_due(self, step: int) -> bool:
        """Whether this step gets a checkpoint and an evaluation."""
        return step > 0 and (
            step % self.run.save_checkpoints_steps == 0 or step == self.run.last_step
        )

    def _has_stalled(self, step: int) -> bool:
        """Whether early stopping ends the run now. The answer depends on the run's files only."""
        if not self.run.early_stopping_patience:
            return False
        return self.engine.any_worker(self._is_out_of_patience(step))

    def _is_out_of_patience(self, step: int) -> bool:
        patience = self.run.early_stopping_patience
        if not self.writer or step not in self.writer.evaluated:
            return False
        best = evaluation.read_best(self.run.output_dir)
        if best and evaluation.differences(best, self._measured(step)):
            return False
        best_step = best["step"] if best else 0
        if sum(evaluated > best_step for evaluated in self.writer.evaluated) < patience:
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
                self._drop_bad_streak(step + i + 1)
                raise self._diverged(f"{error}; {self._describe_batch(first)}") from error

    def _drop_bad_streak(self, step: int) -> None:
        """Deletes the checkpoints among the last bad steps: their weights may be what diverged."""
        if self.is_chief:
            self.last_checkpoint = checkpoint_store.delete_after(
                self.run.output_dir, step - self.guard.consecutive
            )

    def _diverged(self, what: str) -> TrainingDivergedError:
        kept = self.last_checkpoint or "none was written"
        return TrainingDivergedError(f"{what}; last good checkpoint: {kept}")

    def _describe_batch(self, first: int) -> str:
        """Returns the numbers of a batch's records, in the shuffled order of their epoch."""
        epoch, start = divmod(first, self.train_files.count)
        return f"records {start:,} to {start + self.run.train_batch_size - 1:,} of epoch {epoch:,}"

    def _save(self) -> None:
        """Saves everything of this step.

        Raises:
          TrainingDivergedError: a weight is not finite; nothing was written.
        """
        tensors = self.state.tensors()
        # At a high learning rate, a finite gradient can still make a weight infinite.
        if lost := [name for name, value in tensors.items() if not np.isfinite(value).all()]:
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
        # Those from before a bad streak stay as long as it lasts: see _drop_bad_streak.
        keep = run.keep_checkpoint_max and run.keep_checkpoint_max + self.guard.consecutive
        # The lines of metrics come first: those up to a checkpoint are never missing.
        self.writer.upload()
        self.last_checkpoint = checkpoint_store.save(
            run.output_dir, state.step, tensors, sidecar, keep
        )
        log.info("saved %s", self.last_checkpoint)

    def _evaluate(self, step: int) -> None:
        if not (self.eval_files and self.writer):
            return
        depth = self.run.depth_before(step)
        if self._evaluator is None or self._evaluator.depth != depth:
            self._evaluator = steps.EvalStep(self.task.for_evaluation(), self.state.model, depth)
            self._eval_batches = evaluation.batches_of(self._evaluator, self.run, self.eval_files)
        started = time.monotonic()

        def end_if_asked() -> None:
            # Several workers stop together, at the next step.
            if self.latch.raised and self.engine.num_workers == 1:
                raise self._preempted(step)

        # An evaluation may take long. If it is stopped, the next process does all of it again.
        last = evaluation.measure(
            self._evaluator, self._eval_batches, self.eval_files, step, end_if_asked
        )
        if self.measure_more:
            last.results.update(self.measure_more(self.state.model, depth, end_if_asked))
        # The line comes last: if it is missing, the next process evaluates again.
        is_best = evaluation.keep_if_best(
            self.task, self.last_checkpoint, last.results, self._measured(step)
        )
        self.evaluated = evaluation.Evaluated(last, last if is_best else self.evaluated.best)
        self.writer.write(step, "eval", {
            name: value for name, value in last.results.items()
            if isinstance(value, int | float) and name != "global_step"
        })
        self.writer.upload()
        summaries.log_results(last.results)
        log.info("evaluated in %s", duration(time.monotonic() - started))


def _until(step: int, run: RunConfig) -> int:
    """Returns the steps left until something is due."""
    due = [run.last_step - step]
    due += [end - step for _, end in run.depth_schedule if end > step]
    due += [every - step % every for every in (run.save_checkpoints_steps, run.log_steps)]
    return min(due)
