"""Learning curves of a pretraining run as one picture. Needs matplotlib, loaded when called."""

from typing import Any

from albert.storage import files
from albert.training.run_report import Baselines

_TRAIN, _HELD_OUT, _BASELINE = "#9db4cc", "#d1495b", "#6b6b6b"
_SMOOTHED = "#2a6496"


def draw(path: str, metrics: dict[str, list[dict[str, Any]]], base: Baselines | None) -> None:
    """Publishes a PNG: loss, the two accuracies (training and held-out), learning rate."""
    figure, axes = panels_of(2, 2, (11, 7.2), sharex=True)
    panels = [
        ("loss", "Loss (masked LM + sentence order)", None, ""),
        ("masked_lm_accuracy", "Masked-LM accuracy", base and base.commonest_token,
         "always the commonest token"),
        ("sentence_order_accuracy", "Sentence-order accuracy", base and base.majority_order,
         "always the commoner order"),
        ("learning_rate", "Learning rate", None, ""),
    ]
    for axis, (key, title, baseline, baseline_label) in zip(axes.flat, panels, strict=True):
        dress(axis, title)
        _draw_series(axis, key, metrics)
        if baseline is not None:
            axis.axhline(baseline, color=_BASELINE, linestyle="--", linewidth=1.2,
                         label=f"{baseline_label} ({baseline:.3f})")
        _set_limits(axis, key)
    for axis in axes[1]:
        axis.set_xlabel("step")
    publish(figure, path)


def panels_of(rows: int, columns: int, size: tuple[float, float], **options: Any):
    """Returns (figure, panels as an array [rows, columns]); `size` is in inches."""
    import matplotlib

    matplotlib.use("Agg")  # needs no screen
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, dpi=120, squeeze=False, **options)


def publish(figure, path: str) -> None:
    """Writes a figure as a PNG, and closes it."""
    from matplotlib import pyplot

    # A $ in a label or a setting's name is a character, not the start of a formula.
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)
    figure.tight_layout()
    with files.atomic_write(path, "wb") as stream:
        figure.savefig(stream, format="png", metadata={"Software": None})
    pyplot.close(figure)


def dress(axis, title: str) -> None:
    """Gives a panel its title, its grid and no frame."""
    axis.set_title(title, fontsize=11, loc="left", fontweight="bold")
    axis.grid(color="#e6e6e6", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _draw_series(axis, key: str, metrics: dict[str, list[dict[str, Any]]]) -> None:
    """Draws the training's values, their smoothed course, and those of held-out records."""
    train = [(line["step"], line[key]) for line in metrics["train"] if key in line]
    held_out = [(line["step"], line[key]) for line in metrics["eval"] if key in line]
    if key == "learning_rate":
        axis.plot(*zip(*train, strict=True), color=_SMOOTHED, linewidth=1.8) if train else None
        return
    if train:
        steps, values = zip(*train, strict=True)
        axis.plot(steps, values, color=_TRAIN, linewidth=0.9)
        axis.plot(steps, _smooth(values), color=_SMOOTHED, linewidth=1.8, label="training")
    if held_out:
        axis.plot(*zip(*held_out, strict=True), color=_HELD_OUT, linewidth=1.8, marker="o",
                  markersize=4, label=f"held out ({held_out[-1][1]:.3f} at the end)")


def _smooth(values: tuple[float, ...], weight: float = 0.6) -> list[float]:
    """Returns the exponential moving average, corrected for its start at zero."""
    smoothed, average, mass = [], 0.0, 0.0
    for value in values:
        average = weight * average + (1 - weight) * value
        mass = weight * mass + (1 - weight)
        smoothed.append(average / mass)
    return smoothed


def _set_limits(axis, key: str) -> None:
    axis.set_xlim(left=0)
    if key == "learning_rate":
        axis.set_ylim(bottom=0)
        axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    elif axis.get_legend_handles_labels()[1]:
        axis.legend(frameon=False, fontsize=9)
