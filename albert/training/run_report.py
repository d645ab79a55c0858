"""Reads a run's files, and writes the quickstart's report from them.

Only the baselines are computed; all other numbers are read.
"""

import collections
import dataclasses
import glob
import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from albert.config import AlbertConfig
from albert.errors import DataError
from albert.model import model_size
from albert.records import examples
from albert.records.tfrecord import read_records
from albert.storage import files

Lines = list[dict[str, Any]]

# What each fine-tuning started from.
_CLASSIFIERS = {
    "checkpoint": "pretrained checkpoint", "hub": "TF-Hub module", "random": "random weights",
    "small_en": "small_en, pretrained on much English text; by LAMB",
}
_STEPS = (
    "prepare_text", "train_sentencepiece", "create_pretraining_data", "run_pretraining",
    "export_to_tfhub", *(f"run_classifier_{name}" for name in _CLASSIFIERS),
)
_TASK = os.path.join("text", "classification", "SST-2")


def read_metrics(path: str) -> dict[str, Lines]:
    """Returns the lines of metrics.jsonl by kind ("train", "eval"), by step, without nulls.

    Raises:
      DataError: no such file, no usable line, or a line that is not a metric.
    """
    files.require_file(path, "directory")
    by_kind: dict[str, Lines] = {"train": [], "eval": []}
    with open(path, encoding="utf-8", errors="replace") as stream:
        lines = stream.readlines()
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith("\n"):
            break  # the run is writing it, or was killed while it did
        try:
            value = {name: x for name, x in json.loads(line).items() if x is not None}
            by_kind.setdefault(value["kind"], []).append(value)
            assert isinstance(value["step"], int)
        except (
            ValueError, TypeError, AttributeError, KeyError, AssertionError, RecursionError
        ) as error:
            raise DataError(f"{path}:{number}: not a line of metrics") from error
    if not any(by_kind.values()):
        raise DataError(f"{path}: no metrics yet; let run_pretraining finish first")
    return {kind: sorted(values, key=lambda v: v["step"]) for kind, values in by_kind.items()}


def read_results(directory: str) -> dict[str, float]:
    """Returns `eval_results.json` of a run's directory."""
    return files.read_json_object(os.path.join(directory, "eval_results.json"))


def _read_numbers(directory: str, *keys: str) -> list[float]:
    """Returns some of the results.

    Raises:
      DataError: names the file, and the key that is not a number in it.
    """
    results = read_results(directory)
    for key in keys:
        value = results.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"{os.path.join(directory, 'eval_results.json')}: no number {key!r}")
    return [float(results[key]) for key in keys]


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The accuracies of a model that always gives the same answer."""

    commonest_token: float  # masked-LM accuracy of always guessing it
    majority_order: float  # sentence-order accuracy of always guessing the commoner label
    masked_tokens: int  # in the held-out records
    pairs: int


def baselines(paths: Sequence[str]) -> Baselines:
    """Counts masked tokens and sentence-order labels of held-out records.

    Raises:
      DataError: the records are corrupt, or have none of these features.
    """
    tokens: collections.Counter = collections.Counter()
    labels: collections.Counter = collections.Counter()
    wanted = ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
    for path in paths:
        for record in read_records(path):
            try:
                found = examples.feature_values(record)
            except DataError as error:
                raise DataError(f"{path}: records are not tf.train.Example messages") from error
            if absent := [name for name in wanted if name not in found]:
                raise DataError(f"{path}: not pretraining records: no feature {absent[0]!r}")
            ids, weights, order = map(found.get, wanted)
            tokens.update(ids[weights > 0].tolist())
            labels.update(order.tolist())
    if not tokens or not labels:
        raise DataError(f"{', '.join(paths)}: no masked tokens to compare with")
    return Baselines(
        max(tokens.values()) / tokens.total(), max(labels.values()) / labels.total(),
        tokens.total(), labels.total(),
    )


@dataclasses.dataclass(frozen=True)
class Quickstart:
    """What scripts/quickstart.sh has written to a directory."""

    directory: str
    config: AlbertConfig
    metrics: dict[str, Lines]  # of pretraining
    baselines: Baselines

    @classmethod
    def read(cls, directory: str, config: AlbertConfig) -> "Quickstart":
        """Reads metrics and held-out records.

        Raises:
          DataError: see `read_metrics` and `baselines`.
        """
        metrics = read_metrics(os.path.join(directory, "pretrained", "metrics.jsonl"))
        pattern = os.path.join(glob.escape(directory), "records", "heldout*.tfrecord")
        return cls(directory, config, metrics, baselines(files.expand_globs(pattern, "directory")))

    def report(self) -> str:
        """Returns report.md.

        Raises:
          DataError: a file is missing or unusable.
        """
        parts = (self._title(), self._pretraining(), self._classifier(), self._times(),
                 self._files())
        return "\n".join(filter(None, parts))

    def _title(self) -> str:
        path = os.path.join(self.directory, "text", "stats.json")
        stats = files.read_json(path)
        try:
            corpus = stats["corpus"]
            return (
                f"# ALBERT from raw text\n\nText: {stats['source']}: {corpus['words']:,} words, "
                f"{corpus['sentences']:,} sentences, {corpus['documents']:,} documents.\n"
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not what prepare_text writes: {error!r}") from error

    def _pretraining(self) -> str:
        steps, masked_lm, order, masked_lm_loss, order_loss = _read_numbers(
            os.path.join(self.directory, "pretrained"), "global_step", "masked_lm_accuracy",
            "sentence_order_accuracy", "masked_lm_loss", "sentence_order_loss",
        )
        base, parts = self.baselines, model_size.parameter_counts(self.config)
        lines = self.metrics["train"]
        rates = sorted(x["tokens_per_second"] for x in lines if "tokens_per_second" in x)
        rate = f", {rates[len(rates) // 2]:,.0f} tokens/s (median)" if rates else ""
        return f"""\
