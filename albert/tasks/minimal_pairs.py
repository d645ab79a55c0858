"""Minimal pairs: two sentences that differ in one respect, of which one is acceptable.

The format is BLiMP's (Warstadt et al. 2020): JSON lines with `sentence_good`, `sentence_bad`, `UID`
(the paradigm) and `linguistics_term` (its phenomenon). A model prefers the sentence with the higher
score. No TensorFlow.
"""

import collections
import dataclasses
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.storage import files
from albert.tasks import lines


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sentences of a paradigm."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str


def read_pairs(path: str, limit: int | None = None, flag: str = "pairs_file") -> list[Pair]:
    """Returns the pairs of a *.jsonl file (compressed or not), a folder of them, or a *.zip.

    Args:
      limit: maximum number of pairs of each paradigm; the first ones are taken.
      flag: named in errors.

    Raises:
      DataError: no file, or a line that isn't such a pair (file:line).
    """
    pairs = [
        _pair(line, f"{name}:{number}")
        for name, numbered in _files(path, flag)
        for number, line in numbered
        if line.strip()
    ]
    if not pairs:
        raise DataError(f"--{flag}: no pairs in {path}")
    return pairs if limit is None else first_of_each(pairs, limit)


def first_of_each(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """Returns the first `count` pairs of each paradigm."""
    seen: collections.Counter[str] = collections.Counter()
    first = []
    for pair in pairs:
        seen[pair.paradigm] += 1
        if seen[pair.paradigm] <= count:
            first.append(pair)
    return first


def accuracies(pairs: Sequence[Pair], good: Sequence[float], bad: Sequence[float]) -> dict[str, Any]:
    """Returns how often the good sentence has the higher score; equal scores count half.

    Returns:
      `accuracy`, the mean over the paradigms, with its `standard_error` by the number of pairs;
      `pairs`; `ties`, the pairs of equal scores; `phenomena` {name: mean over its paradigms};
      `paradigms` {name: {"accuracy", "pairs", "ties", "phenomenon"}}.
    """
    scores = collections.defaultdict(list)
    phenomenon_of: dict[str, str] = {}
    for pair, a, b in zip(pairs, good, bad, strict=True):
        scores[pair.paradigm].append(0.5 if a == b else float(a > b))
        phenomenon_of[pair.paradigm] = pair.phenomenon
    paradigms = {
        name: {
            "accuracy": float(np.mean(values)), "pairs": len(values), "ties": values.count(0.5),
            "phenomenon": phenomenon_of[name],
        }
        for name, values in sorted(scores.items())
    }
    phenomena = collections.defaultdict(list)
    for paradigm in paradigms.values():
        phenomena[paradigm["phenomenon"]].append(paradigm["accuracy"])
    variance = sum(np.var(values) / len(values) for values in scores.values())
    return {
        "accuracy": float(np.mean([paradigm["accuracy"] for paradigm in paradigms.values()])),
        "standard_error": math.sqrt(variance) / len(paradigms),
        "pairs": len(pairs),
        "ties": sum(paradigm["ties"] for paradigm in paradigms.values()),
        "phenomena": {name: float(np.mean(values)) for name, values in sorted(phenomena.items())},
        "paradigms": paradigms,
    }


def _files(path: str, flag: str) -> Iterator[tuple[str, Iterable[tuple[int, str]]]]:
    """Yields (name, numbered lines) of each file."""
    if path.endswith(".zip") and os.path.isfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    parts = name.split("/")
                    if name.endswith(".jsonl") and not any(p.startswith(("_", ".")) for p in parts):
                        with archive.open(name) as raw:
                            yield f"{path}/{name}", lines.decode_lines(raw, f"{path}/{name}")
        except zipfile.BadZipFile as error:
            raise DataError(f"--{flag}: {path} is damaged: {error}") from error
    elif os.path.isdir(path):
        for name in sorted(os.listdir(path)):
            if ".jsonl" in name:
                yield from _files(os.path.join(path, name), flag)
    else:
        yield path, lines.read_lines(path, flag)


def _pair(line: str, place: str) -> Pair:
    values = files.parse_json_object(line, place)
    texts = [values.get(name) for name in ("sentence_good", "sentence_bad")]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(f"{place}: sentence_good and sentence_bad must be texts")
    return Pair(*texts, str(values.get("UID", "all")), str(values.get("linguistics_term", "all")))
