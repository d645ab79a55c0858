"""Draws the pictures of the documentation from its result files.

  python scripts/maintainers/pictures.py

docs/evidence/speed.json becomes docs/pictures/speed.svg, and so do cost.json, small_en.json,
own_text.json, one_hour.json and quarter_hour.json. The last two are the results.json of the grid
configs/ablations/one_hour.json with half and with a quarter of its tokens.
"""

import json
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
# Okabe and Ito's colour-blind-safe palette.
OURS, PEERS = "#D55E00", ("#0072B2", "#56B4E9", "#999999")
STYLE = {
    "font.size": 11, "axes.spines.top": False, "axes.spines.right": False,
    "svg.fonttype": "path", "svg.hashsalt": "albert",
}


def speed(results: dict, path: pathlib.Path) -> None:
    """Bars of each side's speed relative to albert's, one group per benchmark."""
    figure, axes = pyplot.subplots(figsize=(9, 5.2))
    names = [name for name in dict.fromkeys(n for w in results["works"] for n in w["speeds"])]
    colours = dict(zip(names, (OURS, *PEERS, "#009E73"), strict=False))
    place, ticks = 0.0, []
    for work in results["works"]:
        first = place
        for name, value in work["speeds"].items():
            share = value / work["speeds"]["albert"]
            axes.barh(place, share, 0.85, color=colours[name],
                      label=name if name not in axes.get_legend_handles_labels()[1] else None)
            if name != "albert":
                said = f"{1 / share:.1f} times as long"
                axes.text(share + 0.01, place, said, va="center", fontsize=9)
            place -= 1
        ticks.append(((first + place + 1) / 2, work["work"]))
        place -= 0.8
    axes.set_yticks([t for t, _ in ticks], [name for _, name in ticks])
    axes.set_xlim(0, 1.1)
    axes.set_xticks([0, 0.5, 1])
    axes.set_xlabel("speed, albert = 1")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.32, 1.0), ncols=5, fontsize=9)
    _save(figure, path)


def cost(results: dict, path: pathlib.Path) -> None:
    """Cost per token as one dimension grows, relative to 12 layers; both axes are logarithmic."""
    whole = results["layers"]["12"]
    figure, axes = pyplot.subplots(1, 3, figsize=(9, 3.2), sharey=True)
    for axis, name in zip(axes, ("length", "batch", "layers"), strict=True):
        points = {int(k): v / whole for k, v in results[name].items()}
        axis.loglog(list(points), list(points.values()), "o-", color=OURS)
        axis.set_xticks(list(points), [str(x) for x in points])
        axis.minorticks_off()
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
    least = min(results["layers"].values()) / whole
    first, last = (int(list(results["layers"])[i]) for i in (0, -1))
    axes[2].plot([first, last], [least, least * last / first], ":", color="#555555",
                 label="in proportion")
    axes[2].legend(frameon=False, fontsize=9)
    axes[0].set_yticks([0.25, 0.5, 1, 2], ["0.25", "0.5", "1", "2"])
    axes[0].set_ylabel("cost of a token,\n12 layers = 1")
    _save(figure, path)


def small_en(results: dict, path: pathlib.Path) -> None:
    """Learning curves of small_en by tokens read: held-out masked words, and BLiMP."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2))
    names = "masked_lm_accuracy", "pairs_accuracy"
    for run, colour in zip(results["runs"], (PEERS[0], OURS), strict=True):
        points = run["evaluations"]
        tokens = [one["million_tokens"] for one in points]
        for axis, name in zip(axes, names, strict=True):
            axis.plot(tokens, [one[name] for one in points], "o-", color=colour, label=run["name"])
    for axis in axes:
        axis.set_xlabel("tokens read, millions")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("masked words guessed")
    axes[1].axhline(0.5, linestyle=":", color="#555555")
    axes[1].annotate("chance", (3, 0.502), fontsize=9)
    axes[0].legend(title="held-out rows", frameon=False, fontsize=9)
    axes[1].set_ylabel("BLiMP, share preferred")
    _save(figure, path)


def own_text(results: dict, path: pathlib.Path) -> None:
    """Loss on held-out documents of a small text, from random weights and from small_en."""
    vocabularies = results["vocabularies"]
    figure, [axes] = pyplot.subplots(
        1, len(vocabularies), figsize=(9, 3.4), sharey=True, squeeze=False)
    for axis, (name, found) in zip(axes, vocabularies.items(), strict=True):
        for start, curve in sorted(found["curves"].items(), key=lambda one: "small_en" in one[0]):
            colour = PEERS[0] if "small_en" not in start else "#E69F00" if "," in start else OURS
            axis.plot([one["step"] for one in curve], [one["loss_of_a_word"] for one in curve],
                      "o-", markersize=3, color=colour, label=start)
        axis.set_title(f"pieces {name}", fontsize=11)
        axis.set_xlabel("steps")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("masked-LM loss of a word, nats")
    axes[0].legend(frameon=False, fontsize=9)
    _save(figure, path)


def one_hour(results: list[dict], path: pathlib.Path) -> None:
    """Masked-LM loss and BLiMP of three settings over minutes, one line per seed."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4))
    followed = dict(zip(("original recipe", "pairs", "single sentences"),
                        (PEERS[2], OURS, PEERS[0]), strict=True))
    for one in results:
        if one["setting"] not in followed:
            continue
        minutes = [point["minutes"] for point in one["curve"]]
        for axis, metric in zip(axes, ("masked_lm_loss", "pairs_accuracy"), strict=True):
            label = one["setting"] if one["seed"] == results[0]["seed"] else None
            axis.plot(minutes, [point[metric] for point in one["curve"]], "o-", markersize=4,
                      color=followed[one["setting"]], label=label)
    axes[0].set_ylabel("masked-LM loss on held-out pairs")
    axes[0].legend(frameon=False, fontsize=9)
    axes[1].set_ylabel("BLiMP, share preferred")
    axes[1].axhline(0.5, linestyle=":", color="#555555")
    for axis in axes:
        axis.set_xlabel("minutes of one core")
        axis.grid(alpha=0.3)
    _save(figure, path)


def quarter_hour(results: list[dict], path: pathlib.Path) -> None:
    """Final masked-LM loss of each setting, the lowest on top, and its minutes."""
    figure, axis = pyplot.subplots(figsize=(9, 4.2))
    ordered = sorted(results, key=lambda one: -one["metrics"]["masked_lm_loss"])
    for place, one in enumerate(ordered):
        loss = one["metrics"]["masked_lm_loss"]
        axis.plot(loss, place, "o", color=OURS if one["setting"] == "pairs" else PEERS[0])
        axis.annotate(f"{one['curve'][-1]['minutes']:.0f} minutes", (loss, place), xytext=(8, -4),
                      fontsize=9, textcoords="offset points")
    axis.set_yticks(range(len(ordered)), [one["setting"] for one in ordered], fontsize=9)
    axis.set_xlabel("masked-LM loss on held-out pairs, lower is better")
    axis.margins(x=0.12)
    axis.grid(alpha=0.3)
    _save(figure, path)


def _save(figure, path: pathlib.Path) -> None:
    figure.tight_layout()
    # The same data gives the same bytes.
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    with matplotlib.rc_context(STYLE):
        for draw in (speed, cost, small_en, own_text, one_hour, quarter_hour):
            name = draw.__name__
            results = json.loads((DOCS / f"evidence/{name}.json").read_text("utf-8"))
            draw(results, DOCS / f"pictures/{name}.svg")


if __name__ == "__main__":
    main()
