"""Pictures in one style. They need matplotlib, which is imported when the first one is drawn."""

from typing import Any

from albert.storage import files


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
