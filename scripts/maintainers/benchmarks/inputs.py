"""Inputs for the sides of a benchmark: models, sequences, texts, and the peers' environment."""

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import DataError, FlagError
from albert.records import examples, record_files, tfrecord
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.text import text_files

PEERS = (
    "torch==2.13.0", "transformers==5.23.0", "tokenizers", "numpy", "safetensors",
    "tensorflow==2.21.0", "keras-hub==0.32.0",
    "onnx==1.23.2", "onnxruntime==1.32.0", "openvino==2026.4.1", "nncf==3.4.0",
)
# Relative to the largest output: half-precision sums differ in the second digit.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.2}
PREDICTIONS = 20


def make_model(
    config: AlbertConfig, kind: str, folder: str, for_peers: bool, **options
) -> dict[str, str]:
    """Writes a random model; returns its path and, for peers, that of a released archive."""
    import keras

    import albert
    from albert.formats import pretrained

    keras.utils.set_random_seed(1)
    folder = os.path.join(folder, kind)
    model = getattr(albert, kind)(config, **options)
    model.save_pretrained(folder)
    if not for_peers:
        return {"ours": folder}
    archive = files.make_dirs(folder + "-archive")
    pretrained.write_archive(archive, model)
    return {"ours": folder, "theirs": folder, "archive": archive}


