"""Summarises the results of scripts/quickstart.sh in report.md and curves.png.

  python scripts/quickstart/report.py --directory=quickstart_output

It reads records, metrics, results and the configuration, and trains nothing. It compares the
pretrained model with one that always predicts the most frequent answer, and the classifier with
one that started from random weights.
"""

import collections
import dataclasses
import glob
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

import run_files
from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import DataError
from albert.formats.model_card import table
from albert.model import costs
from albert.records import examples
from albert.records.tfrecord import read_records
from albert.storage import files

Lines = list[dict[str, Any]]

# The start of each fine-tuning run.
_CLASSIFIERS = {
    "checkpoint": "pretrained checkpoint", "hub": "TF-Hub module", "random": "random weights",
    "small_en": "small_en, pretrained on much English text; by LAMB",
}
_STEPS = (
    "prepare_text", "train_sentencepiece", "create_pretraining_data", "run_pretraining",
    "export_to_tfhub", *(f"run_classifier_{name}" for name in _CLASSIFIERS),
)
_TASK = os.path.join("text", "classification", "SST-2")
_FILES = {
    "text/corpus.txt": "the text, one sentence a line",
    "spm.model": "the vocabulary",
    "records/": "training and held-out records",
    "pretrained/model.ckpt-best": "the pretrained encoder, for --init_checkpoint",
    "hub_module/": "the same as a TF-Hub module, for --albert_hub_module_handle",
    "classifier_checkpoint/": "the fine-tuned classifier",
    "pretrained/metrics.jsonl": "what the curves are drawn from",
}
_TRAIN, _HELD_OUT, _BASELINE = "#9db4cc", "#d1495b", "#6b6b6b"
_SMOOTHED = "#2a6496"


# === Numbers ===


def _read_numbers(directory: str, *keys: str) -> list[float]:
    """Returns the results under `keys`.

    Raises:
      DataError: names the file, and the key that is not a number in it.
    """
    results = run_files.read_results(directory)
    for key in keys:
        value = results.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"{os.path.join(directory, 'eval_results.json')}: no number {key!r}")
    return [float(results[key]) for key in keys]


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The accuracies of a model that always predicts the same answer."""

    commonest_token: float  # masked-LM accuracy of always predicting it
    majority_order: float  # sentence-order accuracy of always predicting the majority label
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


def _label_counts(path: str) -> collections.Counter[str]:
    """Returns the number of rows of each label in a TSV with a header; the label is last."""
    files.require_file(path, "directory")
    with open(path, encoding="utf-8") as stream:
        labels = collections.Counter(line.rstrip("\n").split("\t")[-1] for line in list(stream)[1:])
    if not labels:
        raise DataError(f"{path}: no rows")
    return labels


# === The report ===


@dataclasses.dataclass(frozen=True)
class Quickstart:
    """The output of scripts/quickstart.sh in a directory."""

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
        metrics = run_files.read_metrics(os.path.join(directory, "pretrained", "metrics.jsonl"))
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
        base, count = self.baselines, costs.parameter_count
        lines = self.metrics["train"]
        rates = sorted(x["tokens_per_second"] for x in lines if "tokens_per_second" in x)
        rate = f", {rates[len(rates) // 2]:,.0f} tokens/s (median)" if rates else ""
        return f"""\
## Pretraining

{count(self.config, heads=True):,} parameters (backbone {count(self.config):,}), \
{steps:,.0f} steps{rate}.

| on held-out documents ({base.masked_tokens:,} masked tokens, {base.pairs:,} pairs) \
| model | always the most frequent answer | |
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
            f"(most frequent label {majority:.3f}; standard error of an accuracy {error:.1f} points)."
            "\n\n" + table(("from", "accuracy", "gain over random weights"), rows)
        )
        if accuracy["checkpoint"] <= accuracy["random"]:
            best = 100 * (max(accuracy.values()) - majority)
            text += (
                "\nNo gain from pretraining: on this text, a single sentence says little "
                "about its label, pretrained or not.\n" if best < 5 * error else
                "\nPretraining did not help here: too little text or too few steps for it.\n"
            )
        return text

    def _times(self) -> str:
        """Returns a table of the seconds of each step of quickstart.sh, summed over restarts."""
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


