"""Draws the charts of the documentation from the results in docs/evidence.

  python scripts/maintainers/pictures.py

docs/evidence/NAME.json becomes docs/pictures/NAME.svg, for report, speed, small_en, cooccurrence
and quarter_hour. report.json has the beginning of the report.md that the README's
first commands write. The last two are the results.json of grids: cooccurrence, and one_hour with a
quarter of its tokens. pipeline.svg and model.svg were written by hand; the colours and the rules
for dark pages are the same.

speed.json, for which any benchmark's rates will do:

  machine   hardware, precision and versions, in one line; printed below the bars
  works     a list of groups of bars, each with
    work      its heading, such as "classify short sentences"
    speeds    {side: rate}, higher is faster; those of "albert" are drawn in colour
    baseline  the side that counts as 1
    unit, command   not drawn: of the rates, and of benchmark.py
"""

import html
import json
import pathlib
import textwrap

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
# On light pages; Okabe and Ito's colour-blind-safe palette.
PAPER, INK, MUTED, GRID = "#ffffff", "#1f2328", "#59636e", "#d8dee4"
OURS, PEER, PALE = "#d55e00", "#0072b2", "#9aa4ae"
# On dark pages.
DARK = {
    PAPER: "#0d1117", INK: "#e6edf3", MUTED: "#9198a1", GRID: "#30363d", OURS: "#ff8c42",
    PEER: "#58a6ff", PALE: "#6e7681",
}
STYLE = {
    "font.size": 11, "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "svg.fonttype": "none", "svg.hashsalt": "albert",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": GRID, "text.color": INK, "axes.edgecolor": MUTED,
    "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.titlesize": 11,
    "axes.facecolor": PAPER, "figure.facecolor": PAPER, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "legend.frameon": False,
    "legend.fontsize": 10, "figure.constrained_layout.use": True,
}


def speed(results: dict, path: pathlib.Path) -> None:
    """Bars of speed, grouped by work; the baseline of each group is 1."""
    works = results["works"]
    lines = sum(len(work["speeds"]) + 1.6 for work in works)
    figure, axes = pyplot.subplots(figsize=(9, 0.26 * lines + 0.5))
    y, sides = 0.0, {}
    for work in works:
        axes.annotate(work["work"], (0, y), (5, 0), textcoords="offset points", va="center",
                      weight="bold")
        for side, rate in work["speeds"].items():
            y -= 1
            ratio, is_ours = rate / work["speeds"][work["baseline"]], side.startswith("albert")
            axes.barh(y, ratio, 0.8, color=OURS if is_ours else PALE)
            axes.annotate(f"{ratio:.1f}×", (ratio, y), (5, 0), textcoords="offset points",
                          va="center", weight="bold" if is_ours else None)
            sides[y] = side
        y -= 1.6
    axes.set_yticks(list(sides), list(sides.values()))
    axes.set_ylim(y + 1, 1)
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.margins(x=0.1)
    caption = f"Longer is faster. {results['machine']}"
    figure.supxlabel(textwrap.fill(caption, 110), color=MUTED, fontsize=9, x=0.01, ha="left")
    _save(figure, path)


def report(results: dict, path: pathlib.Path) -> None:
    """The beginning of a classifier's report, in type that can be read on a phone."""
    width, y, shapes = 560, 36, []

    def write(text: str, x: int = 20, size: int = 15, **attributes) -> None:
        settings = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
        shapes.append(f'<text x="{x}" y="{y}" fill="{INK}" font-size="{size}"{settings}>{html.escape(text)}</text>')

    write(results["title"], size=22, font_weight="bold")
    verdict, _, figures = results["verdict"].strip("*").partition("**: ")
    y += 34
    write(verdict, font_weight="bold")
    for line in textwrap.wrap(figures, 58):
        y += 22
        write(line)
    for heading in ("What to do next", "Scores"):
        y += 38
        write(heading, size=18, font_weight="bold")
        for step in results["next"] if heading != "Scores" else ():
            y += 26
            write(f"• {step}")
    for i, (name, *cells) in enumerate(results["scores"]):
        y += 26
        shapes.append(f'<path d="M20 {y + 8}H{width - 20}" stroke="{GRID}"/>')
        write(name.replace(" with logistic regression", ""))
        for x, cell in zip((370, width - 20), cells, strict=True):
            write(cell, x, 15 if i else 12, text_anchor="end")
    frame = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{y + 24}" rx="8" fill="{PAPER}" stroke="{GRID}"/>'
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 25}" width="{width}" '
        f'font-family="DejaVu Sans, Verdana, sans-serif">\n{dark_rules()}'
        + "\n".join([frame, *shapes]) + "\n</svg>\n", "utf-8")


