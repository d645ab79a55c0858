"""A report as Markdown, and as an HTML page that needs no other file."""

import os
import string
from collections.abc import Iterable

from albert.storage import files
from albert.training.metrics import read_metrics

_PAGE = os.path.splitext(__file__)[0] + ".html"
_PLOT = "learning_curve.svg"


def publish(directory: str, title: str, parts: Iterable[str]) -> str:
    """Publishes the parts of a report as report.html and report.md; returns the latter's path.

    Parts are Markdown, or a plot of `curve`, which report.md shows from a separate file. Texts of the
    user can neither format the page nor make it load anything.
    """
    from markdown_it import MarkdownIt  # only here: every command would take longer to start

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "link", "autolink"])
    with open(_PAGE, encoding="utf-8") as stream:
        page = string.Template(stream.read())
    parts = [f"# {title}\n", *parts]
    plots = [part for part in parts if part.startswith("<svg")]
    contents = {_PLOT: plots[0]} if plots else {}
    contents["report.html"] = page.substitute(
        title=title, body="".join(part if part in plots else parser.render(part) for part in parts))
    contents["report.md"] = "\n".join(
        f"![Learning curve]({_PLOT})\n" if part in plots else part for part in parts)
    for name, content in contents.items():
        with files.atomic_write(path := os.path.join(directory, name)) as stream:
            stream.write(content)
    return path


def curve(directory: str, metric: str) -> str:
    """Returns a plot of a metric by step over a run's evaluations, as SVG; a sentence if there are none."""
    lines = [line for line in read_metrics(directory, "eval") if isinstance(line.get(metric), float)]
    if not lines:
        return "No evaluations.\n"
    values, last = [line[metric] for line in lines], max(line["step"] for line in lines)
    low, high = min(values), max(values)
    points = [(60 + 340 * line["step"] / last, 130 - 110 * (line[metric] - low) / ((high - low) or 1))
              for line in lines]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    shapes = [
        f'<text x="0" y="24">{high:.3f}</text>', f'<text x="0" y="134">{low:.3f}</text>',
        f'<text x="400" y="156" text-anchor="end">step {last:,}</text>',
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points),
        f'<text x="{points[-1][0] + 8:.1f}" y="{points[-1][1] + 5:.1f}">'
        f"{metric.replace('_', ' ')} {values[-1]:.3f}</text>",
    ]
    return ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 170" width="640" fill="currentColor" '
            f'font-family="system-ui, sans-serif" font-size="14">{"".join(shapes)}</svg>\n')
