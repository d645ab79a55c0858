"""Compiles a pretraining step for TPUs on a machine without any; prints memory and communication.

  python scripts/maintainers/compile_plan.py --topology=v5e:4x4 --albert_config_file=base_v2 \\
      --train_batch_size=4096 --max_seq_length=512 --mixed_precision=bfloat16

The step is that of `run_pretraining --engine=jax` with these flags. The command reports the memory
per device, the communication between devices, and how many sequences a device can compute at once.
If the step does not fit, the exit code is 2. It takes a few minutes, and needs albert-keras[jax-tpu].
"""

import json
import os

from albert import engines
from albert.cli import engine_start, flags, run_flags
from albert.errors import FlagError
from albert.formats import huggingface
from albert.model import costs
from albert.model.costs import Workload

GIB = 1 << 30


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "topology", None,
                 "TPU slice: generation and shape, such as v5e:4x4 or v5p:4x4x4. Required.")
    flags.define("path", values, "albert_config_file", None,
                 "Architecture: a released one, such as base_v2, or a JSON file. Required.", use="file")
    flags.define("integer", values, "train_batch_size", 4096,
                 "Sequences per step, on all devices together.", lower_bound=1)
    flags.define("integer", values, "max_seq_length", 512, "Tokens per sequence.", lower_bound=4)
    flags.define("integer", values, "max_predictions_per_seq", 20,
                 "Masked tokens per sequence.", lower_bound=1)
    flags.define("enum", values, "optimizer", "lamb", "Optimizer.", enum_values=["adamw", "lamb"])
    flags.define("bool", values, "largest", True,
                 "Also find how many sequences a device can compute at once, which takes two or three "
                 "more compilations.")
    flags.define("enum", values, "format", "text", "Output format.", enum_values=["text", "json"])
    run_flags.define_step_flags(values)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "topology", "albert_config_file")
    config = huggingface.read_config(values.albert_config_file)
    config.check_length(values.max_seq_length, values.albert_config_file)
    if not all(map(engines.is_installed, ("jax", "libtpu"))):
        raise FlagError("XLA's compiler for TPUs is not installed: install albert-keras[jax-tpu]")
    os.environ["JAX_PLATFORMS"] = "cpu"  # this machine has no TPUs
    engine_start.start("jax")
    import step_compiler

    from albert.optimization import OptimizerConfig
    from albert.tasks.pretraining import PretrainingTask
    from albert.training.run import RunConfig

    step = step_compiler.StepCompiler(
        PretrainingTask(values.max_seq_length, values.max_predictions_per_seq),
        config,
        RunConfig("", **flags.select(values, RunConfig)),
        OptimizerConfig(values.optimizer, 0.001, 100, 10),
        values.topology,
    )
    flags.log.info("compiling %d sequences at once for %s", step.rows, values.topology)
    compiled, largest = step.compile(step.rows), None
    if values.largest or not compiled.fits:
        flags.log.info("searching how many sequences fit")
        largest = step.largest(compiled)
    if not compiled.fits:
        remedy = "not even one sequence fits" + ("" if values.remat else ": try --remat")
        if largest:
            rows = values.train_batch_size // step.mesh.size
            parts = next(n for n in range(1, rows + 1)
                         if rows % n == 0 and rows // n <= largest.rows)
            remedy = f"{largest.rows} would fit: --gradient_accumulation_steps={parts}"
        raise FlagError(
            f"{compiled.rows} sequences at once need {compiled.needed / GIB:.2f} GiB, but a device of "
            f"{values.topology} has {compiled.capacity / GIB:.2f} GiB; {remedy}"
        )
    workload = Workload(**flags.select(
        values, ("train_batch_size", "max_seq_length", "max_predictions_per_seq")
    ))
    flops = costs.training_flops(config, workload) * workload.tokens_per_batch
    facts = {
        "topology": values.topology,
        "devices": step.mesh.size,
        "rows_at_once": compiled.rows,
        "memory_gib": {
            "weights, moments and batch": compiled.arguments / GIB,
            "temporaries": compiled.temporaries / GIB,
            "together": compiled.needed / GIB,
            "of a device": compiled.capacity / GIB,
        },
        "tera_flops_of_a_device": flops / step.mesh.size / 1e12,
        "exchanges": compiled.collectives,
        "fits": True,
        "most_rows_at_once": largest and largest.rows,
    }
    print(json.dumps(facts, indent=2) if values.format == "json" else as_text(facts))


def as_text(facts: dict, indent: str = "") -> str:
    """Returns a line for each fact."""
    lines = []
    for name, value in facts.items():
        label = f"{indent}{name.replace('_', ' ')}"
        if isinstance(value, dict):
            lines += [label, as_text(value, indent + "  ")]
        else:
            lines.append(f"{label:32}{f'{value:,.2f}' if isinstance(value, float) else value}")
    return "\n".join(lines)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
