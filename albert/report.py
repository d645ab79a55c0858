"""Sums up what scripts/quickstart.sh made: report.md and curves.png.

  python scripts/report.py --directory=quickstart_output

Reads files only: records, metrics, results and the configuration. Pretraining is
compared with always giving the commonest answer, the classifier with random weights.
"""

import glob
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

from albert import errors
from albert.cli import flags
from albert.config import AlbertConfig  # noqa: E402
from albert.data import files
from albert.model import model_size
from albert.training import (
    curves,  # noqa: E402
    run_report,
)


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "directory", None, "What quickstart.sh wrote. Required.")
    flags.define("string", values, "albert_config_file", None,
                 "Architecture, if not <directory>/pretrained/albert_config.json.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "directory")
    directory = values.directory
    if not os.path.isdir(directory):
        raise errors.DataError(f"--directory: no such directory: {directory}")
    pretrained = os.path.join(directory, "pretrained")
    config = AlbertConfig.from_json_file(files.require_file(
        values.albert_config_file or os.path.join(pretrained, "albert_config.json"),
        "albert_config_file",
    ))
    metrics = run_report.read_metrics(os.path.join(pretrained, "metrics.jsonl"))
    pattern = os.path.join(glob.escape(directory), "records", "heldout*.tfrecord")
    base = run_report.baselines(files.expand_globs(pattern, "directory"))
    sections = [
        _title(directory),
        _pretraining(pretrained, config, metrics, base),
        _classifier(directory),
        _times(directory),
        _files(directory),
    ]
    picture = curves.path_in(directory)
    curves.draw(picture, metrics, base)
    path = os.path.join(directory, "report.md")
    text = "\n".join(sections)
    with files.atomic_write(path) as stream:
        stream.write(text)
    print(text)
    flags.log.info("report: %s; curves: %s", path, picture)


def _title(directory: str) -> str:
    path = os.path.join(directory, "text", "stats.json")
    stats = files.read_json(path)
    try:
        corpus = stats["corpus"]
        return (
            f"# ALBERT from raw text\n\nText: {stats['source']}: {corpus['words']:,} words, "
            f"{corpus['sentences']:,} sentences, {corpus['documents']:,} documents.\n"
        )
    except (KeyError, TypeError, ValueError) as error:
        raise errors.DataError(f"{path}: not what prepare_text writes: {error!r}") from error


def _pretraining(pretrained: str, config: AlbertConfig, metrics, base) -> str:
    results = run_report.read_results(pretrained)

    def result(key: str) -> float:
        return run_report.value_of(results, key, pretrained)

    masked_lm, order = result("masked_lm_accuracy"), result("sentence_order_accuracy")
    rate = run_report.tokens_per_second(metrics["train"])
    parts = model_size.parameter_counts(config)
    backbone = model_size.parameter_count(config)
    rows = [
        "## Pretraining\n",
        f"{sum(parts.values()):,} parameters (backbone {backbone:,}), "
        f"{result('global_step'):,.0f} steps"
        + (f", {rate:,.0f} tokens/s (median)" if rate else "") + ".\n",
        f"| on held-out documents ({base.masked_tokens:,} masked tokens, {base.pairs:,} pairs) "
        "| model | always the commonest answer | |",
        "|---|---|---|---|",
        f"| masked-LM accuracy | {masked_lm:.4f} | {base.commonest_token:.4f} "
        f"| {masked_lm / base.commonest_token:.2f} × |",
        f"| sentence-order accuracy | {order:.4f} | {base.majority_order:.4f} "
        f"| {100 * (order - base.majority_order):+.1f} points |",
        f"| masked-LM loss | {result('masked_lm_loss'):.4f} | | |",
        f"| sentence-order loss | {result('sentence_order_loss'):.4f} | | |",
        "",
        f"![learning curves]({os.path.basename(curves.path_in(pretrained))})\n",
    ]
    return "\n".join(rows)


def _classifier(directory: str) -> str:
    accuracy = {}
    for name in run_report.CLASSIFIERS:
        folder = os.path.join(directory, f"classifier_{name}")
        accuracy[name] = run_report.value_of(
            run_report.read_results(folder), "eval_accuracy", folder
        )
    dev = os.path.join(directory, "text", "classification", "SST-2", "dev.tsv")
    labelled = run_report.label_counts(dev)
    majority = max(labelled.values()) / labelled.total()
    error = 50 / math.sqrt(labelled.total())  # points; of an accuracy near one half
    labels = {"checkpoint": "pretrained checkpoint", "hub": "TF-Hub module",
              "random": "random weights"}
    rows = ["## Classifier\n",
            "Fine-tuned three times on the labelled task of the text, evaluated on its dev set "
            f"(commonest label {majority:.3f}; standard error of an accuracy {error:.1f} points).\n",
            "| from | accuracy | gain over random weights |", "|---|---|---|"]
    for name in run_report.CLASSIFIERS:
        gain = 100 * (accuracy[name] - accuracy["random"])
        rows.append(f"| {labels[name]} | {accuracy[name]:.4f} "
                    f"| {'' if name == 'random' else f'{gain:+.1f} points'} |")
    if accuracy["checkpoint"] <= accuracy["random"]:
        best = 100 * (max(accuracy.values()) - majority)
        rows.append(
            "\nNo gain from pretraining: on this text a single sentence hardly tells the label, "
            "pretrained or not." if best < 5 * error else
            "\nPretraining did not help here: too little text or too few steps for it."
        )
    return "\n".join([*rows, ""])


def _times(directory: str) -> str:
    seconds = run_report.step_seconds(directory)
    if not seconds:
        return ""
    order = ("prepare_text", "train_sentencepiece", "create_pretraining_data", "run_pretraining",
             "export_to_tfhub", *(f"run_classifier_{name}" for name in run_report.CLASSIFIERS))
    names = sorted(seconds, key=lambda n: (order.index(n) if n in order else len(order), n))
    rows = [f"| {name} | {seconds[name]} |" for name in names]
    return "\n".join(["## Times\n", "| step | seconds |", "|---|---|", *rows,
                      f"| together | {sum(seconds.values())} |", ""])


def _files(directory: str) -> str:
    found = [
        ("text/corpus.txt", "the text, one sentence a line"),
        ("spm.model", "the vocabulary"),
        ("records/", "training and held-out records"),
        ("pretrained/model.ckpt-best", "the pretrained encoder, for --init_checkpoint"),
        ("hub_module/", "the same as a TF-Hub module, for --albert_hub_module_handle"),
        ("classifier_checkpoint/", "the fine-tuned classifier"),
        ("pretrained/metrics.jsonl", "what the curves are drawn from"),
    ]
    rows = [f"| {directory}/{name} | {what} |" for name, what in found]
    return "\n".join(["## Files\n", "| file | |", "|---|---|", *rows, ""])


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
