"""What architectures cost, side by side: as values for JSON, and as a table with its formulas."""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.model import model_size, training_plan
from albert.model.model_size import Workload
from albert.model.training_plan import Assumptions, Device

FORMULAS = {
    "compute parameters": "V E + E H + L (4 H^2 + 2 H I) + H^2: as if no layer shared anything",
    "normalised cost": "compute parameters x steps x tokens of a batch",
    "normalised cost, rounded": (
        "the same of the parameters in whole millions, as published summaries have it "
        "(89 million make 2.333e19 for base, 89.46 make 2.345e19)"
    ),
    "FLOPs, forward": (
        "L (8 H^2 + 4 H I + 4 S H) + 2 E H + (P 2 E (H + V) + 2 H^2 + 4 H) / S for each token: "
        "matrix products, a multiply-add being two"
    ),
    "FLOPs, training": "three times the forward ones; with --remat the blocks' four times",
    "weights, gradients, slots": (
        "4 bytes for each parameter, heads included; gradients twice with accumulation; LAMB and "
        "AdamW keep two slots"
    ),
    "activations": (
        "for each token and block (8 H + 2 I) w + 2 H [dropout] + N S (w + (w + 1) [dropout] + "
        "4 [w < 4]) bytes, and 2 E w; for each prediction (H + 2 E) w + V (w + 4); with --remat "
        "H w for each block and one block whole. An estimate from below: see the README for what "
        "was measured"
    ),
    "letters": (
        "V vocabulary, E embedding, H hidden, I intermediate, N heads, L blocks applied, S "
        "sequence, P predictions, w bytes of a value"
    ),
}
_PLAN = {
    "weights_gradients_and_slots": "weights, gradients, slots", "activations": "activations",
    "memory": "= memory of a device", "usable_memory": "usable memory of a device",
}
_GROUP = {
    "attention": "attention", "attention_layer_norm": "its LayerNorm",
    "feed_forward": "feed-forward", "feed_forward_layer_norm": "its LayerNorm",
}
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
    "compute_parameters": "compute parameters", "normalized_cost": "normalised cost",
    "normalized_cost_of_whole_millions": "normalised cost, rounded",
    "forward_flops_per_token": "FLOPs of a token, forward",
    "training_flops_per_token": "FLOPs of a token, training",
    "training_flops": "FLOPs of the run",
}
_MEMORY = {
    "weights": "weights", "gradients": "gradients", "optimizer_slots": "optimizer slots",
    "activations": "activations", "total": "= together",
}

Line = tuple[str, list[str]]  # a label and a cell for each architecture; a title has none


def describe(
    config: AlbertConfig, workload: Workload, path: str, assumed: Assumptions | None = None
) -> dict[str, Any]:
    """Returns what `--format=json` says of one architecture; counts, FLOPs and bytes.

    Raises:
      FlagError: the sequence is longer than the architecture has positions.
    """
    if workload.max_seq_length > config.max_position_embeddings:
        raise FlagError(
            f"--max_seq_length={workload.max_seq_length} exceeds max_position_embeddings "
            f"{config.max_position_embeddings} of {path}"
        )
    attention, feed_forward = model_size.weight_sets(config)
    compute = model_size.compute_parameters(config)
    training = model_size.training_flops(config, workload)
    tokens = workload.num_train_steps * workload.tokens_per_batch
    memory = model_size.memory_bytes(config, workload)
    facts = {
        "albert_config_file": path,
        "architecture": {
            name: getattr(config, name) for name in _ARCHITECTURE if hasattr(config, name)
        } | {"attention_weight_sets": attention, "feed_forward_weight_sets": feed_forward},
        "parameters": model_size.parameters_by_part(config) | {
            "backbone_without_pooler": model_size.parameter_count(config, with_pooler=False),
            "backbone": model_size.parameter_count(config),
            "total": model_size.parameter_count(config, heads=True),
        },
        "parameters_by_group": {
            f"group_{group}": parts
            for group, parts in model_size.parameters_by_group(config).items()
        },
        "cost": {
            "compute_parameters": compute,
            "tokens": tokens,
            "normalized_cost": model_size.normalized_cost(compute, workload),
            "normalized_cost_of_whole_millions": model_size.normalized_cost(
                round(compute / 1e6) * 10**6, workload
            ),
            "forward_flops_per_token": model_size.forward_flops(config, workload),
            "training_flops_per_token": training,
            "training_flops": training * tokens,
        },
        "memory_bytes": memory | {"total": sum(memory.values())},
    }
    if assumed:
        facts["plan"] = dataclasses.asdict(training_plan.make_plan(config, workload, assumed))
    return facts


