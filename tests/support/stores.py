"""A checkpoint of two tensors, for tests of keeping and reading checkpoints."""

import os
import pathlib

import numpy as np

from albert.config import AlbertConfig
from albert.training import store

CONFIG = AlbertConfig(100, 8, 16, 2, num_attention_heads=2, intermediate_size=8)
SHAPES = {"bert/a": (2, 3), "global_step": ()}


def save(directory: os.PathLike | str, step: int, keep: int = 0, size=(2, 3)) -> str:
    """Saves a checkpoint with its step as its tensor; returns its prefix."""
    tensors = {"bert/a": np.full(size, step, "float32"), "global_step": np.int64(step)}
    run_state = {"metadata": {"task": "t"}, "config": CONFIG.to_dict(), "records_seen": 4 * step}
    return store.save(str(directory), step, tensors, run_state, keep)


def newest(directory: os.PathLike | str) -> int:
    """Returns the step of the newest readable checkpoint with parts from a single step, or 0."""
    found = store.read_newest(str(directory), SHAPES, CONFIG, "t")
    if not found:
        return 0
    prefix, tensors, run_state = found
    step = int(tensors["global_step"])
    assert (tensors["bert/a"] == step).all() and run_state["records_seen"] == 4 * step
    assert pathlib.Path(prefix).name == f"model.ckpt-{step}"
    return step
