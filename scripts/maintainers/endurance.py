"""Checks that memory, open files and threads do not grow during a long pretraining run.

  python scripts/maintainers/endurance.py                        # 20,000 steps, 2,000 checkpoints
  python scripts/maintainers/endurance.py --steps=2000 --checkpoints=200 --json=figures.json

A real process pretrains a tiny model and saves and evaluates far more often than usual, so
that a small leak in each step, checkpoint or evaluation adds up. Its memory, open files and
threads are read from /proc. In the first quarter, buffers fill and graphs are traced. After
that nothing may grow: the second quarter is compared with the last.

Prints a table and writes JSON; exits with 0 if nothing grows, 1 otherwise.
Linux only.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "scripts/maintainers")]

import chaos  # noqa: E402 (needs the path)

INTERVAL = 1.0  # seconds between samples
ROWS = 20  # of the table
_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)\.index$")


@dataclasses.dataclass(frozen=True)
class Sample:
    """The resources that a process held at a step."""

    step: int  # of the newest checkpoint
    seconds: float  # since the start
    memory: float  # anonymous resident memory, MiB: what the process itself has written
    files: int  # open descriptors
    threads: int


@dataclasses.dataclass(frozen=True)
class Growth:
    """The level of one resource in the second and in the last quarter of the steps."""

    name: str
    early: float
    late: float
    allowed: float

    @property
    def is_leak(self) -> bool:
        return self.late - self.early > self.allowed


def look(pid: int, folder: pathlib.Path, started: float) -> Sample | None:
    """Returns the resources that a process holds now, or None if it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        files = len(os.listdir(f"/proc/{pid}/fd"))
        values = dict(re.findall(r"^(RssAnon|Threads):\s+(\d+)", status, re.MULTILINE))
        names = os.listdir(folder) if folder.is_dir() else []
        steps = [int(m[1]) for m in map(_CHECKPOINT.match, names) if m]
        return Sample(
            max(steps, default=0), round(time.monotonic() - started, 1),
            round(int(values["RssAnon"]) / 1024, 1), files, int(values["Threads"]),
        )
    except (OSError, KeyError):  # a process that ends loses its memory first
        return None


def judge(samples: list[Sample], steps: int, tolerance: float) -> list[Growth]:
    """Returns the growth of each resource between the second and the last quarter of the steps.

    Compares medians, because evaluations come and go; `tolerance` is in MiB of memory,
    while not one more file or thread is allowed.
    """
    early = [s for s in samples if steps / 4 <= s.step < steps / 2]
    late = [s for s in samples if steps * 3 / 4 <= s.step < steps]  # the end frees resources
    if len(early) < 3 or len(late) < 3:
        raise SystemExit("too few samples to judge by: the run is too short")
    found = []
    for name, allowed in (("memory", tolerance), ("files", 0.5), ("threads", 0.5)):
        levels = [statistics.median(getattr(s, name) for s in part) for part in (early, late)]
        found.append(Growth(name, *levels, allowed))
    return found


def watch(process: chaos.Process, folder: pathlib.Path) -> list[Sample]:
    """Samples a process until it ends."""
    samples, started = [], time.monotonic()
    while process.is_alive():
        sample = look(process.popen.pid, folder, started)
        if sample:
            samples.append(sample)
        time.sleep(INTERVAL)
    return samples


def pretrain(folder: pathlib.Path, steps: int, checkpoints: int) -> list[Sample]:
    """Trains, and returns samples of the process's resources."""
    storm = chaos.Storm("albert.run_pretraining", 0, 0)
    flags = chaos.pretraining_flags(folder, num_train_steps=steps)
    flags += [
        f"--save_checkpoints_steps={max(1, steps // checkpoints)}", "--max_eval_steps=1",
        f"--log_steps={max(1, steps // checkpoints)}", f"--output_dir={folder / 'out'}",
    ]
    [process] = storm.start(flags)
    try:
        samples = watch(process, folder / "out")
    finally:
        process.kill()
    if process.end():
        raise SystemExit(f"exit {process.end()}: {process.last_line()}")
    return samples


def table(samples: list[Sample]) -> str:
    """Returns some of the samples, evenly spaced, as lines."""
    shown = samples[:: max(1, len(samples) // ROWS)]
    lines = [f"{'step':>8} {'seconds':>8} {'MiB':>8} {'files':>6} {'threads':>8}"]
    lines += [
        f"{s.step:8,} {s.seconds:8.0f} {s.memory:8.1f} {s.files:6} {s.threads:8}" for s in shown
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20_000, help="training steps")
    parser.add_argument("--checkpoints", type=int, default=2_000,
                        help="checkpoints, each with an evaluation")
    parser.add_argument("--tolerance", type=float, default=8.0,
                        help="MiB that the memory may differ between two quarters of the run")
    parser.add_argument("--json", help="file for all samples; endurance.json by default",
                        default="endurance.json")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="endurance-") as name:
        samples = pretrain(pathlib.Path(name), arguments.steps, arguments.checkpoints)
    growths = judge(samples, arguments.steps, arguments.tolerance)
    pathlib.Path(arguments.json).write_text(json.dumps({
        "steps": arguments.steps, "checkpoints": arguments.checkpoints,
        "growth": {g.name: dataclasses.asdict(g) for g in growths},
        "samples": [dataclasses.asdict(s) for s in samples],
    }, indent=1) + "\n")
    print(table(samples))
    for growth in growths:
        print(f"{'GROWS' if growth.is_leak else 'steady'}: {growth.name}, {growth.early:,.1f} in "
              f"the second quarter, {growth.late:,.1f} in the last")
    return int(any(growth.is_leak for growth in growths))


if __name__ == "__main__":
    sys.exit(main())
