"""Kills training at random moments, repeatedly, and checks that the results do not change.

  python scripts/maintainers/chaos.py                       # pretraining, 20 kills
  python scripts/maintainers/chaos.py --workers=2           # two that train together, over loopback
  python scripts/maintainers/chaos.py --work=data           # create_pretraining_data
  python scripts/maintainers/chaos.py --kills=5 --steps=400 --seed=7 --directory=/tmp/chaos

First, the command runs without interruption. Then it runs again in another directory: it is
killed after a random time (with SIGTERM and SIGKILL in turn) and restarted, --kills times; the
last process runs to its end. With several workers, one is killed, and all are restarted.
Dropout is on, and the run is longer than an epoch. Pretraining must produce the same weights
and moments, bit for bit, and the same metrics.jsonl, except for speed and seconds. Data
creation must produce the same bytes, and never an incomplete file.

Prints one line; exits with 0 if nothing differs, 1 otherwise.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

LENGTH, PREDICTIONS, WORDS = 16, 3, 60
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONFIG = {
    "vocab_size": WORDS + len(SPECIALS), "embedding_size": 8, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": LENGTH, "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
GRACE = 600.0  # seconds that a process may take to start or to end; machines are busy


def free_ports(count: int) -> list[int]:
    """Returns local ports that nothing listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Difference(Exception):
    """The interrupted run's results differ from the uninterrupted run's."""


class Process:
    """A running command, in its own process group; its output goes to a file."""

    def __init__(self, module: str, arguments: list[str], extra: dict[str, str]):
        environment = {"PYTHONPATH": str(REPO), "TF_CPP_MIN_LOG_LEVEL": "3", **extra}
        self._stderr = tempfile.TemporaryFile("w+")  # a pipe that nobody reads fills up
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], env=os.environ | environment,
            stdout=subprocess.DEVNULL, stderr=self._stderr, start_new_session=True,
        )

    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def end(self, timeout: float | None = None) -> int:
        """Waits for the process and returns its exit code; kills it after `timeout` seconds.

        Raises:
          Difference: it had to be killed.
        """
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Difference(f"still running after {timeout:.0f} s: {self.last_line()}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def last_line(self) -> str:
        self._stderr.seek(0)
        return (self._stderr.read().strip().splitlines() or ["no message"])[-1]


class Storm:
    """Starts one command repeatedly, on one or several workers, and kills it."""

    # Exit codes of a killed process: 143 saved its step, -15 was not training yet or any more,
    # 0 had just finished, 75 lost another worker.
    EXPECTED = {
        signal.SIGTERM: {143, -signal.SIGTERM, 0},
        signal.SIGKILL: {-signal.SIGKILL, 75, 0},
    }

    def __init__(self, module: str, kills: int, seed: int, workers: int = 1):
        self.module, self.kills, self.workers = module, kills, workers
        self._random = random.Random(seed)
        self.exit_codes: list[list[int]] = []

    def start(self, arguments: list[str]) -> list[Process]:
        """Starts the command on each worker."""
        if self.workers == 1:
            return [Process(self.module, arguments, {})]
        addresses = [f"127.0.0.1:{port}" for port in free_ports(self.workers)]
        configs = [
            {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            for index in range(self.workers)
        ]
        return [
            Process(self.module, arguments, {"TF_CONFIG": json.dumps(config)})
            for config in configs
        ]

    def to_end(self, arguments: list[str]) -> None:
        """Runs the command to its end."""
        self._end(self.start(arguments), {0})

    def _end(self, processes: list[Process], expected: set[int], timeout=None) -> list[int]:
        """Returns the exit codes.

        Raises:
          Difference: one is not among the expected ones, or a process does not end.
        """
        try:
            codes = [process.end(timeout) for process in processes]
            for code, process in zip(codes, processes, strict=True):
                if code not in expected:
                    raise Difference(f"exit {code}: {process.last_line()}")
            return codes
        finally:
            for process in processes:
                process.kill()

    def rage(self, arguments: list[str], is_under_way, patience: float, between=None) -> None:
        """Kills one process of the command `kills` times, restarting all of them each time.

        Each is killed at most `patience` seconds after `is_under_way()` is true: there
        is something to lose; `between()` inspects the files that a kill leaves.
        """
        for number in range(self.kills):
            processes = self.start(arguments)
            victim = self._random.choice(processes)
            deadline = time.monotonic() + GRACE
            while not is_under_way() and all(process.is_alive() for process in processes):
                if time.monotonic() > deadline:
                    said = processes[0].last_line()
                    for process in processes:
                        process.kill()
                    raise Difference(f"nothing was saved within {GRACE:.0f} s: {said}")
                time.sleep(0.005)
            time.sleep(self._random.random() * patience)
            kind = (signal.SIGTERM, signal.SIGKILL)[number % 2]
            if victim.is_alive():
                os.kill(victim.popen.pid, kind)
            self.exit_codes.append(self._end(processes, self.EXPECTED[kind], GRACE))
            if between:
                between()
        self.to_end(arguments)


def _write_text(folder: pathlib.Path, documents: int) -> list[str]:
    """Writes a vocabulary and a corpus; returns data creation's flags for them."""
    words = [f"w{i}" for i in range(WORDS)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *words]) + "\n")
    chosen = random.Random(1)
    texts = [
        "\n".join(" ".join(chosen.choices(words, k=8)) for _ in range(10))
        for _ in range(documents)
    ]
    (folder / "corpus.txt").write_text("\n\n".join(texts) + "\n")
    return [
        f"--input_file={folder}/corpus.txt", f"--vocab_file={folder}/vocab.txt",
        f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}",
    ]


