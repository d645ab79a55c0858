"""Gives the weights of a model to a wider one, which computes the same.

Each unit of width becomes `factor` of them, equal at first: attention heads, units of the
feed-forward layer and all of the hidden state (Chen, Goodfellow and Shlens 2016, Net2Net;
arXiv 1511.05641). What reads them has its weights shared out among them, at random, so that
the copies learn different things. The embedding size stays.

A layer norm of units that are all there `factor` times has the same mean and variance, and
the heads keep their size, so nothing else changes.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from albert.config import AlbertConfig

_SPREAD = 0.5  # of the weights that are shared out, in standard deviations of the old ones


def wider(config: AlbertConfig, factor: int) -> AlbertConfig:
    """Returns the configuration of `factor` times the width."""
    return dataclasses.replace(
        config, hidden_size=config.hidden_size * factor,
        intermediate_size=config.intermediate_size * factor,
        num_attention_heads=config.num_attention_heads * factor,
    )


def widen(
    weights: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], seed: int
) -> dict[str, np.ndarray]:
    """Returns weights of `shapes`, the wider model's, that compute what `weights` do.

    An axis may be as long as before or a multiple of that.
    """
    random = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        old = np.asarray(weights[name])
        times = [new // length for new, length in zip(shape, old.shape, strict=True)]
        # `output_weights` are [classes, H], kernels [inputs, outputs]; vectors have outputs only.
        inputs = 1 if name.endswith("output_weights") else 0
        copies = times[inputs] if old.ndim == 2 and not name.endswith("embeddings") else 1
        new = np.tile(old / copies, times)
        if copies > 1:
            new += _shares(random, new.shape, inputs, copies, old.std())
        found[name] = new.astype(old.dtype)
    return found


def _shares(
    random: np.random.Generator, shape: tuple[int, ...], axis: int, copies: int, scale: float
) -> np.ndarray:
    """Returns random numbers whose sum over the copies of an input is 0."""
    apart = [*shape[:axis], copies, shape[axis] // copies, *shape[axis + 1 :]]
    noise = random.normal(size=apart)
    noise -= noise.mean(axis=axis, keepdims=True)
    spread = _SPREAD * scale / math.sqrt(1 - 1 / copies)
    return spread * noise.reshape(shape)
