"""Learning curves of a grid: one line a setting, a band for its seeds."""

from collections.abc import Sequence

import numpy as np

from albert.ablation.grid import Grid
from albert.ablation.runs import Result
from albert.data import files


def draw(grid: Grid, results: Sequence[Result], path: str) -> None:
    """Publishes a PNG with a panel for each metric that the runs' own evaluations have."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    metrics = [name for name in grid.metrics if any(name in one.curve[-1] for one in results)]
    if not metrics:
        return
    scale, label = (1e6, "million tokens") if grid.over == "tokens" else (1, "minutes of training")
    figure, axes = pyplot.subplots(
        1, len(metrics), figsize=(5.5 * len(metrics), 4.2), dpi=120, squeeze=False
    )
    for axis, metric in zip(axes[0], metrics, strict=True):
        for setting in grid.settings:
            lines = [one.curve for one in results if one.setting == setting.name]
            lines = [line for line in lines if metric in line[-1]]
            if not lines:
                continue
            length = min(map(len, lines))
            values = np.array([[point[metric] for point in line[:length]] for line in lines])
            places = [
                np.mean([line[i][grid.over] for line in lines]) / scale for i in range(length)
            ]
            (drawn,) = axis.plot(places, values.mean(axis=0), marker="o", markersize=3,
                                 label=setting.name)
            axis.fill_between(places, values.min(axis=0), values.max(axis=0), alpha=0.15,
                              color=drawn.get_color(), linewidth=0)
        axis.set_title(metric.replace("_", " "), fontsize=11, loc="left", fontweight="bold")
        axis.set_xlabel(label)
        axis.grid(color="#e6e6e6", linewidth=0.8)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0][0].legend(frameon=False, fontsize=9)
    figure.tight_layout()
    with files.atomic_write(path, "wb") as stream:
        figure.savefig(stream, format="png", metadata={"Software": None})
    pyplot.close(figure)
