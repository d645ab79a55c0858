"""The training loop, for any `Task`."""

import collections
import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import Preempted, TrainingDivergedError
from albert.formats.weights import Weights
from albert.optimization import OptimizerConfig
from albert.records.record_files import RecordFiles
from albert.runtime import workers
from albert.runtime.progress import Progress
from albert.storage import filesystem, locks
from albert.tasks.task import Task
from albert.training import steps
from albert.training.checkpointer import Checkpointer
from albert.training.current_engine import current
from albert.training.engine import Engine
from albert.training.evaluation import Evaluated, Evaluator
from albert.training.history import History
from albert.training.run_settings import RunConfig, row_options
from albert.training.summaries import MetricsWriter
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
) -> Evaluated:
    """Trains up to `run.last_step`. Returns the evaluations of this process.

    With `eval_files`, every checkpoint is evaluated. The one with the highest
    `task.best_metric` is kept as `model.ckpt-best`.

    Raises:
      DataError, CheckpointError, RunDirBusyError: the input or the directory is unusable. Nothing
        was written.
      TrainingDivergedError: the numbers are no longer finite. The last good checkpoint is kept.
      Preempted: a signal asked for the end. Everything is saved.
    """
    engine = current()
    run = run.on(engine)
    spec = task.feature_spec()
    engine.check_batch_size(run.train_batch_size, run.gradient_accumulation_steps)
    train_files.check(spec, config.vocab_size)
    if eval_files:
        eval_files.check(task.for_evaluation().feature_spec(), config.vocab_size)
    flags = flags or {}
    lock = locks.hold(run.output_dir) if engine.is_chief else contextlib.nullcontext()
    with lock, PreemptionSignal() as preemption, contextlib.ExitStack() as stack:
        state = TrainState(task, config, run, optimizer)
        history = History(task, config, run, train_files)
        checkpointer = Checkpointer(engine, task, config, run, state, history, flags)
        checkpointer.start(init, warm_start_options or {})
        sizes = {os.path.basename(path): filesystem.size(path) for path in train_files.paths}
        engine.check_agreement(
            {f"--{name}": value for name, value in flags.items()}
            | {"input files": sizes, f"step in {run.output_dir}": state.step}
        )
        stack.enter_context(engine.data_errors(*filter(None, (train_files, eval_files))))
        stack.enter_context(engine.worker_errors(lambda: checkpointer.newest or "the start"))
        writer = MetricsWriter(run.output_dir, state.step) if engine.is_chief else None
        if writer:
            stack.callback(writer.close)
        evaluator = Evaluator(task, config, run, state, eval_files, writer)
        progress = Progress(task.name, run.last_step, "steps", state.step)
        stack.callback(progress.clear)
        _loop(engine, state, history, checkpointer, evaluator, preemption, progress)
        return evaluator.evaluated


def _loop(
    engine: Engine, state: TrainState, history: History, checkpointer: Checkpointer,
    evaluator: Evaluator, preemption: "PreemptionSignal", progress: Progress,
) -> None:
    """Trains to the last step: steps, reports, saves, evaluates, and stops if necessary."""
    task, run, writer = evaluator.task, evaluator.run, evaluator.writer
    batches, train_step = None, steps.compiled_step(task, state, run)
    # An accelerator computes the next step while the metrics of the last one are read.
    behind = 1 if engine.has_accelerator else 0

    def stop() -> None:
        message = f"preempted at step {state.step}, saved {checkpointer.newest}"
        raise Preempted(message, preemption.raised or signal.SIGTERM)

    def stop_evaluation() -> None:
        # Several workers stop together, after the same step.
        if preemption.raised and engine.num_workers == 1:
            stop()

    if state.step >= run.last_step:
        log.info("already trained to step %d", state.step)
    if _is_due(state.step, run) and not evaluator.has_evaluated(state.step):
        # The previous process was stopped between the checkpoint and its evaluation.
        evaluator.evaluate(checkpointer.newest, state.step, stop_evaluation)
    step, pending, window_start = state.step, collections.deque(), time.monotonic()
    while step < run.last_step:
        batches = batches or _batches(engine, task, run, history, evaluator.config.vocab_size)
        pending.append(train_step(batches, preemption.raised is not None))
        step += 1
        is_logged = step % run.log_steps == 0 or step == run.last_step
        is_last = is_logged or _is_due(step, run)
        must_stop = engine.num_workers == 1 and preemption.raised is not None
        while len(pending) > (0 if is_last or must_stop else behind):
            row = np.asarray(pending.popleft())
            must_stop = must_stop or bool(row[steps.STOP])
            try:
                history.note(step - len(pending), row)
            except TrainingDivergedError as error:
                raise checkpointer.diverged(str(error)) from error
            progress.update(step, f", loss {row[steps.LOSS]:.3f}")
        if is_logged:
            progress.clear()
            ended = time.monotonic()
            history.report(step, ended - window_start, writer)
            window_start = ended
        if _is_due(step, run) or must_stop:
            progress.clear()
            if writer:  # first, so that a checkpoint has all metrics up to its step
                writer.upload()
            checkpointer.save()
        if must_stop:
            stop()
        if _is_due(step, run):
            started = time.monotonic()
            evaluator.evaluate(checkpointer.newest, step, stop_evaluation)
            window_start += time.monotonic() - started


def _batches(
    engine: Engine, task: Task, run: RunConfig, history: History, vocab_size: int
) -> Iterator[Any]:
    """Returns endless batches, starting with the next record."""
    size, micro_batches = run.train_batch_size, run.gradient_accumulation_steps
    spec, source = task.feature_spec(), history.train_files
    examples = size // (engine.num_replicas * micro_batches)
    options = row_options(run, spec, source, examples, engine.num_replicas > 1)
    length = "trimmed" if options["is_cut"] else "full length"
    log.info("sequences: %s", "packed" if "packed_rows" in options else length)
    return engine.train_batches(
        source, spec, batch_size=size, vocab_size=vocab_size, seed=run.seed,
        position=history.records_seen, micro_batches=micro_batches, **options,
    )


def _is_due(step: int, run: RunConfig) -> bool:
    """Whether this step gets a checkpoint and an evaluation."""
    return step > 0 and (step % run.save_checkpoints_steps == 0 or step == run.last_step)


class PreemptionSignal:
    """Records a SIGTERM or SIGINT for the loop. A second one kills immediately.

    A context manager: outside of it, the signals have their usual effect.
    """

    def __init__(self):
        self.raised: int | None = None  # the signal's number
        self._handling = workers.on_signals(self._note)

    def __enter__(self) -> "PreemptionSignal":
        self._handling.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self._handling.__exit__(*exception)

    def _note(self, number, frame) -> None:
        self.raised = number
        for each in workers.STOPPING:
            signal.signal(each, signal.SIG_DFL)
