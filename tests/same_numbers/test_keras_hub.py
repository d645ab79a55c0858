"""keras-hub's ALBERT backbone as a reference: the same weights give the same outputs.

Runs where the extra `interop` is installed (`pip install -e .[interop]`).
"""

import apart
import numpy as np
import pytest
import their_keras_hub

from albert.config import AlbertConfig
from albert.modeling import AlbertModel, named_weights

CONFIG = AlbertConfig(
    60, 8, 16, 4, num_hidden_groups=2, inner_group_num=2, num_attention_heads=2,
    intermediate_size=24, max_position_embeddings=12,
)


@pytest.fixture(scope="module")
def keras_hub():
    apart.needs("keras_hub", extra="interop")
    with apart.process() as call:
        yield call


@pytest.mark.parametrize("direction", ["to", "from"])
def test_keras_hub_computes_the_same(direction, keras_hub):
    ours = AlbertModel(CONFIG)
    weights = named_weights(ours)
    rng = np.random.default_rng(0)
    for name, weight in weights.items():
        weight.assign(rng.normal(0, 0.3, weight.shape) + name.endswith("gamma"))
    ids = rng.integers(1, CONFIG.vocab_size, [3, 9])
    mask = (np.arange(9) < np.array([[9], [6], [4]])).astype(int)
    segments = (np.arange(9) > 3) * mask
    given = {n: w.numpy() for n, w in weights.items()} if direction == "to" else {}
    inputs = {"token_ids": ids, "segment_ids": segments, "padding_mask": mask}
    theirs, expected = keras_hub(their_keras_hub.compute, CONFIG.to_dict(), given, inputs)
    assert set(theirs) == set(weights)
    for name, weight in weights.items():
        weight.assign(np.reshape(theirs[name], weight.shape))
    outputs = ours({"input_ids": ids, "input_mask": mask, "segment_ids": segments})
    real = mask.astype(bool)  # they mask padding queries, whose outputs are unused
    for name, where in (("sequence_output", real), ("pooled_output", slice(None))):
        np.testing.assert_allclose(
            np.asarray(outputs[name])[where], expected[name][where], atol=1e-5
        )
