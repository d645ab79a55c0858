"""Summarizes the results of scripts/quickstart.sh in report.md and curves.png.

  python scripts/quickstart/report.py --directory=quickstart_output

It compares the pretrained model with one that always predicts the most frequent answer, and the
classifiers with one that started from random weights.
"""

import math
import os
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

import run_files
from albert.cli import flags
from albert.errors import DataError
from albert.formats.model_card import table
from albert.storage import files

# What each classifier started from.
_CLASSIFIERS = {
    "hub": "the pretrained model, as a TF-Hub module", "random": "random weights",
    "small_en": "small_en, pretrained on much English text",
}
_TASK = os.path.join("text", "classification", "SST-2", "dev.tsv")
_ACCURACIES = {"masked_lm_accuracy": "masked tokens", "sentence_order_accuracy": "sentence order"}
_FILES = {
    "text/corpus.txt": "the text, one sentence a line",
    "pretrained/report.md": "what the model predicts: masked words, nearest sentences",
    "pretrained/model/": "the pretrained model, for --init_checkpoint",
    "hub_module/": "the same as a TF-Hub module, for --albert_hub_module_handle",
    "classifier_hub/report.md": "what the classifier gets right and wrong",
    "classifier_hub/": "the classifier, for albert.predict",
}
_TRAIN, _HELD_OUT, _BASELINE, _SMOOTHED = "#9db4cc", "#d1495b", "#6b6b6b", "#2a6496"


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


def report(directory: str) -> str:
    """Returns report.md.

    Raises:
      DataError: a file is missing or damaged.
    """
    path = os.path.join(directory, "text", "stats.json")
    stats = files.read_json(path)
    try:
        corpus = stats["corpus"]
        source = (f"{stats['source']}: {corpus['words']:,} words, {corpus['sentences']:,} sentences, "
                  f"{corpus['documents']:,} documents")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not what prepare_text writes: {error!r}") from error
    model = os.path.join(directory, "pretrained", "model")
    rows = []
    for key, name in _ACCURACIES.items():
        accuracy, baseline = _read_numbers(model, key, f"{key}_baseline")
        rows.append((name, f"{accuracy:.3f}", f"{baseline:.3f}"))
    header = ("accuracy on held-out documents", "model", "always the most frequent answer")
    written = [(f"{directory}/{name}", what) for name, what in _FILES.items()]
    return "\n".join((
        f"# From raw text to a classifier\n\nText: {source}.\n",
        "## Pretraining\n", table(header, rows), "![learning curves](curves.png)\n",
        "## Classifier\n", _classifiers(directory), "## Files\n", table(("file", ""), written),
    ))


def _classifiers(directory: str) -> str:
    """Returns the table of classifiers, and a sentence if pretraining did not help."""
    accuracy = {
        name: _read_numbers(os.path.join(directory, f"classifier_{name}"), "eval_accuracy")[0]
        for name in _CLASSIFIERS
    }
    path = files.require_file(os.path.join(directory, _TASK), "directory")
    with open(path, encoding="utf-8") as stream:
        count = len(stream.readlines()) - 1
    if count < 1:
        raise DataError(f"{path}: no rows")
    error = 0.5 / math.sqrt(count)  # of an accuracy near one half
    rows = [
        (title, f"{accuracy[name]:.3f}", "" if name == "random" else
         f"{100 * (accuracy[name] - accuracy['random']):+.1f} points")
        for name, title in _CLASSIFIERS.items()
    ]
    text = table((f"started from (standard error {100 * error:.1f} points)", "accuracy",
                  "gain over random weights"), rows)
    if accuracy["hub"] <= accuracy["random"] + error:
        text += "\nNo clear gain from pretraining: it needs more text or more time (--hours).\n"
    return text


def draw_curves(path: str, metrics: dict[str, run_files.Lines], results: dict[str, Any]) -> None:
    """Publishes a PNG: loss, the two accuracies (training and held-out), learning rate."""
    figure, axes = run_files.panels_of(2, 2, (11, 7.2), sharex=True)
    panels = {
        "loss": "Loss (masked LM + sentence order)", "masked_lm_accuracy": "Masked-token accuracy",
        "sentence_order_accuracy": "Sentence-order accuracy", "learning_rate": "Learning rate",
    }
    for axis, (key, title) in zip(axes.flat, panels.items(), strict=True):
        run_files.dress(axis, title, pad=38)  # above it, the legend
        _draw_series(axis, key, metrics)
        if (baseline := results.get(f"{key}_baseline")) is not None:
            axis.axhline(baseline, color=_BASELINE, linestyle="--", linewidth=1.2,
                         label=f"always the most frequent answer ({baseline:.3f})")
        axis.set_xlim(left=0)
        if key == "learning_rate":
            axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
        elif axis.get_legend_handles_labels()[1]:
            # Above the panel, where it covers no curve.
            axis.legend(frameon=False, fontsize=9, ncols=2, loc="lower left",
                        bbox_to_anchor=(-0.02, 1))
    for axis in axes[1]:
        axis.set_xlabel("step")
    run_files.publish(figure, path)


def _draw_series(axis, key: str, metrics: dict[str, run_files.Lines]) -> None:
    """Draws the training values, their moving average, and the held-out values."""
    train, held_out = (
        [(line["step"], line[key]) for line in metrics[kind] if key in line]
        for kind in ("train", "eval")
    )
    if train and key == "learning_rate":
        axis.plot(*zip(*train, strict=True), color=_SMOOTHED, linewidth=1.8)
    elif train:
        steps, values = zip(*train, strict=True)
        axis.plot(steps, values, color=_TRAIN, linewidth=0.9, label="training")
        axis.plot(steps, _smooth(values), color=_SMOOTHED, linewidth=1.8, label="training, smoothed")
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


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "directory", None, "Directory that quickstart.sh wrote. Required.",
                 use="directory")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "directory")
    if not os.path.isdir(values.directory):
        raise DataError(f"--directory: no such directory: {values.directory}")
    text = report(values.directory)
    model = os.path.join(values.directory, "pretrained", "model")
    picture = os.path.join(values.directory, "curves.png")
    metrics = run_files.read_metrics(os.path.join(model, "metrics.jsonl"))
    draw_curves(picture, metrics, run_files.read_results(model))
    path = os.path.join(values.directory, "report.md")
    with files.atomic_write(path) as stream:
        stream.write(text)
    print(text)
    flags.log.info("report: %s; curves: %s", path, picture)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