def pretraining_flags(folder: pathlib.Path, num_train_steps: int) -> list[str]:
    """Writes records and a configuration; returns pretraining flags, without --output_dir."""
    data = Storm("albert.create_pretraining_data", 0, 0)
    records = folder / "train.tfrecord"
    data.to_end([*_write_text(folder, 40), f"--output_file={records}", "--dupe_factor=1",
                 "--num_processes=1"])
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return [
        f"--albert_config_file={folder}/config.json", f"--input_file={records}",
        f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}",
        "--train_batch_size=8", "--eval_batch_size=8", "--max_eval_steps=2", "--do_eval",
        f"--num_train_steps={num_train_steps}", "--num_warmup_steps=10",
        f"--save_checkpoints_steps={max(1, num_train_steps // 40)}", "--log_steps=3",
        "--learning_rate=0.01", "--keep_checkpoint_max=2",
    ]


def pretraining(folder: pathlib.Path, arguments: argparse.Namespace) -> str:
    """Compares an interrupted pretraining run with an uninterrupted one; describes the result."""
    from albert.formats import checkpoints

    common = pretraining_flags(folder, arguments.steps)
    if arguments.workers > 1:  # TensorFlow trains on one machine
        common.append("--engine=jax")
    storm = Storm("albert.run_pretraining", arguments.kills, arguments.seed, arguments.workers)
    whole, torn = folder / "whole", folder / "torn"
    storm.to_end([*common, f"--output_dir={whole}"])

    def newest() -> int:
        return max(checkpoints.list_steps(str(torn)), default=0)

    reached = [0]

    def is_under_way() -> bool:
        return newest() > reached[0] or newest() >= arguments.steps

    def between() -> None:
        if newest() < reached[0]:
            raise Difference(f"step {reached[0]} was saved, {newest()} is left")
        reached[0] = newest()

    storm.rage([*common, f"--output_dir={torn}"], is_under_way, arguments.patience, between)
    _compare_runs(whole, torn, arguments.steps)
    while_training = sum(bool({143, -signal.SIGKILL} & set(codes)) for codes in storm.exit_codes)
    return (
        f"{arguments.workers} worker(s), {arguments.steps} steps, {len(storm.exit_codes)} kills "
        f"({while_training} while training): weights, moments and metrics.jsonl bit-equal"
    )


