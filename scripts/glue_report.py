"""Writes the table of a run of several GLUE tasks in the benchmark's layout. Needs no TensorFlow.

  python scripts/glue_report.py --directory=glue_output

Reads <directory>/<task>/eval_results.json; writes glue_results.md and .json. Of several
comma-separated directories, the runs of run_glue.sh --seeds, it writes medians and standard
deviations next to them. A task with two metrics counts as their mean, MNLI as the mean of its two dev sets; the
average is over the tasks that were run (the benchmark's is over all tasks).
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence

from albert import errors
from albert.cli import flags
from albert.storage import files

# Column of the table: the task's folder and the keys of its metrics, shown in percent.
COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "CoLA": (("cola", "matthew_corr"),),
    "SST-2": (("sst-2", "eval_accuracy"),),
    "MRPC": (("mrpc", "f1"), ("mrpc", "eval_accuracy")),
    "STS-B": (("sts-b", "pearson"), ("sts-b", "spearman")),
    "QQP": (("qqp", "f1"), ("qqp", "eval_accuracy")),
    "MNLI-m/mm": (("mnli", "eval_accuracy"), ("mismnli", "eval_accuracy")),
    "QNLI": (("qnli", "eval_accuracy"),),
    "RTE": (("rte", "eval_accuracy"),),
    "WNLI": (("wnli", "eval_accuracy"),),
}
METRICS = ("Matthews", "acc", "F1/acc", "Pearson/Spearman", "F1/acc", "acc", "acc", "acc", "acc")


def define_flags(values: flags.FlagValues) -> None:
    flags.define("list", values, "directory", [], "What run_glue.sh wrote. Required.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "directory")
    runs = [read_scores(directory) for directory in values.directory]
    scores = over_runs(runs, statistics.median)
    text = table(scores)
    out = values.directory[0]
    if len(runs) > 1:
        out = os.path.dirname(out)
        text += row("deviation", over_runs(runs, statistics.stdev),
                    statistics.stdev(map(average, runs)))
    with files.atomic_write(os.path.join(out, "glue_results.md")) as stream:
        stream.write(text)
    files.write_json(os.path.join(out, "glue_results.json"), {
        **{name: list(numbers) for name, numbers in scores.items()}, "average": average(scores),
    })
    print(text, end="")


def read_scores(directory: str) -> dict[str, list[float]]:
    """Returns {column: its metrics in percent} for the tasks that were evaluated.

    Raises:
      DataError: no task was evaluated, or a results file lacks its metric.
    """
    scores: dict[str, list[float]] = {}
    for name, parts in COLUMNS.items():
        for folder, key in parts:
            path = os.path.join(directory, folder, "eval_results.json")
            if not os.path.isfile(path):
                continue
            results = files.read_json(path)
            if not isinstance(results, Mapping) or not isinstance(results.get(key), int | float):
                raise errors.DataError(f"{path}: no {key} in it; was it made for another task?")
            scores.setdefault(name, []).append(100 * results[key])
    if not scores:
        raise errors.DataError(f"--directory: no <task>/eval_results.json in {directory}")
    return scores


def over_runs(
    runs: Sequence[Mapping[str, list[float]]], summary: Callable[[Sequence[float]], float]
) -> dict[str, list[float]]:
    """Returns {column: a summary of each metric} over runs of the same tasks."""
    if odd := {name for run in runs for name in set(run) ^ set(runs[0])}:
        raise errors.DataError(f"--directory: not all runs have {', '.join(sorted(odd))}")
    return {
        name: [summary(numbers) for numbers in zip(*(run[name] for run in runs), strict=True)]
        for name in runs[0]
    }


def average(scores: Mapping[str, list[float]]) -> float:
    """Returns the mean over the tasks of the mean of each task's metrics."""
    return statistics.fmean(statistics.fmean(numbers) for numbers in scores.values())


def table(scores: Mapping[str, list[float]]) -> str:
    """Returns a Markdown table of all columns; those without a result are empty."""
    rows = [
        ["", *COLUMNS, "average"],
        ["---"] * (len(COLUMNS) + 2),
        ["metric", *METRICS, f"of {len(scores)}"],
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows) + row(
        "dev", scores, average(scores)
    )


def row(title: str, scores: Mapping[str, list[float]], last: float) -> str:
    """Returns a row of the table."""
    cells = ["/".join(f"{x:.1f}" for x in scores.get(name, ())) or "-" for name in COLUMNS]
    return f"| {title} | {' | '.join(cells)} | {last:.1f} |\n"


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
