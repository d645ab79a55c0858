"""report.md and results.json of a grid: means, spreads, and the paper's order next to ours."""

import dataclasses
import itertools
import math
import os
import statistics
from collections.abc import Sequence

from ablation.grid import Grid
from ablation.runs import Result
from albert.formats import model_card
from albert.storage import files


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean over seeds, and the standard deviation of one seed's value."""

    value: float
    spread: float | None  # None with a single seed
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        spread = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), spread, len(values))

    def __str__(self) -> str:
        return f"{self.value:.4g}" + ("" if self.spread is None else f" ± {self.spread:.2g}")


def write(grid: Grid, results: Sequence[Result], directory: str) -> None:
    """Writes report.md and results.json."""
    files.write_json(
        os.path.join(directory, "results.json"), [dataclasses.asdict(one) for one in results]
    )
    with files.atomic_write(os.path.join(directory, "report.md")) as stream:
        stream.write(_text(grid, results))


def _text(grid: Grid, results: Sequence[Result]) -> str:
    by_setting = _by_setting(grid, results)
    parts = [
        f"# {grid.title}\n", grid.about,
        f"\nEach run: {_tokens(grid)} tokens. Held-out documents; mean ± standard deviation of "
        f"the seeds {', '.join(map(str, grid.seeds))}.\n",
        table(grid, results),
        *_order(grid, by_setting), "",
    ]
    missing = {n: len(grid.seeds) - len(found) for n, found in by_setting.items()}
    if any(missing.values()):
        told = ", ".join(f"{name} ({count})" for name, count in missing.items() if count)
        parts.insert(3, f"Not finished, runs missing: {told}.\n")
    return "\n".join(parts)


def _value(one: Result, metric: str) -> float | None:
    """Returns a metric; `nsp/masked_lm_loss` is masked_lm_loss in the evaluation `nsp`."""
    where, _, name = metric.rpartition("/")
    return (one.others.get(where, {}) if where else one.metrics).get(name)


def _means(found: Sequence[Result], metric: str) -> Mean | None:
    values = [value for one in found if (value := _value(one, metric)) is not None]
    return Mean.of(values) if values else None


def _minutes(one: Result) -> float:
    """Returns the minutes of training, excluding evaluation where its time is known."""
    return one.curve[-1]["minutes"] if one.curve else one.minutes


def _by_setting(grid: Grid, results: Sequence[Result]) -> dict[str, list[Result]]:
    return {
        setting.name: [one for one in results if one.setting == setting.name]
        for setting in grid.settings
    }


def table(grid: Grid, results: Sequence[Result]) -> str:
    """Returns the means of each setting's metrics over its seeds, as a Markdown table."""
    by_setting = _by_setting(grid, results)
    known = [one for found in by_setting.values() for one in found]
    metrics = [m for m in grid.metrics if any(_value(one, m) is not None for one in known)]
    heads = ["setting", "parameters", *(m.replace("_", " ") for m in metrics), "minutes of training"]
    with_paper = any(setting.paper is not None for setting in grid.settings)
    heads += [f"paper: {grid.paper_measure}"] * with_paper
    lines = []
    for setting in grid.settings:
        found = by_setting[setting.name]
        cells = [setting.name, f"{found[0].parameters:,}" if found else ""]
        cells += [str(_means(found, metric) or "") for metric in metrics]
        cells.append(f"{statistics.fmean(map(_minutes, found)):.1f}" if found else "")
        cells += ["" if setting.paper is None else f"{setting.paper:g}"] * with_paper
        lines.append(cells)
    return model_card.table(heads, lines).rstrip()


def _order(grid: Grid, by_setting) -> list[str]:
    """Returns, for each pair of settings, whether the runs rank them as the paper does."""
    known = [
        (setting.name, setting.paper, mean)
        for setting in grid.settings
        if setting.paper is not None and (mean := _means(by_setting[setting.name], grid.primary))
    ]
    if len(known) < 2:
        return []
    # Lower loss is better.
    sign = -1 if grid.primary.endswith("loss") else 1
    lines = {"as in the paper": [], "the other way round": [], "within the error": []}
    for (one, paper, mean), (two, other_paper, other) in itertools.combinations(known, 2):
        if paper == other_paper:
            continue
        difference, error = sign * (mean.value - other.value), _error(mean, other)
        better, worse = (one, two) if paper > other_paper else (two, one)
        if error is None or abs(difference) < 2 * error:
            where = "within the error"
        else:
            is_same = (difference > 0) == (paper > other_paper)
            where = "as in the paper" if is_same else "the other way round"
        lines[where].append(f"{better} > {worse}")
    told = [f"\n## The paper's order ({grid.paper_measure}), judged by {grid.primary}\n",
            "A difference counts from two standard errors of it. In each pair the better one of "
            "the paper is first.\n"]
    for where, pairs in lines.items():
        told.append(f"- {where}: {len(pairs)}" + (f" ({'; '.join(pairs)})" if pairs else ""))
    return told


def _tokens(grid: Grid) -> str:
    found = sorted({setting.tokens for setting in grid.settings})
    return " to ".join(f"{count:,}" for count in (found[0], found[-1])[: len(found)])


def _error(one: Mean, two: Mean) -> float | None:
    """Returns the standard error of the difference between two means."""
    if one.spread is None or two.spread is None:
        return None
    return math.sqrt(one.spread**2 / one.count + two.spread**2 / two.count)
