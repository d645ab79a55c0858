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
from albert.training.current_engine import current
from albert.training.engine import Engine
from albert.training.evaluate import Evaluated, Evaluator
from albert.training.metrics import LOSS, STOP, History, MetricsWriter
from albert.training.run import Checkpointer, RunConfig, TrainState, row_options

log = logging.getLogger("albert")


def train(
    task: Task, config: AlbertConfig, run: RunConfig, optimizer: OptimizerConfig,
    train_files: RecordFiles, *, eval_files: RecordFiles | None = None, **start: Any,
) -> Evaluated:
    """Trains up to `run.last_step`. Returns the evaluations of this process.

    With `eval_files`, every checkpoint is evaluated. The one with the highest
    `task.best_metric` is kept as `model.ckpt-best`.

    Args:
      start: `init`, `warm_start_options` and `flags`, see `_begun`.

    Raises:
      DataError, CheckpointError, RunDirBusyError: the input or the directory is unusable. Nothing
        was written.
      TrainingDivergedError: the numbers are no longer finite. The last good checkpoint is kept.
      Preempted: a signal asked for the end. Everything is saved.
    """
    run = run.on(current())
    with _begun(task, config, run, optimizer, train_files, eval_files, **start) as begun:
        state, history, checkpointer, evaluator, preemption, progress = begun
        engine, writer, batches = checkpointer.engine, evaluator.writer, None
        make_step, pending = steps.compiled_step(task, state, run), collections.deque()
        step, window_start = state.step, time.monotonic()
        while step < run.last_step:
            # --- Step ---
            batches = batches or _batches(engine, task, config, run, history)
            pending.append(make_step(batches, np.float32(preemption.raised is not None)))
            step += 1
            # --- Metrics: an accelerator computes the next step while those of the last are read ---
            is_due, is_logged = _is_due(step, run), step % run.log_steps == 0 or step == run.last_step
            must_stop = preemption.ends_this_process
            while len(pending) > (not (is_due or is_logged or must_stop) and engine.has_accelerator):
                row = np.asarray(pending.popleft())
                must_stop = must_stop or bool(row[STOP])
                history.note(step - len(pending), row)
                progress.update(step, f", loss {row[LOSS]:.3f}")
            if is_logged:
                progress.clear()
                ended = time.monotonic()
                history.report(step, ended - window_start, writer)
                window_start = ended
            # --- Save, stop, evaluate ---
            if is_due or must_stop:
                progress.clear()
                if writer:  # first, so that a checkpoint has all metrics up to its step
                    writer.upload()
                checkpointer.save()
            if must_stop:
                preemption.end(checkpointer)
            if is_due:
                started = time.monotonic()
                evaluator.evaluate(step)
                window_start += time.monotonic() - started
        return evaluator.evaluated


@contextlib.contextmanager
def _begun(
    task: Task, config: AlbertConfig, run: RunConfig, optimizer: OptimizerConfig,
    train_files: RecordFiles, eval_files: RecordFiles | None, init: Weights | None = None,
    warm_start_options: Mapping[str, bool] | None = None, flags: Mapping[str, Any] | None = None,
) -> Iterator[tuple]:
    """Starts or resumes a run, and holds its directory inside the block; yields its parts.

    Args:
      init: weights to start from, unless a run is resumed; see `checkpoints.warm_start`.
      flags: recorded with each checkpoint.
    """
    engine, flags = current(), flags or {}
    engine.check_batch_size(run.train_batch_size, run.gradient_accumulation_steps)
    train_files.check(task.feature_spec(), config.vocab_size)
    if eval_files:
        eval_files.check(task.for_evaluation().feature_spec(), config.vocab_size)
    lock = locks.hold(run.output_dir) if engine.is_chief else contextlib.nullcontext()
    with lock, PreemptionSignal(engine.num_workers == 1) as preemption, contextlib.ExitStack() as stack:
        state = TrainState(task, config, run, optimizer)
        history = History(engine, task, config, run, train_files)
        checkpointer = Checkpointer(engine, task, config, run, state, history, flags)
        sizes = {os.path.basename(path): filesystem.size(path) for path in train_files.paths}
        # Before a worker that differs changes anything.
        engine.check_agreement({f"--{name}": x for name, x in flags.items()} | {"input files": sizes})
        checkpointer.start(init, warm_start_options or {})
        engine.check_agreement({f"step in {run.output_dir}": state.step})
        stack.enter_context(engine.errors(lambda: checkpointer.newest, train_files, eval_files))
        writer = MetricsWriter(run.output_dir, state.step) if engine.is_chief else None
        if writer:
            stack.callback(writer.close)
        progress = Progress("trained", run.last_step, "steps")
        stack.callback(progress.clear)
        evaluator = Evaluator(task, config, run, state, eval_files, writer, checkpointer, preemption)
        if state.step >= run.last_step:
            log.info("already trained to step %d", state.step)
        if _is_due(state.step, run) and not evaluator.has_evaluated(state.step):
            # The previous process was stopped between the checkpoint and its evaluation.
            evaluator.evaluate(state.step)
        try:
            yield state, history, checkpointer, evaluator, preemption, progress
        except TrainingDivergedError as error:
            last = f"last good checkpoint: {checkpointer.newest or 'none'}"
            raise TrainingDivergedError(f"{error}; {last}") from error


def _batches(
    engine: Engine, task: Task, config: AlbertConfig, run: RunConfig, history: History
) -> Iterator[Any]:
    """Returns endless batches, starting with the next record."""
    size, micro_batches = run.train_batch_size, run.gradient_accumulation_steps
    spec, source = task.feature_spec(), history.train_files
    examples = size // (engine.num_replicas * micro_batches)
    options = row_options(run, spec, source, examples, engine.num_replicas > 1)
    length = "trimmed" if options["is_cut"] else "full length"
    log.info("sequences: %s", "packed" if "packed_rows" in options else length)
    return engine.train_batches(
        source, spec, batch_size=size, vocab_size=config.vocab_size, seed=run.seed,
        position=history.records_seen, micro_batches=micro_batches, **options,
    )


def _is_due(step: int, run: RunConfig) -> bool:
    """Whether this step gets a checkpoint and an evaluation."""
    return step > 0 and (step % run.save_checkpoints_steps == 0 or step == run.last_step)


class PreemptionSignal:
    """Records a SIGTERM or SIGINT for the loop. A second one kills immediately.

    A context manager: outside of it, the signals have their usual effect.
    """

    def __init__(self, is_alone: bool = True):
        self.raised: int | None = None  # the signal's number
        self._is_alone = is_alone  # the only worker
        self._handling = workers.on_signals(self._note)

    def __enter__(self) -> "PreemptionSignal":
        self._handling.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self._handling.__exit__(*exception)

    @property
    def ends_this_process(self) -> bool:
        """Whether to stop without asking other workers, which stop together, after the same step."""
        return self._is_alone and self.raised is not None

    def end(self, checkpointer: Checkpointer) -> None:
        """Ends the run, which is saved."""
        message = f"stopped at step {checkpointer.state.step}, saved {checkpointer.newest}"
        raise Preempted(message, self.raised or signal.SIGTERM)

    def _note(self, number, frame) -> None:
        self.raised = number
        for each in workers.STOPPING:
            signal.signal(each, signal.SIG_DFL)
