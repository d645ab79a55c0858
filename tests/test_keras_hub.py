"""keras-hub's ALBERT backbone as an oracle: the same weights give the same outputs.

Runs where the extra `interop` is installed (`pip install -e .[interop]`).
"""

import keras
import numpy as np
import pytest

from albert.config import AlbertConfig
from albert.modeling import AlbertModel, named_weights

keras_hub = pytest.importorskip("keras_hub", reason="needs the extra `interop`")

CONFIG = AlbertConfig(
    60, 8, 16, 4, num_hidden_groups=2, inner_group_num=2, num_attention_heads=2,
    intermediate_size=24, max_position_embeddings=12,
)


def theirs(config: AlbertConfig) -> keras.Model:
    return keras_hub.models.AlbertBackbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        embedding_dim=config.embedding_size,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        num_groups=config.num_hidden_groups,
        num_inner_repetitions=config.inner_group_num,
        max_sequence_length=config.max_position_embeddings,
    )


def pairs(config: AlbertConfig, backbone: keras.Model):
    """Yields (our name, their variable); ours have the same elements in the same order."""
    yield "bert/embeddings/word_embeddings", backbone.token_embedding.embeddings
    yield "bert/embeddings/token_type_embeddings", backbone.segment_embedding.embeddings
    yield "bert/embeddings/position_embeddings", backbone.position_embedding.position_embeddings
    scope = "bert/encoder/"
    layers = {
        "bert/embeddings/LayerNorm": backbone.embeddings_layer_norm,
        scope + "embedding_hidden_mapping_in": backbone.embeddings_projection,
        "bert/pooler/dense": backbone.pooled_dense,
    }
    for g in range(config.num_hidden_groups):
        for j in range(config.inner_group_num):
            block = backbone.transformer_layers[g][j]
            inner = f"{scope}transformer/group_{g}/inner_group_{j}/"
            attention = block._self_attention_layer
            layers |= {
                inner + "attention_1/self/query": attention._query_dense,
                inner + "attention_1/self/key": attention._key_dense,
                inner + "attention_1/self/value": attention._value_dense,
                inner + "attention_1/output/dense": attention._output_dense,
                inner + "LayerNorm": block._self_attention_layer_norm,
                inner + "ffn_1/intermediate/dense": block._feedforward_intermediate_dense,
                inner + "ffn_1/intermediate/output/dense": block._feedforward_output_dense,
                inner + "LayerNorm_1": block._feedforward_layer_norm,
            }
    for name, layer in layers.items():
        is_norm = isinstance(layer, keras.layers.LayerNormalization)
        yield f"{name}/{'gamma' if is_norm else 'kernel'}", layer.gamma if is_norm else layer.kernel
        yield f"{name}/{'beta' if is_norm else 'bias'}", layer.beta if is_norm else layer.bias


@pytest.mark.parametrize("direction", ["to", "from"])
def test_keras_hub_computes_the_same(direction):
    keras.config.set_dtype_policy("float32")
    ours, backbone = AlbertModel(CONFIG), theirs(CONFIG)
    weights = named_weights(ours)
    counterparts = dict(pairs(CONFIG, backbone))
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
