"""Measures the tokens per second of pretraining on this machine.

It runs in a separate process, so that its memory and threads are released afterwards:

    python -m albert.cli.training_speed '{"config": {...}, "batch": 64, ...}'
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

from albert.cli import flags, run_flags
from albert.config import AlbertConfig
from albert.errors import UserError
from albert.records import manifests
from albert.records.record_files import RecordFiles

_MAX_STEPS = 200


def measure(config: AlbertConfig, **spec: int | float | str) -> float:
    """Returns the tokens per second of steps on random sequences, without the first step.

    Args:
      spec: batch, length, predictions (sequences of a step, and tokens and masked tokens of a
        sequence), optimizer, precision (as --mixed_precision), and seconds, the minimum duration.

    Raises:
      UserError: the steps failed, for example for lack of memory.
    """
    spec |= {"config": config.to_dict()}
    done = subprocess.run(
        [sys.executable, "-m", "albert.cli.training_speed", json.dumps(spec)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"cannot measure the training speed: {last}")
    return float(done.stdout.strip().splitlines()[-1])


def _measure_here(spec: dict) -> float:
    flags.set_up_logging()
    flags.start_engine()
    from albert.optimization import OptimizerConfig
    from albert.tasks.pretraining import PretrainingTask
    from albert.training.run import RunConfig, TrainState, current

    config = AlbertConfig.from_dict(spec["config"])
    batch, length = spec["batch"], spec["length"]
    task = PretrainingTask(length, spec["predictions"])
    optimizer = OptimizerConfig(spec["optimizer"], 1e-3, 10**6)
    devices = flags.parse(run_flags.define_device_flags, ["training_speed"])  # as run_pretraining's
    with tempfile.TemporaryDirectory() as folder, current().scope(devices):
        run = RunConfig(
            "", mixed_precision=spec["precision"], train_batch_size=batch
        ).on(current())
        path = os.path.join(folder, "random.tfrecord")
        features = task.feature_spec()
        rows = (_random_sequence(config, spec, np.random.default_rng(i)) for i in range(batch))
        manifests.write_records(path, rows, features, {})
        state = TrainState(task, config, run, optimizer)
        batches = iter(current().train_batches(
            RecordFiles([path]), features, batch_size=batch, vocab_size=config.vocab_size, seed=1
        ))
        train = current().train_step(task, state, run, batches)
        np.asarray(train(next(batches)))  # traces and compiles
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < spec["seconds"] and count < _MAX_STEPS:
            np.asarray(train(next(batches)))
            count += 1
        return count * batch * length / (time.perf_counter() - started)


def _random_sequence(config: AlbertConfig, spec: dict, rng) -> dict[str, np.ndarray]:
    length, count = spec["length"], spec["predictions"]
    return {
        "input_ids": rng.integers(5, config.vocab_size, length),
        "input_mask": np.ones(length, np.int64),
        "segment_ids": np.arange(length) >= length // 2,
        "masked_lm_positions": np.sort(rng.permutation(length)[:count]),
        "masked_lm_ids": rng.integers(5, config.vocab_size, count),
        "masked_lm_weights": np.ones(count, np.float32),
        "next_sentence_labels": rng.integers(0, 2, 1),
    }


if __name__ == "__main__":
    print(_measure_here(json.loads(sys.argv[1])))
