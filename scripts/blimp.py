"""Tests which of two sentences a pretrained ALBERT prefers: BLiMP, or pairs in its format.

  python scripts/blimp.py --model=albert_base --pairs_file=BLiMP.zip --output_file=blimp.json

Reports how often the model gives the acceptable sentence of a minimal pair the higher score: the mean
over the paradigms, where ties count half, and 0.5 is chance. The score is the pseudo-log-likelihood of
a sentence (Salazar et al. 2020, arXiv 1910.14659): the sum of the log-probabilities of its tokens, each
predicted with only that token masked; `[CLS]` and `[SEP]` are not scored. The baseline is random weights,
on part of the pairs.

The format is BLiMP's (Warstadt et al. 2020): JSON lines with `sentence_good`, `sentence_bad`, `UID`
(the paradigm) and `linguistics_term` (its phenomenon).

Legend: B batch, V vocabulary.
"""

import collections
import dataclasses
import json
import math
import os
import pathlib
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # this checkout

from albert.cli import answering, flags
from albert.errors import DataError, FlagError
from albert.formats import pretrained
from albert.inference.predictors import Encoded, Predictor, Row
from albert.inference.session import AnsweringSession
from albert.runtime.progress import Progress
from albert.storage import files
from albert.tasks import lines

UNTRAINED_PAIRS = 20  # per paradigm, enough to show chance level


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values, batch_size=256)
    flags.define("path", values, "pairs_file", None,
                 "Minimal pairs in BLiMP's format: a *.jsonl file (compressed or not), a folder of "
                 "them, or a *.zip. Required.", use="file")
    flags.define("integer", values, "pairs_per_paradigm", None,
                 "Number of pairs to use of each paradigm, the first ones. Default: all.", lower_bound=1)
    flags.define("bool", values, "within_words", False,
                 "Mask the later tokens of a word together with the scored one, which they would "
                 "otherwise give away (Kauf and Ivanova 2023, arXiv 2305.10588).")
    flags.define("path", values, "output_file", None,
                 "JSON file for the results. Default: the standard output.", use="output")


def main(values: flags.FlagValues) -> None:
    answering.check_flags(values)
    flags.require(values, "pairs_file")
    if values.input_file != answering.STDIN:
        raise FlagError("--input_file has no effect: pass --pairs_file")
    pairs = read_pairs(values.pairs_file, values.pairs_per_paradigm)
    opened = answering.open_model(values)
    results = {"model": values.model, "scoring": "within words" if values.within_words else "pieces"}
    results |= pair_scores(Scorer(opened, values.within_words), pairs)
    results["random weights"] = _untrained(values, opened, pairs)
    for name, value in results["phenomena"].items():
        flags.log.info("  %s: %.4f", name, value)
    flags.log.info(
        "accuracy %.4f (standard error %.4f), %s pairs, %s ties", results["accuracy"],
        results["standard_error"], f"{results['pairs']:,}", f"{results['ties']:,}",
    )
    if values.output_file:
        files.write_json(values.output_file, results)
    else:
        print(json.dumps(results, indent=2, ensure_ascii=False))


class Scorer(Predictor):
    """Computes pseudo-log-likelihoods of sentences, as natural logarithms.

    An input is a text and its name in errors. An answer is `{"log_probability", "tokens"}`, the
    latter their number.

    Args:
      within_words: whether to mask the later tokens of a word together with the scored one.
    """

    class_name = "AlbertForMaskedLM"

    def __init__(self, session: AnsweringSession, within_words: bool = False):
        self.session, self.within_words = session, within_words

    def encode(self, inputs: Sequence[tuple[str, str]]) -> Iterator[Encoded]:
        """Yields, for each text, a sequence per token in which that token is masked.

        Raises:
          DataError: a text has more tokens than fit.
        """
        limit = self.session.max_seq_length - 2
        all_ids = self.session.tokenizer.encode_batch([text for text, _ in inputs])
        for ids, (text, origin) in zip(all_ids, inputs, strict=True):
            if len(ids) > limit:
                raise DataError(f"{origin}: {len(ids)} tokens, at most {limit} fit: {text!r:.80}")
            yield Encoded(self.rows(ids))

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """Returns the sequence for each token of a text."""
        tokenizer, rows = self.session.tokenizer, []
        sequence = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
        ends = word_ends(tokenizer, ids) if self.within_words else range(1, len(ids) + 1)
        for start, end in enumerate(ends):
            masked = sequence.copy()
            masked[1 + start : 1 + end] = tokenizer.mask_id
            is_scored = np.zeros_like(sequence)
            is_scored[1 + start] = 1
            rows.append({
                "input_ids": masked, "input_mask": np.ones_like(sequence),
                "segment_ids": np.zeros_like(sequence), "scored": sequence * is_scored,
                "is_scored": is_scored,
            })
        return rows

    def compute(self, model, batch):
        positions = batch["is_scored"].argmax(axis=-1)[:, None].astype(np.int32)  # [B, 1]
        logits = model({**batch, "masked_lm_positions": positions})["prediction_logits"][:, 0]  # [B, V]
        logits = logits - logits.max(axis=-1, keepdims=True)
        scored = np.take_along_axis(logits, np.take_along_axis(batch["scored"], positions, -1), -1)[:, 0]
        return {"log_probability": scored - np.log(np.exp(logits).sum(axis=-1))}

    def decode(self, context, outputs):
        total = np.sum([row["log_probability"] for row in outputs], dtype=float)
        return {"log_probability": float(total), "tokens": len(outputs)}


