"""The training loop, for any `Task`."""

import collections
import contextlib
import dataclasses
import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert import __version__
from albert.config import AlbertConfig
from albert.errors import FlagError, Preempted, some
from albert.formats import checkpoints
from albert.formats.weights import Weights
from albert.optimization import OptimizerConfig
from albert.records import record_files
from albert.records.record_files import RecordFiles
from albert.runtime import workers
from albert.runtime.progress import Progress, duration
from albert.storage import cloud, files, locks
from albert.tasks.task import Task
from albert.training import evaluate, store
from albert.training.engine import check_agreement
from albert.training.metrics import LOSS, STOP, History, MetricsWriter, diverged, log_results
from albert.training.run import RunConfig, TrainState, current, log_start, restore, row_options

log = logging.getLogger("albert")


def train(
    task: Task, config: AlbertConfig, run: RunConfig, optimizer: OptimizerConfig,
    train_files: RecordFiles, *, eval_files: RecordFiles | None = None, init: Weights | None = None,
    warm_start_mode: str = "encoder", flags: Mapping[str, Any] | None = None,
) -> dict[int, evaluate.Evaluation]:
    """Trains up to `run.last_step`. Returns the last and the best evaluation of this process, by step.

    With `eval_files`, every checkpoint is evaluated. The one with the highest
    `task.best_metric` is kept as `model.ckpt-best`.

    Args:
      init, warm_start_mode: weights to start from, unless a run is resumed; see
        `checkpoints.warm_start`.
      flags: recorded with each checkpoint.

    Raises:
      DataError, CheckpointError, RunDirBusyError: the input or the directory is unusable. Nothing
        was written.
      TrainingDivergedError: the numbers are no longer finite. The last good checkpoint is kept.
      Preempted: a signal asked for the end. Everything is saved.
    """
    engine, flags = current(), flags or {}
    if run.use_xla is None:
        run = dataclasses.replace(run, use_xla=engine.always_compiles or engine.has_accelerator)

    # === Checks, before anything changes ===
    size, parts, spec = run.train_batch_size, run.gradient_accumulation_steps, task.feature_spec()
    if size % (engine.num_replicas * parts):
        raise FlagError(f"--train_batch_size={size} cannot be divided by {engine.num_replicas} replicas x "
                        f"{parts} (--gradient_accumulation_steps)")
    train_files.check(spec, config.vocab_size)
    if eval_files:
        eval_files.check(task.for_evaluation().feature_spec(), config.vocab_size)
    sizes = {os.path.basename(path): os.path.getsize(path) for path in train_files.paths}

    with contextlib.ExitStack() as stack:
        if engine.is_chief:
            stack.enter_context(locks.hold(run.output_dir))
        signals = stack.enter_context(workers.first_signal())
        is_alone = engine.num_workers == 1  # else all workers stop together, after the same step
        check_agreement(engine, {f"--{name}": x for name, x in flags.items()} | {"input files": sizes})

        # === Start: the newest undamaged checkpoint, else --init_checkpoint, else random weights ===
        state = TrainState(task, config, run, optimizer)
        history = History(engine, task, config, run, train_files)
        newest, origin = None, "random weights"
        found = store.read_newest(
            run.output_dir, state.shapes(), config, task.name, may_rename=engine.is_chief
        )
        if found:
            newest, tensors, run_state = found
            restore(state, run, tensors, run_state, flags)
            history.records_seen = run_state.get("records_seen", size * state.step)
            origin = f"resuming from {newest}"
        check_agreement(engine, {f"step in {run.output_dir}": state.step})
        if engine.is_chief:
            weight_bytes = sum(4 * math.prod(shape) for shape in state.shapes().values())
            saves = math.ceil(run.last_step / run.save_checkpoints_steps) - (
                state.step // run.save_checkpoints_steps)
            store.check_space(
                run.output_dir, weight_bytes, run.keep_checkpoint_max, saves, eval_files is not None
            )
        if not found and init is not None:
            shapes = {name: tuple(v.shape) for name, v in state.weights.items()}
            tensors, account = checkpoints.warm_start(shapes, init, warm_start_mode)
            state.assign(tensors)
            # What the user typed, not where it was unpacked or downloaded to on this machine.
            typed = flags.get("init_checkpoint") or flags.get("albert_hub_module_handle")
            account = account | {"checkpoint": typed or account["checkpoint"]}
            if engine.is_chief:
                files.write_json(os.path.join(run.output_dir, "warm_start.json"), account)
            origin = checkpoints.describe_start(account)
        found = tensors = None  # which are as large as the model
        if engine.is_chief:
            with files.atomic_write(os.path.join(run.output_dir, "albert_config.json")) as stream:
                stream.write(config.to_json_string())
        log_start(state, run, origin)
        stack.enter_context(record_files.original_errors(train_files, eval_files))
        writer = MetricsWriter(run.output_dir, state.step) if engine.is_chief else None
        if writer:
            stack.callback(writer.close)
        progress = Progress("trained", run.last_step, "steps")
        stack.callback(progress.clear)

        # === Evaluation of a checkpoint, by the chief ===
        evaluations: dict[int, evaluate.Evaluation] = {}
        if eval_files and writer:
            eval_task = task.for_evaluation()
            eval_batches = evaluate.batches_of(eval_task, config, run, eval_files)
            eval_step = engine.eval_step(eval_task, state.model, eval_batches)

        def end() -> None:
            message = f"stopped at step {state.step}, saved {newest}: rerun the command to resume"
            raise Preempted(message, (*signals, signal.SIGTERM)[0])

        def evaluate_checkpoint(step: int) -> None:
            if not (eval_files and writer):
                return
            started = time.monotonic()
            last = evaluate.measure(eval_task, eval_step, eval_batches, eval_files, step,
                                    lambda: is_alone and signals and end())
            if evaluate.keep_if_best(task, run, eval_files, newest, last.results):
                evaluations.clear()
            elif len(evaluations) > 1:
                evaluations.popitem()
            evaluations[step] = last
            # Last, because the next process evaluates again if the line is missing.
            writer.write(step, "eval", {
                name: value for name, value in last.results.items()
                if isinstance(value, int | float) and name != "global_step"
            })
            cloud.push()
            log_results(last.results)
            log.info("evaluated in %s", duration(time.monotonic() - started))

        step = state.step
        if writer and run.is_due(step) and step not in writer.evaluated:
            # The previous process was stopped between the checkpoint and its evaluation.
            evaluate_checkpoint(step)
        if step >= run.last_step:
            log.info("already trained to step %d", step)
            return evaluations

        # === Batches: endless, starting with the next record ===
        examples = size // (engine.num_replicas * parts)
        options = row_options(run, spec, train_files, examples, engine.num_replicas > 1)
        log.info("sequences: %s", "packed" if "packed_rows" in options else
                 "trimmed" if options["is_cut"] else "full length")
        batches = engine.train_batches(
            train_files, spec, batch_size=size, vocab_size=config.vocab_size, seed=run.seed,
            position=history.records_seen, processes=run.input_processes,
            micro_batches=parts, **options,
        )

        # === Steps ===
        make_step, pending = engine.train_step(task, state, run, batches), collections.deque()
        first_step, window_start, waited = step + 1, time.monotonic(), 0.0
        while step < run.last_step:
            started = time.monotonic()
            batch = next(batches)
            waited += time.monotonic() - started
            pending.append(make_step(batch, np.float32(bool(signals))))
            step += 1

            # --- Metrics: an accelerator computes the next step while those of the last are read ---
            is_due, is_logged = run.is_due(step), step % run.log_steps == 0 or step == run.last_step
            must_stop = bool(is_alone and signals)
            while len(pending) > (not (is_due or is_logged or must_stop) and engine.has_accelerator):
                row = np.asarray(pending.popleft())
                must_stop = must_stop or bool(row[STOP])
                history.note(step - len(pending), row, newest)
                if step - len(pending) == first_step:  # which compiles, so it isn't timed
                    window_start, waited = time.monotonic(), 0.0
                progress.update(step, f", loss {row[LOSS]:.3f}")
            if is_logged:
                progress.clear()
                ended = time.monotonic()
                history.report(step, ended - window_start, waited, writer)
                window_start, waited = ended, 0.0

            # --- Save, stop, evaluate ---
            if is_due or must_stop:
                progress.clear()
                tensors = state.tensors()
                # At a high learning rate, a finite gradient can make a weight infinite.
                if bad := [name for name, value in tensors.items() if not np.isfinite(value).all()]:
                    raise diverged(step, f"not finite: {some(bad)}", newest)
                newest = os.path.join(run.output_dir, f"model.ckpt-{step}")
                if writer:
                    store.check_is_there(run.output_dir)
                    run_state = {
                        "records_seen": history.records_seen, "config": config.to_dict(),
                        "loss_scale": state.loss_scale.numpy().tolist(), "flags": dict(flags),
                        "metadata": dataclasses.replace(
                            task.metadata(flags), architecture=state.model.metadata.architecture
                        ).to_dict(),
                        "version": __version__,
                    }
                    store.save(run.output_dir, step, tensors, run_state, run.keep_checkpoint_max)
                tensors = None
            if must_stop:
                end()
            if is_due:
                started = time.monotonic()
                evaluate_checkpoint(step)
                window_start += time.monotonic() - started
    return evaluations
