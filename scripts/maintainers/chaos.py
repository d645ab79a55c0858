"""Kills training at random moments, repeatedly, and checks that the results do not change.

  python scripts/maintainers/chaos.py                       # pretraining, 20 kills
  python scripts/maintainers/chaos.py --workers=2           # two that train together, over loopback
  python scripts/maintainers/chaos.py --work=data           # create_pretraining_data

First, the command runs without interruption. Then it runs again in another directory: it is killed
after a random time (with SIGTERM and SIGKILL in turn) and restarted, --kills times; the last process
runs to its end. With several workers, one is killed, and all are restarted. Dropout is on, and the run
is longer than an epoch. Pretraining must produce the same weights and moments, bit for bit, and the
same metrics.jsonl, except for speed and seconds. Data creation must produce the same bytes, and never
an incomplete file. Prints one line; exits with 0 if nothing differs, 1 otherwise.
"""

import argparse
import json
import os
import pathlib
import random
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
# Exit codes of a killed process: 143 saved its step, -15 was not training yet or any more, 0 had just
# finished, 75 lost another worker.
EXPECTED = {signal.SIGTERM: {143, -signal.SIGTERM, 0}, signal.SIGKILL: {-signal.SIGKILL, 75, 0}}


class Difference(Exception):
    """The interrupted run's results differ from the uninterrupted run's."""


class Storm:
    """Starts one command repeatedly, on one or several workers, and kills it."""

    def __init__(self, module: str, kills: int = 0, seed: int = 0, workers: int = 1):
        self.module, self.kills, self.workers = module, kills, workers
        self._random = random.Random(seed)
        self._log = tempfile.TemporaryFile("w+")  # a pipe that nobody reads fills up
        self.exit_codes: list[list[int]] = []

    def to_end(self, arguments: list[str]) -> None:
        """Runs the command to its end."""
        self._end(self._start(arguments), {0})

    def _start(self, arguments: list[str]) -> list[subprocess.Popen]:
        """Starts the command on each worker."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        common = os.environ | {"PYTHONPATH": str(REPO)}
        if self.workers > 1:
            arguments = [*arguments, "--distribution_strategy=multi_worker"]
            common |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(self.workers)}
        return [
            subprocess.Popen(
                [sys.executable, "-m", self.module, *arguments], stdout=subprocess.DEVNULL,
                stderr=self._log, start_new_session=True, env=common | {"JAX_PROCESS_ID": str(index)},
            )
            for index in range(self.workers)
        ]

    def _end(self, processes: list[subprocess.Popen], expected: set[int]) -> list[int]:
        """Returns the exit codes; raises a Difference for an unexpected one, or if one does not end."""
        try:
            codes = [process.wait(GRACE) for process in processes]
        except subprocess.TimeoutExpired:
            raise Difference(f"still running after {GRACE:.0f} s: {self._last_line()}") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if not set(codes) <= expected:
            raise Difference(f"exit codes {codes}: {self._last_line()}")
        return codes

    def _last_line(self) -> str:
        self._log.seek(0)
        return (self._log.read().strip().splitlines() or ["no message"])[-1]

    def rage(self, arguments: list[str], is_under_way, patience: float, between) -> None:
        """Kills one process of the command `kills` times, restarting all of them each time.

        Each is killed at most `patience` seconds after `is_under_way()` is true: there is something
        to lose; `between()` inspects the files that a kill leaves.
        """
        for number in range(self.kills):
            processes, kind = self._start(arguments), (signal.SIGTERM, signal.SIGKILL)[number % 2]
            victim, deadline = self._random.choice(processes), time.monotonic() + GRACE
            while not is_under_way() and all(process.poll() is None for process in processes):
                if time.monotonic() > deadline:
                    self._end(processes, set())
                time.sleep(0.005)
            time.sleep(self._random.random() * patience)
            if victim.poll() is None:
                victim.send_signal(kind)
            self.exit_codes.append(self._end(processes, EXPECTED[kind]))
            between()
        self.to_end(arguments)


def write_text(folder: pathlib.Path, documents: int) -> list[str]:
    """Writes a vocabulary and a corpus; returns data creation's flags for them."""
    words, rng = [f"w{i}" for i in range(WORDS)], random.Random(1)
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *words]) + "\n")
    texts = ["\n".join(" ".join(rng.choices(words, k=8)) for _ in range(10)) for _ in range(documents)]
    (folder / "corpus.txt").write_text("\n\n".join(texts) + "\n")
    return [f"--input_file={folder}/corpus.txt", f"--vocab_file={folder}/vocab.txt",
            f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}"]


