"""What the parts of `gpu.sh` share: a report that survives a kill, and runs of the project's commands."""

import json
import os
import signal
import subprocess
import sys
import time

REPOSITORY = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
STARTED = time.monotonic()


class Report:
    """Results, printed as they come and kept in a JSON file that is always complete."""

    def __init__(self, path: str):
        self.path, self.results = path, {}

    def add(self, name: str, result) -> None:
        self.results[name] = result
        print(f"[{time.monotonic() - STARTED:5.0f} s] {name}: {json.dumps(result)}", flush=True)
        with open(self.path + ".new", "w") as stream:
            json.dump(self.results, stream, indent=1)
        os.replace(self.path + ".new", self.path)

    def attempt(self, name: str, make) -> None:
        """Adds `make()`, or what went wrong with it: one failure must not cost the other results."""
        try:
            self.add(name, make())
        except Exception as error:
            self.add(name, {"failed": f"{type(error).__name__}: {error}"[-1500:]})


def start(log: str, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen:
    """Starts `python COMMAND...` in the repository, with its output in the file `log`."""
    with open(log, "a") as stream:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=REPOSITORY, stdout=stream, stderr=stream,
            env=os.environ | (env or {}), start_new_session=True,
        )
    process.log, process.begun = log, time.monotonic()
    return process


def finish(process: subprocess.Popen, seconds: float) -> float:
    """Waits at most so long; returns the seconds that the process took.

    Raises:
      RuntimeError: it failed, or was killed because it took longer.
    """
    try:
        code = process.wait(max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.wait()
        code = "too slow"
    if code:
        with open(process.log, errors="replace") as stream:
            raise RuntimeError(f"{os.path.basename(process.log)}: {code}: {stream.read()[-1200:]}")
    return round(time.monotonic() - process.begun, 1)


def metrics(folder: str, kind: str = "train") -> dict[int, dict]:
    """Returns {step: values} of a run's lines of one kind; the last line of a step counts."""
    found = {}
    path = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(path):
        with open(path) as stream:
            for line in stream:
                row = json.loads(line)
                if row["kind"] == kind:
                    found[row["step"]] = row
    return found
