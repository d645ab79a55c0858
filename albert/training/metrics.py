"""A run's metrics: what its steps return, running averages, metrics.jsonl, TensorBoard, log lines.

No engine: commands import this module before they start one.
"""

import contextlib
import json
import logging
import math
import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import TrainingDivergedError
from albert.records.protobuf import field, varint
from albert.records.record_files import RecordFiles
from albert.records.tfrecord import frame_records
from albert.storage import cloud, files
from albert.training import costs, store
from albert.training.engine import Engine

if TYPE_CHECKING:
    from albert.tasks.task import Task

log = logging.getLogger("albert")

# Columns of a training step's metrics, followed by the task's (sum, weight) pairs.
LOSS, NORM, RATE, BAD, OVERFLOW, TOKENS, PAIRS = range(7)
STOP = -1  # the last one: above 0 if a worker was asked to stop
MAX_BAD_STEPS = 10  # in a row: the run ends at the next one
# Dense matrix products in 1e12 FLOPs per second, by a part of the device's name: in float32 (TF32 on
# GPUs, one bfloat16 pass on TPUs), and in half precision. From data sheets.
_PEAKS = {
    "H200": (494.7, 989.4), "H100 80GB HBM3": (494.7, 989.4), "A100": (156, 312), "TPU v3": (61.5, 61.5),
    "TPU v4": (275, 275), "TPU v5 lite": (197, 197), "TPU v5": (459, 459), "TPU v6 lite": (918, 918),
}


class History:
    """What the steps since the last line of metrics returned, and how many records were read."""

    def __init__(
        self, engine: Engine, task: "Task", config: AlbertConfig, run: Any,
        train_files: RecordFiles,
    ):
        self.run, self.train_files = run, train_files
        self._names = sorted(task.statistic_names)
        # FLOPs of a token in training; of the heads, those of pretraining count.
        length = task.feature_spec().row_length or config.max_position_embeddings
        predictions = getattr(task, "max_predictions_per_seq", 0)
        self._flops_per_token = costs.training_flops(config, length, predictions)
        # The peak of all devices in FLOPs per second, None if it isn't known.
        peak = next((peak for name, peak in _PEAKS.items() if name in engine.device_name), None)
        self._peak = peak and 1e12 * peak[run.mixed_precision != "float32"] * engine.num_replicas
        self.records_seen = 0
        self.bad_steps = 0  # in a row
        self._rows: list[np.ndarray] = []  # of the steps since the last line
        self._tokens: float | None = None  # of those that are timed; None before the first step

    def note(self, step: int, row: np.ndarray, newest: str | None = None) -> None:
        """Records a step, given its metrics; `newest` is the last checkpoint.

        Raises:
          TrainingDivergedError: more than `MAX_BAD_STEPS` in a row were not finite, and skipped.
        """
        self._rows.append(row)
        # The first step of a process compiles, so it isn't timed.
        self._tokens = 0.0 if self._tokens is None else self._tokens + float(row[TOKENS])
        epoch, start = divmod(self.records_seen, self.train_files.count)
        batch = f"records {start:,} to {start + self.run.train_batch_size - 1:,} of epoch {epoch:,}"
        self.records_seen += self.run.train_batch_size
        if row[BAD]:
            log.warning("step %d skipped: loss %s, gradient norm %s, %s", step,
                        row[LOSS], row[NORM], batch)
        elif row[OVERFLOW]:
            log.info("step %d skipped: its gradient overflows float16; halving the loss scale", step)
        self.bad_steps = self.bad_steps + 1 if row[BAD] else 0
        if self.bad_steps > MAX_BAD_STEPS:
            raise diverged(step, f"loss {row[LOSS]}, gradient norm {row[NORM]}; {self.bad_steps} bad steps "
                           f"in a row; {batch}", newest)

    def report(
        self, step: int, seconds: float, waited: float, writer: "MetricsWriter | None"
    ) -> None:
        """Logs and writes the averages since the last line, without skipped steps; NaN if all were skipped.

        Args:
          seconds: that the steps took, without a process's first.
          waited: seconds of them in which no batch was ready.
        """
        rows = np.array(self._rows, np.float64)
        used = rows[(rows[:, BAD] == 0) & (rows[:, OVERFLOW] == 0)]
        count, sums = len(used) or math.nan, used.sum(axis=0)
        values = {
            "loss": sums[LOSS] / count, "gradient_norm": sums[NORM] / count,
            "learning_rate": rows[-1, RATE], "skipped_steps": rows[:, BAD].sum(),
        }
        if self.run.mixed_precision == "float16":  # these steps were skipped, too, to lower the scale
            values["loss_scale_overflows"] = rows[:, OVERFLOW].sum()
        for i, name in enumerate(self._names):
            total, weight = sums[PAIRS + 2 * i : PAIRS + 2 * i + 2]
            # Tasks name their metrics for evaluations, but these are of training batches.
            name = re.sub(r"^eval_", "train_", name)
            values[name] = total / weight if weight else 0.0 * count
        values = {name: float(value) for name, value in values.items()}
        if self._tokens and seconds > 0:
            values["tokens_per_second"] = round(self._tokens / seconds, 1)
            if self._peak:
                flops = self._flops_per_token * self._tokens / seconds
                values["mfu"] = round(flops / self._peak, 4)
        # Without NaN, which means that every step was skipped.
        shown = {k: v for k, v in values.items() if v == v}
        if not shown["skipped_steps"]:
            del shown["skipped_steps"]
        numbers = {k: f"{v:,.0f}" if 1000 <= v < 1e9 else f"{v:.4g}" for k, v in shown.items()}
        log.info("step %d: %s", step, ", ".join(map(" ".join, numbers.items())))
        if writer:
            times = {"seconds": round(seconds, 3), "data_wait": round(waited, 3)}
            writer.write(step, "train", values | times)
        self._rows, self._tokens = [], 0.0


