"""Prints what architectures cost: parameters, FLOPs, memory, without building them.

  python -m albert.model_info --albert_config_file='base_v2,large_v2,my_*.json'
      --train_batch_size=64 --max_seq_length=128 --mixed_precision=bfloat16

With `--plan --device=h200 --num_replicas=8` also how the run fits on such devices
and how long it takes, with every assumption. Several configurations stand side
by side. The run that they are compared on has the flags and defaults of
run_pretraining. Answers at once: TensorFlow is not loaded.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from albert.cli import flags
from albert.config import AlbertConfig, config_file
from albert.data import files
from albert.errors import FlagError
from albert.model import model_size, training_plan
from albert.model.model_size import Workload
from albert.model.training_plan import DEVICES, Assumptions

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


def define_flags(values: flags.FlagValues) -> None:
    def define(kind: str, name: str, text: str, **kwargs) -> None:
        default = next(f.default for f in dataclasses.fields(Workload) if f.name == name)
        flags.define(kind, values, name, default, text, **kwargs)

    flags.define("string", values, "albert_config_file", None,
                 "Architectures: comma-separated names of released ones, as base_v2, and globs of JSON "
                 "files. Required.")
    flags.define("enum", values, "format", "text", "How to print it.",
                 enum_values=["text", "json"])
    define("integer", "num_train_steps", "Training steps.", least=1)
    define("integer", "train_batch_size", "Sequences of a step.", least=1)
    define("integer", "max_seq_length", "Tokens of a sequence.", least=1)
    define("integer", "max_predictions_per_seq", "Masked tokens of a sequence.", least=1)
    define("enum", "optimizer", "Optimizer.", enum_values=sorted(model_size.SLOTS))
    define("enum", "mixed_precision", "Precision of the matrix products.",
           enum_values=list(model_size.COMPUTE_BYTES))
    define("bool", "remat", "Compute each layer again in the backward pass.")
    define("integer", "gradient_accumulation_steps",
           "Parts that each device cuts its rows of a batch into.", least=1)
    define("integer", "num_devices", "Devices that share a batch; memory is that of one.", least=1)
    flags.define_alias(values, "num_replicas", "num_devices")
    flags.define("bool", values, "plan", False,
                 "Also tell the micro-batch that fits on --device, its memory, and days.")
    flags.define("enum", values, "device", "h200", "What each replica computes on, for --plan.",
                 enum_values=list(DEVICES))
    flags.define("float", values, "utilization", None,
                 "Part of the device's peak that training reaches, for --plan; by default "
                 + ", ".join(f"{d.utilization} ({name})" for name, d in DEVICES.items()) + ".",
                 above=0, most=1)
    flags.define("float", values, "device_memory_gib", None,
                 "Memory of a device, for --plan, if not that of --device.", above=0)
    flags.define("float", values, "device_tflops", None,
                 "Peak of a device, 1e12 FLOPs a second, for --plan, if not that of --device.",
                 above=0)
    flags.define("float", values, "activation_factor", None,
                 "Activations that a step really takes, as a multiple of their estimate, for "
                 "--plan; by default 1.3, and 1.5 with --remat.", above=0)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "albert_config_file")
    workload = Workload(**flags.select(values, Workload))
    parts = workload.num_devices * workload.gradient_accumulation_steps
    if workload.train_batch_size % parts:
        raise FlagError(
            f"--train_batch_size={workload.train_batch_size} cannot be divided by --num_devices x "
            f"--gradient_accumulation_steps = {parts}"
        )
    assumed = _assumptions(values, workload) if values.plan else None
    named = [config_file(name.strip()) for name in values.albert_config_file.split(",")]
    paths = files.expand_globs(",".join(named), "albert_config_file")
    models = [
        describe(AlbertConfig.from_json_file(path), workload, path, assumed) for path in paths
    ]
    if values.format == "json":
        facts = {"workload": dataclasses.asdict(workload), "models": models, "formulas": FORMULAS}
        if assumed:
            facts["plan"] = {"device": values.device} | dataclasses.asdict(assumed) | {
                "assumptions": _assumption_lines(values, assumed, workload)
            }
        print(json.dumps(facts, indent=2))
    else:
        lines = _assumption_lines(values, assumed, workload) if assumed else []
        print("\n".join([as_text(models, names_of(paths), workload), *lines]))


def _assumptions(values: flags.FlagValues, workload: Workload) -> Assumptions:
    """Returns the device's numbers, or those of the flags in their place.

    Raises:
      FlagError: a number that cannot be, or a precision that the device does not have.
    """
    device = DEVICES[values.device]
    if workload.mixed_precision not in device.peak_flops:
        raise FlagError(
            f"--mixed_precision={workload.mixed_precision}: --device={values.device} has "
            f"{' and '.join(device.peak_flops)} only"
        )

    def given(name: str, default: float, unit: float = 1) -> float:
        value = getattr(values, name)
        return default if value is None else value * unit

    def factor(remat: bool) -> float:
        return given("activation_factor", training_plan.activation_factor(remat))

    return Assumptions(
        memory=given("device_memory_gib", device.memory, training_plan.GIB),
        usable=training_plan.USABLE_MEMORY,
        peak_flops=given("device_tflops", device.peak_flops[workload.mixed_precision], 1e12),
        utilization=given("utilization", device.utilization),
        activation_factor=factor(False),
        remat_activation_factor=factor(True),
    )


def _assumption_lines(
    values: flags.FlagValues, assumed: Assumptions, workload: Workload
) -> list[str]:
    """Returns what a plan takes for granted, a sentence each."""
    factor = assumed.remat_activation_factor if workload.remat else assumed.activation_factor
    how = " with --remat" if workload.remat else ""
    told = "as --activation_factor says" if values.activation_factor is not None else (
        f"what was measured on a CPU{how}, not on this device"
    )
    speed = "--utilization" if values.utilization is not None else "not measured: --utilization"
    return [
        f"plan, device: {DEVICES[values.device].description}, {_size(assumed.memory)}, of which "
        f"{100 * assumed.usable:g} % is usable (--device_memory_gib).",
        f"plan, speed: a peak of {assumed.peak_flops / 1e12:,.4g}e12 FLOPs a second in "
        f"{workload.mixed_precision} (--device_tflops), of which "
        f"{100 * assumed.utilization:g} % is reached ({speed}), communication and small "
        "micro-batches included.",
        f"plan, activations: {factor:g} times the estimate, {told}.",
        "plan, micro-batch: the largest equal part of a device's rows that fits; every device "
        "holds all weights, gradients and slots.",
        "plan, days: FLOPs of the run / (devices x peak x utilization), every sequence of full "
        "length; with --remat the second forward pass counts. No evaluation, no checkpoints, no "
        "waiting for data.",
    ]


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
    plan = assumed and dataclasses.asdict(training_plan.make_plan(config, workload, assumed))
    return {
        "albert_config_file": path,
        "architecture": {
            name: getattr(config, name)
            for name in (
                "num_hidden_layers", "inner_group_num", "hidden_size", "embedding_size",
                "num_attention_heads", "intermediate_size", "vocab_size",
                "max_position_embeddings", "parameter_sharing", "num_hidden_groups",
            )
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
    } | ({"plan": plan} if plan else {})


def names_of(paths: Sequence[str]) -> list[str]:
    """Returns a short name for each file: its own, its directory's, or its whole path."""
    def short(path: str) -> str:
        stem = os.path.splitext(os.path.basename(path))[0]
        folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
        return folder if stem == "albert_config" else stem

    names = [short(path) for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


def as_text(models: Sequence[dict], names: Sequence[str], workload: Workload) -> str:
    """Returns the table, a column for each architecture, and the formulas."""
    rows: list[tuple[str, list[str]]] = [("", list(names))]

    def section(title: str, key: str, labels: dict[str, str], show) -> None:
        rows.append((title, []))
        rows.extend(
            (f"  {label}", [show(model[key][name]) for model in models])
            for name, label in labels.items()
        )

    run = (
        f"{workload.num_train_steps:,} steps of {workload.train_batch_size:,} x "
        f"{workload.max_seq_length:,} tokens"
    )
    held = f"{workload.rows_at_once:,} x {workload.max_seq_length:,} tokens at once"
    section("architecture", "architecture", _ARCHITECTURE, _plain)
    section("parameters", "parameters", _PARAMETERS, _plain)
    rows += _group_rows(models)
    section(run, "cost", _COST, _amount)
    if "plan" in models[0]:  # which tells the memory of the micro-batch that it chose
        rows += _plan_rows([model["plan"] for model in models], workload)
    else:
        section(f"memory of a device, {held}, {workload.optimizer}, {workload.mixed_precision}"
                + (", remat" if workload.remat else ""), "memory_bytes", _MEMORY, _size)
    left = max(len(label) for label, cells in rows if cells)
    widths = [max(len(cells[i]) for _, cells in rows if cells) for i in range(len(models))]
    lines = [
        "  ".join([label.ljust(left), *(c.rjust(w) for c, w in zip(cells, widths, strict=True))])
        if cells else f"\n{label}"
        for label, cells in rows
    ]
    lines += ["", *(f"{name}: {formula}." for name, formula in FORMULAS.items())]
    return "\n".join(line.rstrip() for line in lines)


def _group_rows(models: Sequence[dict]) -> list[tuple[str, list[str]]]:
    """Returns the weights of each group; groups that follow each other and are alike in a row."""
    rows: list[tuple[str, list[str]]] = [("parameters of a group of layers", [])]
    count = max(int(g.removeprefix("group_")) for m in models for g in m["parameters_by_group"]) + 1
    told = [
        [
            {k: f"{v:,}" for k, v in model["parameters_by_group"].get(f"group_{g}", {}).items()}
            for model in models
        ]
        for g in range(count)
    ]
    first = 0
    while first < count:
        last = first
        while last + 1 < count and told[last + 1] == told[first]:
            last += 1
        span = f"{first}" if first == last else f"{first} to {last}, each"
        for part, label in _GROUP.items():
            cells = [of_model.get(part, "-") for of_model in told[first]]
            rows.append((f"  group {span}: {label}", cells))
        first = last + 1
    return rows


def _plan_rows(plans: Sequence[dict], workload: Workload) -> list[tuple[str, list[str]]]:
    """Returns the plan of each model; where none fits, what one sequence needs."""
    def cell(plan: dict, text: str) -> str:
        if plan["fits"]:
            return text
        return "with --remat" if plan["fits_with_remat"] else "none"

    devices = f"{workload.num_devices:,} device" + ("s" if workload.num_devices > 1 else "")
    return [
        (f"plan for {devices}, {workload.mixed_precision}"
         + (", remat" if workload.remat else ""), []),
        ("  micro-batch of a device", [cell(p, f"{p['micro_batch']:,}") for p in plans]),
        ("  gradient accumulation steps",
         [cell(p, f"{p['gradient_accumulation_steps']:,}") for p in plans]),
        *(
            (f"  {label}", [_size(plan[name]) for plan in plans])
            for name, label in _PLAN.items()
        ),
        ("  days", [f"{p['days']:,.2f}" if p["fits"] else "-" for p in plans]),
    ]


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


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
