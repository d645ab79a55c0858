"""Measures what pretrain_from_text makes of small texts, and what a classifier gains from it.

  python scripts/maintainers/small_texts.py --texts=1.txt,5.txt --hours=0.1,1 --train_file=train.csv
      --test_file=test.csv --output_dir=work/small_texts

Pretrains on each text for each number of hours, as a user would, and fine-tunes each model on the
rows of --train_file (columns text and label), once for each seed. Measures on --test_file, which
chooses nothing, beside TF-IDF with logistic regression. The same command resumes. Writes
results.json and results.md: a line for each model, with the standard error over the seeds. The
chosen sizes depend on the machine's speed: nothing else may compute on the same cores.
"""

import argparse
import csv
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from albert.formats import model_card  # noqa: E402
from albert.records.manifests import Manifest  # noqa: E402
from albert.storage import files  # noqa: E402
from albert.tasks import baselines  # noqa: E402

HEADER = ("text", "hours", "layers x width, vocabulary", "text seen", "masked tokens", "most frequent token",
          "order", "classifier", "TF-IDF")


def run(name: str, *flags: str) -> None:
    subprocess.run([sys.executable, "-m", f"albert.{name}", *flags], check=True,
                   env=os.environ | {"PYTHONPATH": str(REPO)})


def pretrain(text: str, language: str, hours: float, folder: pathlib.Path) -> dict:
    """Returns what a model is and has learned, trained unless that is done."""
    if not (folder / "report.md").exists():
        run("pretrain_from_text", f"--input_file={text}", f"--language={language}", f"--hours={hours}",
            f"--output_dir={folder}")
    plan, config, results = (files.read_json_object(str(folder / name)) for name in (
        "plan.json", "albert_config.json", "model/eval_results.json"))
    records = Manifest.read(str(folder / "records/train.tfrecord"))
    training = plan["training"]
    epochs = training["num_train_steps"] * training["train_batch_size"] / records.records
    return {
        "text": os.path.basename(text), "megabytes": os.path.getsize(text) / 1e6, "hours": hours,
        "layers": config["num_hidden_layers"], "width": config["hidden_size"],
        "vocabulary": config["vocab_size"], "epochs": epochs,
        "seen": min(epochs, 1) * (1 - records.info["report"]["cut_tokens"]), **results,
    }


def classify(model: pathlib.Path, train: str, test: str, folder: pathlib.Path, seeds: int) -> list[float]:
    """Returns the accuracy of a classifier for each seed."""
    found = []
    for seed in range(1, seeds + 1):
        out = folder / str(seed)
        if not (out / "predict_results.json").exists():
            run("run_classifier", f"--train_file={train}", f"--test_file={test}", f"--output_dir={out}",
                f"--init_checkpoint={model}", f"--seed={seed}", "--cross_validation=0")
        found.append(files.read_json_object(str(out / "predict_results.json"))["eval_accuracy"])
    return found


def tfidf(train: str, test: str) -> float:
    rows = []
    for path in train, test:
        with open(path, encoding="utf-8", newline="") as stream:
            rows.append([((row["text"], None), row["label"]) for row in csv.DictReader(stream)])
    (texts, labels), (others, answers) = (zip(*each, strict=True) for each in rows)
    return sum(map(str.__eq__, baselines.tfidf_answers(texts, labels, others), answers)) / len(answers)


def line(one: dict) -> tuple[str, ...]:
    error = statistics.stdev(one["classifier"]) / math.sqrt(len(one["classifier"]))
    return (
        f"{one['text']}, {one['megabytes']:.0f} MB", f"{one['hours']:g}",
        f"{one['layers']} x {one['width']}, {one['vocabulary']:,}",
        f"{100 * one['seen']:.0f} %, {one['epochs']:.1f} times", f"{100 * one['masked_lm_accuracy']:.1f} %",
        f"{100 * one['masked_lm_accuracy_baseline']:.1f} %", f"{100 * one['sentence_order_accuracy']:.1f} %",
        f"{statistics.fmean(one['classifier']):.3f} ± {error:.3f}", f"{one['tfidf']:.3f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True, help="comma-separated files")
    parser.add_argument("--language", default="en", help="of the texts")
    parser.add_argument("--hours", default="0.1,1", help="comma-separated")
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--test_file", required=True)
    parser.add_argument("--output_dir", required=True, type=pathlib.Path)
    parser.add_argument("--seeds", default=3, type=int)
    given = parser.parse_args()
    results, baseline = [], tfidf(given.train_file, given.test_file)
    for text in given.texts.split(","):
        for hours in map(float, given.hours.split(",")):
            folder = given.output_dir / f"{pathlib.Path(text).stem}-{hours:g}"
            one = pretrain(text, given.language, hours, folder)
            one["tfidf"] = baseline
            one["classifier"] = classify(
                folder / "model", given.train_file, given.test_file, folder / "classifier", given.seeds)
            results.append(one)
            files.write_json(str(given.output_dir / "results.json"), results)
            table = model_card.table(HEADER, list(map(line, results)))
            (given.output_dir / "results.md").write_text(table, encoding="utf-8")
    print(json.dumps(results), file=sys.stderr)
    print(table)


if __name__ == "__main__":
    main()
