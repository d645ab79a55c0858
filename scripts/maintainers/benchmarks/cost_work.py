"""Benchmarks of the cost of a training step: its memory, and how the cost grows."""

import dataclasses
import os

from albert.cli import flags
from albert.errors import FlagError
from albert.formats.model_card import table
from albert.storage import files
from albert.text.documents import size_of_text
import run_files as pictures
from benchmarks import inputs
from benchmarks.model_work import flops, model_sides
from benchmarks.turns import Side, compare

_MEMORY_OURS = {
    "ours": {},
    "ours, remat": {"remat": True},
    "ours, accumulation": {"gradient_accumulation_steps": 2},
    "ours, remat, accumulation": {"remat": True, "gradient_accumulation_steps": 2},
}
_MEMORY_THEIRS = {
    "transformers": {},
    "transformers, gathered positions": {"gathered": True},
    "transformers, checkpointing": {"gradient_checkpointing": True},
    "transformers, checkpointing, gathered positions":
        {"gradient_checkpointing": True, "gathered": True},
}


def memory(values, config, folder):
    """Peak resident memory of a training process, libraries included."""
    kind = "AlbertForPreTraining"
    paths = inputs.make_model(config, kind, folder, bool(values.peers_env))
    results, rows = [], []
    for precision in values.precisions:
        for batch, length in inputs.sizes(values, (8,), (512,)):
            spec = {"work": "pretrain", "precision": precision, "is_warm": True,
                    "inputs": inputs.write_rows(folder, config, batch, length)}
            ours = _MEMORY_OURS if batch % 2 == 0 else {
                name: more for name, more in _MEMORY_OURS.items() if "accumulation" not in name
            }
            found = compare(
                model_sides(values, paths, spec, ours, _MEMORY_THEIRS),
                os.path.join(folder, f"{precision}-{batch}-{length}"), rounds=values.rounds,
                tolerance=inputs.TOLERANCES[precision], work=batch * length, at_once=False,
            )
            results.append(
                {"precision": precision, "batch": batch, "length": length, "sides": found}
            )
            first = next(iter(found.values()))["peak_bytes"]
            rows += [
                [precision, f"{batch} x {length}", name, one["peak_bytes"] >> 20,
                 f"{one['peak_bytes'] / first:.2f}", f"{one['median_seconds']:.3f}"]
                for name, one in found.items()
            ]
    header = ("precision", "rows", "side", "peak MiB", "first = 1", "median s")
    return results, table(header, rows)


def scaling(values, config, folder):
    """Cost per token as one dimension at a time grows; also drawn as a picture."""
    curves = {
        "length": _length_curve(values, config, folder),
        "batch": _batch_curve(values, config, folder),
        "layers": _layer_curve(values, config, folder),
    }
    if values.input_file:
        curves["corpus"] = _corpus_curve(values, folder)
    rows = []
    for name, points in curves.items():
        for point in points:
            point["cost"] = point["seconds_per_unit"] / points[0]["seconds_per_unit"]
            rows.append([
                name, point["value"], f"{point['seconds_per_unit'] * 1e6:.2f}",
                f"{point['cost']:.2f}", f"{point['work'] / points[0]['work']:.2f}",
                f"{point['cost'] / (point['work'] / points[0]['work']):.2f}",
            ])
    _draw(curves, os.path.join(files.make_dirs(values.output_dir), "scaling.png"))
    header = ("what grows", "to", "microseconds a token (corpus: a byte)", "cost, first = 1",
              "work of it, first = 1", "cost for its work")
    return curves, table(header, rows)


def _length_curve(values, config, folder):
    batch = inputs.numbers(values, "batch_sizes", (8,))[0]
    return _step_curve(values, folder, "length", [
        (length, config, batch, length)
        for length in inputs.numbers(values, "lengths", (64, 128, 256, 512))
    ])


def _batch_curve(values, config, folder):
    length = inputs.numbers(values, "lengths", (128,))[0]
    return _step_curve(values, folder, "batch", [
        (batch, config, batch, length)
        for batch in inputs.numbers(values, "batch_sizes", (2, 4, 8, 16))
    ])


def _layer_curve(values, config, folder):
    batch = inputs.numbers(values, "batch_sizes", (8,))[0]
    length = inputs.numbers(values, "lengths", (128,))[0]
    return _step_curve(values, folder, "layers", [
        (layers, dataclasses.replace(config, num_hidden_layers=layers), batch, length)
        for layers in inputs.numbers(values, "layers", (3, 6, 12, 24))
    ])


def _step_curve(values, folder, name, points):
    """Returns the seconds and matrix-product FLOPs per token of a step at each point.

    Args:
      points: (value, configuration, batch, length).
    """
    sides, work = [], []
    for value, config, batch, length in points:
        place = files.make_dirs(os.path.join(folder, f"{name}-{value}"))
        spec = {
            "work": "pretrain", "precision": values.precisions[0],
            "model": inputs.make_model(config, "AlbertForPreTraining", place, False)["ours"],
            "inputs": inputs.write_rows(place, config, batch, length),
        }
        sides.append(Side(f"{name} {value}", "ours.py", spec))
        work.append(batch * length)
    found = compare(sides, os.path.join(folder, name), rounds=values.rounds, tolerance=None,
                    work=work)
    flags.log.info("%s: %s", name, [f"{one['rate']:.0f} tokens/s" for one in found.values()])
    return [
        {"value": value, "seconds_per_unit": 1 / one["rate"],
         "work": flops(config, length, "pretrain"), **one}
        for (value, config, _, length), one in zip(points, found.values(), strict=True)
    ]


def _corpus_curve(values, folder):
    """Returns the seconds per byte of making records from text."""
    source = files.require_file(values.input_file, "input_file")
    sizes = inputs.numbers(values, "corpus_bytes", (250_000, 500_000, 1_000_000, 2_000_000))
    if size_of_text(source) < max(sizes):
        raise FlagError(f"--input_file: {source} has fewer than {max(sizes):,} bytes")
    flags.require(values, "spm_model_file")
    paths = [inputs.write_text(folder, source, size) for size in sizes]
    sides = [
        Side(f"{size} bytes", "ours_data.py", inputs.records_spec(values, path, 128), threads=1)
        for size, path in zip(sizes, paths, strict=True)
    ]
    found = compare(sides, os.path.join(folder, "corpus"), rounds=values.rounds, tolerance=None,
                    work=[os.path.getsize(path) for path in paths])
    return [
        {"value": size, "seconds_per_unit": 1 / one["rate"], "work": 1.0, **one}
        for size, one in zip(sizes, found.values(), strict=True)
    ]


def _draw(curves, path: str) -> None:
    figure, axes = pictures.panels_of(1, len(curves), (4 * len(curves), 3.2))
    for axis, (name, points) in zip(axes[0], curves.items(), strict=True):
        x = [point["value"] for point in points]
        measured = [point["cost"] for point in points]
        work = [point["work"] / points[0]["work"] for point in points]
        axis.plot(x, measured, "o-", label="measured")
        axis.plot(x, work, ":", label="its matrix products" if name != "corpus" else "the same")
        unit = "byte" if name == "corpus" else "token"
        # Both axes are linear and start at 0, so that linear growth is a straight line.
        axis.set(xlabel=name, ylabel=f"cost of a {unit}, first = 1", xlim=(0, 1.05 * max(x)),
                 ylim=(0, 1.15 * max(measured + work)))
        axis.set_xticks(x, [f"{value:,}" for value in x], rotation=30, ha="right")
        axis.legend()
    pictures.publish(figure, path)
