"""Measures what a pretrained model gains over random weights of its architecture in fine-tuning.

  python scripts/maintainers/fine_tuning_gains.py --glue_dir=GLUE --output_dir=work/gains

Uses samples of GLUE's tasks, the same for both starts, with several seeds each. For QNLI it splits
the dev set: a thousand examples to evaluate, the rest to train. Writes results.json and results.md:
mean, standard error of the mean, and the score of the most frequent label. It resumes where it stopped.
Flags after `--` go to run_classifier, after those of configs/small_en/fine_tuning.flags.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from albert.formats import model_card, pretrained  # noqa: E402
from albert.storage import files  # noqa: E402

EVIDENCE = "fine_tuning_gains.json"  # the results in the documentation
RECIPE = REPO / "configs/small_en/fine_tuning.flags"
# Folder of GLUE: the metric, and the column of the label in dev.tsv.
TASKS = {
    "SST-2": ("eval_accuracy", "label"), "STS-B": ("pearson", "score"),
    "QNLI": ("eval_accuracy", "label"), "MRPC": ("eval_accuracy", "Quality"),
}
STARTS = "pretrained", "random"
HELD_OUT = 1000  # examples of QNLI's dev set to evaluate on


def sample(source: pathlib.Path, target: pathlib.Path, task: str, rows: int) -> int:
    """Writes a task's folder with a random sample of at most `rows` training rows; returns their number."""
    def lines_of(name):
        return (source / task / name).read_text("utf-8-sig").splitlines()

    if task == "QNLI":
        head, *dev = lines_of("dev.tsv")
        random.Random("QNLI").shuffle(dev)
        dev, train = dev[:HELD_OUT], dev[HELD_OUT:]
    else:
        head, *train = lines_of("train.tsv")
        _, *dev = lines_of("dev.tsv")
    drawn = random.Random(f"{task}/{rows}").sample(train, min(rows, len(train)))
    (target / task).mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", drawn), ("dev", dev)):
        with files.atomic_write(str(target / task / f"{name}.tsv")) as stream:
            stream.write("\n".join([head, *chosen]) + "\n")
    return len(drawn)


def commonest(data: pathlib.Path, task: str) -> float:
    """Returns the metric of always predicting the most frequent label."""
    head, *rows = (data / task / "dev.tsv").read_text("utf-8").splitlines()
    column = head.split("\t").index(TASKS[task][1])
    if TASKS[task][0] == "pearson":
        return 0.0  # a constant correlates with nothing
    counts = collections.Counter(row.split("\t")[column] for row in rows)
    return max(counts.values()) / counts.total()


def start_flags(model: str, start: str) -> list[str]:
    """Returns the flags of a start, and of sequences no longer than the model takes."""
    source = pretrained.open_path(model)
    length = f"--max_seq_length={min(128, source.config.max_position_embeddings)}"
    if start == "pretrained":
        return [length, f"--init_checkpoint={model}"]
    return [length, f"--albert_config_file={os.path.join(source.directory, 'albert_config.json')}",
            f"--spm_model_file={source.vocabulary.spm_model_file}"]


def fine_tune(arguments, data: pathlib.Path, task: str, start: str, out: pathlib.Path) -> list[float]:
    """Returns the metric for each seed."""
    command = [
        sys.executable, "-m", "albert.run_classifier", f"--flagfile={RECIPE}",
        f"--task_name={task}", f"--data_dir={data}", f"--output_dir={out}",
        f"--num_runs={arguments.seeds}", *start_flags(arguments.model, start), *arguments.others,
    ]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    with open(files.make_dirs(str(out)) + "/log.txt", "a", encoding="utf-8") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
    if done.returncode:
        sys.exit(f"{task}, {start}: exit code {done.returncode}; see {out}/log.txt")
    found = sorted(out.glob("seed-*/eval_results.json"))[: arguments.seeds]
    found = found or [out / "eval_results.json"]  # a single seed
    return [json.loads(path.read_text("utf-8"))[TASKS[task][0]] for path in found]


def summary(values: list[float]) -> dict:
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return {"mean": statistics.fmean(values), "error": spread / math.sqrt(len(values)),
            "seeds": values}


def table(results: dict) -> str:
    """Returns the results as a Markdown table."""
    def cell(one):
        return f"{one['mean']:.3f} ± {one['error']:.3f}"

    rows = [
        (one["task"], one["metric"].replace("_", " "), f"{one['rows']:,}", cell(one["pretrained"]),
         cell(one["random"]), f"{one['pretrained']['mean'] - one['random']['mean']:+.3f}",
         f"{one['commonest']:.3f}")
        for one in results["tasks"]
    ]
    head = ("task", "metric", "rows", results["model"], "random weights", "gain",
            "most frequent answer")
    return model_card.table(head, rows)


def write(results: dict, folder: pathlib.Path) -> None:
    """Publishes results.json and results.md."""
    files.write_json(str(folder / "results.json"), results)
    with files.atomic_write(str(folder / "results.md")) as stream:
        stream.write(table(results))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glue_dir", required=True, type=pathlib.Path)
    parser.add_argument("--output_dir", required=True, type=pathlib.Path)
    parser.add_argument("--model", default="small_en")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--rows", default="500,5000", help="training rows, at most")
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("others", nargs="*", help="flags of run_classifier")
    return parser.parse_args(argv)


def main() -> None:
    arguments = parse()
    results = {
        "model": arguments.model, "recipe": RECIPE.read_text("utf-8").splitlines(),
        "flags": arguments.others, "tasks": [],
    }
    for rows in map(int, arguments.rows.split(",")):
        for task in arguments.tasks.split(","):
            folder = arguments.output_dir / f"{task}-{rows}"
            count = sample(arguments.glue_dir, folder / "data", task, rows)
            found = {
                start: summary(fine_tune(arguments, folder / "data", task, start, folder / start))
                for start in STARTS
            }
            results["tasks"].append({
                "task": task, "metric": TASKS[task][0], "rows": count,
                "commonest": commonest(folder / "data", task), **found,
            })
            write(results, arguments.output_dir)
            print(json.dumps(results["tasks"][-1]), flush=True)


if __name__ == "__main__":
    main()