## Pretraining

{sum(parts.values()):,} parameters (backbone {model_size.parameter_count(self.config):,}), \
{steps:,.0f} steps{rate}.

| on held-out documents ({base.masked_tokens:,} masked tokens, {base.pairs:,} pairs) \
| model | always the commonest answer | |
|---|---|---|---|
| masked-LM accuracy | {masked_lm:.4f} | {base.commonest_token:.4f} \
| {masked_lm / base.commonest_token:.2f} × |
| sentence-order accuracy | {order:.4f} | {base.majority_order:.4f} \
| {100 * (order - base.majority_order):+.1f} points |
| masked-LM loss | {masked_lm_loss:.4f} | | |
| sentence-order loss | {order_loss:.4f} | | |

![learning curves](curves.png)
"""

    def _classifier(self) -> str:
        accuracy = {}
        for name in _CLASSIFIERS:
            folder = os.path.join(self.directory, f"classifier_{name}")
            [accuracy[name]] = _read_numbers(folder, "eval_accuracy")
        labels = _label_counts(os.path.join(self.directory, _TASK, "dev.tsv"))
        majority = max(labels.values()) / labels.total()
        error = 50 / math.sqrt(labels.total())  # points; of an accuracy near one half
        rows = [
            (title, f"{accuracy[name]:.4f}", "" if name == "random" else
             f"{100 * (accuracy[name] - accuracy['random']):+.1f} points")
            for name, title in _CLASSIFIERS.items()
        ]
        text = (
            "## Classifier\n\n"
            f"Fine-tuned {len(_CLASSIFIERS)} times on the labelled task of the text, evaluated on "
            "its dev set "
            f"(commonest label {majority:.3f}; standard error of an accuracy {error:.1f} points)."
            "\n\n" + table(("from", "accuracy", "gain over random weights"), rows)
        )
        if accuracy["checkpoint"] <= accuracy["random"]:
            best = 100 * (max(accuracy.values()) - majority)
            text += (
                "\nNo gain from pretraining: on this text a single sentence hardly tells the "
                "label, pretrained or not.\n" if best < 5 * error else
                "\nPretraining did not help here: too little text or too few steps for it.\n"
            )
        return text

    def _times(self) -> str:
        """Returns the seconds of each step of quickstart.sh, summed over all its starts."""
        folder, seconds = os.path.join(self.directory, ".steps"), {}
        for path in glob.glob(os.path.join(glob.escape(folder), "*.seconds")):
            with open(path, encoding="utf-8") as stream:
                text = stream.read().strip()
            if not text.isdigit():
                raise DataError(f"{path}: expected a number of seconds, got {text[:40]!r}")
            seconds[os.path.basename(path).removesuffix(".seconds")] = int(text)
        if not seconds:
            return ""
        names = [name for name in _STEPS if name in seconds] + sorted(set(seconds) - set(_STEPS))
        rows = [(name, seconds[name]) for name in names] + [("together", sum(seconds.values()))]
        return "## Times\n\n" + table(("step", "seconds"), rows)

    def _files(self) -> str:
        rows = [(f"{self.directory}/{name}", what) for name, what in _FILES.items()]
        return "## Files\n\n" + table(("file", ""), rows)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


_FILES = {
    "text/corpus.txt": "the text, one sentence a line",
    "spm.model": "the vocabulary",
    "records/": "training and held-out records",
    "pretrained/model.ckpt-best": "the pretrained encoder, for --init_checkpoint",
    "hub_module/": "the same as a TF-Hub module, for --albert_hub_module_handle",
    "classifier_checkpoint/": "the fine-tuned classifier",
    "pretrained/metrics.jsonl": "what the curves are drawn from",
}


def _label_counts(path: str) -> collections.Counter[str]:
    """Returns the number of rows of each label in a TSV with a header; the label is last."""
    files.require_file(path, "directory")
    with open(path, encoding="utf-8") as stream:
        labels = collections.Counter(line.rstrip("\n").split("\t")[-1] for line in list(stream)[1:])
    if not labels:
        raise DataError(f"{path}: no rows")
    return labels