def word_ends(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Returns, for each token, the index just after its word."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    is_start = list(map(tokenizer.starts_word, tokens))
    ends, end = [], len(ids)
    for index in range(len(ids) - 1, -1, -1):
        ends.append(end)
        if is_start[index]:
            end = index
    return ends[::-1]


def pair_scores(scorer: Scorer, pairs: Sequence["Pair"]) -> dict[str, Any]:
    """Returns the `accuracies` of a scorer."""
    inputs = [
        (text, f"pair {number}")
        for number, pair in enumerate(pairs, start=1) for text in (pair.good, pair.bad)
    ]
    progress = Progress("scored", len(inputs), "sentences")
    scores = [answer["log_probability"] for answer in scorer.predict(inputs, progress)]
    return accuracies(pairs, scores[::2], scores[1::2])


def _untrained(values: flags.FlagValues, opened: AnsweringSession, pairs: Sequence["Pair"]) -> dict[str, Any]:
    """Returns the result for random weights."""
    import keras

    from albert import modeling

    keras.utils.set_random_seed(1)
    pairs = first_of_each(pairs, UNTRAINED_PAIRS)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "random")
        modeling.AlbertForMaskedLM(opened.source.config).save_pretrained(path)
        untrained = AnsweringSession(
            pretrained.open_path(path), opened.tokenizer, opened.max_seq_length, opened.batch_size
        )
        results = pair_scores(Scorer(untrained, values.within_words), pairs)
    return {name: results[name] for name in ("accuracy", "standard_error", "pairs", "ties")}


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sentences of a paradigm."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str


def read_pairs(path: str, limit: int | None = None) -> list[Pair]:
    """Returns the pairs of a *.jsonl file (compressed or not), a folder of them, or a *.zip.

    Args:
      limit: maximum number of pairs of each paradigm; the first ones are taken.

    Raises:
      DataError: no file, or a line that isn't such a pair (file:line).
    """
    pairs = [
        _pair(line, f"{name}:{number}")
        for name, numbered in _files(path)
        for number, line in numbered
        if line.strip()
    ]
    if not pairs:
        raise DataError(f"--pairs_file: no pairs in {path}")
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


def _files(path: str) -> Iterator[tuple[str, Iterable[tuple[int, str]]]]:
    """Yields (name, numbered lines) of each file."""
    if path.endswith(".zip") and os.path.isfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    parts = name.split("/")
                    if name.endswith(".jsonl") and not any(p.startswith(("_", ".")) for p in parts):
                        with archive.open(name) as raw:
                            yield f"{path}/{name}", lines.numbered(
                                lines.decoded(raw.read(), f"{path}/{name}"))
        except zipfile.BadZipFile as error:
            raise DataError(f"--pairs_file: {path} is damaged: {error}") from error
    elif os.path.isdir(path):
        for name in sorted(os.listdir(path)):
            if ".jsonl" in name:
                yield from _files(os.path.join(path, name))
    else:
        yield path, lines.numbered(lines.read_text(path, "pairs_file"))


def _pair(line: str, place: str) -> Pair:
    values = files.parse_json_object(line, place)
    texts = [values.get(name) for name in ("sentence_good", "sentence_bad")]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(f"{place}: sentence_good and sentence_bad must be texts")
    return Pair(*texts, str(values.get("UID", "all")), str(values.get("linguistics_term", "all")))


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
