"""Start-up benchmark: from process start to the end of the first training step."""

import os

from albert.formats.model_card import table
from albert.storage import files
from benchmarks import inputs
from benchmarks.turns import FOLDER, Side, compare


def startup(values, config, folder):
    """`albert.run_pretraining` (graph, XLA), the original's graph, and PyTorch, to step 1's end."""
    [(batch, length)] = inputs.sizes(values, (8,), (128,))[:1]
    paths = inputs.make_model(config, "AlbertForPreTraining", folder, for_peers=True)
    config_file = os.path.join(folder, "albert_config.json")
    with files.atomic_write(config_file) as stream:
        stream.write(config.to_json_string())
    arguments = [
        f"--albert_config_file={config_file}", f"--init_checkpoint={paths['ours']}",
        f"--input_file={inputs.write_records(folder, config, batch, length)}",
        f"--train_batch_size={batch}", f"--max_seq_length={length}",
        f"--max_predictions_per_seq={min(inputs.PREDICTIONS, length)}", "--optimizer=adamw",
        "--learning_rate=1e-6", "--num_train_steps=2", "--num_warmup_steps=0", "--log_steps=1",
    ]
    sides = [
        Side(name, "startup.py", {
            "program": os.path.join(FOLDER, "first_step_ours.py"), "arguments": arguments + more,
            "is_warm": True,  # each turn is a separate process
        })
        for name, more in (("ours", []), ("ours, XLA", ["--use_xla"]))
    ]
    rows_file = inputs.write_rows(folder, config, batch, length)
    sides.append(Side("the original's graph", "startup.py", {
        "program": os.path.join(FOLDER, "first_step_tf1.py"),
        "arguments": [paths["archive"], rows_file], "is_warm": True,
    }))
    if python := inputs.peers_python(values):
        theirs = [paths["theirs"], rows_file]
        sides += [
            Side(name, "startup.py", {
                "program": os.path.join(FOLDER, "first_step_torch.py"),
                "arguments": theirs + more, "is_warm": True,
            }, python)
            for name, more in (("transformers", []), ("transformers, compiled", ["compile"]))
        ]
    found = compare(sides, os.path.join(folder, "turns"), rounds=values.rounds,
                    tolerance=inputs.TOLERANCES["float32"])
    rows = [
        [name, f"{one['median_seconds']:.2f}",
         f"{one['least_seconds']:.2f} ... {one['most_seconds']:.2f}",
         *(f"{one['parts'][part]:.2f}" for part in ("import", "build", "first step")),
         f"{one['ratio']:.2f}"]
        for name, one in found.items()
    ]
    header = ("side", "start to first step, median s", "spread s", "interpreter and imports",
              "build and load", "trace, compile and step", "speed, ours = 1")
    return found, f"{batch} rows of {length}\n\n" + table(header, rows)
