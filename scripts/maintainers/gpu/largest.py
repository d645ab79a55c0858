"""Finds the largest batch of a model at 512 tokens: plans it, and takes steps.

  python largest.py PREFIX MODEL

Memory grows linearly with the batch: two compilations give the line. Results go to PREFIX.json.
"""

import json
import sys
import time

import jax
import numpy as np

from albert import engines

engines.start(engines.choose())

from albert.formats import huggingface
from albert.optimization import OptimizerConfig
from albert.tasks.pretraining import PretrainingTask
from albert.training.run import RunConfig, TrainState, current


def main(prefix: str, model: str) -> None:
    config = huggingface.read_config(model)
    task, results = PretrainingTask(512, 20), {"model": f"{model}, bfloat16, LAMB, rows of 512"}
    sizes = (16, 32) if jax.default_backend() == "gpu" else (2, 4)
    for remat in (True, False):
        run = RunConfig("", mixed_precision="bfloat16", remat=remat)
        state = TrainState(task, config, run, OptimizerConfig("lamb", 1e-4, 10**6))
        train = current().train_step(task, state, run)
        needs = [needed(train, batch(task, config, size)) for size in sizes]
        results["remat" if remat else "plain"] = plan(*needs, *sizes)
        write(prefix, results)
    for size in (results["plain"]["predicted"] - back * 8 for back in range(4)):
        try:
            results["plain"] |= measured(train, batch(task, config, size), size)
            break
        except RuntimeError as error:  # out of memory
            results["plain"][f"{size} rows"] = str(error)[:200]
        write(prefix, results)
    write(prefix, results)


def needed(train, rows) -> int:
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in rows.items()}
    memory = train.lower(shapes).compile().memory_analysis()
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes


def plan(first: int, second: int, size: int, larger: int) -> dict:
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 8 << 30)
    each = (second - first) / (larger - size)
    return {
        "predicted": max(1, int((limit - first + each * size) / each) // 8 * 8 or 1),
        "GiB of a row": round(each / 2**30, 3), "GiB of none": round((first - each * size) / 2**30, 2),
        "limit, GiB": round(limit / 2**30, 1),
    }


def batch(task, config, size: int):
    rng = np.random.default_rng(0)
    length, count = task.max_seq_length, task.max_predictions_per_seq
    shape = (size, length)
    return {
        "input_ids": rng.integers(5, config.vocab_size, shape).astype(np.int32),
        "input_mask": np.ones(shape, np.int32),
        "segment_ids": np.tile((np.arange(length) > length // 2).astype(np.int32), (size, 1)),
        "masked_lm_positions": np.tile(np.arange(1, count + 1, dtype=np.int32), (size, 1)),
        "masked_lm_ids": rng.integers(5, config.vocab_size, (size, count)).astype(np.int32),
        "masked_lm_weights": np.ones((size, count), np.float32),
        "next_sentence_labels": rng.integers(0, 2, (size, 1)).astype(np.int32),
        "is_real_example": np.ones(size, np.int32),
    }


def measured(train, rows, size: int) -> dict:
    rows = {name: jax.device_put(x) for name, x in rows.items()}
    np.asarray(train(rows))
    started = time.perf_counter()
    np.asarray([train(rows) for _ in range(3)][-1])
    rate = 3 * rows["input_ids"].size / (time.perf_counter() - started)
    return {"largest that ran": size, "tokens per second": round(rate)}


def write(prefix: str, results) -> None:
    with open(prefix + ".json", "w") as stream:
        json.dump(results, stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
