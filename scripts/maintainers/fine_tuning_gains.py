"""Measures what fine-tuning a small model gives: settings, pretrained and random weights, TF-IDF.

  python scripts/maintainers/fine_tuning_gains.py --glue_dir=GLUE --output_dir=work/gains

Draws training rows from GLUE's tasks and fine-tunes with `run_classifier --train_file`, as a user
would, once for each seed: from --model, and from random weights of its architecture. It measures on
other rows, up to 2,000, which choose nothing. `--setting='name: --flag=value ...'`, repeated,
compares settings; without it only the automatic choice is measured. Each run's score is kept, so the
same command resumes. Writes results.json and results.md: mean and standard error over the seeds.
"""

import argparse
import csv
import json
import math
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from albert.formats import model_card, pretrained  # noqa: E402
from albert.storage import files  # noqa: E402
from albert.tasks import baselines  # noqa: E402

# Folder of GLUE: columns of the text, of the second text and of the label.
TASKS = {
    "SST-2": ("sentence", None, "label"), "MRPC": ("#1 String", "#2 String", "Quality"),
    "QNLI": ("question", "sentence", "label"), "RTE": ("sentence1", "sentence2", "label"),
    "STS-B": ("sentence1", "sentence2", "score"),
}
MEASURED, LARGEST = 2000, 3000  # rows to measure on, and to train on, at most


def draw(folder: pathlib.Path, task: str, count: int) -> tuple[list, list]:
    """Returns (text, second text, label) to train on, and those to measure on, the same for every count."""
    rows = []
    for split in ("train", "dev"):
        with open(folder / task / f"{split}.tsv", encoding="utf-8-sig", newline="") as stream:
            for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
                rows.append(tuple(row[name] if name else "" for name in TASKS[task]))
    random.Random(task).shuffle(rows)
    measured = min(MEASURED, max(len(rows) - LARGEST, len(rows) // 4))
    return rows[measured:][:count], rows[:measured]


def write_csv(path: pathlib.Path, rows: list) -> None:
    with files.atomic_write(str(path)) as stream:
        writer = csv.writer(stream)
        writer.writerow(("text", "second", "label") if rows[0][1] else ("text", "label"))
        writer.writerows(row if row[1] else (row[0], row[2]) for row in rows)


def start_flags(model: str, start: str) -> list[str]:
    """Returns the flags of a start: the model's weights, or random ones of its architecture."""
    if start == "pretrained":
        return [f"--init_checkpoint={model}"]
    source = pretrained.open_path(model)
    vocabulary, flag = source.vocabulary, "spm_model_file"
    if not vocabulary.spm_model_file:
        flag = "vocab_file"
    return [f"--albert_config_file={os.path.join(source.directory, 'albert_config.json')}",
            f"--{flag}={getattr(vocabulary, flag)}"]


def score(folder: pathlib.Path, data: pathlib.Path, task: str, flags: list[str], seed: int) -> float:
    """Trains on train.csv unless that is done; returns the score on the rows in test.csv."""
    if not (folder / "predict_results.json").exists():
        command = [
            sys.executable, "-m", "albert.run_classifier", f"--train_file={data}/train.csv",
            f"--test_file={data}/test.csv", f"--output_dir={folder}", f"--seed={seed}",
            "--predict_batch_size=128", "--eval_batch_size=128", "--keep_checkpoint_max=1",
            "--cross_validation=0", "--text_column=text", "--label_column=label",
            *(["--text_pair_column=second"] if TASKS[task][1] else []),
            *(["--regression"] if task == "STS-B" else []), *flags,
        ]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(REPO)}, check=True)
    results = files.read_json_object(str(folder / "predict_results.json"))
    return results["pearson" if task == "STS-B" else "eval_accuracy"]


def baseline(task: str, train: list, measured: list) -> dict[str, float]:
    """Returns the scores of the most frequent label and of TF-IDF with a regression."""
    answers, labels = ([float(row[2]) if task == "STS-B" else row[2] for row in rows]
                       for rows in (train, measured))
    found = baselines.tfidf_answers(
        [row[:2] for row in train], answers, [row[:2] for row in measured])
    if task == "STS-B":
        return {"most_frequent": 0.0, "tfidf": statistics.correlation(labels, found.tolist())}
    most_frequent = statistics.mode(answers)
    return {"most_frequent": labels.count(most_frequent) / len(labels),
            "tfidf": sum(map(str.__eq__, found, labels)) / len(labels)}


def table(results: dict) -> str:
    """Returns the results as a Markdown table: a line for each task and number of rows."""
    names = [f"{setting}, {start}" for start in results["starts"] for setting, _ in results["settings"]]
    if len(results["settings"]) == 1:
        names = list(results["starts"])
    rows = [
        (one["task"], f"{one['rows']:,}",
         *(f"{x['mean']:.3f}" + (f" ± {x['error']:.3f}" if x["error"] else "") for x in one["scores"]),
         f"{one['tfidf']:.3f}", f"{one['most_frequent']:.3f}")
        for one in results["tasks"]
    ]
    return model_card.table(("task", "rows", *names, "TF-IDF", "most frequent label"), rows)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glue_dir", required=True, type=pathlib.Path)
    parser.add_argument("--output_dir", required=True, type=pathlib.Path)
    parser.add_argument("--model", default="small_en")
    parser.add_argument("--tasks", default="SST-2,MRPC,QNLI,RTE")
    parser.add_argument("--rows", default="300,600,3000", help="training rows, at most")
    parser.add_argument("--starts", default="pretrained,random")
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("--setting", action="append", help="name: flags of run_classifier")
    return parser.parse_args(argv)


def main() -> None:
    arguments = parse()
    settings = dict(text.split(":", 1) for text in arguments.setting or ["automatic:"])
    results = {"model": arguments.model, "starts": arguments.starts.split(","),
               "settings": list(settings.items()), "tasks": []}
    for task in arguments.tasks.split(","):
        for count in map(int, arguments.rows.split(",")):
            train, measured = draw(arguments.glue_dir, task, count)
            data = arguments.output_dir / f"{task}-{count}"
            data.mkdir(parents=True, exist_ok=True)
            write_csv(data / "train.csv", train)
            write_csv(data / "test.csv", measured)
            one = {"task": task, "rows": len(train), "measured": len(measured), "scores": [],
                   **baseline(task, train, measured)}
            results["tasks"].append(one)
            for start in results["starts"]:
                for name, flags in settings.items():
                    scores = [
                        score(data / f"{start}-{name.replace(' ', '_')}-{seed}", data, task,
                              start_flags(arguments.model, start) + shlex.split(flags), seed)
                        for seed in range(1, arguments.seeds + 1)
                    ]
                    error = None
                    if len(scores) > 1:
                        error = statistics.stdev(scores) / math.sqrt(len(scores))
                    one["scores"].append(
                        {"mean": statistics.fmean(scores), "seeds": scores, "error": error})
            files.write_json(str(arguments.output_dir / "results.json"), results)
            (arguments.output_dir / "results.md").write_text(table(results), encoding="utf-8")
    print(json.dumps(results), file=sys.stderr)
    print(table(results))


if __name__ == "__main__":
    main()
