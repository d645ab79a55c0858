"""A report as Markdown, and as an HTML page that needs no other file."""

import os
import string
from collections.abc import Sequence

from albert.formats import run_states
from albert.formats.model_card import table
from albert.storage import files

_MAX_LINES = 12  # of a learning curve
_BAR = 12  # characters of the longest bar
_PAGE = os.path.splitext(__file__)[0] + ".html"


def publish(directory: str, title: str, parts: Sequence[str]) -> str:
    """Publishes the parts of a report as report.html and report.md; returns the latter's path.

    Texts of the user can neither format the page nor make it load anything.
    """
    from markdown_it import MarkdownIt  # only here: every command would take longer to start

    text = "\n".join([f"# {title}\n", *parts])
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "link", "autolink"])
    with open(_PAGE, encoding="utf-8") as stream:
        page = string.Template(stream.read()).substitute(title=title, body=renderer.render(text))
    for name, content in (("report.html", page), ("report.md", text)):
        with files.atomic_write(path := os.path.join(directory, name)) as stream:
            stream.write(content)
    return path


def curve(directory: str, *metrics: str) -> str:
    """Returns a table of a run's evaluations, with bars of the first of these metrics."""
    names = ("loss", *metrics)
    lines = [
        line for line in run_states.evaluations(directory)
        if all(isinstance(line.get(name), float) for name in names)
    ]
    every = -(-len(lines) // _MAX_LINES) or 1
    highest = max((line[metrics[0]] for line in lines), default=0.0) or 1.0
    return table(("step", *(name.replace("_", " ") for name in names), ""), [
        (line["step"], *(f"{line[name]:.3f}" for name in names), "█" * round(_BAR * line[metrics[0]] / highest))
        for line in lines[::-every][::-1]  # the last among them
    ])
