"""A page about records, with a picture: report.json, report.md and report.png in a folder."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.storage import files

_LINES = {
    "documents": "documents", "sentences": "sentences or lines", "records": "records",
    "tokens": "tokens in records", "label_1": "records of label 1", "cut_tokens": "tokens cut off",
    "unknown_tokens": "tokens that are unknown", "held_out_tokens": "tokens held out",
}


def write(
    told: Mapping[str, Any], warnings: Sequence[str], lengths: np.ndarray, folder: str
) -> None:
    """Publishes the page.

    Args:
      told: see `reports.Report.told`.
      lengths: int64 [n], how many records have so many tokens.
    """
    files.make_dirs(folder)
    files.write_json(
        os.path.join(folder, "report.json"),
        {**told, "warnings": list(warnings), "lengths": lengths.tolist()},
    )
    with files.atomic_write(os.path.join(folder, "report.png"), "wb") as stream:
        _draw(told, lengths, stream)
    with files.atomic_write(os.path.join(folder, "report.md")) as stream:
        stream.write(_page(told, warnings))


def _page(told: Mapping[str, Any], warnings: Sequence[str]) -> str:
    rows = [
        (title, f"{told[name]:,}" if isinstance(told[name], int) else f"{100 * told[name]:.2f} %")
        for name, title in _LINES.items()
    ]
    rows += [
        (f"tokens that {share} % of the records stay below", f"{length:,}")
        for share, length in told["length_percentiles"].items()
    ]
    table = "".join(f"| {title} | {value} |\n" for title, value in rows)
    odd = "".join(f"* {warning}\n" for warning in warnings) or "Nothing is out of the ordinary.\n"
    return (f"# Records\n\n| | |\n|---|---|\n{table}\n{odd}\n"
            "![Lengths of the records, and shares.](report.png)\n")


def _draw(told: Mapping[str, Any], lengths: np.ndarray, stream) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    left.bar(np.arange(len(lengths)), lengths, width=1.0)
    left.set(xlabel="tokens of a record", ylabel="records")
    shares = {"label 1": "label_1", "cut off": "cut_tokens", "unknown": "unknown_tokens"}
    bars = right.barh(list(shares), [100 * told[name] for name in shares.values()])
    right.bar_label(bars, fmt="%.1f %%", padding=3)
    right.set(xlim=(0, 110), xlabel="%")
    right.invert_yaxis()
    figure.savefig(stream, format="png", metadata={"Software": None})
