"""Compiles a pretraining step for TPUs, without having any, and prints its memory and exchanges.

  python -m albert.compile_plan --topology=v5e:4x4 --albert_config_file=base_v2 \\
      --train_batch_size=4096 --max_seq_length=512 --mixed_precision=bfloat16

The step is the one that `run_pretraining --engine=jax` makes with these flags. It reports the
memory of a device, the exchanges between devices, and the most rows that a device can compute
at once. Where the step does not fit, the exit code is 2. It takes a minute or a few. It needs
albert[jax-tpu].
"""

import dataclasses
import json
from typing import TYPE_CHECKING

from albert.cli import flags, run_flags
from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.model import costs
from albert.model.costs import Workload

if TYPE_CHECKING:
    from albert.training.compilation import Compiled

GIB = 1 << 30


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "topology", None,
                 "The slice: generation and shape, as v5e:4x4 or v5p:4x4x4. Required.")
    flags.define("path", values, "albert_config_file", None,
                 "Architecture: a released one, as base_v2, or a JSON file. Required.", use="file")
    flags.define("integer", values, "train_batch_size", 4096,
                 "Sequences of a step, on all devices together.", lower_bound=1)
    flags.define("integer", values, "max_seq_length", 512, "Tokens of a sequence.", lower_bound=4)
    flags.define("integer", values, "max_predictions_per_seq", 20,
                 "Masked tokens of a sequence.", lower_bound=1)
    flags.define("enum", values, "optimizer", "lamb", "Optimizer.", enum_values=["adamw", "lamb"])
    flags.define("bool", values, "largest", True,
                 "Also find the most rows that a device can compute at once: two or three more "
                 "compilations.")
    flags.define("enum", values, "format", "text", "How to print it.",
                 enum_values=["text", "json"])
    run_flags.define_step_flags(values)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "topology", "albert_config_file")
    config = AlbertConfig.from_flag(values.albert_config_file)
    if values.max_seq_length > config.max_position_embeddings:
        raise FlagError(
            f"--max_seq_length={values.max_seq_length} exceeds max_position_embeddings "
            f"{config.max_position_embeddings} of {values.albert_config_file}"
        )
    flags.start_compiler()
    from albert.optimization import OptimizerConfig
    from albert.tasks.pretraining import PretrainingTask
    from albert.training import compilation
    from albert.training.run_settings import RunConfig

    step = compilation.StepCompiler(
        PretrainingTask(values.max_seq_length, values.max_predictions_per_seq),
        config,
        RunConfig("", **flags.select(values, RunConfig)),
        OptimizerConfig(values.optimizer, 0.001, 100, 10),
        values.topology,
    )
    flags.log.info("compiling %d rows at once for %s", step.rows, values.topology)
    found = step.compile()
    largest = None
    if values.largest or not found.fits:
        flags.log.info("looking for the most rows that fit")
        largest = step.largest(found)
    if not found.fits:
        raise FlagError(_does_not_fit(values, step, found, largest))
    told = _facts(values, config, step, found, largest)
    print(json.dumps(told, indent=2) if values.format == "json" else _text(told))


def _does_not_fit(values, step, found: "Compiled", largest: "Compiled | None") -> str:
    """Returns by how much a step does not fit, and what would."""
    told = (
        f"{found.rows} rows at once do not fit a device of {values.topology}: they need "
        f"{found.needed / GIB:.2f} GiB of {found.capacity / GIB:.2f}, "
        f"{(found.needed - found.capacity) / GIB:.2f} too much"
    )
    if largest is None:
        return f"{told}; one row does not fit either{'' if values.remat else ': try --remat'}"
    rows = values.train_batch_size // step.mesh.size
    parts = next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= largest.rows)
    return f"{told}; {largest.rows} would fit: --gradient_accumulation_steps={parts}"


def _facts(values, config, step, found: "Compiled", largest: "Compiled | None") -> dict:
    workload = Workload(**{
        field.name: values[field.name].value for field in dataclasses.fields(Workload)
        if field.name in values
    })
    flops = costs.training_flops(config, workload) * workload.tokens_per_batch
    return {
        "topology": values.topology,
        "devices": step.mesh.size,
        "rows_at_once": found.rows,
        "memory_gib": {
            "weights, moments and batch": found.arguments / GIB,
            "temporaries": found.temporaries / GIB,
            "together": found.needed / GIB,
            "of a device": found.capacity / GIB,
        },
        "tera_flops_of_a_device": flops / step.mesh.size / 1e12,
        "exchanges": None if found.collectives is None else {
            kind: {"count": n, "mib": size / 2**20} for kind, n, size in found.collectives
        },
        "fits": True,
        "most_rows_at_once": largest and largest.rows,
    }


def _text(told: dict) -> str:
    memory = told["memory_gib"]
    lines = [
        ("slice", f"{told['topology']}, {told['devices']} devices"),
        ("rows that a device computes at once", f"{told['rows_at_once']:,}"),
        *((f"memory of a device: {name}", f"{size:.2f} GiB") for name, size in memory.items()),
        ("products of a device in a step", f"{told['tera_flops_of_a_device']:,.2f} TFLOP"),
        *(
            (f"{kind}s of a step", f"{one['count']}, {one['mib']:,.1f} MiB")
            for kind, one in (told["exchanges"] or {}).items()
        ),
        ("it fits", "yes"),
    ]
    if told["most_rows_at_once"]:
        lines.append(("most rows at once that fit", f"{told['most_rows_at_once']:,}"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in lines)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
