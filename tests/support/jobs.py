"""Tiny jobs for the commands, for tests of failures."""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import helpers
import numpy as np
from helpers import (
    PREDICTIONS, REPO, VOCAB, metrics, start, write_config, write_pretraining_records,
)

from albert import (
    create_pretraining_data, export_to_tfhub, predict, run_classifier, run_pretraining, run_race,
    run_squad_v1, run_token_classifier,
)
from albert.cli import flags as cli_flags
from albert.formats import checkpoints
from albert.storage import files

PRETRAINING = "albert.run_pretraining"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{i}" for i in range(VOCAB - len(SPECIALS))]
TUNED = {"num_hidden_layers": 1, "initializer_range": 0.3}  # answers differ between rows


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's output directory, and the flags that made it."""

    out: pathlib.Path
    flags: list[str]

    def copy(self, out: pathlib.Path, step: int | None = None) -> "Run":
        """Returns a copy of the run, or of its state when `step` had just been saved."""
        shutil.copytree(self.out, out)
        if step is not None:
            kept = (".lock", "albert_config.json", "metrics.jsonl", f"model.ckpt-{step}.*")
            for path in out.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif not any(path.match(pattern) for pattern in kept):
                    path.unlink()
            lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
            values = [(line, json.loads(line)) for line in lines]
            (out / "metrics.jsonl").write_text("".join(
                line for line, value in values
                if value["step"] < step or value["step"] == step and value["kind"] == "train"
            ))
        return Run(out, [*self.flags, f"--output_dir={out}"])


def command(module, *arguments: str) -> int:
    """Runs a command's module in this process; returns its exit code."""
    if module is not create_pretraining_data:  # the others import TensorFlow
        helpers.use_plain_graphs()
    return helpers.run_here(module, *arguments)


pretrain = functools.partial(command, run_pretraining)
classify = functools.partial(command, run_classifier)
squad = functools.partial(command, run_squad_v1)
race = functools.partial(command, run_race)
label_words = functools.partial(command, run_token_classifier)
create_data = functools.partial(command, create_pretraining_data)
export_hub = functools.partial(command, export_to_tfhub)


def as_flags(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def pretraining_flags(folder: pathlib.Path, **changes) -> list[str]:
    """23 steps of 4 records each, out of 40; saved every 10."""
    values = {
        "albert_config_file": write_config(folder, num_hidden_layers=1),
        "input_file": write_pretraining_records(folder / "train.tfrecord"),
        "output_dir": folder / "out", "max_seq_length": 12,
        "max_predictions_per_seq": PREDICTIONS, "train_batch_size": 4, "eval_batch_size": 4,
        "max_eval_steps": 2, "num_train_steps": 23, "num_warmup_steps": 3,
        "save_checkpoints_steps": 10, "log_steps": 1, "learning_rate": 0.01,
    }
    return as_flags(values | changes)


def write_vocabulary(folder: pathlib.Path) -> str:
    path = folder / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, *WORDS]) + "\n")
    return str(path)


def save_encoder(folder: pathlib.Path) -> str:
    """Saves a small pretrained model with its vocabulary; returns the flag that starts from it."""
    import keras

    import albert

    keras.utils.set_random_seed(1)
    config = albert.AlbertConfig.from_json_file(
        helpers.write_config(folder, **TUNED, max_position_embeddings=64)
    )
    albert.AlbertForPreTraining(config).save_pretrained(str(folder / "model"))
    write_vocabulary(folder / "model")
    return f"--init_checkpoint={folder / 'model'}"


def write_corpus(folder: pathlib.Path, documents: int = 30) -> str:
    path = folder / "corpus.txt"
    texts = [
        "\n".join(" ".join(WORDS[(d + n + i) % len(WORDS)] for i in range(6)) for n in range(6))
        for d in range(documents)
    ]
    path.write_text("\n\n".join(texts) + "\n")
    return str(path)


def data_flags(folder: pathlib.Path, **changes) -> list[str]:
    values = {
        "input_file": write_corpus(folder), "output_file": folder / "out.tfrecord",
        "vocab_file": write_vocabulary(folder), "max_seq_length": 12,
        "max_predictions_per_seq": PREDICTIONS, "dupe_factor": 2, "num_processes": 1,
    }
    return as_flags(values | changes)


