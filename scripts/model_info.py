"""Prints the parameters and FLOPs of architectures, without building them.

  python scripts/model_info.py --albert_config_file='base_v2,large_v2,my_*.json' \\
      --train_batch_size=64 --max_seq_length=128

Architectures are printed side by side, for a run with the flags and defaults of run_pretraining.
"""

import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # this checkout

from albert.cli import flags
from albert.config import AlbertConfig, config_file
from albert.formats import huggingface
from albert.training import costs
from albert.storage import files

WORKLOAD = {  # {flag: its default and help}
    "num_train_steps": (125_000, "Training steps."),
    "train_batch_size": (4096, "Sequences per step."),
    "max_seq_length": (512, "Tokens per sequence."),
    "max_predictions_per_seq": (20, "Masked tokens per sequence."),
}

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
    for name, (default, text) in WORKLOAD.items():
        flags.define("integer", values, name, default, text, lower_bound=1)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "albert_config_file")
    workload = flags.select(values, WORKLOAD)
    named = [config_file(name.strip()) for name in values.albert_config_file.split(",")]
    paths = files.expand_globs(",".join(named), "albert_config_file")
    models = [describe(huggingface.read_config(path), workload, path) for path in paths]
    info = {"workload": workload, "models": models}
    print(json.dumps(info, indent=2) if values.format == "json" else as_text(info))


# === Counts ===


def describe(config: AlbertConfig, workload: Mapping[str, int], path: str) -> dict[str, Any]:
    """Returns the figures of one architecture by section: counts, and FLOPs of a token."""
    length, predictions = workload["max_seq_length"], workload["max_predictions_per_seq"]
    config.check_length(length, path)
    attention, feed_forward = weight_sets(config)
    compute = costs.compute_parameters(config)
    training = costs.training_flops(config, length, predictions)
    tokens = workload["num_train_steps"] * workload["train_batch_size"] * length
    forward = flops_by_part(config, length, predictions)
    return {
        "albert_config_file": path,
        "architecture": {name: getattr(config, name) for name in _ARCHITECTURE} | {
            "attention_weight_sets": attention, "feed_forward_weight_sets": feed_forward,
        },
        "parameters": parameters_by_part(config) | {
            "backbone_without_pooler": parameter_count(config, with_pooler=False),
            "backbone": parameter_count(config),
            "total": parameter_count(config, heads=True),
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


def parameters_by_part(config: AlbertConfig) -> dict[str, int]:
    """Returns {part: parameters} of a pretraining model; shared weights are counted once.

    The masked-LM head has no output matrix: it shares the embedding table.
    """
    e, h, inner = config.embedding_size, config.hidden_size, config.intermediate_size
    attention, feed_forward = weight_sets(config)
    return {
        "word_embeddings": config.vocab_size * e,
        "segment_embeddings": config.type_vocab_size * e,
        "position_embeddings": config.max_position_embeddings * e,
        "embedding_layer_norm": 2 * e,
        "embedding_projection": _dense(e, h) if config.has_embedding_projection else 0,
        "attention": attention * 4 * _dense(h, h),
        "attention_layer_norm": attention * 2 * h,
        "feed_forward": feed_forward * (_dense(h, inner) + _dense(inner, h)),
        "feed_forward_layer_norm": feed_forward * 2 * h,
        "pooler": _dense(h, h),
        "masked_lm": _dense(h, e) + 2 * e + config.vocab_size,
        "sentence_order": _dense(h, 2),
    }


def parameter_count(config: AlbertConfig, with_pooler: bool = True, heads: bool = False) -> int:
    """Returns the number of parameters of the encoder, or of the pretraining model with `heads`."""
    parts = parameters_by_part(config)
    excluded = ["pooler"] * (not with_pooler) + ["masked_lm", "sentence_order"] * (not heads)
    return sum(parts.values()) - sum(parts[name] for name in excluded)


def weight_sets(config: AlbertConfig) -> tuple[int, int]:
    """Returns the number of sets of attention weights, and of feed-forward weights."""
    attention, feed_forward = config.groups_in_use()
    return len(attention) * config.inner_group_num, len(feed_forward) * config.inner_group_num


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def flops_by_part(config: AlbertConfig, length: int, predictions: int) -> dict[str, float]:
    """Returns {part: FLOPs} of a token in the forward pass, the terms of `costs.training_flops`."""
    e, h = config.embedding_size, config.hidden_size
    blocks = config.num_hidden_layers * config.inner_group_num
    return {
        "embedding_projection": 2 * e * h if config.has_embedding_projection else 0,
        "attention": blocks * 8 * h * h,
        "attention_scores": blocks * 4 * length * h,
        "feed_forward": blocks * 4 * h * config.intermediate_size,
        "pooler": 2 * h * h / length,
        "masked_lm": predictions * 2 * e * (h + config.vocab_size) / length,
        "sentence_order": 4 * h / length,
    }


# === The table ===


def as_text(info: dict[str, Any]) -> str:
    """Returns a table with a column for each architecture, and its workload."""
    models, run = info["models"], info["workload"]
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
        "\n{num_train_steps:,} steps of {train_batch_size:,} x {max_seq_length:,} tokens.".format(**run)
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
