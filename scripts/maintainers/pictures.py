"""Draws the charts of the documentation from the results in docs/evidence.

  python scripts/maintainers/pictures.py

docs/evidence/NAME.json becomes docs/pictures/NAME.svg, for speed, cost, small_en, own_text,
cooccurrence and quarter_hour. The last two are the results.json of grids: cooccurrence, and
one_hour with a quarter of its tokens. The README's two panels, front_speed.svg and
front_accuracy.svg, are from speed.json and fine_tuning_gains.json: each is as wide as a phone, and
two fit next to each other on a wide screen. pipeline.svg and model.svg were written by hand; the
colours and the rules for dark pages are the same.

speed.json, for which any benchmark's rates will do:

  machine   hardware, precision and versions, in one line; printed below the bars
  works     a list of groups of bars, each with
    work      its heading, such as "classify short sentences"
    speeds    {side: rate}, higher is faster; those of "albert" are drawn in colour
    baseline  the side that counts as 1
    unit, command   not drawn: of the rates, and of benchmark.py
"""

import json
import pathlib
import textwrap

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
# On light pages; Okabe and Ito's colour-blind-safe palette.
PAPER, INK, MUTED, GRID = "#ffffff", "#1f2328", "#59636e", "#d8dee4"
OURS, PEER, PALE, THIRD = "#d55e00", "#0072b2", "#9aa4ae", "#e69f00"
# On dark pages.
DARK = {
    PAPER: "#0d1117", INK: "#e6edf3", MUTED: "#9198a1", GRID: "#30363d", OURS: "#ff8c42",
    PEER: "#58a6ff", PALE: "#6e7681", THIRD: "#f2c14e",
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


def front_speed(results: dict, path: pathlib.Path) -> None:
    """The README's first panel: texts per second of albert and others."""
    speeds = results["works"][0]["speeds"]
    bars = [("albert", speeds["albert"], OURS)] + [
        (name, speeds[side], PALE) for name, side in (
            ("onnxruntime, grouped", "onnxruntime, sorted by length"),
            ("OpenVINO, grouped", "OpenVINO, sorted by length"),
            ("transformers, grouped", "transformers, sorted by length"),
            ("transformers, padded", "transformers, padded to the batch's longest"),
            ("keras-hub, padded", "keras-hub, padded to 128"),
        )
    ]
    _panel(bars, "Short texts per second",
           "base model, two CPU cores; longer is faster;\ngrouped: texts of similar length in a batch", path)


def front_accuracy(results: dict, path: pathlib.Path) -> None:
    """The README's second panel: accuracy on SST-2 by labelled rows."""
    bars = []
    for task in (task for task in results["tasks"] if task["task"] == "SST-2"):
        rows, ours = f"{task['rows']:,} rows", task["scores"][0]["mean"]
        bars += [(f"TF-IDF, {rows}", 100 * task["tfidf"], PALE), (f"small_en, {rows}", 100 * ours, OURS)]
    bars.append(("base v2, 67,349 rows", 92.9, PEER))  # published by the original's authors
    _panel(bars, "Accuracy on SST-2, in percent", "the sentiment of sentences, by labelled rows;\n"
           "base v2: as published", path)


def _panel(bars: list[tuple[str, float, str]], title: str, subtitle: str, path: pathlib.Path) -> None:
    """Bars in a picture of 400 x 280 pixels, with type that can be read on a phone."""
    figure, axes = pyplot.subplots(figsize=(300 / 72, 210 / 72))
    names, values, colours = zip(*bars, strict=True)
    for y, (value, colour) in enumerate(zip(values, colours, strict=True)):
        axes.barh(-y, value, 0.75, color=colour)
        axes.annotate(f"{value:.1f}", (value, -y), (4, 0), textcoords="offset points", va="center",
                      weight="bold" if colour == OURS else None, fontsize=10)
    axes.set_yticks([-y for y in range(len(bars))], names, fontsize=10)
    axes.tick_params(left=False, bottom=False, labelbottom=False, labelcolor=INK)
    axes.grid(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.margins(x=0.2, y=0.02)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.12)  # inches: two panels may be stacked
    figure.suptitle(title, x=0.02, ha="left", fontsize=12, weight="bold")
    figure.supxlabel(subtitle, x=0.02, ha="left", fontsize=9.5, color=MUTED)
    _save(figure, path)


def cost(results: dict, path: pathlib.Path) -> None:
    """Cost of a token as one dimension grows, 12 layers = 1; both axes are logarithmic."""
    one = results["layers"]["12"]
    names = {"length": "tokens in a sequence", "batch": "sequences in a batch", "layers": "layers"}
    figure, axes = pyplot.subplots(1, 3, figsize=(9, 3), sharey=True)
    for axis, (name, label) in zip(axes, names.items(), strict=True):
        points = {int(k): v / one for k, v in results[name].items()}
        axis.loglog(list(points), list(points.values()), "o-", color=OURS, label="measured")
        axis.set_xticks(list(points), [str(x) for x in points])
        axis.minorticks_off()
        axis.set_xlabel(label)
    first, *_, last = points  # of the layers
    axes[2].plot([first, last], [points[first], points[first] * last / first], ":", color=MUTED,
                 label="in proportion to the layers")
    axes[0].set_yticks([0.25, 0.5, 1, 2], ["0.25", "0.5", "1", "2"])
    axes[0].set_ylabel("cost of a token,\n12 layers = 1")
    _legend(figure, axes[2])
    _save(figure, path)


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


def own_text(results: dict, path: pathlib.Path) -> None:
    """Loss on held-out documents of a small text, from random weights and from small_en."""
    vocabularies = results["vocabularies"]
    figure, [axes] = pyplot.subplots(
        1, len(vocabularies), figsize=(9, 3.4), sharey=True, squeeze=False)
    for axis, (name, found) in zip(axes, vocabularies.items(), strict=True):
        for start, curve in sorted(found["curves"].items(), key=lambda one: "small_en" in one[0]):
            colour = PEER if "small_en" not in start else THIRD if "," in start else OURS
            axis.plot([one["step"] for one in curve], [one["loss_of_a_word"] for one in curve],
                      "o-", markersize=3, color=colour, label=start)
        axis.set_title(f"vocabulary {name}")
        axis.set_xlabel("steps")
    axes[0].set_ylabel("masked-LM loss of a word, nats")
    _legend(figure, axes[0])
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
    _legend(figure, axis, title="initial token embeddings")
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


def _baseline(axis, accuracy: float, name: str) -> None:
    """Marks the accuracy of a baseline."""
    axis.axhline(accuracy, linestyle=":", color=MUTED)
    axis.annotate(name, (0.99, accuracy), (0, 3), xycoords=axis.get_yaxis_transform(), ha="right",
                  textcoords="offset points", fontsize=9, color=MUTED)


def _legend(figure, axis, **options) -> None:
    """Draws the legend of one panel above all of them, where it covers nothing."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), **options)


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
        evidence = {"front_speed": "speed", "front_accuracy": "fine_tuning_gains"}
        for draw in (front_speed, front_accuracy, speed, cost, small_en, own_text, cooccurrence, quarter_hour):
            name = draw.__name__
            results = json.loads((DOCS / f"evidence/{evidence.get(name, name)}.json").read_text("utf-8"))
            draw(results, DOCS / f"pictures/{name}.svg")


if __name__ == "__main__":
    main()