def write_task(folder: pathlib.Path, rows: int = 12) -> pathlib.Path:
    """Writes texts in SST-2's format, labelled by whether the first word's number is even."""
    (folder / "SST-2").mkdir(exist_ok=True)
    texts = [f"{WORDS[i % len(WORDS)]} {WORDS[2 * i % len(WORDS)]}" for i in range(rows)]
    labelled = [f"{text}\t{i % 2}" for i, text in enumerate(texts)]
    for split, lines in {
        "train": ["sentence\tlabel", *labelled], "dev": ["sentence\tlabel", *labelled],
        "test": ["index\tsentence", *(f"{i + 100}\t{text}" for i, text in enumerate(texts))],
    }.items():
        (folder / f"SST-2/{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def classifier_flags(folder: pathlib.Path, **changes) -> list[str]:
    values = {
        "data_dir": write_task(folder), "task_name": "sst-2", "output_dir": folder / "out",
        "albert_config_file": write_config(folder, **TUNED),
        "vocab_file": write_vocabulary(folder), "max_seq_length": 8, "train_step": 6,
        "save_checkpoints_steps": 3,
        "train_batch_size": 4, "eval_batch_size": 5, "predict_batch_size": 5, "log_steps": 1,
    }
    return as_flags(values | changes)


def write_squad(folder: pathlib.Path) -> str:
    """Writes passages of four words with a question each, whose answer is the second word."""
    paragraphs = [
        {"context": f"w{i} w{i + 9} w{i + 1} w{i + 2}", "qas": [{
            "id": f"q{i}", "question": "w5 w6?",
            "answers": [{"text": f"w{i + 9}", "answer_start": len(f"w{i} ")}],
        }]} for i in range(8)
    ]
    path = folder / "squad.json"
    path.write_text(json.dumps({"version": "1.1", "data": [
        {"title": "t", "paragraphs": paragraphs}
    ]}))
    return str(path)


def squad_flags(folder: pathlib.Path, **changes) -> list[str]:
    """Flags of a tiny SQuAD 1.1 run: 4 steps of 4 questions."""
    data = write_squad(folder)
    values = {
        "train_file": data, "predict_file": data, "output_dir": folder / "out",
        "albert_config_file": write_config(folder, **TUNED),
        "vocab_file": write_vocabulary(folder), "max_seq_length": 14, "doc_stride": 4,
        "max_query_length": 6, "train_batch_size": 4, "predict_batch_size": 4,
        "num_train_epochs": 2, "save_checkpoints_steps": 2, "do_train": True, "do_predict": True,
        "log_steps": 1,
    }
    return as_flags(values | changes)


def write_race(folder: pathlib.Path, passages: int = 4) -> pathlib.Path:
    """Writes passages in the archive's layout, with one question each, or two at the high level."""
    for split in ("train", "dev", "test"):
        for level, count in (("middle", 1), ("high", 2)):
            place = folder / "RACE" / split / level
            place.mkdir(parents=True)
            for i in range(passages):
                (place / f"{i}.txt").write_text(json.dumps({
                    "id": f"{level}{i}.txt", "article": f"w{i} w{i + 1}",
                    "questions": ["w3 _", "w4"][:count],
                    "options": [[f"w{(i + n) % 4}" for n in range(4)], ["w6", "w7", "w8", "w9"]][:count],
                    "answers": ["ABCD"[-i % 4], "B"][:count],
                }))
    return folder


def race_flags(folder: pathlib.Path, **changes) -> list[str]:
    """Flags of a tiny RACE run: 4 steps of 4 questions each, out of 12."""
    values = {
        "data_dir": write_race(folder), "output_dir": folder / "out",
        "albert_config_file": write_config(folder, **TUNED),
        "vocab_file": write_vocabulary(folder), "max_seq_length": 14, "max_qa_length": 6,
        "train_step": 4, "warmup_step": 1, "save_checkpoints_steps": 2, "train_batch_size": 4,
        "eval_batch_size": 4, "predict_batch_size": 4, "do_predict": True, "log_steps": 1,
    }
    return as_flags(values | changes)


def token_flags(folder: pathlib.Path, **changes) -> list[str]:
    """Flags of a tiny run on labelled words: 4 steps of 4 sentences."""
    for split in ("train", "dev", "test"):
        (folder / f"{split}.txt").write_text("".join(
            f"w{i} x B-PER\nw{i + 1} x I-PER\nw{i + 2} x O\n\n" for i in range(8)
        ))
    values = {
        "data_dir": folder, "output_dir": folder / "out",
        "albert_config_file": write_config(folder, **TUNED),
        "vocab_file": write_vocabulary(folder), "max_seq_length": 8, "train_step": 4,
        "warmup_step": 1, "save_checkpoints_steps": 2, "train_batch_size": 4,
        "eval_batch_size": 4, "predict_batch_size": 4, "log_steps": 1,
    }
    return as_flags(values | changes)


@dataclasses.dataclass(frozen=True)
class Tuner:
    """A fine-tuning command, its flags for a tiny run, and its output files."""

    run: Callable[..., int]
    flags: Callable[..., list[str]]
    asked: tuple[str, ...]  # the actions to perform
    last: int  # the last step; it saves half-way too
    results: tuple[str, ...]
    task: str
    metric: str  # selects the best checkpoint


TUNERS = {
    "classifier": Tuner(
        classify, classifier_flags, ("--do_train", "--do_eval", "--do_predict"), 6,
        ("eval_results.txt", "test_results.tsv"), "sst-2", "eval_accuracy",
    ),
    "squad": Tuner(
        squad, squad_flags, (), 4,
        ("eval_results.txt", "predictions.json", "nbest_predictions.json"), "squad_v1", "f1",
    ),
    "race": Tuner(
        race, race_flags, (), 4, ("eval_results.txt", "test_results.tsv"), "race",
        "eval_accuracy",
    ),
    "tokens": Tuner(
        label_words, token_flags, ("--do_train", "--do_eval", "--do_predict"), 4,
        ("eval_results.txt", "test_predictions.txt"), "token_classification", "eval_f1",
    ),
}


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen]:
    """Starts pretraining, and kills it at the end, whatever the outcome of the test."""
    process = start(PRETRAINING, *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream.close()


def wait_for(path: pathlib.Path, process: subprocess.Popen, seconds: float = 120) -> None:
    """Returns when the file is there or the process has ended."""
    deadline = time.monotonic() + seconds
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def ask(folder: pathlib.Path, model: pathlib.Path | str, lines: list[str], *flags: str) -> list:
    """Returns albert.predict's answers to the lines."""
    (folder / "lines.txt").write_text("".join(line + "\n" for line in lines))
    helpers.use_plain_graphs()
    predict.main(cli_flags.parse(predict.define_flags, [
        "x", f"--model={model}", f"--input_file={folder}/lines.txt",
        f"--output_file={folder}/answers.jsonl", "--batch_size=4", *flags,
    ]))
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def python(code: str, *arguments) -> str:
    """Runs code in a separate process; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=REPO, capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_children_end_with_a_killed_command(folder: pathlib.Path, code: str, *arguments: str) -> None:
    """Runs code that prints the pids of its processes and waits, kills it, and waits for their end."""
    (folder / "command.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, folder / "command.py", *arguments], stdout=subprocess.PIPE, cwd=REPO,
        env=os.environ | {"PYTHONPATH": str(REPO)}, text=True,
    )
    pids = process.stdout.readline().split()
    assert pids
    process.kill()
    process.communicate()  # until they have ended, since they hold its standard output
    assert not any(os.path.exists(f"/proc/{pid}/exe") for pid in pids)


def peak_of_data_creation(*arguments) -> int:
    """Makes records in a separate process; returns its peak resident bytes."""
    # Not ru_maxrss, which starts from the parent's value at the fork.
    code = (
        "import sys; from albert import create_pretraining_data as c\n"
        "from albert.cli import flags\n"
        "code = flags.run_command(c.__doc__, c.define_flags, c.main, ['c', *sys.argv[1:]])\n"
        "[line] = [l for l in open('/proc/self/status') if l.startswith('VmHWM')]\n"
        "print(code, line.split()[1])"
    )
    code, kilobytes = python(code, *arguments).split()
    assert code == "0"
    return int(kilobytes) << 10


def script(name: str, folder: str = "scripts/maintainers"):
    """Returns a maintainers' tool, or another script, as a module."""
    sys.path.append(str(REPO / "scripts/maintainers"))  # where its modules are
    spec = importlib.util.spec_from_file_location(name, REPO / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def change_json(path: pathlib.Path, *dropped: str, **changes) -> None:
    """Edits a JSON file, without some keys, and its seal if it has one."""
    value = json.loads(path.read_text())
    is_sealed = value.pop("content_sha256", None) is not None
    value = {key: old for key, old in value.items() if key not in dropped} | changes
    if is_sealed:
        files.write_sealed_json(str(path), value)
    else:
        path.write_text(json.dumps(value))


def tensors(prefix):
    weights = checkpoints.open_weights(str(prefix))
    return {name: weights.read(name) for name in weights.shapes}


def assert_same_run(folder, whole, step):
    assert metrics(folder) == metrics(whole)
    ours, theirs = (tensors(d / f"model.ckpt-{step}") for d in (folder, whole))
    assert set(ours) == set(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def sigterm_when(monkeypatch, owner, name, condition, number=signal.SIGTERM):
    """Sends this process a signal, once, when a function is called and a condition holds."""
    original, sent = getattr(owner, name), []

    def wrapper(*arguments, **options):
        if not sent and condition(*arguments):
            sent.append(True)
            os.kill(os.getpid(), number)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapper)
    return sent
