"""Measures what fine-tuning a small model gives: settings, pretrained and random weights, TF-IDF.

  python scripts/maintainers/fine_tuning_gains.py --glue_dir=GLUE --output_dir=work/gains

Draws training rows from GLUE's tasks and fine-tunes with `run_classifier --train_file`, as a user
would, once for each seed: from --model, and from random weights of its architecture. It measures on
other rows, up to 2,000, which choose nothing. `--setting='name: --flag=value ...'`, repeated,
compares settings; without it only the automatic choice is measured. Each run's score is kept, so the
same command resumes. Writes results.json and results.md: mean and standard error over the seeds.
"""

import argparse
import concurrent.futures
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
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from albert.formats import model_card, pretrained  # noqa: E402
from albert.storage import files  # noqa: E402
from albert.tasks import baselines  # noqa: E402

# The results in the documentation: of both starts, of two optimizers, and of epochs.
EVIDENCE = "fine_tuning_gains.json", "fine_tuning_settings.json", "fine_tuning_epochs.json"
# Folder of GLUE: columns of the text, of the second text and of the label.
TASKS = {
    "SST-2": ("sentence", None, "label"),
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "QNLI": ("question", "sentence", "label"),
    "RTE": ("sentence1", "sentence2", "label"),
    "STS-B": ("sentence1", "sentence2", "score"),
}
MEASURED, LARGEST = 2000, 3000  # rows to measure on, and to train on, at most
AUTOMATIC = "automatic"


def read_rows(folder: pathlib.Path, task: str) -> list[tuple[str, ...]]:
    """Returns all labelled (text, second text, label) of a task in a fixed random order."""
    rows = []
    for split in ("train", "dev"):
        path = folder / task / f"{split}.tsv"
        if path.exists():
            with open(path, encoding="utf-8-sig", newline="") as stream:
                for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
                    rows.append(tuple(row[name] if name else "" for name in TASKS[task]))
    random.Random(task).shuffle(rows)
    return rows


def split(rows: list, count: int) -> tuple[list, list]:
    """Returns at most `count` rows to train on, and those to measure on, the same for every count."""
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
    return [f"--albert_config_file={os.path.join(source.directory, 'albert_config.json')}",
            f"--spm_model_file={source.vocabulary.spm_model_file}"]


def pearson(answers: list[str], labels: list[str]) -> float:
    first, second = [float(x) for x in answers], [float(x) for x in labels]
    return statistics.correlation(first, second) if len(set(first)) > 1 else 0.0


def accuracy(answers: list[str], labels: list[str]) -> float:
    return sum(map(str.__eq__, answers, labels)) / len(labels)


def fine_tune(data: pathlib.Path, task: str, flags: list[str], seed: int, core: int) -> float:
    """Returns the score on the rows in test.csv after training on train.csv."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "model")
        columns = ["--text_column=text", "--label_column=label"]
        columns += ["--text_pair_column=second"] if TASKS[task][1] else []
        columns += ["--regression"] if task == "STS-B" else []
        command = [
            sys.executable, "-m", "albert.run_classifier", f"--train_file={data}/train.csv",
            f"--test_file={data}/test.csv", f"--output_dir={out}", f"--seed={seed}",
            "--predict_batch_size=128", "--eval_batch_size=128", "--keep_checkpoint_max=1",
            *columns, *flags,
        ]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(REPO)}, text=True, capture_output=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        if done.returncode:
            sys.exit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        with open(os.path.join(out, "submit_results.tsv"), encoding="utf-8") as stream:
            answers = [line.rstrip("\n").split("\t")[1] for line in stream][1:]
    with open(data / "test.csv", encoding="utf-8", newline="") as stream:
        labels = [row["label"] for row in csv.DictReader(stream)]
    return (pearson if task == "STS-B" else accuracy)(answers, labels)


def baseline(task: str, train: list, measured: list) -> dict[str, float | None]:
    """Returns the scores of the most frequent label and of TF-IDF with logistic regression."""
    if task == "STS-B":
        return {"most_frequent": 0.0, "tfidf": None}
    labels = [row[2] for row in measured]
    most_frequent = statistics.mode(row[2] for row in train)
    answers = baselines.tfidf_answers(
        [f"{row[0]} {row[1]}" for row in train], [row[2] for row in train],
        [f"{row[0]} {row[1]}" for row in measured],
    )
    return {"most_frequent": accuracy([most_frequent] * len(labels), labels),
            "tfidf": None if answers is None else accuracy(list(answers), labels)}


def summary(scores: list[float]) -> dict:
    spread = statistics.stdev(scores) if len(scores) > 1 else math.nan
    return {"mean": statistics.fmean(scores), "error": spread / math.sqrt(len(scores)),
            "seeds": scores}


def table(results: dict) -> str:
    """Returns the results as a Markdown table: a line for each task and number of rows."""
    names = [f"{setting}, {start}" for start in results["starts"] for setting, _ in results["settings"]]
    if len(results["settings"]) == 1:
        names = list(results["starts"])

    def cell(score):
        return f"{score['mean']:.3f} ± {score['error']:.3f}"

    def number(score):
        return "" if score is None else f"{score:.3f}"

    rows = [
        (one["task"], f"{one['rows']:,}", *map(cell, one["scores"]), number(one["tfidf"]),
         number(one["most_frequent"]))
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
    parser.add_argument("--jobs", default=2, type=int, help="runs at a time, one core each")
    return parser.parse_args(argv)


def main() -> None:
    arguments = parse()
    settings = dict(text.split(":", 1) for text in arguments.setting or [f"{AUTOMATIC}:"])
    starts, counts = arguments.starts.split(","), [int(x) for x in arguments.rows.split(",")]
    cells, tasks = [], []
    for task in arguments.tasks.split(","):
        rows = read_rows(arguments.glue_dir, task)
        for count in counts:
            train, measured = split(rows, count)
            data = arguments.output_dir / f"{task}-{count}"
            data.mkdir(parents=True, exist_ok=True)
            write_csv(data / "train.csv", train)
            write_csv(data / "test.csv", measured)
            tasks.append({"task": task, "rows": len(train), "measured": len(measured), "data": data,
                          **baseline(task, train, measured)})
            cells += [(data, task, start, name, seed) for start in starts for name in settings
                      for seed in range(1, arguments.seeds + 1)]
    cores = sorted(os.sched_getaffinity(0))[: arguments.jobs]
    free = list(cores)

    def path_of(data, start, name, seed):
        return data / f"{start}-{name.replace(' ', '_')}-{seed}.json"

    def run(cell):
        data, task, start, name, seed = cell
        path = path_of(data, start, name, seed)
        if not path.exists():
            core = free.pop()
            flags = start_flags(arguments.model, start) + shlex.split(settings[name])
            files.write_json(str(path), {"score": fine_tune(data, task, flags, seed, core)})
            free.append(core)
        print(path, json.loads(path.read_text("utf-8"))["score"], flush=True)

    with concurrent.futures.ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(run, cells))
    for one in tasks:
        data = one.pop("data")
        one["scores"] = [
            summary([json.loads(path_of(data, start, name, seed).read_text("utf-8"))["score"]
                     for seed in range(1, arguments.seeds + 1)])
            for start in starts for name in settings
        ]
    results = {"model": arguments.model, "starts": starts,
               "settings": list(settings.items()), "tasks": tasks}
    files.write_json(str(arguments.output_dir / "results.json"), results)
    with files.atomic_write(str(arguments.output_dir / "results.md")) as stream:
        stream.write(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
