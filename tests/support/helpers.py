"""Helpers for several tests: tiny records, a tiny config, and commands as real processes."""

import functools
import importlib.util
import json
import os
import pathlib
import random
import runpy
import signal
import subprocess
import sys
import unittest.mock
from collections.abc import Iterable, Mapping
from typing import Any

import forked
import numpy as np
import pytest
import traced_once
from record_files_made import write_records

from albert.cli import flags

REPO = pathlib.Path(__file__).resolve().parents[2]
LENGTH, PREDICTIONS, VOCAB = 12, 3, 40
NEEDS_JAX = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="JAX is not installed (it wants Python 3.11)"
)
ANIMALS = ["cat", "dog", "hen", "fox", "cow", "pig", "owl", "bee"]
SIZES = {
    "vocab_size": VOCAB, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}


def parse_with_tensorflow(path, spec) -> dict[str, np.ndarray]:
    """Returns the features of a record file, read by TensorFlow."""
    import tensorflow as tf

    features = {
        name: tf.io.FixedLenFeature([] if length is None else [length], dtype)
        for name, (dtype, length) in spec.features.items()
    }
    messages = list(tf.data.TFRecordDataset(str(path)))
    return {k: v.numpy() for k, v in tf.io.parse_example(messages, features).items()}


def assert_same_records(ours, theirs, spec) -> None:
    """Compares all features of all records."""
    for number in range(len(ours.blocks.records)):
        expected = theirs.read_block(number, spec, 1 << 31)
        for name, values in ours.read_block(number, spec, 1 << 31).items():
            np.testing.assert_array_equal(values, expected[name], name)


def golden_tokenizer(golden_path, kind: str = "spm_lower"):
    """Returns the tokenizer of golden values: "spm_lower", "spm_cased" or "wordpiece_lower"."""
    from albert.tokenization import FullTokenizer

    if kind == "wordpiece_lower":
        return FullTokenizer(str(golden_path("spm/albert_zh_vocab.txt")))
    return FullTokenizer(None, kind == "spm_lower", str(golden_path("spm/30k-clean.model")))


def write_config(folder: pathlib.Path, **changes) -> str:
    path = folder / "albert_config.json"
    path.write_text(json.dumps(SIZES | changes))
    return str(path)