def pretraining(folder: pathlib.Path, arguments: argparse.Namespace) -> str:
    """Compares an interrupted pretraining run with an uninterrupted one; describes the result."""
    from albert.formats import checkpoints

    records, steps = folder / "train.tfrecord", arguments.steps
    Storm("albert.create_pretraining_data").to_end(
        [*write_text(folder, 40), f"--output_file={records}", "--dupe_factor=1", "--num_processes=1"])
    (folder / "config.json").write_text(json.dumps(CONFIG))
    common = [
        f"--albert_config_file={folder}/config.json", f"--input_file={records}",
        f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}",
        "--train_batch_size=8", "--eval_batch_size=8", "--max_eval_steps=2", "--do_eval",
        f"--num_train_steps={steps}", "--num_warmup_steps=10", "--learning_rate=0.01",
        f"--save_checkpoints_steps={max(1, steps // 40)}", "--log_steps=1", "--keep_checkpoint_max=2",
    ]
    if arguments.workers > 1:  # TensorFlow trains on one machine
        common.append("--engine=jax")
    storm = Storm("albert.run_pretraining", arguments.kills, arguments.seed, arguments.workers)
    whole, torn, reached = folder / "whole", folder / "torn", [0]
    storm.to_end([*common, f"--output_dir={whole}"])

    def newest() -> int:
        return max(checkpoints.list_steps(str(torn)), default=0)

    def between() -> None:
        if newest() < reached[0]:
            raise Difference(f"step {reached[0]} was saved, {newest()} is left")
        reached[0] = newest()

    storm.rage([*common, f"--output_dir={torn}"], lambda: newest() > reached[0] or newest() >= steps,
               1.5, between)
    compare_runs(whole, torn, steps)
    while_training = sum(bool({143, -signal.SIGKILL} & set(codes)) for codes in storm.exit_codes)
    return (f"{arguments.workers} worker(s), {steps} steps, {len(storm.exit_codes)} kills "
            f"({while_training} while training): weights, moments and metrics.jsonl bit-equal")


def compare_runs(whole: pathlib.Path, torn: pathlib.Path, step: int) -> None:
    from albert.formats import checkpoints

    for name in (f"model.ckpt-{step}", "model.ckpt-best"):
        ours, theirs = (checkpoints.open_weights(str(d / name)) for d in (whole, torn))
        if set(ours.shapes) != set(theirs.shapes):
            raise Difference(f"{name} has other tensors")
        for tensor in ours.shapes:
            if ours.read(tensor).tobytes() != theirs.read(tensor).tobytes():
                raise Difference(f"{name} differs in {tensor}")
    clock = ("tokens_per_second", "seconds", "data_wait")
    ours, theirs = (
        [{k: v for k, v in json.loads(line).items() if k not in clock}
         for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (whole, torn))
    if ours != theirs:
        raise Difference(f"metrics differ: {len(ours)} lines, {len(theirs)} lines, first "
                         f"{next((pair for pair in zip(ours, theirs) if pair[0] != pair[1]), None)}")
    look_for_litter(torn)


def look_for_litter(folder: pathlib.Path) -> None:
    if left := [path.name for path in folder.rglob("*") if ".tmp" in path.name]:
        raise Difference(f"left behind: {', '.join(left)}")


def data_creation(folder: pathlib.Path, arguments: argparse.Namespace) -> str:
    """Compares interrupted with uninterrupted data creation; describes the result."""
    from albert.records import manifests, tfrecord

    storm = Storm("albert.create_pretraining_data", arguments.kills, arguments.seed)
    common = [*write_text(folder, arguments.documents), "--dupe_factor=4", "--num_processes=2"]
    whole, torn = ([folder / name / f"{i}.tfrecord" for i in range(3)] for name in ("whole", "torn"))
    started = time.monotonic()
    storm.to_end([*common, f"--output_file={','.join(map(str, whole))}"])
    patience = 0.8 * (time.monotonic() - started)

    def between() -> None:
        for path in filter(pathlib.Path.exists, torn):
            starts, _ = tfrecord.scan(str(path))
            tfrecord.read_block(str(path), 0, path.stat().st_size, 0, len(starts))

    storm.rage([*common, f"--output_file={','.join(map(str, torn))}"], lambda: True, patience, between)
    for ours, theirs in zip(whole, torn, strict=True):
        if ours.read_bytes() != theirs.read_bytes():
            raise Difference(f"{theirs.name} has other bytes")
        ours, theirs = (manifests.Manifest.read(str(path)) for path in (ours, theirs))
        for manifest in (ours, theirs):
            del manifest.info["flags"]["output_file"]
        if ours != theirs:
            raise Difference("a manifest says something else")
    look_for_litter(folder / "torn")
    unfinished = sum(any(codes) for codes in storm.exit_codes)
    return f"{len(storm.exit_codes)} kills ({unfinished} before the end): records bit-equal"


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=["pretraining", "data"], default="pretraining")
    parser.add_argument("--workers", type=int, default=1, help="processes that train together")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4000, help="of training")
    parser.add_argument("--documents", type=int, default=1500, help="of the text for --work=data")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--directory", help="an empty one to work in. Default: a temporary one")
    arguments = parser.parse_args(argv)
    folder = pathlib.Path(arguments.directory or tempfile.mkdtemp(prefix="chaos-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"--directory: {folder} is not empty")
    work, started = {"pretraining": pretraining, "data": data_creation}[arguments.work], time.monotonic()
    try:
        print(f"passed: {work(folder, arguments)}, in {time.monotonic() - started:.0f} s; see {folder}")
    except Difference as difference:
        print(f"FAILED: {difference}; see {folder}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
