"""Measures memory and cores of create_pretraining_data on a text of any size.

  python scripts/maintainers/measure_data_creation.py --gigabytes=1 --output_dir=measured \\
      -- --dupe_factor=1 --max_seq_length=128

Writes a text of random words (with a language's frequencies: Zipf's law) and a vocabulary,
or repeats --input_file until there is enough of it. It runs the command in a separate
process with the flags that follow `--`, and monitors it and all its workers: their peak
total memory (shared pages count once), and CPU time over wall time. With --kills, it then
runs the command again, kills it that many times with its workers, and restarts it each
time; the records must have the same bytes. It prints the results and writes them to
data_creation.json and .md, and checks and removes the records.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

REPOSITORY = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
sys.path.insert(0, REPOSITORY)

from albert.cli import flags
from albert.errors import FlagError, UserError  # noqa: E402
from albert.formats.model_card import table  # noqa: E402
from albert.records import manifests  # noqa: E402
from albert.storage import files  # noqa: E402

WORDS = 20_000
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def define_flags(values: flags.FlagValues) -> None:
    flags.define("float", values, "gigabytes", 1.0, "Size of the text, in 10^9 bytes.", above=0)
    flags.define("string", values, "output_dir", None, "Where the figures go. Required.")
    flags.define("string", values, "input_file", None,
                 "Text to repeat, instead of random words; needs --spm_model_file.")
    flags.define("string", values, "spm_model_file", None, "SentencePiece model of that text.")
    flags.define("integer", values, "kills", 0, "Times that a second run is killed.", lower_bound=0)
    flags.define("string", values, "work_dir", None,
                 "Where text and records lie meanwhile; by default --output_dir.")


def write_text(path: str, size: int) -> None:
    """Writes sentences of 3 to 40 words, in documents of 1 to 40, up to `size` bytes."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, WORDS + 1)
    words = np.array(vocabulary())
    with open(path, "w", encoding="utf-8") as stream:
        while stream.tell() < size:
            drawn = iter(words[rng.choice(WORDS, 400_000, p=share / share.sum())].tolist())
            lengths = rng.integers(3, 41, 18_000)
            ends = np.cumsum(rng.integers(1, 41, 18_000))
            lines = [" ".join(next(drawn, "") for _ in range(length)) for length in lengths]
            for end in ends[ends < len(lines)][::-1].tolist():
                lines.insert(end, "")
            stream.write("\n".join(lines) + "\n\n")


def repeat_text(path: str, source: str, size: int) -> None:
    """Writes a text repeatedly, separated by blank lines, up to `size` bytes."""
    with open(path, "wb") as stream:
        while stream.tell() < size:
            with open(source, "rb") as part:
                shutil.copyfileobj(part, stream, 1 << 20)
            stream.write(b"\n\n")


def vocabulary() -> list[str]:
    """Returns made-up words; the first ones are short, as common words are."""
    letters = "etaoinsrhldcumfpgwybvkxjqz"
    found = []
    for number in range(WORDS):
        word, rest = "", number
        while True:
            word, rest = word + letters[rest % 26], rest // 26
            if not rest:
                break
        found.append(word + "aeiou"[number % 5])
    return found


class Watch(threading.Thread):
    """Monitors a process and its descendants until it ends."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid, self.most, self.most_of_one, self.processes = pid, 0, 0, 0

    def run(self) -> None:
        while os.path.exists(f"/proc/{self.pid}/smaps_rollup"):
            sizes = [proportional_bytes(pid) for pid in descendants(self.pid)]
            self.most = max(self.most, sum(sizes))
            self.most_of_one = max(self.most_of_one, *sizes, 0)
            self.processes = max(self.processes, len(sizes))
            time.sleep(0.2)


def descendants(pid: int) -> list[int]:
    """Returns a process and those that it started, directly or indirectly."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as stream:
            children = [int(word) for word in stream.read().split()]
    except OSError:
        return [pid]
    return [pid] + [each for child in children for each in descendants(child)]


