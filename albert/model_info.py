"""Prints what architectures cost: parameters, FLOPs, memory, without building them.

  python -m albert.model_info --albert_config_file='base_v2,large_v2,my_*.json' \\
      --train_batch_size=64 --max_seq_length=128 --mixed_precision=bfloat16

Several architectures stand side by side. The run they are compared on has the flags and defaults of
run_pretraining. With `--plan --device=h200 --num_replicas=8` it also prints how the run fits on such
devices and how long it takes; for TPUs, albert.compile_plan asks XLA's compiler.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from albert.cli import flags
from albert.config import AlbertConfig, config_file
from albert.errors import FlagError
from albert.model import costs
from albert.model.costs import DEVICES, Device, Workload
from albert.storage import files

_ARCHITECTURE = {
    "num_hidden_layers": "layers", "inner_group_num": "blocks of a layer",
    "hidden_size": "hidden size H", "embedding_size": "embedding size E",
    "num_attention_heads": "heads N", "intermediate_size": "intermediate size I",
    "vocab_size": "vocabulary V", "max_position_embeddings": "positions",
    "parameter_sharing": "shared by layers", "num_hidden_groups": "groups",
    "attention_weight_sets": "sets of attention weights",
    "feed_forward_weight_sets": "sets of feed-forward weights",
}
_PARAMETERS = {
    "word_embeddings": "word embeddings", "segment_embeddings": "segment embeddings",
    "position_embeddings": "position embeddings",
    "embedding_layer_norm": "LayerNorm of embeddings",
    "embedding_projection": "projection E to H", "attention": "attention",
    "attention_layer_norm": "LayerNorm after attention", "feed_forward": "feed-forward",
    "feed_forward_layer_norm": "LayerNorm after feed-forward",
    "backbone_without_pooler": "= without pooler", "pooler": "pooler", "backbone": "= encoder",
    "masked_lm": "masked-LM head", "sentence_order": "sentence-order head",
    "total": "= pretraining model",
}
_COST = {
    "compute_parameters": "compute parameters", "normalized_cost": "normalized cost",
    "forward_flops_per_token": "FLOPs of a token, forward",
    "training_flops_per_token": "FLOPs of a token, training",
    "training_flops": "FLOPs of the run",
}
_MEMORY = {
    "weights": "weights", "gradients": "gradients", "optimizer_slots": "optimizer slots",
    "activations": "activations", "total": "= together",
}
_PLAN_MEMORY = {
    "weights_gradients_and_slots": "weights, gradients, slots", "activations": "activations",
    "memory": "= memory of a device", "usable_memory": "usable memory of a device",
}
Line = tuple[str, list[str]]  # a label and a cell for each architecture; a title has none


def define_flags(values: flags.FlagValues) -> None:
    def define(kind: str, name: str, text: str, **kwargs) -> None:
        default = next(f.default for f in dataclasses.fields(Workload) if f.name == name)
        flags.define(kind, values, name, default, text, **kwargs)

    flags.define("path", values, "albert_config_file", None,
                 "Architectures: comma-separated names of released ones, such as base_v2, and globs "
                 "of JSON files. Required.", use="file")
    flags.define("enum", values, "format", "text", "Output format.", enum_values=["text", "json"])
    define("integer", "num_train_steps", "Training steps.", lower_bound=1)
    define("integer", "train_batch_size", "Sequences of a step.", lower_bound=1)
    define("integer", "max_seq_length", "Tokens of a sequence.", lower_bound=1)
    define("integer", "max_predictions_per_seq", "Masked tokens of a sequence.", lower_bound=1)
    define("enum", "optimizer", "Optimizer.", enum_values=sorted(costs.SLOTS))
    define("enum", "mixed_precision", "Precision of the matrix products.",
           enum_values=list(costs.COMPUTE_BYTES))
    define("bool", "remat", "Compute each layer again in the backward pass.")
    define("integer", "gradient_accumulation_steps",
           "Parts into which each device divides its rows of a batch.", lower_bound=1)
    define("integer", "num_devices", "Devices that share a batch; memory is that of one.",
           lower_bound=1)
    flags.define_alias(values, "num_replicas", "num_devices")
    flags.define("bool", values, "plan", False,
                 "Also print the largest micro-batch that fits --device, its memory, and days.")
    flags.define("enum", values, "device", "h200", "What each replica computes on, for --plan.",
                 enum_values=list(DEVICES))
    flags.define("float", values, "utilization", None,
                 "Fraction of the device's peak that training reaches, for --plan; default: "
                 + ", ".join(f"{d.utilization} ({name})" for name, d in DEVICES.items()) + ".",
                 above=0, upper_bound=1)
    flags.define("float", values, "device_memory_gib", None,
                 "Memory of a device, for --plan; default: that of --device.", above=0)
    flags.define("float", values, "device_tflops", None,
                 "Peak of a device in 1e12 FLOPs a second, for --plan; default: that of --device.",
                 above=0)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "albert_config_file")
    workload = Workload(**flags.select(values, Workload))
    parts = workload.num_devices * workload.gradient_accumulation_steps
    if workload.train_batch_size % parts:
        raise FlagError(
            f"--train_batch_size={workload.train_batch_size} cannot be divided by --num_devices x "
            f"--gradient_accumulation_steps = {parts}"
        )
    device = _device(values) if values.plan else None
    named = [config_file(name.strip()) for name in values.albert_config_file.split(",")]
    paths = files.expand_globs(",".join(named), "albert_config_file")
    models = [describe(AlbertConfig.from_json_file(path), workload, path, device) for path in paths]
    if values.format == "text":
        print(as_text(models, names_of(paths), workload, device))
        return
    facts = {"workload": dataclasses.asdict(workload), "models": models}
    print(json.dumps(facts | ({"device": dataclasses.asdict(device)} if device else {}), indent=2))


def _device(values: flags.FlagValues) -> Device:
    """Returns the device of --device, with the numbers of the flags that are given.

    Raises:
      FlagError: the device lacks the precision.
    """
    device, precision = DEVICES[values.device], values.mixed_precision
    if precision not in device.peak_flops:
        raise FlagError(f"--mixed_precision={precision}: --device={values.device} has "
                        f"{' and '.join(device.peak_flops)} only")
    changes: dict[str, Any] = {}
    if values.device_memory_gib is not None:
        changes["memory"] = values.device_memory_gib * costs.GIB
    if values.device_tflops is not None:
        changes["peak_flops"] = {precision: values.device_tflops * 1e12}
    if values.utilization is not None:
        changes["utilization"] = values.utilization
    return dataclasses.replace(device, **changes)


def describe(
    config: AlbertConfig, workload: Workload, path: str, device: Device | None = None
) -> dict[str, Any]:
    """Returns what `--format=json` prints of one architecture: counts, FLOPs and bytes.

    Raises:
      FlagError: the sequence is longer than the architecture has positions.
    """
    if workload.max_seq_length > config.max_position_embeddings:
        raise FlagError(
            f"--max_seq_length={workload.max_seq_length} exceeds max_position_embeddings "
            f"{config.max_position_embeddings} of {path}"
        )
    attention, feed_forward = costs.weight_sets(config)
    compute = costs.compute_parameters(config)
    training = costs.training_flops(config, workload)
    tokens = workload.num_train_steps * workload.tokens_per_batch
    memory = costs.memory_bytes(config, workload)
    facts = {
        "albert_config_file": path,
        "architecture": {
            name: getattr(config, name) for name in _ARCHITECTURE if hasattr(config, name)
        } | {"attention_weight_sets": attention, "feed_forward_weight_sets": feed_forward},
        "parameters": costs.parameters_by_part(config) | {
            "backbone_without_pooler": costs.parameter_count(config, with_pooler=False),
            "backbone": costs.parameter_count(config),
            "total": costs.parameter_count(config, heads=True),
        },
        "cost": {
            "compute_parameters": compute,
            "tokens": tokens,
            "normalized_cost": costs.normalized_cost(compute, workload),
            "forward_flops_per_token": costs.forward_flops(config, workload),
            "training_flops_per_token": training,
            "training_flops": training * tokens,
        },
        "memory_bytes": memory | {"total": sum(memory.values())},
    }
    if device:
        facts["plan"] = dataclasses.asdict(costs.make_plan(config, workload, device))
    return facts


def as_text(
    models: Sequence[dict], names: Sequence[str], workload: Workload, device: Device | None
) -> str:
    """Returns a table with a column for each architecture, and what a plan assumes."""
    def section(title: str, key: str, labels: Mapping[str, str], show: Callable) -> list[Line]:
        return [(title, [])] + [
            (f"  {label}", [show(model[key][name]) for model in models])
            for name, label in labels.items()
        ]

    remat = ", remat" if workload.remat else ""
    rows = f"{workload.train_batch_size:,} x {workload.max_seq_length:,} tokens"
    lines: list[Line] = [
        ("", list(names)),
        *section("architecture", "architecture", _ARCHITECTURE, _plain),
        *section("parameters", "parameters", _PARAMETERS, _plain),
        *section(f"{workload.num_train_steps:,} steps of {rows}", "cost", _COST, _amount),
    ]
    notes = []
    if device:
        devices = f"{workload.num_devices:,} device" + ("s" if workload.num_devices > 1 else "")
        lines += [(f"plan for {devices}, {workload.mixed_precision}{remat}", []),
                  *_plan_lines([model["plan"] for model in models])]
        notes = _assumptions(device, workload)
    else:
        title = (f"memory of a device, {workload.rows_at_once:,} rows at once, "
                 f"{workload.optimizer}, {workload.mixed_precision}{remat}")
        lines += section(title, "memory_bytes", _MEMORY, _size)
    left = max(len(label) for label, cells in lines if cells)
    columns = zip(*(cells for _, cells in lines if cells), strict=True)
    widths = [max(map(len, column)) for column in columns]
    table = [
        "  ".join([label.ljust(left), *(c.rjust(w) for c, w in zip(cells, widths, strict=True))])
        if cells else f"\n{label}"
        for label, cells in lines
    ]
    return "\n".join(line.rstrip() for line in [*table, *notes])


def _plan_lines(plans: Sequence[dict]) -> list[Line]:
    def count(plan: dict, key: str) -> str:
        return f"{plan[key]:,}" if plan["fits"] else "none"

    return [
        ("  micro-batch of a device", [count(p, "micro_batch") for p in plans]),
        ("  gradient accumulation steps", [count(p, "gradient_accumulation_steps") for p in plans]),
        *((f"  {label}", [_size(plan[key]) for plan in plans])
          for key, label in _PLAN_MEMORY.items()),
        ("  days", [f"{p['days']:,.2f}" if p["fits"] else "-" for p in plans]),
    ]


def _assumptions(device: Device, workload: Workload) -> list[str]:
    peak = device.peak_flops[workload.mixed_precision] / 1e12
    return [
        "",
        f"An estimate. Assumed: {device.description}; {_size(device.memory)}, of which "
        f"{100 * costs.USABLE_MEMORY:g} % is usable; {peak:,.4g}e12 FLOPs a second, of which "
        f"{100 * device.utilization:g} % is reached (not measured);",
        f"activations {costs.ACTIVATION_FACTORS[workload.remat]} times what the backward pass reads "
        "(measured on a CPU); no evaluations, checkpoints or waiting for data.",
    ]


def _plain(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _amount(value: float) -> str:
    return f"{value / 1e6:,.2f} million" if value < 1e12 else f"{value:.3e}"


def _size(value: float) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if value >= 1 << power:
            return f"{value / (1 << power):,.2f} {unit}"
    return f"{value / 1024:,.2f} KiB"


def names_of(paths: Sequence[str]) -> list[str]:
    """Returns a short name for each file: its own, its directory's, or its whole path."""
    def short(path: str) -> str:
        stem = os.path.splitext(os.path.basename(path))[0]
        folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
        return folder if stem == "albert_config" else stem

    names = [short(path) for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