# === Curves ===


def draw_curves(path: str, metrics: dict[str, list[dict[str, Any]]], base: Baselines | None) -> None:
    """Publishes a PNG: loss, the two accuracies (training and held-out), learning rate."""
    figure, axes = run_files.panels_of(2, 2, (11, 7.2), sharex=True)
    panels = [
        ("loss", "Loss (masked LM + sentence order)", None, ""),
        ("masked_lm_accuracy", "Masked-LM accuracy", base and base.commonest_token,
         "always the most frequent"),
        ("sentence_order_accuracy", "Sentence-order accuracy", base and base.majority_order,
         "always the more frequent"),
        ("learning_rate", "Learning rate", None, ""),
    ]
    for axis, (key, title, baseline, baseline_label) in zip(axes.flat, panels, strict=True):
        run_files.dress(axis, title, pad=38)  # above it, the legend
        _draw_series(axis, key, metrics)
        if baseline is not None:
            axis.axhline(baseline, color=_BASELINE, linestyle="--", linewidth=1.2,
                         label=f"{baseline_label} ({baseline:.3f})")
        _set_limits(axis, key)
    for axis in axes[1]:
        axis.set_xlabel("step")
    run_files.publish(figure, path)


def _draw_series(axis, key: str, metrics: dict[str, list[dict[str, Any]]]) -> None:
    """Draws the training values, their moving average, and the held-out values."""
    train = [(line["step"], line[key]) for line in metrics["train"] if key in line]
    held_out = [(line["step"], line[key]) for line in metrics["eval"] if key in line]
    if key == "learning_rate":
        axis.plot(*zip(*train, strict=True), color=_SMOOTHED, linewidth=1.8) if train else None
        return
    if train:
        steps, values = zip(*train, strict=True)
        axis.plot(steps, values, color=_TRAIN, linewidth=0.9, label="training")
        axis.plot(steps, _smooth(values), color=_SMOOTHED, linewidth=1.8,
                  label="training, smoothed")
    if held_out:
        axis.plot(*zip(*held_out, strict=True), color=_HELD_OUT, linewidth=1.8, marker="o",
                  markersize=4, label=f"held out ({held_out[-1][1]:.3f} at the end)")


def _smooth(values: tuple[float, ...], weight: float = 0.6) -> list[float]:
    """Returns the exponential moving average, corrected for starting at zero."""
    smoothed, average, mass = [], 0.0, 0.0
    for value in values:
        average = weight * average + (1 - weight) * value
        mass = weight * mass + (1 - weight)
        smoothed.append(average / mass)
    return smoothed


def _set_limits(axis, key: str) -> None:
    axis.set_xlim(left=0)
    if key == "learning_rate":
        axis.set_ylim(bottom=0)
        axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    elif axis.get_legend_handles_labels()[1]:
        # Above the panel, where it covers no curve.
        axis.legend(frameon=False, fontsize=9, ncols=2, loc="lower left", bbox_to_anchor=(-0.02, 1),
                    columnspacing=1.2, handlelength=1.6)


# === The command ===


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "directory", None, "Directory that quickstart.sh wrote. Required.",
                 use="directory")
    flags.define("path", values, "albert_config_file", None,
                 "Architecture. Default: <directory>/pretrained/albert_config.json.", use="file")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "directory")
    if not os.path.isdir(values.directory):
        raise DataError(f"--directory: no such directory: {values.directory}")
    config = AlbertConfig.from_flag(
        values.albert_config_file
        or os.path.join(values.directory, "pretrained", "albert_config.json")
    )
    run = Quickstart.read(values.directory, config)
    text = run.report()
    picture = os.path.join(values.directory, "curves.png")
    draw_curves(picture, run.metrics, run.baselines)
    path = os.path.join(values.directory, "report.md")
    with files.atomic_write(path) as stream:
        stream.write(text)
    print(text)
    flags.log.info("report: %s; curves: %s", path, picture)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
