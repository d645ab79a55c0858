"""Reports of a run: metrics.jsonl, TensorBoard and log lines."""

import contextlib
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Mapping

from albert.records.protobuf import field, varint
from albert.records.tfrecord import frame_records
from albert.storage import files, mirrors
from albert.training import checkpoint_store

log = logging.getLogger("albert")


class MetricsWriter:
    """Appends lines to `metrics.jsonl`, one JSON object each, and scalars to TensorBoard.

    When opened at a step, it drops the lines of later steps, which a run that was killed after its
    last checkpoint will write again. `evaluated` holds the steps with a line of an evaluation.
    """

    def __init__(self, directory: str, step: int):
        self._path = os.path.join(directory, "metrics.jsonl")
        self.evaluated = self._keep_until(self._path, step)
        self._stream = files.open_to_append(self._path)
        self._boards: dict[str, EventFile] = {}
        self._directory = os.path.join(directory, "summaries")
        self._board_failed = False

    @staticmethod
    def _keep_until(path: str, step: int) -> set[int]:
        if not os.path.exists(path):
            return set()
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = [(line, _parse(line)) for line in stream]
        kept = [(line, value) for line, value in lines if value and value["step"] <= step]
        if len(kept) < len(lines):
            with files.atomic_write(path) as stream:
                stream.writelines(line for line, _ in kept)
        return {value["step"] for _, value in kept if value["kind"] == "eval"}

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Writes one line; `kind` is train or eval. NaN and infinities become null."""
        if not os.path.exists(self._path):
            checkpoint_store.check_is_there(os.path.dirname(self._path))
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

    def upload(self) -> None:
        """Uploads the new files, if the directory is in cloud storage."""
        mirrors.push(self._path, *(board.path for board in self._boards.values()))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the write that failed has reported it
            self._stream.close()
        for board in self._boards.values():
            with contextlib.suppress(OSError):
                board.close()
        self.upload()


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


def write_results(directory: str, results: Mapping[str, float], name: str = "eval_results") -> str:
    """Publishes `<name>.txt` (`key = value` lines, sorted) and `<name>.json`; returns the first."""
    files.write_json(os.path.join(directory, f"{name}.json"), dict(results))
    path = os.path.join(directory, f"{name}.txt")
    with files.atomic_write(path) as stream:
        stream.writelines(f"{key} = {results[key]}\n" for key in sorted(results))
    return path