def proportional_bytes(pid: int) -> int:
    """Returns a process's proportional resident memory (PSS); 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as stream:
            return next(int(line.split()[1]) << 10 for line in stream if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def main(values: flags.FlagValues, arguments: list[str]) -> None:
    flags.require(values, "output_dir")
    if bool(values.input_file) != bool(values.spm_model_file):
        raise FlagError("--input_file and --spm_model_file go together")
    for name in ("input_file", "spm_model_file"):
        if values[name].value:
            files.require_file(values[name].value, name)
    out = files.make_dirs(values.output_dir)
    work = files.make_dirs(values.work_dir or out)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        figures = measure(values, folder, round(values.gigabytes * 1e9), arguments)
    files.write_json(os.path.join(out, "data_creation.json"), figures)
    rows = [(name.replace("_", " "), value) for name, value in figures.items()]
    text = table(("data creation", ""), rows)
    with files.atomic_write(os.path.join(out, "data_creation.md")) as stream:
        stream.write(text)
    print(text, end="")


def measure(values: flags.FlagValues, folder: str, size: int, arguments: list[str]) -> dict:
    """Runs the command on a text of `size` bytes; returns the measurements."""
    text, output = os.path.join(folder, "text"), os.path.join(folder, "records")
    if values.input_file:
        repeat_text(text, values.input_file, size)
        pieces = f"--spm_model_file={os.path.abspath(values.spm_model_file)}"
    else:
        write_text(text, size)
        pieces = f"--vocab_file={os.path.join(folder, 'vocab.txt')}"
        with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as stream:
            stream.write("\n".join([*SPECIALS, *vocabulary()]) + "\n")
    command = [
        sys.executable, "-m", "albert.create_pretraining_data", f"--input_file={text}",
        pieces, f"--output_file={output}", "--dupe_factor=1", *arguments,
    ]
    started, before = time.monotonic(), os.times()
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True,
    )
    watch = Watch(process.pid)
    watch.start()
    _, said = process.communicate()
    seconds, after = time.monotonic() - started, os.times()
    if process.returncode:
        raise UserError((said.strip().splitlines() or ["the command failed"])[-1])
    watch.join()
    used = (after.children_user + after.children_system
            - before.children_user - before.children_system)
    manifest = manifests.Manifest.read(output)
    killed = {}
    if values.kills:
        digest = files.sha256(output)
        for path in (output, manifests.manifest_path(output)):
            os.unlink(path)
        killed = run_with_kills(command, values.kills, seconds)
        if files.sha256(output) != digest:
            raise UserError("the records of the killed run are others")
    return killed | {
        "text_bytes": os.path.getsize(text),
        "arguments": " ".join(arguments),
        "records": manifest.records,
        "record_bytes": manifest.bytes,
        "seconds": round(seconds, 1),
        "megabytes_of_text_a_second": round(os.path.getsize(text) / 1e6 / seconds, 3),
        "records_a_second": round(manifest.records / seconds, 1),
        "most_bytes_of_all_processes": watch.most,
        "most_bytes_of_one_process": watch.most_of_one,
        "processes": watch.processes,
        "cores_at_hand": len(os.sched_getaffinity(0)),
        "processor_seconds": round(used, 1),
        "cores_busy_on_average": round(used / seconds, 2),
        "last_line": json.dumps(said.strip().splitlines()[-1]),
    }


def run_with_kills(command: list[str], kills: int, seconds: float) -> dict:
    """Kills a command and its workers at even intervals, restarting it; returns the measurements."""
    started, went_on = time.monotonic(), []
    for number in range(kills + 1):
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        try:
            _, said = process.communicate(
                timeout=seconds / (kills + 1) if number < kills else None
            )
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _, said = process.communicate()
        went_on += [line for line in said.splitlines() if "going on with" in line]
    if process.returncode:
        raise UserError((said.strip().splitlines() or ["the command failed"])[-1])
    return {
        "kills": kills, "starts_that_went_on": len(went_on),
        "seconds_with_kills": round(time.monotonic() - started, 1),
        "records_after_kills": "the same bytes",
    }


cli = flags.command(__doc__, define_flags, main, takes_arguments=True)

if __name__ == "__main__":
    cli()
