"""Interrupts create_pretraining_data in five ways at random moments and measures the repeated work.

  python scripts/maintainers/interruptions.py --input_file=corpus.txt --spm_model_file=30k-clean.model

The five are SIGTERM, SIGINT, SIGKILL, a full disk (a limit on file size), and a text whose last line
is bad and then fixed. After each, the same command runs again and must write the same bytes as an
uninterrupted run. The repeated work is the time that both commands take beyond one, in percent of
one; it includes restarting the interpreter and rereading the text. Nothing else should be running.

Prints one line per interruption; exits with 1 if bytes differ.
"""

import argparse
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

REPO = pathlib.Path(__file__).resolve().parents[2]
WAYS = ("SIGTERM", "SIGINT", "SIGKILL", "full disk", "bad last line")


class Command:
    """create_pretraining_data on a text, with its output in a folder."""

    def __init__(self, folder: pathlib.Path, text: pathlib.Path, more: list[str]):
        self.folder, self.text, self.seconds = folder, text, 0.0
        self._argv = [
            sys.executable, "-m", "albert.create_pretraining_data", f"--input_file={text}",
            f"--output_file={folder}/out.tfrecord", *more,
        ]

    def run(self, code: int | None = 0, after: float = 0.0, number: int = 0,
            file_limit: int = resource.RLIM_INFINITY) -> int:
        """Runs to the end, or sends a signal `after` seconds; adds to `seconds`; returns the exit code."""
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                self._argv, cwd=REPO, stderr=log, preexec_fn=limit,
                env=os.environ | {"PYTHONPATH": str(REPO)},
            )
            if number:
                time.sleep(after)
                process.send_signal(number)
            found = process.wait()
            log.seek(0)
            if code is not None and found != code:
                raise SystemExit(f"exit {found}:\n{log.read()}")
        self.seconds += time.monotonic() - start
        return found

    def take_output(self) -> bytes:
        """Returns the content of the record file, and removes all output."""
        content = (self.folder / "out.tfrecord").read_bytes()
        for path in self.folder.glob("out.tfrecord*"):
            path.unlink()
        assert not any(self.folder.iterdir()), sorted(self.folder.iterdir())
        return content


def interrupt(command: Command, way: str, rng: random.Random, seconds: float, size: int) -> bool:
    """Runs a command and interrupts it; returns whether the interruption came before its end."""
    if way == "full disk":
        return command.run(None, file_limit=rng.randrange(size // 20, size)) != 0
    elif way == "bad last line":
        content = command.text.read_bytes()
        command.text.write_bytes(content + b"a line with a \0 byte\n")
        command.run(2)
        command.text.write_bytes(content)
        return True
    return command.run(None, rng.uniform(0.1, 1) * seconds, getattr(signal, way)) != 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input_file", required=True)
    parser.add_argument("--times", type=int, default=10, help="interruptions of each kind")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this one; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    arguments, more = parser.parse_known_args()
    rng, exit_code = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        text, folder = pathlib.Path(scratch, "corpus.txt"), pathlib.Path(scratch, "out")
        folder.mkdir()
        shutil.copy(arguments.input_file, text)
        whole = Command(folder, text, more)
        whole.run()
        seconds = whole.seconds
        expected = whole.take_output()
        for way in arguments.way or WAYS:
            redone = []
            for _ in range(arguments.times):
                command = Command(folder, text, more)
                while not interrupt(command, way, rng, seconds, len(expected)):
                    command.take_output()
                    command.seconds = 0.0
                command.run()
                if command.take_output() != expected:
                    print(f"{way}: other bytes")
                    exit_code = 1
                redone.append(100 * (command.seconds / seconds - 1))
            redone.sort()
            print(f"{way}: redone {redone[len(redone) // 2]:.1f} % (median), {redone[-1]:.1f} % "
                  f"(most) of {seconds:.0f} s", flush=True)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
