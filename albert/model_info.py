"""Prints the costs of architectures (parameters, FLOPs, memory), without building them.

  python -m albert.model_info --albert_config_file='base_v2,large_v2,my_*.json' \\
      --train_batch_size=64 --max_seq_length=128 --mixed_precision=bfloat16

Architectures are printed side by side, for a run with the flags and defaults of run_pretraining.
With `--plan --device=h200 --num_replicas=8` it also estimates the largest micro-batch that fits
such devices, its memory, and the days that the run takes.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from albert.cli import flags
from albert.config import AlbertConfig, config_file
from albert.errors import FlagError
from albert.formats import huggingface
from albert.model import costs
from albert.model.costs import DEVICES, Device, Workload
from albert.storage import files

_ARCHITECTURE = (
    "num_hidden_layers", "inner_group_num", "hidden_size", "embedding_size",
    "num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings",
    "parameter_sharing", "num_hidden_groups",
)


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "albert_config_file", None,
                 "Architectures: comma-separated names of released models, such as base_v2, and globs "
                 "of JSON files. Required.", use="file")
    flags.define("enum", values, "format", "text", "Output format.", enum_values=["text", "json"])
    for name, text in {
        "num_train_steps": "Training steps.",
        "train_batch_size": "Sequences per step.",
        "max_seq_length": "Tokens per sequence.",
        "max_predictions_per_seq": "Masked tokens per sequence.",
        "gradient_accumulation_steps": "Micro-batches per device and step.",
        "num_devices": "Devices that share a batch; memory is per device.",
    }.items():
        flags.define("integer", values, name, getattr(Workload, name), text, lower_bound=1)
    flags.define_alias(values, "num_replicas", "num_devices")
    flags.define("enum", values, "optimizer", Workload.optimizer, "Optimizer.",
                 enum_values=costs.OPTIMIZERS)
    flags.define("enum", values, "mixed_precision", Workload.mixed_precision,
                 "Precision of the matrix products.", enum_values=list(costs.COMPUTE_BYTES))
    flags.define("bool", values, "remat", False, "Recompute each layer in the backward pass.")
    flags.define("bool", values, "plan", False,
                 "Also estimate the largest micro-batch that fits --device, its memory, and days.")
    flags.define("enum", values, "device", "h200", "Kind of device, for --plan.",
                 enum_values=list(DEVICES))
    flags.define("float", values, "utilization", None,
                 "Fraction of the device's peak that training reaches, for --plan. Default: "
                 + ", ".join(f"{d.utilization} ({name})" for name, d in DEVICES.items()) + ".",
                 above=0, upper_bound=1)
    flags.define("float", values, "device_memory_gib", None,
                 "Memory of a device in GiB, for --plan. Default: that of --device.", above=0)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "albert_config_file")
    workload = Workload(**flags.select(values, Workload))
    parts = workload.num_devices * workload.gradient_accumulation_steps
    if workload.train_batch_size % parts:
        raise FlagError(
            f"--train_batch_size={workload.train_batch_size} cannot be divided by --num_devices x "
            f"--gradient_accumulation_steps = {parts}"
        )
    device = None
    if values.plan:
        if values.mixed_precision == "float16" and values.device.startswith("tpu"):
            raise FlagError(f"--mixed_precision=float16: --device={values.device} has none")
        device = DEVICES[values.device]
        device = dataclasses.replace(
            device, memory_gib=values.device_memory_gib or device.memory_gib,
            utilization=values.utilization or device.utilization,
        )
    named = [config_file(name.strip()) for name in values.albert_config_file.split(",")]
    paths = files.expand_globs(",".join(named), "albert_config_file")
    models = [describe(huggingface.read_config(path), workload, path, device) for path in paths]
    info = {"workload": dataclasses.asdict(workload), "models": models}
    if device:
        info["device"] = dataclasses.asdict(device)
    print(json.dumps(info, indent=2) if values.format == "json" else as_text(info))


def describe(
    config: AlbertConfig, workload: Workload, path: str, device: Device | None = None
) -> dict[str, Any]:
    """Returns the figures of one architecture: counts, FLOPs and bytes, by section."""
    config.check_length(workload.max_seq_length, path)
    attention, feed_forward = costs.weight_sets(config)
    compute, training = costs.compute_parameters(config), costs.training_flops(config, workload)
    tokens = workload.num_train_steps * workload.tokens_per_batch
    memory = costs.memory_bytes(config, workload)
    info = {
        "albert_config_file": path,
        "architecture": {name: getattr(config, name) for name in _ARCHITECTURE} | {
            "attention_weight_sets": attention, "feed_forward_weight_sets": feed_forward,
        },
        "parameters": costs.parameters_by_part(config) | {
            "backbone_without_pooler": costs.parameter_count(config, with_pooler=False),
            "backbone": costs.parameter_count(config),
            "total": costs.parameter_count(config, heads=True),
        },
        "cost": {
            "compute_parameters": compute,
            "tokens": tokens,
            "normalized_cost": float(compute * tokens),
            "forward_flops_per_token": costs.forward_flops(config, workload),
            "training_flops_per_token": training,
            "training_flops": training * tokens,
        },
        "memory_bytes": memory | {"total": sum(memory.values())},
    }
    return info | ({"plan": costs.make_plan(config, workload, device)} if device else {})


def as_text(info: dict[str, Any]) -> str:
    """Returns a table with a column for each architecture, and its assumptions."""
    models, run = info["models"], Workload(**info["workload"])
    rows = [("", names_of([model["albert_config_file"] for model in models]))]
    for section in (name for name, value in models[0].items() if isinstance(value, dict)):
        rows.append((section.replace("_bytes", " of a device"), []))
        for name in models[0][section]:
            unit = "bytes" if "bytes" in section + name else ""
            cells = [_shown(model[section][name], unit) for model in models]
            rows.append((f"  {name.removesuffix('_bytes').replace('_', ' ')}", cells))
    left = max(len(label) for label, _ in rows)
    width = max(len(cell) for _, cells in rows for cell in cells) + 2
    lines = [label.ljust(left) + "".join(cell.rjust(width) for cell in cells)
             for label, cells in rows]
    lines.append(
        f"\n{run.num_train_steps:,} steps of {run.train_batch_size:,} x {run.max_seq_length:,} "
        f"tokens, {run.rows_at_once:,} sequences at once on each of {run.num_devices:,} devices, "
        f"{run.optimizer}, {run.mixed_precision}{', remat' if run.remat else ''}."
    )
    if "device" in info:
        device = Device(**info["device"])
        lines.append(
            f"The plan is an estimate. It assumes {device.description}; {device.memory_gib:.4g} GiB, "
            f"{100 * costs.USABLE_MEMORY:g} % of it usable; "
            f"{device.tflops(run.mixed_precision):,.4g} TFLOP/s, of which {100 * device.utilization:g} "
            "% are reached (not measured); no evaluations, checkpoints or waiting for data."
        )
    return "\n".join(line.rstrip() for line in lines)


def _shown(value: Any, unit: str) -> str:
    if isinstance(value, str | bool):
        return {True: "yes", False: "no"}.get(value, value)
    if unit == "bytes":
        return f"{value / costs.GIB:,.2f} GiB" if value >= costs.GIB else f"{value / 2**20:,.2f} MiB"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if value < 1e6 else f"{value:.3e}"


def names_of(paths: Sequence[str]) -> list[str]:
    """Returns a short name for each file: its stem, its directory's name, or the full path."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    folders = [os.path.basename(os.path.dirname(os.path.abspath(path))) for path in paths]
    names = [
        folder if stem == "albert_config" else stem
        for stem, folder in zip(stems, folders, strict=True)
    ]
    return names if len(set(names)) == len(names) else list(paths)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
