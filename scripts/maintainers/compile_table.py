"""Compiles the paper's batch for slices of every TPU generation, and writes the guide's table.

  python scripts/maintainers/compile_table.py docs/evidence/compile_plan.json

It takes an hour or two on two cores, and resumes where it stopped. It prints the table of
docs/guides/accelerators.md in Markdown. It needs albert-keras[jax-tpu].
"""

import json
import os
import pathlib
import re
import subprocess
import sys

SLICES = ["v5e:8x8", "v6e:8x8", "v5p:4x4x4", "v4:4x4x4"]
MODELS = ["base_v2", "large_v2", "xlarge_v2", "xxlarge_v2"]
LENGTHS = [512, 128]
REMAT = {"xlarge_v2", "xxlarge_v2"}  # whose layers are too large to keep their activations
ROOT = pathlib.Path(__file__).resolve().parents[2]


def plan(slice_: str, model: str, length: int, parts: int = 1) -> dict:
    """Returns the result of `compile_plan`, with as many micro-batches as it asks for."""
    flags = [
        f"--topology={slice_}", f"--albert_config_file={model}", f"--max_seq_length={length}",
        "--train_batch_size=4096", "--mixed_precision=bfloat16", "--nolargest", "--format=json",
        f"--gradient_accumulation_steps={parts}", *["--remat"] * (model in REMAT),
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/maintainers/compile_plan.py"), *flags], text=True, capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )
    if done.returncode == 0:
        return json.loads(done.stdout) | {"parts": parts}
    more = re.search(r"--gradient_accumulation_steps=(\d+)", done.stderr)
    if not more or int(more[1]) <= parts:
        raise SystemExit(done.stderr)
    return plan(slice_, model, length, int(more[1]))


def table(found: dict[str, dict]) -> str:
    """Returns the table in Markdown: one row per model and length, one column per slice."""
    lines = [
        f"| model, rows of | {' | '.join(f'`{name}`' for name in SLICES)} |",
        "|---" * (1 + len(SLICES)) + "|",
    ]
    for model in MODELS:
        for length in LENGTHS:
            cells = [cell(found.get(f"{name} {model} {length}")) for name in SLICES]
            remat = ", `--remat`" if model in REMAT else ""
            lines.append(f"| {model} {length}{remat} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(told: dict | None) -> str:
    if told is None:
        return "-"
    memory = told["memory_gib"]
    return (
        f"{told['rows_at_once']} x {told['parts']}: {memory['together']:.1f} of "
        f"{memory['of a device']:.1f} GiB"
    )


def main() -> None:
    path = pathlib.Path(sys.argv[1])
    found = json.loads(path.read_text()) if path.exists() else {}
    for model in MODELS:
        for length in LENGTHS:
            for name in SLICES:
                key = f"{name} {model} {length}"
                if key not in found:
                    found[key] = plan(name, model, length)
                    path.write_text(json.dumps(found, indent=2) + "\n")
                    print(key, cell(found[key]), file=sys.stderr, flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
