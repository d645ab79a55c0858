"""Prints what architectures cost: parameters, FLOPs, memory, without building them.

  python -m albert.model_info --albert_config_file='base_v2,large_v2,my_*.json'
      --train_batch_size=64 --max_seq_length=128 --mixed_precision=bfloat16

With `--plan --device=h200 --num_replicas=8` also how the run fits on such devices
and how long it takes, with every assumption. Several configurations stand side
by side. The run that they are compared on has the flags and defaults of
run_pretraining. It answers at once and loads no TensorFlow. With `--plan` for a TPU,
XLA's compiler tells the memory, if albert[jax-tpu] is installed: a minute for each
architecture.
"""

import dataclasses
import json
import os
from collections.abc import Sequence

from albert import engines
from albert.cli import flags
from albert.config import AlbertConfig, config_file
from albert.errors import FlagError
from albert.model import cost_report, model_size, training_plan
from albert.model.model_size import Workload
from albert.model.training_plan import DEVICES, Assumptions, Device
from albert.storage import files

# Flags in place of a device's numbers.
_OF_A_DEVICE = ("device_memory_gib", "device_tflops", "utilization", "activation_factor")


def define_flags(values: flags.FlagValues) -> None:
    def define(kind: str, name: str, text: str, **kwargs) -> None:
        default = next(f.default for f in dataclasses.fields(Workload) if f.name == name)
        flags.define(kind, values, name, default, text, **kwargs)

    flags.define("path", values, "albert_config_file", None,
                 "Architectures: comma-separated names of released ones, as base_v2, and globs of JSON "
                 "files. Required.", use="file")
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
    device = DEVICES[values.device]
    assumed = _assumptions(values, device, workload) if values.plan else None
    lines = []
    if assumed:
        given = {name for name in _OF_A_DEVICE if getattr(values, name) is not None}
        lines = cost_report.assumption_lines(
            device, assumed, workload, given, is_compiled=_is_compiled(values)
        )
    named = [config_file(name.strip()) for name in values.albert_config_file.split(",")]
    paths = files.expand_globs(",".join(named), "albert_config_file")
    configs = [AlbertConfig.from_json_file(path) for path in paths]
    models = [
        cost_report.describe(
            config, workload, path, assumed and _compiled(values, config, workload, assumed)
        )
        for config, path in zip(configs, paths, strict=True)
    ]
    if values.format == "text":
        print("\n".join([cost_report.as_text(models, names_of(paths), workload), *lines]))
        return
    facts = {
        "workload": dataclasses.asdict(workload), "models": models,
        "formulas": cost_report.FORMULAS,
    }
    if assumed:
        facts["plan"] = {
            "device": values.device, **dataclasses.asdict(assumed), "assumptions": lines
        }
    print(json.dumps(facts, indent=2))


def _is_compiled(values: flags.FlagValues) -> bool:
    """Whether XLA's compiler is asked what the device needs."""
    is_known = values.device in ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e")
    return is_known and values.activation_factor is None and engines.has_tpu_compiler()


def _compiled(
    values: flags.FlagValues, config: AlbertConfig, workload: Workload, assumed: Assumptions
) -> Assumptions:
    """Returns the assumptions with the activations of a compiled step, where that can be."""
    if not _is_compiled(values):
        return assumed
    flags.start_compiler()
    from albert.tasks.pretraining import PretrainingTask
    from albert.training import compilation

    factor = compilation.activation_factor(
        PretrainingTask(workload.max_seq_length, workload.max_predictions_per_seq),
        config, workload, values.device.removeprefix("tpu-"),
    )
    return dataclasses.replace(
        assumed, activation_factor=factor, remat_activation_factor=factor, usable=1.0
    )


def _assumptions(
    values: flags.FlagValues, device: Device, workload: Workload
) -> Assumptions:
    """Returns the device's numbers, or those of the flags in their place.

    Raises:
      FlagError: a number that cannot be, or a precision that the device does not have.
    """
    if workload.mixed_precision not in device.peak_flops:
        raise FlagError(
            f"--mixed_precision={workload.mixed_precision}: --device={values.device} has "
            f"{' and '.join(device.peak_flops)} only"
        )

    def given(name: str, default: float, unit: float = 1) -> float:
        value = getattr(values, name)
        return default if value is None else value * unit

    return Assumptions(
        memory=given("device_memory_gib", device.memory, training_plan.GIB),
        usable=training_plan.USABLE_MEMORY,
        peak_flops=given("device_tflops", device.peak_flops[workload.mixed_precision], 1e12),
        utilization=given("utilization", device.utilization),
        activation_factor=given("activation_factor", training_plan.activation_factor(False)),
        remat_activation_factor=given("activation_factor", training_plan.activation_factor(True)),
    )


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
