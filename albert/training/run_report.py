"""The figures of a quickstart directory: read from its files, nothing recomputed but baselines.

No TensorFlow; plotting is in `curves`.
"""

import collections
import dataclasses
import json
import os
from collections.abc import Iterable
from typing import Any

from albert.data import files
from albert.data.tfrecord import read_records
from albert.errors import DataError

CLASSIFIERS = ("checkpoint", "hub", "random")


@dataclasses.dataclass(frozen=True)
class Baselines:
    """What a model reaches that has learned nothing but one constant answer."""

    commonest_token: float  # masked-LM accuracy of always guessing it
    majority_order: float  # sentence-order accuracy of always guessing the commoner label
    masked_tokens: int  # in the held-out records
    pairs: int


def read_metrics(path: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the lines of metrics.jsonl by kind ("train", "eval"), by step.

    Raises:
      DataError: no such file, no usable line, or a line that is not a metric.
    """
    files.require_file(path, "directory")
    by_kind: dict[str, list[dict[str, Any]]] = {"train": [], "eval": []}
    with open(path, encoding="utf-8", errors="replace") as stream:
        lines = stream.readlines()
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith("\n"):
            break  # a run that is being written, or was killed while it wrote
        try:
            value = json.loads(line)
            by_kind.setdefault(value["kind"], []).append(value)
            assert isinstance(value["step"], int)
        except (ValueError, TypeError, KeyError, AssertionError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not a line of metrics") from error
    if not any(by_kind.values()):
        raise DataError(f"{path}: no metrics yet; let run_pretraining finish first")
    return {kind: sorted(values, key=lambda v: v["step"]) for kind, values in by_kind.items()}


def read_results(directory: str) -> dict[str, float]:
    """Returns `eval_results.json` of a run's directory."""
    path = os.path.join(directory, "eval_results.json")
    return files.read_json_object(path)


def value_of(results: dict[str, float], key: str, directory: str) -> float:
    """Returns one number of `read_results`, or raises a DataError that names file and key."""
    value = results.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{os.path.join(directory, 'eval_results.json')}: no number {key!r}")
    return float(value)


def baselines(paths: Iterable[str]) -> Baselines:
    """Counts masked tokens and sentence-order labels of held-out records.

    Raises:
      DataError: the records are corrupt, or have none of these features.
    """
    tokens: collections.Counter = collections.Counter()
    labels: collections.Counter = collections.Counter()
    for path in paths:
        for record in read_records(path):
            features = _parse_example(record)
            try:
                ids, weights = features["masked_lm_ids"], features["masked_lm_weights"]
                labels.update(features["next_sentence_labels"])
            except KeyError as error:
                raise DataError(f"{path}: not pretraining records: no feature {error}") from error
            tokens.update(i for i, weight in zip(ids, weights, strict=True) if weight)
    if not tokens or not labels:
        raise DataError(f"{', '.join(paths)}: no masked tokens to compare with")
    return Baselines(
        max(tokens.values()) / tokens.total(), max(labels.values()) / labels.total(),
        tokens.total(), labels.total(),
    )


def label_counts(path: str) -> collections.Counter[str]:
    """Returns the number of rows of each label in a TSV with a header; the label is last."""
    files.require_file(path, "directory")
    with open(path, encoding="utf-8") as stream:
        labels = collections.Counter(line.rstrip("\n").split("\t")[-1] for line in list(stream)[1:])
    if not labels:
        raise DataError(f"{path}: no rows")
    return labels


def step_seconds(directory: str) -> dict[str, int]:
    """Returns {step of quickstart.sh: seconds it took, all its starts together}."""
    folder = os.path.join(directory, ".steps")
    seconds = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.endswith(".seconds"):
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as stream:
                text = stream.read().strip()
            if not text.isdigit():
                raise DataError(f"{path}: expected a number of seconds, got {text[:40]!r}")
            seconds[name.removesuffix(".seconds")] = int(text)
    return seconds


def tokens_per_second(train: list[dict[str, Any]]) -> float | None:
    """Returns the median rate of the training log, None where it holds none."""
    rates = sorted(line["tokens_per_second"] for line in train if "tokens_per_second" in line)
    return rates[len(rates) // 2] if rates else None


# === tf.train.Example, as far as it is needed here ===


def _parse_example(message: bytes) -> dict[str, list]:
    """Returns {feature: numbers} of a serialised `tf.train.Example`; byte lists are left out."""
    import struct

    features: dict[str, list] = {}
    for _, all_features in _fields(message):
        for _, entry in _fields(all_features):
            pair = dict(_fields(entry))
            kind, values = next(iter(_fields(pair[2])), (0, b""))
            name = pair[1].decode()
            chunks = list(_fields(values))
            if kind == 2:  # float_list, packed or not
                flat = b"".join(chunk for _, chunk in chunks)
                features[name] = list(struct.unpack(f"<{len(flat) // 4}f", flat))
            elif kind == 3:  # int64_list
                features[name] = [n for _, chunk in chunks for n in _varints(chunk)]
    return features


def _fields(message: bytes) -> Iterable[tuple[int, Any]]:
    """Yields (field number, payload): bytes of a nested message, list or 4-byte number."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        if tag & 7 == 0:  # a varint of its own: hand it on encoded, like a packed list of one
            _, end = _varint(message, position)
        elif tag & 7 == 5:
            end = position + 4
        elif tag & 7 == 2:
            size, position = _varint(message, position)
            end = position + size
        else:
            raise DataError("records are not tf.train.Example messages")
        yield tag >> 3, message[position:end]
        position = end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the number at `position`, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _varints(data: bytes) -> Iterable[int]:
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        yield value
