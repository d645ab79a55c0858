"""Of `keras.ops`, what answers are computed with, for NumPy's arrays: without an engine."""

import numpy as np


def cast(x, dtype: str):
    return np.asarray(x, dtype)


def concatenate(parts, axis: int):
    return np.concatenate(parts, axis)


def sum(x, axis: int):
    return np.sum(x, axis)


def softmax(x):
    """Over the last axis."""
    powers = np.exp(x - np.max(x, -1, keepdims=True))
    return powers / np.sum(powers, -1, keepdims=True)


def sigmoid(x):
    # Of both signs without a power that is infinite.
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1.0) / (1.0 + power)
