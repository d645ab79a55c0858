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
    import numpy as np

    from albert import run_pretraining
    from albert.cli import flags

    flags.set_up_logging()
    flags.import_tensorflow()
    import tensorflow as tf

    from albert.training import tensorflow_engine

    began, waits, ends, losses = [], [], [], []

    def steps(self, iterator, count):
        rows = []
        if not began:  # the command's work before it asks for a batch
            self.make.get_concrete_function(iterator, tf.constant(count))
        for _ in range(count):
            began.append(time.perf_counter())
            batch = next(iterator)
            waits.append(time.perf_counter() - began[-1])
            rows.append(self.strategy.run(self._step, args=(batch,)).numpy())
            ends.append(time.perf_counter())
            losses.append(float(rows[-1][0]))
        return np.stack(rows)

    tensorflow_engine.TrainSteps.__call__ = steps
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