def small_en(results: dict, path: pathlib.Path) -> None:
    """Learning curves of small_en: masked tokens predicted, and its nearness to the teacher."""
    names = {"masked_lm_accuracy": "masked tokens predicted", "teacher_similarity": "cosine to the teacher",
             "state_error": "error of the states"}
    figure, axes = pyplot.subplots(1, 3, figsize=(9, 3))
    for axis, (name, label) in zip(axes, names.items(), strict=True):
        points = [(one["million_tokens"], one[name]) for one in results["evaluations"]]
        axis.plot(*zip(*points, strict=True), "o-", markersize=4, color=OURS)
        axis.set_xlabel("million tokens")
        axis.set_title(label, fontsize=10)
    _save(figure, path)


def cooccurrence(results: list[dict], path: pathlib.Path) -> None:
    """Masked-LM loss over steps, from random and from co-occurrence embeddings; a line per seed."""
    figure, axis = pyplot.subplots(figsize=(9, 3.4))
    colours = {"random": OURS, "co-occurrence": PEER}
    for one in results:
        axis.plot([point["step"] for point in one["curve"]],
                  [point["masked_lm_loss"] for point in one["curve"]], "o-", markersize=3,
                  color=colours[one["setting"]],
                  label=one["setting"] if one["seed"] == results[0]["seed"] else None)
    axis.set_xlabel("steps")
    axis.set_ylabel("masked-LM loss, held-out pairs")
    figure.legend(loc="outside upper center", ncols=len(colours), title="initial token embeddings")
    _save(figure, path)


def quarter_hour(results: list[dict], path: pathlib.Path) -> None:
    """Final masked-LM loss of each setting, the lowest at the top, with its minutes."""
    figure, axis = pyplot.subplots(figsize=(9, 4))
    ordered = sorted(results, key=lambda one: -one["metrics"]["masked_lm_loss"])
    names = []
    for y, one in enumerate(ordered):
        loss, is_ours = one["metrics"]["masked_lm_loss"], one["setting"] == "pairs"
        axis.plot(loss, y, "o", color=OURS if is_ours else PEER)
        axis.annotate(f"{one['curve'][-1]['minutes']:.0f} minutes", (loss, y), xytext=(8, -4),
                      fontsize=9, textcoords="offset points")
        names.append("pairs (our recipe)" if is_ours else one["setting"])
    axis.set_yticks(range(len(names)), names, fontsize=9)
    axis.set_xlabel("masked-LM loss, held-out pairs; lower is better")
    axis.margins(x=0.12)
    _save(figure, path)


def dark_rules() -> str:
    """Returns a <style> element that exchanges the colours on dark pages."""
    rules = "".join(
        f'[style*="{kind}: {light}"],[{kind}="{light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items() for kind in ("fill", "stroke")
    )
    return f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>\n"


def _save(figure, path: pathlib.Path) -> None:
    # The same data gives the same bytes.
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    head, mark, rest = path.read_text("utf-8").partition("<defs>")
    path.write_text(head + dark_rules() + mark + rest, "utf-8")


def main() -> None:
    with matplotlib.rc_context(STYLE):
        for draw in (report, speed, small_en, cooccurrence, quarter_hour):
            results = json.loads((DOCS / f"evidence/{draw.__name__}.json").read_text("utf-8"))
            draw(results, DOCS / f"pictures/{draw.__name__}.svg")


if __name__ == "__main__":
    main()
