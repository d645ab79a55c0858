"""Prints the parameters and FLOPs of architectures, without building them.

  python -m albert.model_info --albert_config_file='base_v2,large_v2,my_*.json' \\
      --train_batch_size=64 --max_seq_length=128

Architectures are printed side by side, for a run with the flags and defaults of run_pretraining.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from albert.cli import flags
from albert.config import AlbertConfig, config_file
from albert.formats import huggingface
from albert.model import costs
from albert.model.costs import Workload
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
    }.items():
        flags.define("integer", values, name, getattr(Workload, name), text, lower_bound=1)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "albert_config_file")
    workload = Workload(**flags.select(values, Workload))
    named = [config_file(name.strip()) for name in values.albert_config_file.split(",")]
    paths = files.expand_globs(",".join(named), "albert_config_file")
    models = [describe(huggingface.read_config(path), workload, path) for path in paths]
    info = {"workload": dataclasses.asdict(workload), "models": models}
    print(json.dumps(info, indent=2) if values.format == "json" else as_text(info))


def describe(config: AlbertConfig, workload: Workload, path: str) -> dict[str, Any]:
    """Returns the figures of one architecture by section: counts, and FLOPs of a token."""
    config.check_length(workload.max_seq_length, path)
    attention, feed_forward = costs.weight_sets(config)
    compute, training = costs.compute_parameters(config), costs.training_flops(config, workload)
    tokens = workload.num_train_steps * workload.tokens_per_batch
    forward = costs.flops_by_part(config, workload)
    return {
        "albert_config_file": path,
        "architecture": {name: getattr(config, name) for name in _ARCHITECTURE} | {
            "attention_weight_sets": attention, "feed_forward_weight_sets": feed_forward,
        },
        "parameters": costs.parameters_by_part(config) | {
            "backbone_without_pooler": costs.parameter_count(config, with_pooler=False),
            "backbone": costs.parameter_count(config),
            "total": costs.parameter_count(config, heads=True),
        },
        "forward_flops_per_token": forward | {"total": sum(forward.values())},
        "training": {
            "compute_parameters": compute,
            "tokens": tokens,
            "normalized_cost": float(compute * tokens),
            "training_flops_per_token": training,
            "training_flops": training * tokens,
        },
    }


def as_text(info: dict[str, Any]) -> str:
    """Returns a table with a column for each architecture, and its workload."""
    models, run = info["models"], Workload(**info["workload"])
    rows = [("", names_of([model["albert_config_file"] for model in models]))]
    for section in (name for name, value in models[0].items() if isinstance(value, dict)):
        rows.append((section.replace("_", " "), []))
        for name in models[0][section]:
            cells = [_shown(model[section][name]) for model in models]
            rows.append((f"  {name.replace('_', ' ')}", cells))
    left = max(len(label) for label, _ in rows)
    width = max(len(cell) for _, cells in rows for cell in cells) + 2
    lines = [label.ljust(left) + "".join(cell.rjust(width) for cell in cells)
             for label, cells in rows]
    lines.append(
        f"\n{run.num_train_steps:,} steps of {run.train_batch_size:,} x {run.max_seq_length:,} tokens."
    )
    return "\n".join(line.rstrip() for line in lines)


def _shown(value: str | float) -> str:
    if isinstance(value, str):
        return value
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
