"""Learning curves of a grid: one line per setting, with a band for its seeds."""

from collections.abc import Sequence

import numpy as np

import run_files

from ablation.grid import Grid
from ablation.runs import Result


def draw(grid: Grid, results: Sequence[Result], path: str) -> None:
    """Publishes a PNG with one panel per metric evaluated during training."""
    metrics = [name for name in grid.metrics if any(name in one.curve[-1] for one in results)]
    if not metrics:
        return
    scale, label = (1e6, "million tokens") if grid.over == "tokens" else (1, "minutes of training")
    figure, axes = run_files.panels_of(1, len(metrics), (5.5 * len(metrics), 4.2))
    for axis, metric in zip(axes[0], metrics, strict=True):
        for setting in grid.settings:
            lines = [one.curve for one in results if one.setting == setting.name]
            lines = [line for line in lines if metric in line[-1]]
            if not lines:
                continue
            length = min(map(len, lines))
            values = np.array([[point.get(metric, np.nan) for point in line[:length]] for line in lines])
            places = [
                np.mean([line[i][grid.over] for line in lines]) / scale for i in range(length)
            ]
            (drawn,) = axis.plot(places, values.mean(axis=0), marker="o", markersize=3,
                                 label=setting.name)
            axis.fill_between(places, values.min(axis=0), values.max(axis=0), alpha=0.15,
                              color=drawn.get_color(), linewidth=0)
        run_files.dress(axis, metric.replace("_", " "))
        axis.set_xlabel(label)
    axes[0][0].legend(frameon=False, fontsize=9)
    run_files.publish(figure, path)
