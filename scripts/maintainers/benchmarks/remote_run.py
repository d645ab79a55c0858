"""A side whose turn is an `albert.run_pretraining` process that notes how long it waits for input."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

import serve


def prepare(spec):
    numbers = itertools.count()

    def run():
        with tempfile.TemporaryDirectory() as scratch:  # nothing left from an earlier turn
            output = f"{spec.get('output', scratch)}/{next(numbers)}"
            told = os.path.join(scratch, "told.json")
            subprocess.run(
                [sys.executable, __file__, told, *spec["arguments"],
                 f"--input_file={spec['input']}", f"--output_dir={output}"],
                env=os.environ | spec["environment"] | {"ALBERT_CACHE": f"{scratch}/cache"},
            )
            with open(told) as stream:
                return json.load(stream)

    return lambda: serve.Parts(run()["parts"]), {"losses": run()["losses"]}


def timed_training(told: str, argv: list[str]) -> None:
    """Runs the command with its usual steps, but one by one: batch, then step."""
    from albert import run_pretraining
    from albert.cli import flags

    flags.set_up_logging()
    flags.import_tensorflow()
    from albert.training import tf_engine

    began, waits, ends, losses = [], [], [], []

    def step(self, batches, stop):
        if not began:  # the command's work before it asks for a batch
            concrete(self, batches, stop)
        began.append(time.perf_counter())
        batch = next(batches)
        waits.append(time.perf_counter() - began[-1])
        row = self.strategy.run(self._step, args=(batch, stop)).numpy()
        ends.append(time.perf_counter())
        losses.append(float(row[0]))
        return row

    concrete = tf_engine.TrainStep.__call__.get_concrete_function
    tf_engine.TrainStep.__call__ = step
    try:
        run_pretraining.cli(["run_pretraining", *argv])
    finally:
        with open(told, "w") as stream:
            json.dump({"losses": losses, "parts": {
                "first batch": waits[0], "loop": ends[-1] - began[0],
                "waiting": sum(waits[1:]), "steps": ends[-1] - ends[0],
            }}, stream)


if os.path.basename(sys.argv[1]) == "told.json":
    timed_training(sys.argv[1], sys.argv[2:])
else:
    serve.serve(prepare)