def pretraining_rows(count: int, seed: int = 0, least: int = 8, most: int = LENGTH):
    """Random but learnable records: the masked token is that of the first position.

    Of their LENGTH positions, `least` to `most` are tokens.
    """
    rng = np.random.default_rng(seed)
    for _ in range(count):
        token, length = int(rng.integers(5, VOCAB)), int(rng.integers(least, most + 1))
        ids = np.zeros(LENGTH, int)
        ids[:length] = token
        ids[0], ids[length // 2], ids[length - 1] = 2, 3, 3
        ids[2] = 4
        yield {
            "input_ids": ids,
            "input_mask": (np.arange(LENGTH) < length).astype(int),
            "segment_ids": ((np.arange(LENGTH) > length // 2) & (np.arange(LENGTH) < length)) * 1,
            "masked_lm_positions": np.array([2, 0, 0]),
            "masked_lm_ids": np.array([token, 0, 0]),
            "masked_lm_weights": np.array([1.0, 0.0, 0.0], "float32"),
            "next_sentence_labels": np.array([token % 2]),
        }


def write_pretraining_records(
    path: pathlib.Path, count: int = 40, seed: int = 0, vocab_size: int = VOCAB, **lengths
) -> str:
    from albert.tasks.pretraining import PretrainingTask

    rows = pretraining_rows(count, seed, **lengths)
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    write_records(str(path), rows, spec, {"vocab_size": vocab_size})
    return str(path)


def write_weights(
    prefix: pathlib.Path, config: Mapping[str, Any], kind: str = "AlbertForPreTraining", **options
) -> str:
    """Writes initial weights of a model class; returns the checkpoint's prefix."""
    from albert import modeling
    from albert.formats import checkpoints
    from albert.model.weights import parameter_shapes

    rng = np.random.default_rng(0)
    model = getattr(modeling, kind)(modeling.AlbertConfig(**config), **options)
    checkpoints.write(str(prefix), {
        name: 0.1 * rng.standard_normal(shape).astype("float32")
        for name, shape in parameter_shapes(model).items()
    })
    return str(prefix)


def train_pieces(prefix: pathlib.Path, texts: Iterable[str], vocab_size: int, **settings) -> str:
    """Trains a SentencePiece model with the special tokens of ALBERT; returns its path."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(prefix), vocab_size=vocab_size,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        hard_vocab_limit=False, minloglevel=2, **settings,
    )
    return f"{prefix}.model"


def start(module: str, *arguments: str, **options) -> subprocess.Popen:
    """Starts `python -m module` with the repository on its path; see forked.py."""
    environment = os.environ | {"PYTHONPATH": str(REPO)} | options.pop("env", {})
    options |= {"env": environment, "text": True}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    if forked.can_serve(environment, arguments):
        return forked.Process(module, *arguments, **options)
    # A shell that starts the tests in the background makes them ignore Ctrl-C.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen([sys.executable, "-m", module, *arguments], **options)


def run(module: str, *arguments: str, timeout=300, **options) -> subprocess.CompletedProcess:
    """Runs `python -m module` to completion, for at most `timeout` seconds."""
    process = start(module, *arguments, **options)
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def program(path, *arguments, cwd=None, **environment: str) -> subprocess.CompletedProcess:
    """Runs a script in a separate process, with the repository on its path."""
    return subprocess.run(
        [sys.executable, path, *map(str, arguments)], capture_output=True, text=True, cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPO)} | environment,
    )


@functools.cache
def use_plain_graphs() -> None:
    """Leaves out what takes longer than a tiny run; see forked.py and traced_once.py."""
    forked.use_plain_graphs()
    if sys.modules["keras"].backend.backend() == "tensorflow":
        traced_once.share_steps()


def setup_module() -> dict[str, Any]:
    """Returns the names in setup.py, and as `setup` what it was called with."""
    with unittest.mock.patch("setuptools.setup") as setup:
        return runpy.run_path(str(REPO / "setup.py")) | {"setup": setup.call_args.kwargs}


def setup_arguments() -> dict[str, Any]:
    """Returns the package's arguments in setup.py."""
    return setup_module()["setup"]


def run_here(module, *arguments) -> int:
    """Runs a command's module in this process; returns its exit code."""
    name = module.__name__.rpartition(".")[2]
    return flags.run_command(
        module.__doc__, module.define_flags, module.main, [name, *map(str, arguments)]
    )


def assert_same_gradients(ours: dict, theirs: dict, noise: float = 0.0) -> None:
    """Compares gradients by variable name, each to 1e-5 of its variable's largest element.

    Gradients that are zero up to rounding, such as the key bias's, must be so in both; `noise`
    bounds the rounding error, relative to the largest gradient of all.
    """
    assert ours.keys() == theirs.keys()
    noise *= max(np.abs(expected).max() for expected in theirs.values())
    for name, expected in theirs.items():
        atol = 1e-5 * max(np.abs(expected).max(), 1e-2) + noise
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=atol, err_msg=name)


def gradients_of(model, compute):
    """Returns (loss, others, dense gradients by name) of compute() -> (loss, others)."""
    import tensorflow as tf

    from albert.modeling import named_weights

    with tf.GradientTape() as tape:
        loss, others = compute()
    grads = tape.gradient(loss, {name: w.value for name, w in named_weights(model).items()})
    dense = {name: tf.convert_to_tensor(g) for name, g in grads.items() if g is not None}
    return loss, others, dense


def metrics(folder: pathlib.Path) -> list[dict]:
    """Returns metrics.jsonl without the values that depend on the clock."""
    lines = map(strict_json, (folder / "metrics.jsonl").read_text().splitlines())
    clock = ("tokens_per_second", "seconds", "mfu", "data_wait")
    return [{k: v for k, v in line.items() if k not in clock} for line in lines]


def results_of(folder: pathlib.Path, name: str = "eval_results") -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def strict_json(text: str) -> Any:
    """Parses JSON, refusing the NaN and Infinity that Python's parser accepts."""

    def refuse(name: str):
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def assert_one_clear_line(stderr: str) -> str:
    """Checks that a failed command printed one line and no traceback; returns the line."""
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


def words(rng: random.Random, count: int) -> str:
    text = " ".join(rng.choice("red blue old new big small dog cat sees hears the a of".split())
                    for _ in range(count))
    return text.capitalize() + "."


def write_text(path: pathlib.Path, documents: int, sentences: int = 12) -> pathlib.Path:
    rng = random.Random(7)
    blocks = ["\n".join(words(rng, 12) for _ in range(sentences)) for _ in range(documents)]
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def dataset(with_answers: bool, is_v2: bool) -> dict:
    """Small passages, each with a question that has an answer and, in 2.0, one without."""
    paragraphs = []
    for i, animal in enumerate(ANIMALS):
        other = ANIMALS[(i + 3) % len(ANIMALS)]
        context = f"The {animal} sat on the mat. Then the {other} ran down the long road."
        qas = [{"id": f"{i}-who", "question": "Who sat on the mat?"}]
        if with_answers:
            qas[0]["answers"] = [{"text": animal, "answer_start": context.index(animal)}]
        if is_v2:
            qas.append({"id": f"{i}-none", "question": "Who flew over the sea?"})
            if with_answers:
                qas[1] |= {"answers": [], "is_impossible": True}
        paragraphs.append({"context": context, "qas": qas})
    return {"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}
