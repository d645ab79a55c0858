"""Runs commands that are killed by kill -9 at a chosen file operation, many of them a minute.

To load TensorFlow takes longer than a tiny run. So one process loads it, and
does nothing with it; each command is a fork of that, a real process of its own
which the kernel kills in the middle of whatever it does.
"""

import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from helpers import REPO

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")
NEVER = 1 << 30


class Nursery:
    """The process that commands are forked from."""

    def __init__(self):
        environment = {"PYTHONPATH": f"{REPO}:{REPO / 'tests'}", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mortal"], env=os.environ | environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )

    def run(
        self, module: str, flags: list[str], folder: pathlib.Path, last: int = NEVER,
        delay: float = 0.0, cwd: pathlib.Path | str = ".",
    ) -> tuple[int, int, str]:
        """Runs `python -m module`, or a script's path; returns (exit code, operations, stderr).

        It is killed `delay` seconds after its file operation number `last` below `folder`.
        """
        job = {"module": module, "flags": [*map(str, flags)], "folder": str(folder),
               "last": last, "delay": delay, "cwd": str(cwd)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["code"], answer["operations"], answer["stderr"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    try:
        yield made
    finally:
        made.close()


def _live(job: dict, counter: int, said) -> None:
    """The life of a forked command; it does not return."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(said.fileno(), 2)
        os.chdir(job["cwd"])
        operations = 0

        def die() -> None:
            time.sleep(job["delay"])
            os.kill(os.getpid(), signal.SIGKILL)

        def count(event, arguments):
            nonlocal operations
            if event not in OPERATIONS or not str(arguments[0]).startswith(job["folder"]):
                return
            if operations == job["last"]:
                threading.Thread(target=die).start() if job["delay"] else die()
            operations += 1
            os.pwrite(counter, str(operations).encode(), 0)

        sys.addaudithook(count)
        sys.argv = [job["module"], *job["flags"]]
        importlib.import_module(job["module"]).cli()
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:  # noqa: BLE001 (told, as an interpreter would)
        os.write(2, f"Traceback: {error!r}".encode())
    finally:
        os._exit(code)


def main() -> None:
    import tempfile

    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    from albert import (  # noqa: F401
        convert_hf,
        export_checkpoints,
        export_to_tfhub,
        run_classifier,
        run_race,
        run_squad_v1,
    )
    from albert.training import trainer  # noqa: F401

    for line in sys.stdin:
        with tempfile.TemporaryFile() as counter, tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                _live(json.loads(line), counter.fileno(), said)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            for stream in (counter, said):
                stream.seek(0)
            answer = {"code": code, "operations": int(counter.read() or b"0"),
                      "stderr": said.read().decode("utf-8", "replace")}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
