"""A side whose turn is a process: from its start to the end of its first training step."""

import json
import os
import subprocess
import sys
import time

import serve


def prepare(spec):
    def run():
        started = time.time()
        done = subprocess.run(
            [sys.executable, spec["program"], *spec["arguments"]], stdout=subprocess.PIPE, text=True
        )
        lines = done.stdout.splitlines()
        if not lines:
            raise RuntimeError(f"{os.path.basename(spec['program'])} made no step")
        told = json.loads(lines[-1])
        parts, before = serve.Parts(), started
        for name, at in told["marks"].items():
            parts[name], before = at - before, at
        return parts, told["loss"]

    return lambda: run()[0], {"loss": [run()[1]]}


serve.serve(prepare)