def diverged(step: int, what: str, newest: str | None) -> TrainingDivergedError:
    """Returns the error that ends a run whose numbers are no longer finite."""
    return TrainingDivergedError(f"training diverged at step {step}: {what}. A lower --learning_rate or a "
                                 f"longer warm-up may help; last good checkpoint: {newest or 'none'}")


# === Files ===


class MetricsWriter:
    """Appends lines to `metrics.jsonl`, one JSON object each, and scalars to TensorBoard.

    When opened at a step, it drops the lines of later steps, which a run that was killed after its
    last checkpoint will write again. `evaluated` holds the steps with a line of an evaluation.
    """

    def __init__(self, directory: str, step: int):
        self._path = os.path.join(directory, "metrics.jsonl")
        files.open_to_append(self._path).close()  # refuses a link
        lines = [line for line in read_metrics(directory) if line["step"] <= step]
        with files.atomic_write(self._path) as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines)
        self.evaluated = {line["step"] for line in lines if line["kind"] == "eval"}
        self._stream = files.open_to_append(self._path)
        self._boards: dict[str, EventFile] = {}
        self._directory = os.path.join(directory, "summaries")
        self._board_failed = False

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Writes one line; `kind` is train or eval. NaN and infinities become null."""
        if not os.path.exists(self._path):
            store.check_is_there(os.path.dirname(self._path))
        line = files.finite({"step": step, "kind": kind, **values})
        values = {name: line[name] for name in values if line[name] is not None}
        try:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()
        except OSError as error:
            raise files.UserError(f"cannot write {self._path} ({error.strerror})") from error
        if kind == "eval":
            self.evaluated.add(step)
        if self._board_failed:
            return
        try:
            if kind not in self._boards:
                self._boards[kind] = EventFile(os.path.join(self._directory, kind))
            self._boards[kind].write(step, values)
        except OSError as error:
            # The run continues, since metrics.jsonl has the same numbers.
            self._board_failed = True
            log.warning("no more TensorBoard summaries: %s", error.strerror)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the write that failed has reported it
            self._stream.close()
        for board in self._boards.values():
            with contextlib.suppress(OSError):
                board.close()
        cloud.push()


def read_metrics(directory: str, kind: str = "") -> list[dict[str, Any]]:
    """Returns a run's lines, of a kind (train or eval) if given, in order; damaged ones are left out."""
    path, lines = os.path.join(directory, "metrics.jsonl"), []
    if os.path.isfile(path):
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = [_parse(line) for line in stream]
    return [line for line in lines if line and kind in ("", line["kind"])]


def _parse(line: str) -> dict | None:
    """Returns a line of metrics, or None for one that a crash truncated."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_valid = (
        line.endswith("\n") and isinstance(value, dict)
        and isinstance(value.get("step"), int) and isinstance(value.get("kind"), str)
    )
    return value if is_valid else None


class EventFile:
    """Appends scalars to a new TensorBoard file: `Event` messages in TFRecord frames.

    Raises:
      OSError: it cannot be written.
    """

    def __init__(self, directory: str):
        os.makedirs(directory, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}.v2"
        self.path = os.path.join(directory, name)
        self._stream = open(self.path, "ab")
        self._write(field(3, b"brain.Event:2"))  # file_version

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes an event with these scalars."""
        summary = b"".join(
            # tag, simple_value
            field(1, field(1, name.encode()) + b"\x15" + struct.pack("<f", value))
            for name, value in values.items()
        )
        self._write(b"\x10" + varint(step) + field(5, summary))

    def close(self) -> None:
        self._stream.close()

    def _write(self, content: bytes) -> None:
        wall_time = b"\x09" + struct.pack("<d", time.time())
        self._stream.write(frame_records([wall_time + content]))
        self._stream.flush()


def log_results(results: Mapping[str, float], title: str = "Eval results") -> None:
    """Logs results as the original does: a header and `  key = value` lines in sorted order."""
    log.info("***** %s *****", title)
    for key in sorted(results):
        log.info("  %s = %s", key, results[key])


def write_results(
    directory: str, results: Mapping[str, float], name: str = "eval_results",
    first: str = "", last: str = "",
) -> str:
    """Publishes `<name>.txt` (`key = value` lines, sorted) and `<name>.json`; returns the first.

    Args:
      first, last: lines before and after those.
    """
    files.write_json(os.path.join(directory, f"{name}.json"), dict(results))
    path = os.path.join(directory, f"{name}.txt")
    with files.atomic_write(path) as stream:
        stream.writelines([first, *(f"{key} = {results[key]}\n" for key in sorted(results)), last])
    return path