def as_text(models: Sequence[dict], names: Sequence[str], workload: Workload) -> str:
    """Returns the table, a column for each architecture, and the formulas."""
    def section(title: str, key: str, labels: Mapping[str, str], show: Callable) -> list[Line]:
        return [(title, [])] + [
            (f"  {label}", [show(model[key][name]) for model in models])
            for name, label in labels.items()
        ]

    remat = ", remat" if workload.remat else ""
    length = f"{workload.max_seq_length:,} tokens"
    lines: list[Line] = [
        ("", list(names)),
        *section("architecture", "architecture", _ARCHITECTURE, _plain),
        *section("parameters", "parameters", _PARAMETERS, _plain),
        *_group_lines([model["parameters_by_group"] for model in models]),
        *section(
            f"{workload.num_train_steps:,} steps of {workload.train_batch_size:,} x {length}",
            "cost", _COST, _amount,
        ),
    ]
    if "plan" in models[0]:  # which tells the memory of the micro-batch that it chose
        devices = f"{workload.num_devices:,} device" + ("s" if workload.num_devices > 1 else "")
        lines.append((f"plan for {devices}, {workload.mixed_precision}{remat}", []))
        lines += _plan_lines([model["plan"] for model in models])
    else:
        title = (
            f"memory of a device, {workload.rows_at_once:,} x {length} at once, "
            f"{workload.optimizer}, {workload.mixed_precision}{remat}"
        )
        lines += section(title, "memory_bytes", _MEMORY, _size)
    left = max(len(label) for label, cells in lines if cells)
    columns = zip(*(cells for _, cells in lines if cells), strict=True)
    widths = [max(map(len, column)) for column in columns]
    told = [
        "  ".join([label.ljust(left), *(c.rjust(w) for c, w in zip(cells, widths, strict=True))])
        if cells else f"\n{label}"
        for label, cells in lines
    ]
    told += ["", *(f"{name}: {formula}." for name, formula in FORMULAS.items())]
    return "\n".join(line.rstrip() for line in told)


def _group_lines(models: Sequence[Mapping[str, Mapping[str, int]]]) -> list[Line]:
    """Returns the weights of each group; groups that follow each other and are alike in a row."""
    count = max(len(groups) for groups in models)
    cells = [
        [
            (label, [_plain(groups.get(f"group_{g}", {}).get(part, "-")) for groups in models])
            for part, label in _GROUP.items()
        ]
        for g in range(count)
    ]
    lines: list[Line] = [("parameters of a group of layers", [])]
    first = 0
    for of_group, alike in itertools.groupby(cells):
        last = first + len(list(alike)) - 1
        span = f"{first}" if first == last else f"{first} to {last}, each"
        lines += [(f"  group {span}: {label}", shown) for label, shown in of_group]
        first = last + 1
    return lines


def _plan_lines(plans: Sequence[dict]) -> list[Line]:
    """Returns the plan of each model; where none fits, what one sequence needs."""
    def cell(plan: dict, key: str) -> str:
        if plan["fits"]:
            return f"{plan[key]:,}"
        return "with --remat" if plan["fits_with_remat"] else "none"

    return [
        ("  micro-batch of a device", [cell(p, "micro_batch") for p in plans]),
        ("  gradient accumulation steps", [cell(p, "gradient_accumulation_steps") for p in plans]),
        *((f"  {label}", [_size(plan[key]) for plan in plans]) for key, label in _PLAN.items()),
        ("  days", [f"{p['days']:,.2f}" if p["fits"] else "-" for p in plans]),
    ]


def assumption_lines(
    device: Device, assumed: Assumptions, workload: Workload, given: Collection[str],
    is_compiled: bool = False,
) -> list[str]:
    """Returns what a plan takes for granted, a sentence each.

    `given` names flags in use; `is_compiled` says that XLA told each model's memory.
    """
    factor = assumed.remat_activation_factor if workload.remat else assumed.activation_factor
    how = " with --remat" if workload.remat else ""
    told = "as --activation_factor says" if "activation_factor" in given else (
        f"what was measured on a CPU{how}, not on this device"
    )
    speed = "--utilization" if "utilization" in given else "not measured: --utilization"
    return [
        f"plan, device: {device.description}, {_size(assumed.memory)}, of which "
        f"{100 if is_compiled else 100 * assumed.usable:g} % is usable (--device_memory_gib).",
        f"plan, speed: a peak of {assumed.peak_flops / 1e12:,.4g}e12 FLOPs a second in "
        f"{workload.mixed_precision} (--device_tflops), of which "
        f"{100 * assumed.utilization:g} % is reached ({speed}), communication and small "
        "micro-batches included.",
        "plan, activations: as XLA compiles the step of a few rows for this device."
        if is_compiled else f"plan, activations: {factor:g} times the estimate, {told}.",
        "plan, micro-batch: the largest equal part of a device's rows that fits; every device "
        "holds all weights, gradients and slots.",
        "plan, days: FLOPs of the run / (devices x peak x utilization), every sequence of full "
        "length; with --remat the second forward pass counts. No evaluation, no checkpoints, no "
        "waiting for data.",
    ]


def _plain(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _amount(value: float) -> str:
    if not value:  # rounded to no million at all
        return "-"
    return f"{value / 1e6:,.2f} million" if value < 1e12 else f"{value:.3e}"


def _size(value: float) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if value >= 1 << power:
            return f"{value / (1 << power):,.2f} {unit}"
    return f"{value / 1024:,.2f} KiB"
