"""keras-hub's side of comparisons, for a separate process (see apart.py)."""

import sys

import numpy as np
from helpers import REPO


def compute(config: dict, given: dict[str, np.ndarray], inputs: dict):
    """Returns (weights by our names, outputs) of their backbone.

    Args:
      given: weights to compute with; if empty, their own random weights.
    """
    sys.path.insert(0, str(REPO / "scripts/maintainers/benchmarks"))
    import keras_hub_weights

    backbone = keras_hub_weights.make_backbone(config)
    weights = dict(keras_hub_weights.of_backbone(config, backbone))
    assert len(weights) == len(backbone.weights)
    rng = np.random.default_rng(1)
    for name, weight in weights.items():
        random = rng.normal(0, 0.3, weight.shape) + name.endswith("gamma")
        weight.assign(np.reshape(given.get(name, random), weight.shape))
    outputs = {name: np.asarray(value) for name, value in backbone(inputs).items()}
    return {name: weight.numpy() for name, weight in weights.items()}, outputs
