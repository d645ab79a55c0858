"""Evaluates a run's checkpoints, keeps the best, and says when patience is out."""

import logging
import time
from collections.abc import Callable

from albert.config import AlbertConfig
from albert.records.record_files import RecordFiles
from albert.runtime.progress import duration
from albert.tasks.task import Task
from albert.training import evaluation, steps, summaries
from albert.training.engine import Engine
from albert.training.run_settings import RunConfig
from albert.training.summaries import MetricsWriter
from albert.training.train_state import TrainState

log = logging.getLogger("albert")


class Evaluator:
    """Evaluates the model as it is trained. Only the chief does; without `eval_files`, nobody."""

    def __init__(
        self, engine: Engine, task: Task, config: AlbertConfig, run: RunConfig, state: TrainState,
        eval_files: RecordFiles | None, writer: MetricsWriter | None,
        measure_more: evaluation.MeasureMore | None,
    ):
        self.engine, self.task, self.config, self.run = engine, task, config, run
        self.state, self.eval_files, self.writer = state, eval_files, writer
        self.measure_more = measure_more
        self.evaluated = evaluation.Evaluated()
        self._step: steps.EvalStep | None = None
        self._batches = None

    def has_evaluated(self, step: int) -> bool:
        """Whether this process or an earlier one has."""
        return self.writer is None or step in self.writer.evaluated

    def evaluate(self, checkpoint: str, step: int, before_batch: Callable[[], None]) -> None:
        """Evaluates the checkpoint of `step`, which the model's weights are.

        Args:
          before_batch: may raise, to end the run: the next process evaluates again.
        """
        if not (self.eval_files and self.writer):
            return
        depth = self.run.depth_before(step)
        if self._step is None or self._step.depth != depth:
            self._step = steps.EvalStep(self.task.for_evaluation(), self.state.model, depth)
            self._batches = evaluation.batches_of(self._step, self.run, self.eval_files)
        started = time.monotonic()
        last = evaluation.measure(self._step, self._batches, self.eval_files, step, before_batch)
        if self.measure_more:
            last.results.update(self.measure_more(self.state.model, depth, before_batch))
        # The line is written last: if it is missing, the next process evaluates again.
        is_best = evaluation.keep_if_best(
            self.task, checkpoint, last.results, self._measured(step)
        )
        self.evaluated = evaluation.Evaluated(last, last if is_best else self.evaluated.best)
        self.writer.write(step, "eval", {
            name: value for name, value in last.results.items()
            if isinstance(value, int | float) and name != "global_step"
        })
        self.writer.upload()
        summaries.log_results(last.results)
        log.info("evaluated in %s", duration(time.monotonic() - started))

    def _measured(self, step: int):
        """Returns what the evaluation of `step` depends on, besides the weights."""
        return evaluation.what_is_measured(
            self.task, self.config, self.run, self.eval_files, step
        )

    def is_out_of_patience(self, step: int) -> bool:
        """Whether early stopping ends the run now. The answer depends on the run's files only."""
        if not self.run.early_stopping_patience:
            return False
        return self.engine.any_worker(self._has_stalled(step))

    def _has_stalled(self, step: int) -> bool:
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
