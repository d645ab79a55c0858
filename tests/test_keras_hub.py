"""keras-hub's ALBERT backbone as an oracle: the same weights give the same outputs.

Runs where the extra `interop` is installed (`pip install -e .[interop]`).
"""

import sys

import numpy as np
import pytest
from helpers import REPO

from albert.config import AlbertConfig
from albert.modeling import AlbertModel, named_weights

pytest.importorskip("keras_hub", reason="needs the extra `interop`")
sys.path.insert(0, str(REPO / "scripts/benchmarks"))

import keras_hub_weights  # noqa: E402

CONFIG = AlbertConfig(
    60, 8, 16, 4, num_hidden_groups=2, inner_group_num=2, num_attention_heads=2,
    intermediate_size=24, max_position_embeddings=12,
)


@pytest.mark.parametrize("direction", ["to", "from"])
def test_keras_hub_computes_the_same(direction):
    config = CONFIG.to_dict()
    ours, backbone = AlbertModel(CONFIG), keras_hub_weights.make_backbone(config)
    weights = named_weights(ours)
    counterparts = dict(keras_hub_weights.of_backbone(config, backbone))
    assert set(counterparts) == set(weights)
    assert len(counterparts) == len(backbone.weights)
    rng = np.random.default_rng(0)
    for name, weight in weights.items():
        other = counterparts[name]
        value = rng.normal(0, 0.3, weight.shape).astype("float32") + name.endswith("gamma")
        source, target = (weight, other) if direction == "to" else (other, weight)
        source.assign(value.reshape(source.shape))
        target.assign(np.reshape(source.numpy(), target.shape))
    ids = rng.integers(1, CONFIG.vocab_size, [3, 9])
    mask = (np.arange(9) < np.array([[9], [6], [4]])).astype(int)
    segments = (np.arange(9) > 3) * mask
    expected = backbone({"token_ids": ids, "segment_ids": segments, "padding_mask": mask})
    outputs = ours({"input_ids": ids, "input_mask": mask, "segment_ids": segments})
    real = mask.astype(bool)  # they mask rows of padding, which nobody reads
    for name in ("sequence_output", "pooled_output"):
        where = real if name == "sequence_output" else slice(None)
        np.testing.assert_allclose(
            np.asarray(outputs[name])[where], np.asarray(expected[name])[where], atol=1e-5
        )