def make_rows(config: AlbertConfig, batch: int, length: int) -> dict[str, np.ndarray]:
    """Returns full sequences of random ids, with masked positions."""
    rng = np.random.default_rng(0)
    count = min(PREDICTIONS, length)
    positions = np.stack([rng.permutation(length)[:count] for _ in range(batch)])
    return {
        "input_ids": rng.integers(5, config.vocab_size, (batch, length), np.int32),
        "input_mask": np.ones((batch, length), np.int32),
        "segment_ids": np.tile((np.arange(length) >= length // 2).astype(np.int32), (batch, 1)),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": rng.integers(5, config.vocab_size, (batch, count), np.int32),
        "masked_lm_weights": np.ones((batch, count), np.float32),
        "next_sentence_labels": rng.integers(0, 2, (batch, 1), np.int32),
    }


def write_rows(folder: str, config: AlbertConfig, batch: int, length: int) -> str:
    """Writes the sequences of `make_rows` as arrays; returns their path."""
    path = os.path.join(folder, f"rows-{batch}-{length}.npz")
    np.savez(path, **make_rows(config, batch, length))
    return path


def read_rows(path: str, folder: str, batch: int) -> tuple[str, int, int]:
    """Writes the first sequences of a record file as arrays; returns (path, length, tokens).

    Raises:
      DataError: they are not pretraining records, or too few.
    """

    from albert.tasks.pretraining import PretrainingTask

    files.require_file(path, "records_file")
    lengths = {name: len(values) for name, values in record_files.first_record(path).items()}
    try:
        task = PretrainingTask(lengths["input_ids"], lengths["masked_lm_positions"])
    except KeyError as error:
        raise DataError(f"{path}: no {error} in its records: not those of pretraining") from error
    spec = task.feature_spec()
    [count] = RecordFiles([path]).check(spec).counts
    if count < batch:
        raise DataError(f"{path}: {count} records, fewer than a batch of {batch}")
    first = list(itertools.islice(tfrecord.read_records(path), batch))
    rows = {
        name: value.astype(np.float32 if value.dtype.kind == "f" else np.int32)
        for name, value in examples.decode_examples(first, spec).items()
    }
    found = os.path.join(folder, f"rows-{batch}.npz")
    np.savez(found, **rows)
    return found, task.max_seq_length, int(rows["input_mask"].sum())


def write_records(
    folder: str, config: AlbertConfig, count: int, length: int, num_files: int = 1
) -> str:
    """Writes the sequences of `make_rows` as records; returns their path, with a `*` for several."""
    from albert.records import manifests
    from albert.tasks.pretraining import PretrainingTask

    rows = make_rows(config, count, length)
    spec = PretrainingTask(length, min(PREDICTIONS, length)).feature_spec()
    path = os.path.join(folder, f"rows-{count}-{length}-*.tfrecord")
    for file in range(num_files):
        manifests.write_records(
            path.replace("*", str(file)),
            ({k: v[i] for k, v in rows.items()} for i in range(file, count, num_files)),
            spec, {"vocab_size": config.vocab_size},
        )
    return path if num_files > 1 else path.replace("*", "0")


def records_spec(values, text: str, length: int) -> dict:
    """Returns the specification of making records from a text.

    No document is cut into shorter sequences (--short_seq_prob=0): otherwise a few long
    documents would determine the number of records.
    """
    return {
        "work": "make_records", "text": text, "spm_model_file": values.spm_model_file,
        "dupe_factor": values.dupe_factor, "length": length, "predictions": PREDICTIONS,
        "short_seq_prob": 0.0,
    }


def write_pairs(folder: str, config: AlbertConfig, count: int, length: int) -> str:
    """Writes the sequences of `make_rows`, unmasked, as records without masks; returns their path."""
    from albert.pretraining_data import dynamic_masking, features, masking
    from albert.pretraining_data.pairs import PairSettings
    from albert.records import manifests
    from albert.records.examples import FeatureSpec

    rows = make_rows(config, count, length)
    ids, in_b = rows["input_ids"].copy(), int(rows["segment_ids"][0].sum())
    np.put_along_axis(ids, rows["masked_lm_positions"], rows["masked_lm_ids"], axis=1)
    pairs = {
        "input_ids": ids, "token_boundary": (ids % 3 > 0).astype(np.int64),
        "segment_lengths": np.tile([length - in_b - 2, in_b - 1], (count, 1)),
        "next_sentence_labels": rows["next_sentence_labels"],
    }
    path = os.path.join(folder, f"pairs-{count}-{length}.tfrecord")
    manifests.write_records(
        path, ({name: value[i] for name, value in pairs.items()} for i in range(count)),
        FeatureSpec(features.pair_features(length)),
        # Not swapped, for comparison with the original sequences.
        dynamic_masking.manifest_info(
            masking.SpecialIds(2, 3, 4, config.vocab_size), PairSettings(sentence_objective="nsp")
        ),
    )
    return path


def write_text(folder: str, source: str, size: int) -> str:
    """Writes the first `size` bytes of a text, up to the end of the line; returns the path."""
    path = os.path.join(folder, f"text-{size}.txt")
    with text_files.open_text(source) as stream, open(path, "wb") as out:
        out.write(stream.read(size))
        out.write(stream.readline())
    return path


def peers_python(values: flags.FlagValues) -> str | None:
    """Returns the interpreter of --peers_env, creating the environment if needed."""
    if not values.peers_env:
        return None
    if values.peers_env == "this":
        return sys.executable
    python = os.path.join(os.path.abspath(values.peers_env), "bin", "python")
    if not os.path.exists(python):
        flags.log.info("making %s with %s", values.peers_env, ", ".join(PEERS))
        for command in (
            [sys.executable, "-m", "venv", values.peers_env],
            [python, "-m", "pip", "install", "--quiet", *PEERS],
        ):
            if subprocess.run(command).returncode:
                raise FlagError(f"--peers_env: {' '.join(command[:4])} ... failed (see above)")
    return python


def numbers(values: flags.FlagValues, name: str, default: Sequence[int]) -> list[int]:
    """Returns the integers of a list flag, or the default.

    Raises:
      FlagError: an entry is not a positive integer.
    """
    try:
        found = [int(x) for x in getattr(values, name) or default]
    except ValueError as error:
        raise FlagError(f"--{name}: {error}") from error
    if any(number <= 0 for number in found):
        raise FlagError(f"--{name} must be above zero: {', '.join(map(str, found))}")
    return found


def sizes(
    values: flags.FlagValues, batch_sizes: Sequence[int], lengths: Sequence[int]
) -> list[tuple[int, int]]:
    """Returns each of --batch_sizes with each of --lengths."""
    return list(itertools.product(
        numbers(values, "batch_sizes", batch_sizes), numbers(values, "lengths", lengths)
    ))
