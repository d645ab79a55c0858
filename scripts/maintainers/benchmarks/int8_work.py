"""Costs and savings of int8: the time of a classifier's predictions, and how they differ."""

import os

import numpy as np

import albert
from albert.config import AlbertConfig
from albert.formats import pretrained
from albert.formats.model_card import table
from albert.storage import files
from benchmarks import inputs, model_work
from benchmarks.turns import compare, outputs_path

_SIDES = {
    "float32": {},
    "onnxruntime, float32": {"is_onnx": True},
    "onnxruntime, int8": {"is_onnx": True, "is_int8": True},
    "LiteRT, float32": {"is_litert": True},
    "LiteRT, int8": {"is_litert": True, "is_int8": True},
}
# PyTorch's graph, quantized by the runtimes' own tools.
_THEIRS = {
    f"{name}, {precision}": {"attn_implementation": "sdpa", "runtime": runtime,
                             "batching": "grouped", "is_int8": precision == "int8"}
    for name, runtime in (("onnxruntime with PyTorch's graph", "onnxruntime"),
                          ("OpenVINO", "openvino"))
    for precision in ("float32", "int8")
}


def int8(values, config: AlbertConfig, folder: str):
    """Logits of texts in float32 and int8; LiteRT takes sequences of one length, one at a time."""
    if values.model:
        theirs = os.path.join(folder, "theirs")
        albert.AlbertForSequenceClassification.from_pretrained(values.model).save_pretrained(theirs)
        paths = {"ours": values.model, "theirs": theirs}
        config = pretrained.open_path(values.model, "model").config.with_dropout(0.0)
    else:
        paths = inputs.make_model(
            config, "AlbertForSequenceClassification", folder, bool(values.peers_env), num_labels=2
        )
    examples, lengths = model_work.write_examples(values, config, folder)
    [(size, _)] = inputs.sizes(values, (32,), (128,))
    spec = {"work": "predict", "inputs": examples, "batch_size": size,
            "vocab_size": config.vocab_size, "is_warm": True}
    sides = model_work.model_sides(values, paths, spec, _SIDES, _THEIRS)
    work = os.path.join(folder, "int8")
    found = compare(sides, work, rounds=values.rounds, tolerance=None, work=len(lengths))
    labels = _labels(values)[: len(lengths)]
    logits = {side.name: np.load(outputs_path(work, side))["logits"] for side in sides}
    expected, rows = logits["float32"], []
    for name, one in found.items():
        same = float((logits[name].argmax(1) == expected.argmax(1)).mean())
        one["same_labels"], one["accuracy"] = same, float((logits[name].argmax(1) == labels).mean())
        one["largest_logit_difference"] = float(np.abs(logits[name] - expected).max())
        rows.append([
            name, f"{1000 / one['rate']:.1f}", f"{one['ratio']:.2f}", f"{100 * same:.2f} %",
            f"{one['largest_logit_difference']:.2g}", f"{100 * one['accuracy']:.2f} %",
        ])
    told = (f"{len(lengths)} texts; logits of float32 from {expected.min():.2f} to "
            f"{expected.max():.2f}\n\n")
    header = ("side", "ms a text", "speed, float32 = 1", "same labels",
              "largest difference of a logit", "accuracy")
    return {"lengths": lengths, "sides": found}, told + table(header, rows)


def _labels(values) -> np.ndarray:
    with open(files.require_file(values.glue_file, "glue_file"), encoding="utf-8") as stream:
        next(stream)
        return np.array([int(line.rstrip("\n").split("\t")[1]) for line in stream])
