"""The computing end of a benchmark. Imports nothing from the project: peers use it too.

A side is a program that starts with a specification (JSON), prepares its work, computes it once to
compare outputs, and then does one turn per line of its standard input. It answers with JSON lines
on its original standard output; anything that libraries print goes to standard error.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def serve(
    prepare: Callable[[Mapping[str, Any]], tuple[Callable[[], Any], Mapping[str, Any]]],
    gpu_peak_bytes: Callable[[], int] | None = None,
):
    """Runs a side: `prepare(spec)` returns (one turn's work, outputs to compare).

    `gpu_peak_bytes` returns the peak GPU memory, if the side computes on a GPU.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    with open(sys.argv[1]) as stream:
        spec = json.load(stream)
    if spec["threads"] == 1:  # whatever threads libraries start
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    on_gpu = spec.get("device") == "gpu"
    peak = gpu_peak_bytes if on_gpu and gpu_peak_bytes else peak_bytes
    started = time.perf_counter()
    turn, outputs = prepare(spec)
    np.savez(spec["outputs"], **{k: np.asarray(v, np.float32) for k, v in outputs.items()})
    if not spec.get("is_warm"):
        turn()  # the first call compiles or traces
    answer(prepared=time.perf_counter() - started)
    for _ in sys.stdin:
        started = time.perf_counter()
        turn()
        answer(seconds=time.perf_counter() - started, peak_bytes=peak())


def peak_bytes() -> int:
    """Returns the peak resident memory of this process, or of a larger one that it has run."""
    with open("/proc/self/status") as stream:  # getrusage would count what the parent held, too
        [line] = [line for line in stream if line.startswith("VmHWM")]
    return max(int(line.split()[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10


def load_rows(spec: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the arrays of the specification's inputs."""
    with np.load(spec["inputs"]) as arrays:
        return {name: arrays[name] for name in arrays.files}


def read_lines(spec: Mapping[str, Any]) -> list[str]:
    """Returns the lines of the specification's text."""
    with open(spec["text"], encoding="utf-8", newline="\n") as stream:
        return stream.read().split("\n")


def tensorflow_gpu_peak_bytes() -> int:
    """Returns TensorFlow's peak memory on the first GPU."""
    import tensorflow as tf

    return tf.config.experimental.get_memory_info("GPU:0")["peak"]
