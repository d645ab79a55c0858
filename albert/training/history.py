"""A run's history: its position in the data, running averages, and skipped steps."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import TrainingDivergedError
from albert.model import costs
from albert.model.costs import Workload
from albert.records.record_files import RecordFiles
from albert.tasks.task import Task
from albert.training import steps
from albert.training.current_engine import current
from albert.training.engine import Engine
from albert.training.run_settings import RunConfig
from albert.training.summaries import MetricsWriter

log = logging.getLogger("albert")

MAX_BAD_STEPS = 10  # in a row: the run ends at the next one
# Dense matrix products in 1e12 FLOPs per second, by a part of the device's name: in float32 (TF32 on
# GPUs, one bfloat16 pass on TPUs), and in half precision. From data sheets.
_PEAKS = {
    "H200": (494.7, 989.4), "H100 80GB HBM3": (494.7, 989.4), "A100": (156, 312), "TPU v3": (61.5, 61.5),
    "TPU v4": (275, 275), "TPU v5 lite": (197, 197), "TPU v5": (459, 459), "TPU v6 lite": (918, 918),
}


class History:
    """Records each step; resumes from a checkpoint's `state`."""

    def __init__(self, task: Task, config: AlbertConfig, run: RunConfig, train_files: RecordFiles):
        self.run, self.train_files = run, train_files
        self._flops_per_token = _model_flops(task, config)
        self._peak = _peak_flops(current(), run.mixed_precision)
        self.records_seen = 0
        self.bad_steps = 0  # in a row
        self.averages = Averages(sorted(task.statistic_names), run.mixed_precision == "float16")

    def state(self) -> dict[str, Any]:
        """Returns JSON values for `restore`."""
        return {
            "records_seen": self.records_seen,
            "window": self.averages.state(),
        }

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Resumes from another process's `state` after `step`; the state may be empty."""
        self.records_seen = state.get("records_seen", self.run.train_batch_size * step)
        self.averages.restore(state.get("window"))

    def note(self, step: int, row: np.ndarray) -> None:
        """Records a step, given its metrics.

        Raises:
          TrainingDivergedError: more than `MAX_BAD_STEPS` in a row were not finite, and skipped.
        """
        self.averages.add(row)
        batch = self._describe_batch()
        self.records_seen += self.run.train_batch_size
        if row[steps.BAD]:
            log.warning("step %d skipped: loss %s, gradient norm %s, %s", step,
                        row[steps.LOSS], row[steps.NORM], batch)
        elif row[steps.OVERFLOW]:
            log.info("step %d skipped: its gradient overflows float16; halving the loss scale",
                     step)
        self.bad_steps = self.bad_steps + 1 if row[steps.BAD] else 0
        if self.bad_steps > MAX_BAD_STEPS:
            raise TrainingDivergedError(
                f"training diverged at step {step}: loss {row[steps.LOSS]}, gradient norm "
                f"{row[steps.NORM]}; {self.bad_steps} bad steps in a row. A lower --learning_rate "
                f"or a longer warm-up may help; {batch}"
            )

    def _describe_batch(self) -> str:
        """Returns the numbers of the next batch's records in the shuffled order of the epoch."""
        epoch, start = divmod(self.records_seen, self.train_files.count)
        return f"records {start:,} to {start + self.run.train_batch_size - 1:,} of epoch {epoch:,}"

    def report(self, step: int, seconds: float, writer: MetricsWriter | None) -> None:
        """Logs and writes the averages of the last `seconds`."""
        seconds = max(seconds, 1e-6)
        values = self.averages.flush()
        values["tokens_per_second"] = round(self.averages.tokens / seconds, 1)
        if self._peak:
            flops = self._flops_per_token * self.averages.tokens / seconds
            values["mfu"] = round(flops / self._peak, 4)
        values["seconds"] = round(seconds, 3)
        # Without NaN, which means that every step was skipped.
        shown = {k: v for k, v in values.items() if k != "seconds" and v == v}
        if not shown["skipped_steps"]:
            del shown["skipped_steps"]
        log.info("step %d: %s", step, ", ".join(f"{k} {v:.4g}" for k, v in shown.items()))
        if writer:
            writer.write(step, "train", values)


def _model_flops(task: Task, config: AlbertConfig) -> float:
    """Returns the FLOPs of a token in training; of the heads, those of pretraining count."""
    return costs.training_flops(config, Workload(
        max_seq_length=task.feature_spec().row_length or config.max_position_embeddings,
        max_predictions_per_seq=getattr(task, "max_predictions_per_seq", 0),
    ))


def _peak_flops(engine: Engine, precision: str) -> float | None:
    """Returns the peak of all devices in FLOPs per second, or None if it isn't known."""
    of_device = next((peak for name, peak in _PEAKS.items() if name in engine.device_name), None)
    return of_device and 1e12 * of_device[precision != "float32"] * engine.num_replicas


class Averages:
    """Averages since the last line of metrics, of the steps whose update was not skipped.

    Steps are added one by one, in the same order in every run, so that sums are equal bit for bit.
    """

    def __init__(self, names: Sequence[str], has_loss_scale: bool = False):
        self._names, self._has_loss_scale = names, has_loss_scale
        self._sums, self.steps = [0.0] * (steps.PAIRS + 2 * len(names)), 0
        self._restored_tokens = 0.0

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continues from another process's `state`."""
        # Earlier versions included skipped steps, whose loss may be NaN.
        if state and len(state["sums"]) == len(self._sums) and all(map(math.isfinite, state["sums"])):
            self._sums, self.steps = list(state["sums"]), state["steps"]
            self._restored_tokens = self._sums[steps.TOKENS]
        elif state:
            log.warning("starting new running averages: those of the checkpoint have another format")

    def add(self, row: np.ndarray) -> None:
        self._last_rate = float(row[steps.RATE])
        if row[steps.BAD] or row[steps.OVERFLOW]:
            for column in (steps.BAD, steps.OVERFLOW, steps.TOKENS):
                self._sums[column] += float(row[column])
            return
        self._sums = [total + float(x) for total, x in zip(self._sums, row[: steps.STOP], strict=True)]
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {"sums": self._sums, "steps": self.steps}

    def flush(self) -> dict[str, float]:
        """Returns the averages (NaN if every step was skipped), and starts again."""
        count = self.steps or math.nan
        values = {
            "loss": self._sums[steps.LOSS] / count,
            "gradient_norm": self._sums[steps.NORM] / count,
            "learning_rate": self._last_rate,
            "skipped_steps": self._sums[steps.BAD],
        }
        if self._has_loss_scale:  # these steps were skipped, too, to lower the scale
            values["loss_scale_overflows"] = self._sums[steps.OVERFLOW]
        for i, name in enumerate(self._names):
            total, weight = self._sums[steps.PAIRS + 2 * i : steps.PAIRS + 2 * i + 2]
            # Tasks name their metrics for evaluations, but these are of training batches.
            name = re.sub(r"^eval_", "train_", name)
            values[name] = total / weight if weight else 0.0 * count
        # Of this process alone, as the seconds of the rate are.
        self.tokens, self._restored_tokens = self._sums[steps.TOKENS] - self._restored_tokens, 0.0
        self._sums, self.steps = [0.0] * len(self._sums), 0
        return values