def _compare_runs(whole: pathlib.Path, torn: pathlib.Path, step: int) -> None:
    from albert.formats import checkpoints

    for name in (f"model.ckpt-{step}", "model.ckpt-best"):
        ours, theirs = (checkpoints.open_weights(str(d / name)) for d in (whole, torn))
        if set(ours.shapes) != set(theirs.shapes):
            raise Difference(f"{name} has other tensors")
        for tensor in ours.shapes:
            if ours.read(tensor).tobytes() != theirs.read(tensor).tobytes():
                raise Difference(f"{name} differs in {tensor}")
    lines = [_metrics(d) for d in (whole, torn)]
    for ours, theirs in zip(*lines, strict=False):
        if ours != theirs:
            raise Difference(f"metrics differ: {ours} became {theirs}")
    if len(lines[0]) != len(lines[1]):
        raise Difference(f"{len(lines[0])} lines of metrics became {len(lines[1])}")
    _look_for_litter(torn)


def _metrics(folder: pathlib.Path) -> list[dict]:
    """Returns the lines of metrics.jsonl without the values that depend on the clock."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    clock = ("tokens_per_second", "seconds")
    return [{k: v for k, v in line.items() if k not in clock} for line in lines]


def _look_for_litter(folder: pathlib.Path) -> None:
    left = [path.name for path in folder.rglob("*") if ".tmp" in path.name]
    if left:
        raise Difference(f"left behind: {', '.join(left)}")


def data_creation(folder: pathlib.Path, arguments: argparse.Namespace) -> str:
    """Compares interrupted with uninterrupted data creation; describes the result."""
    from albert.records import manifests, tfrecord

    text = _write_text(folder, arguments.documents)
    storm = Storm("albert.create_pretraining_data", arguments.kills, arguments.seed)
    common = [*text, "--dupe_factor=4", "--num_processes=2"]
    whole, torn = folder / "whole", folder / "torn"
    outputs = {d: [d / f"{i}.tfrecord" for i in range(3)] for d in (whole, torn)}

    def flags_of(directory: pathlib.Path) -> list[str]:
        return [*common, f"--output_file={','.join(map(str, outputs[directory]))}"]

    started = time.monotonic()
    storm.to_end(flags_of(whole))
    patience = 0.8 * (time.monotonic() - started)

    def between() -> None:
        for path in outputs[torn]:
            if path.exists():
                len(list(tfrecord.read_records(str(path))))

    storm.rage(flags_of(torn), lambda: True, patience, between)
    for ours, theirs in zip(*outputs.values(), strict=True):
        if ours.read_bytes() != theirs.read_bytes():
            raise Difference(f"{theirs.name} has other bytes")
        ours, theirs = (manifests.Manifest.read(str(path)) for path in (ours, theirs))
        for manifest in (ours, theirs):
            del manifest.info["flags"]["output_file"]
        if ours != theirs:
            raise Difference("a manifest says something else")
    _look_for_litter(torn)
    unfinished = sum(any(codes) for codes in storm.exit_codes)
    return f"{len(storm.exit_codes)} kills ({unfinished} before the end): records bit-equal"


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", choices=["pretraining", "data"], default="pretraining")
    parser.add_argument("--workers", type=int, default=1,
                        help="processes that train together, for --work=pretraining")
    parser.add_argument("--kills", type=int, default=20, help="how often it is killed")
    parser.add_argument("--steps", type=int, default=4000, help="training steps in all")
    parser.add_argument("--documents", type=int, default=1500, help="of the text for --work=data")
    parser.add_argument("--patience", type=float, default=1.5,
                        help="most seconds of training between a start and a kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--directory", help="where to work; kept. A temporary one by default")
    arguments = parser.parse_args(argv)
    folder = pathlib.Path(arguments.directory or tempfile.mkdtemp(prefix="chaos-")).resolve()
    if arguments.directory and folder.exists() and any(folder.iterdir()):
        parser.error(f"--directory: {folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    work = {"pretraining": pretraining, "data": data_creation}[arguments.work]
    started = time.monotonic()
    try:
        print(f"passed: {work(folder, arguments)}, in {time.monotonic() - started:.0f} s")
    except Difference as difference:
        print(f"FAILED: {difference}; see {folder}")
        return 1
    if not arguments.directory:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
