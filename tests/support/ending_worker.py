"""Pretraining in a worker ended by a signal: `python -m ending_worker SIGNAL STEP flags...`.

It sends itself the signal after that step.
"""

import os
import sys

from albert import run_pretraining

if "--engine=jax" in sys.argv:
    os.environ["KERAS_BACKEND"] = "jax"  # the next line imports Keras
from albert.training.metrics import History

number, last = int(sys.argv.pop(1)), int(sys.argv.pop(1))
note = History.note


def note_and_end(self, step, *rest):
    note(self, step, *rest)
    if step == last:
        os.kill(os.getpid(), number)


History.note = note_and_end
run_pretraining.cli()
